"""What a partition directory holds, as the rest of the program sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from partitioning.graph_data import EdgeType

HALO_IDS = "halo_ids.npy"
"""In a part's folder: int64 [H] ids of the data set, where features are made from them."""


@dataclass(frozen=True)
class PartCounts:
    """What one part holds."""

    nodes: int
    edges: int
    halo: int
    """Nodes owned elsewhere that are the source of an edge into the part."""
    train: int
    val: int
    test: int
    content: str
    """sha256 (hex) that stands for all arrays; in a directory of version 1 for what DGL's files hold, which have memory
    addresses in them, too: equal parts, other bytes."""


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
    """What a site that read only its own folder knows of its halo nodes; which rows they are, their owners know."""

    ids: Tensor
    """int64 [H] in the order of the halo: by owner, then ascending, as owners order their rows."""
    file: Path
    """Where the ids come from."""
    sites: tuple[str, ...]
    """Names of the owners, by rank."""
    kind: str = ""
    """Their type, in a heterogeneous graph."""
    ledger: Path | None = None
    """Folder of the account of what others ask this site for; None in a dry run, which gives nothing."""

    @property
    def where(self) -> str:
        """What a message begins with."""
        return f"{self.file}: {self.kind}" if self.kind else str(self.file)


@dataclass(frozen=True, eq=False)
class Partition:
    """One part as a worker sees it. Local ids: inner nodes 0 ... I-1, then halo nodes I ... I+H-1."""

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
    """int64 [I], -1 unlabelled; or float32 [I, C], NaN unlabelled."""
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    node_ids: Tensor
    """int64 [I] ids of the data set; of the partitioned graph where the directory does not keep them."""
    halo_owner: Tensor
    """int64 [H] the part that owns each halo node, ascending."""
    halo_index: Tensor
    """int64 [H] its local id there; ascending within an owner. -1 as long as there is `unresolved_halo`."""
    in_degree: Tensor
    """int64 [I] in the whole graph, self loops left out; float64 with weights."""
    out_degree: Tensor | None
    """int64 [I + H] in the whole graph, self loops left out; None where the directory does not say."""
    self_loops: int
    """Edges from a node to itself that were left out of src and dst."""
    unresolved_halo: UnresolvedHalo | None = None
    """What the owners have to be asked at the start; None where a partition directory knows it."""
    asked_for: tuple[Tensor, ...] | None = None
    """Of a site, by rank the inner nodes, int64 ascending, that another has named, and whose rows alone it may get."""
    halo_features: Tensor | None = None
    """float32 [H, F], where they need not be sent: made from the nodes' ids."""
    edge_weight: Tensor | None = None
    """float32 [E] from 0 on; degrees are sums of them then, float64. None for ones."""
    edge_feat: Tensor | None = None
    """float32 [E, K]; None for none."""
    edge_relation: Tensor | None = None
    """int64 [E] number of its relation in a heterogeneous graph, whose links are learned; None of others."""
    num_relations: int = 0
    links: Mapping[str, Tensor] | None = None
    """Pairs by set, int64 [n, 2] ids in the partitioned graph whose sources are inner nodes: train, val, test, val_neg,
    test_neg; `candidates`, [n, 2] the nodes that can be an end, twice each, none where all can; `pool`, [M, 2] the same
    in all parts: nodes, and how many training pairs each is the end of; `spectral`, float32 [I, K]; and `neighbours`,
    [E, 3] with a weight each (partitioning.links.adamic_adar)."""
    first_id: int = 0
    """Of the inner nodes there, with links."""

    @property
    def multilabel(self) -> bool:
        return self.labels.ndim == 2

    def of_edges(self, kept: Tensor) -> Self:
        """With some of the edges alone, bool [E]; degrees stay."""
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

    def sum_at(self, ends: Tensor, count: int) -> Tensor:
        """The edges at each of `count` nodes, int64, or the sums of their weights, float64; ends: `src` or `dst`."""
        return torch.bincount(
            ends, None if self.edge_weight is None else self.edge_weight.double(), minlength=count
        )


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
