"""A graph in memory, as loaders return it: NumPy arrays of nodes, edges, labels and masks.

A plain graph is the one with one type of nodes and one relation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.graph.node_names import Names
from partitioning.graph.schema import Schema

SPLITS = ("train", "val", "test")
MASKS = tuple(f"{name}_mask" for name in SPLITS)
EDGE_DATA = ("edge_weight", "edge_feat")
EDGE_NAMES = {name: name for name in EDGE_DATA} | {
    "weight": "edge_weight",
    "w": "edge_weight",
    "feat": "edge_feat",
    "edge_attr": "edge_feat",
}
"""From the names that DGL graphs use for edge data to ours."""
EdgeType = tuple[str, str, str]
"""Source type, relation and destination type: an edge type of DGL or PyG."""
SEPARATOR = "__"
"""Joins an edge type in file names, so no type or relation may contain it."""
PLAIN_TYPE = ""
"""Node type of a plain graph. No heterogeneous graph has it: its types need names."""
PLAIN_RELATION: EdgeType = ("", "", "")
"""Edge type of a plain graph."""
SOURCE, DESTINATION = "source", "destination"
"""Relations from the ends of a labelled edge to it (read/labelled_edges.py)."""
Features = NDArray[np.float32] | sp.csr_array
"""Dense or CSR. After `encode_tables` also an EncodedFeatures, which encodes rows on access."""
Endpoints = NDArray[np.signedinteger[Any]]
"""Edge ends: int32 where all node numbers fit, which halves the memory. Widen before multiplying.
"""


def is_relation(name: str | None, full: str) -> bool:
    """Return whether a name is SOURCE__RELATION__DESTINATION, `full`, or its RELATION."""
    return name == full or f"{SEPARATOR}{name}{SEPARATOR}" in full


def table_name(name: str | EdgeType) -> str:
    """Return what the table of a node type or relation is called in pipelines and messages.

    That is nodes or edges; with several types nodes/TYPE or edges/SOURCE__RELATION__DESTINATION.
    """
    if name in (PLAIN_TYPE, PLAIN_RELATION):
        return "nodes" if name == PLAIN_TYPE else "edges"
    return f"nodes/{name}" if isinstance(name, str) else f"edges/{SEPARATOR.join(name)}"


def endpoint_dtype(num_nodes: int) -> type[np.signedinteger[Any]]:
    """Return the narrower integer type that holds 0 ... num_nodes - 1."""
    return np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64


def label_kind(labels: NDArray[Any]) -> str:
    """Return the kind: [N] multiclass, [N, T] float64 regression, [N, C] of others multilabel."""
    if labels.ndim == 1:
        return "multiclass"
    return "regression" if labels.dtype == np.float64 else "multilabel"


def is_labelled(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return bool [N], True where a node has a label; labels as in `GraphData`."""
    return np.asarray(~np.isnan(labels).all(axis=1) if labels.ndim == 2 else labels >= 0)


@dataclass(frozen=True, eq=False)
class NodeTable:
    """Nodes of one type: N_t nodes with F_t features."""

    features: Features
    """[N_t, F_t] float32, dense or CSR; F_t is 0 for a type without features."""
    node_ids: NDArray[np.int64]
    """[N_t] ids of the data set, unique within the type."""
    node_names: Names | None = None
    """[N_t] names of the data set, where `node_ids` are hashes of names."""
    featured: NDArray[np.bool_] | None = None
    """[N_t] False for a node without features, whose row is zeros; None: all nodes have features.
    """
    schema: Schema | None = None
    """What the columns of `features` hold before they are encoded; None: they need no encoding."""

    @property
    def num_nodes(self) -> int:
        return len(self.node_ids)

    @property
    def given_ids(self) -> NDArray[Any]:
        """The ids as the data set has them, int64 or objects of str [N_t]."""
        if self.node_names is None:
            return self.node_ids
        return np.array(self.node_names.tolist(), dtype=object)

    def shown_ids(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the ids of some nodes as the data set writes them: int64 [n], or str."""
        if self.node_names is None:
            ids: NDArray[Any] = self.node_ids[rows]
            return ids
        return np.array(self.node_names.take(rows.astype(np.int64)).tolist(), np.str_)

    def shown_id(self, row: int) -> Any:
        """Return the id of one node as the data set writes it, for messages."""
        return self.shown_ids(np.array([row]))[0]


@dataclass(frozen=True, eq=False)
class Relation:
    """Edges of one relation: E_r directed edges with K features."""

    src: Endpoints
    """[E_r] position of each edge's source within its type."""
    dst: Endpoints
    """[E_r] position of each edge's destination within its type."""
    edge_weight: NDArray[np.float32] | None = None
    """[E_r], not negative; None: all weights are 1."""
    edge_feat: NDArray[np.float32] | None = None
    """[E_r, K] or None. With several types they become features of the destinations
    (hetero_kinds.py)."""
    schema: Schema | None = None
    """What the columns of `edge_feat` hold before they are encoded; None: they need no encoding."""
    edge_time: NDArray[np.float64] | None = None
    """[E_r], for link prediction with split.by=time; None: no times."""

    @property
    def num_edges(self) -> int:
        return len(self.src)

    @property
    def edge_data(self) -> dict[str, NDArray[np.float32]]:
        """Return the arrays of EDGE_DATA that exist, [E_r, ...] by name."""
        return {name: data for name in EDGE_DATA if (data := getattr(self, name)) is not None}

    def take(self, rows: NDArray[np.integer[Any]]) -> "Relation":
        """Return some of the edges, by index, without their times.

        An index, not a mask: features that are encoded when taken need one.
        """
        data: Any = {name: array[rows] for name, array in self.edge_data.items()}
        return replace(self, src=self.src[rows], dst=self.dst[rows], edge_time=None, **data)


@dataclass(frozen=True, eq=False)
class GraphData:
    """Nodes of one or several types and directed edges of one or several relations.

    One type, the target, has labels and, where the source has them, masks: N nodes, C classes. A
    plain graph has one type of nodes, PLAIN_TYPE, and one relation, PLAIN_RELATION.
    """

    name: str
    nodes: Mapping[str, NodeTable]
    relations: Mapping[EdgeType, Relation]
    target: str
    labels: NDArray[np.int64] | NDArray[np.float32] | NDArray[np.float64]
    """By task: multi-class int64 [N] in [0, C), -1 where unlabelled; multi-label float32 [N, C] of
    0 and 1, NaN where unknown (a node without a known cell is unlabelled); regression float64 [N,
    T], NaN likewise."""
    num_classes: int
    """Regression: T, the number of targets."""
    train_mask: NDArray[np.bool_] | None = None
    """[N]; None where the source has no split."""
    val_mask: NDArray[np.bool_] | None = None
    test_mask: NDArray[np.bool_] | None = None
    class_names: tuple[str | int, ...] | None = None
    """[C] names of the classes; None: 0 ... C-1. Regression: of the targets, if they have names."""
    node_time: NDArray[np.float64] | None = None
    """[N] for a split by time; None: no times."""
    labelled_edges: EdgeType | None = None
    """The relation whose edges are the target's nodes (read/labelled_edges.py); None: none."""
    links: Mapping[str, Any] | None = None
    """The data set's own split of pairs, int64 [n, 2]: train (optional), val, test, val_neg,
    test_neg."""
    relation: Mapping[str, Any] | None = None
    """For links of one relation of a heterogeneous graph: masks of its edges [E], sources and
    destinations [N], the types of both, and all relations' names (edge_feat has their numbers)."""
    features_of_ids: bool = False
    """Whether a plain graph's features are random_rows(node_ids), which any worker can compute."""

    @classmethod
    def plain(
        cls,
        name: str,
        nodes: NodeTable,
        edges: Relation,
        labels: NDArray[Any],
        num_classes: int,
        **optional: Any,
    ) -> Self:
        """Return a graph with one type of nodes and one relation; optional: as the fields."""
        tables = {PLAIN_TYPE: nodes}, {PLAIN_RELATION: edges}
        return cls(name, *tables, PLAIN_TYPE, labels, num_classes, **optional)

    @property
    def is_plain(self) -> bool:
        return self.target == PLAIN_TYPE

    @property
    def target_nodes(self) -> NodeTable:
        return self.nodes[self.target]

    @property
    def features(self) -> Features:
        """Return the features of the target's nodes."""
        return self.target_nodes.features

    @property
    def node_ids(self) -> NDArray[np.int64]:
        """Return the ids of the target's nodes, [N]."""
        return self.target_nodes.node_ids

    @property
    def edges(self) -> Relation:
        """Return the edges of a plain graph."""
        assert self.is_plain
        return self.relations[PLAIN_RELATION]

    @property
    def from_ends(self) -> dict[str, EdgeType]:
        """Return the relations from the ends of the labelled edges to them; {}: no labelled edges.

        The keys are SOURCE and DESTINATION.
        """
        if self.labelled_edges is None:
            return {}
        ends = {SOURCE: self.labelled_edges[0], DESTINATION: self.labelled_edges[2]}
        return {end: (name, end, self.target) for end, name in ends.items()}

    @property
    def label_kind(self) -> str:
        """Return the kind of labels: multiclass, multilabel or regression."""
        return label_kind(self.labels)

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Whether each node of the target has a label, bool [N]."""
        return is_labelled(self.labels)

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(table.num_nodes for table in self.nodes.values())

    @property
    def num_edges(self) -> int:
        """Number of edges of all relations."""
        return sum(relation.num_edges for relation in self.relations.values())

    @property
    def num_features(self) -> int:
        """Number of features of the target's nodes."""
        return int(self.features.shape[1])

    def to_homogeneous(self) -> "GraphData":
        """Return a plain graph as it is, another as its nodes, type by type, and edges alone.

        That one has no features, weights, times or masks; ids are 0 ... N-1, and all labels 0.
        """
        if self.is_plain:
            return self
        first, num_nodes = first_nodes(self), self.num_nodes
        ends = []
        for end, place in (("src", 0), ("dst", 2)):
            pieces = [
                getattr(relation, end) + first[edge_type[place]]
                for edge_type, relation in self.relations.items()
            ]
            pieces.append(np.empty(0, np.int32))
            ends.append(np.concatenate(pieces).astype(endpoint_dtype(num_nodes)))
        nodes = NodeTable(np.zeros((num_nodes, 0), np.float32), np.arange(num_nodes))
        edges = Relation(src=ends[0], dst=ends[1])
        return GraphData.plain(self.name, nodes, edges, np.zeros(num_nodes, np.int64), 1)


def first_nodes(graph: GraphData) -> dict[str, int]:
    """Return each type's first node where the nodes of all types are numbered together."""
    counts = [0, *(table.num_nodes for table in graph.nodes.values())]
    return dict(zip(graph.nodes, np.cumsum(counts).tolist(), strict=False))
