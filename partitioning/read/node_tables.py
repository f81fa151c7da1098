"""Reads tables of nodes, and joins those of one type by their ids.

A table is a csv or parquet file, a data frame, an npy array, or an npz with arrays or a sparse
matrix. N nodes of a type.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import MAX_NAMES, InputError, join_names
from partitioning.features.roles import (
    SPLITS,
    find_column,
    find_labels,
    find_masks,
    requested_role,
    without_index,
)
from partitioning.graph.array_checks import (
    Array,
    CsrParts,
    check_length,
    check_targets,
    check_unique,
    refuse,
)
from partitioning.graph.graph_data import MASKS, PLAIN_TYPE
from partitioning.graph.schema import Column, Schema, Source
from partitioning.partition_settings import ColumnSettings
from partitioning.read.array_files import is_csr, read_arrays, read_npy
from partitioning.read.cells import Cells
from partitioning.read.feature_columns import find_numbering, read_features
from partitioning.read.labels import parse_label_texts
from partitioning.read.nodes import Nodes, check_ids
from partitioning.read.raw import OF_NODES, RawNodes
from partitioning.read.table_files import column_names, read_columns, stem_of
from partitioning.read.times import read_times

log = logging.getLogger(__name__)

FEW_ROWS = 10
"""A split of fewer nodes is like other columns by chance."""
HEAD = 1000
"""Rows of all columns that are compared first."""
A_NUMBER = "expected a number, or a blank cell where it is unknown"


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


def read_table(
    path: Source,
    columns: ColumnSettings,
    *,
    id_name: str | None = None,
    are_labels: bool = False,
    regression: bool = False,
    skip: Collection[str] = (),
) -> Table:
    """Read a table of nodes; InputError names the column, row or array that is wrong.

    Args:
        id_name: The column of ids; None: by its name.
        are_labels: Whether columns without a role are labels; else they are features.
        regression: Whether labels are numbers.
        skip: Columns that are read elsewhere.
    """
    if isinstance(path, Path) and path.suffix == ".npz":
        return _read_csr(path) if is_csr(path) else _read_npz(path, regression=regression)
    if isinstance(path, Path) and path.suffix == ".npy":
        array = read_npy(path)
        if are_labels:
            return Table(path, len(array), None, "", {"label": (array, str(path))})
        rows = array.reshape(-1, 1) if array.ndim == 1 else array
        return Table(path, len(array), None, "", {"feat": (rows, str(path))})
    return _read_columns(path, columns, id_name, are_labels, regression, skip)


def _read_columns(
    path: Source,
    settings: ColumnSettings,
    id_name: str | None,
    are_labels: bool,
    regression: bool,
    skip: Collection[str],
) -> Table:
    """Find the role of each column of a table, and convert it; arguments as of `read_table`.

    InputError for a cell that does not fit, or no column besides the ids.
    """
    roles, features, index = _find_roles(path, settings, id_name, are_labels, skip)
    label = roles.get("label", [])
    names_classes = len(label) == 1 and not regression  # cells of the column may be names
    where = str(path)  # of the labels
    categorical = [name for name, role in features.items() if role == "categorical"]
    exact = {*roles.get("id", ()), *roles.get("split", ()), *categorical}
    names_to_read = [*chain.from_iterable(roles.values())]
    names_to_read += [name for name, role in features.items() if role != "ignore"]
    names_to_read = names_to_read or column_names(path)[:1]  # one shows the number of rows
    columns = read_columns(path, names_to_read, exact | {*label} if names_classes else exact)
    rows = max(map(len, columns.values()), default=0)
    ids, ids_where = None, ""
    for name in roles.get("id", ()):
        ids, ids_where = columns[name].ids(), columns[name].where
    values: dict[str, Any] = {
        mask: columns[name].flags()
        for mask, name in find_masks(roles.get("masks", ()), path).items()
    }
    if names_classes:
        labels, where = columns[label[0]].labels(), columns[label[0]].where
        values["label"] = parse_label_texts(*labels, where) if isinstance(labels, tuple) else labels
    elif label:
        cells = [columns[name] if regression else columns[name].with_digits() for name in label]
        several = [of_label.numbers(A_NUMBER) for of_label in cells]
        values["label"] = np.column_stack(several).astype(np.float64)
    for name in roles.get("split", ()):
        values |= _masks_of_words(columns[name])
    for name in roles.get("time", ()):
        values["time"] = read_times(columns[name])
    numbering = find_numbering(columns, features)
    features = {name: role for name, role in features.items() if name not in numbering}
    matrix, schema = read_features(path, columns, features, needs_ids="id" not in roles)
    if matrix is not None:
        free = [column for column in schema.columns if features[column.name] is None]
        _warn_of_copies(path, free, matrix, values, names_classes=names_classes)
        values["feat"] = matrix
    if not values and (are_labels or ids is None) and not skip:
        left = "; ".join(
            f"`{name}` is left out, {why}" for name, why in [*schema.ignored.items()][:MAX_NAMES]
        )
        raise InputError(
            f"{path}: has no column besides the ids; expected at least one{left and ': '}{left}"
        )
    schema = replace(schema, roles=roles, ignored=index | numbering | schema.ignored)
    named = {
        name: (array, where if name == "label" else str(path)) for name, array in values.items()
    }
    return Table(path, rows, ids, ids_where, named, schema)


def _find_roles(
    path: Source,
    columns: ColumnSettings,
    id_name: str | None,
    are_labels: bool,
    skip: Collection[str],
) -> tuple[dict[str, list[str]], dict[str, str | None], dict[str, str]]:
    """Find the role of each column of a table of nodes; the log names those of labels left out.

    Returns:
        The columns that are no features, by role: several labels are the columns of a multi-label
        matrix, or targets of a regression. Feature columns, with the role that settings give them.
        Columns that are an index, and the reason why they are left out.

    Raises:
        InputError: it has masks and a split, or two columns or settings for one role.
    """
    names, index = without_index(column_names(path))
    names = [name for name in names if name not in skip]
    label = find_labels(names, columns, path)
    split = find_column("split", names, columns, path)
    if split is not None and requested_role(split, columns, path) is not None:
        split = None
    free = [
        name
        for name in names
        if name not in (*label, id_name) and requested_role(name, columns, path) is None
    ]
    masks = [*find_masks(free, path).values()]
    if split is not None and masks:
        raise InputError(
            f"{path}: has both `{split}` and `{masks[0]}`; take one out, or set"
            f" columns.ignore={split} or columns.ignore={masks[0]}"
        )
    single = {
        "id": id_name or find_column("id", names, columns, path),
        "split": split,
        "time": columns.time if columns.time in names else None,
    }
    others = [name for name in names if name not in (*label, *masks, *single.values())]
    features = {name: requested_role(name, columns, path) for name in others}
    if are_labels:
        left = [name for name in others if features[name] is None] if label else []
        if left:
            log.warning("%s: columns %s: left out", path, join_names(left, "`"))
        label = label or [name for name in others if features[name] is None]
        features = {}
    roles = {"id": single["id"], "label": label, "masks": masks} | single
    lists = {role: [names] if isinstance(names, str) else names for role, names in roles.items()}
    return {role: names for role, names in lists.items() if names}, features, index


def _masks_of_words(cells: Cells) -> dict[str, Array]:
    """Convert a column of train, val (valid) and test to masks; a blank row is in none.

    InputError for another word.
    """
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


def _warn_of_copies(
    path: Source,
    columns: Iterable[Column],
    matrix: NDArray[np.float32],
    values: Mapping[str, Any],
    *,
    names_classes: bool,
) -> None:
    """Warn of features, `columns` of `matrix` [N, W], that tell the split or the class of a node.

    A cell follows from the class of its node and says which one it is, or follows from the set of
    its node in the split and is not the same in all sets.
    """
    import pandas as pd

    masks = [mask for name, mask in values.items() if name in MASKS]
    codes = {"split": np.dot(range(1, len(masks) + 1), masks) - 1} if masks else {}
    if names_classes:
        labels = values["label"]
        codes["label"] = np.where(labels == -1, -1, pd.factorize(labels)[0])
    for copied, of_nodes in codes.items():
        rows = np.flatnonzero(of_nodes >= 0)
        _, first, place = np.unique(of_nodes[rows], return_index=True, return_inverse=True)
        if len(rows) < max(FEW_ROWS, 2 * len(first)):
            continue
        least = len(first) if copied == "label" else 2
        likes = rows[first][place]  # for each row the first one of its class or set
        may_tell = (matrix[rows[:HEAD]] == matrix[likes[:HEAD]]).all(axis=0)
        telling = [
            column.name
            for column in columns
            if may_tell[column.first]
            and len({*matrix[rows[first], column.first].tolist()}) >= max(least, 2)
            and (matrix[rows, column.first] == matrix[likes, column.first]).all()
        ]
        if telling:
            said = "%s: a feature tells the %s, column %s; columns.ignore=%s leaves it out"
            log.warning(said, path, copied, join_names(telling, "`"), telling[0])


def _read_csr(path: Path) -> Table:
    """Read features written by scipy.sparse.save_npz; InputError for another form than CSR."""
    names = ("data", "indices", "indptr", "shape")
    arrays = read_arrays(path, ("format", *names))
    kind = str(arrays.get("format", np.array(b"")).astype(str)) if "format" in arrays else "none"
    if kind != "csr" or any(name not in arrays for name in names):
        raise InputError(
            f"{path}: its format is {kind}; expected a CSR matrix, as scipy.sparse.save_npz"
            " writes it"
        )
    parts = CsrParts(*(arrays[name] for name in names))
    return Table(path, len(parts), None, "", {"feat": (parts, str(path))})


def _read_npz(path: Path, *, regression: bool) -> Table:
    """Read the arrays of nodes in an npz: ids as int64 or str, targets NaN where unknown.

    InputError if it is damaged, or ids or targets are wrong.
    """
    arrays = read_arrays(path, OF_NODES)
    if regression and "label" in arrays:  # so that a node without a row gets NaN, not -1
        arrays["label"] = check_targets(arrays["label"], f"{path}: array `label`")
    raw = RawNodes.of_arrays(path, arrays)
    ids, where = raw.node_id, raw.at("node_id")
    if ids is not None:
        ids = check_ids(ids, where)
    values = {name: (value, raw.at(name)) for name, value in raw.values.items()}
    return Table(path, raw.num_nodes, ids, where, values)


# --- joining ----------


def find_nodes(tables: list[Table], name: str = PLAIN_TYPE, *, grows: bool = False) -> Nodes:
    """Find the nodes of a type: the ids of nodes, features or labels; without ids, rows are nodes.

    Edges may add nodes if it `grows` and has ids, or in a plain graph where only labels has ids.
    Without tables there are no nodes yet, and edges add them. Ids that are rows of another table
    are logged.

    Raises:
        InputError: tables have different numbers of rows, or an id is no row; or the tables of a
            plain graph that does not grow have no rows.
    """
    kind = f"`{name}`" if name else "node"
    if not tables:
        return Nodes(0, np.zeros(0, np.int64), grows=True, kind=kind)
    if not (name or grows or max(table.rows for table in tables)):
        raise InputError(f"{tables[0].path}: has no rows; expected one per node")
    named = [table for table in tables if table.ids is not None]
    placed = [table for table in tables if table.ids is None]
    longest = max((table.rows for table in placed), default=0)
    if not named or (placed and longest > named[0].rows):
        largest = max(placed, key=lambda table: table.rows)
        for table in named:  # then their ids are positions
            assert table.ids is not None
            if table.ids.dtype == object:
                raise _rows_differ(table, largest)
            expected = f"expected a row of {largest.path}"
            refuse(table.ids, (table.ids < 0) | (table.ids >= longest), table.ids_where, expected)
            log.info("%s: its ids are rows of %s", table.path, largest.path)
        for table in placed:
            if table.rows != longest:
                raise _rows_differ(largest, table)
        return Nodes(longest, None, grows=False, kind=kind)
    for table in placed:
        if table.rows != named[0].rows:
            raise _rows_differ(named[0], table)
    grows |= not name and not placed and stem_of(named[0].path) == "labels"
    return Nodes(named[0].rows, named[0].ids, grows, named[0].ids_where, kind)


def _rows_differ(named: Table, placed: Table) -> InputError:
    """Return the error for two tables whose rows cannot be the same nodes."""
    return InputError(
        f"{placed.path}: has {placed.rows} rows, and {named.path} has {named.rows}; expected as"
        " many, in the same order, or a column of ids in both (columns.id)"
    )


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


def join_tables(tables: list[Table], nodes: Nodes) -> RawNodes:
    """Join the tables of one node type by their ids; InputError where they do not fit together."""
    holders = find_tables(tables)
    ordered = {str(table.path): in_node_order(table, nodes) for table in tables}
    features = holders.get("feat")
    return RawNodes(
        str(features.path if features else ", ".join(ordered)),
        nodes.num_nodes,
        {value: ordered[str(table.path)][value] for value, table in holders.items()},
        nodes.ids,
        nodes.all_names(),
        schema_of(tables, features),
        {value: table.values[value][1] for value, table in holders.items()},
    )


def in_node_order(table: Table, nodes: Nodes) -> dict[str, Any]:
    """Return the values of a table in node order, by name.

    A node without a row is in no mask, and has no label or features. InputError for an id that is
    unknown or there twice, and without ids for another number of rows.
    """
    num_nodes, is_ordered = nodes.num_nodes, True
    if table.ids is not None and table.values:
        rows = nodes.find_rows(table.ids, table.ids_where)
        is_ordered = len(rows) == num_nodes and bool((rows == np.arange(num_nodes)).all())
        if not is_ordered:
            check_unique(rows, table.ids_where, table.ids)
    ordered: dict[str, Any] = {}
    for name, (values, where) in table.values.items():
        if is_ordered:
            if isinstance(values, np.ndarray):
                check_length(values, num_nodes, where)
            ordered[name] = values
            continue
        if isinstance(values, CsrParts):
            raise InputError(
                f"{table.path}: expected a row for each of the {num_nodes} nodes, in their order"
            )
        blank: Any = False
        if name not in MASKS:
            values, blank = _with_blank(values)
        ordered[name] = np.full((num_nodes, *values.shape[1:]), blank, values.dtype)
        ordered[name][rows] = values
    return ordered


def schema_of(tables: list[Table], features: Table | None) -> Schema | None:
    """Return the schema of the features, with the roles and ignored columns of all tables.

    None without tables; without features (None) its columns are empty.
    """
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
