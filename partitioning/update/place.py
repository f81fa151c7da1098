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

from partitioning.directory.stored_graph import StoredGraph
from partitioning.graph.array_checks import Ints

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
    return moves.by_type()


def place_new(changed: StoredGraph) -> dict[str, Ints]:
    """Return the partition of each node, [N] by type; `changed` stays as it is.

    One after the other, a new node joins the partition with most of its neighbours, ties by size,
    that is below the limit of MAX_IMBALANCE in its type, or a full one where all are.

    Args:
        changed: A graph whose new nodes have the partition -1.
    """
    if all((parts >= 0).all() for parts in changed.assignment.values()):
        return changed.assignment
    moves = _Moves(changed)
    for node in np.flatnonzero(moves.part < 0).tolist():
        moves.move(node, moves.find_best(node)[0])
    return moves.by_type()


class _Moves:
    """An assignment while nodes move; the stored graph stays as it is."""

    def __init__(self, stored: StoredGraph) -> None:
        """Take the edges of the graph; if there are new nodes, only the edges of these."""
        self.stored, num_parts = stored, len(stored.meta.parts)
        counts = [len(parts) for parts in stored.assignment.values()]
        self.part = np.concatenate(list(stored.assignment.values()))
        """int64 [N], types one after the other; -1: a new node, in no partition yet."""
        self.type = np.repeat(np.arange(len(counts)), counts)
        self.sizes = np.array(
            [
                np.bincount(parts[parts >= 0], minlength=num_parts)
                for parts in stored.assignment.values()
            ]
        )
        """Nodes by type and partition."""
        self.limits = [math.ceil((1 + MAX_IMBALANCE) * count / num_parts) for count in counts]
        edges = stored.graph.to_homogeneous().edges
        src, dst = edges.src, edges.dst
        placed = self.part >= 0
        if not placed.all():
            concerned = ~(placed[src] & placed[dst])
            src, dst = src[concerned], dst[concerned]
        ones, shape = np.ones(len(src), np.float32), (len(self.part), len(self.part))
        one_way = sp.csr_array((ones, (dst, src)), shape=shape)
        self.edges = sp.csr_array(one_way + one_way.T)
        """[N, N], the edges between two nodes, in both directions."""

    def by_type(self) -> dict[str, Ints]:
        """Return the partition of each node, [N_t] by type."""
        ends = np.cumsum([len(parts) for parts in self.stored.assignment.values()])
        return dict(zip(self.stored.assignment, np.split(self.part, ends[:-1]), strict=True))

    def empty_large(self) -> None:
        """Move the nodes beyond the limit out of partitions that are too large."""
        for kind, part in np.argwhere(self.sizes > np.array(self.limits)[:, None]).tolist():
            nodes = np.flatnonzero((self.type == kind) & (self.part == part))
            excess = int(self.sizes[kind, part]) - self.limits[kind]
            order = np.argsort(-self._find_gains()[nodes], kind="stable")
            for node in nodes[order[:excess]].tolist():
                self.move(node, self.find_best(node)[0])

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
            part, gain = self.find_best(node)
            if gain > 0:
                self.move(node, part)
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

    def find_best(self, node: int) -> tuple[int, float]:
        """Return the other partition with room and most neighbours, and how many more it has.

        A node stays where no other one has room; a new one joins a full one then, and its second
        number has no meaning.
        """
        some = slice(*self.edges.indptr[node : node + 2])
        parts, counts = self.part[self.edges.indices[some]], self.edges.data[some]
        near = np.bincount(parts[parts >= 0], counts[parts >= 0], minlength=self.sizes.shape[1])
        own, sizes = int(self.part[node]), self.sizes[self.type[node]]
        is_full = sizes >= self.limits[self.type[node]]
        if own >= 0:
            is_full[own] = True
            if is_full.all():
                return own, 0.0
        best = int(np.lexsort((sizes, -near, is_full))[0])  # the last key counts most
        return best, float(near[best] - near[own])

    def move(self, node: int, part: int) -> None:
        """Move a node to another partition, and keep the counts up to date."""
        sizes = self.sizes[self.type[node]]
        if self.part[node] >= 0:
            sizes[self.part[node]] -= 1
        sizes[part] += 1
        self.part[node] = part
