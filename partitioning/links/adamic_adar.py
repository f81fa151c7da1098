"""Paths of two, whose sums answer beside a network (Adamic and Adar, "Friends and Neighbors on the Web", 2003).

    s(u, v) = sum over common neighbours z of  1 / (m log d(z))

Neighbours are ends of edges in any direction, of which d(z) are z's. m makes the sum of the two ends of a training pair
1 in the mean. Weights are whole numbers, in parts of ONE, so that a sum does not depend on its order.

N nodes, n pairs.
"""

import numpy as np
import scipy.sparse as sp

from partitioning.graph_data import GraphData
from partitioning.links.score_ranks import Floats, Ints

ONE = 1 << 16
SAMPLED = 10_000
"""Training pairs that m is the mean of, at most."""


def adjacency_of(graph: GraphData) -> sp.csr_array:
    """[N, N] ones between neighbours, without loops."""
    ends = np.concatenate((graph.src, graph.dst)), np.concatenate((graph.dst, graph.src))
    adjacency = sp.csr_array(
        (np.ones(len(ends[0])), ends), shape=(graph.num_nodes, graph.num_nodes)
    )
    adjacency.setdiag(0)
    adjacency.eliminate_zeros()
    adjacency.data[:] = 1
    return adjacency


def adamic_adar(adjacency: sp.csr_array) -> Floats:
    """1 / log d(z), [N]; 0 where there is one neighbour at most, which is no two nodes'."""
    degree = np.diff(adjacency.indptr)
    return np.where(degree > 1, 1 / np.log(np.maximum(degree, 2)), 0)


def weighted_neighbours(graph: GraphData, pairs: Ints) -> Ints:
    """int64 [E, 3] node, neighbour z, weight of z; none where no training pair, [n, 2], has a path of two."""
    if not len(pairs):
        return np.zeros((0, 3), np.int64)
    adjacency = adjacency_of(graph)
    weighted = sp.csr_array(adjacency @ sp.diags_array(adamic_adar(adjacency)))
    src, dst = np.random.default_rng(0).permutation(pairs)[:SAMPLED].T
    mean = float(adjacency[src].multiply(weighted[dst]).sum()) / len(src)
    listed = (weighted * (ONE / mean if mean else 0)).tocoo()
    rows = np.stack((listed.row, listed.col, np.rint(listed.data)), axis=1).astype(np.int64)
    return rows[rows[:, 2] > 0]
