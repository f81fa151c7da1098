"""A folder of tables as a graph: form (b) of file.py. Rows are counted from 0, without the header."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from partitioning.datasets.raw import Array, Ints, RawGraph, check_integers, check_length, check_unique
from partitioning.errors import InputError
from partitioning.splits import FILE_NAMES, read_index

if TYPE_CHECKING:
    import pandas as pd

ID_COLUMNS = ("id", "node_id")


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
    edges = _only_file(folder, "edges", ("csv", "parquet"))
    src, dst = _read_edges(edges)
    label = _aligned(features, labels)
    ids = labels.ids if features.ids is None else features.ids
    if ids is not None:
        src, dst = (_positions(ends, ids, f"{edges}: column `{name}`") for ends, name in ((src, "src"), (dst, "dst")))
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
        raise InputError(f"dataset_file={folder}: expected one of {', '.join(names)}; found {found_names}")
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


def read_frame(path: Path) -> "pd.DataFrame":
    """Read a csv or parquet file; columns are named 0, 1, ... where a csv has no header (its first row is numbers)."""
    try:
        import pandas as pd
    except ImportError:
        raise InputError(
            f"{path}: reading tables needs pandas; pip install -e '.[tables]' -c constraints.txt"
        ) from None
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        return pd.read_csv(path, header=0 if _has_header(path) else None, skipinitialspace=True, skip_blank_lines=False)
    except ImportError:
        raise InputError(
            f"{path}: reading parquet needs pyarrow; pip install -e '.[tables]' -c constraints.txt"
        ) from None
    except (OSError, ValueError) as error:  # pandas and pyarrow derive their parser errors from these
        reason = (str(error).strip().splitlines() or ["empty"])[0]
        raise InputError(f"{path}: not a readable {path.suffix[1:]} table ({reason})") from None


def _has_header(path: Path) -> bool:
    """Whether some cell of the first line is no number."""
    with path.open(encoding="utf-8") as file:
        cells = file.readline().strip().split(",")
    try:
        return not [float(cell) for cell in cells if cell.strip()]
    except ValueError:
        return True


def _integer_column(frame: "pd.DataFrame", column: str | int, path: Path) -> Ints:
    where = f"{path}: column `{column}`"
    return check_integers(_numbers(frame, column, path), where)


def _numbers(frame: "pd.DataFrame", column: str | int, path: Path) -> Array:
    """A column as an array of numbers; InputError names the first cell that is none."""
    import pandas as pd

    cells = frame[column]
    if len(cells) == 0:
        return np.empty(0, dtype=np.int64)
    if cells.dtype.kind in "biuf" and isinstance(cells.dtype, np.dtype):
        return cells.to_numpy()
    numbers = pd.to_numeric(cells, errors="coerce")
    wrong = np.flatnonzero(numbers.isna())
    if len(wrong):
        row = int(wrong[0])
        raise InputError(f"{path}: column `{column}`, row {row} is {cells.iloc[row]!r}; expected a number")
    return numbers.to_numpy(dtype=np.float64 if "float" in numbers.dtype.name.lower() else np.int64)


def _read_edges(path: Path) -> tuple[Ints, Ints]:
    frame = read_frame(path)
    columns = [str(column).strip() for column in frame.columns]
    if "src" in columns and "dst" in columns:
        frame.columns = columns
        src, dst = "src", "dst"
    elif len(columns) == 2 and columns == ["0", "1"]:
        frame.columns = ["src", "dst"]
        src, dst = "src", "dst"
    else:
        found = ", ".join(columns)
        raise InputError(f"{path}: has the columns {found}; expected src and dst (or two without a header)")
    return _integer_column(frame, src, path), _integer_column(frame, dst, path)


def _read_table(path: Path) -> Table:
    """Features or labels of an npy, csv or parquet file; a column `id` or `node_id` is set apart."""
    if path.suffix == ".npy":
        return Table(path, _read_npy(path), None)
    frame = read_frame(path)
    frame.columns = [str(column).strip() for column in frame.columns]
    found = [name for name in ID_COLUMNS if name in frame.columns]
    if len(found) > 1:
        raise InputError(f"{path}: has both columns {' and '.join(found)}; expected one column of ids")
    ids = _integer_column(frame, found[0], path) if found else None
    if ids is not None:
        check_unique(ids, f"{path}: column `{found[0]}`")
    columns = [_numbers(frame, name, path) for name in frame.columns if name not in ID_COLUMNS]
    if not columns:
        raise InputError(f"{path}: has no column besides the ids; expected at least one")
    return Table(path, columns[0] if len(columns) == 1 else np.stack(columns, axis=1), ids)


def _read_npy(path: Path) -> Array:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError, SyntaxError) as error:
        if "allow_pickle" in str(error):
            raise InputError(f"{path}: holds Python objects, which are never loaded; save a numeric dtype") from None
        raise InputError(f"{path}: not a readable npy array ({error}); write it anew with numpy.save") from None
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise InputError(f"{path}: an archive or a single number; expected one npy array with a row a node")
    return array


def _aligned(features: Table, labels: Table) -> Array:
    """The labels in the order of the features, where both say which node a row is."""
    if features.ids is None or labels.ids is None:
        return labels.values
    if len(features.ids) != len(labels.ids):
        raise InputError(
            f"{labels.path} has {len(labels.ids)} rows, {features.path} has {len(features.ids)}; expected one a node"
        )
    return labels.values[_positions(features.ids, labels.ids, f"{features.path}: ids, looked up in {labels.path}")]


def _positions(wanted: Ints, ids: Ints, where: str) -> Ints:
    """The row of each wanted id."""
    order = np.argsort(ids)
    place = np.minimum(np.searchsorted(ids, wanted, sorter=order), max(len(ids) - 1, 0))
    rows = order[place] if len(ids) else np.empty(0, dtype=np.int64)
    wrong = np.flatnonzero(ids[rows] != wanted) if len(ids) else np.arange(len(wanted))
    if len(wrong):
        raise InputError(f"{where}: row {wrong[0]} is {wanted[wrong[0]]}; expected one of the {len(ids)} node ids")
    return rows
