"""Reading csv and parquet files a piece at a time. Rows are counted from 0, without the header."""

import contextlib
import csv
import gzip
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from partitioning.checks import Array, Ints, check_integers
from partitioning.errors import InputError
from partitioning.files import open_regular

if TYPE_CHECKING:
    import pandas as pd

CELLS = 1 << 23
"""Cells of a table that are read at a time; 64 MiB of numbers."""
TEXT_CELLS = 1 << 21
"""The same with ids that are names; 150 MiB."""
BLANK = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""What stands for nothing, but as an id."""


class TextIds(Exception):
    """Ids are names, where numbers were expected: read all of the folder again, as text."""


def column_names(path: Path) -> list[str]:
    """The columns of a table; "0", "1", ... of a csv whose first line is numbers."""
    with _told(path):
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            with open_regular(path) as file:
                names = [str(name).strip() for name in pq.read_schema(file).names]
        else:
            first = _first_lines(path)[0]
            header = _has_header(path)
            names = [cell.strip() if header else str(place) for place, cell in enumerate(first)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(
            f"{path}: has the column `{twice[0]}` more than once; expected each name once"
        )
    return names


def read_frames(
    path: Path, header: bool | None = None, text: Collection[str] = ()
) -> Iterator["pd.DataFrame"]:
    """Read a csv or parquet file, CELLS at a time; the index counts on from frame to frame.

    There is one frame at least. InputError for what is no such table.

    Args:
        header: whether a csv has one; None: unless its first row is numbers. Columns are named 0, 1, ... without.
        text: columns that are read as text.
    """
    with _told(path):
        if path.suffix == ".parquet":
            yield from _parquet_frames(path, TEXT_CELLS if text else CELLS)
        else:
            yield from _csv_frames(path, _has_header(path) if header is None else header, text)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """What pandas and pyarrow raise, as an InputError with the file."""
    try:
        yield
    except ImportError as error:  # of pandas, or of pyarrow
        raise InputError(
            f"{path}: reading it needs {error.name}; pip install -e '.[tables]' -c constraints.txt"
        ) from None
    except InputError:
        raise
    except (
        OSError,
        ValueError,
        csv.Error,
    ) as error:  # pandas and pyarrow derive their parser errors from these
        reason = (str(error).strip().splitlines() or ["empty"])[0]
        raise InputError(f"{path}: not a readable {path.suffix[1:]} table ({reason})") from None


def _csv_frames(path: Path, header: bool, text: Collection[str]) -> Iterator["pd.DataFrame"]:
    import pandas as pd

    first, second = _first_lines(path)
    if len(second) > len(first):  # pandas would take what is too much for an index, without a word
        raise InputError(
            f"{path}: its second line has {len(second)} cells, the first has {len(first)}; expected as many"
        )
    names = [cell.strip() if header else str(place) for place, cell in enumerate(first)]
    rows = max(1, (TEXT_CELLS if text else CELLS) // len(names))
    blank = {name: [""] if name in text else list(BLANK) for name in names} if text else None
    with (
        open_regular(path) as file,
        pd.read_csv(
            file,
            compression="gzip" if path.suffix == ".gz" else None,
            header=0 if header else None,
            names=names,
            sep=_separator(path),
            skipinitialspace=True,
            skip_blank_lines=False,
            chunksize=rows,
            dtype=dict.fromkeys(text, object),
            na_values=blank,
            keep_default_na=not text,
        ) as frames,
    ):
        yield from frames


def _parquet_frames(path: Path, cells: int) -> Iterator["pd.DataFrame"]:
    import pandas as pd
    import pyarrow.parquet as pq

    with open_regular(path) as content, pq.ParquetFile(content) as file:
        rows, begin = max(1, cells // max(1, len(file.schema_arrow))), 0
        for batch in file.iter_batches(rows):
            frame = batch.to_pandas()
            frame.index = pd.RangeIndex(begin, begin + len(frame))
            frame.columns = frame.columns.str.strip()
            begin += len(frame)
            yield frame
        if begin == 0:
            yield file.schema_arrow.empty_table().to_pandas()


def _has_header(path: Path) -> bool:
    """Whether some cell of the first line is no number."""
    try:
        return not [float(cell) for cell in _first_lines(path)[0] if cell.strip()]
    except ValueError:
        return True


def _open(path: Path):  # type: ignore[no-untyped-def]
    return (
        gzip.open(open_regular(path), "rt")
        if path.suffix == ".gz"
        else open_regular(path, "r", encoding="utf-8-sig", newline="")
    )


def _separator(path: Path) -> str:
    with _open(path) as file:
        line = file.readline()
    return max(",\t;", key=line.count)


def _first_lines(path: Path) -> tuple[list[str], list[str]]:
    """The cells of the first two lines."""
    with _open(path) as file:
        lines: list[list[str]] = [*islice(csv.reader(file, delimiter=_separator(path)), 2), [], []]
    if not lines[0]:
        raise ValueError("empty")
    return lines[0], lines[1]


def first_row(frame: "pd.DataFrame") -> int:
    return int(frame.index[0]) if len(frame) else 0


def numbers(
    frame: "pd.DataFrame", column: str, path: Path, expected: str = "expected a number"
) -> Array:
    """A column as an array of numbers; InputError names the first cell that is none."""
    import pandas as pd

    cells = frame[column]
    if len(cells) == 0:
        return np.empty(0, dtype=np.int64)
    if cells.dtype.kind in "biuf" and isinstance(cells.dtype, np.dtype):
        return cells.to_numpy()
    times = cells.dtype.kind in "mM"  # which pandas takes for nanoseconds
    values = pd.to_numeric(cells.astype(str) if times else cells, errors="coerce")
    wrong = np.flatnonzero(values.isna() & cells.notna())
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"{path}: column `{column}`, row {first_row(frame) + row} is {cells.iloc[row]!r}; {expected}"
        )
    return values.to_numpy(
        dtype=np.float64 if values.isna().any() or values.dtype.kind == "f" else np.int64
    )


def is_text(frame: "pd.DataFrame", column: str) -> bool:
    """Whether a column has cells, and none of them is a number."""
    import pandas as pd

    cells = frame[column].dropna()
    if not len(cells) or cells.dtype.kind in "biufmM":
        return False
    return bool(pd.to_numeric(cells, errors="coerce").isna().all())


def id_cells(frame: "pd.DataFrame", column: str, path: Path, *, text: bool) -> Array:
    """The ids of a column: int64 [K], or as text object [K]. TextIds where they are no numbers."""
    where, begin = f"{path}: column `{column}`", first_row(frame)
    cells = frame[column]
    blank = np.flatnonzero(cells.isna())
    if len(blank):
        raise InputError(f"{where}, row {begin + blank[0]} is blank; expected a node's id")
    if text:
        return cells.astype(str).to_numpy(dtype=object)
    try:
        values = numbers(frame, column, path)
    except InputError:
        raise TextIds from None
    return check_integers(values, where, begin)


def label_cells(frame: "pd.DataFrame", column: str) -> Array:
    """Numbers, NaN where blank; or, where some cell is no number, object [K] of text, None where blank."""
    cells = frame[column]
    if cells.dtype.kind in "biuf" and isinstance(cells.dtype, np.dtype):
        return cells.to_numpy()
    made: Array = cells.astype(object).where(cells.notna(), None).to_numpy()
    return made


def integers(frame: "pd.DataFrame", column: str, path: Path) -> Ints:
    return check_integers(
        numbers(frame, column, path), f"{path}: column `{column}`", first_row(frame)
    )
