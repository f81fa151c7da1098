"""Reads a folder of tables as a graph: form (b) of file.py.

Rows are counted from 0, without the header.

N nodes, E directed edges, F features, C classes.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.array_checks import Array, CsrParts, check_length, check_unique, refuse
from partitioning.datasets.cells import Cells
from partitioning.datasets.edge_tables import check_weight_column, find_ends, read_edges
from partitioning.datasets.feature_columns import read_features
from partitioning.datasets.find_ids import find_id_columns
from partitioning.datasets.labels import parse_label_texts
from partitioning.datasets.nodes import Nodes
from partitioning.datasets.raw import RawGraph, read_arrays, read_npy
from partitioning.datasets.table_files import (
    SUFFIXES,
    column_names,
    has_columns,
    read_columns,
    stem_of,
    warn_unread,
)
from partitioning.datasets.times import read_times
from partitioning.errors import MAX_NAMES, InputError, join_names
from partitioning.features.roles import (
    SPLITS,
    check_requested,
    find_column,
    find_labels,
    requested_role,
    without_index,
)
from partitioning.features.schema import Schema, Source, warn_of_ignored
from partitioning.graph_data import MASKS
from partitioning.node_split import FILE_NAMES, FORMATS, read_index
from partitioning.partition_settings import ColumnSettings

log = logging.getLogger(__name__)

NODE_TABLES = {
    "nodes": SUFFIXES,
    "features": ("npy", "npz", *SUFFIXES),
    "labels": ("npy", *SUFFIXES),
}
A_NUMBER = "expected a number, or a blank cell where it is unknown"
EDGES = (*SUFFIXES, "npy")


@dataclass(frozen=True, eq=False)
class Table:
    """A table with one row per node."""

    path: Source
    rows: int
    ids: Array | None
    """[rows] int64, or object: names; None where the rows are the nodes in order."""
    ids_where: str
    values: Mapping[str, tuple[Array | CsrParts, str]]
    """feat, label, masks and time, [rows] or [rows, columns], and what to call them in a message.
    """
    schema: Schema | None = None
    """What the columns of feat hold; None for a matrix."""


def read_folder(
    path: Path,
    columns: ColumnSettings,
    *,
    unlabelled: bool = False,
    drop_unknown: bool = False,
    regression: bool = False,
) -> RawGraph:
    """Read a folder of tables.

    Args:
        path: The folder, or the table of edges in it.
        columns: Roles of columns.
        unlabelled: Whether labels may be missing; without tables of nodes, edge ends are nodes.
        drop_unknown: Whether edges with an unknown end are left out; else they are refused.
        regression: Whether labels are numbers to predict.
    """
    splits = dict.fromkeys(chain.from_iterable(FILE_NAMES.values()), FORMATS)
    warn_unread(path if is_folder(path) else path.parent, {**NODE_TABLES, **splits})
    folder, edges = (
        (path, files_named(path, "edges", EDGES)) if is_folder(path) else (path.parent, [path])
    )
    if not edges:
        names = ", ".join(f"edges.{suffix}" for suffix in EDGES)
        held = sorted(file.name for file in path.iterdir())
        shown = ", ".join(held[:10]) + (" ..." if len(held) > 10 else "")
        raise InputError(
            f"dataset_file={path}: expected one of {names}; found {shown or 'nothing'}: rename the"
            " table of edges, and that of nodes (nodes.csv ...), or set dataset_file=FILE of edges"
        )
    found = [
        file
        for stem, suffixes in NODE_TABLES.items()
        for file in files_named(folder, stem, suffixes)
        if file not in edges
    ]
    return read_tables(
        stem_of(path.resolve()),
        found,
        edges[0],
        columns,
        folder,
        unlabelled=unlabelled,
        drop_unknown=drop_unknown,
        regression=regression,
    )


def read_tables(
    name: str,
    found: Sequence[Source],
    edges: Source,
    columns: ColumnSettings,
    folder: Path | None,
    *,
    unlabelled: bool,
    drop_unknown: bool,
    regression: bool,
) -> RawGraph:
    """Read tables of nodes, and one of edges, as the graph `name`.

    folder: where files may list the nodes of a split; None: there is none. See `read_folder`.
    """
    named = list(filter(has_columns, found))
    check_requested(
        columns, ((file, column_names(file)) for file in filter(has_columns, [*found, edges]))
    )
    if has_columns(edges):
        find_ends(edges, columns)  # without them the ids of nodes could be taken for a feature
    ids = find_id_columns(named, [(edges, ("src", "dst"))], columns)
    tables = [
        read_table(file, columns, id_name=ids.get(file), regression=regression) for file in found
    ]
    values = find_tables(tables)
    if "label" not in values and not unlabelled:
        raise InputError(
            f"{folder}: no labels: expected a column `label` in nodes or features"
            " (columns.label=NAME for another), or a table labels.csv, .parquet or .npy; found"
            f" {', '.join(file.name for file in found) or 'no such table'}; split=none partitions a"
            " graph without labels for app=predict"
        )
    nodes = find_nodes(tables) if tables else Nodes(0, np.zeros(0, np.int64), grows=True)
    check_weight_column(columns, [edges])
    table = read_edges(
        edges, columns, (nodes, nodes), drop_unknown=drop_unknown, with_features=True
    )
    num_nodes = nodes.num_nodes
    masks = {} if unlabelled or folder is None else _read_masks(folder, nodes)
    in_order = {name: in_node_order(table, name, nodes) for name, table in values.items()}
    return RawGraph(
        name=name,
        src=table.src,
        dst=table.dst,
        edge_weight=table.weight,
        features=in_order.get("feat"),
        schema=schema_of(tables, values.get("feat")),
        edge_feat=table.feat,
        edge_schema=table.schema,
        node_time=in_order.get("time"),
        label=in_order.get("label"),
        edge_time=table.time,
        masks={name: in_order[name] for name in MASKS if name in in_order} | masks,
        node_id=nodes.ids if nodes.ids is not None else np.arange(num_nodes),
        node_names=nodes.all_names(),
        where={
            **{role: f"{edges}: column `{name}`" for role, name in table.names.items()},
            **{f"{part}_mask": f"{folder}: {part}.npy or {part}.csv" for part in FILE_NAMES},
            **{name: table.values[name][1] for name, table in values.items()},
            **{f"feat_{name}": f"{table.path}" for name, table in values.items() if name == "feat"},
        },
    )


def schema_of(tables: list[Table], features: Table | None) -> Schema | None:
    """Return the schema of the features, with the roles and ignored columns of all tables."""
    if not tables:
        return None
    schemas = [table.schema for table in tables if table.schema is not None]
    roles: dict[str, list[str]] = {}
    ignored: dict[str, str] = {}
    for schema in schemas:
        ignored |= schema.ignored
        for role, names in schema.roles.items():
            roles[role] = list(dict.fromkeys([*roles.get(role, []), *names]))
    if features is None:
        return Schema(str(tables[0].path), (), roles, ignored)
    if features.schema is not None:
        return replace(features.schema, roles=roles, ignored=ignored)
    matrix = Schema.of_matrix(str(features.path), 0)  # the width is known when it is checked
    return replace(matrix, roles=roles, ignored=ignored)


def is_folder(path: Path) -> bool:
    """Whether a path is a folder of tables, not a table of part files."""
    return path.is_dir() and not has_columns(path)


def is_table(path: Path) -> bool:
    """Whether a path is a file, or a folder of part files of a csv or parquet table."""
    return path.is_file() or (path.is_dir() and not is_folder(path))


def files_named(folder: Path, stem: str, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the file of a name in the folder, or none; InputError for two."""
    found = [
        folder / f"{stem}.{suffix}" for suffix in suffixes if is_table(folder / f"{stem}.{suffix}")
    ]
    if len(found) > 1:
        raise InputError(
            f"dataset_file={folder}: found {', '.join(file.name for file in found)}; expected one"
            " of them"
        )
    return found


def find_tables(tables: list[Table]) -> dict[str, Table]:
    """Return the table of each value; InputError if two tables have it."""
    values: dict[str, Table] = {}
    for table in tables:
        for name in table.values:
            if name in values:
                raise InputError(
                    f"{table.path}: has {name}, and so has {values[name].path}; expected it in one"
                    " of them (columns.label=NAME for another column)"
                )
            values[name] = table
    return values


# --- nodes ----------


def find_nodes(tables: list[Table]) -> Nodes:
    """Find the nodes: the ids of nodes, features or labels.

    If only labels has ids, edges may add nodes.
    """
    named = [table for table in tables if table.ids is not None]
    placed = [table for table in tables if table.ids is None]
    longest = max((table.rows for table in placed), default=0)
    if not named or (placed and longest > named[0].rows):
        for table in named:  # then their ids are positions
            assert table.ids is not None
            if table.ids.dtype == object:
                raise _rows_differ(table, max(placed, key=lambda each: each.rows))
            expected = f"expected a row of {placed[0].path}"
            refuse(table.ids, (table.ids < 0) | (table.ids >= longest), table.ids_where, expected)
            log.info("%s: its ids are rows of %s", table.path, placed[0].path)
        return Nodes(longest, None, grows=False)
    for table in placed:
        if table.rows != named[0].rows:
            raise _rows_differ(named[0], table)
    grows = not placed and stem_of(named[0].path) == "labels"
    return Nodes(named[0].rows, named[0].ids, grows=grows, where=named[0].ids_where)


def _rows_differ(named: Table, placed: Table) -> InputError:
    """Return the error for two tables whose rows cannot be the same nodes."""
    return InputError(
        f"{placed.path}: has {placed.rows} rows, and {named.path} has {named.rows}; expected as"
        " many, in the same order, or a column of ids in both (columns.id)"
    )


def in_node_order(table: Table, name: str, nodes: Nodes) -> Any:
    """Return the values in node order.

    A node without a row is in no mask, and has no label or features.
    """
    values, where = table.values[name]
    if table.ids is None:
        if isinstance(values, np.ndarray):
            check_length(values, nodes.num_nodes, where)
        return values
    rows = nodes.find_rows(table.ids, table.ids_where)
    if len(rows) == nodes.num_nodes and (rows == np.arange(nodes.num_nodes)).all():
        return values
    check_unique(rows, table.ids_where, table.ids)
    if isinstance(values, CsrParts):
        raise InputError(
            f"{table.path}: expected a row for each of the {nodes.num_nodes} nodes, in their order"
        )
    blank: Any = False
    if name not in MASKS:
        values, blank = _with_blank(values)
    whole = np.full((nodes.num_nodes, *values.shape[1:]), blank, values.dtype)
    whole[rows] = values
    return whole


def _with_blank(values: Array) -> tuple[Array, Any]:
    """Return labels or features in a dtype that has a value for unknown, and this value."""
    kind = values.dtype.kind
    if kind in "biu" and values.ndim == 2:
        return values.astype(np.float32), np.nan
    if kind == "u" and values.max(initial=0) > np.iinfo(np.int64).max:
        return values.astype(str).astype(object), None
    if kind in "biu":
        return values.astype(np.int64), -1
    return values, {"f": np.nan, "O": None, "U": "", "S": b""}.get(kind, 0)


def _read_masks(folder: Path, nodes: Nodes) -> dict[str, Array]:
    """Read the index files of the folder as masks."""
    masks: dict[str, Array] = {}
    for part, stems in FILE_NAMES.items():
        names = [f"{stem}.{suffix}" for stem in stems for suffix in FORMATS]
        found = [name for name in names if (folder / name).is_file()]
        if len(found) > 1:
            raise InputError(
                f"dataset_file={folder}: expected one of {', '.join(found)}; found all of them"
            )
        if found:
            mask = np.zeros(nodes.num_nodes, dtype=np.bool_)
            by_id = nodes.find_rows if nodes.ids is not None else None
            path = folder / found[0]
            mask[read_index(path, nodes.num_nodes, "dataset_file", by_id)] = True
            masks[f"{part}_mask"] = mask
    return masks


# --- columns ----------


def read_table(
    path: Source, columns: ColumnSettings, *, id_name: str | None = None, regression: bool = False
) -> Table:
    """Read a table of nodes.

    Args:
        path: The table.
        columns: Roles of columns.
        id_name: The column of ids; None: by its name.
        regression: Whether labels are numbers.
    """
    kind = "label" if stem_of(path) == "labels" else "feat"
    if isinstance(path, Path) and path.suffix == ".npz":
        return _read_csr(path)
    if isinstance(path, Path) and path.suffix == ".npy":
        array = read_npy(path)
        one = array.reshape(-1, 1) if kind == "feat" and array.ndim == 1 else array
        return Table(path, len(array), None, "", {kind: (one, str(path))})
    roles = _find_roles(path, columns, kind, id_name)
    return _convert_table(path, roles, kind, names_classes=len(roles.label) == 1 and not regression)


@dataclass(frozen=True)
class _Roles:
    """The columns of a table of nodes, by role."""

    id: str | None
    label: list[str]
    """Several are the columns of a multi-label matrix, or targets of a regression."""
    masks: list[str]
    split: str | None
    time: str | None
    features: dict[str, str | None]
    """Feature columns, with the role that settings give them."""
    index: dict[str, str]
    """Columns that are an index, and the reason why they are left out."""

    @property
    def named(self) -> dict[str, list[str]]:
        """The columns that are not features, by role."""
        found: dict[str, list[str | None]] = {
            "id": [self.id],
            "label": [*self.label],
            "masks": [*self.masks],
            "split": [self.split],
            "time": [self.time],
        }
        return {
            role: present
            for role, names in found.items()
            if (present := [name for name in names if name is not None])
        }


def _find_roles(
    path: Source, columns: ColumnSettings, kind: str, id_name: str | None = None
) -> _Roles:
    """Find the role of each column of a table of nodes. kind: feat or label."""
    names, index = without_index(column_names(path))
    id_name = id_name or find_column("id", names, columns, path)
    label = find_labels(names, columns, path)
    split = find_column("split", names, columns, path)
    if split is not None and requested_role(split, columns, path) is not None:
        split = None
    time = columns.time if columns.time in names else None
    masks = [name for name in MASKS if name in names]
    if split is not None and masks:
        raise InputError(
            f"{path}: has both `{split}` and `{masks[0]}`; take one out, or set"
            f" columns.ignore={split}"
        )
    others = [name for name in names if name not in (id_name, *label, split, time, *masks)]
    features = {name: requested_role(name, columns, path) for name in others}
    if kind == "label":
        left = [name for name in others if features[name] is None] if label else []
        if left:
            log.warning("%s: columns %s: left out", path, join_names(left, "`"))
        if not label:
            label = [name for name in others if features[name] is None]
        features = {}
    return _Roles(id_name, label, masks, split, time, features, index)


def _convert_table(path: Source, roles: _Roles, kind: str, *, names_classes: bool) -> Table:
    """Read and convert the columns of a table.

    names_classes: whether there is one label column, whose cells may be names.
    """
    categorical = [name for name, role in roles.features.items() if role == "categorical"]
    exact = {roles.id, roles.split, *categorical, *(roles.label if names_classes else ())}
    wanted = [*chain.from_iterable(roles.named.values())]
    wanted += [name for name, role in roles.features.items() if role != "ignore"]
    columns = read_columns(path, wanted, exact)
    rows = len(next(iter(columns.values())))
    ids = None if roles.id is None else columns[roles.id].ids()
    values: dict[str, Any] = {name: columns[name].flags() for name in roles.masks}
    where = {}
    if names_classes:
        cells = columns[roles.label[0]]
        where["label"] = cells.where
        labels = cells.labels()
        values["label"] = (
            parse_label_texts(*labels, cells.where) if isinstance(labels, tuple) else labels
        )
    elif roles.label:
        several = [columns[name].numbers(A_NUMBER) for name in roles.label]
        values["label"] = np.column_stack(several).astype(np.float64)
    if roles.split is not None:
        values |= _masks_of_words(columns[roles.split])
    if roles.time is not None:
        values["time"] = read_times(columns[roles.time])
    features, schema = read_features(path, columns, roles.features)
    if features is not None:
        values["feat"] = features
    if not values and (kind == "label" or roles.id is None):
        left = "; ".join(
            f"`{name}` is left out, {why}" for name, why in [*schema.ignored.items()][:MAX_NAMES]
        )
        raise InputError(
            f"{path}: has no column besides the ids; expected at least one{left and ': '}{left}"
        )
    schema = replace(schema, roles=roles.named, ignored=roles.index | schema.ignored)
    warn_of_ignored(path, schema.ignored)
    named = {name: (array, where.get(name, str(path))) for name, array in values.items()}
    return Table(path, rows, ids, f"{path}: column `{roles.id}`", named, schema)


def _masks_of_words(cells: Cells) -> dict[str, Array]:
    """Convert a column of train, val and test to masks; a blank row is in none."""
    codes, texts = cells.factorize()
    words = [text.strip().lower() for text in texts]
    for code, word in enumerate(words):
        if word and word not in SPLITS:
            cells.refuse(
                int((codes == code).argmax()),
                "expected train, val (or valid) or test; if it is no split, set"
                " columns.categorical or columns.ignore to it",
            )
    return {
        mask: np.array([*(SPLITS.get(word) == mask for word in words), False])[codes]
        for mask in MASKS
    }


def _read_csr(path: Path) -> Table:
    """Read features written by scipy.sparse.save_npz."""
    names = ("data", "indices", "indptr", "shape")
    arrays = read_arrays(path, ("format", *names))
    kind = str(arrays.get("format", np.array(b"")).astype(str)) if "format" in arrays else "none"
    if kind != "csr" or any(name not in arrays for name in names):
        raise InputError(
            f"{path}: its format is {kind}; expected a CSR matrix, as scipy.sparse.save_npz"
            " writes it"
        )
    parts = CsrParts(*(arrays[name] for name in names))
    return Table(path, len(parts.indptr) - 1, None, "", {"feat": (parts, str(path))})
