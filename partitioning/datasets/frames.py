"""Reads csv and parquet tables in chunks, as data frames.

Rows are counted from 0, without the header. A table is a file, or a folder of part files as Spark
writes it.
"""

import contextlib
import csv
import logging
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from partitioning.array_checks import MAX_EXACT, Array, Ints, are_whole, check_integers, refuse
from partitioning.datasets import csv_files, parquet_files
from partitioning.errors import InputError, join_names
from partitioning.file_io import open_regular

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

CELLS = 1 << 23
"""Cells per chunk; 64 MiB of numbers."""
TEXT_CELLS = 1 << 21
"""Cells per chunk if some columns are text; 150 MiB."""


INVISIBLE = (
    "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
    + "\0\u200b\u200c\u200d\u2060\ufeff"
)
"""Letters that an id cannot have alone: spaces, also of no width."""

Coded = tuple[Ints, list[str]]
"""A column of text: [K] positions in the list of different texts, -1 where blank; and this list."""


class TextIds(Exception):
    """Raised if ids are names instead of numbers: all tables have to be read again, ids as text."""


class ReadAgain(Exception):
    """Raised if a table has to be read again with more columns as text, which keeps all digits."""

    def __init__(self, *columns: str | None) -> None:
        super().__init__(*columns)
        self.columns = {column for column in columns if column is not None}


def kind_of(path: Path) -> str:
    """Return the suffix before .gz: "csv" for nodes.csv.gz."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix[1:]


def stem_of(path: Path) -> str:
    """Return the file name without .gz and the one suffix before it: "a.b" for a.b.csv.gz."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).stem


def column_names(path: Path, header: bool | None = None) -> list[str]:
    """Return the column names; "0", "1", ... if a csv has no header.

    For `header` see read_frames.
    """
    with _explain_errors(path):
        first, *others = (_read_column_names(part, header) for part in _parts(path))
    for part, names in zip(_parts(path)[1:], others, strict=True):
        if sorted(names) != sorted(first):
            raise InputError(
                f"{part}: has the columns {join_names(names)}; expected {join_names(first)}, as in"
                f" the first part of {path}"
            )
    name, count = next(iter(Counter(first).most_common(1)), ("", 0))
    if count > 1:
        raise InputError(f"{path}: has the column `{name}` more than once; expected each name once")
    return first


def _read_column_names(path: Path, header: bool | None) -> list[str]:
    if kind_of(path) == "parquet":
        import pyarrow.parquet as pq

        with open_regular(path) as file:
            schema = pq.read_schema(file)
        return [str(name).strip() for name in (*schema.names, *parquet_files.named_ranges(schema))]
    return csv_files.detect_layout(path, header).names


def list_visible(folder: Path) -> list[Path]:
    """Return the content of a folder, sorted, without hidden files and markers such as _SUCCESS."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith(("_", ".")))


def warn_unread(folder: Path, formats: Mapping[str, tuple[str, ...]]) -> None:
    """Log the files that have the name of a table, but none of its formats, by name."""
    for file in list_visible(folder):
        stem = stem_of(file).lower()
        names = [f"{stem}.{suffix}" for suffix in formats.get(stem, ())]
        if names and file.name not in names:
            log.warning("%s: left out; expected %s", file, " or ".join(names))


def _parts(path: Path) -> list[Path]:
    """Return the files of a table, without markers such as _SUCCESS."""
    if not path.is_dir():
        return [path]
    parts = list_visible(path)
    for part in parts:
        if not part.is_file() or kind_of(part) != kind_of(path):
            raise InputError(
                f"{part}: expected a {kind_of(path)} file, a part of the table {path}; write it"
                " without partitionBy, or take out what is no part"
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
    """Read a csv or parquet table in chunks. The index counts the rows of the table.

    Args:
        path: The table.
        header: Whether a csv has a header; None: if its first row is not numbers.
        text: Columns to read as text.
        only: Columns to read; None: all.
        cells: Cells per chunk; None: CELLS, or TEXT_CELLS if there are columns of text.

    Yields:
        At least one data frame.

    Raises:
        InputError: the file is no such table.
    """
    begin = 0
    for part in _parts(path):
        rows = 0
        with _explain_errors(part):
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
def _explain_errors(path: Path) -> Iterator[None]:
    """Turn errors of pandas and pyarrow into an InputError that names the file."""
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
    """Whether some number of a csv has leading zeros or a plus sign, which parsing would lose."""
    if kind_of(path) == "parquet":
        return False
    with _explain_errors(path):
        return any(csv_files.has_odd_numbers(part) for part in _parts(path))


# --- columns ----------


def first_row(frame: "pd.DataFrame") -> int:
    """Return the row number in the table at which a chunk begins."""
    return int(frame.index[0]) if len(frame) else 0


def numbers(
    frame: "pd.DataFrame", column: str, path: Path, expected: str = "expected a number"
) -> Array:
    """Return a column as numbers; InputError for the first cell that is no number."""
    cells = frame[column]
    if len(cells) == 0:
        return np.empty(0, dtype=np.int64)
    if cells.dtype.kind in "biuf" and isinstance(cells.dtype, np.dtype):
        return cells.to_numpy()
    is_time = cells.dtype.kind in "mM"  # which pandas would convert to nanoseconds
    values = _parse_numbers(cells.astype(str) if is_time else cells)
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


def mask_cells(frame: "pd.DataFrame", column: str, path: Path) -> NDArray[np.bool_]:
    """Return a column of True and False, or 1 and 0, as bool; a blank cell is False."""
    expected = "expected True or False, or 1 or 0"
    cells = frame[column]
    if cells.dtype.kind not in "biuf":
        words = {"true": 1, "false": 0}
        cells = cells.map(lambda cell: words.get(str(cell).strip().lower(), cell))
    values = numbers(frame.assign(**{column: cells}), column, path, expected)
    wrong = (values != 0) & (values != 1) & ~np.isnan(values)
    refuse(values, wrong, f"{path}: column `{column}`", expected, first_row(frame))
    return np.asarray(values == 1)


def _parse_numbers(cells: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return the cells as numbers: integers if all are, else float64, NaN for no number."""
    import pandas as pd

    try:
        values = pd.to_numeric(cells, errors="coerce")
        if values.dtype.kind in "iuf":
            return values
    except (
        TypeError,
        ValueError,
        OverflowError,
    ):  # other objects, or too many digits
        pass
    return cells.map(_parse_number).astype(np.float64)


def _parse_number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def without_blank_texts(cells: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return the cells with texts of blanks as missing ones, as a csv has them."""
    if cells.dtype.kind in "biufmM":
        return cells
    blank = np.array([isinstance(cell, str) and not cell.strip() for cell in cells], np.bool_)
    return cells.mask(blank) if blank.any() else cells


def is_text(cells: "pd.Series[Any]") -> bool:
    """Whether cells without blanks are texts, none of them a number."""
    if cells.dtype.kind in "biufmM" or not isinstance(cells.iloc[0], str):
        return False
    return bool(_parse_numbers(cells).isna().all())


def id_cells(
    frame: "pd.DataFrame", column: str, path: Path, *, as_text: bool, named: bool
) -> Array:
    """Return the ids of a column: int64 [K], or names, object [K].

    Args:
        frame: A chunk of the table.
        column: The column of ids.
        path: The table, for messages.
        as_text: Whether the column was read as text.
        named: Whether ids are names.

    Raises:
        ReadAgain: the column has to be read as text.
        TextIds: the column was read as text, and its ids are names.
    """
    cells = frame[column]
    if not as_text:
        values = cells.to_numpy()
        if values.dtype.kind == "i" or not len(values):
            return values.astype(np.int64)
        if values.dtype.kind == "f" and are_whole(values).all():
            return values.astype(np.int64)
        raise ReadAgain(column)
    texts = cells.astype(str)
    blank = np.flatnonzero(cells.isna() | (texts.str.strip(INVISIBLE) == ""))
    if len(blank):
        row = first_row(frame) + blank[0]
        raise InputError(f"{path}: column `{column}`, row {row} is blank; expected a node's id")
    return texts.to_numpy(dtype=object) if named else _parse_integers(cells)


def _parse_integers(cells: "pd.Series[Any]") -> Ints:
    """Parse texts as int64 [K]; TextIds unless each is written as Python writes it, or with .0."""
    stripped = cells.astype("str").str.strip().str.replace(r"^(-?\d+)\.0*$", r"\1", regex=True)
    try:
        values = stripped.astype(np.int64)
    except (ValueError, OverflowError):
        raise TextIds from None
    if not (values.astype("str") == stripped).all():
        raise TextIds
    return np.asarray(values, dtype=np.int64)


def to_integers_if_whole(texts: Array) -> Array:
    """Return an array of texts as int64 if all are whole numbers, else unchanged."""
    import pandas as pd

    try:
        return _parse_integers(pd.Series(texts.reshape(-1))).reshape(texts.shape)
    except TextIds:
        return texts


def label_cells(frame: "pd.DataFrame", column: str, *, text: bool) -> Array | Coded:
    """Return labels as numbers, NaN where blank; or as texts if the column was read as `text`.

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
    """Whether float64 cannot represent every integer of this size."""
    return bool(((values >= MAX_EXACT) | (values <= -MAX_EXACT)).any())


def whole_numbers(frame: "pd.DataFrame", column: str, path: Path, expected: str) -> Ints:
    """Return a column as int64 [K], also from whole floats; InputError for the first other cell."""
    where, begin = f"{path}: column `{column}`", first_row(frame)
    values = numbers(frame, column, path, expected)
    if values.dtype.kind == "f":
        blank = np.flatnonzero(np.isnan(values))
        if len(blank):
            raise InputError(f"{where}, row {begin + blank[0]} is blank; {expected}")
        refuse(values, ~are_whole(values), where, expected, begin)
        return values.astype(np.int64)
    return check_integers(values, where, begin)
