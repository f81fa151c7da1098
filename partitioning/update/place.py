"""Moves few nodes of a partition directory, and assigns new ones.

To balance the partitions and to cut fewer edges, first the nodes beyond the limit leave a partition
that is too large, those that lose least first; then nodes with more neighbours in another partition
than in their own move there, those that gain most first, as in the refinement of Kernighan and Lin
(1970), without its steps uphill. A new node joins the partition with most of its neighbours that
has room, in one pass in the order of the tables, as in streaming graph partitioning (Stanton and
Kliot, KDD 2012, greedy with a hard limit). N nodes of all types, P partitions.
"""

import math

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.array_checks import Ints
from partitioning.directory.stored_graph import StoredGraph
from partitioning.graph_data import HeteroGraphData, first_nodes

MAX_IMBALANCE = 0.05
"""Share by which a partition may exceed the mean number of nodes of a type, METIS's own usual one
being 0.03: room for some new nodes without moving others.
"""
MAX_MOVED = 0.05
"""Share of the nodes that may move to cut fewer edges, besides those that leave partitions that are
too large: the rows and files of moved nodes are written again. Repeated commands move more.
"""
PASSES = 3
"""Most passes over the nodes that gain by a move: later ones move few."""


def rebalance(stored: StoredGraph) -> dict[str, Ints]:
    """Return an assignment by type, int64 [N_t], that cuts fewer edges; `stored` is unchanged.

    No partition has more than 1 + MAX_IMBALANCE times its share of the nodes of any type. At most a
    share MAX_MOVED of the nodes moves, besides those of partitions that are too large.
    """
    moves = _Moves(stored)
    moves.empty_large()
    budget = int(MAX_MOVED * len(moves.part))
    for _ in range(PASSES):
        moved = moves.improve(budget)
        budget -= moved
        if not moved or budget <= 0:
            break
    ends = np.cumsum([len(assignment) for assignment in stored.assignment.values()])
    return dict(zip(stored.assignment, np.split(moves.part, ends[:-1]), strict=True))


class _Moves:
    """An assignment while nodes move; the stored graph stays as it is."""

    def __init__(self, stored: StoredGraph) -> None:
        num_parts, counts = (
            stored.num_parts,
            [len(assignment) for assignment in stored.assignment.values()],
        )
        self.part = np.concatenate(list(stored.assignment.values()))
        """int64 [N], types one after the other."""
        self.type = np.repeat(np.arange(len(counts)), counts)
        self.sizes = np.zeros((len(counts), num_parts), np.int64)
        """Nodes by type and partition."""
        np.add.at(self.sizes, (self.type, self.part), 1)
        self.limits = [math.ceil((1 + MAX_IMBALANCE) * count / num_parts) for count in counts]
        graph = stored.graph
        homogeneous = graph.to_homogeneous() if isinstance(graph, HeteroGraphData) else graph
        shape = (len(self.part), len(self.part))
        ones = np.ones(homogeneous.num_edges, np.float32)
        one_way = sp.csr_array((ones, (homogeneous.dst, homogeneous.src)), shape=shape)
        self.edges = sp.csr_array(one_way + one_way.T)
        """[N, N], the edges between two nodes, in both directions."""

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
        """Return how many fewer edges are cut if a node moves to its best other partition, [N].

        Negative where more are cut. Limits are not regarded.
        """
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
        """Move a node to another partition, and keep the counts up to date; -1: it stays."""
        if part < 0:
            return
        kind = self.type[node]
        self.sizes[kind, self.part[node]] -= 1
        self.sizes[kind, part] += 1
        self.part[node] = part


# --- new nodes ----------


def place_new(changed: StoredGraph) -> dict[str, Ints]:
    """Return the partition of each node, [N] by type; `changed` stays as it is.

    One after the other, a new node joins the partition with most of its neighbours, ties by size,
    that is below the limit of MAX_IMBALANCE in its type.

    Args:
        changed: A graph whose new nodes have the partition -1.
    """
    first = first_nodes(changed.graph)
    part = np.concatenate(list(changed.assignment.values()))
    if not (part < 0).any():
        return changed.assignment
    pairs = [np.zeros((2, 0), np.int64)]
    for (source, _, destination), relation in changed.graph.relations.items():
        ends = np.stack((relation.src + first[source], relation.dst + first[destination]))
        ends = ends[:, (part[ends] < 0).any(axis=0)]
        pairs += [ends, ends[::-1]]
    node, neighbour = np.concatenate(pairs, axis=1)
    order = np.argsort(node, kind="stable")
    node, neighbour = node[order], neighbour[order]
    for name, parts in changed.assignment.items():
        new = np.flatnonzero(parts < 0) + first[name]
        sizes = np.bincount(parts[parts >= 0], minlength=changed.num_parts)
        limit = math.ceil((1 + MAX_IMBALANCE) * len(parts) / len(sizes))
        begin, end = np.searchsorted(node, (new, new + 1))
        for place, some in zip(new.tolist(), map(slice, begin, end), strict=True):
            near = part[neighbour[some]]
            num_near = np.bincount(near[near >= 0], minlength=len(sizes))
            # The last key counts most.
            best = int(np.lexsort((sizes, -num_near, sizes >= limit))[0])
            part[place] = best
            sizes[best] += 1
    return {
        name: part[first[name] : first[name] + len(parts)]
        for name, parts in changed.assignment.items()
    }
