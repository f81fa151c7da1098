"""Renumbers nodes so that a partition's are contiguous, and sorts edges by partition on disk.

Edges are renumbered a chunk at a time and appended to the file of their destination's partition, so
memory holds one chunk beside the graph. N nodes of one type, E edges of one relation, P partitions.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.file_io import open_regular
from partitioning.graph_data import Endpoints, Relation, endpoint_dtype

CHUNK = 1 << 22
"""Edges that are renumbered at a time; their arrays take 32 MiB each."""


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
class SortedEdges:
    """Edges of one relation on disk, one file for each partition."""

    folder: Path
    out_degree: NDArray[Any]
    """[N] by new id of the source, without self loops: int64, or float64 sums of weights."""
    edge_bounds: NDArray[np.int64]
    """[P + 1] partition p has edge ids edge_bounds[p] ... edge_bounds[p + 1] - 1."""
    num_cut: int
    """Edges between two partitions."""

    def key_file(self, part: int) -> Path:
        """Return the path of the file of int64 [E] keys dst * N + src.

        They stand for the edges into the partition, in new ids.
        """
        return self.folder / f"{part}.keys"

    def position_file(self, part: int) -> Path:
        """Return the file of int64 [E], positions of these edges in the graph.

        There is one only where edges have weights or features.
        """
        return self.folder / f"{part}.positions"


def sort_by_part(
    folder: Path,
    relation: Relation,
    assignments: tuple[NDArray[np.int64], NDArray[np.int64]],
    layouts: tuple[Layout, Layout],
) -> SortedEdges:
    """Write the edges to the files of their destinations' partitions, a chunk at a time.

    Args:
        assignments, layouts: of the source type and of the destination type.
    """
    source, target = layouts
    num_parts, num_sources = len(target.node_bounds) - 1, len(source.new_id)
    # A narrow type, because each edge looks up both its ends at random.
    narrow = np.int16 if num_parts < 2**15 else np.int32
    source_part, target_part = (assignment.astype(narrow) for assignment in assignments)
    weight = relation.edge_weight
    out_degree = np.zeros(num_sources, np.int64 if weight is None else np.float64)
    sizes = np.zeros(num_parts, np.int64)
    num_cut = 0
    folder.mkdir(parents=True)
    edges = SortedEdges(folder, out_degree, sizes, 0)
    for part in range(num_parts):
        edges.key_file(part).touch()
    for begin in range(0, relation.num_edges, CHUNK):
        chunk = slice(begin, begin + CHUNK)
        src, dst = source.new_id[relation.src[chunk]], target.new_id[relation.dst[chunk]]
        receiver = target_part[relation.dst[chunk]]
        num_cut += int((source_part[relation.src[chunk]] != receiver).sum())
        counted = src != dst if source is target else np.ones(len(src), np.bool_)
        weights = None if weight is None else weight[chunk][counted]
        out_degree += np.bincount(src[counted], weights, minlength=num_sources)
        counts = np.bincount(receiver, minlength=num_parts)
        order = np.argsort(receiver, kind="stable")
        keys = dst.astype(np.int64) * num_sources + src
        _append(edges.key_file, keys[order], counts)
        if relation.edge_data:
            _append(edges.position_file, begin + order, counts)
        sizes += counts
    edge_bounds = np.concatenate(([0], np.cumsum(sizes)))
    return replace(edges, edge_bounds=edge_bounds, num_cut=num_cut)


def _append(
    file_of: Callable[[int], Path], numbers: NDArray[np.int64], counts: NDArray[np.int64]
) -> None:
    """Append numbers, ordered by partition, to the files; counts[p] for partition p."""
    end = 0
    for part, count in enumerate(counts.tolist()):
        begin, end = end, end + count
        if count:
            with open_regular(file_of(part), "ab") as file:
                numbers[begin:end].tofile(file)
