"""Spectral embeddings of nodes from the training pairs' graph; their products score pairs.

    M = D^-a A D^-a
    p = D^b V_K S_K^(c/2) / sqrt(m)

A has a one for each training pair, in both directions, D are its degrees, and S_K, V_K the K
largest eigenvalues of M and their vectors. m makes the mean product of the training pairs 1. For
users and items this is a truncated singular value decomposition (PureSVD; Cremonesi, Koren and
Turrin, RecSys 2010), with the normalisation of spectral clustering (a = 1/2) or less of it. With
a = b = 1/2 and c = 1 it is the ideal low-pass filter of GF-CF (Shen et al., CIKM 2021); with b = 0
and c = 2 the products are those of M M, that is, paths of two edges. Validation pairs choose a, b,
c and K: few columns describe communities, many describe single neighbours. Then A gets the
validation pairs, too, for the scores of test pairs and predictions.

N nodes, n pairs, K columns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import qr

from partitioning.graph.graph_data import SPLITS
from partitioning.links.score_names import FILTER, OF_LISTS
from partitioning.links.score_ranks import (
    Ints,
    possible_destinations,
    rank_rows,
    score_lists,
    shares_below,
)

Rows = NDArray[np.float32]
POWERS = (0.25, 0.375, 0.5)
"""Tried values of a."""
DEGREE_SHARES = (0.0, 0.5, 1.0)
"""Tried values of b / a."""
EIGENVALUE_POWERS = (0.0, 1.0, 1.5, 2.0)
"""Tried values of c."""
FIRST_FILTERS = ((0.0, 2.0), (1.0, 1.0))
"""b / a and c with which a is chosen."""
WIDTH_DIVISORS = (1, 2, 4)
"""K is the given width divided by one of these."""
OF_RELATIONS = "ndcg@20"
"""The usual metric for a relation, whose destinations are recommended to its sources."""
MAX_RANKED = 2000
"""Sources whose validation pairs are ranked to choose, at most."""
MAX_SCORES = 1 << 30
"""Scores of their possible destinations, at most; fewer are ranked in a larger graph."""
EXTRA_VECTORS = 8
"""Vectors of a block beside the wanted ones; they converge last."""
MAX_VECTORS = 1024
"""Vectors that filters multiply by a matrix to find eigenvectors, about; one filter at least."""
MAX_GAIN = 1e5
"""How much a filter prefers the largest eigenvalue to the smallest of a block, in fp32."""
MIN_INDEPENDENCE = 1e-6
"""Smallest eigenvalue of products of unit columns that have a Cholesky factor in fp32."""
MAX_DEGREE = 32
"""Of a filter's polynomial."""
TOLERANCE = 2e-3
"""Residual of an eigenvector, relative to the largest eigenvalue, from which on it is one."""
DENSE_SIZE = 512
"""Up to this size a matrix is decomposed at once."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The largest positive eigenvalues of M, and their vectors."""

    power: float
    """a"""
    values: Rows
    """[K], descending, 0 beyond the positive ones."""
    vectors: Rows
    """[N, K]"""
    degrees: Rows
    """[N], at least 1."""

    def embed(self, columns: int, degree_share: float, eigenvalue_power: float) -> Rows:
        """Return D^b V S^(c/2), [N, columns]; degree_share: b / a, eigenvalue_power: c.

        Columns without a positive eigenvalue are 0.
        """
        values, is_positive = self.values[:columns], self.values[:columns] > 0
        scales = np.where(is_positive, values, 1) ** np.float32(eigenvalue_power / 2)
        scaled = self.vectors[:, :columns] * np.where(is_positive, scales, np.float32(0))
        return scaled * (self.degrees ** np.float32(self.power * degree_share))[:, None]


@dataclass(frozen=True, eq=False)
class _Candidate:
    """An embedding and how it ranks the validation pairs."""

    spectrum: Spectrum
    made_by: tuple[int, float, float]
    """Arguments of Spectrum.embed."""
    scores: NDArray[np.float64]
    """The metric of each validation pair, or of each source's list."""
    auc: float
    """Area under the ROC curve of all validation pairs; 0 where nothing is chosen by it."""

    @property
    def score(self) -> float:
        return float(self.scores.mean())


def choose_spectral_embedding(
    rows: Mapping[str, Ints],
    num_nodes: int,
    width: int,
    metric: str = "auto",
    known: Mapping[str, float] | None = None,
) -> tuple[Rows, Rows, dict[str, Any]]:
    """Return the embedding [N, K] that ranks the validation pairs best, and how it was chosen.

    The second embedding is made in the same way from training and validation pairs.

    First a is chosen, then b and c, then K. Of the candidates that are less than a standard error
    of the difference below the best one, it is the best of those with the most columns. Without
    validation pairs it is `known`, or else the first candidate.

    Args:
        rows: LinkSplit.rows.
        width: K, at most; 0: the embeddings are [N, 0].
        metric: mrr, auc or one of OF_LISTS. auto: for a relation OF_RELATIONS; else mrr, and of the
            candidates within a standard error that with the highest AUC, which for a relation can
            have much worse lists (Gowalla).
        known: FILTER of a trained model, whose share of the spectral score was chosen with it; its
            K replaces `width`.
    """
    width = min(int(known["spectral"]) if known else width, num_nodes)
    if not width:
        none = np.zeros((num_nodes, 0), np.float32)
        return none, none, {"spectral": 0, "spectral_score": -1.0}
    of_relation = bool(len(rows["candidates"]))
    by_auc = metric == "auto" and not of_relation
    if metric == "auto":
        metric = OF_RELATIONS if of_relation else "mrr"
    measure = _make_measure(rows, num_nodes, metric, by_auc=by_auc)
    if measure is None:
        power, share_and_power = POWERS[0], FIRST_FILTERS[0]
        if known:
            power, degree_power, eigenvalue_power = (known[name] for name in FILTER[1:])
            share_and_power = degree_power / (power or 1), eigenvalue_power
        spectrum = decompose(rows["train"], num_nodes, width, power)
        made_by, score = (width, *share_and_power), 0.0
    else:
        tried = [
            measure(spectrum, (width, *of_filter))
            for spectrum in (decompose(rows["train"], num_nodes, width, a) for a in POWERS)
            for of_filter in FIRST_FILTERS
        ]
        spectrum = max(tried, key=lambda candidate: candidate.score).spectrum
        tried = [candidate for candidate in tried if candidate.spectrum is spectrum]
        filters = [(share, power) for share in DEGREE_SHARES for power in EIGENVALUE_POWERS]
        others = [parameters for parameters in filters if parameters not in FIRST_FILTERS]
        if of_relation:  # both weights together favour popular items
            others = [(share, power) for share, power in others if not share or 1 <= power < 2]
        tried += [measure(spectrum, (width, *parameters)) for parameters in others]
        of_filter = max(tried, key=lambda candidate: candidate.score).made_by[1:]
        widths = [width // share for share in WIDTH_DIVISORS[1:] if width >= share]
        tried += [measure(spectrum, (columns, *of_filter)) for columns in widths]
        chosen = _choose(tried, by_auc=by_auc)
        made_by, score = chosen.made_by, chosen.score
    columns, degree_share, eigenvalue_power = made_by
    embedding = refitted = _scale(spectrum.embed(*made_by), rows["train"])
    if measure is not None:
        pairs = np.concatenate((rows["train"], rows["val"]))
        refit = decompose(pairs, num_nodes, columns, spectrum.power)
        refitted = _scale(refit.embed(*made_by), pairs)
    numbers = (columns, spectrum.power, spectrum.power * degree_share, eigenvalue_power)
    chosen_by = dict(zip(FILTER, numbers, strict=True))
    return embedding, refitted, {**chosen_by, "spectral_metric": metric, "spectral_score": score}


def _choose(tried: Sequence[_Candidate], *, by_auc: bool) -> _Candidate:
    """Return the best candidate by score; of those as good, the widest or that of the best AUC.

    As good: on average less than the best by at most one standard error of the difference.

    by_auc: whether the highest AUC decides among those, not the most columns.
    """
    best = max(tried, key=lambda candidate: candidate.score)

    def is_as_good(other: _Candidate) -> bool:
        less = best.scores - other.scores
        return bool(less.mean() <= less.std() / np.sqrt(len(less)))

    as_good = filter(is_as_good, tried)
    if by_auc:
        return max(as_good, key=lambda candidate: candidate.auc)
    return max(as_good, key=lambda candidate: (candidate.made_by[0], candidate.score))


def _make_measure(
    rows: Mapping[str, Ints], num_nodes: int, metric: str, *, by_auc: bool
) -> Callable[[Spectrum, tuple[int, float, float]], _Candidate] | None:
    """Return the function that scores an embedding on the validation pairs; None without these.

    It ranks the pairs of a sample of their sources, which is always the same.

    by_auc: whether the area is needed beside another metric; it is 0 where it is not.
    """
    val, destinations = rows["val"], possible_destinations(rows, num_nodes)
    if not len(val):
        return None
    every = np.concatenate([rows[name] for name in SPLITS]).T
    known = sp.csr_array(
        (np.ones(every.shape[1], np.bool_), tuple(every)), shape=(num_nodes, num_nodes)
    )
    sources = np.random.default_rng(0).permutation(np.unique(val[:, 0]))
    most = min(MAX_RANKED, 1 + MAX_SCORES // max(1, len(destinations)))
    ranked = val[np.isin(val[:, 0], sources[:most])]

    def measure(spectrum: Spectrum, made_by: tuple[int, float, float]) -> _Candidate:
        embedding, area = spectrum.embed(*made_by), 0.0
        if by_auc or metric == "auc":
            positive, negative = (
                np.einsum("nk,nk->n", *(embedding[ends] for ends in pairs.T))
                for pairs in (val, rows["val_neg"])
            )
            areas = shares_below(positive, negative)
            area = float(areas.mean())
        if metric == "auc":
            return _Candidate(spectrum, made_by, areas, area)
        columns = embedding[destinations].T
        ranks_and_places, *_ = rank_rows(
            lambda nodes: embedding[nodes] @ columns, ranked, known, destinations
        )
        scores = 1 / ranks_and_places[0]
        if metric in OF_LISTS:
            scores = score_lists(ranked[:, 0], ranks_and_places[1])[:, OF_LISTS.index(metric)]
        return _Candidate(spectrum, made_by, scores, area)

    return measure


def decompose(pairs: Ints, num_nodes: int, width: int, power: float) -> Spectrum:
    """Return the `width` largest positive eigenvalues of M and their vectors.

    Values are descending, and 0 where fewer than `width` are positive. Where no node is both source
    and destination, M has the blocks R and R^T, and these are the singular values of R: the
    eigenvectors v of R^T R, or R R^T if it is smaller, give (R v / s, v).

    Args:
        pairs: training pairs, int64 [n, 2].
        power: a.
    """
    ends = np.concatenate((pairs, pairs[:, ::-1])).T
    adjacency = sp.csr_array(
        (np.ones(ends.shape[1], np.float32), tuple(ends)), shape=(num_nodes, num_nodes)
    )
    adjacency.data[:] = 1
    degrees = np.maximum(adjacency.sum(axis=1), 1).astype(np.float32)
    scale = sp.diags_array(degrees**-power)
    matrix = sp.csr_array(scale @ adjacency @ scale)
    values, vectors = np.zeros(width, np.float32), np.zeros((num_nodes, width), np.float32)
    sides = np.unique(pairs[:, 0]), np.unique(pairs[:, 1])
    if len(np.intersect1d(*sides)):
        eigenvalues, basis = find_eigenvectors(lambda block: matrix @ block, num_nodes, width)
        count = len(eigenvalues)
        vectors[:, :count] = basis
    else:
        small, large = sorted(sides, key=len)
        half = sp.csr_array(matrix[large][:, small])
        other = sp.csr_array(half.T)
        eigenvalues, basis = find_eigenvectors(
            lambda block: other @ (half @ block), len(small), width, is_positive=True
        )
        eigenvalues, count = np.sqrt(np.maximum(eigenvalues, 0)), len(eigenvalues)
        vectors[small, :count] = basis * np.float32(np.sqrt(0.5))
        inverse = np.sqrt(0.5) / np.where(eigenvalues > 0, eigenvalues, np.inf)
        vectors[large, :count] = (half @ basis) * inverse.astype(np.float32)
    values[:count] = np.maximum(eigenvalues, 0)
    return Spectrum(power, values, vectors, degrees)


def find_eigenvectors(
    multiply: Callable[[Rows], Rows], size: int, count: int, *, is_positive: bool = False
) -> tuple[NDArray[np.float64], Rows]:
    """Return the `count` largest eigenvalues of a symmetric matrix, descending, and their vectors.

    Subspace iteration, filtered by Chebyshev polynomials (Zhou, Saad, Tiago and Chelikowsky, J.
    Comput. Phys. 2006): a flat spectrum needs powers that plain subspace iterations do not reach.
    Many vectors are not iterated until they converge, which costs time and gains no score.

    Args:
        multiply: multiplies the matrix [size, size] by a block of vectors.
        size: at least 1.
        count: fewer are returned where the matrix is smaller.
        is_positive: no eigenvalue is negative; else none is below -1 times the largest one.

    Always starts from the same random vectors.
    """
    count = min(count, size)
    block = min(count + EXTRA_VECTORS, size)
    if size <= max(DENSE_SIZE, 5 * block):
        values, vectors = np.linalg.eigh(multiply(np.eye(size, dtype=np.float32)))
        return values[::-1][:count], np.ascontiguousarray(vectors[:, ::-1][:, :count], np.float32)
    random = np.random.default_rng(0).standard_normal((size, block)).astype(np.float32)
    ritz_pairs = _find_in_space(multiply, multiply(multiply(random)))
    num_products = 0
    while num_products < MAX_VECTORS / block:
        values, vectors, products = ritz_pairs
        residuals = products[:, :count] - vectors[:, :count] * values[:count]
        if np.linalg.norm(residuals, axis=0).max() <= TOLERANCE * values[0]:
            break
        lowest = 0.0 if is_positive else -float(values[0])
        filtered, degree = _filter(multiply, ritz_pairs, lowest)
        ritz_pairs = _find_in_space(multiply, filtered)
        num_products += degree
    return ritz_pairs[0][:count].astype(np.float64), np.ascontiguousarray(ritz_pairs[1][:, :count])


def _find_in_space(multiply: Callable[[Rows], Rows], block: Rows) -> tuple[Rows, Rows, Rows]:
    """Return eigenvalues in the space of a block's columns, descending, vectors and products.

    The vectors are orthonormal; the products are those with the matrix. By Cholesky factors of
    the scaled columns' products, half of a QR decomposition's time; by QR where they are nearly
    dependent.
    """
    block = block / np.linalg.norm(block, axis=0)
    gram = (block.T @ block).astype(np.float64)
    if np.linalg.eigvalsh(gram)[0] > MIN_INDEPENDENCE:
        block = block @ np.linalg.inv(np.linalg.cholesky(gram)).T.astype(np.float32)
    else:
        block = np.asarray(qr(block, mode="economic", check_finite=False)[0])
    products = multiply(block)
    values, vectors = np.linalg.eigh((block.T @ products).astype(np.float64))
    chosen = vectors[:, ::-1].astype(np.float32)
    return values[::-1].astype(np.float32), block @ chosen, products @ chosen


def _filter(
    multiply: Callable[[Rows], Rows], ritz_pairs: tuple[Rows, Rows, Rows], lowest: float
) -> tuple[Rows, int]:
    """Multiply vectors by a Chebyshev polynomial of the matrix; return them and its degree.

    It is at most 1 from `lowest` to the smallest of the values, and MAX_GAIN at the largest one.

    ritz_pairs: of _find_in_space.
    """
    values, before, products = ritz_pairs
    largest = float(values[0])
    half = max(float(values[-1]) - lowest, TOLERANCE * largest) / 2
    centre = lowest + half
    first = scale = half / (largest - centre)
    degree = int(np.clip(np.arccosh(MAX_GAIN) / np.arccosh(1 / first), 2, MAX_DEGREE))
    block: Rows = np.asarray((products - centre * before) * (scale / half), np.float32)
    for _ in range(degree - 1):
        next_scale = 1 / (2 / first - scale)
        after = multiply(block)
        after -= centre * block
        after *= 2 * next_scale / half
        after -= before * (scale * next_scale)
        before, block, scale = block, after, next_scale
    return block, degree


def _scale(rows: Rows, pairs: Ints) -> Rows:
    """Return rows [N, K] divided by sqrt(m) of the pairs; a copy where m is not positive."""
    ones = np.ones(len(pairs), np.float32)
    sums = sp.csr_array((ones, tuple(pairs.T)), shape=(len(rows), len(rows))) @ rows
    mean = float(np.einsum("nk,nk->n", sums, rows).mean()) * len(rows) / len(pairs)
    return rows / np.float32(np.sqrt(mean)) if mean > 0 else rows.copy()
