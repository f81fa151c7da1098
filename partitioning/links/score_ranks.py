"""Ranks of pairs among all nodes by scores, in pieces of bounded memory, and what is made of them.

Ranks are among all nodes without an edge of any set from the source, which is left out, too; equal scores share a rank
(the mean of the best and the worst, as OGB's evaluator has it). N nodes, n rows.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

CELLS = 1 << 24
"""Scores that are looked at at a time; their array takes 128 MiB."""
HITS = (10, 20, 50)
Floats = NDArray[Any]
Ints = NDArray[np.int64]
Scorer = Callable[[Ints], Floats]
"""From sources [c] to scores of all nodes, [c, N]."""


def ranks(scores: Scorer, rows: Ints, known: Any, candidates: Ints) -> tuple[Floats, Floats]:
    """The rank and the score of each row, [n]; known: [N, N] pairs with an edge; candidates: [] is all nodes."""
    found, own, others = np.zeros(len(rows)), np.zeros(len(rows)), np.ones(known.shape[0], np.bool_)
    others[candidates if len(candidates) else slice(None)] = False
    for some, sources, place in _by_source(rows, known.shape[0]):
        matrix = scores(sources)
        own[some] = matrix[place, rows[some, 1]]
        matrix[known[sources].nonzero()] = -np.inf
        matrix[np.arange(len(sources)), sources] = -np.inf
        matrix[:, others] = -np.inf
        for row, at in zip(some, place, strict=True):
            above, equal = (
                np.count_nonzero(compare(matrix[at], own[row]))
                for compare in (np.greater, np.equal)
            )
            found[row] = 1 + above + equal / 2
    return found, own


def pair_scores(scores: Scorer, rows: Ints, num_nodes: int) -> Floats:
    """The score of each row, [n]."""
    found = np.zeros(len(rows))
    for some, sources, place in _by_source(rows, num_nodes):
        found[some] = scores(sources)[place, rows[some, 1]]
    return found


def of_ranks(found: Floats) -> dict[str, float]:
    """MRR and Hits@K of ranks from 1 on, [n]."""
    return {
        "mrr": float((1 / found).mean()),
        **{f"hits@{k}": float((found <= k).mean()) for k in HITS},
    }


def _by_source(rows: Ints, num_nodes: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Places of some rows, their sources, once each, and the place of each row's source among these."""
    order = np.argsort(rows[:, 0], kind="stable")
    step = max(1, CELLS // max(1, num_nodes))
    for first in range(0, len(rows), step):
        some = order[first : first + step]
        sources, place = np.unique(rows[some, 0], return_inverse=True)
        yield some, sources, place
