"""Adds reverse edges, removes repeated ones."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from partitioning.array_checks import Array, check_endpoints, expect
from partitioning.graph_data import Endpoints, GraphData, Relation


def split_pairs(edges: Array, where: str) -> tuple[Array, Array]:
    """Return sources and destinations of edges [E, 2]; InputError for another shape."""
    expect(edges.ndim == 2 and edges.shape[1] == 2, edges, where, "[edges, 2]")
    src, dst = np.ascontiguousarray(edges.T)
    return src, dst


def unique_edges(src: Array, dst: Array, num_nodes: int, where: str) -> tuple[Array, Array]:
    """Return sources and destinations of the distinct edges without self loops, int64.

    They are sorted by destination, then source. InputError for an end that is no node.
    """
    src, dst = (check_endpoints(ends, num_nodes, where) for ends in (src, dst))
    between = src != dst
    key = np.unique(dst[between].astype(np.int64) * num_nodes + src[between])
    return key % num_nodes, key // num_nodes


def add_reverse_edges(graph: GraphData) -> GraphData:
    """Add missing reverse edges, so that u -> v and v -> u occur equally often.

    No edge is removed, and duplicates stay. A self loop is its own reverse.
    """
    of_edges: dict[str, Any] = dict(graph.edge_data)
    if graph.edge_time is not None:
        of_edges["edge_time"] = graph.edge_time
    src, dst, added = _add_reverse(graph.src, graph.dst, of_edges, graph.num_nodes)
    return replace(graph, src=src, dst=dst, **added)


def reverse_too(relation: Relation, num_nodes: int) -> Relation:
    """Add to a relation between nodes of one type the reverse of each edge that has none."""
    src, dst, added = _add_reverse(relation.src, relation.dst, relation.edge_data, num_nodes)
    return replace(relation, src=src, dst=dst, **added)


def _add_reverse(
    src: Endpoints, dst: Endpoints, of_edges: Mapping[str, Any], num_nodes: int
) -> tuple[Endpoints, Endpoints, dict[str, Any]]:
    """Return sources, destinations and data of the edges with the missing reverse ones at the end.

    An edge that is there n times gets as many reverse ones, with its data.
    """
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
    return (
        np.concatenate([src, np.repeat(destinations, missing).astype(src.dtype)]),
        np.concatenate([dst, np.repeat(sources, missing).astype(dst.dtype)]),
        added,
    )
