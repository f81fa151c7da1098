"""A graph in memory, as loaders return it: NumPy arrays of nodes, edges, labels and masks.

`GraphData` has one node type and one relation, `HeteroGraphData` any number of both. Code that
takes `AnyGraph` reads `nodes` and `relations`, where a plain graph is the instance with one of
each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.features.schema import Schema
from partitioning.node_names import Names

MASKS = ("train_mask", "val_mask", "test_mask")
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
"""Relations from the ends of a labelled edge to it (datasets/labelled_edges.py)."""
Features = NDArray[np.float32] | sp.csr_array
"""Dense or CSR. After `encode_tables` also an EncodedFeatures, which encodes rows on access."""
Endpoints = NDArray[np.signedinteger[Any]]
"""Edge ends: int32 where all node numbers fit, which halves the memory. Widen before multiplying.
"""


def is_relation(name: str | None, full: str) -> bool:
    """Return whether a name is SOURCE__RELATION__DESTINATION, `full`, or its RELATION."""
    return name == full or f"{SEPARATOR}{name}{SEPARATOR}" in full


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

    def shown_ids(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the ids of some nodes as the data set writes them: int64 [n], or str."""
        if self.node_names is None:
            ids: NDArray[Any] = self.node_ids[rows]
            return ids
        return np.array(self.node_names.take(rows.astype(np.int64)).tolist(), np.str_)


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


Table = TypeVar("Table", NodeTable, Relation)


@dataclass(frozen=True, eq=False)
class GraphData:
    """A graph with node features, labels and, where the source has them, masks.

    N nodes, E directed edges, F features, K edge features, C classes.
    """

    name: str
    src: Endpoints
    """[E] source of each directed edge, in [0, N)."""
    dst: Endpoints
    """[E] destination of each directed edge, in [0, N)."""
    features: Features
    """[N, F] float32, dense or CSR."""
    labels: NDArray[np.int64] | NDArray[np.float32] | NDArray[np.float64]
    """By task: multi-class int64 [N] in [0, C), -1 where unlabelled; multi-label float32 [N, C] of
    0 and 1, NaN where unknown (a node without a known cell is unlabelled); regression float64 [N,
    T], NaN likewise."""
    num_classes: int
    """Regression: T, the number of targets."""
    node_ids: NDArray[np.int64]
    """[N] ids of the data set; 0 ... N-1 for most."""
    train_mask: NDArray[np.bool_] | None = None
    """[N]; None where the source has no split."""
    val_mask: NDArray[np.bool_] | None = None
    test_mask: NDArray[np.bool_] | None = None
    edge_weight: NDArray[np.float32] | None = None
    """[E], not negative; None: all weights are 1."""
    edge_feat: NDArray[np.float32] | None = None
    """[E, K]; None: no edge features."""
    edge_time: NDArray[np.float64] | None = None
    """[E] for a split by time; None: no times."""
    links: Mapping[str, Any] | None = None
    """The data set's own split of pairs, int64 [n, 2]: train (optional), val, test, val_neg,
    test_neg."""
    relation: Mapping[str, Any] | None = None
    """For links of one relation of a heterogeneous graph: masks of its edges [E], sources and
    destinations [N], the types of both, and all relations' names (edge_feat has their numbers)."""
    node_names: Names | None = None
    """[N] names of the data set, where `node_ids` are hashes of names."""
    class_names: tuple[str | int, ...] | None = None
    """[C] names of the classes; None: 0 ... C-1. Regression: of the targets, if they have names."""
    featured: NDArray[np.bool_] | None = None
    """[N] False for a node without features, whose row is zeros; None: all nodes have features."""
    node_time: NDArray[np.float64] | None = None
    """[N] for a split by time; None: no times."""
    schema: Schema | None = None
    """What the columns of `features` hold before they are encoded; None: they need no encoding."""
    edge_schema: Schema | None = None
    """The same for `edge_feat`."""
    features_of_ids: bool = False
    """Whether the features are random_rows(node_ids), which any worker can compute from the ids."""

    @property
    def nodes(self) -> dict[str, NodeTable]:
        return {PLAIN_TYPE: self._take(NodeTable)}

    @property
    def relations(self) -> dict[EdgeType, Relation]:
        edges = self._take(Relation)
        return {PLAIN_RELATION: replace(edges, schema=self.edge_schema)}

    def _take(self, table: type[Table]) -> Table:
        """Return the fields of this graph that a table has."""
        return table(**{field.name: getattr(self, field.name) for field in fields(table)})

    def with_tables(
        self, nodes: Mapping[str, NodeTable], relations: Mapping[EdgeType, Relation]
    ) -> "GraphData":
        """Return the graph with other nodes and edges; labels and masks stay."""
        tables: Any = plain_fields(nodes, relations)
        return replace(self, **tables)

    @property
    def target(self) -> str:
        return PLAIN_TYPE

    @property
    def shown_ids(self) -> Any:
        """Return the ids of the nodes, [N], as the data set writes them, for messages."""
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
    def label_kind(self) -> str:
        """Return the kind of labels: multiclass, multilabel or regression."""
        return label_kind(self.labels)

    @property
    def edge_data(self) -> dict[str, NDArray[np.float32]]:
        """Return the arrays of EDGE_DATA that exist, [E, ...] by name."""
        return self.relations[PLAIN_RELATION].edge_data

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Whether each node has a label, bool [N]."""
        return is_labelled(self.labels)


@dataclass(frozen=True, eq=False)
class HeteroGraphData:
    """A heterogeneous graph.

    One node type, the target, has labels and, where the source has them, masks.
    """

    name: str
    nodes: dict[str, NodeTable]
    relations: dict[EdgeType, Relation]
    target: str
    labels: NDArray[np.int64] | NDArray[np.float32] | NDArray[np.float64]
    """Labels of the target's nodes, as in GraphData."""
    num_classes: int
    train_mask: NDArray[np.bool_] | None = None
    """[N] of the target's nodes; None where the source has no split."""
    val_mask: NDArray[np.bool_] | None = None
    test_mask: NDArray[np.bool_] | None = None
    class_names: tuple[str | int, ...] | None = None
    """[C] names of the classes; None: 0 ... C-1."""
    target_time: NDArray[np.float64] | None = None
    """[N] of the target's nodes, for a split by time; None: no times."""
    labelled: EdgeType | None = None
    """The relation whose edges are the target's nodes (datasets/labelled_edges.py); None: none."""

    @property
    def from_ends(self) -> dict[str, EdgeType]:
        """Return the relations from the ends of the labelled edges to them; {}: no labelled edges.

        The keys are SOURCE and DESTINATION.
        """
        if self.labelled is None:
            return {}
        ends = {SOURCE: self.labelled[0], DESTINATION: self.labelled[2]}
        return {end: (name, end, self.target) for end, name in ends.items()}

    def with_tables(
        self, nodes: Mapping[str, NodeTable], relations: Mapping[EdgeType, Relation]
    ) -> "HeteroGraphData":
        """Return the graph with other nodes and edges; labels and masks stay."""
        return replace(self, nodes=dict(nodes), relations=dict(relations))

    @property
    def label_kind(self) -> str:
        return label_kind(self.labels)

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
        return int(self.nodes[self.target].features.shape[1])

    def target_graph(self) -> GraphData:
        """Return the target's nodes as a plain graph without edges, to draw a split from."""
        table, no_edges = self.nodes[self.target], np.empty(0, np.int32)
        fields: dict[str, Any] = {name: getattr(self, name) for name in MASKS}
        return GraphData(
            self.name,
            no_edges,
            no_edges,
            table.features,
            self.labels,
            self.num_classes,
            table.node_ids,
            node_names=table.node_names,
            class_names=self.class_names,
            node_time=self.target_time,
            **fields,
        )

    def to_homogeneous(self) -> GraphData:
        """Return all nodes, type by type, and edges as a plain graph without features and weights.

        All labels are 0.
        """
        first, num_nodes = first_nodes(self), self.num_nodes
        ends = []
        for end, place in (("src", 0), ("dst", 2)):
            pieces = [
                getattr(relation, end) + first[edge_type[place]]
                for edge_type, relation in self.relations.items()
            ]
            pieces.append(np.empty(0, np.int32))
            ends.append(np.concatenate(pieces).astype(endpoint_dtype(num_nodes)))
        return GraphData(
            self.name,
            src=ends[0],
            dst=ends[1],
            features=np.zeros((num_nodes, 0), np.float32),
            labels=np.zeros(num_nodes, np.int64),
            num_classes=1,
            node_ids=np.arange(num_nodes),
        )


AnyGraph = GraphData | HeteroGraphData


def plain_fields(
    nodes: Mapping[str, NodeTable], relations: Mapping[EdgeType, Relation]
) -> dict[str, Any]:
    """Return the fields of a GraphData that the one type of nodes and the one relation have."""
    tables = vars(relations[PLAIN_RELATION]) | vars(nodes[PLAIN_TYPE])
    return tables | {"edge_schema": relations[PLAIN_RELATION].schema}


def make_graph(
    name: str,
    nodes: dict[str, NodeTable],
    relations: dict[EdgeType, Relation],
    target: str,
    *,
    time: NDArray[np.float64] | None = None,
    labelled: EdgeType | None = None,
    **of_target: Any,
) -> AnyGraph:
    """Return the graph of these nodes and edges: a plain one where their type has no name.

    Args:
        time: Of the target's nodes.
        labelled: As of HeteroGraphData.
        of_target: Labels, num_classes, masks and class_names.
    """
    if target == PLAIN_TYPE:
        return GraphData(name, node_time=time, **plain_fields(nodes, relations), **of_target)
    return HeteroGraphData(
        name, nodes, relations, target, target_time=time, labelled=labelled, **of_target
    )


def first_nodes(graph: AnyGraph) -> dict[str, int]:
    """Return each type's first node where the nodes of all types are numbered together."""
    counts = [0, *(table.num_nodes for table in graph.nodes.values())]
    return dict(zip(graph.nodes, np.cumsum(counts).tolist(), strict=False))
