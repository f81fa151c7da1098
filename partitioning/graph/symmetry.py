"""Adds reverse edges, removes repeated ones."""

from dataclasses import replace
from typing import Any

import numpy as np

from partitioning.graph.array_checks import Array, check_endpoints
from partitioning.graph.graph_data import PLAIN_RELATION, GraphData, Relation


def unique_edges(src: Array, dst: Array, num_nodes: int, where: str) -> tuple[Array, Array]:
    """Return sources and destinations of the distinct edges without self loops, int64.

    They are sorted by destination, then source. InputError for an end that is no node.
    """
    src, dst = (check_endpoints(ends, num_nodes, where) for ends in (src, dst))
    between = src != dst
    key = np.unique(dst[between].astype(np.int64) * num_nodes + src[between])
    return key % num_nodes, key // num_nodes


def add_reverse_edges(graph: GraphData) -> GraphData:
    """Add missing reverse edges, see `add_missing_reverse`."""
    edges = add_missing_reverse(graph.edges, graph.num_nodes)
    return replace(graph, relations={PLAIN_RELATION: edges})


def add_missing_reverse(relation: Relation, num_nodes: int) -> Relation:
    """Add reverse edges at the end, so that u -> v and v -> u occur equally often.

    An edge that is there n times gets as many reverse ones, with its data and time. No edge is
    removed, and duplicates stay. A self loop is its own reverse.
    """
    src, dst = relation.src, relation.dst
    of_edges: dict[str, Any] = dict(relation.edge_data)
    if relation.edge_time is not None:
        of_edges["edge_time"] = relation.edge_time
    key = src.astype(np.int64) * num_nodes + dst
    pair, times = np.unique(key, return_counts=True)
    sources, destinations = np.divmod(pair, num_nodes)
    reverse = destinations * num_nodes + sources
    position = np.minimum(np.searchsorted(pair, reverse), max(len(pair) - 1, 0))
    present = np.where(pair[position] == reverse, times[position], 0)
    missing = np.maximum(times - present, 0)
    added: dict[str, Any] = {}
    if of_edges:  # a reverse edge copies the data of its edge
        copy = np.arange(len(key)) - np.repeat(np.cumsum(times) - times, times)
        edge = np.argsort(key, kind="stable")[copy >= np.repeat(present, times)]
        added = {name: np.concatenate([data, data[edge]]) for name, data in of_edges.items()}
    return replace(
        relation,
        src=np.concatenate([src, np.repeat(destinations, missing).astype(src.dtype)]),
        dst=np.concatenate([dst, np.repeat(sources, missing).astype(dst.dtype)]),
        **added,
    )
