"""Adds reverse edges, removes repeated ones."""

from dataclasses import replace
from typing import Any

import numpy as np

from partitioning.array_checks import Array
from partitioning.graph_data import GraphData


def unique_edges(src: Array, dst: Array, num_nodes: int) -> tuple[Array, Array]:
    """Return the distinct edges, sorted by destination, without self loops; ends in [0, N)."""
    between = src != dst
    key = np.unique(dst[between].astype(np.int64) * num_nodes + src[between])
    return key % num_nodes, key // num_nodes


def add_reverse_edges(graph: GraphData) -> GraphData:
    """Add missing reverse edges, so that u -> v and v -> u occur equally often.

    No edge is removed, and duplicates stay. A self loop is its own reverse.
    """
    num_nodes = graph.num_nodes
    key = graph.src.astype(np.int64) * num_nodes + graph.dst
    pair, times = np.unique(key, return_counts=True)
    src, dst = np.divmod(pair, num_nodes)
    reverse = dst * num_nodes + src
    position = np.minimum(np.searchsorted(pair, reverse), max(len(pair) - 1, 0))
    present = np.where(pair[position] == reverse, times[position], 0)
    missing = np.maximum(times - present, 0)
    added: dict[str, Any] = {}
    of_edges: dict[str, Any] = dict(graph.edge_data)
    if graph.edge_time is not None:
        of_edges["edge_time"] = graph.edge_time
    if of_edges:  # a reverse edge copies the data of its edge
        copy = np.arange(graph.num_edges) - np.repeat(np.cumsum(times) - times, times)
        edge = np.argsort(key, kind="stable")[copy >= np.repeat(present, times)]
        added = {name: np.concatenate([data, data[edge]]) for name, data in of_edges.items()}
    return replace(
        graph,
        src=np.concatenate([graph.src, np.repeat(dst, missing).astype(graph.src.dtype)]),
        dst=np.concatenate([graph.dst, np.repeat(src, missing).astype(graph.dst.dtype)]),
        **added,
    )
