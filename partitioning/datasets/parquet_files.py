"""Reads a parquet file in chunks. An index of pandas is read as a column."""

from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from partitioning.array_checks import are_whole
from partitioning.errors import InputError
from partitioning.file_io import open_regular

if TYPE_CHECKING:
    import pandas as pd


def parquet_frames(
    path: Path, cells: int, text: Collection[str | None], only: Collection[str] | None = None
) -> Iterator["pd.DataFrame"]:
    """Read the columns `only` (None: all), `text` as text, about `cells` cells at a time."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_regular(path) as content, pq.ParquetFile(content) as file:
        rows, begin = max(1, cells // max(1, len(file.schema_arrow))), 0
        ranges = named_ranges(file.schema_arrow)
        names = [name for name in file.schema_arrow.names if only is None or name.strip() in only]
        names = names or file.schema_arrow.names[:1]  # there are no rows without columns
        empty = file.schema_arrow.empty_table().select(names)
        for batch in chain(file.iter_batches(rows, columns=names), [empty]):
            if begin and not batch.num_rows:
                continue
            columns = [_without_dictionary(column) for column in batch.columns]
            batch = pa.Table.from_arrays(columns, batch.schema.names)
            batch.validate(full=True)  # ArrowInvalid for text that is no UTF-8
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


def named_ranges(schema: Any) -> dict[str, range]:
    """Return the named range indices, which pandas stores as start, stop and step."""
    described = (schema.pandas_metadata or {}).get("index_columns", [])
    ranges = (each for each in described if isinstance(each, dict) and each.get("name") is not None)
    return {str(each["name"]): range(each["start"], each["stop"], each["step"]) for each in ranges}


def _without_dictionary(column: Any) -> Any:
    """Return a category column as a column of its values."""
    import pyarrow as pa

    is_category = pa.types.is_dictionary(column.type)
    return column.cast(column.type.value_type) if is_category else column


def _as_text(column: Any, name: str, path: Path, begin: int) -> "pd.Series[Any]":
    """Convert a column to text."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        known = np.flatnonzero(pc.is_valid(column).to_numpy(zero_copy_only=False))
        value = repr(column[int(known[0])].as_py())[:60] if len(known) else "blank"
        raise InputError(
            f"{path}: column `{name}`, row {begin + int(known[0]) if len(known) else begin} is"
            f" {value}, of type {kind}; expected a number or a text: write it as one"
        )
    if pa.types.is_floating(kind) and are_whole(column.to_numpy(zero_copy_only=False)).all():
        column = column.cast(pa.int64())
    cells: pd.Series[Any] = column.cast(pa.string()).to_pandas()
    cells.index = pd.RangeIndex(begin, begin + len(cells))
    return cells
