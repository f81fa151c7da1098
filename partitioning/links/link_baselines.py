"""What needs no training: common neighbours, Adamic-Adar, cosine of features, spectral embeddings; scored as a network.

N nodes, n rows.
"""

import numpy as np
import scipy.sparse as sp

from partitioning.links.adamic_adar import adamic_adar, adjacency_of
from partitioning.links.link_split import LinkSplit
from partitioning.links.score_ranks import Floats, Ints, Scorer, of_ranks, pair_scores, ranks

MAX_CELLS = 1 << 34
"""Scores beyond which a random sample of the rows is ranked."""


def baselines(split: LinkSplit) -> dict[str, dict[str, float]]:
    """MRR, Hits@K and AUC of the test rows, by method."""
    rows, negatives, num_nodes = split.rows["test"], split.rows["test_neg"], split.graph.num_nodes
    if not len(rows):
        return {}
    ranked = rows
    if len(rows) * num_nodes > MAX_CELLS:
        ranked = np.random.default_rng(0).permutation(rows)[: max(1, MAX_CELLS // num_nodes)]
    ends = split.known()
    known = sp.csr_array((np.ones(len(ends[0])), ends), shape=(num_nodes, num_nodes))
    found, candidates = {}, split.rows["candidates"][:, 0]
    for name, scores in _methods(split).items():
        places, positive = ranks(scores, ranked, known, candidates)
        found[name] = {
            **of_ranks(places),
            "auc": auc(positive, pair_scores(scores, negatives, num_nodes)),
        }
    return found


def auc(positive: Floats, negative: Floats) -> float:
    """How often a positive pair scores more than a negative one; ties count half."""
    if not len(positive) or not len(negative):
        return float("nan")
    ordered = np.sort(negative)
    below, upto = (np.searchsorted(ordered, positive, side=side) for side in ("left", "right"))
    return float((below + upto).mean() / 2 / len(negative))


def _methods(split: LinkSplit) -> dict[str, Scorer]:
    graph, num_nodes = split.graph, split.graph.num_nodes
    adjacency = adjacency_of(graph)
    adamic = sp.diags_array(adamic_adar(adjacency)) @ adjacency
    features = sp.csr_array(graph.features)
    norm = np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel())
    unit = sp.csr_array(sp.diags_array(1 / np.where(norm > 0, norm, 1)) @ features)
    dense = unit.toarray() if unit.nnz > 0.1 * num_nodes * max(1, unit.shape[1]) else None

    def cosine(nodes: Ints) -> Floats:
        return (
            (unit[nodes] @ unit.T).toarray()
            if dense is None
            else (dense[nodes] @ dense.T).astype(np.float64)
        )

    methods: dict[str, Scorer] = {
        "common neighbours": lambda nodes: (adjacency[nodes] @ adjacency).toarray(),
        "Adamic-Adar": lambda nodes: (adjacency[nodes] @ adamic).toarray(),
        "feature cosine": cosine,
    }
    if split.spectral.shape[1]:
        methods["spectral"] = lambda nodes: (split.spectral[nodes] @ split.spectral.T).astype(
            np.float64
        )
    if len(split.rows["candidates"]):
        train = split.rows["train"]
        held = sp.csr_array((np.ones(len(train)), tuple(train.T)), shape=(num_nodes, num_nodes))
        times = np.asarray(held.sum(axis=0)).ravel()
        by_item = sp.csr_array(held @ sp.diags_array(1 / np.sqrt(np.maximum(times, 1))))
        methods["popularity"] = lambda nodes: np.tile(times.astype(np.float64), (len(nodes), 1))
        methods["item-kNN"] = lambda nodes: ((held[nodes] @ by_item.T) @ by_item).toarray()
    return methods
