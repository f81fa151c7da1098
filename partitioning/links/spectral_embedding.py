"""Spectral embeddings of nodes from the training pairs' graph; their products score pairs.

    M = D^-a A D^-a
    p = V_K S_K / sqrt(m)

A has a one for each training pair, in both directions, D are its degrees, and S_K, V_K the K
largest eigenvalues of M and their vectors. m makes the mean product of the training pairs 1. For
users and items this is a truncated singular value decomposition (PureSVD; Cremonesi, Koren and
Turrin, RecSys 2010), with the normalisation of spectral clustering (a = 1/2) or less of it. The
products are those of M M, that is, paths of two edges: M itself gives small eigenvalues, which are
noise, too much weight. Validation pairs choose a and K: few columns describe communities, many
describe single neighbours.

N nodes, n pairs, K columns.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import qr

from partitioning.links.score_ranks import (
    Ints,
    measure_ranks,
    possible_destinations,
    rank_rows,
)
from partitioning.node_split import SPLITS

POWERS = (0.25, 0.375, 0.5)
"""Tried values of a."""
WIDTH_DIVISORS = (1, 2, 4)
"""K is the given width divided by one of these."""
MAX_RANKED = 1000
"""Validation pairs that are ranked to choose a and K, at most."""
MAX_SCORES = 1 << 30
"""Scores of validation pairs, at most; fewer pairs are ranked in a larger graph."""
NUM_ITERATIONS = 5
"""Subspace iterations (Halko, Martinsson and Tropp 2011), each with M M."""


def choose_spectral_embedding(
    rows: Mapping[str, Ints], num_nodes: int, width: int
) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Return the embedding [N, K] of the a and K that rank the validation pairs best, and both.

    Without validation pairs it is the first a and the whole width.

    Args:
        rows: LinkSplit.rows.
        width: K, at most.
    """
    every = np.concatenate([rows[name] for name in SPLITS]).T
    known = sp.csr_array(
        (np.ones(every.shape[1], np.bool_), tuple(every)), shape=(num_nodes, num_nodes)
    )
    val = np.random.default_rng(0).permutation(rows["val"])[
        : min(MAX_RANKED, 1 + MAX_SCORES // max(1, num_nodes))
    ]
    destinations = possible_destinations(rows, num_nodes)
    best, chosen = np.zeros((num_nodes, 0), np.float32), {"spectral": 0, "spectral_mrr": -1.0}
    for power in POWERS[: len(POWERS) if len(val) else 1] if width else ():
        whole = spectral_rows(rows["train"], num_nodes, width, power)
        for columns in [width // share for share in WIDTH_DIVISORS if width >= share]:
            embedding, mrr = _scale(whole[:, :columns], rows["train"]), 0.0
            if len(val):

                def scores(
                    nodes: Ints, rows: NDArray[np.float32] = embedding
                ) -> NDArray[np.float32]:
                    return rows[nodes] @ rows[destinations].T

                found, *_ = rank_rows(scores, val, known, destinations)
                mrr = measure_ranks(val[:, 0], found)["mrr"]
            if mrr > chosen["spectral_mrr"]:
                best, chosen = (
                    embedding,
                    {"spectral": columns, "spectral_power": power, "spectral_mrr": mrr},
                )
    return best, chosen


def spectral_rows(pairs: Ints, num_nodes: int, width: int, power: float) -> NDArray[np.float32]:
    """Return the leading eigenvectors of D^-a A D^-a scaled by their eigenvalues, float32 [N, K].

    Columns beyond the positive eigenvalues are zeros.

    Args:
        pairs: training pairs, int64 [n, 2].
        power: a.
    """
    made = np.zeros((num_nodes, width), np.float32)
    # In a bipartite graph the negative of each eigenvalue is an eigenvalue, too.
    num_vectors = min(2 * width + 8, num_nodes)
    ends = np.concatenate((pairs, pairs[:, ::-1])).T
    adjacency = sp.csr_array(
        (np.ones(ends.shape[1], np.float32), tuple(ends)), shape=(num_nodes, num_nodes)
    )
    adjacency.data[:] = 1
    scale = sp.diags_array(np.maximum(adjacency.sum(axis=1), 1).astype(np.float32) ** -power)
    matrix = sp.csr_array(scale @ adjacency @ scale)
    basis = np.random.default_rng(0).standard_normal((num_nodes, num_vectors)).astype(np.float32)
    for _ in range(NUM_ITERATIONS):
        basis = matrix @ (matrix @ basis)
        # SciPy's QR keeps float32, NumPy's computes in float64.
        basis = qr(basis, overwrite_a=True, mode="economic", check_finite=False)[0]
    values, vectors = np.linalg.eigh(basis.T @ (matrix @ basis))
    values, vectors = np.maximum(values[::-1][:width], 0), vectors[:, ::-1][:, :width]
    made[:, : len(values)] = (basis @ vectors) * values
    return made


def _scale(rows: NDArray[np.float32], pairs: Ints) -> NDArray[np.float32]:
    """Divide rows [N, K] by sqrt(m)."""
    mean = float((rows[pairs[:, 0]] * rows[pairs[:, 1]]).sum(axis=1).mean())
    return rows / np.float32(np.sqrt(mean)) if mean > 0 else rows.copy()
