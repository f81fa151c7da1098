"""The cheapest set of rows and partial sums for the edges between two partitions: a minimum-weight vertex cover.

One ordered pair of partitions (sender p, receiver q) has a bipartite boundary graph: on the left the inner nodes of p
that are sources of edges into q, on the right the destinations in q. For an aggregator that adds up, an edge is covered
by the source row, or by the sender's part of the destination's sum. What is sent is therefore a vertex cover of that
graph, and the cheapest is the one of least weight, a row's weight being its bytes on the wire.

Shape letters: E edges, L left vertices (source rows), R right vertices (destination rows), V = L + R.
"""

from dataclasses import dataclass
from itertools import islice

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_bipartite_matching, maximum_flow

from retexo.arrays import (
    FloatArray,
    IndexArray,
    IntArray,
    Mask,
    bincount,
    csr_from_counts,
    take,
    unique_inverse,
)
from retexo.exchange.fractional_flow import RowBlocks, scaling_passes

# What a solver answers: which left and which right vertices to take, and a weight that no cover undercuts.
Solution = tuple[Mask, Mask, int]

# So many edges take maximum_flow 3 s where it is slow (three edges a vertex, weights alike); twice as many, 8 s.
EXACT_LIMIT = 500_000
# Where all weights are equal, the matching of so many edges takes 2 s; of 5 million of the shape of ogbn-products, 6 s,
# seven times as long as the approximation.
MATCHING_LIMIT = 2_000_000
ACCEPTED_RATIO = 1.002
"""What a cover that is not exact weighs, in terms of the least, where that can be shown."""
ACCEPTED_SIDE_RATIO = 1.01
"""What one side alone may weigh, in terms of the least, of more edges than an exact solver takes. To show that it is
within .2 % takes ten passes in place of four, .2 s for 7 million edges; a gigabit link sends 1 % of such a message, of
220 MB, in .02 s."""
SIDE_BOUND_RATIO = 1.005
"""What is shown of it where that takes one pass more: a bound that nearly the same edges can go by later."""
MAX_SIDE_PASSES = 5
"""In which to show that; random graphs need two to five, with degrees as in ogbn-products four to five."""
ONE_SIDE_MIN_EDGES, ONE_SIDE_MAX_PASSES = 50_000, 20
"""Of so many edges it is tried in so many passes to show that one side alone is good enough, before an exact solver."""
_INT32_MAX = int(np.iinfo(np.int32).max)


@dataclass(frozen=True)
class Cover:
    """Which rows to send, what they weigh, and what any cover weighs at least.

    left_mask bool [L]: send this source row. right_mask bool [R]: send the partial sum for this destination row.
    weight: weight of the rows taken. lower_bound: no cover weighs less; equal to weight where the cover is exact.
    """

    left_mask: Mask
    right_mask: Mask
    weight: int
    lower_bound: int


@dataclass(frozen=True)
class _Leaves:
    """Edges from a hub to a leaf, a vertex with no other edge left; vertex numbers, right ones after the left."""

    hub: IndexArray
    leaf: IndexArray


def minimum_cover(
    left: IndexArray,
    right: IndexArray,
    left_weight: IntArray,
    right_weight: IntArray,
    *,
    at_least: int = 0,
    exact_limit: int = EXACT_LIMIT,
    matching_limit: int = MATCHING_LIMIT,
) -> Cover:
    """Return a vertex cover of least weight, or one with a certified gap where the exact one would take too long.

    left, right int [E]: the two ends of each edge; duplicates count once. left_weight int64 [L], right_weight
    int64 [R]: bytes of each row, zero for a row that the receiver holds already (taken wherever it has an edge).
    at_least: a weight that no cover undercuts, where one is known.
    Exact where what survives the pruning has at most exact_limit distinct edges, or matching_limit and equal weights,
    but that one side is taken where it weighs .2 % more at most (of 50,000 edges and more), or 1 % of more edges than
    those limits; otherwise the gap is what weight and lower_bound say, 1.2 % at most on random graphs of 1e4 to 1e7
    edges (see `_scaling_cover`).
    Ten million edges take under a minute on one core, in one graph or in many.
    Raises ValueError for ends outside the vertices, arrays that do not match and negative weights.
    """
    _check(left, right, left_weight, right_weight)
    enough = acceptable_ratio(len(left), max(exact_limit, matching_limit))
    if enough > 1:
        whole_side = _certify_whole_side(left, right, left_weight, right_weight, at_least, enough)
        if whole_side is not None:
            return whole_side
    num_left = len(left_weight)
    weight = np.concatenate([left_weight, right_weight]).astype(np.int64)
    edges = _distinct_edges(left, right, num_left, len(weight))
    residual = weight.copy()
    degree = bincount(edges.ravel(), len(weight))
    core, leaves, paid = _prune(edges, residual, degree)
    chosen = (degree > 0) & (residual == 0)
    core_bound = _solve_core(core, residual, chosen, exact_limit, matching_limit)
    for batch in reversed(leaves):
        chosen[batch.leaf] = ~chosen[batch.hub]
    return Cover(chosen[:num_left], chosen[num_left:], int(weight[chosen].sum()), paid + core_bound)


def acceptable_ratio(num_edges: int, exact: int = max(EXACT_LIMIT, MATCHING_LIMIT)) -> float:
    """What may be sent for so many edges, in terms of the least, where to find less takes longer than to send it."""
    if num_edges <= ONE_SIDE_MIN_EDGES:
        return 1.0
    return ACCEPTED_SIDE_RATIO if num_edges > exact else ACCEPTED_RATIO


def _check(
    left: IndexArray, right: IndexArray, left_weight: IntArray, right_weight: IntArray
) -> None:
    if left.shape != right.shape or left.ndim != 1:
        raise ValueError(
            f"left and right must be two vectors of one length, not {left.shape} and {right.shape}"
        )
    for side, ends, weight in (("left", left, left_weight), ("right", right, right_weight)):
        if len(ends) and not (ends.min() >= 0 and ends.max() < len(weight)):
            raise ValueError(
                f"{side} names vertices {ends.min()} to {ends.max()}, but has {len(weight)} weights"
            )
        if len(weight) and weight.min() < 0:
            raise ValueError(
                f"{side}_weight holds {weight.min()}; a row cannot weigh less than nothing"
            )


def _certify_whole_side(
    left: IndexArray,
    right: IndexArray,
    left_weight: IntArray,
    right_weight: IntArray,
    at_least: int,
    enough: float,
) -> Cover | None:
    """All of one side of edges that ascend by their right ends, if few passes show that it is good enough.

    To prune these edges and to number what is left takes as long as four passes.
    """
    if (right[1:] < right[:-1]).any():
        return None
    ones = np.ones(len(left), np.float32)  # of 8 bytes each a pass takes half as long again
    blocks = RowBlocks.from_graph(
        csr_from_counts(ones, left, bincount(right, len(right_weight)), len(left_weight))
    )
    used_right, used_left = (degree > 0 for degree in blocks.degrees)
    left_weight, right_weight = left_weight * used_left, right_weight * used_right
    if ((left_weight == 0) & used_left).any() or ((right_weight == 0) & used_right).any():
        return None
    take_left, take_right, weight = _lighter_side(left_weight, right_weight)
    bound = at_least
    if weight > enough * bound:
        for bound, _ in islice(scaling_passes(blocks, right_weight, left_weight), MAX_SIDE_PASSES):
            if weight <= min(enough, SIDE_BOUND_RATIO) * bound:
                break
    return (
        Cover(take_left & used_left, take_right & used_right, weight, bound)
        if weight <= enough * bound
        else None
    )


def _distinct_edges(
    left: IndexArray, right: IndexArray, num_left: int, num_vertices: int
) -> IndexArray:
    """Return the distinct edges, int32 or int64 [2, E], the right vertices numbered after the left ones."""
    dtype = np.int32 if num_vertices < _INT32_MAX else np.int64
    if bool(((left[1:] > left[:-1]) | ((left[1:] == left[:-1]) & (right[1:] > right[:-1]))).all()):
        return np.stack([left, right + num_left], dtype=dtype, casting="unsafe")
    # Sorting and comparing neighbours takes a tenth of the time of np.unique.
    key = np.sort(left.astype(np.int64) * num_vertices + right + num_left)
    first = np.ones(len(key), dtype=np.bool_)
    first[1:] = key[1:] != key[:-1]
    return np.stack(np.divmod(key[first], max(num_vertices, 1)), dtype=dtype, casting="unsafe")


def _prune(
    edges: IndexArray, residual: IntArray, degree: IntArray
) -> tuple[IndexArray, list[_Leaves], int]:
    """Settle what costs nothing or has one way out; return the edges that remain, the leaves, and the weight paid.

    A vertex whose residual weight is zero is taken. The edge to a leaf is paid for at once: each of its ends gives up
    the smaller of their weights, which no cover can avoid, and the leaf is then needed only if its hub is not taken
    (local ratio, Bar-Yehuda and Even 1985; exact here, because it leaves one choice). Changes residual int64 [V].
    degree: int64 [V] at the start.
    """
    batches: list[_Leaves] = []
    paid = 0
    if int((degree == 1).sum()) <= edges.shape[1] // 100 and bool((residual[degree > 0] > 0).all()):
        return edges, batches, paid
    while True:
        before = edges.shape[1]
        for hub_side in (0, 1):
            edges = _unsettled_edges(edges, residual)
            hub, leaf = edges[hub_side], edges[1 - hub_side]
            pendant = take(bincount(leaf, len(residual)) == 1, leaf)
            batch = _Leaves(hub[pendant], leaf[pendant])
            paid += _pay_leaves(batch, residual)
            batches.append(batch)
        edges = _unsettled_edges(edges, residual)
        # A long chain loses two leaves a pass: stop where a pass costs more than the edges it still removes.
        if before - edges.shape[1] <= before // 100:
            return edges, batches, paid


def _unsettled_edges(edges: IndexArray, residual: IntArray) -> IndexArray:
    """Return the edges, [2, E], of which neither end is taken."""
    left = residual > 0
    keep = take(left, edges[0]) & take(left, edges[1])
    return edges if keep.all() else np.compress(keep, edges, axis=1)


def _pay_leaves(batch: _Leaves, residual: IntArray) -> int:
    """Take the weight of the leaves off their hubs, as far as it goes; return the weight paid. Changes residual."""
    owed = np.zeros_like(residual)
    np.add.at(owed, batch.hub, residual[batch.leaf])
    payment = np.minimum(owed, residual)
    residual -= payment
    residual[batch.leaf] = 0
    return int(payment.sum())


def _solve_core(
    edges: IndexArray, weight: IntArray, chosen: Mask, exact_limit: int, matching_limit: int
) -> int:
    """Cover the edges that pruning left, [2, E], ascending; marks what it takes, returns the lower bound."""
    if edges.shape[1] == 0:
        return 0
    left, left_index = unique_inverse(edges[0], edges.dtype)
    right, right_index = unique_inverse(edges[1], edges.dtype)
    ones = np.ones(edges.shape[1], dtype=np.int32)
    graph = csr_from_counts(ones, right_index, bincount(left_index), len(right))
    unit = int(np.gcd(np.gcd.reduce(weight[left]), np.gcd.reduce(weight[right])))
    left_weight, right_weight = weight[left] // unit, weight[right] // unit
    heaviest = max(int(left_weight.max()), int(right_weight.max()))
    by_matching = heaviest == 1 and graph.nnz <= matching_limit
    if not (by_matching or (graph.nnz <= exact_limit and heaviest < _INT32_MAX)):
        take_left, take_right, bound = _scaling_cover(graph, left_weight, right_weight)
    elif (side := _certify_lighter_side(graph, left_weight, right_weight)) is not None:
        take_left, take_right, bound = side
    elif by_matching:
        take_left, take_right, bound = _matching_cover(graph)
    else:
        take_left, take_right, bound = _flow_cover(graph, left_weight, right_weight)
    chosen[left[take_left]] = True
    chosen[right[take_right]] = True
    return bound * unit


def _matching_cover(graph: csr_array) -> Solution:
    """Cover graph [L, R] with the fewest vertices: as many as a maximum matching has edges (Koenig 1931)."""
    partner = maximum_bipartite_matching(graph, perm_type="column").astype(np.int64)
    matched = np.flatnonzero(partner >= 0)
    take_left, take_right = _minimum_cut(graph, partner < 0, matched, partner[matched])
    return take_left, take_right, len(matched)


def _flow_cover(graph: csr_array, left_weight: IntArray, right_weight: IntArray) -> Solution:
    """Cover graph [L, R] with the least weight: as much as flows from left to right at most (max-flow, min-cut).

    Every left vertex is fed its weight, every right vertex drains its weight, and edges carry any amount, so that
    only vertices are ever cut. Weights stay below 2^31 - 1, the largest capacity that scipy knows.
    """
    num_left, num_right = graph.shape
    source, sink = num_left + num_right, num_left + num_right + 1
    edge = graph.tocoo()
    lefts, rights = np.arange(num_left), num_left + np.arange(num_right)
    tail = np.concatenate([np.full(num_left, source), edge.row, rights])
    head = np.concatenate([lefts, edge.col + num_left, np.full(num_right, sink)])
    capacity = np.concatenate([left_weight, np.full(edge.nnz, _INT32_MAX), right_weight]).astype(
        np.int32
    )
    network = csr_array((capacity, (tail, head)), shape=(sink + 1, sink + 1))
    result = maximum_flow(network, source, sink, method="dinic")
    flow = csr_array(result.flow)
    fed = flow[[source], :].toarray()[0, :num_left]
    used = flow[:num_left, num_left:source].tocoo()
    positive = used.data > 0
    back_left, back_right = used.row[positive].astype(np.int64), used.col[positive].astype(np.int64)
    take_left, take_right = _minimum_cut(graph, fed < left_weight, back_left, back_right)
    return take_left, take_right, int(result.flow_value)


def _minimum_cut(
    graph: csr_array, unsaturated: Mask, back_left: IntArray, back_right: IntArray
) -> tuple[Mask, Mask]:
    """Return the left vertices that no residual path reaches and the right ones that one does: the minimum cut.

    A residual path starts at an unsaturated left vertex, goes right along any edge, and back left along an edge that
    carries flow (back_left, back_right: the ends of those).
    """
    num_left, num_right = graph.shape
    edge = graph.tocoo()
    start = num_left + num_right
    begin = np.flatnonzero(unsaturated)
    tail = np.concatenate([edge.row, back_right + num_left, np.full(len(begin), start)])
    head = np.concatenate([edge.col + num_left, back_left, begin])
    paths = csr_array((np.ones(len(tail)), (tail, head)), shape=(start + 1, start + 1))
    reached = np.zeros(start + 1, dtype=np.bool_)
    reached[breadth_first_order(paths, start, return_predecessors=False)] = True
    return ~reached[:num_left], reached[num_left:start]


def _scaling_cover(
    graph: csr_array, left_weight: IntArray, right_weight: IntArray, *, rounds: int = 100
) -> Solution:
    """Cover graph [L, R] at nearly the least weight, in a fixed number of passes over its edges.

    A fractional flow stands in for the exact one: each left vertex spreads its weight over its neighbours in
    proportion to their prices, and each right vertex moves its price by what it can drain over what it was offered
    (Sinkhorn and Knopp 1967; overrelaxed as by Thibault et al. 2021). Cut off at the drains this is a flow, hence a
    lower bound; right vertices with low prices are the crowded ones, hence worth taking: the best threshold on the
    price gives the cover, or one side does. Stops where the cover is GOOD_ENOUGH, or one side is SIDE_ENOUGH.
    """
    best, bound = _lighter_side(left_weight, right_weight), 0
    enough = ACCEPTED_SIDE_RATIO
    passes = scaling_passes(
        RowBlocks.from_graph(graph.astype(np.float64)), left_weight, right_weight
    )
    for step, (bound, price) in enumerate(islice(passes, rounds), start=1):
        if step % 10 == 0:
            best = min(
                best,
                _threshold_cover(graph, price, left_weight, right_weight),
                key=lambda cover: cover[2],
            )
            enough = ACCEPTED_RATIO
        if best[2] <= enough * bound:
            break
    return best[0], best[1], bound


def _lighter_side(left_weight: IntArray, right_weight: IntArray) -> Solution:
    """All of the side that weighs less, int64 [L] and [R]; no bound."""
    left, right = int(left_weight.sum()), int(right_weight.sum())
    is_left = left <= right
    return (
        np.full(len(left_weight), is_left),
        np.full(len(right_weight), not is_left),
        min(left, right),
    )


def _certify_lighter_side(
    graph: csr_array, left_weight: IntArray, right_weight: IntArray
) -> Solution | None:
    """One side of many edges, if that is shown to be good enough while two passes take a tenth of the gap."""
    if graph.nnz <= ONE_SIDE_MIN_EDGES:
        return None
    take_left, take_right, weight = _lighter_side(left_weight, right_weight)
    before = np.inf
    passes = scaling_passes(
        RowBlocks.from_graph(graph.astype(np.float32)), left_weight, right_weight
    )
    for bound, _ in islice(passes, 1, ONE_SIDE_MAX_PASSES, 2):
        if weight <= ACCEPTED_RATIO * bound:
            return take_left, take_right, bound
        if weight - bound > 0.9 * before:
            break
        before = weight - bound
    return None


def _threshold_cover(
    graph: csr_array, price: FloatArray, left_weight: IntArray, right_weight: IntArray
) -> Solution:
    """Return the best cover that takes the right vertices up to some price, float64 [R], and its weight.

    A left vertex must be taken where one of its neighbours is dearer than the threshold. Right vertices whose
    neighbours are all taken are left out again.
    """
    num_right = graph.shape[1]
    order = np.argsort(price, kind="stable")
    place = np.empty(num_right, dtype=np.int32)
    place[order] = np.arange(num_right, dtype=np.int32)
    dearest = np.maximum.reduceat(take(place, graph.indices), graph.indptr[:-1])
    # Entry k is the weight with the k cheapest right vertices taken: theirs, and that of every left vertex whose
    # dearest neighbour comes at place k or later.
    needed_until = np.zeros(num_right + 1, dtype=np.int64)
    np.add.at(needed_until, dearest, left_weight)
    total = (
        np.concatenate([[0], np.cumsum(right_weight[order])]) + np.cumsum(needed_until[::-1])[::-1]
    )
    take_left = dearest >= int(total.argmin())
    take_right = graph.T @ (~take_left).astype(np.int32) > 0
    return take_left, take_right, int(left_weight[take_left].sum() + right_weight[take_right].sum())
