"""Makes the kinds of features of `features.kind`. Several kinds are concatenated.

    given         features of the data; zeros for nodes without features
    degree        log(1 + d) of in-degree and out-degree, without self loops
    random        WIDTH numbers drawn from a hash of the node id (random_rows.py)
    positional    WIDTH numbers, FastRP (Chen et al., CIKM 2019, eq. 6, beta = 0): random rows are
                  averaged over neighbours in both directions HOPS times; the normalised averages
                  are added
    neighbours    features of the data; nodes without features get the mean of their in-neighbours,
                  hop by hop

N nodes, F features.
"""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.features.random_rows import random_rows
from partitioning.graph.graph_data import PLAIN_TYPE, Endpoints, Features, GraphData

log = logging.getLogger(__name__)

WIDTH, HOPS = 128, 8
"""Best on Cora and PubMed among 4 and 8 hops, 64 and 128 numbers, degree powers 0, -0.5 and -0.9.
"""
Rows = NDArray[np.float32]


def with_features(graph: GraphData, kinds: tuple[str, ...]) -> GraphData:
    """Return the graph with features of these kinds side by side.

    The log tells that features of the data are not used. InputError if a node gets none.
    """
    if kinds == ("given",):
        if graph.target_nodes.featured is not None:
            _refuse_missing(graph)
        return graph
    if graph.num_features and not {"given", "neighbours"} & set(kinds):
        log.info(
            "features=%s: the %d features of the data are not used",
            ",".join(kinds),
            graph.num_features,
        )
    blocks = [block for kind in kinds if (block := _MADE[kind](graph)).shape[1]]
    if not blocks:
        _refuse_missing(graph)
    sparse = any(isinstance(block, sp.csr_array) for block in blocks)
    together = sp.csr_array(sp.hstack(list(map(sp.csr_array, blocks))))
    features = together if sparse else together.toarray()
    nodes = {PLAIN_TYPE: replace(graph.target_nodes, features=features, featured=None)}
    return replace(graph, nodes=nodes, features_of_ids=kinds == ("random",))


def _refuse_missing(graph: GraphData) -> None:
    """Raise InputError: how many nodes have no features, and settings that give them some."""
    featured = graph.target_nodes.featured
    assert featured is not None
    number = int((~featured).sum())
    if number == graph.num_nodes:
        raise InputError(
            f"{graph.name}: no node has features; set features=degree, features=positional or"
            " features=random, or a list of them (docs/data.md)"
        )
    first = graph.target_nodes.shown_id(int(featured.argmin()))
    raise InputError(
        f"{graph.name}: {number} of {graph.num_nodes} nodes have no features, node {first} for"
        " instance; set features=neighbours (the mean of their neighbours'), or"
        " features=[given,degree]"
    )


def _ends_between(graph: GraphData) -> tuple[Endpoints, Endpoints]:
    """Return destinations and sources of the edges that are no self loops, [E']."""
    src, dst = graph.edges.src, graph.edges.dst
    return dst[src != dst], src[src != dst]


def _edges_between(graph: GraphData) -> sp.csr_array:
    """Return the adjacency matrix [N, N]: the number of edges at (dst, src), without self loops."""
    ends = _ends_between(graph)
    return sp.csr_array((np.ones(len(ends[0]), np.float32), ends), shape=(graph.num_nodes,) * 2)


def _degree(graph: GraphData) -> Rows:
    """Return log(1 + d) of in-degree and out-degree, [N, 2]."""
    counts = [np.bincount(ends, minlength=graph.num_nodes) for ends in _ends_between(graph)]
    return np.log1p(np.stack(counts, axis=1)).astype(np.float32)


def _random(graph: GraphData) -> Rows:
    """Return random features that depend on the node's id alone, [N, WIDTH]."""
    return random_rows(graph.node_ids, WIDTH)


def positional(graph: GraphData) -> Rows:
    """Return the random rows of FastRP, [N, WIDTH]; they depend on the nodes' ids and edges alone.

    They are averaged over neighbours, normalised and added up over HOPS hops.
    """
    edges = _edges_between(graph)
    edges = sp.csr_array(edges + edges.T)
    degree = np.maximum(np.asarray(edges.sum(axis=1)), 1).astype(np.float32)[:, None]
    rows: NDArray[Any] = random_rows(graph.node_ids, WIDTH)
    total = np.zeros_like(rows)
    for _ in range(HOPS):
        rows = (edges @ rows) / degree
        total += rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return total


def _given(graph: GraphData) -> Features:
    """Return the features of the data."""
    return graph.features


def _neighbours(graph: GraphData) -> Features:
    """Return the features; nodes without any get their in-neighbours' mean, hop by hop.

    Those are the nodes not `featured`, and of sparse features those with an empty row.
    Nodes that no features reach get zeros, with a warning.
    """
    given, featured = graph.features, graph.target_nodes.featured
    known = np.ones(graph.num_nodes, np.bool_) if featured is None else featured.copy()
    rows, edges = sp.csr_array(given), _edges_between(graph)
    if isinstance(given, sp.csr_array):
        known &= np.diff(rows.indptr) > 0
    while True:
        count = edges @ known.astype(np.float32)
        new = ~known & (count > 0)
        if not new.any():
            break
        mean = sp.diags_array(np.where(new, 1 / np.maximum(count, 1), 0).astype(np.float32))
        rows = sp.csr_array(rows + mean @ (edges @ rows))
        known |= new
    if not known.all():
        log.warning(
            "features=neighbours: no node with features reaches %d nodes, which get zeros",
            (~known).sum(),
        )
    return rows if isinstance(given, sp.csr_array) else rows.toarray()


_MADE = {
    "given": _given,
    "degree": _degree,
    "random": _random,
    "positional": positional,
    "neighbours": _neighbours,
}
