"""A folder of tables as a graph: form (b) of file.py. Rows are counted from 0, without the header."""

import gzip
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from partitioning.checks import NO_FEATURES, Array, Ints, check_integers, check_length, check_unique, refuse
from partitioning.datasets.raw import RawGraph, joined, narrowed
from partitioning.errors import InputError
from partitioning.files import reading
from partitioning.graph_data import Endpoints
from partitioning.splits import FILE_NAMES, read_index

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

ID_COLUMNS = ("id", "node_id")
CELLS = 1 << 23
"""Cells of a table that are read at a time; 64 MiB of numbers."""


@dataclass(frozen=True, eq=False)
class Table:
    """The values of a features or labels file."""

    path: Path
    values: Array
    """[N, columns], or [N] of a one-dimensional npy or a table of one column."""
    ids: Ints | None
    """[N] the column `id` or `node_id`; None if there is none."""


def read_folder(folder: Path) -> RawGraph:
    """Read edges, features, labels and, where they are, index files; edges are in positions afterwards."""
    features = _read_table(_only_file(folder, "features", ("npy", "csv", "parquet")))
    labels = _read_table(_only_file(folder, "labels", ("npy", "csv", "parquet")))
    edges = _only_file(folder, "edges", ("csv", "parquet", "npy"))
    label = _aligned(features, labels)
    ids = labels.ids if features.ids is None else features.ids
    src, dst = _read_edges(edges, ids)
    num_nodes = len(label)
    check_length(features.values, num_nodes, str(features.path))
    # a single column of features is a matrix still, one of labels is not
    matrix = features.values.reshape(-1, 1) if features.values.ndim == 1 else features.values
    return RawGraph(
        name=folder.name,
        src=src,
        dst=dst,
        features=matrix,
        label=label,
        masks=_read_masks(folder, num_nodes),
        node_id=ids,
        where={
            "src": f"{edges}: column `src`",
            "dst": f"{edges}: column `dst`",
            "feat": f"{features.path}",
            "label": f"{labels.path}",
            "node_id": f"{features.path}: column of ids",
            **{f"{part}_mask": f"{folder}: {part}.npy or {part}.csv" for part in FILE_NAMES},
        },
    )


def _only_file(folder: Path, stem: str, suffixes: tuple[str, ...]) -> Path:
    names = [f"{stem}.{suffix}" for suffix in suffixes]
    found = [name for name in names if (folder / name).is_file()]
    if len(found) != 1:
        found_names = ", ".join(found) or "none"
        hint = f"; {NO_FEATURES}" if stem == "features" and not found else ""
        raise InputError(f"dataset_file={folder}: expected one of {', '.join(names)}; found {found_names}{hint}")
    return folder / found[0]


def _read_masks(folder: Path, num_nodes: int) -> dict[str, Array]:
    """Masks of the index files that are in the folder."""
    masks: dict[str, Array] = {}
    for part, stems in FILE_NAMES.items():
        names = [f"{stem}.{suffix}" for stem in stems for suffix in ("npy", "csv")]
        found = [name for name in names if (folder / name).is_file()]
        if len(found) > 1:
            raise InputError(f"dataset_file={folder}: expected one of {', '.join(found)}; found all of them")
        if found:
            mask = np.zeros(num_nodes, dtype=np.bool_)
            mask[read_index(folder / found[0], num_nodes, "dataset_file")] = True
            masks[f"{part}_mask"] = mask
    return masks


def read_frames(path: Path, header: bool | None = None) -> Iterator["pd.DataFrame"]:
    """Read a csv or parquet file, CELLS at a time; the index counts on from frame to frame.

    Columns are named 0, 1, ... where a csv has no header (None: its first row is numbers). There is one frame at least.
    """
    try:
        if path.suffix == ".parquet":
            yield from _parquet_frames(path)
        else:
            yield from _csv_frames(path, _has_header(path) if header is None else header)
    except ImportError as error:  # of pandas, or of pyarrow
        raise InputError(
            f"{path}: reading it needs {error.name}; pip install -e '.[tables]' -c constraints.txt"
        ) from None
    except (OSError, ValueError) as error:  # pandas and pyarrow derive their parser errors from these
        reason = (str(error).strip().splitlines() or ["empty"])[0]
        raise InputError(f"{path}: not a readable {path.suffix[1:]} table ({reason})") from None


def _csv_frames(path: Path, header: bool) -> Iterator["pd.DataFrame"]:
    import pandas as pd

    columns, second = map(len, _first_lines(path))
    if second > columns:  # pandas would take what is too much for an index, without a word
        raise InputError(f"{path}: its second line has {second} cells, the first has {columns}; expected as many")
    rows, names = max(1, CELLS // columns), None if header else list(range(columns))
    with pd.read_csv(
        path, header=0 if header else None, names=names, skipinitialspace=True, skip_blank_lines=False, chunksize=rows
    ) as frames:
        yield from frames


def _parquet_frames(path: Path) -> Iterator["pd.DataFrame"]:
    import pandas as pd
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        rows, begin = max(1, CELLS // max(1, len(file.schema_arrow))), 0
        for batch in file.iter_batches(rows):
            frame = batch.to_pandas()
            frame.index = pd.RangeIndex(begin, begin + len(frame))
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


def _first_lines(path: Path) -> tuple[list[str], list[str]]:
    """The cells of the first two lines."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return file.readline().strip().split(","), file.readline().strip().split(",")


def _integer_column(frame: "pd.DataFrame", column: str | int, path: Path) -> Ints:
    where = f"{path}: column `{column}`"
    return check_integers(_numbers(frame, column, path), where, _first_row(frame))


def _first_row(frame: "pd.DataFrame") -> int:
    return int(frame.index[0]) if len(frame) else 0


def _numbers(frame: "pd.DataFrame", column: str | int, path: Path) -> Array:
    """A column as an array of numbers; InputError names the first cell that is none."""
    import pandas as pd

    cells = frame[column]
    if len(cells) == 0:
        return np.empty(0, dtype=np.int64)
    if cells.dtype.kind in "biuf" and isinstance(cells.dtype, np.dtype):
        return cells.to_numpy()
    times = cells.dtype.kind in "mM"  # which pandas takes for nanoseconds
    numbers = pd.to_numeric(cells.astype(str) if times else cells, errors="coerce")
    wrong = np.flatnonzero(numbers.isna())
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"{path}: column `{column}`, row {_first_row(frame) + row} is {cells.iloc[row]!r}; expected a number"
        )
    return numbers.to_numpy(dtype=np.float64 if "float" in numbers.dtype.name.lower() else np.int64)


def _read_edges(path: Path, ids: Ints | None) -> tuple[Endpoints, Endpoints]:
    """Both ends of every edge, as positions of `ids` where there are any; only one chunk is there twice."""
    order = None if ids is None else np.argsort(ids)
    piles: tuple[list[Endpoints], list[Endpoints]] = [], []
    for first_row, *chunk in _npy_edges(path) if path.suffix == ".npy" else _table_edges(path):
        for pile, ends, name in zip(piles, chunk, ("src", "dst"), strict=True):
            if ids is not None:
                ends = _positions(ends, ids, f"{path}: column `{name}`", order, first_row)
            pile.append(narrowed(ends))
    src, dst = map(joined, piles)
    return src, dst


def _table_edges(path: Path) -> Iterator[tuple[int, Ints, Ints]]:
    for frame in read_frames(path):
        columns = _name_columns(frame, path)
        if columns == ["0", "1"]:
            columns = frame.columns = ["src", "dst"]
        if not {"src", "dst"} <= set(columns):
            found = ", ".join(columns)
            raise InputError(f"{path}: has the columns {found}; expected src and dst (or two without a header)")
        others = [name for name in columns if name not in ("src", "dst")]
        if others and _first_row(frame) == 0:
            log.warning("%s: columns `%s`: left out", path, "`, `".join(others))
        yield _first_row(frame), _integer_column(frame, "src", path), _integer_column(frame, "dst", path)


def _name_columns(frame: "pd.DataFrame", path: Path) -> list[str]:
    """Strip the names of the columns, and refuse one that is there twice."""
    frame.columns = [str(column).strip() for column in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise InputError(f"{path}: has the column `{twice[0]}` more than once; expected each name once")
    return list(frame.columns)


def _npy_edges(path: Path) -> Iterator[tuple[int, Ints, Ints]]:
    edges = _read_npy(path)
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise InputError(f"{path} has shape {list(edges.shape)}; expected [edges, 2], one row of src and dst per edge")
    for row in range(0, len(edges), CELLS // 2):
        src, dst = edges[row : row + CELLS // 2].T
        yield row, check_integers(src, f"{path}: column `src`", row), check_integers(dst, f"{path}: column `dst`", row)


def _read_table(path: Path) -> Table:
    """Features or labels of an npy, csv or parquet file; a column `id` or `node_id` is set apart."""
    if path.suffix == ".npy":
        return Table(path, _read_npy(path), None)
    ids: list[Ints] = []
    values: list[Array] = []
    for frame in read_frames(path):
        _name_columns(frame, path)
        found = [name for name in ID_COLUMNS if name in frame.columns]
        if len(found) > 1:
            raise InputError(f"{path}: has both columns {' and '.join(found)}; expected one column of ids")
        ids += [_integer_column(frame, name, path) for name in found]
        columns = [_numbers(frame, name, path) for name in frame.columns if name not in ID_COLUMNS]
        if not columns:
            raise InputError(f"{path}: has no column besides the ids; expected at least one")
        values.append(columns[0] if len(columns) == 1 else _without_loss(np.stack(columns, axis=1)))
    if not ids:
        return Table(path, joined(values), None)
    whole = joined(ids)
    check_unique(whole, f"{path}: column `{found[0]}`")
    return Table(path, joined(values), whole)


def _without_loss(values: Array) -> Array:
    """[N, F] as float32 where that keeps every number finite; so a chunk of a large table waits in half the space."""
    if values.dtype != np.float64:
        return values
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    return narrow if np.isfinite(narrow).all() else values


def _read_npy(path: Path) -> Array:
    with reading(path, "npy array", "write it anew with numpy.save"):
        # From the file as it is needed: features are written out part by part.
        array = np.load(path, allow_pickle=False, mmap_mode="r")
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise InputError(f"{path}: an archive or a single number; expected one npy array with one row per node")
    return array


def _aligned(features: Table, labels: Table) -> Array:
    """The labels in the order of the features, where both say which node a row is."""
    if features.ids is None or labels.ids is None:
        return labels.values
    if len(features.ids) != len(labels.ids):
        raise InputError(
            f"{labels.path} has {len(labels.ids)} rows, {features.path} has {len(features.ids)}; expected one per node"
        )
    return labels.values[_positions(features.ids, labels.ids, f"{features.path}: ids, looked up in {labels.path}")]


def _positions(wanted: Ints, ids: Ints, where: str, order: Ints | None = None, first_row: int = 0) -> Ints:
    """The row of each wanted id; `order`, int64 [N], sorts the ids."""
    order = np.argsort(ids) if order is None else order
    place = np.minimum(np.searchsorted(ids, wanted, sorter=order), max(len(ids) - 1, 0))
    rows = order[place] if len(ids) else np.empty(0, dtype=np.int64)
    wrong = ids[rows] != wanted if len(ids) else np.ones(len(wanted), np.bool_)
    refuse(wanted, wrong, where, f"expected one of the {len(ids)} node ids", first_row)
    return rows
