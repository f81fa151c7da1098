"""A heterogeneous graph in memory, in NumPy: several types of nodes, and relations between them.

N_t nodes of a type, F_t features of its nodes, E_r directed edges of a relation, C classes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.features.schema import Schema
from partitioning.graph_data import Endpoints, Features, GraphData, endpoint_dtype
from partitioning.names import Names

EdgeType = tuple[str, str, str]
"""Source type, relation, destination type: DGL's canonical edge type, PyG's edge type."""
SEPARATOR = "__"
"""Between the three in names of files; so no type or relation has it in its name."""


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
    schema: Schema | None = None
    """What the columns of `features` hold before they are encoded; None: they need no encoding."""

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
