"""Detects the layout of a csv file, and reads its rows in chunks.

The encoding is UTF-8, or UTF-16 with a byte order mark; the file may be compressed by gzip.
Separators are commas, semicolons or tabs, and spaces in a .txt file.
"""

import contextlib
import csv
import gzip
import io
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, cast

import numpy as np

from partitioning.errors import InputError
from partitioning.file_io import open_regular

if TYPE_CHECKING:
    import pandas as pd

BLANK = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""Texts that mean a blank cell in a column of numbers."""
SEPARATORS = ",\t;"
HEAD = 10
"""Lines by which the separator is found."""
MAX_LINE = 1 << 24
"""Letters of a line among the first ones."""
DECIMAL_COMMA = r"[+-]?(?:\d+(?:,\d*)?|,\d+)(?:[eE][+-]?\d+)?\s*"
THOUSANDS = r"[+-]?\d{1,3}(?:\.\d{3})+(?:,\d*)?\s*"
"""A number such as 1.234,5."""
SCANNED_BYTES = 1 << 20
"""Bytes per step of the search for numbers with leading zeros."""


@dataclass(frozen=True)
class Layout:
    """The layout of a csv file."""

    num_comments: int
    """Lines before the table that begin with "# "."""
    separator: str
    names: list[str]
    has_header: bool
    """Whether the first line of the table is a header."""


class _WithoutBlankEnd(io.TextIOBase):
    """A text stream without the empty lines at its end."""

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


def csv_frames(
    path: Path,
    header: bool | None,
    cells: int,
    text: Collection[str | None],
    only: Collection[str] | None = None,
) -> Iterator["pd.DataFrame"]:
    """Read the columns `only` (None: all), `text` as text, about `cells` cells at a time."""
    import pandas as pd

    layout = detect_layout(path, header)
    names = layout.names
    rows = max(1, cells // len(names))
    with _open(path) as opened:
        for _ in range(layout.num_comments):
            opened.readline()
        # In a single column an empty line is a blank cell.
        file = opened if len(names) == 1 else cast(TextIO, _WithoutBlankEnd(opened))
        with pd.read_csv(
            file,
            header=0 if layout.has_header else None,
            names=names,
            usecols=None if only is None else list(only),
            sep=layout.separator,
            skipinitialspace=True,
            skip_blank_lines=False,
            chunksize=rows,
            dtype=dict.fromkeys((name for name in names if name in text), "str"),
            na_values={name: [""] if name in text else list(BLANK) for name in names},
            keep_default_na=False,
        ) as frames:
            marks: dict[str, str] = {}
            for frame in _read_chunks(frames, path):
                _read_decimal_commas(frame, path, layout.separator, text, marks)
                yield frame


def _read_chunks(frames: Iterator["pd.DataFrame"], path: Path) -> Iterator["pd.DataFrame"]:
    """Yield the frames.

    Raises InputError for a number that no float64 holds, at which some pandas overflow.
    """
    try:
        yield from frames
    except OverflowError as error:
        raise InputError(
            f"{path}: row 0 or later is a number of more than 300 digits; expected a number below"
            " 1e308"
        ) from error


def _read_decimal_commas(
    frame: "pd.DataFrame",
    path: Path,
    separator: str,
    text: Collection[str | None],
    marks: dict[str, str],
) -> None:
    """Read 2,5 as a number if the separator is a semicolon; InputError with other separators.

    marks: the decimal mark of each column in the pieces before, which is refused if it changes.
    """
    import pandas as pd

    for name in frame.columns:
        cells = frame[name].dropna()
        if name in text or not len(cells):
            continue
        if cells.dtype.kind in "biufc":
            # Below 1e-4 it may be written with an exponent, without a point.
            is_fraction = (
                cells.dtype.kind == "f" and ((cells % 1 != 0) & (cells.abs() >= 1e-4)).any()
            )
            if is_fraction and marks.setdefault(name, ".") != ".":
                raise InputError(
                    f"{path}: column `{name}`: numbers from row {frame.index[0]} on have decimal"
                    " points, others decimal commas; write one of them"
                )
            continue
        first = str(cells.iloc[0])
        if not re.fullmatch(f"{DECIMAL_COMMA}|{THOUSANDS}", first):
            continue  # a text, of which a table can have thousands of columns
        written = cells.astype("str")
        has_comma = written.str.contains(",").to_numpy()
        in_thousands = written.str.fullmatch(THOUSANDS).to_numpy()
        if not (written.str.fullmatch(DECIMAL_COMMA) | in_thousands).all() or not has_comma.any():
            continue
        wrong = has_comma if separator != ";" else in_thousands
        if wrong.any():
            row = int(wrong.argmax())
            remedy = (
                "a number with a separator of thousands; write it without"
                if separator == ";"
                else "a decimal comma or a list; write the number with a point, or separate columns"
                " by semicolons"
            )
            raise InputError(
                f"{path}: column `{name}`, row {cells.index[row]} is {written.iloc[row]!r},"
                f" {remedy}"
            )
        if marks.setdefault(name, ",") != ",":
            raise InputError(
                f"{path}: column `{name}`, row {cells.index[0]} is {written.iloc[0]!r}, a number"
                " with a decimal comma, and others have decimal points; write one of them"
            )
        frame[name] = pd.to_numeric(frame[name].astype("str").str.replace(",", "."))


def detect_layout(path: Path, header: bool | None) -> Layout:
    """Detect separator, column names, header and leading comments of a csv file."""
    with _open(path) as file:
        comments: list[str] = []
        lines = iter(lambda: _read_line(file, path), "")
        line = next(lines, "")
        while line.startswith("# "):
            comments.append(line)
            line = next(lines, "")
        head = [line, *islice(lines, HEAD - 1)]
    separator = _find_separator(head)
    if separator not in line and ".txt" in path.suffixes:
        separator = r"\s+"
    first, second = [*islice(_cells(head, separator), 2), [], []][:2]
    if not first:
        raise ValueError("empty")
    if len(second) > len(first):  # pandas would silently use the first cells as an index
        raise InputError(
            f"{path}: its second line has {len(second)} cells, the first has {len(first)}; expected"
            " as many"
        )
    if header is None and comments:  # such as SNAP's: # FromNodeId ToNodeId
        named = next(_cells([comments[-1][1:].strip()], separator), [])
        if 1 < len(named) == len(first) and not any(" " in cell.strip() for cell in named):
            return Layout(len(comments), separator, [cell.strip() for cell in named], False)
    header = not _are_numbers(first) if header is None else header
    names = [cell.strip() if header else str(place) for place, cell in enumerate(first)]
    return Layout(len(comments), separator, names, header)


def _read_line(file: TextIO, path: Path) -> str:
    """Return the next line; InputError for one that no table has."""
    line = file.readline(MAX_LINE)
    if len(line) == MAX_LINE:
        raise InputError(f"{path}: has a line of more than {MAX_LINE:,} letters; expected a table")
    return line


def _find_separator(lines: list[str]) -> str:
    """Find the separator that splits the first lines into equally many cells.

    Of several, it is the one with most numbers, and then most cells, among them.
    """
    fitting = {}
    for separator in SEPARATORS:
        rows = [row for row in _cells(lines, separator) if row]
        rows = rows[:-1] if len(lines) == HEAD else rows  # the last may go on
        width = len(rows[0]) if rows else 0
        if width > 1 and all(len(row) == width for row in rows):
            cells = [cell for row in rows[1:] for cell in row]
            share = sum(map(_is_number, cells)) / max(len(cells), 1)
            fitting[separator] = (share, width)
    if len(fitting) > 1 or (fitting and len(lines) > 1):
        return max(fitting, key=fitting.__getitem__)
    return max(SEPARATORS, key=lines[0].count)


def _cells(lines: Any, separator: str) -> Iterator[list[str]]:
    """Split the lines of a csv file into cells."""
    if separator == r"\s+":
        return (line.split() for line in lines)
    return csv.reader(lines, delimiter=separator)


def _are_numbers(cells: list[str]) -> bool:
    """Whether the cells of a first line are numbers, and not the header 0, 1, ... of pandas."""
    if len(cells) > 1 and cells == ["", *map(str, range(len(cells) - 1))]:
        return False
    known = [cell for cell in cells if cell.strip()]
    return len(known) > 0 and all(map(_is_number, known))


def _is_number(cell: str) -> bool:
    """Whether a cell is a number, with a decimal point or comma."""
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True


@contextlib.contextmanager
def _open(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a csv as text."""
    with (
        open_regular(path) as packed,
        gzip.open(packed) if path.suffix == ".gz" else packed as binary,
    ):
        mark = binary.peek(2)[:2]
        encoding = "utf-16" if mark in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        yield io.TextIOWrapper(cast(BinaryIO, binary), encoding, newline="")


def has_odd_numbers(path: Path) -> bool:
    """Whether some number has leading zeros or a plus sign, which a number would lose."""
    with _open(path) as text:
        if text.encoding == "utf-16":
            return True
        file: Any = text.buffer
        tail = b"\n\n"
        while block := file.read(SCANNED_BYTES):
            found = np.frombuffer(tail + block, np.uint8)
            digits = (found >= ord("0")) & (found <= ord("9"))
            ends = (found < ord("0")) & (found != ord(".")) & (found != ord("-"))
            zero = (found[2:-1] == ord("0")) & digits[3:]
            after_minus = (found[1:-2] == ord("-")) & ends[:-3]
            plus = (found[2:-1] == ord("+")) & ends[1:-2] & digits[3:]
            if ((zero & ((ends[1:-2] & (found[1:-2] != ord("+"))) | after_minus)) | plus).any():
                return True
            tail = found[-3:].tobytes()
    return False
