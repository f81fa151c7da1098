"""The cheapest set of rows that carries every edge between two partitions.

One ordered pair of partitions (sender p, receiver q) has a bipartite boundary graph: on the left the inner nodes of p
that are sources of edges into q, on the right the destinations in q. For an aggregator that adds up, the sender serves
an edge either by the source row or by its part of the destination's sum, so what it sends is a vertex cover, and the
cheapest is a minimum-weight vertex cover of a bipartite graph.

Shape letters: E edges, L left vertices (source rows), R right vertices (destination rows).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_bipartite_matching, maximum_flow

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
# What a solver returns: the rows taken on the left and on the right, and a lower bound on the weight of any cover.
Solution = tuple[Mask, Mask, int]

EXACT_LIMIT = 500_000
_INT32_MAX = int(np.iinfo(np.int32).max)
_SCALING_ROUNDS = 100
_CHECK_EVERY = 10
_GOOD_ENOUGH = 1.002
_SMALLEST_SHARE = 1e-150


@dataclass(frozen=True)
class Cover:
    """Which rows to send, what they weigh, and how much any cover weighs at least.

    left_mask bool [L]: send this source row. right_mask bool [R]: send the partial sum for this destination row.
    weight: weight of the rows chosen. lower_bound: no cover weighs less; equal to weight where the cover is exact.
    """

    left_mask: Mask
    right_mask: Mask
    weight: int
    lower_bound: int


@dataclass(frozen=True)
class _Leaves:
    """Edges whose one end (leaf) had no other edge; both ends by vertex number, left 0..L-1, right L..L+R-1."""

    hub: Ints
    leaf: Ints


def minimum_cover(
    left: Ints, right: Ints, left_weight: Ints, right_weight: Ints, *, exact_limit: int = EXACT_LIMIT
) -> Cover:
    """Return a vertex cover of least weight, or one with a certified gap where the exact one would take too long.

    left, right int64 [E]: the ends of each edge, duplicates allowed. left_weight int64 [L], right_weight int64 [R]:
    bytes of each row, zero for a row that the receiver holds already. Exact while the edges left after pruning are
    no more than exact_limit; above, by `_scaling_cover`, whose lower_bound says how far off it may be.
    Raises ValueError for edges without a vertex and for negative weights.
    """
    _check(left, right, left_weight, right_weight)
    num_left = len(left_weight)
    weight = np.concatenate([left_weight, right_weight]).astype(np.int64)
    left, right, residual, leaves = _prune(left, right + num_left, weight)
    taken = residual == 0
    lower_bound = int(weight.sum() - residual.sum()) if len(leaves) else 0
    raise NotImplementedError
