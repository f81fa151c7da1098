"""Compares the sizes of packed files of users with dataset_max_gib before they are read.

A few bytes can stand for any number: zeros in a zip, equal cells in a parquet file.
"""

import gzip
import logging
import math
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from partitioning.errors import InputError
from partitioning.file_io import GIB, UNREADABLE, open_regular

log = logging.getLogger(__name__)

DEFLATE_RATIO = 1032
"""A gzip file grows by this factor at most."""
CELL_BYTES = 8
"""Of a parquet column, in memory: a number, or where a text is."""
PIECE = 1 << 20
"""Bytes of a gzip file that are unpacked at a time."""


def check_table_sizes(tables: Iterable[Path], max_gib: float) -> None:
    """InputError for a file that grows too much; a folder has tables, or parts of one."""
    for table in tables:
        parts = sorted(table.rglob("*")) if table.is_dir() else [table]
        for part in parts:
            try:
                check_unpacked_size(part, max_gib)
            except InputError:
                raise
            except UNREADABLE:
                log.debug("%s: not readable, as its reader will say", part)


def check_unpacked_size(path: Path, max_gib: float) -> None:
    """InputError for a zip, npz, parquet or gzip file that takes much more memory than its size:
    dataset_max_gib more.

    Other files pass. The sizes are those that the file states, at which readers stop; a gzip file
    is unpacked piece by piece, because it states none.
    """
    with open_regular(path) as file:
        if path.suffix == ".parquet":
            size, packed = _measure_parquet(file), path.stat().st_size
        elif path.suffix == ".gz":
            packed = path.stat().st_size
            size = _measure_gzip(file, packed, packed + max_gib * GIB)
        elif zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
            size = sum(member.file_size for member in members)
            packed = sum(member.compress_size for member in members)
        else:
            return
    growth = size - packed
    if growth > max_gib * GIB:
        more = " or more" if path.suffix == ".gz" else ""
        raise InputError(
            f"{path}: grows by {growth / GIB:.3g} GiB{more}, to {size / GIB:.3g} GiB, when it is"
            f" unpacked; if it should hold so much, set dataset_max_gib={math.ceil(growth / GIB)},"
            f" which is {max_gib:g}"
        )


def _measure_parquet(file: IO[bytes]) -> int:
    """Return the bytes of all cells, of which equal ones can be stored once."""
    import pyarrow.parquet as pq

    metadata: Any = pq.read_metadata(file)
    columns = (
        metadata.row_group(group).column(place)
        for group in range(metadata.num_row_groups)
        for place in range(metadata.num_columns)
    )
    return sum(
        max(column.total_uncompressed_size, CELL_BYTES * column.num_values) for column in columns
    )


def _measure_gzip(file: IO[bytes], packed: int, limit: float) -> int:
    """Return the unpacked bytes, or the first number above the limit."""
    size = 0
    if packed * DEFLATE_RATIO > limit:
        with gzip.open(file) as unpacked:
            while size <= limit and (piece := unpacked.read(PIECE)):
                size += len(piece)
    return size
