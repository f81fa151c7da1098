"""Minimum-weight vertex cover of a boundary: the cheapest rows and sums that serve its edges.

One ordered pair of partitions (sender p, receiver q) has a bipartite boundary graph: on the left
the inner nodes of p that are sources of edges into q, on the right the destinations in q. For a
linear aggregator an edge is covered by its source row, or by the sender's partial sum for the
destination. So the messages that serve all edges are the vertex covers of that graph, and the
cheapest is the one of minimum weight, where a vertex weighs its bytes on the wire.

Shape letters: E edges, L left vertices (source rows), R right vertices (destinations), V = L +
R.
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

# Result of a solver: masks of the left and right vertices to take, and a weight. The weight is a
# lower bound on every cover, unless the solver says otherwise.
Solution = tuple[Mask, Mask, int]

# Up to this many edges maximum_flow takes at most 3 s (slow case: three edges per vertex, similar
# weights); twice as many take 8 s.
EXACT_LIMIT = 500_000
# With equal weights, matching this many edges takes 2 s. With 5 million edges of the shape of
# ogbn-products it takes 6 s, seven times as long as the approximation.
MATCHING_LIMIT = 2_000_000
ACCEPTED_RATIO = 1.002
"""Accepted weight of an approximate cover, relative to its lower bound."""
ACCEPTED_SIDE_RATIO = 1.01
"""Accepted weight of one whole side, relative to the lower bound, for graphs that are too large for
an exact solver. Proving 0.2 % instead takes ten passes instead of four (0.2 s for 7 million
edges); 1 % of such a message (220 MB) takes 0.02 s on a gigabit link."""
SIDE_BOUND_RATIO = 1.005
"""Ratio to prove if one more pass is enough. Later layers with similar edges reuse the bound."""
MAX_SIDE_PASSES = 5
"""Passes for that proof. Random graphs need two to five, degrees of ogbn-products four or five."""
ONE_SIDE_MIN_EDGES, ONE_SIDE_MAX_PASSES = 50_000, 20
"""From this many edges on, up to this many passes try to prove that one side alone is good enough,
before an exact solver runs."""
_INT32_MAX = int(np.iinfo(np.int32).max)


@dataclass(frozen=True)
class Cover:
    """A vertex cover, its weight, and a lower bound on the weight of every cover.

    left_mask bool [L]: send this source row. right_mask bool [R]: send the partial sum for this
    destination. lower_bound equals weight if the cover is exact.
    """

    left_mask: Mask
    right_mask: Mask
    weight: int
    lower_bound: int


@dataclass(frozen=True)
class _Leaves:
    """Edges from a hub to a leaf, a vertex with no other edge.

    Right vertex ids follow left ones.
    """

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
    """Find a vertex cover of minimum weight, or of nearly minimum weight for very large graphs.

    The cover is exact if, after pruning, at most `exact_limit` distinct edges remain
    (`matching_limit` with equal weights), except that one whole side is taken if it weighs at
    most 0.2 % more (from 50,000 edges on) or 1 % more (above those limits). Otherwise weight and
    lower_bound tell the gap: at most 1.2 % on random graphs of 1e4 to 1e7 edges
    (`_scaling_cover`). Ten million edges take less than a minute on one core.

    Args:
        left: int [E] left end of each edge; duplicate edges count once.
        right: int [E] right end of each edge.
        left_weight: int64 [L] bytes of each row; 0 for a row that the receiver holds.
        right_weight: int64 [R] bytes of each partial sum.
        at_least: a known lower bound on the weight of every cover.
        exact_limit: maximum number of edges for max-flow.
        matching_limit: maximum number of edges for matching.
    Raises:
        ValueError: for ends out of range, arrays of different lengths, or negative weights.
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


def fewest_vectors(source: IndexArray, target: IndexArray, forced: Mask, num_targets: int) -> Cover:
    """Cover edges by the fewest rows and sums, counting the rows that have to be sent.

    Args:
        source: int [E] row of each edge, in [0, L).
        target: int [E] target of each edge, in [0, R).
        forced: bool [L] rows that have to be sent.
        num_targets: R.
    """
    left = ~forced[source]
    ones = np.ones(len(forced), np.int64), np.ones(num_targets, np.int64)
    cover = minimum_cover(source[left], target[left], *ones)
    num_forced = int(forced.sum())
    return Cover(
        cover.left_mask | forced,
        cover.right_mask,
        cover.weight + num_forced,
        cover.lower_bound + num_forced,
    )


def acceptable_ratio(num_edges: int, exact: int = max(EXACT_LIMIT, MATCHING_LIMIT)) -> float:
    """Return the accepted weight relative to the minimum for this many edges.

    Finding a better cover would take longer than sending the difference.
    """
    if num_edges <= ONE_SIDE_MIN_EDGES:
        return 1.0
    return ACCEPTED_SIDE_RATIO if num_edges > exact else ACCEPTED_RATIO


def _check(
    left: IndexArray, right: IndexArray, left_weight: IntArray, right_weight: IntArray
) -> None:
    """Raise ValueError for ends out of range, arrays of different lengths, or negative weights."""
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
    """Return all of the lighter side if a few passes prove it good enough, else None.

    Requires edges that are sorted by their right end. Pruning and renumbering would take as long
    as four passes.
    """
    if (right[1:] < right[:-1]).any():
        return None
    ones = np.ones(len(left), np.float32)  # float64 makes a pass take half as long again
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
    """Return the distinct edges, int32 or int64 [2, E]; right vertices follow the left ones."""
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
    """Take free vertices and leaf edges; return remaining edges, leaves, and the weight paid.

    A vertex with residual weight zero is taken. For an edge to a leaf the smaller of its ends'
    weights is subtracted from both: no cover avoids it, and the leaf is then taken only if its
    hub is not (local ratio, Bar-Yehuda and Even 1985; exact for leaves).

    Args:
        edges: [2, E]
        residual: int64 [V] weights; updated in place.
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
        # A long chain loses two leaves per pass. Stop when a pass removes under 1 % of edges.
        if before - edges.shape[1] <= before // 100:
            return edges, batches, paid


def _unsettled_edges(edges: IndexArray, residual: IntArray) -> IndexArray:
    """Return the edges, [2, E], of which no end is in the cover: both have a residual weight."""
    left = residual > 0
    keep = take(left, edges[0]) & take(left, edges[1])
    return edges if keep.all() else np.compress(keep, edges, axis=1)


def _pay_leaves(batch: _Leaves, residual: IntArray) -> int:
    """Subtract the leaves' weights from their hubs, in place; return the weight paid."""
    owed = np.zeros_like(residual)
    np.add.at(owed, batch.hub, residual[batch.leaf])
    payment = np.minimum(owed, residual)
    residual -= payment
    residual[batch.leaf] = 0
    return int(payment.sum())


def _solve_core(
    edges: IndexArray, weight: IntArray, chosen: Mask, exact_limit: int, matching_limit: int
) -> int:
    """Cover the pruned, sorted edges [2, E]; mark vertices in `chosen`; return the lower bound.

    Exact up to the limits on edges: by matching if all weights are equal, else by flow.
    """
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
    """Cover graph [L, R] with the fewest vertices: the size of a maximum matching (Koenig 1931)."""
    partner = maximum_bipartite_matching(graph, perm_type="column").astype(np.int64)
    matched = np.flatnonzero(partner >= 0)
    take_left, take_right = _minimum_cut(graph, partner < 0, matched, partner[matched])
    return take_left, take_right, len(matched)


def _flow_cover(graph: csr_array, left_weight: IntArray, right_weight: IntArray) -> Solution:
    """Cover graph [L, R] at minimum weight: the maximum flow from left to right (max-flow min-cut).

    The source feeds every left vertex with its weight, every right vertex drains its weight into
    the sink, and edges have unlimited capacity, so only vertices are cut. Weights must be below
    2^31 - 1, SciPy's largest capacity.
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
    """Return the cut: left vertices that residual paths miss, right vertices that they reach.

    A residual path starts at an unsaturated left vertex, goes right along any edge, and goes
    back left along an edge that carries flow (back_left, back_right: the ends of those edges).
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
    """Cover graph [L, R] at nearly minimum weight; return the cover and its lower bound.

    `scaling_passes` computes a fractional flow (Sinkhorn and Knopp 1967; overrelaxed as by
    Thibault et al. 2021). Right vertices with low prices are crowded, hence worth taking: the
    best threshold on the price gives the cover, unless one whole side is better. Stops after
    `rounds` passes over the edges, at ACCEPTED_RATIO, or with one side at ACCEPTED_SIDE_RATIO.
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
    """Take all of the lighter side. The third entry is its weight, not a lower bound."""
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
    """Return the lighter side of a large graph if passes prove it good enough, else None.

    Gives up when two passes close less than a tenth of the gap.
    """
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
    """Return the best cover that takes all right vertices up to some price, and its weight.

    A left vertex is taken if one of its neighbours costs more than the threshold. Right vertices
    whose neighbours are all taken are left out again.
    """
    num_right = graph.shape[1]
    order = np.argsort(price, kind="stable")
    place = np.empty(num_right, dtype=np.int32)
    place[order] = np.arange(num_right, dtype=np.int32)
    dearest = np.maximum.reduceat(take(place, graph.indices), graph.indptr[:-1])
    # Entry k is the weight with the k cheapest right vertices taken: theirs, plus that of every
    # left vertex whose most expensive neighbour has rank k or higher.
    needed_until = np.zeros(num_right + 1, dtype=np.int64)
    np.add.at(needed_until, dearest, left_weight)
    total = (
        np.concatenate([[0], np.cumsum(right_weight[order])]) + np.cumsum(needed_until[::-1])[::-1]
    )
    take_left = dearest >= int(total.argmin())
    take_right = graph.T @ (~take_left).astype(np.int32) > 0
    return take_left, take_right, int(left_weight[take_left].sum() + right_weight[take_right].sum())
