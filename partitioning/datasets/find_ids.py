"""Finds the id column of tables in which no column has a usual name.

Its values are unique, and the edges refer to it.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from partitioning.datasets import frames
from partitioning.datasets.frames import read_frames
from partitioning.datasets.raw import read_npy
from partitioning.errors import InputError
from partitioning.features.roles import NAMELESS, find_usual, matches, requested_role
from partitioning.graph_data import MASKS
from partitioning.node_names import hash_names
from partitioning.partition_settings import ColumnSettings

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

HEAD = 1000
"""Rows in which a column must have unique values to be looked at further."""
ENDS = 10_000
"""Edges whose ends are looked up."""


Ends = list[tuple[Path, tuple[str, ...]]]
"""Tables of edges, and which of their ends, src or dst, refer to the nodes."""


def find_id_column(tables: list[Path], edges: Ends, columns: ColumnSettings) -> ColumnSettings:
    """Return the settings with columns.id set to the column that the edges refer to.

    They stay as they are where a table has a usual id column, or none is found.

    Raises:
        InputError: two columns may be the id.
    """
    candidates: dict[str, Path] = {}
    for table in tables:
        names = [name for name in frames.column_names(table) if not NAMELESS.fullmatch(name)]
        if find_usual("id", names):
            return columns
        for name in _unique_in_head(table, names, columns):
            candidates.setdefault(name, table)
    if not candidates:
        return columns
    ends = [end for table, roles in edges for end in _read_ends(table, roles, columns, ENDS) if end]
    fits = {name: _compare_with_rows(table, name, ends) for name, table in candidates.items()}
    found = [name for name, fit in fits.items() if fit is not None]
    if len(found) > 1:
        raise InputError(
            f"{candidates[found[0]]}: the edges may refer to `{found[0]}` or to `{found[1]}`; set"
            " columns.id to one of them"
        )
    if not found:
        return columns
    if fits[found[0]] == "equal":  # by the first edges: 1 ... N differ in the last row alone
        all_ends = {
            end for table, roles in edges for end in _read_ends(table, roles, columns, None)
        }
        fits = {found[0]: _compare_with_rows(candidates[found[0]], found[0], [*all_ends - {""}])}
    if fits[found[0]] is None:
        return columns
    if fits[found[0]] == "equal":
        raise InputError(
            f"{candidates[found[0]]}: the edges may refer to column `{found[0]}` or to the rows,"
            f" counted from 0; set columns.id={found[0]}, or columns.numeric={found[0]} if it is a"
            " feature"
        )
    log.info(
        "%s: column `%s` is taken as id: its values are unique and the edges refer to them"
        " (columns.id)",
        candidates[found[0]],
        found[0],
    )
    return replace(columns, id=found[0])


def _unique_in_head(table: Path, names: list[str], columns: ColumnSettings) -> list[str]:
    """Columns that may be ids, by their first rows."""
    taken = [
        *MASKS,
        columns.split,
        columns.time,
        *find_usual("label", names),
        *find_usual("split", names),
    ]
    text = names if frames.kind_of(table) == "csv" else []  # numbers of a csv could lose digits
    head = next(read_frames(table, text=text, cells=HEAD * len(names)))
    found = []
    for name in names:
        cells = head[name]
        if name in taken or matches(name, columns.label) or requested_role(name, columns, table):
            continue
        if len(cells) and not cells.isna().any() and _may_be_ids(cells):
            found.append(name)
    return found


def _may_be_ids(cells: "pd.Series[Any]") -> bool:
    """Whether cells are unique, and integers or names."""
    if cells.dtype.kind not in "iuf" and not isinstance(cells.iloc[0], str):
        return False
    texts = [_normalise(str(cell)) for cell in cells]
    are_integers = all(text.lstrip("-").isdecimal() for text in texts)
    return len(set(texts)) == len(texts) and (are_integers or frames.is_text(cells))


def _read_ends(
    edges: Path, roles: tuple[str, ...], columns: ColumnSettings, limit: int | None
) -> Iterator[str]:
    """Yield these ends of the first `limit` edges, as texts; None: the different ones of all."""
    if frames.kind_of(edges) == "npz":
        return
    if frames.kind_of(edges) == "npy":
        pairs = read_npy(edges)
        for role in roles if pairs.ndim == 2 else ():
            of_role = pairs[:limit, ("src", "dst").index(role)]
            yield from map(str, of_role if limit else np.unique(of_role))
        return
    names = [name for name in frames.column_names(edges) if not NAMELESS.fullmatch(name)]
    found = {
        role: getattr(columns, role) or next(iter(find_usual(role, names)), None) for role in roles
    }
    if names == ["0", "1"]:
        found = dict(zip(("src", "dst"), names, strict=True))
    ends = [found[role] for role in roles if found.get(role) in names]
    if not ends:
        return
    cells = limit * len(names) if limit else None
    for frame in islice(read_frames(edges, text=ends, cells=cells), 1 if limit else None):
        for name in ends:
            known = frame[name].dropna()
            yield from (_normalise(str(cell)) for cell in (known if limit else known.unique()))


def _compare_with_rows(table: Path, name: str, ends: list[str]) -> str | None:
    """Compare how many ends are values of a column, and how many are row numbers.

    Returns:
        "more" of the column, or "equal" numbers of both; None where it cannot be the id. A column
        that counts the rows is "more".
    """
    if not ends:
        return None
    wanted = set(ends)
    found: set[str] = set()
    keys = []
    num_rows, counts_rows = 0, True
    for frame in read_frames(table, text=[name], only=[name]):
        texts = frame[name].fillna("").astype(str).to_numpy(object)
        keys.append(hash_names(texts))
        values = [_normalise(text) for text in texts]
        found |= wanted & {*values}
        counts_rows = counts_rows and values == [*map(str, range(num_rows, num_rows + len(texts)))]
        num_rows += len(texts)
    if len(np.unique(np.concatenate(keys))) < num_rows:
        return None
    num_found = sum(end in found for end in ends)
    num_row_numbers = sum(end.isdecimal() and int(end) < num_rows for end in ends)
    if num_found < max(num_row_numbers, len(ends) / 2):
        return None
    return "more" if num_found > num_row_numbers or counts_rows else "equal"


def _normalise(text: str) -> str:
    """A whole number without .0."""
    text = text.strip()
    head, _, tail = text.partition(".")
    return head if tail.strip("0") == "" and head.lstrip("-").isdecimal() else text
