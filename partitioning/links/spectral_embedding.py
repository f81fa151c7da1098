"""Embeddings of nodes by the graph of the training pairs alone, whose products answer beside a network.

    M = D^-a A D^-a        p = V_K S_K / sqrt(m)

A has a one for each training pair, in both directions, D are its degrees, and S_K, V_K the K largest eigenvalues of M
and their vectors. m makes the product of the two ends of a training pair 1 in the mean. Of a user and an item this is a
truncated singular value decomposition (PureSVD; Cremonesi, Koren and Turrin, RecSys 2010), normalised as in spectral
clustering (a = 1/2), or less. Products are those of M M, paths of two: with M itself the small eigenvalues, which are
noise about single pairs, count too much. Validation pairs choose a and K: few columns tell of communities and tastes,
many of single neighbours.

N nodes, n pairs, K columns.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import qr

from partitioning.links.score_ranks import Ints, of_ranks, ranks
from partitioning.node_split import PARTS

POWERS = (0.25, 0.375, 0.5)
"""a"""
SHARES = (1, 2, 4)
"""What the width is divided by."""
RANKED = 1000
"""Validation pairs that choose, each ranked among all nodes."""
MAX_CELLS = 1 << 30
"""Scores beyond which fewer pairs are ranked."""
STEPS = 5
"""Of the subspace iteration (Halko, Martinsson and Tropp 2011), each with M M."""


def best_spectral(
    rows: Mapping[str, Ints], num_nodes: int, width: int
) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """p of the a and the K, `width` at most, that rank validation pairs best; and which these are.

    rows: int64 [n, 2] by set, as of a LinkSplit. Without validation pairs the first a and the whole width.
    """
    every = np.concatenate([rows[part] for part in PARTS]).T
    known = sp.csr_array(
        (np.ones(every.shape[1], np.bool_), tuple(every)), shape=(num_nodes, num_nodes)
    )
    val = np.random.default_rng(0).permutation(rows["val"])[
        : min(RANKED, 1 + MAX_CELLS // max(1, num_nodes))
    ]
    best, chosen = np.zeros((num_nodes, 0), np.float32), {"spectral": 0, "spectral_mrr": -1.0}
    for power in POWERS[: len(POWERS) if len(val) else 1] if width else ():
        whole = spectral_rows(rows["train"], num_nodes, width, power)
        for columns in [width // share for share in SHARES if width >= share]:
            made, mrr = _scaled(whole[:, :columns], rows["train"]), 0.0
            if len(val):

                def scores(nodes: Ints, made: NDArray[np.float32] = made) -> NDArray[np.float32]:
                    return made[nodes] @ made.T

                found, _ = ranks(scores, val, known, rows["candidates"][:, 0])
                mrr = of_ranks(found)["mrr"]
            if mrr > chosen["spectral_mrr"]:
                best, chosen = (
                    made,
                    {"spectral": columns, "spectral_power": power, "spectral_mrr": mrr},
                )
    return best, chosen


def spectral_rows(pairs: Ints, num_nodes: int, width: int, power: float) -> NDArray[np.float32]:
    """V_K S_K, [N, K]; pairs: int64 [n, 2]. Zeros where K is more than there are eigenvalues above 0."""
    made = np.zeros((num_nodes, width), np.float32)
    wanted = min(
        2 * width + 8, num_nodes
    )  # an eigenvalue of a bipartite graph has its negative beside it
    ends = np.concatenate((pairs, pairs[:, ::-1])).T
    adjacency = sp.csr_array(
        (np.ones(ends.shape[1], np.float32), tuple(ends)), shape=(num_nodes, num_nodes)
    )
    adjacency.data[:] = 1
    scale = sp.diags_array(np.maximum(adjacency.sum(axis=1), 1).astype(np.float32) ** -power)
    matrix = sp.csr_array(scale @ adjacency @ scale)
    basis = np.random.default_rng(0).standard_normal((num_nodes, wanted)).astype(np.float32)
    for _ in range(STEPS):
        basis = matrix @ (matrix @ basis)
        basis = qr(basis, overwrite_a=True, mode="economic", check_finite=False)[
            0
        ]  # NumPy's would make it in float64
    values, vectors = np.linalg.eigh(basis.T @ (matrix @ basis))
    values, vectors = np.maximum(values[::-1][:width], 0), vectors[:, ::-1][:, :width]
    made[:, : len(values)] = (basis @ vectors) * values
    return made


def _scaled(rows: NDArray[np.float32], pairs: Ints) -> NDArray[np.float32]:
    """Rows [N, K] divided by sqrt(m)."""
    mean = float((rows[pairs[:, 0]] * rows[pairs[:, 1]]).sum(axis=1).mean())
    return rows / np.float32(np.sqrt(mean)) if mean > 0 else rows.copy()
