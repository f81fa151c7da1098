"""Reads index files, which list the nodes of training, validation or test (split=files).

They list ids, or positions 0 ... N-1 in the order of the source where nodes have none.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.errors import InputError
from partitioning.features.roles import find_usual
from partitioning.graph.array_checks import Array, Ints, check_mask, check_unique, expect, refuse
from partitioning.partition_settings import SplitSettings
from partitioning.read.array_files import read_npy
from partitioning.read.nodes import Nodes, check_ids
from partitioning.read.table_files import KINDS, column_names, kind_of, read_columns

log = logging.getLogger(__name__)

FILE_NAMES = {"train": ("train",), "val": ("val", "valid"), "test": ("test",)}
"""Names of index files in a folder, without suffix."""
FORMATS = ("npy", "csv", "csv.gz", "tsv", "tsv.gz", "txt", "parquet")
"""Suffixes of index files."""


def index_file(name: str, settings: SplitSettings) -> Path | None:
    """Return the index file of train, val or test that the settings name, which may not exist.

    None where they name none, or split.dir has none or several.
    """
    try:
        return require_index_file(name, getattr(settings, name), settings.dir)
    except InputError:
        return None


def require_index_file(name: str, path: Any, folder: str | None) -> Path:
    """Return the index file of one set: its own path, else the only file of that set in the folder.

    The folder's file has a name of FILE_NAMES and a suffix of FORMATS. Whether a path of its own
    exists is not checked.

    Raises:
        InputError: `path` is no text; there is neither path nor folder; the folder is missing, or
            has no such file or several.
    """
    if path is not None:
        if not isinstance(path, str):
            raise InputError(
                f"split.{name}={path}: with split=files this is the path of an index file (npy or"
                " csv)"
            )
        return Path(path)
    if folder is None:
        raise InputError(
            f"split=files needs split.{name}=PATH (npy or csv of node positions), or"
            " split.dir=FOLDER"
        )
    if not Path(folder).is_dir():
        raise InputError(f"split.dir={folder}: there is no such folder")
    names = [f"{stem}.{suffix}" for stem in FILE_NAMES[name] for suffix in FORMATS]
    files = [file for file in names if (Path(folder) / file).is_file()]
    if len(files) != 1:
        raise InputError(
            f"split.dir={folder}: expected one of {', '.join(names[:2])} ... there; found"
            f" {files or 'none'}"
        )
    return Path(folder) / files[0]


def read_index(path: Path, num_nodes: int, setting: str, nodes: Nodes | None = None) -> Ints:
    """Read distinct nodes from an npy array [K] or a table of one column, or with one of ids.

    They are positions in the order of the file. A boolean npy array [N] is a mask. A first line
    that is no id is a header.

    Args:
        setting: What names the file, for messages.
        nodes: To look up ids; None: nodes have no ids and are listed by position, as they are, with
            a warning, where no number below N is an id.

    Raises:
        InputError: names the setting, the file and the row.
    """
    try:
        return _read_listed(path, num_nodes, nodes)
    except InputError as error:  # which begins with the file
        raise InputError(f"{setting}={error}") from None


def _read_listed(path: Path, num_nodes: int, nodes: Nodes | None) -> Ints:
    """Read the nodes that a file lists, see `read_index`; InputError begins with the file."""
    where = str(path)
    if not path.exists():
        raise InputError(f"{where}: there is no such file")
    if path.suffix != ".npy":
        ids = _read_table_index(path, nodes)
    else:
        array = np.asarray(read_npy(path))
        if array.dtype == np.bool_:
            return np.flatnonzero(check_mask(array, num_nodes, where))
        kinds, listed = ("iu", "positions") if nodes is None else ("iuUS", "ids or positions")
        is_list = array.ndim == 1 and array.dtype.kind in kinds
        expect(is_list, array, where, f"{listed} of nodes, or a mask of booleans [{num_nodes}]")
        ids = check_ids(array, where)
    if nodes is not None and _are_positions(ids, nodes):
        log.warning("%s: no id is below %d: its numbers are positions, from 0", where, num_nodes)
        nodes = None
    if nodes is None:
        expected = (
            f"expected a node position in [0, {num_nodes}), counted in the order of the source"
        )
        refuse(ids, (ids < 0) | (ids >= num_nodes), where, expected)
        rows = ids
    else:
        rows = nodes.find_rows(ids, where, remedy=", as the nodes have ids")
    check_unique(rows, where, ids)
    return rows


def _are_positions(numbers: Array, nodes: Nodes) -> bool:
    """Return whether numbers, [K], can only be positions: below N, where no node has its id."""
    if numbers.dtype.kind != "i" or nodes.named or nodes.ids is None:
        return False
    fit, ids_fit = ((values >= 0) & (values < nodes.num_nodes) for values in (numbers, nodes.ids))
    return bool(fit.all()) and not ids_fit.any()


def _read_table_index(path: Path, known: Nodes | None) -> Array:
    """Return the ids or positions that a csv or parquet file lists.

    InputError for another format, several columns without one of ids, and for a blank cell.
    """
    if kind_of(path) not in KINDS:
        raise InputError(f"{path}: expected a .npy or .csv file")
    names = column_names(path, header=False)
    cells = read_columns(path, exact=names, header=False)
    is_csv = KINDS[kind_of(path)] == "csv"
    first = {
        name: str(cells[name].data[0]) if len(cells[name]) and is_csv else name for name in names
    }
    usual = [name for name in names if find_usual("id", [first[name]])]
    if len(names) != 1 and len(usual) != 1:
        raise InputError(
            f"{path}: has {len(names)} columns; expected one of nodes, or one that is named id"
        )
    name = (usual or names)[0]
    nodes, text = cells[name], np.array([first[name]], object)
    is_id = first[name].lstrip("-").isdecimal()
    if known is not None and known.named:
        is_id = is_id or known.find_rows(text, "", keep_unknown=True)[0] >= 0
    if is_csv and (len(names) > 1 or not is_id):
        nodes = replace(nodes, data=nodes.data.slice(1))  # after the header
    return nodes.ids() if known else nodes.whole_numbers("expected one node position per line")
