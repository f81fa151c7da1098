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
    check_integers,
    check_mask,
    check_multilabel,
    check_targets,
    check_unique,
    refuse,
)
from partitioning.datasets.frames import TextIds
from partitioning.datasets.nodes import Nodes
from partitioning.datasets.raw import read_npy
from partitioning.datasets.tables import Table, read_table
from partitioning.errors import InputError
from partitioning.features.build import read_as_fitted
from partitioning.graph_addition import encode_node_rows
from partitioning.graph_data import MASKS
from partitioning.node_names import Names
from partitioning.random_rows import random_rows
from partitioning.update.change import NONE, NodeChange, find_table
from partitioning.update.held_graph import HeldDirectory, HeldType
from partitioning.update_settings import UpdateSettings

Ints = NDArray[np.int64]


def read_nodes(
    held: HeldDirectory, each: HeldType, settings: UpdateSettings, notes: list[str]
) -> NodeChange:
    """Read the tables of deleted, changed and new nodes of a type."""
    deleted = NONE
    paths = {
        kind: find_table(held, settings, f"{kind}_nodes", each.name)
        for kind in ("new", "changed", "deleted")
    }
    if paths["deleted"] is not None:
        ids, where = _read_ids(held, each, paths["deleted"])
        deleted = each.nodes.find_rows(ids, where)
        check_unique(deleted, where, ids)
        deleted = np.sort(deleted)
    change = NodeChange(deleted)
    if paths["changed"] is not None:
        table = _read_table(held, each, paths["changed"])
        ids, where = _ids_of(table)
        rows = each.nodes.find_rows(ids, where, remedy="; a new node goes into update.new_nodes")
        check_unique(rows, where, ids)
        refuse(ids, np.isin(rows, deleted), where, "deleted by update.deleted_nodes; leave one out")
        values = _read_values(held, each, table, each.ids[rows], notes, is_new=False)
        if not values:
            raise InputError(f"{table.path}: has nothing but ids; add the columns that change")
        change = replace(change, changed=rows, changed_values=values)
    if paths["new"] is not None:
        table = _read_table(held, each, paths["new"])
        ids, where = _ids_of(table)
        known = each.nodes.find_rows(ids, where, keep_unknown=True) >= 0
        refuse(
            ids, known, where, "in the graph already; a changed node goes into update.changed_nodes"
        )
        keys = each.nodes.extended(ids).ids
        assert keys is not None
        keys = keys[each.nodes.num_nodes :]
        check_unique(keys, where, ids)
        names = Names.of(map(str, ids)) if each.named else None
        values = _read_values(held, each, table, keys, notes, is_new=True)
        change = replace(change, new_ids=keys, new_names=names, new_values=values)
    return change


def grow(known: Nodes, change: NodeChange) -> Nodes:
    """The nodes of a type and the new ones."""
    if not len(change.new_ids):
        return known
    assert known.ids is not None
    keys = np.concatenate((known.ids, change.new_ids))
    return Nodes.of_keys(keys, named=known.named)


def _read_ids(held: HeldDirectory, each: HeldType, path: Path) -> tuple[Array, str]:
    """Read the ids of a table of deleted nodes, and what messages call them."""
    if path.suffix == ".npy":
        array = read_npy(path)
        if array.ndim != 1:
            raise InputError(f"{path} has shape {array.shape}; expected the ids of nodes, [n]")
        return check_integers(array, str(path)), str(path)
    return _ids_of(_read_table(held, each, path))


def _ids_of(table: Table) -> tuple[Array, str]:
    """Return a table's ids and what messages call them; InputError if it has none."""
    if table.ids is None:
        raise InputError(
            f"{table.path}: there is no column of ids; name it as in the graph's, `id`"
        )
    return table.ids, table.ids_where


def _read_table(held: HeldDirectory, each: HeldType, path: Path) -> Table:
    state = held.state(each.name)
    try:
        return read_as_fitted(
            lambda columns: read_table(
                path, columns, text=each.named, regression=held.meta.task == "regression"
            ),
            held.columns,
            {} if state is None else {"nodes": state},
        )
    except TextIds:
        raise InputError(
            f"{path}: its ids are names; those of {held.path} are integers; use the same ids"
        ) from None


def _read_values(
    held: HeldDirectory, each: HeldType, table: Table, ids: Ints, notes: list[str], *, is_new: bool
) -> dict[str, Array]:
    """Return features, labels and masks of a table's rows, by the name of their file."""
    made: dict[str, Array] = {}
    given: dict[str, Any] = {name: array for name, (array, _) in table.values.items()}
    if is_new or "feat" in table.values:
        made["feat"] = _encode_features(held, each, table, ids, notes)
    if each.name != held.target:
        return made
    is_read = held.meta.request.get("split") != "none"
    if is_read and "label" in table.values:
        made["label"] = _convert_labels(held, given["label"], table.values["label"][1])
    masks = [name for name in MASKS if name in table.values] if is_read else []
    for name in masks:
        made[name] = check_mask(given[name], len(ids), f"{table.path}: {name}")
    if masks:
        made |= {name: np.zeros(len(ids), np.bool_) for name in MASKS if name not in masks}
    return made


def _encode_features(
    held: HeldDirectory, each: HeldType, table: Table, ids: Ints, notes: list[str]
) -> NDArray[np.float32]:
    """Encode the features of a table of nodes, [n, F], as the directory's.

    Rows that are unlike those of the fit are noted.
    """
    unusual: dict[str, int] = {}
    blocks = [np.zeros((len(ids), 0), np.float32)]
    for kind in each.kinds:
        if kind == "random":
            blocks.append(random_rows(ids, each.width - each.given_width))
        elif each.given_width:
            state = held.state(each.name)
            what = str(table.path)
            blocks.append(encode_node_rows(table, each.given_width, state, what, unusual))
    for column, count in unusual.items():
        notes.append(
            f"{table.path}: column `{column}`: {count} of {len(ids)} rows are unlike those that the"
            " feature pipeline was fitted to"
        )
    return np.hstack(blocks)


def _convert_labels(held: HeldDirectory, array: Array, where: str) -> Array:
    """Return labels in the form of the directory; InputError for a class that it does not know."""
    meta = held.meta
    if meta.task == "regression":
        labels: Array = check_targets(array, where)
    elif meta.task == "multilabel":
        labels = check_multilabel(array, where)
    else:
        return _number_classes(
            array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array, held, where
        )
    if labels.shape[1] != meta.num_classes:
        raise InputError(
            f"{where}: {labels.shape[1]} columns of labels; {held.path} has {meta.num_classes}"
        )
    return labels


def _number_classes(array: Array, held: HeldDirectory, where: str) -> Ints:
    """Return classes by their numbers in the directory, int64 [n], -1 where blank."""
    if array.ndim != 1:
        raise InputError(f"{where}: {array.shape[1]} columns; expected one, with classes")
    names = held.meta.class_names or list(range(held.meta.num_classes))
    number = {str(name): place for place, name in enumerate(names)}
    for word, digit in (("False", "0"), ("True", "1")):  # partitioning stores them as integers
        if digit in number:
            number.setdefault(word, number[digit])
    if array.dtype.kind == "f":
        whole = np.where(np.isnan(array), -1, array)
        refuse(array, whole != np.floor(whole), where, "expected a class")
        array = whole.astype(np.int64)
    texts = ["" if cell is None else str(cell).strip() for cell in array.tolist()]
    blank = {"", "-1"} - number.keys()
    classes = np.array([-1 if text in blank else number.get(text, -2) for text in texts], np.int64)
    shown = ", ".join(map(str, names[:10])) + (" ..." if len(names) > 10 else "")
    refuse(
        array,
        classes == -2,
        where,
        f"expected one of the classes {shown}, or blank; for a new class, partition again",
    )
    return classes
