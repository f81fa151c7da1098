"""Lower bound on the weight of a bipartite vertex cover, from a fractional flow (Sinkhorn scaling).

Every left vertex spreads its weight over its neighbours in proportion to their prices; every
right vertex then scales its price by its weight over what it was offered. After each pass the
flow that the right vertices can absorb bounds every vertex cover from below (weak duality).

Shape letters: L rows of the graph (left vertices), R columns (right vertices).
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
"""Exponents of the price updates, used in turn (overrelaxation). Alternating 1 and 3 needs half as
many passes as 1 alone; 3 alone diverges."""
_PRICE_LIMITS = {"f": (1e-20, 1e10), "d": (1e-150, 1e50)}
"""By dtype: lowest price relative to the highest, and largest factor of a price update."""
VERTICES_PER_BLOCK = 1 << 16
"""Prices that one thread updates at a time. A block fits in a core's cache."""
EDGES_PER_BLOCK, MAX_BLOCKS = 1 << 24, 8
"""Edges per thread, and the maximum number of threads. Each thread holds one sum per column."""


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """A 0/1 matrix [L, R], split into row blocks that are multiplied in one thread each.

    The number of blocks depends on the graph only, so results do not depend on the number of
    threads.
    """

    rows: list[slice]
    graphs: list[csr_array]
    """The blocks, with about the same number of edges each."""

    @classmethod
    def from_graph(cls, graph: csr_array) -> "RowBlocks":
        """Split a CSR matrix into row blocks without copying it."""
        count = min(MAX_BLOCKS, -(-graph.nnz // EDGES_PER_BLOCK))
        boundaries = np.searchsorted(
            graph.indptr, np.linspace(0, graph.nnz, count + 1)[1:-1]
        ).tolist()
        rows = [slice(*ends) for ends in pairwise([0, *boundaries, graph.shape[0]])]
        return cls(rows, [_slice_rows(graph, block) for block in rows])

    @cached_property
    def degrees(self) -> tuple[FloatArray, FloatArray]:
        """Return the degree of each row, [L], and of each column, [R], float64.

        The sums are exact up to 2^24 per block in float32.
        """
        row_degrees = np.concatenate([np.diff(graph.indptr) for graph in self.graphs])
        column_degrees = in_threads(
            lambda graph: graph.T @ np.ones(graph.shape[0], graph.dtype), self.graphs
        )
        total = np.empty(self.graphs[0].shape[1])

        def add(block: slice) -> None:
            total[block] = sum(degrees[block] for degrees in column_degrees)

        in_blocks(add, len(total), VERTICES_PER_BLOCK)
        return row_degrees.astype(np.float64), total


def _slice_rows(graph: csr_array, rows: slice) -> csr_array:
    """Return some rows as a view. The csr_array constructor would copy the arrays."""
    first, end = graph.indptr[rows.start], graph.indptr[rows.stop]
    part = csr_array((rows.stop - rows.start, graph.shape[1]), dtype=graph.dtype)
    part.data, part.indices = graph.data[first:end], graph.indices[first:end]
    part.indptr = graph.indptr[rows.start : rows.stop + 1] - first
    return part


def scaling_passes(
    blocks: RowBlocks, left_weight: IntArray, right_weight: IntArray
) -> Iterator[tuple[int, FloatArray]]:
    """Run scaling passes; after each, yield the best lower bound so far and the prices [R].

    It never ends, and each pass changes the array of prices. Each vertex counts slightly less than
    its weight, by more than the rounding error of the sums over its edges (Higham, "Accuracy and
    Stability of Numerical Algorithms", 2002, eq. 4.4). So the bound holds in spite of rounding.

    Args:
        blocks: the graph.
        left_weight: int64 [L]
        right_weight: int64 [R]
    """
    dtype = blocks.graphs[0].dtype
    min_price, max_step = _PRICE_LIMITS[dtype.char]
    left_margin, right_margin = (
        np.maximum(0, 1 - (degree + 8) * float(np.finfo(dtype).eps)) for degree in blocks.degrees
    )
    unit = max(1, int(left_weight.max()), int(right_weight.max()))
    left, right = (
        (left_weight * left_margin / unit).astype(dtype),
        (right_weight / unit).astype(dtype),
    )

    def offer(rows: slice, graph: csr_array, neighbour_prices: FloatArray) -> FloatArray:
        """Return what some rows offer to each column at price 1, [R]."""
        return graph.T @ (left[rows] / np.maximum(neighbour_prices, min_price))

    def settle(
        price: FloatArray, offers: list[FloatArray], exponent: int, block: slice
    ) -> tuple[float, float]:
        """Update the prices of some columns; return the flow into them and their highest price."""
        # 0 for a column without an edge
        offered = price[block] * sum(offer[block] for offer in offers)
        step = np.clip(right[block] / np.maximum(offered, min_price), 1 / max_step, max_step)
        for _ in range(exponent):
            price[block] *= step
        flow = np.minimum(offered * right_margin[block], right_weight[block] / unit)
        return float(flow.sum()), float(price[block].max())

    price, bound = np.ones(len(right), dtype), 0
    # For each row, the sum of its neighbours' prices.
    neighbour_prices = [blocks.degrees[0][rows].astype(dtype) for rows in blocks.rows]
    for exponent in cycle(STEP_EXPONENTS):
        offers = in_threads(offer, blocks.rows, blocks.graphs, neighbour_prices)
        settled = in_blocks(
            partial(settle, price, offers, exponent), len(price), VERTICES_PER_BLOCK
        )
        flow, highest = zip(*settled, strict=True)
        price /= max(highest)
        np.maximum(price, min_price, out=price)
        bound = max(bound, int(math.fsum(flow) * unit * (1 - 1e-9)))
        yield bound, price
        neighbour_prices = in_threads(matmul, blocks.graphs, repeat(price))
