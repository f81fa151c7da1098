"""Ranks of pairs among all destinations, from a function that scores them, with bounded memory.

The row (u, v) is ranked among the nodes without an edge or row from u in any set, and without u.
Equal scores share the mean of the best and the worst rank, as in OGB's evaluator. N nodes, n rows.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_SCORES = 1 << 24
"""Scores in memory at a time; their array takes 128 MiB."""
HITS = (10, 20, 50)
Floats = NDArray[Any]
Ints = NDArray[np.int64]
Scorer = Callable[[Ints], Floats]
"""Maps sources [c] to the scores of all destinations, [c, N]."""


def rank_rows(scores: Scorer, rows: Ints, known: Any, candidates: Ints) -> tuple[Floats, Floats]:
    """Return the rank, from 1 on, and the score of each row, [n] each.

    Args:
        rows: int64 [n, 2] source and destination.
        known: sparse [N, N], the pairs with an edge or a row.
        candidates: possible destinations; empty for all nodes.
    """
    found, own = np.zeros(len(rows)), np.zeros(len(rows))
    is_excluded = np.ones(known.shape[0], np.bool_)
    is_excluded[candidates if len(candidates) else slice(None)] = False
    for chunk, sources, source_index in _chunk_by_source(rows, known.shape[0]):
        matrix = scores(sources)
        own[chunk] = matrix[source_index, rows[chunk, 1]]
        matrix[known[sources].nonzero()] = -np.inf
        matrix[np.arange(len(sources)), sources] = -np.inf
        matrix[:, is_excluded] = -np.inf
        for row, index in zip(chunk, source_index, strict=True):
            num_above = np.count_nonzero(matrix[index] > own[row])
            num_equal = np.count_nonzero(matrix[index] == own[row])
            found[row] = 1 + num_above + num_equal / 2
    return found, own


def score_rows(scores: Scorer, rows: Ints, num_nodes: int) -> Floats:
    """Return the score of each row, [n]."""
    found = np.zeros(len(rows))
    for chunk, sources, source_index in _chunk_by_source(rows, num_nodes):
        found[chunk] = scores(sources)[source_index, rows[chunk, 1]]
    return found


def measure_ranks(found: Floats) -> dict[str, float]:
    """Return MRR and Hits@K of ranks [n], from 1 on."""
    return {
        "mrr": float((1 / found).mean()),
        **{f"hits@{k}": float((found <= k).mean()) for k in HITS},
    }


def _chunk_by_source(rows: Ints, num_nodes: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield positions of rows, their distinct sources, and each row's source among these."""
    order = np.argsort(rows[:, 0], kind="stable")
    step = max(1, MAX_SCORES // max(1, num_nodes))
    for first in range(0, len(rows), step):
        chunk = order[first : first + step]
        sources, source_index = np.unique(rows[chunk, 0], return_inverse=True)
        yield chunk, sources, source_index
