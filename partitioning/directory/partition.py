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

from partitioning.graph.graph_data import PLAIN_RELATION, EdgeType, label_kind

HALO_IDS = "halo_ids.npy"
"""File in a partition's folder: int64 [H] ids of the data set, for features made from ids."""


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


@dataclass(frozen=True, eq=False)
class UnresolvedHalo:
    """Halo of a site: it knows the ids of its halo nodes, but not their rows at the owners.

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
class PartNodes:
    """Nodes of one type in a partition.

    Local ids: inner nodes 0 ... I-1, then halo nodes I ... I+H-1: each node owned by another
    partition that is the source of an edge into this one, once for all relations.
    """

    features: Tensor
    """float32 [I, F]; F is 0 for a type without features."""
    node_ids: Tensor
    """int64 [I] ids of the data set; of a foreign directory without them, partitioned ids."""
    halo_owner: Tensor
    """int64 [H] partition that owns each halo node, ascending."""
    halo_index: Tensor
    """int64 [H] local id at the owner, ascending per owner; -1 while `unresolved_halo` is set."""
    unresolved_halo: UnresolvedHalo | None = None
    """What a site has to ask the owners at the start; None in a partition directory."""
    asked_for: tuple[Tensor, ...] | None = None
    """By rank, int64 ascending, the inner nodes whose rows that other site may get; else None."""
    out_degree: Tensor | None = None
    """int64 [I + H] in the whole graph, without self loops (with weights their float64 sums); None
    where the directory lacks it, and in a heterogeneous graph."""
    halo_features: Tensor | None = None
    """float32 [H, F], where features are computed from ids and need not be sent; else None."""

    @property
    def num_inner(self) -> int:
        return len(self.node_ids)

    @property
    def num_halo(self) -> int:
        return len(self.halo_owner)


@dataclass(frozen=True, eq=False)
class PartEdges:
    """Edges of one relation into a partition, by destination, then source; no self loops."""

    src: Tensor
    """int32 [E] local id within the source type."""
    dst: Tensor
    """int32 [E] local id within the destination type: inner nodes, with all their in-edges."""
    edge_weight: Tensor | None = None
    """float32 [E] from 0 on; None for ones."""
    edge_feat: Tensor | None = None
    """float32 [E, K]; None: no edge features. Those of a heterogeneous graph became features of
    nodes."""
    edge_relation: Tensor | None = None
    """int64 [E] number of each edge's relation, for links of a heterogeneous graph; else None."""

    def keep(self, mask: Tensor) -> Self:
        """Return the edges of a mask, bool [E]."""
        arrays = {name: getattr(self, name) for name in PartEdges.__dataclass_fields__}
        return replace(
            self, **{name: array[mask] for name, array in arrays.items() if array is not None}
        )

    def sum_at(self, ends: Tensor, count: int) -> Tensor:
        """Count the edges at each of `count` nodes, int64, or add up their weights, float64.

        Args:
            ends: `src` or `dst`.
        """
        if self.edge_weight is None:
            return torch.bincount(ends, minlength=count)
        # Without edges, bincount returns integers.
        return torch.bincount(ends, self.edge_weight.double(), minlength=count).double()


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalEdges(PartEdges):
    """Edges into a partition with one numbering of both ends, and the owners of their halo nodes.

    Local ids: inner nodes 0 ... I-1, then halo nodes I ... I+H-1.
    """

    num_parts: int
    num_inner: int
    halo_owner: Tensor
    """int64 [H], see PartNodes."""
    halo_index: Tensor
    """int64 [H], see PartNodes."""
    asked_for: tuple[Tensor, ...] | None = None
    """See PartNodes."""

    @property
    def num_halo(self) -> int:
        return len(self.halo_owner)

    def find_sources(self, destinations: Tensor) -> Tensor:
        """Return by local id whether a node sends to any of `destinations`: bool [I + H].

        destinations: bool [I].
        """
        is_source = torch.zeros(self.num_inner + self.num_halo, dtype=torch.bool)
        is_source[self.src[destinations[self.dst]]] = True
        return is_source


@dataclass(frozen=True, eq=False)
class Partition:
    """One partition of a graph; a plain graph has one node type and one relation.

    All partitions have the same types and relations in the same order, even without nodes or edges.
    """

    rank: int
    num_parts: int
    target: str
    """The type that has labels."""
    nodes: dict[str, PartNodes]
    relations: dict[EdgeType, PartEdges]
    labels: Tensor
    """Labels of the target's inner nodes: int64 [I], -1 unlabelled; float32 [I, C] or float64
    [I, T] (targets), NaN unknown."""
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    self_loops: int
    """Number of edges from a node to itself, which are left out."""
    num_relations: int = 0
    """Number of relations that PartEdges.edge_relation tells apart."""
    links: Mapping[str, Tensor] | None = None
    """For link prediction, by name: train, val, test, val_neg, test_neg: int64 [n, 2] pairs of ids
    in the partitioned graph whose sources are inner nodes; `candidates` [n, 2]: nodes that can be
    destinations, each twice, empty where all can; `pool` [M, 2]: nodes and the number of training
    pairs that end there, the same in all partitions; `spectral_val`, `spectral`: float32 [I, K],
    see LinkSplit; `neighbours` [E, 3]: see links/adamic_adar.py."""
    first_id: int = 0
    """Id of the first inner node in the partitioned graph; set with links."""

    @property
    def target_nodes(self) -> PartNodes:
        """Return the nodes of the type that has labels."""
        return self.nodes[self.target]

    @property
    def num_inner(self) -> int:
        """Return the number of the target's inner nodes."""
        return self.target_nodes.num_inner

    @property
    def node_ids(self) -> Tensor:
        """int64 [I], the ids of the target's nodes."""
        return self.target_nodes.node_ids

    @property
    def features(self) -> Tensor:
        """float32 [I, F], the features of the target's nodes."""
        return self.target_nodes.features

    @property
    def label_kind(self) -> str:
        """Return the kind of labels: multiclass, multilabel or regression."""
        return label_kind(self.labels.numpy())

    @property
    def is_plain(self) -> bool:
        """Whether it is of a plain graph, with PLAIN_RELATION alone."""
        return PLAIN_RELATION in self.relations

    @property
    def edges(self) -> LocalEdges:
        """Return the edges of a plain graph."""
        nodes = self.target_nodes
        return LocalEdges(
            num_parts=self.num_parts,
            num_inner=nodes.num_inner,
            halo_owner=nodes.halo_owner,
            halo_index=nodes.halo_index,
            asked_for=nodes.asked_for,
            **vars(self.relations[PLAIN_RELATION]),
        )

    def without_features(self) -> Self:
        """Return the partition with features [0, F], so that it keeps no memory of them."""
        nodes = {
            name: replace(nodes, features=nodes.features[:0].clone(), halo_features=None)
            for name, nodes in self.nodes.items()
        }
        return replace(self, nodes=nodes)
