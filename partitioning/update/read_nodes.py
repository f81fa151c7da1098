"""Reads the tables of new, changed and deleted nodes of an update.

The fitted feature pipeline of the directory encodes the columns, by their names. n rows of a table.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.array_checks import (
    Array,
    Ints,
    check_integers,
    check_mask,
    check_multilabel,
    check_targets,
    check_unique,
    refuse,
)
from partitioning.datasets.array_files import read_npy
from partitioning.datasets.node_tables import Table, read_table
from partitioning.datasets.nodes import Nodes
from partitioning.directory.meta import Meta
from partitioning.directory.stored_graph import StoredGraph
from partitioning.errors import InputError
from partitioning.features.build import read_as_fitted
from partitioning.features.kinds import WIDTH
from partitioning.graph_addition import encode_node_rows
from partitioning.graph_data import MASKS
from partitioning.node_names import Names
from partitioning.random_rows import random_rows
from partitioning.update.change import NodeChange, Tables
from partitioning.update.stored_columns import columns_of, given_width, kinds_by_type, state_of


def read_nodes(stored: StoredGraph, name: str, tables: Tables, notes: list[str]) -> NodeChange:
    """Read the tables of deleted, changed and new nodes of a type.

    Those that are missing are empty. Unlike rows add to `notes`. InputError for ids that are
    unknown, there already, or twice.
    """
    stored_nodes = stored.graph.nodes[name]
    known = Nodes.of_keys(stored_nodes.node_ids, named=stored_nodes.node_names is not None)
    change = NodeChange(known, known)
    if path := tables.get(("deleted_nodes", name)):
        ids, where = _read_deleted(stored, name, path)
        change = replace(change, deleted=known.find_rows(ids, where))
        check_unique(change.deleted, where, ids)
    if path := tables.get(("changed_nodes", name)):
        table, ids, where = _read_table(stored, name, path)
        rows = known.find_rows(ids, where, remedy="; a new node goes into update.new_nodes")
        check_unique(rows, where, ids)
        is_deleted = np.isin(rows, change.deleted)
        refuse(ids, is_deleted, where, "deleted by update.deleted_nodes; leave one out")
        values = _read_values(stored, name, table, stored_nodes.node_ids[rows], notes, is_new=False)
        if not values:
            raise InputError(f"{path}: has nothing but ids; add the columns that change")
        change = replace(change, changed=rows, changed_values=values)
    if path := tables.get(("new_nodes", name)):
        table, ids, where = _read_table(stored, name, path)
        grown = known.extended(ids, where, "a changed node goes into update.changed_nodes")
        assert grown.ids is not None
        keys = grown.ids[stored_nodes.num_nodes :]
        values = _read_values(stored, name, table, keys, notes, is_new=True)
        names = Names.of(map(str, ids)) if known.named else None
        change = replace(change, grown=grown, new_ids=keys, new_names=names, new_values=values)
    return change


def _read_deleted(stored: StoredGraph, name: str, path: Path) -> tuple[Array, str]:
    """Read the ids of a table of deleted nodes, and what messages call them."""
    if path.suffix != ".npy":
        return _read_table(stored, name, path)[1:]
    array = read_npy(path)
    if array.ndim != 1:
        raise InputError(f"{path} has shape {array.shape}; expected the ids of nodes, [n]")
    return check_integers(array, str(path)), str(path)


def _read_table(stored: StoredGraph, name: str, path: Path) -> tuple[Table, Array, str]:
    """Read a table, its ids, and what messages call them."""
    state, meta = state_of(stored.meta, name), stored.meta
    table = read_as_fitted(
        lambda columns: read_table(path, columns, regression=meta.task == "regression"),
        columns_of(meta),
        {} if state is None else {"nodes": state},
    )
    if table.ids is None:
        raise InputError(f"{path}: there is no column of ids; name it as in the graph's, `id`")
    if table.ids.dtype == object and stored.graph.nodes[name].node_names is None:
        raise InputError(
            f"{path}: its ids are names; those of the directory are integers; use the same ids"
        )
    return table, table.ids, table.ids_where


def _read_values(
    stored: StoredGraph, name: str, table: Table, ids: Ints, notes: list[str], *, is_new: bool
) -> dict[str, Array]:
    """Return those of features, labels and masks that a table has, by the names of fields.

    New rows always have features; masks that a table lacks are false if it has another one.
    Warnings are added to `notes`.
    """
    meta = stored.meta
    values: dict[str, Array] = {}
    arrays: dict[str, Any] = {role: array for role, (array, _) in table.values.items()}
    if is_new or "feat" in arrays:
        values["feat"] = _encode_features(meta, name, table, ids, notes)
    if name != meta.target_type or meta.request.get("split") == "none":
        return values
    if "label" in arrays:
        values["labels"] = _convert_labels(meta, arrays["label"], table.values["label"][1])
    masks = {mask: arrays[mask] for mask in MASKS if mask in arrays}
    for name_of_mask in MASKS if masks else ():
        mask = masks.get(name_of_mask, np.zeros(len(ids), np.bool_))
        values[name_of_mask] = check_mask(mask, len(ids), f"{table.path}: {name_of_mask}")
    return values


def _encode_features(
    meta: Meta, name: str, table: Table, ids: Ints, notes: list[str]
) -> NDArray[np.float32]:
    """Encode the features of a table of nodes, float32 [n, F], as the directory's.

    The random ones are drawn from `ids`. Each column with rows unlike those of the fit adds to
    `notes`.
    """
    unusual: dict[str, int] = {}
    blocks = [np.zeros((len(ids), 0), np.float32)]
    width, what = given_width(meta, name), str(table.path)
    for kind in kinds_by_type(meta)[name]:
        if kind == "random":
            blocks.append(random_rows(ids, WIDTH))
        elif width:
            blocks.append(encode_node_rows(table, width, state_of(meta, name), what, unusual))
    for column, count in unusual.items():
        notes.append(
            f"{table.path}: column `{column}`: {count} of {len(ids)} rows are unlike those that the"
            " feature pipeline was fitted to"
        )
    return np.hstack(blocks)


def _convert_labels(meta: Meta, array: Array, where: str) -> Array:
    """Return labels in the form of the directory; InputError for a class that it does not know."""
    if meta.task == "regression":
        labels: Array = check_targets(array, where)
    elif meta.task == "multilabel":
        labels = check_multilabel(array, where)
    else:
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        return _number_classes(array, meta, where)
    if labels.shape[1] != meta.num_classes:
        raise InputError(
            f"{where}: {labels.shape[1]} columns of labels; the directory has {meta.num_classes}"
        )
    return labels


def _number_classes(array: Array, meta: Meta, where: str) -> Ints:
    """Return classes by their numbers in the directory, int64 [n], -1 where blank."""
    if array.ndim != 1:
        raise InputError(f"{where}: {array.shape[1]} columns; expected one, with classes")
    names = meta.class_names or list(range(meta.num_classes))
    number = {str(name): place for place, name in enumerate(names)}
    for word, digit in (("False", "0"), ("True", "1")):  # partitioning stores them as integers
        if digit in number:
            number.setdefault(word, number[digit])
    if array.dtype.kind == "f":
        filled = np.where(np.isnan(array), -1, array)
        refuse(array, filled != np.floor(filled), where, "expected a class")
        array = filled.astype(np.int64)
    texts = ["" if cell is None else str(cell).strip() for cell in array.tolist()]
    blank = {"", "-1"} - number.keys()
    classes = np.array([-1 if text in blank else number.get(text, -2) for text in texts], np.int64)
    listed = ", ".join(map(str, names[:10])) + (" ..." if len(names) > 10 else "")
    refuse(
        array,
        classes == -2,
        where,
        f"expected one of the classes {listed}, or blank; for a new class, partition again",
    )
    return classes
