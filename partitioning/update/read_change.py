"""Reads the tables of a change, and finds its nodes and edges in the partition directory.

Nodes have their ids in the partitioned graph; new node k of a type with N nodes has the number
N + k. The fitted feature pipeline of the directory encodes the columns, by their names.

n nodes or edges of a table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.array_checks import (
    Array,
    check_edge_weight,
    check_integers,
    check_mask,
    check_multilabel,
    check_targets,
    check_unique,
    refuse,
)
from partitioning.datasets.edge_tables import EdgeTable, read_edges
from partitioning.datasets.frames import TextIds
from partitioning.datasets.nodes import Nodes
from partitioning.datasets.raw import read_npy
from partitioning.datasets.symmetry import reverse_too
from partitioning.datasets.tables import Table, files_named, is_table, read_table
from partitioning.directory.npy_files import node_folder
from partitioning.errors import InputError
from partitioning.features.build import read_as_fitted
from partitioning.file_io import check_path
from partitioning.graph_addition import encode_edge_rows, encode_node_rows
from partitioning.graph_data import MASKS, PLAIN_RELATION, PLAIN_TYPE, SEPARATOR, EdgeType, Relation
from partitioning.node_names import Names
from partitioning.partition_settings import UpdateSettings
from partitioning.random_rows import random_rows
from partitioning.reverse_relations import REVERSE
from partitioning.update.held_graph import HeldDirectory, HeldRelation, HeldType

Ints = NDArray[np.int64]
SUFFIXES = ("csv", "csv.gz", "parquet")
NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class NodeChange:
    """The changes of the nodes of one type."""

    deleted: Ints = field(default_factory=lambda: NONE)
    """Ascending."""
    changed: Ints = field(default_factory=lambda: NONE)
    """[n]"""
    changed_values: Mapping[str, Array] = field(default_factory=dict)
    """[n, ...] by the name of the file that they go into."""
    new_ids: Ints = field(default_factory=lambda: NONE)
    """[n] ids of the data set, or hashes of names."""
    new_names: Names | None = None
    new_values: Mapping[str, Array] = field(default_factory=dict)
    """[n, ...] by the name of the file that they go into."""


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges of a table."""

    src: Ints = field(default_factory=lambda: NONE)
    """[n]"""
    dst: Ints = field(default_factory=lambda: NONE)
    data: Mapping[str, Array] = field(default_factory=dict)
    """[n, ...] edge_weight and edge_feat, where the edges of the directory have them."""
    where: str = ""
    """The table, for messages."""

    def take(self, rows: NDArray[Any]) -> "Edges":
        data = {name: array[rows] for name, array in self.data.items()}
        return replace(self, src=self.src[rows], dst=self.dst[rows], data=data)


@dataclass(frozen=True, eq=False)
class EdgeChange:
    """The changes of the edges of one relation."""

    deleted: Edges = field(default_factory=Edges)
    changed: Edges = field(default_factory=Edges)
    new: Edges = field(default_factory=Edges)
    """Without self loops."""
    self_loops: Ints = field(default_factory=lambda: NONE)
    """Nodes of new self loops, which are counted and left out."""


@dataclass(frozen=True, eq=False)
class Change:
    """All changes of an update."""

    nodes: dict[str, NodeChange]
    """By type, of all types."""
    edges: dict[EdgeType, EdgeChange]
    """By relation, of all relations."""
    notes: list[str]
    """What was decided about the data."""


def read_change(held: HeldDirectory, settings: UpdateSettings) -> Change:
    """Read the tables that the settings name.

    Raises:
        InputError: names setting, file, row and value of what does not fit the directory.
    """
    notes: list[str] = []
    nodes = {name: _read_nodes(held, each, settings, notes) for name, each in held.types.items()}
    left = held.types[held.target].bounds[-1] - len(nodes[held.target].deleted)
    if left + len(nodes[held.target].new_ids) == 0:
        raise InputError(
            f"update.deleted_nodes={settings.deleted_nodes}: no node would be left; remove the"
            " directory instead"
        )
    known = {name: each.nodes for name, each in held.types.items()}
    grown = {name: _grown(known[name], nodes[name]) for name in known}
    edges = {}
    for name, relation in held.relations.items():
        tables = {
            kind: _read_edges(held, relation, settings, kind, grown if kind == "new" else known)
            for kind in ("deleted", "changed", "new")
        }
        edges[name] = tables
    with_reverse = _add_reverse(held, edges)
    made = {name: _edge_change(held, name, each, nodes) for name, each in with_reverse.items()}
    _note_defaults(held, nodes, with_reverse, notes)
    return Change(nodes, made, notes)


def table_files(held: HeldDirectory, settings: UpdateSettings) -> dict[str, list[Path]]:
    """Return the files of each given setting; InputError for a missing or an odd one."""
    found = {}
    for kind in ("new", "changed", "deleted"):
        for what, names in (("nodes", held.types), ("edges", held.relations)):
            setting = f"{kind}_{what}"
            if getattr(settings, setting) is not None:
                found[f"update.{setting}"] = _list_tables(settings, setting, names)
    return found


def _list_tables(settings: UpdateSettings, setting: str, names: Any) -> list[Path]:
    value = str(getattr(settings, setting))
    path = check_path(f"update.{setting}", value)
    if not path.exists():
        raise InputError(f"update.{setting}={value}: there is no such file or folder; correct it")
    if PLAIN_TYPE in names or PLAIN_RELATION in names:
        return [path]
    stems = [name if isinstance(name, str) else SEPARATOR.join(name) for name in names]
    if is_table(path):
        raise InputError(
            f"update.{setting}={value}: a table; of a heterogeneous graph it is a folder with a"
            f" table for each type or relation: {', '.join(f'{stem}.csv' for stem in stems)}"
        )
    suffixes = (*SUFFIXES, "npy") if setting == "deleted_nodes" else SUFFIXES
    found = [file for stem in stems for file in files_named(path, stem, suffixes)]
    others = sorted(file.name for file in path.iterdir() if file not in found)
    if others or not found:
        raise InputError(
            f"update.{setting}={value}: {others[0] if others else 'an empty folder'}: expected"
            f" tables of {', '.join(stems)}, .csv, .csv.gz or .parquet"
        )
    return found


def _find_table(
    held: HeldDirectory, settings: UpdateSettings, setting: str, name: str | EdgeType
) -> Path | None:
    """Return the table of a setting for a type or relation; None where there is none."""
    if getattr(settings, setting) is None:
        return None
    names = held.types if isinstance(name, str) else held.relations
    found = _list_tables(settings, setting, names)
    if name in (PLAIN_TYPE, PLAIN_RELATION):
        return found[0]
    stem = name if isinstance(name, str) else SEPARATOR.join(name)
    return next((file for file in found if file.name.startswith(f"{stem}.")), None)


# --- nodes ----------


def _read_nodes(
    held: HeldDirectory, each: HeldType, settings: UpdateSettings, notes: list[str]
) -> NodeChange:
    deleted = NONE
    paths = {
        kind: _find_table(held, settings, f"{kind}_nodes", each.name)
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
        values = _values(held, each, table, each.ids[rows], notes, is_new=False)
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
        values = _values(held, each, table, keys, notes, is_new=True)
        change = replace(change, new_ids=keys, new_names=names, new_values=values)
    return change


def _grown(known: Nodes, change: NodeChange) -> Nodes:
    """The nodes of a type and the new ones."""
    if not len(change.new_ids):
        return known
    assert known.ids is not None
    keys = np.concatenate((known.ids, change.new_ids))
    return Nodes.of_keys(keys, named=known.named)


def _read_ids(held: HeldDirectory, each: HeldType, path: Path) -> tuple[Array, str]:
    if path.suffix == ".npy":
        array = read_npy(path)
        if array.ndim != 1:
            raise InputError(f"{path} has shape {array.shape}; expected the ids of nodes, [n]")
        return check_integers(array, str(path)), str(path)
    return _ids_of(_read_table(held, each, path))


def _ids_of(table: Table) -> tuple[Array, str]:
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


def _values(
    held: HeldDirectory, each: HeldType, table: Table, ids: Ints, notes: list[str], *, is_new: bool
) -> dict[str, Array]:
    """What the rows of a table hold, by the file that it goes into."""
    made: dict[str, Array] = {}
    given: dict[str, Any] = {name: array for name, (array, _) in table.values.items()}
    if is_new or "feat" in table.values:
        made["feat"] = _features(held, each, table, ids, notes)
    if each.name != held.target:
        return made
    is_read = held.meta.request.get("split") != "none"
    if is_read and "label" in table.values:
        made["label"] = _labels(held, given["label"], table.values["label"][1])
    masks = [name for name in MASKS if name in table.values] if is_read else []
    for name in masks:
        made[name] = check_mask(given[name], len(ids), f"{table.path}: {name}")
    if masks:
        made |= {name: np.zeros(len(ids), np.bool_) for name in MASKS if name not in masks}
    return made


def _features(
    held: HeldDirectory, each: HeldType, table: Table, ids: Ints, notes: list[str]
) -> NDArray[np.float32]:
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


def _labels(held: HeldDirectory, array: Array, where: str) -> Array:
    """Labels as the directory has them: a class that it does not know is refused."""
    meta = held.meta
    if meta.task == "regression":
        labels: Array = check_targets(array, where)
    elif meta.task == "multilabel":
        labels = check_multilabel(array, where)
    else:
        return _classes(
            array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array, held, where
        )
    if labels.shape[1] != meta.num_classes:
        raise InputError(
            f"{where}: {labels.shape[1]} columns of labels; {held.path} has {meta.num_classes}"
        )
    return labels


def _classes(array: Array, held: HeldDirectory, where: str) -> Ints:
    """Return classes, int64 [n] by their numbers in the directory, -1 where blank."""
    if array.ndim != 1:
        raise InputError(f"{where}: {array.shape[1]} columns; expected one, with classes")
    names = held.meta.class_names or list(range(held.meta.num_classes))
    number = {str(name): place for place, name in enumerate(names)}
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


# --- edges ----------


def _read_edges(
    held: HeldDirectory,
    relation: HeldRelation,
    settings: UpdateSettings,
    kind: str,
    nodes: Mapping[str, Nodes],
) -> Edges | None:
    """Read a table of edges of one relation; None where there is none."""
    path = _find_table(held, settings, f"{kind}_edges", relation.name)
    if path is None:
        return None
    source, _, destination = relation.name
    state = held.state(relation.name)
    try:
        table = read_as_fitted(
            lambda columns: read_edges(
                path,
                columns,
                (nodes[source], nodes[destination]),
                with_features=relation.num_features > 0 and kind != "deleted",
                remedy="; new nodes go into update.new_nodes" if kind == "new" else "",
            ),
            held.columns,
            {} if state is None else {"edges": state},
        )
    except TextIds:
        raise InputError(
            f"{path}: its ids are names; those of {held.path} are integers; use the same ids"
        ) from None
    data = {} if kind == "deleted" else _edge_data(held, relation, table, path, kind)
    if kind == "changed" and not data and len(table.src):
        raise InputError(
            f"{path}: has neither weights nor features that change; edges come and go by"
            " update.new_edges and update.deleted_edges"
        )
    src, dst = (ends.astype(np.int64) for ends in (table.src, table.dst))
    return Edges(src, dst, data, str(path))


def _edge_data(
    held: HeldDirectory, relation: HeldRelation, table: EdgeTable, path: Path, kind: str
) -> dict[str, Array]:
    data: dict[str, Array] = {}
    if table.weight is not None and not relation.is_weighted:
        raise InputError(
            f"{path}: has weights, the edges of {held.path} have none; take the column out"
            f" (columns.ignore), or partition again"
        )
    if relation.is_weighted and (table.weight is not None or kind == "new"):
        ones = np.ones(len(table.src), np.float32)
        weight = table.weight
        if weight is not None:
            weight = check_edge_weight(weight, len(ones), f"{path}: weights")
        data["edge_weight"] = ones if weight is None else weight
    if relation.num_features and (table.feat is not None or kind == "new"):
        state = held.state(relation.name)
        data["edge_feat"] = encode_edge_rows(table, relation.num_features, state, str(path))
    return data


def _add_reverse(
    held: HeldDirectory, tables: dict[EdgeType, dict[str, Edges | None]]
) -> dict[EdgeType, dict[str, Edges]]:
    """Add the reverse of each edge where the directory was made with reverse edges."""
    made = {name: dict(kinds) for name, kinds in tables.items()}
    if PLAIN_RELATION in made:
        if held.meta.request.get("symmetrize"):
            count = held.types[PLAIN_TYPE].bounds[-1] + 1
            for kind, edges in tables[PLAIN_RELATION].items():
                if edges is not None:
                    made[PLAIN_RELATION][kind] = _reversed_too(edges, kind, count)
    elif held.meta.request.get("relations.reverse", True):
        for name, kinds in tables.items():
            back = name[2], f"{REVERSE}{name[1]}", name[0]
            for kind, edges in kinds.items():
                if back in tables and edges is not None and tables[back][kind] is None:
                    made[back][kind] = replace(edges, src=edges.dst, dst=edges.src)
    return {
        name: {kind: Edges() if edges is None else edges for kind, edges in kinds.items()}
        for name, kinds in made.items()
    }


def _reversed_too(edges: Edges, kind: str, count: int) -> Edges:
    """The edges of a table of an undirected graph in both directions."""
    count = max(count, 1 + int(max(edges.src.max(initial=0), edges.dst.max(initial=0))))
    data: dict[str, Any] = dict(edges.data)
    relation = Relation(edges.src, edges.dst, **data)
    both = reverse_too(relation, count)
    return replace(edges, src=both.src, dst=both.dst, data=both.edge_data)


def _edge_change(
    held: HeldDirectory,
    name: EdgeType,
    tables: dict[str, Edges],
    nodes: Mapping[str, NodeChange],
) -> EdgeChange:
    """Check the tables of a relation against each other and against the deleted nodes."""
    for kind, edges in tables.items():
        for end, of_type in (("src", name[0]), ("dst", name[2])):
            ends = getattr(edges, end)
            gone = np.isin(ends, nodes[of_type].deleted)
            if gone.any():
                shown = held.types[of_type].ids[ends[gone][:1]]
                raise InputError(
                    f"{edges.where}: {int(gone.sum())} edges end at a node that"
                    f" update.deleted_nodes deletes, {_show(held, of_type, shown)} for instance;"
                    " its edges go with it: leave them out"
                )
        if kind != "new":
            _check_once(held, name, edges)
    changed = tables["changed"]
    pairs = [
        each.src * (held.types[name[2]].bounds[-1] + 1) + each.dst
        for each in (changed, tables["deleted"])
    ]
    both = np.isin(*pairs)
    if both.any():
        raise InputError(
            f"{changed.where}: {_show_edge(held, name, changed, int(both.argmax()))} is in"
            " update.deleted_edges, too; leave one out"
        )
    new, loops = tables["new"], NONE
    if name[0] == name[2]:
        for kind in ("changed", "deleted"):
            is_loop = tables[kind].src == tables[kind].dst
            if is_loop.any():
                shown = _show_edge(held, name, tables[kind], int(is_loop.argmax()))
                raise InputError(
                    f"{tables[kind].where}: {shown} is a self loop, which partitions leave out;"
                    " leave it out"
                )
        is_loop = new.src == new.dst
        loops, new = new.src[is_loop], new.take(~is_loop)
    return EdgeChange(tables["deleted"], changed, new, loops)


def _check_once(held: HeldDirectory, name: EdgeType, edges: Edges) -> None:
    pairs = edges.src * (held.types[name[2]].bounds[-1] + 1) + edges.dst
    order = np.argsort(pairs, kind="stable")
    again = order[1:][pairs[order[1:]] == pairs[order[:-1]]]
    if len(again):
        raise InputError(
            f"{edges.where}: {_show_edge(held, name, edges, int(again[0]))} is there twice; leave"
            " one out"
        )


def show_edge(held: HeldDirectory, name: EdgeType, src: int, dst: int) -> str:
    """An edge between nodes of the directory, for messages."""
    ends = [
        _show(held, of_type, held.types[of_type].ids[end : end + 1])
        for of_type, end in ((name[0], src), (name[2], dst))
    ]
    if held.meta.request.get("symmetrize"):  # the table may have the other direction
        return f"edge between {ends[0]} and {ends[1]}"
    return f"edge {ends[0]} -> {ends[1]}"


def _show_edge(held: HeldDirectory, name: EdgeType, edges: Edges, row: int) -> str:
    return show_edge(held, name, int(edges.src[row]), int(edges.dst[row]))


def _show(held: HeldDirectory, of_type: str, ids: Ints) -> str:
    """The id of a node as the data set has it."""
    each = held.types[of_type]
    if not each.named:
        return str(ids[0])
    place = int(np.flatnonzero(each.ids == ids[0])[0])
    part = int(np.searchsorted(each.bounds, place, side="right") - 1)
    names = Names.read(node_folder(held.folder(part), of_type))
    assert names is not None
    return names.take(np.array([place - each.bounds[part]])).tolist()[0]


def _note_defaults(
    held: HeldDirectory,
    nodes: Mapping[str, NodeChange],
    edges: Mapping[EdgeType, dict[str, Edges]],
    notes: list[str],
) -> None:
    """Say what was assumed where a table lacks a column."""
    new = nodes[held.target]
    if len(new.new_ids) and "train_mask" not in new.new_values:
        notes.append(
            f"the {len(new.new_ids)} new nodes are in no set of the split: a column split (train,"
            " val, test) puts them into one"
        )
    if len(new.new_ids) and "label" not in new.new_values:
        notes.append(f"the {len(new.new_ids)} new nodes have no label: there is no such column")
