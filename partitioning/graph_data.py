"""What every data set loader returns: one graph in memory, on the host, in NumPy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.node_names import Names

MASKS = ("train_mask", "val_mask", "test_mask")
EDGE_DATA = ("edge_weight", "edge_feat")
EDGE_NAMES = {name: name for name in EDGE_DATA} | {
    "weight": "edge_weight",
    "w": "edge_weight",
    "feat": "edge_feat",
    "edge_attr": "edge_feat",
}
"""What edata of DGL's may be called, and our name."""
Features = NDArray[np.float32] | sp.csr_array
EdgeType = tuple[str, str, str]
"""Source type, relation, destination type: DGL's canonical edge type, PyG's edge type."""
SEPARATOR = "__"
"""Between the three in names of files; so no type or relation has it in its name."""

Endpoints = NDArray[np.signedinteger[Any]]
"""Ends of edges: int32 where every node's number fits, which halves what a large graph takes. Widen before products."""


def endpoint_dtype(num_nodes: int) -> type[np.signedinteger[Any]]:
    """The narrower of the two types that holds the numbers 0 ... num_nodes - 1."""
    return np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64


def is_labelled(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """[N] True where a node has a label, of labels as GraphData has them."""
    return np.asarray(~np.isnan(labels).any(axis=1) if labels.ndim == 2 else labels >= 0)


@dataclass(frozen=True, eq=False)
class GraphData:
    """A graph with node features, labels and, where the source has them, masks.

    N nodes, E directed edges, F features, K features of an edge, C classes.
    """

    name: str
    src: Endpoints
    """[E] source of each directed edge, in [0, N)."""
    dst: Endpoints
    """[E] destination of each directed edge, in [0, N)."""
    features: Features
    """[N, F] float32, dense or CSR."""
    labels: NDArray[np.int64] | NDArray[np.float32]
    """Multi-class: int64 [N] in [0, C), -1 where unlabelled. Multi-label: float32 [N, C] of 0 and 1, a row of NaN
    where unlabelled."""
    num_classes: int
    node_ids: NDArray[np.int64]
    """[N] the ids that the source itself gives its nodes; 0 ... N-1 for most."""
    train_mask: NDArray[np.bool_] | None = None
    """[N], and so are the other two; None where the source has no split of its own."""
    val_mask: NDArray[np.bool_] | None = None
    test_mask: NDArray[np.bool_] | None = None
    edge_weight: NDArray[np.float32] | None = None
    """[E] from 0 on; None for ones."""
    edge_feat: NDArray[np.float32] | None = None
    """[E, K]; None for none."""
    edge_time: NDArray[np.float64] | None = None
    """[E] for a split by time; None for none."""
    links: Mapping[str, Any] | None = None
    """The data set's own split of pairs: val, test, and maybe train, int64 [n, 2]; val_neg, test_neg; evaluator."""
    relation: Mapping[str, Any] | None = None
    """Which edges are learned, [E], of which sources and to which destinations, [N], and the names of all relations, of
    which edge_feat has the numbers; None: all."""
    node_names: Names | None = None
    """[N] what the source calls its nodes, where `node_ids` are keys of names."""
    class_names: tuple[str | int, ...] | None = None
    """[C] what it calls its classes; None: 0 ... C-1."""
    featured: NDArray[np.bool_] | None = None
    """[N] False for a node without features, whose row is zeros; None: all have some."""
    features_of_ids: bool = False
    """Whether they are random_rows(node_ids), which anyone can make who knows the ids."""

    @property
    def shown_ids(self) -> Any:
        """[N] as the source has them."""
        return self.node_ids if self.node_names is None else self.node_names.tolist()

    @property
    def num_nodes(self) -> int:
        return int(self.labels.shape[0])

    @property
    def num_edges(self) -> int:
        return int(self.src.shape[0])

    @property
    def num_features(self) -> int:
        return int(self.features.shape[1])

    @property
    def multilabel(self) -> bool:
        return self.labels.ndim == 2

    @property
    def edge_data(self) -> dict[str, NDArray[np.float32]]:
        """What there is of EDGE_DATA, [E, ...] by name."""
        return {name: data for name in EDGE_DATA if (data := getattr(self, name)) is not None}

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """[N] True where a node has a label."""
        return is_labelled(self.labels)


@dataclass(frozen=True, eq=False)
class NodeTable:
    """The nodes of one type."""

    features: Features
    """[N_t, F_t] float32, dense or CSR; F_t is 0 for a type without features."""
    node_ids: NDArray[np.int64]
    """[N_t] the ids that the source gives them, each once within the type."""
    node_names: Names | None = None
    """[N_t] what the source calls them, where `node_ids` are keys of names."""
    featured: NDArray[np.bool_] | None = None
    """[N_t] False for a node without features, whose row is zeros; None: all have some."""

    @property
    def num_nodes(self) -> int:
        return len(self.node_ids)


@dataclass(frozen=True, eq=False)
class Relation:
    """The edges of one relation."""

    src: Endpoints
    """[E_r] position of each edge's source within its type."""
    dst: Endpoints
    """[E_r] position of its destination within its type."""
    edge_weight: NDArray[np.float32] | None = None
    """[E_r] from 0 on; None for ones."""

    @property
    def num_edges(self) -> int:
        return len(self.src)


@dataclass(frozen=True, eq=False)
class HeteroGraphData:
    """A heterogeneous graph; one of its types, the target, has labels and, where the source has them, masks."""

    name: str
    nodes: dict[str, NodeTable]
    relations: dict[EdgeType, Relation]
    target: str
    labels: NDArray[np.int64] | NDArray[np.float32]
    """Of the target's nodes, as GraphData has them: int64 [N], -1 unlabelled; or float32 [N, C], NaN unlabelled."""
    num_classes: int
    train_mask: NDArray[np.bool_] | None = None
    """[N], and so are the other two; None where the source has no split of its own."""
    val_mask: NDArray[np.bool_] | None = None
    test_mask: NDArray[np.bool_] | None = None
    class_names: tuple[str | int, ...] | None = None
    """[C] what the source calls its classes; None: 0 ... C-1."""

    @property
    def multilabel(self) -> bool:
        return self.labels.ndim == 2

    @property
    def num_edges(self) -> int:
        return sum(relation.num_edges for relation in self.relations.values())

    def of_target(self) -> GraphData:
        """The target's nodes as a graph without edges: what a split is drawn from."""
        table, none = self.nodes[self.target], np.empty(0, np.int32)
        fields: dict[str, Any] = {
            name: getattr(self, name) for name in ("train_mask", "val_mask", "test_mask")
        }
        return GraphData(
            self.name,
            none,
            none,
            table.features,
            self.labels,
            self.num_classes,
            table.node_ids,
            node_names=table.node_names,
            class_names=self.class_names,
            **fields,
        )

    @property
    def offsets(self) -> dict[str, int]:
        """Where the nodes of each type begin when all types are numbered together."""
        counts = [0, *(table.num_nodes for table in self.nodes.values())]
        return dict(zip(self.nodes, np.cumsum(counts).tolist(), strict=False))

    def union(self) -> GraphData:
        """All nodes and edges as one plain graph, without features and labels; node_ids are their numbers."""
        count = sum(table.num_nodes for table in self.nodes.values())
        ends = []
        for end, place in (("src", 0), ("dst", 2)):
            pieces = [
                getattr(relation, end) + self.offsets[each[place]]
                for each, relation in self.relations.items()
            ]
            ends.append(
                np.concatenate([*pieces, np.empty(0, np.int32)]).astype(endpoint_dtype(count))
            )
        src, dst = ends
        features = np.zeros((count, 0), np.float32)
        return GraphData(
            self.name, src, dst, features, np.zeros(count, np.int64), 1, np.arange(count)
        )
