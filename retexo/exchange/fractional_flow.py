"""What flows through a bipartite graph with weights at its vertices: no vertex cover of it weighs less.

Shape letters: L rows of the graph, its left vertices, R columns, its right vertices.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import cycle, pairwise, repeat
from operator import matmul

import numpy as np
from scipy.sparse import csr_array

from partitioning.thread_pool import in_blocks, in_threads
from retexo.arrays import FloatArray, IntArray

STEP_EXPONENTS = (1, 3)
"""Exponents of the steps of the prices, in turn: half the passes of 1 alone; 3 alone diverges."""
_PRICE_LIMITS = {"f": (1e-20, 1e10), "d": (1e-150, 1e50)}
"""By type: the least price, beside the dearest, and by how much a step changes one at most, before its exponent."""
VERTICES_PER_BLOCK = 1 << 16
"""Prices that change at a time: they and what they change by stay in a core's cache."""
EDGES_PER_BLOCK, MAX_BLOCKS = 1 << 24, 8
"""Edges whose sums take one thread, and how many threads at most: each has a sum for every column."""


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """A graph [L, R] of ones, of the type to compute in, as blocks of rows that are added up by a thread each.

    How many there are depends on the graph alone, so that no sum depends on the number of threads.
    """

    rows: list[slice]
    graphs: list[csr_array]
    """Of as many edges each, about."""

    @classmethod
    def from_graph(cls, graph: csr_array) -> "RowBlocks":
        count = min(MAX_BLOCKS, -(-graph.nnz // EDGES_PER_BLOCK))
        between = np.searchsorted(graph.indptr, np.linspace(0, graph.nnz, count + 1)[1:-1]).tolist()
        rows = [slice(*ends) for ends in pairwise([0, *between, graph.shape[0]])]
        return cls(rows, [_slice_rows(graph, some) for some in rows])

    @cached_property
    def degrees(self) -> tuple[FloatArray, FloatArray]:
        """Edges of each row, [L], and of each column, [R], of which a float32 counts 2^24 at most in a block."""
        of_rows = np.concatenate([np.diff(graph.indptr) for graph in self.graphs])
        of_columns = in_threads(
            lambda graph: graph.T @ np.ones(graph.shape[0], graph.dtype), self.graphs
        )
        total = np.empty(self.graphs[0].shape[1])

        def add(some: slice) -> None:
            total[some] = sum(each[some] for each in of_columns)

        in_blocks(add, len(total), VERTICES_PER_BLOCK)
        return of_rows.astype(np.float64), total


def _slice_rows(graph: csr_array, rows: slice) -> csr_array:
    """Some rows, in the same memory; csr_array would copy these arrays if it were made of them."""
    first, end = graph.indptr[rows.start], graph.indptr[rows.stop]
    found = csr_array((rows.stop - rows.start, graph.shape[1]), dtype=graph.dtype)
    found.data, found.indices = graph.data[first:end], graph.indices[first:end]
    found.indptr = graph.indptr[rows.start : rows.stop + 1] - first
    return found


def scaling_passes(
    blocks: RowBlocks, left_weight: IntArray, right_weight: IntArray
) -> Iterator[tuple[int, FloatArray]]:
    """Pass by pass the most that was seen to flow, which no cover undercuts, and the prices by then, [R].

    So that the bound stays one, each vertex counts for less than it weighs, by more than the sums over its edges can
    err (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, eq. 4.4).
    """
    dtype = blocks.graphs[0].dtype
    least, most = _PRICE_LIMITS[dtype.char]
    left_kept, right_kept = (
        np.maximum(0, 1 - (degree + 8) * float(np.finfo(dtype).eps)) for degree in blocks.degrees
    )
    unit = max(1, int(left_weight.max()), int(right_weight.max()))
    left, right = (
        (left_weight * left_kept / unit).astype(dtype),
        (right_weight / unit).astype(dtype),
    )

    def offer(rows: slice, graph: csr_array, around: FloatArray) -> FloatArray:
        """What some rows offer to each column at a price of 1, [R]."""
        return graph.T @ (left[rows] / np.maximum(around, least))

    def settle(
        price: FloatArray, offers: list[FloatArray], exponent: int, some: slice
    ) -> tuple[float, float]:
        """What flows to some columns, whose prices it changes, and the highest of them."""
        offered = price[some] * sum(
            offer[some] for offer in offers
        )  # to a column without an edge, 0
        step = np.clip(right[some] / np.maximum(offered, least), 1 / most, most)
        for _ in range(exponent):
            price[some] *= step
        flowing = np.minimum(offered * right_kept[some], right_weight[some] / unit)
        return float(flowing.sum()), float(price[some].max())

    price, bound = np.ones(len(right), dtype), 0
    around = [
        blocks.degrees[0][rows].astype(dtype) for rows in blocks.rows
    ]  # sums of the prices of a row's columns
    for exponent in cycle(STEP_EXPONENTS):
        offers = in_threads(offer, blocks.rows, blocks.graphs, around)
        settled = in_blocks(
            partial(settle, price, offers, exponent), len(price), VERTICES_PER_BLOCK
        )
        flowing, highest = zip(*settled, strict=True)
        price /= max(highest)
        np.maximum(price, least, out=price)
        bound = max(bound, int(math.fsum(flowing) * unit * (1 - 1e-9)))
        yield bound, price
        around = in_threads(matmul, blocks.graphs, repeat(price))
