"""What a loader knows of the feature columns of a table or matrix before they are encoded.

N rows, W columns of the raw matrix.
"""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import MAX_NAMES, join_names

if TYPE_CHECKING:
    import pyarrow as pa

Rows = NDArray[np.float32]
VERSION = 1
"""Format version of a fitted pipeline's state."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A data frame as a table in memory; messages call it by its name."""

    name: str
    columns: "dict[str, pa.Array]"
    suffix = ""

    def __str__(self) -> str:
        return self.name


Source = Path | Frame
"""A table: a file, a folder of part files, or a data frame."""


@dataclass(frozen=True)
class Column:
    """One column of a table, or a whole matrix, and where the raw matrix holds it."""

    name: str
    role: str
    """numeric, date, boolean, categorical, embedding (a list per row), or matrix."""
    first: int
    """Its first column in the raw matrix [N, W]."""
    width: int = 1
    offset: float = 0.0
    """Subtracted from each number, so that float32 holds large ones such as timestamps."""
    categories: tuple[str, ...] = ()
    """Categorical: the raw matrix holds positions in this tuple."""

    @property
    def columns(self) -> slice:
        """Return which columns of the raw matrix hold this column."""
        return slice(self.first, self.first + self.width)


@dataclass(frozen=True)
class Schema:
    """Roles of the columns of a table."""

    path: str
    """The file, for messages."""
    columns: tuple[Column, ...]
    roles: dict[str, list[str]] = field(default_factory=dict)
    """Columns that are no features, by role: id, label, masks, split, time, src, dst, weight."""
    ignored: dict[str, str] = field(default_factory=dict)
    """Columns that are left out, and the reason."""

    @classmethod
    def of_matrix(cls, path: str, width: int) -> "Schema":
        """Return the schema of an unnamed matrix of features."""
        return cls(path, (Column("feat", "matrix", 0, width),))

    def find(self, name: str) -> Column | None:
        """Return the column of this name; None if there is none."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}


def describe(states: dict[str, Any]) -> list[str]:
    """Return lines that say what became of each column, from the fitted states of tables."""
    return [
        f"{table}: {line}" for table, state in states.items() for line in _describe_table(state)
    ]


def _describe_table(state: dict[str, Any]) -> list[str]:
    """Return lines on the roles of a table's columns and how they are encoded."""
    lines = []
    roles = "; ".join(f"{role} {join_names(names)}" for role, names in state["roles"].items())
    if roles:
        lines.append(roles)
    groups: dict[str, list[str]] = {}
    for column in state["columns"]:
        groups.setdefault(_treatment(column), []).append(_with_categories(column))
    for treatment, names in groups.items():
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        lines.append(f"{treatment}: {', '.join(names[:8])}{more}")
    ignored = list(state["ignored"].items())
    for name, reason in ignored[:MAX_NAMES]:
        lines.append(f"left out: {name or 'a column'}, {reason}")
    if len(ignored) > MAX_NAMES:
        lines.append(f"left out: {len(ignored) - MAX_NAMES:,} further columns")
    return lines


def _with_categories(column: dict[str, Any]) -> str:
    """Return the name of a column, and the first of its categories."""
    if column["role"] != "categorical":
        return str(column["name"])
    names = [name if len(name) <= 20 else f"{name[:20]}..." for name in column["categories"]]
    return f"{column['name']} ({', '.join(names[:5])}{', ...' * (len(names) > 5)})"


def _treatment(column: dict[str, Any]) -> str:
    """Return how a column is encoded, in words."""
    role = column["role"]
    if role == "categorical":
        rest = " and one for the rest" if column["rest"] else ""
        return f"categorical ({len(column['categories'])} one-hot columns{rest})"
    how = {"none": "as given", "log": "log and standardised"}.get(
        column["scale_by"], column["scale_by"]
    )
    blanks = (
        f", blanks filled, {column['num_blank']} of the fitted rows" if column["num_blank"] else ""
    )
    return f"{role} ({how}{blanks})"
