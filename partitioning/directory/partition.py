"""One partition of a plain or heterogeneous graph in memory, as the rest of the program uses it.

I inner nodes of a partition (of one type), H halo nodes, F features, E edges, K edge features, C
classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from partitioning.graph_data import EdgeType

HALO_IDS = "halo_ids.npy"
"""File in a partition's folder: int64 [H] ids of the data set, for features made from ids."""


def label_kind(labels: Tensor) -> str:
    """Return multiclass, multilabel or regression; labels as in `Partition`."""
    if labels.ndim == 1:
        return "multiclass"
    return "regression" if labels.dtype == torch.float64 else "multilabel"


@dataclass(frozen=True)
class PartCounts:
    """Counts of one partition, in meta.json."""

    nodes: int
    edges: int
    halo: int
    """Nodes owned elsewhere that are the source of an edge into the part."""
    train: int
    val: int
    test: int
    content: str
    """sha256 (hex) of the checksums of all npy files."""


@dataclass(frozen=True)
class EdgeStatistics:
    """Counts that often show a mistake in the data."""

    self_loops: int
    """Edges from a node to itself; partitions leave them out."""
    duplicates: int
    """Edges beyond the first from one node to another; each counts in sums and means."""
    isolated_nodes: int
    """Nodes without an edge to or from another node."""


@dataclass(frozen=True, eq=False)
class UnresolvedHalo:
    """The halo of a site: it knows the ids of its halo nodes, but not their rows at the owners.

    The workers resolve it at the start (retexo/sites/resolve_halo.py).
    """

    ids: Tensor
    """int64 [H] by owner, then ascending, which is the order of the owner's rows."""
    file: Path
    """The file with the ids, for messages."""
    sites: tuple[str, ...]
    """Names of the owners, by rank."""
    kind: str = ""
    """Their node type; "" in a plain graph."""
    ledger: Path | None = None
    """Folder of the ledger of rows that other sites asked for; None in a dry run, which sends none.
    """

    @property
    def where(self) -> str:
        """What error messages begin with: the site's file, and the node type of several."""
        return f"{self.file}: {self.kind}" if self.kind else str(self.file)


@dataclass(frozen=True, eq=False)
class Partition:
    """One partition of a plain graph.

    Local ids: inner nodes 0 ... I-1, then halo nodes I ... I+H-1. The halo has each node owned by
    another partition that is the source of an edge into this one.
    """

    rank: int
    num_parts: int
    num_inner: int
    num_halo: int
    src: Tensor
    """int32 [E] local id of each edge's source; no self loops."""
    dst: Tensor
    """int32 [E] local id of each edge's destination, an inner node."""
    features: Tensor
    """float32 [I, F]."""
    labels: Tensor
    """int64 [I], -1 unlabelled; float32 [I, C] or float64 [I, T] (targets), NaN unknown."""
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    node_ids: Tensor
    """int64 [I] ids of the data set; of a foreign directory without them, partitioned ids."""
    halo_owner: Tensor
    """int64 [H] partition that owns each halo node, ascending."""
    halo_index: Tensor
    """int64 [H] local id at the owner, ascending per owner; -1 while `unresolved_halo` is set."""
    in_degree: Tensor
    """int64 [I] in the whole graph, without self loops; float64 sums with weights."""
    out_degree: Tensor | None
    """int64 [I + H] in the whole graph, without self loops; None where the directory lacks it."""
    self_loops: int
    """Number of edges from a node to itself, which are left out of src and dst."""
    unresolved_halo: UnresolvedHalo | None = None
    """What a site has to ask the owners at the start; None in a partition directory."""
    asked_for: tuple[Tensor, ...] | None = None
    """Of a site, by rank: int64 ascending, the inner nodes whose rows that other site may get."""
    halo_features: Tensor | None = None
    """float32 [H, F], where features are computed from ids and need not be sent; else None."""
    edge_weight: Tensor | None = None
    """float32 [E], not negative; None: all weights are 1."""
    edge_feat: Tensor | None = None
    """float32 [E, K]; None: no edge features."""
    edge_relation: Tensor | None = None
    """int64 [E] number of each edge's relation, for links of a heterogeneous graph; else None."""
    num_relations: int = 0
    links: Mapping[str, Tensor] | None = None
    """For link prediction, by name: train, val, test, val_neg, test_neg: int64 [n, 2] pairs of ids
    in the partitioned graph whose sources are inner nodes; `candidates` [n, 2]: nodes that can be
    destinations, each twice, empty where all can; `pool` [M, 2]: nodes and the number of training
    pairs that end there, the same in all partitions; `spectral`: float32 [I, K]; `neighbours` [E,
    3]: see links/adamic_adar.py."""
    first_id: int = 0
    """Id of the first inner node in the partitioned graph; set with links."""

    @property
    def label_kind(self) -> str:
        """The kind of labels: multiclass, multilabel or regression."""
        return label_kind(self.labels)

    def keep_edges(self, kept: Tensor) -> Self:
        """Return the partition with the edges of a mask, bool [E]; degrees stay."""
        weight, feat = (
            None if data is None else data[kept] for data in (self.edge_weight, self.edge_feat)
        )
        relation = None if self.edge_relation is None else self.edge_relation[kept]
        return replace(
            self,
            src=self.src[kept],
            dst=self.dst[kept],
            edge_weight=weight,
            edge_feat=feat,
            edge_relation=relation,
        )

    def sum_edges_at(self, ends: Tensor, count: int) -> Tensor:
        """Count the edges at each of `count` nodes, int64, or add up their weights, float64.

        Args:
            ends: `src` or `dst`.
        """
        if self.edge_weight is None:
            return torch.bincount(ends, minlength=count)
        # Without edges, bincount returns integers.
        return torch.bincount(ends, self.edge_weight.double(), minlength=count).double()


@dataclass(frozen=True, eq=False)
class PartNodes:
    """The nodes of one type in a partition.

    Local ids: inner nodes 0 ... I-1, then halo nodes I ... I+H-1. A halo node occurs once, whatever
    the number of relations in which it is a source.
    """

    features: Tensor
    """float32 [I, F]; F is 0 for a type without features."""
    node_ids: Tensor
    """int64 [I] ids of the data set."""
    halo_owner: Tensor
    """int64 [H] partition that owns each halo node, ascending."""
    halo_index: Tensor
    """int64 [H] local id at the owner, ascending per owner; -1 while `unresolved_halo` is set."""
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
    """The edges of one relation into a partition, by destination, then source; no self loops."""

    src: Tensor
    """int32 [E] local id within the source type."""
    dst: Tensor
    """int32 [E] local id within the destination type: inner nodes, with all their in-edges."""
    edge_weight: Tensor | None = None
    """float32 [E] from 0 on; None for ones."""
    edge_feat: Tensor | None = None
    """float32 [E, K]; None: no edge features. Those of a heterogeneous graph became features of
    nodes."""


@dataclass(frozen=True, eq=False)
class HeteroPartition:
    """One partition of a heterogeneous graph.

    All partitions have the same types and relations in the same order, even without nodes or edges.
    """

    rank: int
    num_parts: int
    target: str
    """The type that has labels."""
    nodes: dict[str, PartNodes]
    relations: dict[EdgeType, PartEdges]
    labels: Tensor
    """Labels of the target's inner nodes, as in Partition."""
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    self_loops: int
    """Number of edges from a node to itself, which are left out."""

    @property
    def label_kind(self) -> str:
        return label_kind(self.labels)
