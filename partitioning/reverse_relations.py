"""Reverse relations, so that what is at a source hears of its destinations, too."""

import logging

import numpy as np
from numpy.typing import NDArray

from partitioning.graph_data import EdgeType, HeteroGraphData, Relation

log = logging.getLogger(__name__)

REVERSE = "rev_"
"""Before the name of a relation that was added, as PyG's ToUndirected names it."""


def with_reverse(graph: HeteroGraphData) -> HeteroGraphData:
    """Add the reverse (d, rev_NAME, s) of every relation (s, NAME, d) that has none yet.

    One of a type with itself that is as it is backwards gets none, nor one beside which another relation has the same
    edges backwards. PyG adds the edges of a relation of a type with itself to the relation; here they get their own.
    """
    relations, told = dict(graph.relations), []
    for each, relation in graph.relations.items():
        back = each[2], f"{REVERSE}{each[1]}", each[0]
        if back in relations or (
            each[1].startswith(REVERSE)
            and (each[2], each[1].removeprefix(REVERSE), each[0]) in relations
        ):
            continue
        twin = _twin(graph, each)
        if twin is None:
            relations[back] = Relation(relation.dst, relation.src, relation.edge_weight)
            log.info("relation %s: added, the reverse of %s", "__".join(back), "__".join(each))
        else:
            told.append(
                f"{'__'.join(each)} ({'it is symmetric' if twin == each else '__'.join(twin)})"
            )
    if told:
        log.warning("relations that get no reverse one, it is there: %s", ", ".join(told))
    return HeteroGraphData(**{**vars(graph), "relations": relations})


def _twin(graph: HeteroGraphData, each: EdgeType) -> EdgeType | None:
    """The relation, maybe itself, that has the same edges backwards."""
    wanted = None
    for other, relation in graph.relations.items():
        if (other[0], other[2]) == (each[2], each[0]) and relation.num_edges == graph.relations[
            each
        ].num_edges:
            if wanted is None:
                wanted = _pairs(graph, each, graph.relations[each].dst, graph.relations[each].src)
            if np.array_equal(wanted, _pairs(graph, other, relation.src, relation.dst)):
                return other
    return None


def _pairs(
    graph: HeteroGraphData, each: EdgeType, src: NDArray[np.int64], dst: NDArray[np.int64]
) -> NDArray[np.int64]:
    number = max(graph.nodes[each[0]].num_nodes, graph.nodes[each[2]].num_nodes)
    return np.sort(src.astype(np.int64) * number + dst)
