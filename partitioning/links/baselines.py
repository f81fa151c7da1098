"""What needs no training: common neighbours, Adamic-Adar and the cosine of features, scored as the trained network is.

Ranks are among all nodes without an edge of any set from the source, which is left out, too; equal scores share a rank
(the mean of the best and the worst, as OGB's evaluator has it). N nodes, n rows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.links.split import LinkSplit

CELLS = 1 << 24
"""Scores that are looked at at a time; their array takes 128 MiB."""
MAX_CELLS = 1 << 34
"""Scores beyond which a random sample of the rows is ranked."""
HITS = (10, 20, 50)
Floats = NDArray[np.float64]
Scorer = Callable[[NDArray[np.int64]], Floats]
"""From sources [c] to scores of all nodes, [c, N]."""


def baselines(split: LinkSplit) -> dict[str, dict[str, float]]:
    """MRR, Hits@K and AUC of the test rows, by method."""
    rows, negatives, num_nodes = split.rows["test"], split.rows["test_neg"], split.graph.num_nodes
    if not len(rows):
        return {}
    ranked = rows
    if len(rows) * num_nodes > MAX_CELLS:
        ranked = np.random.default_rng(0).permutation(rows)[: max(1, MAX_CELLS // num_nodes)]
    known = sp.csr_array((np.ones(len(split.known()[0])), split.known()), shape=(num_nodes, num_nodes))
    found = {}
    for name, scores in _methods(split).items():
        ranks = _ranks(scores, ranked, known)
        positive, negative = _pair_scores(scores, rows), _pair_scores(scores, negatives)
        found[name] = {**of_ranks(ranks), "auc": auc(positive, negative)}
    return found


def of_ranks(ranks: Floats) -> dict[str, float]:
    """MRR and Hits@K of ranks from 1 on, [n]."""
    return {"mrr": float((1 / ranks).mean()), **{f"hits@{k}": float((ranks <= k).mean()) for k in HITS}}


def auc(positive: Floats, negative: Floats) -> float:
    """How often a positive pair scores more than a negative one; ties count half."""
    if not len(positive) or not len(negative):
        return float("nan")
    ordered = np.sort(negative)
    below, upto = (np.searchsorted(ordered, positive, side=side) for side in ("left", "right"))
    return float((below + upto).mean() / 2 / len(negative))


def _methods(split: LinkSplit) -> dict[str, Scorer]:
    graph, num_nodes = split.graph, split.graph.num_nodes
    ends = np.concatenate((graph.src, graph.dst)), np.concatenate((graph.dst, graph.src))
    adjacency = sp.csr_array((np.ones(len(ends[0])), ends), shape=(num_nodes, num_nodes))
    adjacency.setdiag(0)
    adjacency.eliminate_zeros()
    adjacency.data[:] = 1
    degree = np.diff(adjacency.indptr)
    adamic = sp.diags_array(np.where(degree > 1, 1 / np.log(np.maximum(degree, 2)), 0)) @ adjacency
    features = sp.csr_array(graph.features)
    norm = np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel())
    unit = sp.csr_array(sp.diags_array(1 / np.where(norm > 0, norm, 1)) @ features)
    return {
        "common neighbours": lambda nodes: (adjacency[nodes] @ adjacency).toarray(),
        "Adamic-Adar": lambda nodes: (adjacency[nodes] @ adamic).toarray(),
        "feature cosine": lambda nodes: (unit[nodes] @ unit.T).toarray(),
    }


def _chunks(rows: NDArray[np.int64], num_nodes: int) -> list[NDArray[np.int64]]:
    step = max(1, CELLS // max(1, num_nodes))
    return [rows[first : first + step] for first in range(0, len(rows), step)]


def _ranks(scores: Scorer, rows: NDArray[np.int64], known: Any) -> Floats:
    found = []
    for some in _chunks(rows, known.shape[0]):
        matrix, place = scores(some[:, 0]), np.arange(len(some))
        own = matrix[place, some[:, 1]][:, None]
        matrix[known[some[:, 0]].nonzero()] = -np.inf
        matrix[place, some[:, 0]] = -np.inf
        found.append(1 + ((matrix > own).sum(axis=1) + (matrix >= own).sum(axis=1)) / 2)
    return np.concatenate(found)


def _pair_scores(scores: Scorer, rows: NDArray[np.int64]) -> Floats:
    """Chunks of rows by source, so that each source is scored once."""
    order = np.argsort(rows[:, 0], kind="stable")
    found = np.zeros(len(rows))
    sources, starts = np.unique(rows[order, 0], return_index=True)
    ends = np.append(starts[1:], len(rows))
    step = max(1, CELLS // max(1, int(rows.max(initial=0)) + 1))
    for first in range(0, len(sources), step):
        matrix = scores(sources[first : first + step])
        for place, (begin, end) in enumerate(
            zip(starts[first : first + step], ends[first : first + step], strict=True)
        ):
            found[order[begin:end]] = matrix[place, rows[order[begin:end], 1]]
    return found
