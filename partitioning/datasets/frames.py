"""Reading csv and parquet tables a piece at a time. Rows are counted from 0, without the header.

A table is a file, compressed by gzip or not, or a folder of part files, as Spark writes them. A csv is in UTF-8, or in
UTF-16 with a byte order mark; its cells are separated by commas, semicolons or tabs, those of a .txt also by blanks.
"""

import contextlib
import csv
import gzip
import io
import re
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from partitioning.checks import Array, Ints, check_integers, refuse
from partitioning.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

CELLS = 1 << 23
"""Cells of a table that are read at a time; 64 MiB of numbers."""
TEXT_CELLS = 1 << 21
"""The same with ids that are names; 150 MiB."""
SCANNED_BYTES = 1 << 20
"""Bytes that are looked through at a time for numbers with leading zeros."""
BLANK = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""What stands for nothing in a column of numbers."""
MAX_EXACT = 2**53
"""A float64 of this size may stand for several integers."""
NAMELESS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""What pandas calls an index without a name, in a csv, in a csv that it has read again, and in parquet."""


Coded = tuple[Ints, list[str]]
"""A column of texts: [K] the number of the text of each row, -1 where it is blank; and the texts."""


class TextIds(Exception):
    """Ids are names, where numbers were expected: read all of the folder again, as text."""


class TextColumn(Exception):
    """Read the table again with this column as text: as numbers its cells would not be what the file has."""

    def __init__(self, column: str) -> None:
        super().__init__(column)
        self.column = column


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

        schema = pq.read_schema(path)
        return [str(name).strip() for name in (*schema.names, *_named_ranges(schema))]
    return _layout(path, header).names


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
    path: Path, header: bool | None = None, text: Collection[str | None] = ()
) -> Iterator["pd.DataFrame"]:
    """Read a csv or parquet table, CELLS at a time; the index counts on from frame to frame.

    There is one frame at least. InputError for what is no such table.

    Args:
        header: whether a csv has one; None: unless its first row is numbers. Columns are named 0, 1, ... without.
        text: columns that are read as text.
    """
    begin = 0
    for part in _parts(path):
        rows = 0
        with _told(part):
            if kind_of(part) == "parquet":
                found = _parquet_frames(part, TEXT_CELLS if text else CELLS, text)
            else:
                found = _csv_frames(part, header, text)
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
    except ImportError as error:  # of pandas, or of pyarrow
        raise InputError(
            f"{path}: reading it needs {error.name}; pip install -e '.[tables]' -c constraints.txt"
        ) from None
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


# --- csv -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """How a csv is laid out."""

    num_comments: int
    """Lines that begin with "# " before the table."""
    separator: str
    names: list[str]
    has_header: bool
    """Whether the first line of the table holds the names."""


class _WithoutBlankEnd(io.TextIOBase):
    """A text without the empty lines at its end."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.held = file, ""

    def read(self, size: int | None = -1) -> str:
        while piece := self.file.read(-1 if size is None else size):
            text = self.held + piece
            body = text.rstrip("\r\n")
            self.held = text[len(body) :]
            if body:
                return body
        return ""


def _csv_frames(
    path: Path, header: bool | None, text: Collection[str | None]
) -> Iterator["pd.DataFrame"]:
    import pandas as pd

    layout = _layout(path, header)
    names = layout.names
    rows = max(1, (TEXT_CELLS if text else CELLS) // len(names))
    with _open(path) as file:
        for _ in range(layout.num_comments):
            file.readline()
        # In a single column an empty line is a blank cell.
        table = file if len(names) == 1 else cast(TextIO, _WithoutBlankEnd(file))
        with pd.read_csv(
            table,
            header=0 if layout.has_header else None,
            names=names,
            sep=layout.separator,
            skipinitialspace=True,
            skip_blank_lines=False,
            chunksize=rows,
            dtype=dict.fromkeys((name for name in names if name in text), "str"),
            na_values={name: [""] if name in text else list(BLANK) for name in names},
            keep_default_na=False,
        ) as frames:
            for frame in frames:
                _read_decimal_commas(frame, path, layout.separator, text)
                yield frame


def _read_decimal_commas(
    frame: "pd.DataFrame", path: Path, separator: str, text: Collection[str | None]
) -> None:
    """Read 2,5 as a number in a table whose separator is a semicolon; InputError in others, where it is not certain."""
    import pandas as pd

    for name in frame.columns:
        cells = frame[name].dropna()
        if name in text or cells.dtype.kind in "biufc" or not len(cells):
            continue
        written = cells.astype("str")
        if (
            not written.str.fullmatch(r"-?\d+(?:,\d+)?").all()
            or not written.str.contains(",").any()
        ):
            continue
        if separator != ";":
            row = int(written.str.contains(",").to_numpy().argmax())
            raise InputError(
                f"{path}: column `{name}`, row {cells.index[row]} is {written.iloc[row]!r}, a decimal comma or a list; "
                "write the number with a point, or separate columns by semicolons"
            )
        frame[name] = pd.to_numeric(frame[name].astype("str").str.replace(",", "."))


def _layout(path: Path, header: bool | None) -> _Layout:
    with _open(path) as file:
        comments: list[str] = []
        line = file.readline()
        while line.startswith("# "):
            comments.append(line)
            line = file.readline()
        separator = max(",\t;", key=line.count)
        if separator not in line and kind_of(path) == "txt":
            separator = r"\s+"
        lines: list[list[str]] = [*islice(_cells(chain([line], file), separator), 2), [], []]
    first, second = lines[:2]
    if not first:
        raise ValueError("empty")
    if len(second) > len(first):  # pandas would take what is too much for an index, without a word
        raise InputError(
            f"{path}: its second line has {len(second)} cells, the first has {len(first)}; expected as many"
        )
    if header is None and comments:  # such as SNAP's: # FromNodeId ToNodeId
        named = next(_cells([comments[-1][1:].strip()], separator), [])
        if 1 < len(named) == len(first) and not any(" " in cell.strip() for cell in named):
            return _Layout(len(comments), separator, [cell.strip() for cell in named], False)
    header = not _are_numbers(first) if header is None else header
    names = [cell.strip() if header else str(place) for place, cell in enumerate(first)]
    return _Layout(len(comments), separator, names, header)


def _cells(lines: Any, separator: str) -> Iterator[list[str]]:
    if separator == r"\s+":
        return (line.split() for line in lines)
    return csv.reader(lines, delimiter=separator)


def _are_numbers(cells: list[str]) -> bool:
    """Whether the cells of a first line are numbers, and not the 0, 1, ... that pandas writes for missing names."""
    if len(cells) > 1 and cells == ["", *map(str, range(len(cells) - 1))]:
        return False
    try:
        return len([float(cell) for cell in cells if cell.strip()]) > 0
    except ValueError:
        return False


@contextlib.contextmanager
def _open(path: Path) -> Iterator[io.TextIOWrapper]:
    """A csv as text."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as binary:
        mark = binary.peek(2)[:2]
        encoding = "utf-16" if mark in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        yield io.TextIOWrapper(cast(BinaryIO, binary), encoding, newline="")


def has_odd_numbers(path: Path) -> bool:
    """Whether some number of a csv may begin with a zero or a plus sign, which are lost when it is read as a number."""
    if kind_of(path) == "parquet":
        return False
    with _told(path):
        return any(_scan(part) for part in _parts(path))


def _scan(path: Path) -> bool:
    digits = (ord("0"), ord("9"))
    with _open(path) as text:
        if text.encoding == "utf-16":
            return True
        file: Any = text.buffer
        tail = b"\n"
        while block := file.read(SCANNED_BYTES):
            found = np.frombuffer(tail + block, np.uint8)
            before, first, after = found[:-2], found[1:-1], found[2:]
            zero = (first == digits[0]) & (after >= digits[0]) & (after <= digits[1])
            begins = (before < digits[0]) & (before != ord("."))
            if (begins & (zero | (first == ord("+")))).any():
                return True
            tail = found[-2:].tobytes()
    return False


# --- parquet ---------------------------------------------------------------------------------------------------------


def _parquet_frames(
    path: Path, cells: int, text: Collection[str | None]
) -> Iterator["pd.DataFrame"]:
    """Columns as the file has them: an index of pandas is one of these."""
    import pandas as pd
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        rows, begin = max(1, cells // max(1, len(file.schema_arrow))), 0
        ranges = _named_ranges(file.schema_arrow)
        for batch in chain(file.iter_batches(rows), [file.schema_arrow.empty_table()]):
            if begin and not batch.num_rows:
                continue
            frame = batch.to_pandas(ignore_metadata=True)
            for name, ids in ranges.items():
                frame[name] = np.array(ids[begin : begin + len(frame)], np.int64)
            frame.index = pd.RangeIndex(begin, begin + len(frame))
            for place, name in enumerate(batch.schema.names):
                if name.strip() in text:
                    frame[name] = _as_text(batch.column(place), name, path, begin)
            for name in ranges.keys() & set(text):
                frame[name] = frame[name].astype("str")
            frame.columns = frame.columns.str.strip()
            begin += len(frame)
            yield frame


def _named_ranges(schema: Any) -> dict[str, range]:
    """Columns that pandas writes as start, stop and step alone: an index of equal steps that has a name."""
    described = (schema.pandas_metadata or {}).get("index_columns", [])
    ranges = (each for each in described if isinstance(each, dict) and each.get("name") is not None)
    return {str(each["name"]): range(each["start"], each["stop"], each["step"]) for each in ranges}


def _as_text(column: Any, name: str, path: Path, begin: int) -> "pd.Series[Any]":
    """A column of a parquet file as text."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        known = np.flatnonzero(pc.is_valid(column).to_numpy(zero_copy_only=False))
        value = repr(column[int(known[0])].as_py())[:60] if len(known) else "blank"
        raise InputError(
            f"{path}: column `{name}`, row {begin + int(known[0]) if len(known) else begin} is {value}, of type {kind}; "
            "expected a number or a text: write it as one"
        )
    column = column.cast(kind)
    if pa.types.is_floating(kind) and _whole(column.to_numpy(zero_copy_only=False)).all():
        column = column.cast(pa.int64())
    cells: pd.Series[Any] = column.cast(pa.string()).to_pandas()
    cells.index = pd.RangeIndex(begin, begin + len(cells))
    return cells


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


def is_text(frame: "pd.DataFrame", column: str) -> bool:
    """Whether a column has cells, and all of them are texts that are no numbers."""
    cells = frame[column].dropna()
    if not len(cells) or cells.dtype.kind in "biufmM" or not isinstance(cells.iloc[0], str):
        return False
    return bool(_parsed(cells).isna().all())


def id_cells(
    frame: "pd.DataFrame", column: str, path: Path, *, as_text: bool, named: bool
) -> Array:
    """The ids of a column: int64 [K], or names, object [K].

    as_text: whether the column was read as text. named: whether ids are names.

    Raises:
        TextColumn: the column has to be read as text.
        TextIds: it was, and its ids are names.
    """
    cells = frame[column]
    if not as_text:
        values = cells.to_numpy()
        if values.dtype.kind == "i" or not len(values):
            return values.astype(np.int64)
        if values.dtype.kind == "f" and _whole(values).all():
            return values.astype(np.int64)
        raise TextColumn(column)
    blank = np.flatnonzero(cells.isna())
    if len(blank):
        row = first_row(frame) + blank[0]
        raise InputError(f"{path}: column `{column}`, row {row} is blank; expected a node's id")
    return cells.astype(str).to_numpy(dtype=object) if named else _whole_numbers(cells)


def _whole(values: Array) -> NDArray[np.bool_]:
    """[K] whether a float is an integer that no other integer is rounded to."""
    whole: NDArray[np.bool_] = (values == np.floor(values)) & (np.abs(values) < MAX_EXACT)
    return whole


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


def label_cells(frame: "pd.DataFrame", column: str, *, text: bool) -> Array | Coded:
    """Numbers, NaN where blank; or the texts of a column that was read as `text`.

    Raises:
        TextColumn: the column has to be read as text.
    """
    import pandas as pd

    cells = frame[column]
    if text:
        codes, texts = pd.factorize(cells)
        return codes.astype(np.int64), list(texts)
    if cells.dtype.kind not in "biuf" or not isinstance(cells.dtype, np.dtype):
        raise TextColumn(column)
    values = cells.to_numpy()
    if values.dtype.kind == "f" and is_large(values):
        raise TextColumn(column)
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
        refuse(values, ~_whole(values), where, expected, begin)
        return values.astype(np.int64)
    return check_integers(values, where, begin)
