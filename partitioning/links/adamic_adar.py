"""Scores of pairs by common neighbours (Adamic and Adar, "Friends and Neighbors on the Web", 2003).

    s(u, v) = sum over common neighbours z of  1 / (m log d(z))

d(z) is the number of neighbours of z, in either direction. m makes the mean score of the training
pairs 1. Weights are integers, multiples of 1 / ONE, so that a sum does not depend on its order.

N nodes, n pairs.
"""

import numpy as np
import scipy.sparse as sp

from partitioning.graph.graph_data import GraphData
from partitioning.links.score_ranks import Floats, Ints

ONE = 1 << 16
MAX_SAMPLED = 10_000
"""Training pairs from which m is computed, at most."""


def make_adjacency(graph: GraphData) -> sp.csr_array:
    """Return the undirected adjacency matrix [N, N] of ones, without self loops."""
    src, dst = graph.edges.src, graph.edges.dst
    ends = np.concatenate((src, dst)), np.concatenate((dst, src))
    adjacency = sp.csr_array(
        (np.ones(len(ends[0])), ends), shape=(graph.num_nodes, graph.num_nodes)
    )
    adjacency.setdiag(0)
    adjacency.eliminate_zeros()
    adjacency.data[:] = 1
    return adjacency


def adamic_adar(adjacency: sp.csr_array) -> Floats:
    """Return 1 / log d(z), [N]; 0 for fewer than two neighbours."""
    degree = np.diff(adjacency.indptr)
    return np.where(degree > 1, 1 / np.log(np.maximum(degree, 2)), 0)


def weighted_neighbours(graph: GraphData, pairs: Ints) -> Ints:
    """Return node, neighbour z and weight of z for each edge, int64 [E, 3].

    Weights are scaled so that the training pairs, a sample by a fixed seed, have a mean score of
    ONE. Edges whose weight is rounded to 0 are left out.

    Args:
        pairs: training pairs, int64 [n, 2]. The result is empty where none has a common neighbour.
    """
    if not len(pairs):
        return np.zeros((0, 3), np.int64)
    adjacency = make_adjacency(graph)
    weighted = sp.csr_array(adjacency @ sp.diags_array(adamic_adar(adjacency)))
    src, dst = np.random.default_rng(0).permutation(pairs)[:MAX_SAMPLED].T
    mean = float(adjacency[src].multiply(weighted[dst]).sum()) / len(src)
    entries = (weighted * (ONE / mean if mean else 0)).tocoo()
    rows = np.stack((entries.row, entries.col, np.rint(entries.data)), axis=1).astype(np.int64)
    return rows[rows[:, 2] > 0]
