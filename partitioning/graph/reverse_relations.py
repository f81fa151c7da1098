"""Adds the reverse of each relation to a heterogeneous graph, so that messages pass both ways."""

import logging
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from partitioning.graph.graph_data import EdgeType, GraphData

log = logging.getLogger(__name__)

REVERSE = "rev_"
"""Prefix of added relations, as in PyG's ToUndirected."""


def add_reverse_relations(graph: GraphData) -> GraphData:
    """Add the reverse (d, rev_NAME, s) of every relation (s, NAME, d) that has none yet.

    Its edges have the weights, features and times of the relation's. The log names what is added,
    and what has a reverse already.

    A symmetric relation of a type with itself gets none, nor does a relation whose reversed edges
    are another relation already, or one that leads to labelled edges, which send nothing. PyG adds
    the reversed edges of a relation of a type with itself to that relation; here they become a
    relation of their own.
    """
    relations, skipped = dict(graph.relations), []
    for edge_type, relation in graph.relations.items():
        if graph.labelled_edges is not None and edge_type[2] == graph.target:
            continue  # a labelled edge sends to nobody
        back = edge_type[2], f"{REVERSE}{edge_type[1]}", edge_type[0]
        if back in relations or (
            edge_type[1].startswith(REVERSE)
            and (edge_type[2], edge_type[1].removeprefix(REVERSE), edge_type[0]) in relations
        ):
            continue
        reverse = _find_reverse(graph, edge_type)
        if reverse is None:
            relations[back] = replace(relation, src=relation.dst, dst=relation.src)
            log.info("relation %s: added, the reverse of %s", "__".join(back), "__".join(edge_type))
        else:
            skipped.append(
                f"{'__'.join(edge_type)}"
                f" ({'it is symmetric' if reverse == edge_type else '__'.join(reverse)})"
            )
    if skipped:
        log.warning("relations without an added reverse, because it exists: %s", ", ".join(skipped))
    return replace(graph, relations=relations)


def _find_reverse(graph: GraphData, edge_type: EdgeType) -> EdgeType | None:
    """Return the relation, maybe itself, that has the same edges reversed.

    Returns None where there is none.
    """
    reverse = None
    for other, relation in graph.relations.items():
        if (other[0], other[2]) == (
            edge_type[2],
            edge_type[0],
        ) and relation.num_edges == graph.relations[edge_type].num_edges:
            if reverse is None:
                reverse = _sort_pairs(
                    graph, edge_type, graph.relations[edge_type].dst, graph.relations[edge_type].src
                )
            if np.array_equal(reverse, _sort_pairs(graph, other, relation.src, relation.dst)):
                return other
    return None


def _sort_pairs(
    graph: GraphData, edge_type: EdgeType, src: NDArray[np.int64], dst: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the edges as sorted numbers, to compare them with those of another relation."""
    number = max(graph.nodes[edge_type[0]].num_nodes, graph.nodes[edge_type[2]].num_nodes)
    return np.sort(src.astype(np.int64) * number + dst)
