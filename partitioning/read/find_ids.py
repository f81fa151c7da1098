"""Finds the column of ids of each table of nodes.

It has a usual name, or its values are unique, and the edges, or the ids of another table, are
among them.
"""

import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from partitioning.errors import InputError
from partitioning.features.roles import (
    NAMELESS,
    find_column,
    find_usual,
    matches,
    requested_role,
)
from partitioning.graph.graph_data import MASKS
from partitioning.graph.schema import Source
from partitioning.partition_settings import ColumnSettings
from partitioning.read.array_files import read_npy
from partitioning.read.cells import NUMBER, Cells
from partitioning.read.table_files import column_names, read_columns

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

HEAD = 1000
"""Rows in which a column must have unique values to be looked at further."""
Ends = list[tuple[Source, dict[str, str | None]]]
"""Tables of edges, and the columns of their ends, src or dst, that refer to the nodes; None in an
array."""


def find_id_columns(
    tables: Collection[Source], edges: Ends, columns: ColumnSettings
) -> dict[Source, str | None]:
    """Return the column of ids by table; None where rows are nodes in order.

    The log names a column that is chosen by its values.

    Raises:
        InputError: two columns may be the id, or a column may be the id or count something else.
    """
    names = {
        table: [name for name in column_names(table) if not NAMELESS.fullmatch(name)]
        for table in tables
    }
    id_columns = {table: find_column("id", names[table], columns, table) for table in tables}
    candidates = {
        table: list(_find_unique(table, names[table], columns))
        for table in tables
        if id_columns[table] is None
    }
    if not any(candidates.values()):
        return id_columns
    ends = [_read_ends(table, roles) for table, roles in edges]
    end_ids = _concatenate([end for of_table in ends for end in of_table])
    known = _concatenate(
        [
            _normalise(read_columns(table, [name], exact=[name])[name])
            for table, name in id_columns.items()
            if name is not None
        ]
    )
    by_size = sorted(candidates.items(), key=lambda item: -max(map(len, item[1]), default=0))
    for table, unique in by_size:  # ids of a table with fewer nodes are among those of others
        fits = {
            cells.name: fit
            for cells in unique
            if (fit := _compare(_normalise(cells), end_ids, known)) is not None
        }
        first, *others = [*fits, None]
        if first is None:
            continue
        if others[0] is not None:
            raise InputError(
                f"{table}: the edges may refer to `{first}` or to `{others[0]}`; set columns.id to"
                " one of them"
            )
        if fits[first] == "equal":
            raise InputError(
                f"{table}: the edges may refer to column `{first}` or to the rows, counted from 0;"
                f" set columns.id={first}, or columns.numeric={first} if it is a feature"
            )
        log.info(
            "%s: column `%s` is taken as id: its values are unique and the edges refer to them"
            " (columns.id)",
            table,
            first,
        )
        id_columns[table] = first
        known = _concatenate(
            [known, *(_normalise(cells) for cells in unique if cells.name == first)]
        )
    return id_columns


def _find_unique(table: Source, names: list[str], columns: ColumnSettings) -> Iterator[Cells]:
    """Yield the columns that may be ids: unique integers or names, without a role."""
    taken = [
        *MASKS,
        columns.split,
        columns.time,
        *find_usual("label", names),
        *find_usual("split", names),
    ]
    left = [
        name
        for name in names
        if name not in taken
        and not matches(name, columns.label)
        and not requested_role(name, columns, table)
    ]
    head = read_columns(table, left, exact=left, limit=HEAD) if left else {}
    left = [name for name in left if _may_be_ids(head[name])]
    id_cells = read_columns(table, left, exact=left) if left else {}
    yield from (id_cells[name] for name in left if _may_be_ids(id_cells[name]))


def _may_be_ids(cells: Cells) -> bool:
    """Return whether cells are unique, and integers or names."""
    import pyarrow.compute as pc

    if not len(cells) or cells.data.null_count or cells.kind not in ("number", "text"):
        return False
    texts = _normalise(cells)
    is_integer = pc.all(pc.match_substring_regex(texts, r"^-?\d+$")).as_py()
    is_id = is_integer or not pc.any(pc.match_substring_regex(texts, NUMBER)).as_py()
    return is_id and pc.count_distinct(texts).as_py() == len(cells)


def _read_ends(edges: Source, roles: dict[str, str | None]) -> list[Any]:
    """Return these ends of a table of edges, as pyarrow texts; of an npy array each id once."""
    import pyarrow as pa

    if isinstance(edges, Path) and edges.suffix == ".npy":
        pairs = read_npy(edges)
        places = [("src", "dst").index(role) for role in roles] if pairs.ndim == 2 else []
        return [pa.chunked_array([np.unique(pairs[:, at])]).cast(pa.string()) for at in places]
    ends = [name for name in roles.values() if name is not None]
    cells = read_columns(edges, ends, exact=ends) if ends else {}
    return [_normalise(column) for column in cells.values()]


def _concatenate(columns: list[Any]) -> "pa.ChunkedArray":
    """Return the texts of columns as one."""
    import pyarrow as pa

    chunks = [chunk for column in columns for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.string()).drop_null()


def _compare(
    cells: "pa.ChunkedArray", ends: "pa.ChunkedArray", known: "pa.ChunkedArray"
) -> str | None:
    """Compare how many ends of edges are values of a column, and how many are row numbers.

    Args:
        cells: the column, as texts.
        ends: both ends of all edges.
        known: the ids of tables whose id column is known.

    Returns:
        "more" values of the column, or "equal" numbers of both; None where it cannot be the id:
        fewer values than row numbers, or than half the ends. A column that counts the rows is
        "more", and so is one whose every value is in `known`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pa.array(np.arange(len(cells))).cast(pa.string())
    is_row = pc.is_in(cells, rows)
    if (
        len(known)
        and pc.all(pc.is_in(cells, known.unique())).as_py()
        and not pc.all(is_row).as_py()
    ):
        return "more"
    num_found, num_rows = (pc.sum(pc.is_in(ends, array)).as_py() or 0 for array in (cells, rows))
    if not len(ends) or num_found < max(num_rows, len(ends) / 2):
        return None
    counts_rows = pc.all(pc.equal(cells, pa.chunked_array([rows]))).as_py()
    return "more" if num_found > num_rows or counts_rows else "equal"


def _normalise(cells: Cells) -> "pa.ChunkedArray":
    """Return cells as texts, whole numbers without .0."""
    import pyarrow.compute as pc

    return pc.replace_substring_regex(
        pc.utf8_trim_whitespace(cells.texts()), r"^(-?\d+)\.0*$", r"\1"
    )
