"""Reading csv and parquet tables a piece at a time. Rows are counted from 0, without the header.

A table is a file, or a folder of part files, as Spark writes them.
"""

import contextlib
import csv
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from partitioning.array_checks import MAX_EXACT, Array, Ints, are_whole, check_integers, refuse
from partitioning.datasets import csv_files, parquet_files
from partitioning.errors import InputError
from partitioning.file_io import open_regular

if TYPE_CHECKING:
    import pandas as pd

CELLS = 1 << 23
"""Cells of a table that are read at a time; 64 MiB of numbers."""
TEXT_CELLS = 1 << 21
"""The same with ids that are names; 150 MiB."""


Coded = tuple[Ints, list[str]]
"""A column of texts: [K] the number of the text of each row, -1 where it is blank; and the texts."""


class TextIds(Exception):
    """Ids are names, where numbers were expected: read all of the folder again, as text."""


class ReadAgain(Exception):
    """Read the table again, with these columns as text: as numbers their cells would differ from the file."""

    def __init__(self, *columns: str | None) -> None:
        super().__init__(*columns)
        self.columns = {column for column in columns if column is not None}


def kind_of(path: Path) -> str:
    """The suffix of a table's name without that of gzip: "csv" of nodes.csv.gz."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix[1:]


def stem_of(path: Path) -> str:
    """The name of a table without its suffixes: "nodes" of nodes.csv.gz."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).stem


def column_names(path: Path, header: bool | None = None) -> list[str]:
    """The columns of a table; "0", "1", ... of a csv whose first line is numbers. For `header` see read_frames."""
    with _told(path):
        first, *others = (_names(part, header) for part in _parts(path))
    for part, names in zip(_parts(path)[1:], others, strict=True):
        if sorted(names) != sorted(first):
            raise InputError(
                f"{part}: has the columns {', '.join(names)}; expected {', '.join(first)}, as in the first part of {path}"
            )
    twice = [name for name in first if first.count(name) > 1]
    if twice:
        raise InputError(
            f"{path}: has the column `{twice[0]}` more than once; expected each name once"
        )
    return first


def _names(path: Path, header: bool | None) -> list[str]:
    if kind_of(path) == "parquet":
        import pyarrow.parquet as pq

        with open_regular(path) as file:
            schema = pq.read_schema(file)
        return [str(name).strip() for name in (*schema.names, *parquet_files.named_ranges(schema))]
    return csv_files.layout_of(path, header).names


def _parts(path: Path) -> list[Path]:
    """The files of a table: itself, or those of a folder without marks such as _SUCCESS."""
    if not path.is_dir():
        return [path]
    parts = sorted(part for part in path.iterdir() if not part.name.startswith(("_", ".")))
    for part in parts:
        if not part.is_file() or kind_of(part) != kind_of(path):
            raise InputError(
                f"{part}: expected a {kind_of(path)} file, a part of the table {path}; write it without partitionBy, "
                "or take out what is no part"
            )
    if not parts:
        raise InputError(f"{path}: an empty folder; expected a table, or its part files")
    return parts


def read_frames(
    path: Path,
    header: bool | None = None,
    text: Collection[str | None] = (),
    only: Collection[str] | None = None,
    cells: int | None = None,
) -> Iterator["pd.DataFrame"]:
    """Read a csv or parquet table, CELLS at a time; the index counts on from frame to frame.

    There is one frame at least. InputError for what is no such table.

    Args:
        header: whether a csv has one; None: unless its first row is numbers. Columns are named 0, 1, ... without.
        text: columns that are read as text.
        only: the columns that are read; None: all.
        cells: cells per frame; None: CELLS, or TEXT_CELLS.
    """
    begin = 0
    for part in _parts(path):
        rows = 0
        with _told(part):
            size = cells or (TEXT_CELLS if text else CELLS)
            if kind_of(part) == "parquet":
                found = parquet_files.parquet_frames(part, size, text, only)
            else:
                found = csv_files.csv_frames(part, header, size, text, only)
            for frame in found:
                frame.index += begin
                rows += len(frame)
                yield frame
        begin += rows


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """What pandas and pyarrow raise, as an InputError with the file."""
    try:
        yield
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not a readable {kind_of(path)} table ({error}); save it as UTF-8"
        ) from None
    except (
        OSError,
        EOFError,
        zlib.error,
        ValueError,
        TypeError,
        LookupError,
        csv.Error,
    ) as error:  # pandas and pyarrow derive their parser errors from these
        reason = (str(error).strip().splitlines() or ["empty"])[0]
        raise InputError(f"{path}: not a readable {kind_of(path)} table ({reason})") from None


def has_odd_numbers(path: Path) -> bool:
    """Whether some number of a csv may begin with a zero or a plus sign, which are lost when it is read as a number."""
    if kind_of(path) == "parquet":
        return False
    with _told(path):
        return any(csv_files.has_odd_numbers(part) for part in _parts(path))


# --- columns ---------------------------------------------------------------------------------------------------------


def first_row(frame: "pd.DataFrame") -> int:
    return int(frame.index[0]) if len(frame) else 0


def numbers(
    frame: "pd.DataFrame", column: str, path: Path, expected: str = "expected a number"
) -> Array:
    """A column as an array of numbers; InputError names the first cell that is none."""
    cells = frame[column]
    if len(cells) == 0:
        return np.empty(0, dtype=np.int64)
    if cells.dtype.kind in "biuf" and isinstance(cells.dtype, np.dtype):
        return cells.to_numpy()
    times = cells.dtype.kind in "mM"  # which pandas takes for nanoseconds
    values = _parsed(cells.astype(str) if times else cells)
    wrong = np.flatnonzero((values.isna() & cells.notna()) | np.isinf(values))
    if len(wrong):
        row = int(wrong[0])
        shown = repr(cells.iloc[row])
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise InputError(
            f"{path}: column `{column}`, row {first_row(frame) + row} is {shown}; {expected}"
        )
    return values.to_numpy(
        dtype=np.float64 if values.isna().any() or values.dtype.kind == "f" else np.int64
    )


def _parsed(cells: "pd.Series[Any]") -> "pd.Series[Any]":
    """Each cell as a number, NaN where it is none that a float64 or an int64 holds."""
    import pandas as pd

    try:
        values = pd.to_numeric(cells, errors="coerce")
        if values.dtype.kind in "iuf":
            return values
    except (
        TypeError,
        ValueError,
        OverflowError,
    ):  # of what is no text either, or has too many digits
        pass
    return cells.map(_number).astype(np.float64)


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def is_text(cells: "pd.Series[Any]") -> bool:
    """Whether cells, none of them blank, are texts that are no numbers."""
    if cells.dtype.kind in "biufmM" or not isinstance(cells.iloc[0], str):
        return False
    return bool(_parsed(cells).isna().all())


def id_cells(
    frame: "pd.DataFrame", column: str, path: Path, *, as_text: bool, named: bool
) -> Array:
    """The ids of a column: int64 [K], or names, object [K].

    as_text: whether the column was read as text. named: whether ids are names.

    Raises:
        ReadAgain: the column has to be read as text.
        TextIds: it was, and its ids are names.
    """
    cells = frame[column]
    if not as_text:
        values = cells.to_numpy()
        if values.dtype.kind == "i" or not len(values):
            return values.astype(np.int64)
        if values.dtype.kind == "f" and are_whole(values).all():
            return values.astype(np.int64)
        raise ReadAgain(column)
    blank = np.flatnonzero(cells.isna())
    if len(blank):
        row = first_row(frame) + blank[0]
        raise InputError(f"{path}: column `{column}`, row {row} is blank; expected a node's id")
    return cells.astype(str).to_numpy(dtype=object) if named else _whole_numbers(cells)


def _whole_numbers(cells: "pd.Series[Any]") -> Ints:
    """Texts as int64 [K], where each is a number as Python writes it, or a whole one with .0; else TextIds."""
    stripped = cells.astype("str").str.strip().str.replace(r"^(-?\d+)\.0*$", r"\1", regex=True)
    try:
        values = stripped.astype(np.int64)
    except (ValueError, OverflowError):
        raise TextIds from None
    if not (values.astype("str") == stripped).all():
        raise TextIds
    return np.asarray(values, dtype=np.int64)


def integers_of(texts: Array) -> Array:
    """An array of texts as int64, where each is a whole number; else as it is."""
    import pandas as pd

    try:
        return _whole_numbers(pd.Series(texts.reshape(-1))).reshape(texts.shape)
    except TextIds:
        return texts


def label_cells(frame: "pd.DataFrame", column: str, *, text: bool) -> Array | Coded:
    """Numbers, NaN where blank; or the texts of a column that was read as `text`.

    Raises:
        ReadAgain: the column has to be read as text.
    """
    import pandas as pd

    cells = frame[column]
    if text:
        codes, texts = pd.factorize(cells)
        return codes.astype(np.int64), list(texts)
    if cells.dtype.kind not in "biuf" or not isinstance(cells.dtype, np.dtype):
        raise ReadAgain(column)
    values = cells.to_numpy()
    if values.dtype.kind == "f" and is_large(values):
        raise ReadAgain(column)
    return values


def is_large(values: Array) -> bool:
    """Whether some number may not be what a float64 holds."""
    return bool(((values >= MAX_EXACT) | (values <= -MAX_EXACT)).any())


def whole_numbers(frame: "pd.DataFrame", column: str, path: Path, expected: str) -> Ints:
    """Integers, which may be written as floats, int64 [K]; InputError names the first cell that is none."""
    where, begin = f"{path}: column `{column}`", first_row(frame)
    values = numbers(frame, column, path, expected)
    if values.dtype.kind == "f":
        blank = np.flatnonzero(np.isnan(values))
        if len(blank):
            raise InputError(f"{where}, row {begin + blank[0]} is blank; {expected}")
        refuse(values, ~are_whole(values), where, expected, begin)
        return values.astype(np.int64)
    return check_integers(values, where, begin)
