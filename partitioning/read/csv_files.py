"""Detects the layout of a csv file, and reads its cells as text.

The encoding is UTF-8, or UTF-16 with a byte order mark; the file may be compressed by gzip.
Separators are commas, semicolons, tabs, `|` or `::`, and blanks in a .txt file.
"""

import contextlib
import csv
import gzip
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from partitioning.errors import InputError
from partitioning.files.file_io import open_regular

if TYPE_CHECKING:
    import pyarrow as pa

SEPARATORS = (",", "\t", ";", "|", "::")
BLANKS = r"\s+"
"""Separator of a .txt file in which no other fits."""
COMMENT = re.compile(r"[#%]+(\s|$)|%%|//|(?i:sep=.\s*$)")
"""How a line before the table begins that is no part of it; Excel's says the separator."""
APART = "\x1f"
"""The separator of ASCII for units, in place of those of several letters; texts may have tabs."""
HEAD = 10
"""Lines by which the separator is found."""
MAX_LINE = 1 << 24
"""Letters of a line."""
BLOCK = 1 << 22
"""Bytes of a csv that are parsed at a time."""


@dataclass(frozen=True)
class Layout:
    """Layout of a csv file."""

    num_comments: int
    """Lines before the table."""
    separator: str
    names: list[str]
    has_header: bool
    """Whether the first line of the table is a header."""


class _Blocks(io.RawIOBase):
    """Blocks of bytes, as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.blocks, self.held = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        self.held = self.held or memoryview(next(self.blocks, b""))
        piece, self.held = self.held[: len(target)], self.held[len(target) :]
        target[: len(piece)] = piece
        return len(piece)


def csv_batches(
    path: Path, header: bool | None, only: list[str] | None
) -> Iterator["pa.RecordBatch"]:
    """Yield rows with the columns `only` (None: all) as text, null where a cell is empty.

    header: see detect_layout, whose names and errors these are. Errors of pyarrow pass.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    layout = detect_layout(path, header)
    separator = layout.separator if len(layout.separator) == 1 else APART
    wide = len(layout.names) << 13  # some hundred rows: pieces of columns cost more than cells
    block = min(wide, 1 << 30) if len(layout.names) > 1000 else BLOCK
    with _open(path) as opened:
        for _ in range(layout.num_comments + layout.has_header):
            opened.readline()
        rows = io.BufferedReader(_Blocks(_clean_blocks(opened, layout)), BLOCK)
        if rows.peek(1):
            yield from arrow_csv.open_csv(
                rows,
                arrow_csv.ReadOptions(column_names=layout.names, block_size=block),
                arrow_csv.ParseOptions(
                    delimiter=separator, newlines_in_values=True, ignore_empty_lines=False
                ),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(layout.names, pa.string()),
                    null_values=[""],
                    strings_can_be_null=True,
                    include_columns=only,
                ),
            )


def _clean_blocks(file: io.TextIOWrapper, layout: Layout) -> Iterator[bytes]:
    """Yield the rest of a csv file as UTF-8 bytes, without empty lines at its end.

    Separators of several letters (blanks, ::) become APART, and blanks around the lines go then. In
    a single column empty lines stay: they are blank cells.
    """
    other = {BLANKS: "[ \\t]+", "::": "::"}.get(layout.separator)
    tail, is_end = "", False
    while not is_end:
        block = file.read(BLOCK)
        text, is_end = tail + block, not block
        # In a single column an empty line is a blank cell.
        end = len(text) if len(layout.names) == 1 else len(text.rstrip("\r\n"))
        end = end if is_end or other is None else text.rfind("\n", 0, end) + 1
        lines, tail = text[:end], text[end:]
        if other is not None:
            lines = re.sub(r"(?m)^[ \t]+|[ \t]+(?=\r?$)", "", lines)
            lines = re.sub(other, APART, lines)
        if lines:
            yield lines.encode()


def detect_layout(path: Path, header: bool | None) -> Layout:
    """Detect separator, column names, header and leading comments of a csv file.

    Without a header the names are 0, 1, ...; header: None: the first line is one unless all its
    cells are numbers. ValueError for an empty file; InputError for a second line that is longer
    than the first, a line above MAX_LINE, and another archive than gzip.
    """
    with _open(path) as file:
        comments: list[str] = []
        lines = iter(lambda: _read_line(file, path), "")
        line = next(lines, "")
        while COMMENT.match(line):
            comments.append(line)
            line = next(lines, "")
        head = [line, *islice(lines, HEAD - 1)]
    separator = _find_separator(head)
    # KONECT calls a table of numbers with blanks .tsv.
    if separator not in line and (
        ".txt" in path.suffixes or (".tsv" in path.suffixes and _are_numbers(line.split()))
    ):
        separator = BLANKS
    first, second = [*islice(_cells(head, separator), 2), [], []][:2]
    if not first:
        raise ValueError("empty")
    if len(second) > len(first):
        raise InputError(
            f"{path}: its second line has {len(second)} cells, the first has {len(first)}; expected"
            " as many"
        )
    # Such as SNAP's: # FromNodeId ToNodeId.
    if header is None and comments and comments[-1][0] in "#%":
        named = next(_cells([comments[-1].strip("#%").strip()], separator), [])
        if 1 < len(named) == len(first) and not any(" " in cell.strip() for cell in named):
            return Layout(len(comments), separator, [cell.strip() for cell in named], False)
    header = not _are_numbers(first) if header is None else header
    names = [cell.strip() if header else str(place) for place, cell in enumerate(first)]
    if names.count("") > 1:  # as after a; at the end of each line; pandas calls them so, too
        names = [name or f"Unnamed: {place}" for place, name in enumerate(names)]
    return Layout(len(comments), separator, names, header)


def _read_line(file: io.TextIOBase, path: Path) -> str:
    """Return the next line; InputError for one that no table has."""
    line = file.readline(MAX_LINE)
    if len(line) == MAX_LINE:
        raise InputError(f"{path}: has a line of more than {MAX_LINE:,} letters; expected a table")
    return line


def _find_separator(lines: list[str]) -> str:
    """Find the separator that splits the first lines into equally many cells.

    Of several, it is the one with most numbers, and then most cells, among them. Where none does,
    it is the most frequent one of the first line, a comma if there is none.
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
    """Split the lines of a csv file into cells; a separator of several letters has no quotes."""
    if len(separator) > 1:
        rows = (line.strip("\r\n") for line in lines)
        return (row.split(None if separator == BLANKS else separator) for row in rows)
    csv.field_size_limit(MAX_LINE)  # the whole line, where this is not its separator
    return csv.reader(lines, delimiter=separator)


def _are_numbers(cells: list[str]) -> bool:
    """Return whether all cells of a first line are numbers, blank ones left out.

    False for the header that pandas writes beside an index: a blank cell, then 0, 1, ...
    """
    if len(cells) > 1 and cells == ["", *map(str, range(len(cells) - 1))]:
        return False
    known = [cell for cell in cells if cell.strip()]
    return len(known) > 0 and all(map(_is_number, known))


def _is_number(cell: str) -> bool:
    """Return whether a cell is a number, with a decimal point or comma."""
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return "_" not in cell  # which Python takes for a separator of thousands


@contextlib.contextmanager
def _open(path: Path) -> Iterator[io.TextIOWrapper]:
    """Within the block, open a csv, maybe packed by gzip, as UTF-8 or UTF-16.

    InputError for another archive.
    """
    with (
        open_regular(path) as packed,
        gzip.open(packed) if path.suffix == ".gz" else packed as binary,
    ):
        mark = binary.peek(2)[:2]
        if mark in (b"PK", b"\x1f\x8b"):
            raise InputError(
                f"{path}: is a {'zip' if mark == b'PK' else 'gzip'} archive; unpack it, or give a"
                " gzip file the suffix .gz"
            )
        encoding = "utf-16" if mark in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        yield io.TextIOWrapper(cast(BinaryIO, binary), encoding, newline="")
