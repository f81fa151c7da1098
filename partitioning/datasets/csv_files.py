"""Detects the layout of a csv file, and reads its rows in chunks.

The encoding is UTF-8, or UTF-16 with a byte order mark; the file may be compressed by gzip.
Separators are commas, semicolons or tabs, and spaces in a .txt file.
"""

import contextlib
import csv
import gzip
import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, cast

import numpy as np

from partitioning.errors import InputError
from partitioning.file_io import open_regular

if TYPE_CHECKING:
    import pandas as pd

BLANK = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""Texts that mean a blank cell in a column of numbers."""
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
    """Read the columns `only` (None: all), those of `text` as text, about `cells` cells at a
    time.
    """
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
            for frame in _read_chunks(frames, path):
                _read_decimal_commas(frame, path, layout.separator, text)
                yield frame


def _read_chunks(frames: Iterator["pd.DataFrame"], path: Path) -> Iterator["pd.DataFrame"]:
    """Yield the frames; InputError for a number that no float64 holds, at which some pandas
    overflow.
    """
    try:
        yield from frames
    except OverflowError as error:
        raise InputError(
            f"{path}: row 0 or later is a number of more than 300 digits; expected a number below"
            " 1e308"
        ) from error


def _read_decimal_commas(
    frame: "pd.DataFrame", path: Path, separator: str, text: Collection[str | None]
) -> None:
    """Read 2,5 as a number if the separator is a semicolon; InputError with other separators."""
    import pandas as pd

    for name in frame.columns:
        if name in text or frame[name].dtype.kind in "biufc":
            continue
        cells = frame[name].dropna()
        if not len(cells):
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
                f"{path}: column `{name}`, row {cells.index[row]} is {written.iloc[row]!r}, a"
                " decimal comma or a list; write the number with a point, or separate columns by"
                " semicolons"
            )
        frame[name] = pd.to_numeric(frame[name].astype("str").str.replace(",", "."))


def detect_layout(path: Path, header: bool | None) -> Layout:
    """Detect separator, column names, header and leading comments of a csv file."""
    with _open(path) as file:
        comments: list[str] = []
        line = file.readline()
        while line.startswith("# "):
            comments.append(line)
            line = file.readline()
        separator = max(",\t;", key=line.count)
        if separator not in line and ".txt" in path.suffixes:
            separator = r"\s+"
        lines: list[list[str]] = [*islice(_cells(chain([line], file), separator), 2), [], []]
    first, second = lines[:2]
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


def _cells(lines: Any, separator: str) -> Iterator[list[str]]:
    """Split the lines of a csv file into cells."""
    if separator == r"\s+":
        return (line.split() for line in lines)
    return csv.reader(lines, delimiter=separator)


def _are_numbers(cells: list[str]) -> bool:
    """Whether the cells of a first line are numbers, and not the header 0, 1, ... of pandas."""
    if len(cells) > 1 and cells == ["", *map(str, range(len(cells) - 1))]:
        return False
    try:
        return len([float(cell) for cell in cells if cell.strip()]) > 0
    except ValueError:
        return False


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
    """Whether some number has leading zeros or a plus sign, which parsing as a number would
    lose.
    """
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
