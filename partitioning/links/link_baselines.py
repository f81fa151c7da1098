"""Baselines of link prediction without training, scored like a network on the test pairs.

Common neighbours, Adamic-Adar, cosine similarity of features, the spectral embedding; and for a
relation of a heterogeneous graph popularity and item-based k-nearest neighbours. N nodes, n rows.
"""

import numpy as np
import scipy.sparse as sp

from partitioning.features.encoder import EncodedFeatures
from partitioning.links.adamic_adar import adamic_adar, make_adjacency
from partitioning.links.link_split import LinkSplit
from partitioning.links.score_ranks import (
    Floats,
    Ints,
    Scorer,
    measure_ranks,
    rank_rows,
    score_rows,
)

MAX_CELLS = 1 << 34
"""With more scores than this, only a random sample of the rows is ranked."""


def baselines(split: LinkSplit) -> dict[str, dict[str, float]]:
    """Return MRR, Hits@K and AUC of the test rows, by method."""
    rows, negatives, num_nodes = split.rows["test"], split.rows["test_neg"], split.graph.num_nodes
    if not len(rows):
        return {}
    ranked = rows
    if len(rows) * num_nodes > MAX_CELLS:
        ranked = np.random.default_rng(0).permutation(rows)[: max(1, MAX_CELLS // num_nodes)]
    ends = split.known()
    known = sp.csr_array((np.ones(len(ends[0])), ends), shape=(num_nodes, num_nodes))
    found, candidates = {}, split.rows["candidates"][:, 0]
    for name, scores in _make_scorers(split).items():
        found_ranks, positive = rank_rows(scores, ranked, known, candidates)
        found[name] = {
            **measure_ranks(found_ranks),
            "auc": auc(positive, score_rows(scores, negatives, num_nodes)),
        }
    return found


def auc(positive: Floats, negative: Floats) -> float:
    """Return the area under the ROC curve; equal scores of a positive and a negative count half."""
    if not len(positive) or not len(negative):
        return float("nan")
    ordered = np.sort(negative)
    num_below, num_upto = (
        np.searchsorted(ordered, positive, side=side) for side in ("left", "right")
    )
    return float((num_below + num_upto).mean() / 2 / len(negative))


def _make_scorers(split: LinkSplit) -> dict[str, Scorer]:
    """Return a function that scores pairs for each baseline, by name."""
    graph, num_nodes = split.graph, split.graph.num_nodes
    adjacency = make_adjacency(graph)
    adamic = sp.diags_array(adamic_adar(adjacency)) @ adjacency
    given = graph.features
    features = sp.csr_array(given.toarray() if isinstance(given, EncodedFeatures) else given)
    norm = np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel())
    unit = sp.csr_array(sp.diags_array(1 / np.where(norm > 0, norm, 1)) @ features)
    dense = unit.toarray() if unit.nnz > 0.1 * num_nodes * max(1, unit.shape[1]) else None

    def cosine(nodes: Ints) -> Floats:
        return (
            (unit[nodes] @ unit.T).toarray()
            if dense is None
            else (dense[nodes] @ dense.T).astype(np.float64)
        )

    scorers: dict[str, Scorer] = {
        "common neighbours": lambda nodes: (adjacency[nodes] @ adjacency).toarray(),
        "Adamic-Adar": lambda nodes: (adjacency[nodes] @ adamic).toarray(),
        "feature cosine": cosine,
    }
    if split.spectral.shape[1]:
        scorers["spectral"] = lambda nodes: (split.spectral[nodes] @ split.spectral.T).astype(
            np.float64
        )
    if len(split.rows["candidates"]):
        train = split.rows["train"]
        rows = sp.csr_array((np.ones(len(train)), tuple(train.T)), shape=(num_nodes, num_nodes))
        num_rows = np.asarray(rows.sum(axis=0)).ravel()
        by_item = sp.csr_array(rows @ sp.diags_array(1 / np.sqrt(np.maximum(num_rows, 1))))
        scorers["popularity"] = lambda nodes: np.tile(num_rows.astype(np.float64), (len(nodes), 1))
        scorers["item-kNN"] = lambda nodes: ((rows[nodes] @ by_item.T) @ by_item).toarray()
    return scorers
