"""Reads the feature columns of a table, piece by piece, into a float32 matrix and its schema.

Numbers stay numbers, texts become positions in a list of categories, lists become several columns.
Encoding comes later, when the split is known (partitioning/features).
"""

import datetime
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from partitioning.array_checks import Array
from partitioning.datasets import csv_files, frames
from partitioning.datasets.frames import ReadAgain, first_row
from partitioning.datasets.times import TimeReader, is_date
from partitioning.errors import InputError
from partitioning.features.schema import Column, Schema

if TYPE_CHECKING:
    import pandas as pd

LARGE = 2.0**24
"""From here on float32 does not hold every integer."""
FEW = 10
"""A column with at most so many different texts is categorical."""
TOO_MANY_TEXTS = 1 << 20
"""Different texts after which a column of mostly different texts is refused without reading on."""
BOOLEANS = ({"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"})
TRUE = {"true", "yes", "y", "t"}
IN_GROUPS = r"[+-]?\d{1,3}(?:[., '\u2019\u00a0\u202f]\d{3})+(?:[.,]\d+)?"
"""A number whose thousands are set apart, such as 1,234.5 or 1 234,5."""
REMEDY = (
    "expected a number; columns.categorical={name} takes texts as categories, columns.ignore={name}"
    " leaves it out"
)


@dataclass(eq=False)
class _ColumnReader:
    """One column: its role is found in the first piece that is not blank, and kept."""

    name: str
    path: Path
    requested: str | None
    role: str | None = None
    width: int = 1
    offset: float | None = None
    places: dict[str, int] = field(default_factory=dict)
    """Categorical: text -> its place."""
    num_cells: int = 0
    """Cells that are not blank."""

    def __post_init__(self) -> None:
        if self.requested is not None:
            self.role = {"embedding": None}.get(self.requested, self.requested)
        self.times = TimeReader(self.path, self.name)

    def restart(self) -> None:
        """Forget the cells, not the role."""
        self.places, self.num_cells = {}, 0

    def read(self, frame: "pd.DataFrame", text: set[str]) -> NDArray[np.float32] | None:
        """Read a piece of the column as numbers [rows, width], NaN where blank.

        Returns None for a column that is left out.

        Raises:
            ReadAgain: the column has to be read as text, or its width is known only now.
        """
        written = frame[self.name]
        cells = frames.without_blank_texts(written)
        if cells is not written:
            frame = frame.assign(**{self.name: cells})
        known = cells.dropna()
        if self.role is None:
            if not len(known):
                return np.full((len(cells), self.width), np.nan, np.float32)
            self._find_role(known)
            if first_row(frame):
                raise ReadAgain(self.name if self.role == "categorical" else None)
        if self.role == "categorical" and self.name not in text:
            raise ReadAgain(self.name)
        self.num_cells += len(known)
        if self.role == "categorical":
            return self._read_codes(cells)
        if self.role in ("ignore", "date") and self.requested is None:
            return None
        if self.role == "embedding":
            values = self._read_lists(frame)
        elif self.role == "date":
            values = self.times.read(cells)
        elif self.role == "boolean":
            values = _booleans(cells, self.path, self.name, first_row(frame))
        else:
            values = frames.numbers(frame, self.name, self.path, REMEDY.format(name=self.name))
        return self._to_float32(values.reshape(len(cells), self.width), first_row(frame))

    def _find_role(self, known: "pd.Series[Any]") -> None:
        """Set the role, and the width of an embedding, by the cells that are not empty."""
        first, kind = known.iloc[0], known.dtype.kind
        if kind in "mM" or isinstance(first, datetime.date | datetime.time):
            self.role = "date"
        elif isinstance(first, list | tuple | np.ndarray):
            self.role, self.width = "embedding", len(first)
        elif kind == "b" or isinstance(first, bool | np.bool_):
            self.role = "boolean"
        elif frames.is_text(known):
            self._refuse_notation(known)
            self.role = "date" if known.map(is_date).all() else "categorical"
        else:
            self.role = "numeric"

    def _refuse_notation(self, known: "pd.Series[Any]") -> None:
        """InputError for texts that are all numbers with decimal commas or grouped thousands."""
        written = known.astype("str").str.strip()
        if written.str.fullmatch(f"{csv_files.DECIMAL_COMMA}|{IN_GROUPS}").all():
            raise InputError(
                f"{self.path}: column `{self.name}`, row {known.index[0]} is {known.iloc[0]!r}, a"
                " number with a decimal comma or grouped thousands; write it as 1234.5, or set"
                f" columns.categorical={self.name} if the texts are categories"
            )

    def _read_codes(self, cells: "pd.Series[Any]") -> NDArray[np.float32]:
        """Return texts as positions in the list of known categories, [rows, 1], NaN where blank."""
        import pandas as pd

        codes, texts = pd.factorize(cells)
        names = [re.sub(r"^(-?\d+)\.0+$", r"\1", str(text).strip()) for text in texts]
        places = [self.places.setdefault(name, len(self.places)) for name in names]
        if len(self.places) > TOO_MANY_TEXTS:
            self._check_categories()
        return np.array([*places, np.nan], np.float32)[codes][:, None]

    def _check_categories(self) -> None:
        """InputError for a column that seems to be free text."""
        number = len(self.places)
        if self.requested is None and number > FEW and 2 * number > self.num_cells:
            raise InputError(
                f"{self.path}: column `{self.name}`: {number} different texts in {self.num_cells}"
                f" rows, `{next(iter(self.places))[:40]}` for instance: no categories;"
                f" columns.ignore={self.name} leaves it out, columns.id={self.name} takes it as"
                f" ids, columns.categorical={self.name} as categories"
            )

    def _read_lists(self, frame: "pd.DataFrame") -> Array:
        """Return cells that are lists of numbers as a matrix [rows, width].

        Raises InputError for a list of another length.
        """
        where, begin = f"{self.path}: column `{self.name}`", first_row(frame)
        cells = frame[self.name]
        blank = np.full(self.width, np.nan)
        rows = []
        for row, cell in enumerate(cells):
            values = blank if cell is None or cell is np.nan else np.asarray(cell)
            if values.ndim != 1 or values.dtype.kind not in "biuf":
                raise InputError(
                    f"{where}, row {begin + row} is {str(cell)[:60]}; expected a list of numbers,"
                    f" or columns.ignore={self.name}"
                )
            if len(values) != self.width:
                raise InputError(
                    f"{where}, length: row {begin + row} is {len(values)}; expected {self.width},"
                    " as before"
                )
            rows.append(values)
        return np.stack(rows).astype(np.float64) if rows else np.empty((0, self.width))

    def _to_float32(self, values: Array, begin: int) -> NDArray[np.float32]:
        """Subtract the column's offset and convert values to float32.

        Raises InputError for one that is not finite. begin: row of the first value in the file.
        """
        if self.offset is None:
            known = values[~np.isnan(values)].astype(np.float64)
            if len(known):
                large = self.width == 1 and bool((np.abs(known) >= LARGE).any())
                self.offset = float(known[0]) if large and np.isfinite(known[0]) else 0.0
        if not self.offset and values.dtype == np.float32:
            narrow = values
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                narrow = (values.astype(np.float64) - (self.offset or 0.0)).astype(np.float32)
        infinite = np.isinf(narrow)
        if infinite.any():
            row, at = np.argwhere(infinite)[0]
            raise InputError(
                f"{self.path}: column `{self.name}`, row {begin + row} is {values[row, at]};"
                f" expected a finite float32: mend it, or columns.ignore={self.name} leaves the"
                " column out"
            )
        return narrow

    def finish(self, first: int, matrix: NDArray[np.float32]) -> Column:
        """The column, whose values begin at column `first` of the matrix [N, W]."""
        self.times.finish()
        if self.role != "categorical":
            role = "embedding" if self.requested == "embedding" else self.role or "numeric"
            return Column(self.name, role, first, self.width, self.offset or 0.0)
        if self.requested is None and any(
            self.places and {text.lower() for text in self.places} <= words for words in BOOLEANS
        ):
            is_true = np.array(
                [*(text.lower() in TRUE for text in self.places), np.nan], np.float32
            )
            codes = matrix[:, first]
            matrix[:, first] = is_true[np.where(np.isnan(codes), -1, codes).astype(np.int64)]
            return Column(self.name, "boolean", first)
        self._check_categories()
        return Column(self.name, "categorical", first, categories=tuple(self.places))


class FeatureReader:
    """The feature columns of one table. It survives a table's being read again."""

    def __init__(self, path: Path, requested: dict[str, str | None]) -> None:
        """requested: the feature columns in order, with the roles that settings give them."""
        self.path = path
        self.ignored = {
            name: "columns.ignore" for name, role in requested.items() if role == "ignore"
        }
        self.readers = [
            _ColumnReader(name, path, role) for name, role in requested.items() if role != "ignore"
        ]

    @property
    def text(self) -> set[str]:
        """Columns that are known to be text."""
        return {reader.name for reader in self.readers if reader.role == "categorical"}

    def restart(self) -> None:
        """Forget the cells read so far, but not the columns' roles: the table is read again."""
        for reader in self.readers:
            reader.restart()

    def read(self, frame: "pd.DataFrame", text: Iterable[str | None]) -> NDArray[np.float32] | None:
        """Read the feature columns of a piece of the table, [rows, W].

        Returns None if no column is a feature.
        """
        as_text = {name for name in text if name is not None}
        pieces = []
        again: list[str | None] = []
        for reader in self.readers:
            try:
                piece = reader.read(frame, as_text)
            except ReadAgain as found:
                again.extend(found.columns or [None])
                continue
            if piece is not None:
                pieces.append(piece)
        if again:
            raise ReadAgain(*again)
        return np.hstack(pieces) if pieces else None

    def finish(self, matrix: NDArray[np.float32] | None) -> Schema:
        """The schema of the matrix that the pieces make together."""
        columns: list[Column] = []
        ignored = dict(self.ignored)
        first = 0
        for reader in self.readers:
            if reader.role == "date" and reader.requested is None:
                ignored[reader.name] = (
                    f"a date: columns.date={reader.name} makes it a feature, in seconds since 1970"
                )
            elif matrix is not None:
                columns.append(reader.finish(first, matrix))
                first += reader.width
        return Schema(str(self.path), tuple(columns), {}, ignored)


def _booleans(cells: "pd.Series[Any]", path: Path, name: str, begin: int) -> Array:
    """True and False, maybe as texts, as 1 and 0, NaN where blank."""
    if cells.dtype.kind == "b":
        return cells.to_numpy(np.float64)
    words = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}
    values: Array = cells.map(lambda cell: words.get(str(cell).lower(), np.nan)).to_numpy(
        np.float64
    )
    wrong = np.flatnonzero(np.isnan(values) & cells.notna())
    if len(wrong):
        raise InputError(
            f"{path}: column `{name}`, row {begin + wrong[0]} is"
            f" {str(cells.iloc[wrong[0]])[:60]!r}; expected true or false"
        )
    return values
