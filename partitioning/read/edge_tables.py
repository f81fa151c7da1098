"""Reads tables of edges: csv, parquet, an npy array [E, 2], or an npz with src and dst.

E directed edges.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.errors import InputError, join_names
from partitioning.features.roles import (
    MissingColumn,
    asked_names,
    find_column,
    find_usual,
    requested_role,
    without_index,
)
from partitioning.graph.array_checks import refuse_odd_weights
from partitioning.graph.graph_data import EDGE_DATA, Endpoints
from partitioning.graph.schema import Schema, Source
from partitioning.partition_settings import ColumnSettings
from partitioning.read.array_files import list_arrays, read_arrays, read_npy
from partitioning.read.cells import Cells
from partitioning.read.feature_columns import find_numbering, read_features
from partitioning.read.nodes import Nodes, check_ids
from partitioning.read.raw import RawRelation, narrow_ends
from partitioning.read.table_files import column_names, has_columns, read_columns
from partitioning.read.times import read_times

log = logging.getLogger(__name__)

UNNAMED = (
    "expected a number, a node's position; ids that are names need a column `id` in nodes, features"
    " or labels"
)

DROP = "; edges.unknown=drop leaves such edges out, edges.unknown=add makes them nodes"
TO_PREDICT = (
    "; to predict new nodes, give tables that hold the old ones as well, or call"
    " model.predict(new=(nodes, edges)) in Python"
)
REMEDIES = {False: DROP, True: f"{TO_PREDICT}{DROP}"}
"""Remedies for an unknown end, by whether the graph is to be predicted (split=none)."""

ROWS = 1 << 22
"""Ends of edges that are looked up at a time."""
ROLES = ("src", "dst", "edge_weight", "edge_time", "relation")


def find_ends(path: Source, columns: ColumnSettings) -> list[str]:
    """Find the two columns of sources and destinations of a csv or parquet table of edges, by name.

    The columns come from the settings, else their usual names; a table with the columns 0 and 1 has
    no header.

    Raises:
        InputError: it has none, or not those that the settings name.
    """
    names, _ = without_index(column_names(path))
    if names == ["0", "1"]:
        return names
    for role in ("src", "dst"):
        asked = asked_names(role, columns)
        if asked and not {*asked} & {*names}:
            raise InputError(
                f"columns.{role}={join_names(asked)}: {path} has the columns {join_names(names)};"
                f" set one of them, or a list of those of all tables of edges"
            )
    columns_of_ends = [find_column(role, names, columns, path) for role in ("src", "dst")]
    ends = [name for name in columns_of_ends if name is not None]
    if len(ends) < 2:
        is_text = path.suffix not in ("", ".parquet", ".feather")
        header = "; put the line src,dst before it if this is no header" if is_text else ""
        if is_text and names[:2] == ["0", "1"]:
            header = "; columns.src=0 columns.dst=1 takes the first two, as it has no header"
        raise InputError(
            f"{path}: has the columns {join_names(names)}; expected src and dst (columns.src,"
            f" columns.dst){header}"
        )
    return ends


def check_weight_column(columns: ColumnSettings, files: Iterable[Source]) -> None:
    """Raise MissingColumn if columns.weight names a column that no csv or parquet table has.

    One table is enough: of several relations some may have weights. Without such tables, nothing.
    """
    if columns.weight is None:
        return
    tables = list(filter(has_columns, files))
    names = [column_names(file) for file in tables]
    if not names or any(columns.weight in name for name in names):
        return
    raise MissingColumn(
        "weight",
        columns.weight,
        f"{tables[0]} has the columns {', '.join(names[0])}",
        kind="table of edges",
        remedy="set columns.weight to one of them",
    )


def read_edges(
    path: Source,
    columns: ColumnSettings,
    nodes: tuple[Nodes, Nodes],
    *,
    drop_unknown: bool = False,
    with_features: bool | None = False,
    remedy: str = DROP,
) -> RawRelation:
    """Read the edges and look up both ends: row numbers of nodes.

    An unknown end becomes a new node of `nodes` if these grow. The log warns of a table without
    edges, edges that are left out, and ids that may be of two types.

    Args:
        nodes: The nodes of the sources, and of the destinations.
        drop_unknown: Whether edges with an unknown end are left out; else they are refused.
        with_features: Whether further columns are features of the edges; False leaves them out with
            a warning, None without one, as they are read elsewhere.
        remedy: What the message about an unknown end finishes with.

    Raises:
        InputError: columns or arrays are missing, or a cell or end is wrong.
    """
    if has_columns(path):
        table, ends = _read_columns(path, columns, nodes, with_features=with_features)
    else:
        assert isinstance(path, Path)
        table = _read_arrays(path, with_features=with_features)
        ends = [check_ids(getattr(table, name), table.at(name)) for name in ("src", "dst")]
    src, dst = (
        _find_rows(end, end_nodes, table.at(name), keep_unknown=drop_unknown, remedy=remedy)
        for end, end_nodes, name in zip(ends, nodes, ("src", "dst"), strict=True)
    )
    if len(src) == 0:
        log.warning("%s: has no edges, only a header", path)
    table = replace(table, src=src, dst=dst)
    if nodes[0] is nodes[1] and nodes[0].grows and table.schema is not None:
        _warn_of_two_types(table, table.schema)
    if not drop_unknown or len(src) != len(dst):
        return table
    is_known = (src >= 0) & (dst >= 0)
    if is_known.all():
        return table
    log.warning(
        "%s: %d of %d edges have an end that is no node, the first in row %d: left out"
        " (edges.unknown=drop)",
        path,
        int((~is_known).sum()),
        len(src),
        int(is_known.argmin()),
    )
    return table.take(is_known)


def _warn_of_two_types(table: RawRelation, schema: Schema) -> None:
    """Warn where ids of two columns, such as user and item, become the same nodes."""
    names = [schema.roles[role][0] for role in ("src", "dst")]
    is_usual = find_usual("src", names[:1]) and find_usual("dst", names[1:])
    if not is_usual and names != ["0", "1"] and len(np.intersect1d(table.src, table.dst)):
        log.warning(
            "%s: an id in both `%s` and `%s` is one node; if they are nodes of two types, write a"
            " folder with edges/%s__RELATION__%s.csv and nodes/ (docs/data.md)",
            table.path,
            *names,
            *names,
        )


def _find_rows(
    ends: Any, nodes: Nodes, where: str, *, keep_unknown: bool, remedy: str
) -> Endpoints:
    """Look up the ends of edges piece by piece, so that not all names are objects at once.

    ends: integers [E], or Cells. InputError for an unknown one, unless `keep_unknown` makes it -1.
    """
    begin, rows = 0, [np.empty(0, np.int32)]
    is_array = isinstance(ends, np.ndarray)
    for piece in np.split(ends, range(ROWS, len(ends), ROWS)) if is_array else ends.pieces():
        piece_rows = nodes.find_rows(piece, where, begin, keep_unknown=keep_unknown, remedy=remedy)
        rows.append(narrow_ends(piece_rows))
        begin += len(piece)
    return np.concatenate(rows)


def _read_columns(
    path: Source, columns: ColumnSettings, nodes: tuple[Nodes, Nodes], *, with_features: bool | None
) -> tuple[RawRelation, list[Any]]:
    """Read a csv or parquet table of edges, and the ids of both ends: integers or Cells.

    The relation has everything but its ends. A column that numbers the edges is no feature. The log
    names columns that are left out. InputError for a missing column or a wrong cell.

    with_features: see read_edges.
    """
    names, index = without_index(column_names(path))
    ends = find_ends(path, columns)
    weight = find_column("weight", names, columns, path)
    time, kind = (name if name in names else None for name in (columns.time, columns.relation))
    found = zip(ROLES, (*ends, weight, time, kind), strict=True)
    roles = {role: name for role, name in found if name is not None}
    others = [name for name in names if name not in roles.values()]
    if others and with_features is False:
        log.warning("%s: columns %s: left out", path, join_names(others, "`"))
    requested = {name: requested_role(name, columns, path) for name in others if with_features}
    exact = [*ends, kind, *(name for name, role in requested.items() if role == "categorical")]
    read = [name for name, role in requested.items() if role != "ignore"]
    cells = read_columns(path, [*roles.values(), *read], exact)
    found_ends = _convert_ends([cells.pop(name) for name in ends], nodes)
    weights = None
    if weight is not None:
        held = cells.pop(weight)
        values = held.numbers()
        held.refuse_first(np.isnan(values), "expected a number: fill it in")
        refuse_odd_weights(values, f"{path}: column `{weight}`")
        weights = values.astype(np.float32)
    times = None if time is None else read_times(cells.pop(time))
    codes, kinds = None, list[str]()
    if kind is not None:
        held = cells.pop(kind)
        codes, kinds = held.factorize()
        held.refuse_first(codes < 0, "expected the name of a relation")
    numbering = find_numbering(cells, requested)
    requested = {name: role for name, role in requested.items() if name not in numbering}
    feat, schema = read_features(path, cells, requested)
    schema = replace(schema, ignored=index | numbering | schema.ignored)
    named = {role.removeprefix("edge_"): [name] for role, name in roles.items()}
    where = {role: f"{path}: column `{name}`" for role, name in roles.items()}
    schema = replace(schema, roles=named)
    none = np.empty(0, np.int32)
    table = RawRelation(str(path), none, none, weights, feat, times, schema, where, codes, kinds)
    return table, found_ends


def _convert_ends(ends: list[Cells], nodes: tuple[Nodes, Nodes]) -> list[Any]:
    """Return the ids of both ends as integers, or as Cells where the nodes have names.

    Nodes that only edges name get names, in place, if an id is no integer. InputError for a blank
    id, and for a name where the nodes have integers.
    """
    integers: list[Cells | None] = []
    for cells, end_nodes in zip(ends, nodes, strict=True):
        if not end_nodes.named and not end_nodes.grows:
            integers.append(
                cells.to_whole(UNNAMED if end_nodes.ids is None else end_nodes.expected)
            )
            continue
        cells.check_ids()
        integers.append(None if end_nodes.named else cells.to_integers())
    for numbers, end_nodes in zip(integers, nodes, strict=True):
        if numbers is None and not end_nodes.named:  # nodes that only edges name
            end_nodes.use_names()
    return [
        cells if numbers is None or end_nodes.named else numbers
        for cells, numbers, end_nodes in zip(ends, integers, nodes, strict=True)
    ]


def _read_arrays(path: Path, *, with_features: bool | None) -> RawRelation:
    """Read an npz with src, dst and, optionally, weight and features, or an npy array [E, 2].

    Ends are not checked. InputError for other shapes, missing ends or wrong features.
    `with_features`: see read_edges.
    """
    if path.suffix == ".npy":
        edges = read_npy(path)
        if edges.ndim != 2 or edges.shape[1] != 2:
            raise InputError(
                f"{path} has shape {list(edges.shape)}; expected [edges, 2], one row of src and"
                " dst per edge"
            )
        where = {name: f"{path}: column `{name}`" for name in ("src", "dst")}
        return RawRelation(str(path), edges[:, 0], edges[:, 1], where=where)
    names = ("src", "dst", "edge_weight") if with_features is None else ("src", "dst", *EDGE_DATA)
    arrays = read_arrays(path, names, warn=with_features is not None)
    if not {"src", "dst"} <= arrays.keys():
        held = join_names(list_arrays(path)) or "nothing"
        raise InputError(f"{path}: has {held}; expected src and dst, an entry per edge")
    return RawRelation.of_arrays(path, arrays, with_features=with_features is True)
