"""Reads files of node ids, integers or names as in the data set, and finds the nodes by id."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.files.file_io import load_npy, open_regular, reading
from partitioning.graph.array_checks import check_integers
from partitioning.graph.node_names import hash_names
from partitioning.read.table_files import column_names, read_columns

HEADER_NAMES = (
    "src",
    "dst",
    "source",
    "target",
    "destination",
    "from",
    "to",
    "u",
    "v",
    "id",
    "node",
    "node_id",
)


def read_ids(path: Path, setting: str, columns: int) -> NDArray[Any]:
    """Read ids [n, columns] from an npy file, or from a csv with or without a header.

    Of a csv they are int64, or objects where a column has names.

    Raises:
        InputError: names the setting and the file.
    """
    where = f"{setting}={path}"
    if path.suffix not in (".npy", ".csv") or not path.is_file():
        raise InputError(f"{where}: expected a .npy or .csv file of ids")
    with reading(path, "file of ids", where=where):
        if path.suffix == ".npy":
            array = load_npy(path)
        else:
            header = _has_header(path, columns)
            names = column_names(path, header)[:columns]
            cells = read_columns(path, names, names, header)
            array = np.column_stack([cells[name].ids() for name in names])
    array = array[:, None] if array.ndim == 1 and columns == 1 else array
    if array.ndim != 2 or array.shape[1] != columns:
        raise InputError(
            f"{where}: has the shape {list(array.shape)}, expected {columns} columns of ids"
        )
    return np.asarray(array)


def _has_header(path: Path, columns: int) -> bool:
    with open_regular(path, "r", encoding="utf-8") as file:
        names = [cell.strip().strip('"').lower() for cell in file.readline().split(",")[:columns]]
    return all(name in HEADER_NAMES for name in names)


def make_id_keys(ids: NDArray[Any], *, named: bool, where: str) -> NDArray[np.int64]:
    """Return the numbers that stand for ids in a directory, int64 in their shape.

    Ids themselves, or hashes of names; InputError for ids that are no integers.
    """
    flat = ids.reshape(-1)
    if named:
        return hash_names(flat.astype(str).astype(object)).reshape(ids.shape)
    try:
        numbers = flat.astype(np.int64) if flat.dtype == object else flat
        is_integer = numbers is flat or bool((numbers == flat).all())
    except (ValueError, TypeError, OverflowError):
        is_integer = False
    if not is_integer:
        raise InputError(f"{where}: has ids that are no integers; the graph has no others")
    return check_integers(numbers, where).reshape(ids.shape)


def add_types(ids: NDArray[Any], types: Sequence[str]) -> NDArray[Any]:
    """Return TYPE:ID for ids of a relation's tables, as objects of str, in their shape.

    Args:
        ids: [n, 2] sources and destinations, or [n] or [n, 1] sources.
        types: of the relation's source and destination.
    """
    is_pair = ids.ndim == 2 and ids.shape[1] == len(types)
    of_ids = np.broadcast_to(np.array(types if is_pair else types[0], object), ids.shape)
    names = [f"{kind}:{node_id}" for kind, node_id in zip(of_ids.flat, ids.flat, strict=True)]
    return np.array(names, object).reshape(ids.shape)


def find_ids(
    known: NDArray[np.int64], ids: NDArray[Any], types: Sequence[str], *, named: bool, where: str
) -> NDArray[np.int64]:
    """Return the positions of ids, in their shape, -1 for an unknown one.

    InputError for ids that are no integers if the graph's are.

    Args:
        known: distinct keys of the nodes, [N].
        ids: those of the graph, or of the tables of a relation.
        types: of the relation's source and destination; empty without a relation.
        named: whether the graph's ids are names.
        where: for error messages.
    """
    positions = find_positions(known, make_id_keys(ids, named=named, where=where))
    if types and (positions < 0).any():
        of_tables = make_id_keys(add_types(ids, types), named=True, where=where)
        positions = np.where(positions < 0, find_positions(known, of_tables), positions)
    return positions


def find_positions(known: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of each key in `known`, distinct keys [N]; -1 for an unknown key."""
    if not len(known):
        return np.full(keys.shape, -1)
    order = np.argsort(known)
    position = np.minimum(np.searchsorted(known, keys, sorter=order), len(known) - 1)
    return np.where(known[order[position]] == keys, order[position], -1).astype(np.int64)
