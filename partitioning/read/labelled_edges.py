"""Edges with labels become nodes of a type of their own, to which both their ends send.

    (SOURCE, "source", EDGE) and (DESTINATION, "destination", EDGE)

An edge is then learned as a node is. Its features are the edge's own columns. It sends to nobody,
so its label reaches no other edge. Its relation stays, for messages between the ends: without the
validation and test edges, unless task.message_edges=all.

E edges of the relation.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError, join_names
from partitioning.graph.array_checks import Array, Ints
from partitioning.graph.graph_data import (
    DESTINATION,
    PLAIN_RELATION,
    SEPARATOR,
    SOURCE,
    EdgeType,
    GraphData,
    is_relation,
)
from partitioning.graph.reverse_relations import add_reverse_relations
from partitioning.graph.schema import Source
from partitioning.partition_settings import DatasetSettings
from partitioning.read.array_files import read_arrays
from partitioning.read.node_tables import join_tables, read_table
from partitioning.read.nodes import Nodes
from partitioning.read.raw import RawGraph, RawNodes, RawRelation

log = logging.getLogger(__name__)

NODE, EDGE = "node", "edge"
"""Type of the nodes and the relation of a plain graph that becomes one with types."""
OF_LABELLED = {"edge_label": "label", "edge_id": "node_id"} | {
    f"edge_{name}_mask": f"{name}_mask" for name in ("train", "val", "test")
}
AS_NODES = OF_LABELLED | {"edge_feat": "feat", "edge_time": "time"}
"""Names of arrays of edges, and of those of nodes that they become."""


def find_labelled(relations: Mapping[EdgeType, bool], settings: DatasetSettings) -> EdgeType:
    """Find the relation whose edges have labels: the one that task.relation names, or the only one.

    Args:
        relations: Whether each relation has labels.
        settings: With task.relation; without a split there need not be labels.

    Raises:
        InputError: there is none, or several; or settings do not go with labels of edges.
    """
    for name, wrong in (
        ("duplicates=merge", settings.duplicates == "merge"),
        (f"columns.relation={settings.columns.relation}", settings.columns.relation is not None),
    ):
        if wrong:
            raise InputError(
                f"{name}: not with labels of edges, each of which is learned by itself"
            )
    asked = settings.task.relation
    names = {each: SEPARATOR.join(_named(each)) for each in relations}
    matching = [edge_type for edge_type, name in names.items() if is_relation(asked, name)]
    if asked is None:
        matching = [edge_type for edge_type, has_labels in relations.items() if has_labels]
        if settings.is_unlabelled and len(relations) == 1:
            matching = list(relations)
    if len(matching) != 1:
        there = join_names(names[edge_type] for edge_type in matching or relations)
        if asked is not None:
            found = "several relations have" if matching else "no relation has"
            raise InputError(f"task.relation={asked}: {found} this name; choose one of {there}")
        raise InputError(
            f"several relations have labels of edges: {there}; choose one by task.relation"
            if matching
            else "no relation has labels of edges, a column `label` (columns.label=NAME for"
            f" another) or an array edge_label: {there}; add the labels"
        )
    if not (settings.is_unlabelled or relations[matching[0]]):
        raise InputError(
            f"task.relation={asked}: its edges have no labels: add a column `label`"
            " (columns.label=NAME for another), or an array edge_label"
        )
    return matching[0]


def read_edge_nodes(
    table: Source, relation: RawRelation, settings: DatasetSettings
) -> tuple[RawNodes, Nodes]:
    """Read the rows of a table of edges as nodes, and return also what finds these by their ids.

    Args:
        table: The table.
        relation: Its edges; the columns of ends and weights are no features.
        settings: How it is read.

    Raises:
        InputError: edges with an unknown end were dropped, or the table cannot be read.
    """
    if isinstance(table, Path) and table.suffix == ".npz":
        raw = take_edge_arrays(table, read_arrays(table, ("src", *AS_NODES), warn=False))
        return raw, Nodes(raw.num_nodes, raw.node_id, grows=False)
    roles = {} if relation.schema is None else relation.schema.roles
    skip = [name for role in ("src", "dst", "weight") for name in roles.get(role, ())]
    edge_table = read_table(table, settings.columns, skip=skip, regression=settings.task.regression)
    if not edge_table.values and edge_table.ids is None:
        edge_table = replace(edge_table, rows=len(relation.src))  # it has the ends alone
    if edge_table.rows != len(relation.src):
        raise InputError(
            f"{table}: {edge_table.rows - len(relation.src)} of {edge_table.rows} edges have an end"
            " that is no node, which labels of edges cannot have: take these rows out"
        )
    nodes = Nodes(edge_table.rows, edge_table.ids, grows=False, where=edge_table.ids_where)
    return join_tables([edge_table], nodes), nodes


def take_edge_arrays(path: Path, arrays: Mapping[str, Array]) -> RawNodes:
    """Take the arrays of labelled edges as those of nodes (AS_NODES), one node per edge.

    Raises:
        InputError: an array has not as many rows as `src`.
    """
    of_nodes = {of_node: arrays[name] for name, of_node in AS_NODES.items() if name in arrays}
    where = {of_node: f"{path}: array `{name}`" for name, of_node in AS_NODES.items()}
    count = len(arrays["src"])
    for name, array in of_nodes.items():
        if np.shape(array)[:1] != (count,):
            raise InputError(
                f"{where[name]} has {len(np.atleast_1d(array))} rows; expected {count}, one per"
                " edge"
            )
    return replace(RawNodes.of_arrays(path, of_nodes, count), where=where)


def with_edge_nodes(
    raw: RawGraph, labelled: EdgeType, edges: RawNodes, settings: DatasetSettings
) -> RawGraph:
    """Return the graph with a relation's edges also as nodes, and relations to these from the ends.

    Their type has the relation's name, or NAME_edge if a type has it; those of a plain graph are
    named `node` and `edge`. InputError if nodes have labels, or settings.target is another type.
    """
    for name, table in raw.nodes.items():
        if "label" in table.values:
            raise InputError(
                f"{table.at('label')}: labels of nodes{name and f' {name}'}, and {edges.path} has"
                " those of edges; rename or take out the one that is not learned, or set"
                " task=node_classification"
            )
    nodes = {name or NODE: table for name, table in raw.nodes.items()}
    relations = {_named(name): relation for name, relation in raw.relations.items()}
    source, name, destination = _named(labelled)
    target = name if name not in nodes else f"{name}_{EDGE}"
    if settings.target not in (None, target):
        raise InputError(
            f"target={settings.target}: not with labels of edges, each of which is learned by"
            " itself; leave it out"
        )
    ends = relations[source, name, destination]
    number = np.arange(edges.num_nodes)
    for end, kind, rows in ((source, SOURCE, ends.src), (destination, DESTINATION, ends.dst)):
        relations[end, kind, target] = RawRelation(ends.path, rows, number)
    return RawGraph(raw.name, nodes | {target: edges}, relations, (source, name, destination))


def _named(edge_type: EdgeType) -> EdgeType:
    """Return a relation with names; the one of a plain graph has none."""
    return (NODE, EDGE, NODE) if edge_type == PLAIN_RELATION else edge_type


def choose_message_edges(
    graph: GraphData, settings: DatasetSettings, held_out: NDArray[np.bool_] | None = None
) -> GraphData:
    """Choose the edges that carry messages, and add reverse relations if the settings do.

    With task.message_edges=train the held-out edges carry none, with a split by time those later
    than the last training edge, else all do; a warning counts those left out.

    Args:
        graph: A graph whose relation of labelled edges has all of them; another stays as it is.
        settings: With task.message_edges and relations.reverse.
        held_out: [E] validation and test edges; None: there is no split.
    """
    if graph.labelled_edges is None:
        return graph
    relation, relations = graph.relations[graph.labelled_edges], dict(graph.relations)
    if held_out is not None and settings.task.message_edges == "train":
        kept = ~held_out
    elif held_out is not None and settings.split.kind == "time":
        assert graph.node_time is not None
        kept = graph.node_time <= graph.node_time[~held_out].max(initial=-np.inf)
    else:
        kept = np.ones(relation.num_edges, np.bool_)
    if not kept.all():
        log.warning(
            "%s: %d of %d edges carry no messages: validation and test edges"
            " (task.message_edges=%s)",
            SEPARATOR.join(graph.labelled_edges),
            int((~kept).sum()),
            len(kept),
            settings.task.message_edges,
        )
    relations[graph.labelled_edges] = relation.take(np.flatnonzero(kept))
    graph = replace(graph, relations=relations)
    return add_reverse_relations(graph) if settings.relations.reverse else graph


def sources_of(graph: GraphData) -> Ints | None:
    """Return the position of each labelled edge's source, int64 [E]; None without such edges."""
    if graph.labelled_edges is None:
        return None
    return graph.relations[graph.from_ends[SOURCE]].src.astype(np.int64)
