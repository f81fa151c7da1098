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
from partitioning.files.file_io import GIB, UNREADABLE, open_regular

log = logging.getLogger(__name__)

DEFLATE_RATIO = 1032
"""A gzip file grows by this factor at most."""
CELL_BYTES = 8
"""Bytes of a parquet column's cell in memory: a number, or where a text is."""
TEXTS = 1_000
"""Texts of a parquet column that are unpacked at a time."""
PIECE = 1 << 20
"""Bytes of a gzip file that are unpacked at a time."""


def check_table_sizes(tables: Iterable[Path], max_gib: float) -> None:
    """Raise InputError for a file that grows too much; a folder has tables, or parts of one.

    Files that cannot be read pass.
    """
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
    """Raise InputError for a packed file that takes over `max_gib` GiB more memory than its size.

    Packed files are zip, npz, parquet and gzip; others pass. The sizes are those that the file
    states, at which readers stop; a gzip file is unpacked piece by piece, because it states none.
    A damaged file raises one of UNREADABLE.
    """
    with open_regular(path) as file:
        if path.suffix == ".parquet":
            packed = path.stat().st_size
            size = _measure_parquet(file, packed + max_gib * GIB)
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
        more = " or more" if path.suffix in (".gz", ".parquet") else ""
        raise InputError(
            f"{path}: grows by {growth / GIB:.3g} GiB{more}, to {size / GIB:.3g} GiB, when it is"
            f" unpacked; if it should hold so much, set dataset_max_gib={math.ceil(growth / GIB)},"
            f" which is {max_gib:g}"
        )


def _measure_parquet(file: IO[bytes], limit: float) -> int:
    """Return the bytes of all cells, of which equal ones can be stored once.

    Above `limit` it is a lower bound.
    """
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file, buffer_size=1 << 10)
    metadata: Any = table.metadata
    places = range(metadata.num_columns)
    size = 0
    for group in range(metadata.num_row_groups):
        # Opens the columns and reads no row: column() would end the process for a damaged one.
        for _ in table.reader.iter_batches(0, row_groups=[group], column_indices=places):
            pass
        for place in places:
            column = metadata.row_group(group).column(place)
            size += max(column.total_uncompressed_size, CELL_BYTES * column.num_values)
            is_text = column.physical_type == "BYTE_ARRAY"
            longest = column.total_uncompressed_size * column.num_values
            if is_text and size <= limit < longest:
                size += _measure_texts(file, metadata, group, place, limit)
    return size


def _measure_texts(file: IO[bytes], metadata: Any, group: int, place: int, limit: float) -> int:
    """Return the bytes of the texts of a column of a row group, or the first sum above the limit.

    Counted is the longest text in every row, or where that is too much all texts.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    column, path = metadata.row_group(group).column(place), metadata.schema.column(place).path
    is_shared = "DELTA_BYTE_ARRAY" in column.encodings  # each text has the beginning of another
    texts = pq.ParquetFile(file, read_dictionary=[] if is_shared else [path])
    size = 0
    for batch in texts.iter_batches(TEXTS, row_groups=[group], columns=[path]):
        cells: Any = batch.column(0)
        while (
            hasattr(cells, "flatten") and not hasattr(cells, "dictionary") and cells.type.num_fields
        ):
            cells = cells.flatten()
        if hasattr(cells, "dictionary"):
            lengths = pc.binary_length(cells.dictionary)
            longest = column.num_values * (pc.max(lengths).as_py() or 0)
            if not size and longest <= limit:
                return int(longest)
            lengths = lengths.take(cells.indices)
        else:
            lengths = pc.binary_length(cells)
        size += int(pc.sum(lengths).as_py() or 0)
        if size > limit:
            break
    return size


def _measure_gzip(file: IO[bytes], packed: int, limit: float) -> int:
    """Return the unpacked bytes, or the first number above the limit.

    0 where it cannot be above.
    """
    size = 0
    if packed * DEFLATE_RATIO > limit:
        with gzip.open(file) as unpacked:
            while size <= limit and (piece := unpacked.read(PIECE)):
                size += len(piece)
    return size
