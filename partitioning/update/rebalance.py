"""Moves few nodes of a partition directory, to balance its partitions and to cut fewer edges.

First the nodes beyond the limit leave a partition that is too large, those that lose least first;
then nodes with more neighbours in another partition than in their own move there, those that gain
most first, as in the refinement of Kernighan and Lin (1970), without its steps uphill. N nodes of
all types, P partitions.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.directory.meta import HeteroMeta
from partitioning.directory.npy_files import edge_folder, load_array, node_folder
from partitioning.directory.partition import HALO_IDS
from partitioning.graph_data import (
    EDGE_DATA,
    MASKS,
    PLAIN_RELATION,
    PLAIN_TYPE,
    AnyGraph,
    EdgeType,
    GraphData,
    HeteroGraphData,
    NodeTable,
    Relation,
    first_nodes,
)
from partitioning.node_names import Names
from partitioning.update.held_graph import HeldDirectory

Ints = NDArray[np.int64]
PASSES = 3
"""Most passes over the nodes that gain by a move: later ones move few."""


@dataclass(frozen=True, eq=False)
class HeldGraph:
    """The graph of a directory, nodes in the order of its partitions."""

    graph: AnyGraph
    masks: dict[str, NDArray[np.bool_]]
    assignment: dict[str, Ints]
    """[N_t] partition of each node, by type."""


def read_graph(held: HeldDirectory) -> HeldGraph:
    """Read all partitions of a directory as one graph, without self loops."""
    folders = [held.folder(part) for part in range(held.num_parts)]

    def join(name: str, of_type: str | None = None) -> Any:
        places = [each if of_type is None else node_folder(each, of_type) for each in folders]
        return np.concatenate([load_array(each / f"{name}.npy") for each in places])

    tables = {}
    for name, each in held.types.items():
        names = None
        if each.named:
            names = Names.of([])
            for folder in folders:
                of_part = Names.read(node_folder(folder, name))
                assert of_part is not None
                names = names.concatenate(of_part)
        tables[name] = NodeTable(join("feat", name), each.ids, names)
    relations = {name: _read_relation(held, name) for name in held.relations}
    masks = {name: join(name) for name in MASKS}
    meta, target = held.meta, held.target
    common = (join("label"), meta.num_classes)
    classes = tuple(meta.class_names) or None
    graph: AnyGraph
    if isinstance(meta, HeteroMeta):
        graph = HeteroGraphData(
            meta.dataset, tables, relations, target, *common, class_names=classes
        )
    else:
        table, relation = tables[PLAIN_TYPE], relations[PLAIN_RELATION]
        graph = GraphData(
            meta.dataset,
            relation.src,
            relation.dst,
            table.features,
            *common,
            table.node_ids,
            edge_weight=relation.edge_weight,
            edge_feat=relation.edge_feat,
            node_names=table.node_names,
            class_names=classes,
            features_of_ids=(folders[0] / HALO_IDS).is_file(),
        )
    parts = np.arange(held.num_parts)
    assignment = {name: np.repeat(parts, np.diff(each.bounds)) for name, each in held.types.items()}
    return HeldGraph(graph, masks, assignment)


def _read_relation(held: HeldDirectory, name: EdgeType) -> Relation:
    """Read the edges of a relation from all partitions, nodes numbered together."""
    arrays: dict[str, list[Any]] = {}
    for part in range(held.num_parts):
        folder = edge_folder(held.folder(part), name)
        source, destination = held.types[name[0]], held.types[name[2]]
        halo = load_array(node_folder(held.folder(part), name[0]) / "halo.npy")
        ids = np.concatenate((np.arange(*source.bounds[part : part + 2]), halo))
        arrays.setdefault("src", []).append(ids[load_array(folder / "src.npy")])
        dst = load_array(folder / "dst.npy").astype(np.int64) + destination.bounds[part]
        arrays.setdefault("dst", []).append(dst)
        for data in EDGE_DATA:
            if (folder / f"{data}.npy").is_file():
                arrays.setdefault(data, []).append(load_array(folder / f"{data}.npy"))
    joined: dict[str, Any] = {each: np.concatenate(pieces) for each, pieces in arrays.items()}
    return Relation(**joined)


def rebalance(
    found: HeldGraph, num_parts: int, max_imbalance: float, max_moved: float
) -> dict[str, Ints]:
    """Return a better assignment by type.

    Args:
        found: The graph and its assignment.
        num_parts: P.
        max_imbalance: A partition may have (1 + max_imbalance) times the mean number of nodes of
            each type.
        max_moved: Share of the nodes that may move to cut fewer edges, besides those that leave
            partitions that are too large.
    """
    moves = _Moves(found, num_parts, max_imbalance)
    moves.empty_large()
    budget = int(max_moved * len(moves.part))
    for _ in range(PASSES):
        moved = moves.improve(budget)
        budget -= moved
        if not moved or budget <= 0:
            break
    first = first_nodes(found.graph)
    return {
        name: moves.part[first[name] : first[name] + len(each)]
        for name, each in found.assignment.items()
    }


class _Moves:
    """An assignment while nodes move."""

    def __init__(self, found: HeldGraph, num_parts: int, max_imbalance: float) -> None:
        graph = found.graph
        self.part = np.concatenate([found.assignment[name] for name in graph.nodes])
        counts = [table.num_nodes for table in graph.nodes.values()]
        self.type = np.repeat(np.arange(len(counts)), counts)
        self.sizes = np.zeros((len(counts), num_parts), np.int64)
        np.add.at(self.sizes, (self.type, self.part), 1)
        self.limits = [math.ceil((1 + max_imbalance) * count / num_parts) for count in counts]
        whole = graph.to_homogeneous() if isinstance(graph, HeteroGraphData) else graph
        shape = (len(self.part), len(self.part))
        ones = np.ones(whole.num_edges, np.float32)
        one_way = sp.csr_array((ones, (whole.dst, whole.src)), shape=shape)
        self.edges = sp.csr_array(one_way + one_way.T)

    def empty_large(self) -> None:
        """Move the nodes beyond the limit out of partitions that are too large."""
        for kind, part in np.argwhere(self.sizes > np.array(self.limits)[:, None]).tolist():
            nodes = np.flatnonzero((self.type == kind) & (self.part == part))
            excess = int(self.sizes[kind, part]) - self.limits[kind]
            order = np.argsort(-self._find_gains()[nodes], kind="stable")
            for node in nodes[order[:excess]].tolist():
                self._move(node, self._best_other(node)[0])

    def improve(self, budget: int) -> int:
        """Move up to `budget` nodes that have more neighbours in another partition.

        Return their number.
        """
        gains = self._find_gains()
        nodes = np.flatnonzero(gains > 0)
        moved = 0
        for node in nodes[np.argsort(-gains[nodes], kind="stable")].tolist():
            if moved >= budget:
                break
            part, gain = self._best_other(node)
            if part >= 0 and gain > 0:
                self._move(node, part)
                moved += 1
        return moved

    def _find_gains(self) -> NDArray[np.float32]:
        """Return how many fewer edges are cut if a node moves to its best other partition, [N]."""
        num_nodes, num_parts = len(self.part), self.sizes.shape[1]
        places = np.arange(num_nodes), self.part
        of_part = sp.csr_array((np.ones(num_nodes, np.float32), places), (num_nodes, num_parts))
        near = sp.coo_array(self.edges @ of_part)
        row, column = near.coords
        own = np.zeros(num_nodes, np.float32)
        other = np.zeros(num_nodes, np.float32)
        stays = column == self.part[row]
        own[row[stays]] = near.data[stays]
        np.maximum.at(other, row[~stays], near.data[~stays])
        return other - own

    def _best_other(self, node: int) -> tuple[int, float]:
        """Return the partition with room and most neighbours (-1: none has room), and the gain."""
        begin, end = self.edges.indptr[node : node + 2]
        near = np.bincount(
            self.part[self.edges.indices[begin:end]],
            self.edges.data[begin:end],
            minlength=self.sizes.shape[1],
        )
        own, kind = int(self.part[node]), int(self.type[node])
        is_full = self.sizes[kind] >= self.limits[kind]
        is_full[own] = True
        if is_full.all():
            return -1, 0.0
        best = int(np.lexsort((self.sizes[kind], -near, is_full))[0])
        return best, float(near[best] - near[own])

    def _move(self, node: int, part: int) -> None:
        """Move a node to another partition, and keep the counts up to date."""
        if part < 0:
            return
        kind = self.type[node]
        self.sizes[kind, self.part[node]] -= 1
        self.sizes[kind, part] += 1
        self.part[node] = part
