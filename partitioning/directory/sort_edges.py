"""Renumbers nodes so that a partition's are contiguous, and sorts the edges into each partition.

Memory holds two bytes for each edge, and the edges of one partition, beside the graph. N nodes of
one type, E edges of one relation, P partitions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.graph.array_checks import Ints
from partitioning.graph.graph_data import Endpoints, Relation, endpoint_dtype

CHUNK = 1 << 22
"""Edges that are counted at a time."""
BLOCK = 1 << 16
"""Edges that are sorted by partition at a time: their positions in a block take two bytes."""


@dataclass(frozen=True, eq=False)
class Layout:
    """New ids of one node type: those of a partition are contiguous, as DGL requires."""

    node_order: NDArray[np.int64]
    """[N] node of the graph at each new id."""
    new_id: Endpoints
    """[N] new id of each node of the graph."""
    node_bounds: NDArray[np.int64]
    """[P + 1] partition p owns new ids node_bounds[p] ... node_bounds[p + 1] - 1."""

    def part_of(self, new_ids: NDArray[Any]) -> NDArray[np.int64]:
        """Return the partition that owns each new id."""
        return np.searchsorted(self.node_bounds, new_ids, side="right") - 1

    def inner_nodes(self, part: int) -> NDArray[np.int64]:
        """Return the nodes of the graph that a partition owns, int64 [I]."""
        return self.node_order[slice(*self.node_bounds[part : part + 2])]


def make_layout(assignment: NDArray[np.int64], num_parts: int) -> Layout:
    """Number the nodes so that those of a partition are contiguous, in their former order."""
    node_order = np.argsort(assignment, kind="stable")
    new_id = np.empty(len(assignment), endpoint_dtype(len(assignment)))
    new_id[node_order] = np.arange(len(assignment), dtype=new_id.dtype)
    node_bounds = np.concatenate(([0], np.cumsum(np.bincount(assignment, minlength=num_parts))))
    return Layout(node_order, new_id, node_bounds)


@dataclass(frozen=True, eq=False)
class PlacedEdges:
    """Edges of one relation with their partitions."""

    relation: Relation
    layouts: tuple[Layout, Layout]
    """Of the source type and of the destination type."""
    order: NDArray[np.uint16]
    """[E] positions in each block of edges, by the partition of the destination."""
    bounds: Ints
    """[blocks, P + 1] where those of each partition begin in `order`, and the block ends."""
    out_degree: NDArray[Any]
    """[N] by new id of the source, without self loops: int64, or float64 sums of weights."""
    num_cut: int
    """Edges between two partitions."""

    def into(self, part: int) -> tuple[Ints, NDArray[np.int32], Ints]:
        """Return the edges into a partition, by destination, then source; with self loops.

        Returns:
            Sources by new ids, destinations by local ids, and positions in the graph, [n] each; the
            positions are in no order where edges have neither weights nor features.
        """
        source, target = self.layouts
        first, end = self.bounds[:, part], self.bounds[:, part + 1]
        positions = np.repeat(self.bounds[:, 0], end - first)
        pieces = map(slice, first.tolist(), end.tolist())
        positions += np.concatenate([self.order[:0], *(self.order[piece] for piece in pieces)])
        dst = target.new_id[self.relation.dst[positions]].astype(np.int64)
        num_sources = max(len(source.new_id), 1)
        keys = (dst - target.node_bounds[part]) * num_sources + source.new_id[
            self.relation.src[positions]
        ]
        if self.relation.edge_data:
            order = np.argsort(keys, kind="stable")
            keys, positions = keys[order], positions[order]
        else:
            keys.sort()  # takes a tenth of the time that argsort takes
        dst, src = np.divmod(keys, num_sources)
        return src, dst.astype(np.int32), positions


def place_edges(
    relation: Relation, assignments: tuple[Ints, Ints], layouts: tuple[Layout, Layout]
) -> PlacedEdges:
    """Find the partitions and the out-degrees of a relation's edges, a chunk at a time.

    Args:
        assignments, layouts: of the source type and of the destination type.
    """
    num_sources, num_parts = len(assignments[0]), len(layouts[1].node_bounds) - 1
    # A narrow type, because each edge looks up both its ends at random.
    narrow: Any = np.int16 if num_parts < 2**15 else np.int32
    source_part, target_part = (assignment.astype(narrow) for assignment in assignments)
    weight = relation.edge_weight
    out_degree = np.zeros(num_sources, np.int64 if weight is None else np.float64)
    order = np.empty(relation.num_edges, np.uint16)
    bounds = [np.empty((0, num_parts + 1), np.int64)]
    num_cut = 0
    for begin in range(0, relation.num_edges, CHUNK):
        chunk = slice(begin, begin + CHUNK)
        src, dst = relation.src[chunk], relation.dst[chunk]
        part = target_part[dst]
        num_cut += int((source_part[src] != part).sum())
        counted = src != dst if layouts[0] is layouts[1] else np.ones(len(src), np.bool_)
        weights = None if weight is None else weight[chunk][counted]
        out_degree += np.bincount(src[counted], weights, minlength=num_sources)
        for first in range(0, len(part), BLOCK):
            block = part[first : first + BLOCK]
            order[begin + first :][: len(block)] = np.argsort(block, kind="stable")
            ends = np.cumsum(np.bincount(block, minlength=num_parts))
            bounds.append(begin + first + np.concatenate(([0], ends))[None])
    return PlacedEdges(
        relation,
        layouts,
        order,
        np.concatenate(bounds),
        out_degree[layouts[0].node_order],
        num_cut,
    )
