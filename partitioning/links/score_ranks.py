"""Ranks of pairs among all destinations, from a function that scores them, with bounded memory.

The row (u, v) is ranked among the nodes without an edge or row from u in any set, and without u.
Equal scores share the mean of the best and the worst rank, as in OGB's evaluator. In the list of
u, from which recall and NDCG are computed, the other rows of u have places, too.

N nodes, C possible destinations, n rows, s sources.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.links.score_names import CUTOFFS, OF_LISTS

MAX_SCORES = 1 << 24
"""Scores in memory at a time; their array takes 128 MiB."""
Floats = NDArray[Any]
Ints = NDArray[np.int64]
Scorer = Callable[[Ints], Floats]
"""Maps sources [c] to the scores of the possible destinations, [c, C]."""


def possible_destinations(rows: Mapping[str, Ints], num_nodes: int) -> Ints:
    """Return the possible destinations, int64 [C]; rows: LinkSplit.rows."""
    candidates = rows["candidates"][:, 0]
    return candidates if len(candidates) else np.arange(num_nodes)


def rank_rows(
    scores: Scorer, rows: Ints, known: sp.csr_array, destinations: Ints, others: Ints | None = None
) -> tuple[Floats, Floats, Floats]:
    """Return rank, place in the source's list and score of each row, and the scores of others.

    Args:
        scores: of the possible destinations, in an array that is changed here.
        rows: int64 [n, 2] source and destination; all rows of a source that have places.
        known: sparse [N, N], the pairs with an edge or a row.
        destinations: the possible ones, int64 [C].
        others: int64 [m, 2], pairs that are scored but not ranked.

    Returns:
        Ranks and places, from 1 on, float64 [2, n]; scores [n]; scores [m].
    """
    others = rows[:0] if others is None else others
    column_of = np.zeros(known.shape[0], np.int64)
    column_of[destinations] = np.arange(len(destinations))
    known = sp.csr_array(known[:, destinations])
    ranks, own, of_others = np.zeros((2, len(rows))), np.zeros(len(rows)), np.zeros(len(others))
    own_column, other_column = column_of[rows[:, 1]], column_of[others[:, 1]]
    for sources, chunk, other_chunk in _blocks_of_sources(rows, others, len(destinations)):
        matrix = scores(sources)
        source = np.searchsorted(sources, rows[chunk, 0])
        own[chunk] = matrix[source, own_column[chunk]]
        other_source = np.searchsorted(sources, others[other_chunk, 0])
        of_others[other_chunk] = matrix[other_source, other_column[other_chunk]]
        matrix[known[sources].nonzero()] = -np.inf
        is_end = destinations[column_of[sources]] == sources
        matrix[np.flatnonzero(is_end), column_of[sources[is_end]]] = -np.inf
        for row, index in zip(chunk, source, strict=True):
            score = matrix.dtype.type(own[row])  # with a float64 numpy would convert all others
            num_above = np.count_nonzero(matrix[index] > score)
            num_equal = np.count_nonzero(matrix[index] == score)
            ranks[0, row] = 1 + num_above + num_equal / 2
    ranks[1] = ranks[0] + count_above_in_list(rows[:, 0], own)
    return ranks, own, of_others


def _blocks_of_sources(
    rows: Ints, others: Ints, num_destinations: int
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield ascending sources, and the positions of the rows and of the others that have them.

    A block has at most MAX_SCORES scores, or one source. rows, others: int64 [n, 2] and [m, 2].
    """
    orders = [np.argsort(pairs[:, 0], kind="stable") for pairs in (rows, others)]
    every = np.union1d(rows[:, 0], others[:, 0])
    step = max(1, MAX_SCORES // max(1, num_destinations))
    for first in range(0, len(every), step):
        sources = every[first : first + step]
        chunks = []
        for pairs, order in zip((rows, others), orders, strict=True):
            ordered = pairs[order, 0]
            begin = np.searchsorted(ordered, sources[0])
            chunks.append(order[begin : np.searchsorted(ordered, sources[-1], side="right")])
        yield sources, chunks[0], chunks[1]


def count_above_in_list(sources: Ints, own: Floats) -> Floats:
    """Return how many other rows of the same source score above each row, [n]; ties count half."""
    order = np.lexsort((-own, sources))
    by_source, by_score = sources[order], own[order]
    position = np.arange(len(order))
    starts_source = np.diff(by_source, prepend=-1) != 0
    starts_tie = starts_source | (np.diff(by_score, prepend=np.nan) != 0)
    tie = np.cumsum(starts_tie) - 1
    tie_start = position[starts_tie]
    tie_size = np.diff(np.append(tie_start, len(order)))
    source_start = position[starts_source][np.cumsum(starts_source) - 1]
    counts = np.empty(len(order))
    counts[order] = tie_start[tie] - source_start + (tie_size[tie] - 1) / 2
    return counts


def score_lists(sources: Ints, places: Floats) -> Floats:
    """Return the scores OF_LISTS, in that order, of each source's list, float64 [s, len(OF_LISTS)].

    recall: the share of the source's rows among the first k places; precision: of these places the
    share that are rows; ndcg: the sum over these rows of 1 / log2(1 + place), and map: of the
    precision at their places, each divided by the best that k places allow. Sources ascend.

    Args:
        sources: [n] of each row.
        places: [n] in its source's list, from 1 on.
    """
    order = np.lexsort((places, sources))
    places = places[order]
    _, begin, source, counts = np.unique(
        sources[order], return_index=True, return_inverse=True, return_counts=True
    )
    position = np.arange(len(order)) - begin[source] + 1  # among the rows of the source
    columns = []
    gain = 1 / np.log2(1 + np.arange(1, max(CUTOFFS) + 1))
    for k in CUTOFFS:
        is_hit, best = places <= k, np.minimum(counts, k)
        hits, gains, precisions = (
            np.bincount(source, values * is_hit, len(begin))
            for values in (np.ones(len(order)), 1 / np.log2(1 + places), position / places)
        )
        columns += [hits / counts, gains / gain.cumsum()[best - 1], hits / k, precisions / best]
    return np.stack(columns, axis=1)


def measure_ranks(sources: Ints, ranks_and_places: Floats) -> dict[str, float]:
    """Return MRR, Hits@K and the mean scores of the lists.

    Args:
        sources: [n] of each row.
        ranks_and_places: [2, n], see rank_rows.
    """
    ranks, places = ranks_and_places
    return {
        "mrr": float((1 / ranks).mean()),
        **{f"hits@{k}": float((ranks <= k).mean()) for k in CUTOFFS},
        **dict(zip(OF_LISTS, score_lists(sources, places).mean(axis=0).tolist(), strict=True)),
    }


def auc(positive: Floats, negative: Floats) -> float:
    """Return the area under the ROC curve; NaN without positives or negatives.

    Equal scores of a positive and a negative count half.
    """
    if not len(positive) or not len(negative):
        return float("nan")
    return float(shares_below(positive, negative).mean())


def shares_below(positive: Floats, negative: Floats) -> Floats:
    """Return for each positive [n] the share of negatives [m > 0] below it; ties count half."""
    ordered = np.sort(negative)
    num_below, num_upto = (
        np.searchsorted(ordered, positive, side=side) for side in ("left", "right")
    )
    return (num_below + num_upto) / 2 / len(negative)
