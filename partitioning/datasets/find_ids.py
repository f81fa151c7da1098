"""Finds the id column of tables in which no column has a usual name: its values are unique, and the
edges refer to it.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
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
    ends = [end for table, roles in edges for end in _read_ends(table, roles, columns) if end]
    found = [name for name, table in candidates.items() if _is_referred_to(table, name, ends)]
    if len(found) > 1:
        raise InputError(
            f"{candidates[found[0]]}: the edges may refer to `{found[0]}` or to `{found[1]}`; set"
            " columns.id to one of them"
        )
    if not found:
        return columns
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


def _read_ends(edges: Path, roles: tuple[str, ...], columns: ColumnSettings) -> Iterator[str]:
    """Yield these ends of the first edges, as texts."""
    if frames.kind_of(edges) == "npz":
        return
    if frames.kind_of(edges) == "npy":
        pairs = read_npy(edges)
        for role in roles if pairs.ndim == 2 else ():
            for end in pairs[:ENDS, ("src", "dst").index(role)]:
                yield str(end)
        return
    names = [name for name in frames.column_names(edges) if not NAMELESS.fullmatch(name)]
    found = {
        role: getattr(columns, role) or next(iter(find_usual(role, names)), None) for role in roles
    }
    if names == ["0", "1"]:
        found = dict(zip(("src", "dst"), names, strict=True))
    ends = [found[role] for role in roles if found.get(role) in names]
    if ends:
        for _, cells in next(read_frames(edges, text=ends, cells=ENDS * len(names)))[ends].items():
            for cell in cells.dropna():
                yield _normalise(str(cell))


def _is_referred_to(table: Path, name: str, ends: list[str]) -> bool:
    """Whether a column is unique, and has at least as many of the ends as there are row numbers
    among them.
    """
    if not ends:
        return False
    wanted = set(ends)
    found: set[str] = set()
    keys = []
    for frame in read_frames(table, text=[name], only=[name]):
        texts = frame[name].fillna("").astype(str).to_numpy(object)
        keys.append(hash_names(texts))
        found |= wanted & {_normalise(text) for text in texts}
    num_rows = sum(map(len, keys))
    if len(np.unique(np.concatenate(keys))) < num_rows:
        return False
    num_found = sum(end in found for end in ends)
    num_row_numbers = sum(end.isdecimal() and int(end) < num_rows for end in ends)
    return num_found >= max(num_row_numbers, len(ends) / 2)


def _normalise(text: str) -> str:
    """A whole number without .0."""
    text = text.strip()
    head, _, tail = text.partition(".")
    return head if tail.strip("0") == "" and head.lstrip("-").isdecimal() else text
