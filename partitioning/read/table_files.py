"""Reads csv, parquet and feather tables as columns.

Rows are counted from 0, without the header. A table is a file, or a folder of part files as Spark
writes it, which are read as one.
"""

import contextlib
import importlib
import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError, join_names
from partitioning.files.file_io import explaining, open_regular
from partitioning.graph.array_checks import Ints
from partitioning.graph.schema import Frame, Source
from partitioning.read import csv_files
from partitioning.read.cells import (
    Cells,
    as_integers,
    as_numbers,
    has_leading_zeros,
    read_decimal_commas,
)

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

KINDS = {"csv": "csv", "tsv": "csv", "txt": "csv", "parquet": "parquet", "feather": "feather"}
"""Formats of tables, by suffix."""
SUFFIXES = ("csv", "csv.gz", "tsv", "tsv.gz", "txt", "txt.gz", "parquet", "feather")
"""Suffixes of tables."""
TRANSACTIONS = ("_delta_log", ".hoodie", "metadata")
"""What the folders of Delta, Hudi and Iceberg have; files of theirs may have been replaced."""
ROWS = 1 << 18
"""Rows of a parquet file that are decoded at a time."""
SAMPLE = 1000
"""Rows of each piece in which leading zeros are looked for."""


def kind_of(path: Path) -> str:
    """Return the suffix before .gz: "csv" for nodes.csv.gz."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix[1:]


def stem_of(path: Source) -> str:
    """Return the file name without .gz and the one suffix before it: "a.b" for a.b.csv.gz."""
    if isinstance(path, Frame):
        return path.name
    return (path.with_suffix("") if path.suffix == ".gz" else path).stem


def has_columns(path: Source) -> bool:
    """Return whether a table has named columns: csv, parquet ..., a data frame, but not npy."""
    return isinstance(path, Frame) or kind_of(path) in KINDS


def column_names(path: Source, header: bool | None = None) -> list[str]:
    """Return the column names; "0", "1", ... if a csv has no header.

    header: whether a csv has one; None: if its first row is not numbers. InputError if it cannot be
    read, a name is there twice, or parts have other columns.
    """
    if isinstance(path, Frame):
        return [*path.columns]
    parts = _parts(path)
    with _explain_errors(path):
        first, *others = (_read_column_names(part, header) for part in parts)
    for part, names in zip(parts[1:], others, strict=True):
        if sorted(names) != sorted(first):
            raise InputError(
                f"{part}: has the columns {join_names(names)}; expected {join_names(first)}, as in"
                f" the first part of {path}"
            )
    name, count = next(iter(Counter(first).most_common(1)), ("", 0))
    if count > 1:
        raise InputError(f"{path}: has the column `{name}` more than once; rename one")
    return first


def _read_column_names(path: Path, header: bool | None) -> list[str]:
    if KINDS[kind_of(path)] == "csv":
        return csv_files.detect_layout(path, header).names
    with open_regular(path) as file:
        schema = _open_typed(path, file)[0]
    return [str(name).strip() for name in (*schema.names, *_named_ranges(schema))]


def _open_typed(path: Path, file: Any) -> tuple["pa.Schema", Any]:
    """Return the schema of a parquet or feather file, and what reads columns of it in batches."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    importlib.import_module("pandas.core.arrays.arrow.extension_types")  # else periods are integers
    if kind_of(path) == "feather":
        table = pa.ipc.open_file(file).read_all()
        return table.schema, lambda names: table.select(names).to_batches(ROWS)
    parquet = pq.ParquetFile(file)
    return parquet.schema_arrow, lambda names: parquet.iter_batches(ROWS, columns=names)


def list_visible(folder: Path) -> list[Path]:
    """Return the content of a folder, sorted, without hidden files and markers such as _SUCCESS."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith(("_", ".")))


def warn_unread(folder: Path, left: Iterable[Path], expected: str = "") -> None:
    """Log the files `left` of a folder, which are not read; expected: what else the line says."""
    names = [file.name for file in left]
    if names:
        log.warning("%s: %s: left out%s", folder, join_names(names), expected)


def _parts(path: Path) -> list[Path]:
    """Return the files of a table, a file or folder, by name.

    Those of a folder without markers such as _SUCCESS and files of no bytes. InputError for one
    with a log of transactions or other files, or without any.
    """
    if not path.is_dir():
        return [path]
    logs = [name for name in TRANSACTIONS if (path / name).exists()]
    if logs:
        raise InputError(
            f"{path}: has {logs[0]}, which says which of its files count; write it as one table,"
            " such as by table.to_pandas().to_parquet(FILE)"
        )
    parts = list_visible(path)
    for part in parts:
        if not part.is_file() or kind_of(part) != kind_of(path):
            raise InputError(
                f"{part}: expected a {kind_of(path)} file, a part of the table {path}; write it"
                " without partitionBy, or take out what is no part"
            )
    filled = [part for part in parts if part.stat().st_size]
    if not filled:
        raise InputError(f"{path}: an empty folder; expected a table, or its part files")
    return filled


def read_columns(
    path: Source,
    names: Collection[str] | None = None,
    exact: Collection[str | None] = (),
    header: bool | None = None,
    limit: int | None = None,
) -> dict[str, Cells]:
    """Read columns of a table, all of its rows, in the order of the table.

    The log warns of leading zeros that are lost, and of two notations in different columns.

    Args:
        path: The table.
        names: Which columns, at least one of the table's, others are left out; None: all.
        exact: Columns of a csv whose texts matter, such as ids: 007 and 1.0 stay texts. Others are
            numbers if each cell is one, also with decimal commas.
        header: As of `column_names`.
        limit: About how many rows; None: all.

    Raises:
        InputError: the file is no such table, or numbers of a column have several notations.
    """
    names_there = column_names(path, header)
    wanted = set(names_there if names is None else names)
    kept = [name for name in names_there if name in wanted]
    if isinstance(path, Frame):
        given = {name: path.columns[name] for name in kept}
        return {
            name: Cells(path, name, _unify(path, name, [values])) for name, values in given.items()
        }
    pieces, mixed = _read_pieces(path, kept, set(exact), header, limit)
    if mixed:  # not all cells are numbers: their texts are needed
        pieces |= _read_pieces(path, mixed, set(mixed), header, limit)[0]
    columns = {name: Cells(path, name, _unify(path, name, pieces.pop(name))) for name in kept}
    if mixed and KINDS[kind_of(path)] == "csv":
        separator = csv_files.detect_layout(_parts(path)[0], header).separator
        columns |= {name: read_decimal_commas(columns[name], separator) for name in mixed}
        _warn_of_two_notations(columns, mixed)
    return columns


def _warn_of_two_notations(columns: Mapping[str, Cells], mixed: Collection[str]) -> None:
    """Warn where some columns of a csv have decimal commas, and others decimal points."""
    floats = {name: cells for name, cells in columns.items() if cells.data.type == "double"}
    commas = [name for name in floats if name in mixed]
    for name in floats.keys() - mixed if commas else ():
        values = floats[name].data.to_numpy()
        if (values != np.round(values))[~np.isnan(values)].any():
            said = "%s: has decimal points, `%s` has decimal commas; write 1500 if 1.500 is that"
            log.warning(said, floats[name].where, commas[0])


def read_matrix(path: Path) -> NDArray[np.float32]:
    """Return the numbers of a csv without a header, [rows, columns]; InputError for other cells."""
    import pyarrow as pa

    with _explain_errors(path):
        blocks = [
            np.column_stack([cells.cast(pa.float64()) for cells in batch.columns])
            for batch in csv_files.csv_batches(path, False, None)
        ]
        return np.concatenate([block.astype(np.float32) for block in blocks])


def read_integers(path: Path, names: Collection[str] = ("0",)) -> list[Ints]:
    """Return columns of whole numbers of a csv without a header, [rows] each, in its order.

    InputError for other cells.
    """
    columns = read_columns(path, names, exact=names, header=False)
    return [cells.whole_numbers("expected a whole number") for cells in columns.values()]


def _read_pieces(
    path: Path, names: list[str], exact: set[str | None], header: bool | None, limit: int | None
) -> tuple[dict[str, list["pa.Array"]], list[str]]:
    """Read columns piece by piece, in the order of the files; stop near `limit` rows (None: never).

    The log warns of leading zeros that are lost. InputError for a file that cannot be read.

    Args:
        exact: columns of a csv that are read as int64 or text, not as float64.

    Returns:
        The pieces by column, and the columns of a csv that have a text and are not exact: they
        have no pieces.
    """
    pieces: dict[str, list[pa.Array]] = {name: [] for name in names}
    mixed: dict[str, None] = {}
    padded: dict[str, None] = {}
    left = math.inf if limit is None else limit * len(names)
    for part in _parts(path):
        with _explain_errors(part):
            for name, cells in _read_part(part, names, header):
                left -= len(cells)
                if name in mixed or (left < 0 and len(pieces[name])):
                    continue
                if KINDS[kind_of(path)] == "csv":
                    if name not in exact and has_leading_zeros(cells[:SAMPLE]):
                        padded[name] = None
                    cells = as_integers(cells) if name in exact else as_numbers(cells)
                if cells is None:
                    mixed[name] = None
                    pieces[name].clear()
                else:
                    pieces[name].append(cells)
    if limit is None and (lost := [name for name in padded if name not in mixed]):
        log.warning(
            "%s: numbers with leading zeros, such as 007, are read as numbers in %s; if they are"
            " codes, columns.categorical=%s keeps them",
            path,
            join_names(lost, "`"),
            lost[0],
        )
    return pieces, [*mixed]


def _read_part(
    path: Path, names: list[str], header: bool | None
) -> Iterator[tuple[str, "pa.Array"]]:
    """Yield names and pieces of columns of a file, some rows at a time; text for a csv.

    Another file begins with an empty piece of each column, and if it has none of `names`, its
    first column shows the number of rows. A range index counts as a column. Errors of pyarrow pass.
    """
    if KINDS[kind_of(path)] == "csv":
        for batch in csv_files.csv_batches(path, header, names):
            yield from zip(names, batch.columns, strict=True)
        return
    import pyarrow as pa

    with open_regular(path) as file:
        schema, read = _open_typed(path, file)
        ranges, begin = _named_ranges(schema), 0
        names_read = [name for name in schema.names if name.strip() in names] or schema.names[:1]
        yield from ((name.strip(), pa.array([], schema.field(name).type)) for name in names_read)
        for batch in read(names_read):
            batch.validate(full=True)  # ArrowInvalid for text that is no UTF-8
            yield from zip(map(str.strip, names_read), batch.columns, strict=True)
            ids = {name: ranges[name] for name in ranges if name in names}
            end = begin + batch.num_rows
            yield from ((name, pa.array(np.array(ids[name][begin:end], np.int64))) for name in ids)
            begin = end


def _named_ranges(schema: "pa.Schema") -> dict[str, range]:
    """Return the named range indices, which pandas stores as start, stop and step."""
    described = (schema.pandas_metadata or {}).get("index_columns", [])
    ranges = (text for text in described if isinstance(text, dict) and text.get("name") is not None)
    return {
        str(range_["name"]).strip(): range(range_["start"], range_["stop"], range_["step"])
        for range_ in ranges
    }


def _unify(path: Source, name: str, pieces: list["pa.Array"]) -> "pa.ChunkedArray":
    """Return pieces as one column: of a csv, integers beside texts become texts again."""
    import pyarrow as pa
    from pyarrow import types

    plain = [_plain(piece) for piece in pieces]
    kinds = {piece.type for piece in plain if not types.is_null(piece.type)} or {pa.null()}
    kind = kinds.pop()
    if kinds:
        are_numbers = all(
            types.is_integer(kind_there) or types.is_floating(kind_there)
            for kind_there in {kind, *kinds}
        )
        kind = pa.float64() if are_numbers else pa.string()
    with _explain_errors(path):
        return pa.chunked_array([piece.cast(kind) for piece in plain], kind)


def _plain(cells: "pa.Array") -> "pa.Array":
    """Return categories as their values, each kind of text, list and number as one, UUIDs as texts.

    Periods of pandas become the date at which they begin.
    """
    import pyarrow as pa
    from pyarrow import types

    if isinstance(cells.type, pa.BaseExtensionType):
        if cells.type.extension_name == "arrow.uuid":
            return pa.array([value and str(value) for value in cells.to_pylist()], pa.string())
        if cells.type.extension_name == "pandas.period":
            return pa.array(cells.to_pandas().dt.to_timestamp())
        cells = cells.cast(cells.type.storage_type)
    if types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if types.is_large_string(cells.type) or types.is_string_view(cells.type):
        return cells.cast(pa.string())
    if types.is_large_list(cells.type):  # as polars writes them
        return cells.cast(pa.list_(cells.type.value_type))
    if types.is_decimal(cells.type) and cells.type.scale == 0 and cells.type.precision > 15:
        return cells.cast(pa.string())  # ids maybe, as SQL's NUMERIC
    has_other_form = types.is_decimal(cells.type) or types.is_float16(cells.type)
    return cells.cast(pa.float64()) if has_other_form else cells


def _explain_errors(path: Source) -> contextlib.AbstractContextManager[None]:
    """Turn errors of pyarrow into an InputError that names the table."""
    kind = "table" if isinstance(path, Frame) else f"{kind_of(path)} table"
    return explaining(str(path), kind, "write it anew, or save it as UTF-8")
