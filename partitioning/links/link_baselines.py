"""Baselines of link prediction without training, scored like a network on the test pairs.

Common neighbours, Adamic-Adar, cosine similarity of features, the spectral embedding; and for a
relation of a heterogeneous graph popularity and item-based k-nearest neighbours. A method that
scores all pairs 0, as common neighbours of users and items, is left out. N nodes, n rows.
"""

from typing import Any

import numpy as np
import scipy.sparse as sp

from partitioning.features.encoder import EncodedFeatures
from partitioning.links.adamic_adar import adamic_adar, make_adjacency
from partitioning.links.link_split import LinkSplit
from partitioning.links.score_ranks import Floats, Ints, Scorer, auc, measure_ranks, rank_rows

MAX_SCORES = 1 << 32
"""With more scores than this, only the rows of a random sample of the sources are ranked."""
MAX_PRODUCTS = 1 << 27
"""With more products than this, those of two items' rows are not kept."""


def baselines(split: LinkSplit) -> dict[str, dict[str, float]]:
    """Return MRR, Hits@K, the scores of lists and AUC of the test rows, by method; {} without rows.

    At most about MAX_SCORES scores are ranked per method: of sources drawn with seed 0.
    """
    rows, negatives, num_nodes = split.rows["test"], split.rows["test_neg"], split.graph.num_nodes
    if not len(rows):
        return {}
    destinations = split.destinations
    ends = split.known()
    known = sp.csr_array((np.ones(len(ends[0]), np.bool_), ends), shape=(num_nodes, num_nodes))
    sources = np.random.default_rng(0).permutation(np.unique(rows[:, 0]))
    is_ranked = np.isin(rows[:, 0], sources[: max(1, MAX_SCORES // len(destinations))])
    ranked, unranked = rows[is_ranked], rows[~is_ranked]
    scores_by_method = {}
    for name, scores in _make_scorers(split, destinations).items():
        ranks, own, others = rank_rows(
            scores, ranked, known, destinations, np.concatenate((unranked, negatives))
        )
        positive = np.append(own, others[: len(unranked)])
        scores_by_method[name] = {
            **measure_ranks(ranked[:, 0], ranks),
            "auc": auc(positive, others[len(unranked) :]),
        }
    return scores_by_method


def _make_scorers(split: LinkSplit, destinations: Ints) -> dict[str, Scorer]:
    """Return a function that scores the destinations [C] for each baseline, by name.

    Those that would score all pairs 0 are left out.
    """
    graph, num_nodes = split.graph, split.graph.num_nodes
    adjacency = make_adjacency(graph)
    adamic = sp.diags_array(adamic_adar(adjacency)) @ adjacency
    stored = graph.features
    features = sp.csr_array(stored.toarray() if isinstance(stored, EncodedFeatures) else stored)
    norm = np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel())
    unit = sp.csr_array(sp.diags_array(1 / np.where(norm > 0, norm, 1)) @ features)
    is_dense = unit.nnz > 0.1 * num_nodes * max(1, unit.shape[1])
    sources, scorers = split.rows["test"][:, 0], dict[str, Scorer]()
    if _share_columns(adjacency, sources, destinations):
        scorers = {
            "common neighbours": _multiply(adjacency, sp.csr_array(adjacency[:, destinations])),
            "Adamic-Adar": _multiply(adjacency, sp.csr_array(adamic[:, destinations])),
        }
    if _share_columns(unit, sources, destinations):
        scorers["feature cosine"] = _multiply(
            unit.toarray() if is_dense else unit,
            unit[destinations].toarray().T if is_dense else sp.csr_array(unit[destinations].T),
        )
    if split.spectral.shape[1]:
        scorers["spectral"] = _multiply(split.spectral, split.spectral[destinations].T)
    if len(split.rows["candidates"]):
        train = split.rows["train"]
        rows = sp.csr_array(
            (np.ones(len(train), np.float32), tuple(train.T)), shape=(num_nodes, num_nodes)
        )
        num_rows = np.asarray(rows.sum(axis=0)).ravel()
        by_item = sp.csr_array(rows @ sp.diags_array(1 / np.sqrt(np.maximum(num_rows, 1))))
        by_destination, by_source = sp.csr_array(by_item[:, destinations]), sp.csr_array(by_item.T)
        popularity = num_rows[destinations]
        scorers["popularity"] = lambda nodes: np.tile(popularity, (len(nodes), 1))
        if np.square(np.asarray(rows.sum(axis=1))).sum() <= MAX_PRODUCTS:
            scorers["item-kNN"] = _multiply(rows, sp.csr_array(by_source @ by_destination))
        else:
            scorers["item-kNN"] = lambda nodes: (
                (rows[nodes] @ by_source) @ by_destination
            ).toarray()
    return scorers


def _share_columns(matrix: sp.csr_array, sources: Ints, destinations: Ints) -> bool:
    """Return whether a column has entries in rows of both; without one all products are 0."""
    by_source, by_destination = (
        matrix[np.unique(ends)].indices for ends in (sources, destinations)
    )
    return bool(np.isin(by_source, by_destination).any())


def _multiply(sources: Any, destinations: Any) -> Scorer:
    """Return the scorer of the products of rows [N, K] with columns [K, C], sparse or dense."""

    def scores(nodes: Ints) -> Floats:
        products = sources[nodes] @ destinations
        return products if isinstance(products, np.ndarray) else products.toarray()

    return scores
