"""One part of a heterogeneous graph, as a worker sees it.

Per type of nodes: I inner nodes, H halo nodes, F features. Per relation: E edges.
"""

from dataclasses import dataclass

from torch import Tensor

from partitioning.directory.types import UnresolvedHalo
from partitioning.hetero.graph_data import EdgeType


@dataclass(frozen=True, eq=False)
class PartNodes:
    """The nodes of one type. Local ids: inner nodes 0 ... I-1, then halo nodes I ... I+H-1.

    The halo has the nodes owned elsewhere that are the source of an edge into this part, of any relation, each once.
    """

    features: Tensor
    """float32 [I, F]; F is 0 for a type without features."""
    node_ids: Tensor
    """int64 [I] ids of the data set."""
    halo_owner: Tensor
    """int64 [H] the part that owns each halo node, ascending."""
    halo_index: Tensor
    """int64 [H] its local id there; ascending within an owner. This and the next as Partition has them."""
    unresolved_halo: UnresolvedHalo | None = None
    asked_for: tuple[Tensor, ...] | None = None

    @property
    def num_inner(self) -> int:
        return len(self.node_ids)

    @property
    def num_halo(self) -> int:
        return len(self.halo_owner)


@dataclass(frozen=True, eq=False)
class PartEdges:
    """The edges of one relation into a part, by destination and then by source; no self loops."""

    src: Tensor
    """int32 [E] local id within the source type."""
    dst: Tensor
    """int32 [E] local id within the destination type, an inner node; all its in-edges are here."""
    edge_weight: Tensor | None = None
    """float32 [E] from 0 on; None for ones."""


@dataclass(frozen=True, eq=False)
class HeteroPartition:
    """One part. All parts have the same types and relations in the same order, also where a part has none of one."""

    rank: int
    num_parts: int
    target: str
    """The type that has labels."""
    nodes: dict[str, PartNodes]
    relations: dict[EdgeType, PartEdges]
    labels: Tensor
    """Of the target's inner nodes: int64 [I], -1 unlabelled; or float32 [I, C], NaN unlabelled."""
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    self_loops: int
    """Edges from a node to itself that were left out."""

    @property
    def multilabel(self) -> bool:
        return self.labels.ndim == 2
