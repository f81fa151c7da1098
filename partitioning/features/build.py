"""Makes the features of a loaded graph: encodes its tables, adds the kinds of `features.kind`."""

import glob
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError, join_names
from partitioning.features.encoder import (
    EncodedFeatures,
    State,
    apply_pipeline,
    fit_pipeline,
    is_identity,
    warn_of_unused,
)
from partitioning.features.hetero_kinds import kinds_of
from partitioning.features.hetero_kinds import with_features as with_features_by_type
from partitioning.features.kinds import with_features
from partitioning.features.roles import MissingColumn
from partitioning.graph.graph_data import (
    PLAIN_RELATION,
    PLAIN_TYPE,
    Features,
    GraphData,
    NodeTable,
    table_name,
)
from partitioning.graph.schema import Rows, Schema
from partitioning.partition_settings import ColumnSettings, FeatureSettings
from partitioning.thread_pool import BLOCK

log = logging.getLogger(__name__)

Read = TypeVar("Read")
Mask = NDArray[np.bool_]
STORED_ROLES = ("numeric", "categorical", "date")
"""Roles of feature columns that a stored pipeline fixes when a later table is read."""
FITTED_ROLES = (*STORED_ROLES, "weight")
"""Roles whose columns a later table needs."""
NAMED_ROLES = ("id", "src", "dst", "weight", "relation")
"""Roles of other columns that it fixes, too."""
States = dict[str, State]
"""Fitted pipelines by the names of their tables: nodes and edges; with several types
nodes/TYPE and edges/SOURCE__RELATION__DESTINATION."""


def make_features(
    graph: GraphData, settings: FeatureSettings, train: Mask | None, stored: States | None = None
) -> tuple[GraphData, States]:
    """Encode the tables, then add the kinds of features; arguments as of `encode_tables`."""
    encoded, states = encode_tables(graph, settings, train, stored)
    return add_kinds(encoded, settings), states


def encode_tables(
    graph: GraphData, settings: FeatureSettings, train: Mask | None, stored: States | None = None
) -> tuple[GraphData, States]:
    """Encode the features of nodes and edges.

    Args:
        graph: As a loader returns it.
        settings: How to encode.
        train: [N] the training nodes (of the target type); None: the pipeline learns from all.
        stored: States that were fitted before, which are applied instead (see `stored_columns`).

    Returns:
        The graph with encoded features, those of a plain graph on access; and the states.

    Raises:
        InputError: with features.missing=error, a blank cell; a column that a stored state needs is
            missing, or holds something else; a matrix cannot be scaled; no node has features,
            because their columns are left out.
    """
    is_split = train is not None and bool(train.any())
    rows = train if settings.fit == "train" and is_split else None
    stored = stored or {}
    states: States = {}
    kinds = kinds_of(settings.kind, list(graph.nodes))
    nodes, relations = {}, {}
    for name, table in graph.nodes.items():
        key = table_name(name)
        of_type = rows if name == graph.target else None
        features, featured, state = encode_nodes(
            table, settings, of_type, kinds[name], stored.get(key)
        )
        if not graph.is_plain or kinds[name] != ("given",):
            features = to_array(features)
        elif state is not None and not features.shape[1] and state["ignored"]:
            left, why = next(iter(state["ignored"].items()))
            raise InputError(
                f"{graph.name}: no node has features: `{left}` is left out, {why}; or set"
                " features=degree, features=positional or features=random (docs/data.md)"
            )
        nodes[name] = replace(table, features=features, featured=featured, schema=None)
        if state is not None:
            states[key] = state
    encoded: dict[int, Any] = {}  # by the schema, which an added reverse relation shares
    for edge_type, relation in graph.relations.items():
        schema = relation.schema
        if schema is not None:
            if id(schema) not in encoded:
                edge_features = _encode_edges(
                    relation.edge_feat, schema, settings, stored, table_name(edge_type), states
                )
                encoded[id(schema)] = edge_features if graph.is_plain else to_array(edge_features)
            relation = replace(relation, edge_feat=encoded[id(schema)], schema=None)
        relations[edge_type] = relation
    _check_edge_tables(stored, states, graph.name)
    return replace(graph, nodes=nodes, relations=relations), states


def stored_columns(states: States, columns: ColumnSettings) -> ColumnSettings:
    """Return the settings by which a later table is read for the stored states.

    Each column gets its stored role, or is left out as then, unless tables have columns of one name
    in several roles. `embedding` is not set. Names that the settings give to columns of ids, ends
    and weights stay.
    """
    roles: dict[str, set[str]] = {}
    for state in states.values():
        for column in state["columns"]:
            roles.setdefault(column["name"], set()).add(column["role"])
        for name in state["ignored"]:
            roles.setdefault(name, set()).add("ignore")
    known: Any = {
        role: tuple(glob.escape(name) for name in roles if roles[name] == {role}) or None
        for role in (*STORED_ROLES, "ignore")
    }
    known["ignore"] = (*(columns.ignore or ()), *(known["ignore"] or ())) or None
    return replace(named_columns(states, columns), embedding=None, **known)


def named_columns(states: States, columns: ColumnSettings) -> ColumnSettings:
    """Return the columns of ids, ends and weights as stored, unless settings name them.

    Of several stored names all are ids, ends are set by relation, and weights are not set.
    """
    known = {
        role: {name for state in states.values() for name in state["roles"].get(role, [])}
        for role in NAMED_ROLES
    }
    names: Any = {
        role: min(found) if role in ("weight", "relation") else (*sorted(found),)
        for role, found in known.items()
        if (len(found) == 1 or (found and role == "id")) and getattr(columns, role) is None
    }
    for role in ("src", "dst"):
        if len(known[role]) > 1 and getattr(columns, role) is None:
            names[role] = {
                table.removeprefix("edges/"): state["roles"][role][0]
                for table, state in states.items()
                if state["roles"].get(role)
            }
    return replace(columns, **names)


def read_as_fitted(
    read: Callable[[ColumnSettings], Read], columns: ColumnSettings, stored: States
) -> Read:
    """Read tables with each column in its stored role; what was ignored then may be missing now.

    `read` is called again for each column that is missing.

    Raises:
        InputError: no table has a column that the model was trained with.
        MissingColumn: no table has another column that the settings name.
    """
    ignored = columns.ignore or ()
    columns = stored_columns(stored, columns) if stored else columns
    while True:
        try:
            return read(columns)
        except MissingColumn as error:
            if stored and error.role in FITTED_ROLES:
                remedy = f", or {error.remedy}" if error.remedy else ""
                raise InputError(
                    f"no column `{error.pattern}`, which the model was trained with; {error.there};"
                    f" add it{remedy}"
                ) from error
            if error.role != "ignore" or error.pattern in ignored:
                raise
            kept = [name for name in columns.ignore or () if name != error.pattern]
            columns = replace(columns, ignore=tuple(kept) or None)


def _encode_edges(
    features: Rows | None,
    schema: Schema,
    settings: FeatureSettings,
    stored: States,
    name: str,
    to: States,
) -> Any:
    """Encode the features of a table of edges, and add its state to `to` by its name.

    None for a table without features, whose state names the columns of ends and weights, and where
    a stored pipeline has no features of edges, of which the log warns. InputError where a column
    that the stored pipeline needs is missing or holds something else.
    """
    if not stored:
        features, schema = _without_useless(features, schema, None, constants=True)
        learnt = np.empty((0, 0), np.float32) if features is None else features
        to[name] = fit_pipeline(learnt, schema, settings)
        return _encode(features, schema, to[name], None) if schema.columns else None
    state = stored.get(name)
    if state is not None and state["roles"].get("weight") and not schema.roles.get("weight"):
        raise InputError(
            f"{schema.path}: no column `{state['roles']['weight'][0]}` of weights, which the model"
            " was trained with; add it"
        )
    if state is not None and (features is not None or not state["columns"]):
        to[name] = state
    if features is None:
        return None
    if state is not None and state["columns"]:
        return apply_pipeline(state, features, schema)
    warn_of_unused(schema.path, [column.name for column in schema.columns])
    return None


def _without_useless(
    features: Any, schema: Schema, rows: Mask | None, *, constants: bool = False
) -> tuple[Any, Schema]:
    """Leave out columns of a table that are blank in all rows, bool [N] (None: every row).

    The schema loses them and says why; the features are [N, 0] if none is left, else unchanged.

    constants: whether columns with one value are left out, too: of edges, they tell nothing.
    """
    reasons: dict[str, str] = {}
    for column in schema.columns if isinstance(features, np.ndarray) else ():
        values = features[:, column.columns]
        values = values if rows is None else values[rows]
        if not len(values) or column.role == "matrix":
            continue
        if np.isnan(values[0]).all() and np.isnan(values).all():
            reasons[column.name] = "blank in every row" + " of training" * (rows is not None)
        elif constants and len(values) > 1 and (values == values[0]).all():
            reasons[column.name] = "the same in every row"
    columns = tuple(column for column in schema.columns if column.name not in reasons)
    if reasons and not columns:
        features = features[:, :0]
    return features, replace(schema, columns=columns, ignored=schema.ignored | reasons)


def _check_edge_tables(stored: States, fitted: States, graph: str) -> None:
    """Raise InputError where a table of edges of a stored pipeline has no features here."""
    for name in stored.keys() - fitted.keys():
        if name.startswith("edges") and stored[name]["columns"]:
            columns = join_names(column["name"] for column in stored[name]["columns"])
            raise InputError(
                f"{graph}: the table {name} has no column {columns}, which the model was trained"
                " with; add it"
            )


def add_kinds(graph: GraphData, settings: FeatureSettings) -> GraphData:
    """Return the graph with the features that `features.kind` names in place of its own.

    With several types edges lose theirs. Raises InputError if a node would have none.
    """
    if graph.is_plain:
        return with_features(graph, tuple(settings.kind))
    return with_features_by_type(graph, settings.kind)


def encode_nodes(
    table: NodeTable,
    settings: FeatureSettings,
    rows: Mask | None,
    kinds: Collection[str],
    stored: State | None,
) -> tuple[Features, Mask | None, State | None]:
    """Return encoded features, which nodes have some (None: all), and the state (None: no schema).

    Warns where nodes without features are filled.

    Args:
        rows: [N] nodes to fit on; None: all.
        stored: A state to apply in place of fitting.

    Raises:
        InputError: features.missing=error, and a cell is blank; a matrix cannot be scaled; a column
            that `stored` needs is missing, or holds something else.
    """
    features, featured, schema = table.features, table.featured, table.schema
    if schema is None and not (stored and stored["columns"]):
        return features, featured, None
    schema = schema or Schema("the nodes", ())  # of an object without features
    if not {"given", "neighbours"} & set(kinds):
        schema = replace(schema, columns=())
    is_table = bool(schema.columns) and all(column.role != "matrix" for column in schema.columns)
    if (
        featured is not None
        and tuple(kinds) == ("given",)
        and is_table
        and settings.missing != "error"
    ):
        said = (
            "%s: %d of %d nodes have no features; theirs are filled (features=neighbours takes the"
            " means of their neighbours)"
        )
        if featured.any():  # else the columns are left out
            log.warning(said, schema.path, int((~featured).sum()), len(featured))
        featured = None
    zeroed = None if featured is None else ~featured
    if stored is not None:
        return apply_pipeline(stored, features, schema, zeroed), featured, stored
    if settings.missing == "error" and isinstance(features, np.ndarray):
        _check_blanks(features, schema, featured)
    used = rows if featured is None else (featured if rows is None else featured & rows)
    features, schema = _without_useless(features, schema, used)
    state = fit_pipeline(features, schema, settings, used)
    if used is featured:
        state["fitted_on"] = "all"
    return _encode(features, schema, state, zeroed), featured, state


def _check_blanks(features: Rows, schema: Schema, featured: Mask | None) -> None:
    """Raise InputError for the first column with a blank cell, in nodes that have features."""
    for column in schema.columns:
        blank = np.isnan(features[:, column.columns]).any(axis=1)
        if featured is not None:
            blank &= featured
        if blank.any():
            raise InputError(
                f"{schema.path}: column `{column.name}` is blank in {int(blank.sum())} rows, the"
                f" first is row {int(blank.argmax())}; fill it, or set features.missing=median"
            )


def _encode(features: Any, schema: Schema, state: State, zeroed: Mask | None) -> Any:
    """Return features that are encoded on access; unchanged where the pipeline changes nothing."""
    if not isinstance(features, np.ndarray) or not schema.columns:
        return features
    if is_identity(state, schema) and not _has_blanks(features):
        return features
    return EncodedFeatures(features, schema, state, zeroed)


def to_array(features: Any) -> Any:
    """Encode all rows of EncodedFeatures, [N, F]; return other features as they are."""
    return features.toarray() if isinstance(features, EncodedFeatures) else features


def encode_now(graph: GraphData) -> GraphData:
    """Return a plain graph with features encoded now, not on access; another as it is."""
    if not graph.is_plain:
        return graph
    nodes = replace(graph.target_nodes, features=to_array(graph.features))
    edges = replace(graph.edges, edge_feat=to_array(graph.edges.edge_feat))
    return replace(graph, nodes={PLAIN_TYPE: nodes}, relations={PLAIN_RELATION: edges})


def _has_blanks(features: NDArray[np.float32]) -> bool:
    size = max(1, BLOCK // max(features.shape[1], 1))
    return any(
        bool(np.isnan(features[begin : begin + size]).any())
        for begin in range(0, len(features), size)
    )
