"""Reads new nodes and their edges for a graph to predict (prediction_graph.py), and adds them.

N nodes, E edges, n new nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.errors import InputError, join_names
from partitioning.features.build import add_kinds, encode_nodes, to_array
from partitioning.features.drift import count_unusual
from partitioning.features.encoder import State, apply_pipeline, is_matrix, warn_of_unused
from partitioning.features.hetero_kinds import kinds_of
from partitioning.features.roles import asked_names, columns_of_relation, find_usual
from partitioning.graph.array_checks import check_dense, check_edge_weight
from partitioning.graph.graph_data import (
    DESTINATION,
    PLAIN_RELATION,
    PLAIN_TYPE,
    SEPARATOR,
    SOURCE,
    EdgeType,
    NodeTable,
    Relation,
    table_name,
)
from partitioning.graph.node_names import Names
from partitioning.graph.reverse_relations import REVERSE
from partitioning.graph.schema import Schema
from partitioning.graph.symmetry import add_missing_reverse
from partitioning.partition_settings import ColumnSettings
from partitioning.read.edge_tables import read_edges
from partitioning.read.node_tables import read_table
from partitioning.read.nodes import Nodes
from partitioning.read.objects import to_frame
from partitioning.read.raw import RawRelation, check_and_merge_edges, check_table
from partitioning.update.prediction_graph import PredictionGraph


@dataclass(frozen=True, eq=False)
class Addition:
    """New nodes with their edges, whose ends are positions in the grown graph."""

    nodes: dict[str, NodeTable]
    """By type, with encoded features; of types with new nodes."""
    relations: dict[EdgeType, Relation]
    """The new edges, also in reverse where the graph has reverse edges."""


def read_addition(
    graph: PredictionGraph, known: Mapping[str, Nodes], nodes: Any, edges: Any
) -> Addition:
    """Read new nodes and their edges; the log warns of columns that the model does not read.

    Args:
        graph: The graph that they join.
        known: Its nodes by type.
        nodes: A data frame with ids and features; with several types {TYPE: frame}.
        edges: A data frame of src and dst; with several types {(SOURCE, RELATION, DESTINATION):
            frame}. Each edge has a new node at one end.

    Raises:
        InputError: an id is not new or not known, a type or relation is unknown, an edge joins two
            known nodes, or a column is not as in training.
    """
    encoded = graph.encoded
    is_plain = encoded.is_plain
    for name, tables in (("nodes", nodes), ("edges", edges)):
        if isinstance(tables, Mapping) == is_plain:
            how = "one table" if is_plain else "a table by type, or relation"
            graph_kind = "plain" if is_plain else "heterogeneous"
            raise InputError(f"{name}: expected {how}: the graph is {graph_kind}")
    if is_plain:
        nodes, edges = {PLAIN_TYPE: nodes}, {PLAIN_RELATION: edges}
    added: dict[str, NodeTable] = {}
    grown = dict(known)
    for name, frame in nodes.items():
        if name not in encoded.nodes:
            raise InputError(
                f"nodes: no type {join_names([name])!r}; the graph has {join_names(encoded.nodes)}"
            )
        added[name], grown[name] = _new_nodes(graph, name, frame, known[name])
    relations: dict[EdgeType, Relation] = {}
    for edge_type, frame in edges.items():
        edge_type = tuple(edge_type)
        if edge_type not in encoded.relations:
            there = join_names(SEPARATOR.join(other) for other in encoded.relations)
            asked = join_names([SEPARATOR.join(map(str, edge_type))])
            raise InputError(f"edges: no relation {asked!r}; the graph has {there}")
        if len(frame):  # a table without rows may have no columns either
            relations[edge_type] = _new_edges(graph, edge_type, frame, known, grown)
    return Addition(added, _add_reverse(graph, relations, grown))


def read_further_edges(graph: PredictionGraph, known: Mapping[str, Nodes], frame: Any) -> Addition:
    """Read edges whose labels are predicted: new nodes, to which both their ends send.

    Their ids are numbers above the known ones, or `new NUMBER` where ids are names.

    Args:
        graph: The graph; its labelled edges are nodes.
        known: Its nodes by type.
        frame: A data frame of src, dst and the edges' own columns.

    Raises:
        InputError: the graph has no labelled edges, or the frame lacks src or dst; an end is no
            node of the graph; a column is not as in training.
    """
    encoded, columns = graph.encoded, graph.settings.columns
    if encoded.labelled_edges is None:
        raise InputError("edges: the model predicts nodes; give new nodes and their edges as new")
    taken = known[encoded.target]
    table = read_edges(
        to_frame(frame, "edges"),
        columns_of_relation(columns, encoded.labelled_edges),
        (known[encoded.labelled_edges[0]], known[encoded.labelled_edges[2]]),
        with_features=None,
        remedy="; attach a graph with this node",
    )
    numbers = np.empty(0, np.int64) if taken.ids is None or taken.named else taken.ids
    first = max(int(numbers.max(initial=-1)) + 1, taken.num_nodes)
    ids = [f"new {first + row}" if taken.named else first + row for row in range(len(frame))]
    id_name = (asked_names("id", columns) or ("id",))[0]
    if any(name is not None for name in frame.index.names):  # columns, as in other tables
        frame = frame.reset_index()
    frame = frame.rename(columns=lambda name: str(name).strip())
    assert table.schema is not None  # a frame has names of columns
    roles = table.schema.roles
    left = [*roles["src"], *roles["dst"], *find_usual("id", frame.columns), id_name]
    own = frame.drop(columns=left, errors="ignore").assign(**{id_name: ids})
    added, _ = _new_nodes(graph, encoded.target, own, taken)
    new = taken.num_nodes + np.arange(len(frame))
    relations = {
        encoded.from_ends[SOURCE]: Relation(table.src, new),
        encoded.from_ends[DESTINATION]: Relation(table.dst, new),
    }
    return Addition({encoded.target: added}, relations)


def _new_nodes(
    graph: PredictionGraph, name: str, frame: Any, known: Nodes
) -> tuple[NodeTable, Nodes]:
    """Return the new nodes of a type, with encoded features, and the known nodes with them.

    InputError for ids that are there already, or features that do not fit the model.
    """
    what = f"new nodes{name and f' of {name}'}"
    state = graph.stored.get(table_name(name))
    frame = to_frame(_without_unused(frame, state, graph.settings.columns, what), what)
    table = read_table(frame, graph.settings.columns)
    if table.ids is None:
        name = join_names(asked_names("id", graph.settings.columns) or ("id",), "`")
        raise InputError(f"{what}: no column of ids; give it as {name}")
    grown = known.extended(table.ids, table.ids_where, "ask for it by node_ids")
    assert grown.ids is not None
    names = Names.of(map(str, table.ids)) if known.named else None
    ids = grown.ids[known.num_nodes :]
    nodes = NodeTable(np.zeros((table.rows, 0), np.float32), ids, names)
    width = graph.encoded.nodes[name].features.shape[1]
    if width:
        values, _ = table.values.get("feat", (None, ""))
        raw, schema, featured = check_rows(values, table.schema, table.rows, width, state, what)
        nodes = replace(nodes, features=raw, schema=schema, featured=featured)
        kinds = kinds_of(graph.settings.features.kind, graph.encoded.nodes)[name]
        features, featured, _ = encode_nodes(nodes, graph.settings.features, None, kinds, state)
        if featured is not None and kinds == ("given",):
            raise InputError(
                f"{what}: {table.ids[int(featured.argmin())]} has no features; the model was"
                " trained with features=given: give it some"
            )
        nodes = replace(nodes, features=to_array(features), schema=None, featured=featured)
    return nodes, grown


def _without_unused(frame: Any, state: State | None, columns: ColumnSettings, what: str) -> Any:
    """Return a data frame of new nodes without the columns that the model does not read; warn.

    Reading a column of one node takes as long as one of a table, and there may be any number.
    Without a state by column the frame is returned as it is.
    """
    if state is None or is_matrix(state) or not hasattr(frame, "columns"):
        return frame
    names = [str(name).strip() for name in frame.columns]
    used = {column["name"] for column in state["columns"]} | {
        *asked_names("id", columns),
        *find_usual("id", names),
    }
    is_used = [name in used for name in names]
    left = [name for name, kept in zip(names, is_used, strict=True) if not kept]
    if left:
        warn_of_unused(what, left)
    return frame.loc[:, is_used]


def check_rows(
    values: Any, schema: Schema | None, num_rows: int, width: int, state: State | None, what: str
) -> tuple[NDArray[np.float32], Schema | None, NDArray[np.bool_] | None]:
    """Check the features of a later table, which a fitted pipeline is to encode.

    Args:
        values: The features of the table [n, W]; None: it has none.
        schema: Of the table; None: the features are a matrix.
        num_rows: n.
        width: Columns of the encoded features.
        state: The pipeline; None: the features of the graph are as they were given.
        what: The table, for messages.

    Returns:
        The features [n, W], their schema (None: without a pipeline), and [n] whether a row has some
        (None: all have).

    Raises:
        InputError: they have another width than a matrix in training, or wrong values.
    """
    values = np.zeros((num_rows, 0), np.float32) if values is None else values
    schema = replace(schema or Schema(what, ()), path=what)
    if state is None or is_matrix(state):
        if values.shape[1] != width:
            actual = f"{values.shape[1]} numbers in a row" if values.shape[1] else "no features"
            raise InputError(
                f"{what}: {actual}; the model was trained with {width}:"
                " give them as one column of lists, or as columns of numbers"
            )
        schema = Schema.of_matrix(what, width)
    where = f"{what}: features"
    checked, featured, checked_schema = check_table(values, schema, num_rows, lambda _: where)
    features = np.asarray(checked)
    if state is None:
        features, checked_schema = check_dense(features, num_rows, where), None
    return features, checked_schema, None if featured.all() else featured


def encode_later_rows(
    values: Any,
    schema: Schema | None,
    num_rows: int,
    width: int,
    state: State | None,
    what: str,
    unusual: dict[str, int] | None = None,
) -> NDArray[np.float32]:
    """Encode the features of a later table by a fitted pipeline, [n, F]; blank cells are filled.

    InputError for blank cells of a matrix, which was trained without. The log warns of further
    columns and unknown categories.

    Arguments and other errors as of `check_rows`, and unusual: counts by column of rows unlike
    those that the pipeline was fitted to; added to. None: they are not counted.
    """
    if not width:
        return np.zeros((num_rows, 0), np.float32)
    features, schema, featured = check_rows(values, schema, num_rows, width, state, what)
    if featured is not None and (state is None or is_matrix(state)):
        row = int(featured.argmin())
        raise InputError(f"{what}: row {row} is blank; the model was trained without blanks")
    if state is None or schema is None:
        return features
    encoded = apply_pipeline(state, features, schema)
    if unusual is not None:
        unusual.update(count_unusual(state, features, schema))
    return np.asarray(encoded.toarray(), np.float32)


def _new_edges(
    graph: PredictionGraph,
    edge_type: EdgeType,
    frame: Any,
    known: Mapping[str, Nodes],
    grown: Mapping[str, Nodes],
) -> Relation:
    """Read the new edges of a relation; ends become positions in the grown graph.

    Edges with an unknown end are dropped if edges.unknown=drop. InputError for an edge between two
    old nodes, or weights or features unlike the graph's.
    """
    relation, columns = graph.encoded.relations[edge_type], graph.settings.columns
    what = f"new edges{edge_type[1] and f' {SEPARATOR.join(edge_type)}'}"
    ends = grown[edge_type[0]], grown[edge_type[2]]
    if graph.links is not None:
        relation = replace(relation, edge_feat=None)
    table = read_edges(
        to_frame(frame, what),
        columns_of_relation(columns, edge_type),
        ends,
        drop_unknown=graph.settings.edges.unknown == "drop",
        with_features=relation.edge_feat is not None,
        remedy="; give it among the new nodes, or leave the edge out",
    )
    first = known[edge_type[0]].num_nodes, known[edge_type[2]].num_nodes
    between = (table.src < first[0]) & (table.dst < first[1])
    if between.any():
        raise InputError(
            f"{what}: row {int(between.argmax())} joins two nodes that are in the graph already;"
            " attach the changed graph instead"
        )
    if graph.settings.duplicates == "merge":
        src, dst, weight = check_and_merge_edges(
            table.src,
            table.dst,
            table.weight,
            ends[1].num_nodes,
            table.at("edge_weight"),
            merge=True,
        )
        if weight is None and table.weight is not None:  # all are 1
            weight = np.ones(len(src), np.float32)
        table = replace(table, src=src, dst=dst, weight=weight)
    state = graph.stored.get(table_name(edge_type))
    data: Any = read_edge_data(table, relation, state, columns, what)
    return Relation(table.src, table.dst, **data)


def read_edge_data(
    table: RawRelation,
    relation: Relation,
    state: State | None,
    columns: ColumnSettings,
    what: str,
    *,
    is_new: bool = True,
) -> dict[str, NDArray[np.float32]]:
    """Return weights and encoded features of later edges, by the names of EDGE_DATA.

    Args:
        table: The edges.
        relation: Edges of the graph, which the new ones have to be like.
        state: The pipeline of their features.
        columns: With the column of weights.
        what: The table, for messages.
        is_new: Whether all that the relation has is needed; else what the table lacks stays as it
            is, and has no entry.

    Raises:
        InputError: weights or features are missing, or are too many.
    """
    data: dict[str, NDArray[np.float32]] = {}
    num_edges, is_weighted = len(table.src), relation.edge_weight is not None
    if table.weight is not None:
        weight = check_edge_weight(table.weight, num_edges, table.at("edge_weight"))
        if weight is not None and not is_weighted:
            raise InputError(f"{what}: have weights, those of the graph have none; leave them out")
        if is_weighted:
            data["edge_weight"] = np.ones(num_edges, np.float32) if weight is None else weight
    elif is_weighted and is_new:
        raise InputError(
            f"{what}: no column `{columns.weight or 'weight'}`, and the edges of the graph have"
            " weights; add it, 1 for an edge that counts once"
        )
    if relation.edge_feat is not None and (table.feat is not None or is_new):
        width = relation.edge_feat.shape[1]
        data["edge_feat"] = encode_later_rows(
            table.feat, table.schema, num_edges, width, state, what
        )
    return data


def _add_reverse(
    graph: PredictionGraph, relations: dict[EdgeType, Relation], grown: Mapping[str, Nodes]
) -> dict[EdgeType, Relation]:
    """Return the new edges, and their reverse where the whole graph has reverse edges."""
    if graph.encoded.is_plain:
        if not graph.settings.symmetrize or PLAIN_RELATION not in relations:
            return relations
        count = grown[PLAIN_TYPE].num_nodes
        return {PLAIN_RELATION: add_missing_reverse(relations[PLAIN_RELATION], count)}
    with_reverse, known = dict(relations), graph.encoded.relations
    for edge_type, added in relations.items():
        back = edge_type[2], f"{REVERSE}{edge_type[1]}", edge_type[0]
        # One that was added shares its ends; another has its own edges.
        if back in known and known[back].src is known[edge_type].dst and back not in relations:
            with_reverse[back] = replace(added, src=added.dst, dst=added.src)
    return with_reverse


def grow(graph: PredictionGraph, added: Addition) -> PredictionGraph:
    """Return the graph with new nodes and edges, each after those of its type.

    Features that features.kind adds are made anew. Labels are all -1, and types with new nodes lose
    their names.
    """
    encoded = graph.encoded
    relations = {
        edge_type: _join_edges(relation, added.relations.get(edge_type))
        for edge_type, relation in encoded.relations.items()
    }
    nodes = {
        name: _join_nodes(table, added.nodes.get(name)) for name, table in encoded.nodes.items()
    }
    labels = np.full(nodes[encoded.target].num_nodes, -1, np.int64)
    encoded = replace(encoded, nodes=nodes, relations=relations, labels=labels)
    with_features = encoded if graph.keeps_features else add_kinds(encoded, graph.settings.features)
    return replace(graph, graph=with_features, encoded=encoded)


def _join_nodes(table: NodeTable, more: NodeTable | None) -> NodeTable:
    """Append new nodes to those of a type; names are dropped."""
    if more is None:
        return table
    features: Any
    if isinstance(table.features, sp.csr_array):
        features = sp.csr_array(sp.vstack([table.features, sp.csr_array(more.features)]))
    else:
        features = np.concatenate((table.features, np.asarray(more.features)))
    featured = None
    if table.featured is not None or more.featured is not None:
        masks = (
            np.ones(nodes.num_nodes, np.bool_) if nodes.featured is None else nodes.featured
            for nodes in (table, more)
        )
        featured = np.concatenate([*masks])
    ids = np.concatenate((table.node_ids, more.node_ids))
    return replace(table, features=features, node_ids=ids, featured=featured, node_names=None)


def _join_edges(relation: Relation, more: Relation | None) -> Relation:
    """Append new edges to those of a relation."""
    if more is None:
        return relation
    joined: Any = {
        name: np.concatenate((getattr(relation, name), getattr(more, name)))
        for name in ("src", "dst", "edge_weight", "edge_feat")
        if getattr(relation, name) is not None
    }
    return replace(relation, **joined)
