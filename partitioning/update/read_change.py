"""Reads the tables of an update, and checks them together.

The tables are read as those of the graph were: their columns are found by the same names, and
encoded by the fitted feature pipeline of the directory. New node k of a type with N nodes has the
number N + k. n rows of a table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.directory.meta import Meta
from partitioning.directory.stored_graph import StoredGraph
from partitioning.errors import InputError
from partitioning.features.build import named_columns, read_as_fitted
from partitioning.features.encoder import State, count_columns
from partitioning.features.hetero_kinds import kinds_of
from partitioning.features.roles import columns_of_relation
from partitioning.files.file_io import check_path
from partitioning.graph.array_checks import (
    Array,
    Ints,
    check_columns,
    check_mask,
    check_unique,
    refuse,
)
from partitioning.graph.graph_data import (
    MASKS,
    PLAIN_RELATION,
    PLAIN_TYPE,
    SEPARATOR,
    EdgeType,
    Endpoints,
    Relation,
    endpoint_dtype,
    table_name,
)
from partitioning.graph.node_names import Names
from partitioning.graph.reverse_relations import REVERSE
from partitioning.graph.symmetry import add_missing_reverse
from partitioning.partition_settings import ColumnSettings, UpdateSettings
from partitioning.read.edge_tables import read_edges
from partitioning.read.node_tables import Table, read_table
from partitioning.read.nodes import Nodes
from partitioning.read.table_files import column_names, kind_of, list_visible, stem_of
from partitioning.read.tables import is_table
from partitioning.update.graph_addition import encode_later_rows, read_edge_data

KINDS = ("deleted", "changed", "new")
SUFFIXES = ("csv", "csv.gz", "parquet")
NONE = np.zeros(0, np.int64)
COMPUTED = (": has no features; the means", ": nothing to take features=")
"""How notes of meta.json go on where features of a type were computed from the graph."""

Tables = dict[tuple[str, str | EdgeType], Path]
"""By setting (new_nodes ...), and node type or relation."""


@dataclass(frozen=True, eq=False)
class NodeChange:
    """Changes of the nodes of one type."""

    known: Nodes
    """The nodes before, to look up ids."""
    grown: Nodes
    """The same and the new ones."""
    deleted: Ints = field(default_factory=lambda: NONE)
    changed: Ints = field(default_factory=lambda: NONE)
    """[n]"""
    changed_values: Mapping[str, Array] = field(default_factory=dict)
    """[n, ...] by the names of the fields that they change: feat, labels and masks."""
    new_names: Names | None = None
    new_values: Mapping[str, Array] = field(default_factory=dict)
    """[n, ...] by the names of the fields that they change: feat, labels and masks."""

    @property
    def new_ids(self) -> Ints:
        """Return the ids of the data set of new nodes, or hashes of names, [n]."""
        assert self.grown.ids is not None
        return self.grown.ids[self.known.num_nodes :]

    @cached_property
    def stays(self) -> NDArray[np.bool_]:
        """Return whether each node is in the graph afterwards, [N + n]."""
        stays = np.ones(self.grown.num_nodes, np.bool_)
        stays[self.deleted] = False
        return stays

    @cached_property
    def position(self) -> Endpoints:
        """Return the position of each node afterwards, [N + n]; undefined for deleted ones."""
        dtype = endpoint_dtype(self.grown.num_nodes)
        return (np.cumsum(self.stays) - 1).astype(dtype)


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


@dataclass(frozen=True, eq=False)
class Change:
    """All changes of an update."""

    stored: StoredGraph
    """The graph before."""
    nodes: dict[str, NodeChange]
    """By type, of all types."""
    edges: dict[EdgeType, dict[str, Edges]]
    """By relation and KINDS, of all relations."""
    notes: list[str]
    """What was decided about the data."""

    def refuse_edges(
        self, relation: EdgeType, edges: Edges, wrong: NDArray[np.bool_], why: str
    ) -> None:
        """Raise InputError for the first edge of a table that is wrong, bool [n]; `why` ends it."""
        if not wrong.any():
            return
        src, dst = (
            self.show(of_type, int(ends[wrong][0]))
            for of_type, ends in ((relation[0], edges.src), (relation[2], edges.dst))
        )
        edge = f"edge {src} -> {dst}"
        if self.stored.meta.request.get("symmetrize"):  # the table may have the other direction
            edge = f"edge between {src} and {dst}"
        raise InputError(f"{edges.where}: {edge} {why}")

    def show(self, name: str, node: int) -> str:
        """Return the id of a node, of the graph or a new one, as the data set has it."""
        table, change = self.stored.graph.nodes[name], self.nodes[name]
        if node >= table.num_nodes:
            node -= table.num_nodes
            table = replace(table, node_ids=change.new_ids, node_names=change.new_names)
        return str(table.shown_id(node))


def find_tables(settings: UpdateSettings, meta: Meta) -> Tables:
    """Return the tables that the settings name; InputError for a missing or an unknown one."""
    tables: Tables = {}
    for kind in KINDS:
        for what, names in (("nodes", meta.node_counts), ("edges", meta.edge_types)):
            setting = f"{kind}_{what}"
            value = getattr(settings, setting)
            if value is not None:
                tables_by_name = _find_by_name(setting, str(value), list(names))
                tables |= {(setting, name): path for name, path in tables_by_name.items()}
    return tables


def _find_by_name(setting: str, value: str, names: Sequence[Any]) -> dict[Any, Path]:
    """Return the tables of a setting by type or relation; a heterogeneous graph's are in a folder.

    InputError for a missing path, another format, or a folder with other files or none.
    """
    path, where = check_path(f"update.{setting}", value), f"update.{setting}={value}"
    formats = ", ".join(f".{suffix}" for suffix in SUFFIXES)
    if not path.exists():
        raise InputError(f"{where}: there is no such file or folder; correct it")
    if names[0] in (PLAIN_TYPE, PLAIN_RELATION):
        if kind_of(path) in ("npy", "npz", "xlsx"):
            raise InputError(f"{where}: expected a {formats} table; convert it")
        return {names[0]: path}
    by_stem = {name if isinstance(name, str) else SEPARATOR.join(name): name for name in names}
    files = {} if is_table(path) else {file: stem_of(file) for file in list_visible(path)}
    names_expected = {f"{stem}.{suffix}" for stem in by_stem for suffix in SUFFIXES}
    is_known = all(file.name in names_expected for file in files)
    if not files or not is_known or len({*files.values()}) < len(files):
        raise InputError(
            f"{where}: expected a folder with one table for each type or relation that changes, of"
            f" {', '.join(by_stem)}, {formats}; found"
            f" {', '.join(file.name for file in files) or 'none'}"
        )
    return {by_stem[stem]: file for file, stem in files.items()}


def read_change(stored: StoredGraph, tables: Tables) -> Change:
    """Read the tables of a change.

    Raises:
        InputError: names setting, file, row and value of what does not fit the graph.
    """
    notes: list[str] = []
    nodes = {name: _read_nodes(stored, name, tables, notes) for name in stored.graph.nodes}
    target = nodes[stored.meta.target]
    if len(target.deleted) == target.grown.num_nodes:
        raise InputError(
            "update.deleted_nodes: no node would be left; remove the directory instead"
        )
    new = f"the {len(target.new_ids)} new nodes"
    if len(target.new_ids) and MASKS[0] not in target.new_values:
        notes.append(
            f"{new} are in no set of the split: a column split (train, val, test) puts them into"
            " one"
        )
    if len(target.new_ids) and "labels" not in target.new_values:
        notes.append(f"{new} have no label: there is no such column")
    edges: dict[EdgeType, dict[str, Edges]] = {
        name: {
            kind: _read_edges(stored, name, kind, path, nodes)
            for kind in KINDS
            if (path := tables.get((f"{kind}_edges", name)))
        }
        for name in stored.graph.relations
    }
    _add_reverse(stored.meta, edges, nodes)
    edges = {name: dict.fromkeys(KINDS, Edges()) | kinds for name, kinds in edges.items()}
    change = Change(stored, nodes, edges, notes)
    for name in edges:
        _check_edges(change, name)
    return change


# --- how the tables of the directory were read ----------


def columns_of(meta: Meta) -> ColumnSettings:
    """Return the settings columns.* with which a directory was made."""
    columns: dict[str, Any] = {
        field.name: meta.request.get(f"columns.{field.name}") for field in fields(ColumnSettings)
    }
    return named_columns(meta.features, ColumnSettings(**columns))


def state_of(meta: Meta, name: str | EdgeType) -> State | None:
    """Return the fitted pipeline of a type's or a relation's table; None where there is none."""
    return meta.features.get(table_name(name))


def check_features(path: Path, meta: Meta) -> None:
    """Raise InputError where features are not of the node's own table.

    Those made from edges change with these, and random ones are drawn for all nodes.
    """
    kinds_by_type = kinds_of(meta.request.get("features", ["given"]), meta.node_counts)
    for name, kinds in kinds_by_type.items():
        state, width = state_of(meta, name), meta.node_counts[name]["features"]
        is_computed = any(
            note.startswith(name + begin) for note in meta.notes for begin in COMPUTED
        )
        has_means = name and state is not None and count_columns(state) != width
        if kinds != ("given",) or is_computed or has_means:
            listed_kinds = f" ({', '.join(kinds)})" if kinds != ("given",) else ""
            raise InputError(
                f"{path}: the features{name and f' of {name}'} are not of a table alone"
                f"{listed_kinds}, and app=update would have to compute them for the whole graph;"
                " partition the changed tables again (app=partition_data overwrite=true)"
            )


# --- nodes ----------


def _read_nodes(stored: StoredGraph, name: str, tables: Tables, notes: list[str]) -> NodeChange:
    """Read the tables of deleted, changed and new nodes of a type.

    Those that are missing are empty. Unlike rows add to `notes`. InputError for ids that are
    unknown, there already, or twice.
    """
    before = stored.graph.nodes[name]
    known = Nodes.of_keys(before.node_ids, named=before.node_names is not None)
    change = NodeChange(known, known)
    if path := tables.get(("deleted_nodes", name)):
        _, ids, where = _read_table(stored, name, path)
        change = replace(change, deleted=known.find_rows(ids, where))
        check_unique(change.deleted, where, ids)
    if path := tables.get(("changed_nodes", name)):
        table, ids, where = _read_table(stored, name, path)
        rows = known.find_rows(ids, where, remedy="; a new node goes into update.new_nodes")
        check_unique(rows, where, ids)
        is_deleted = np.isin(rows, change.deleted)
        refuse(ids, is_deleted, where, "deleted by update.deleted_nodes; leave one out")
        values = _read_values(stored.meta, name, table, notes, is_new=False)
        if not values:
            raise InputError(f"{path}: has nothing but ids; add the columns that change")
        change = replace(change, changed=rows, changed_values=values)
    if path := tables.get(("new_nodes", name)):
        table, ids, where = _read_table(stored, name, path)
        grown = known.extended(ids, where, "a changed node goes into update.changed_nodes")
        names = Names.of(map(str, ids)) if known.named else None
        change = replace(change, grown=grown, new_names=names)
        values = _read_values(stored.meta, name, table, notes, is_new=True)
        change = replace(change, new_values=values)
    return change


def _read_table(stored: StoredGraph, name: str, path: Path) -> tuple[Table, Array, str]:
    """Read a table, its ids, and what messages call them; InputError for ids of another kind."""
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
    meta: Meta, name: str, table: Table, notes: list[str], *, is_new: bool
) -> dict[str, Array]:
    """Return those of features, labels and masks that a table has, by the names of fields.

    New rows always have features, encoded as the directory's; masks that a table lacks are false if
    it has another one. Other types than the target, and split=none, have features alone. Each
    column with rows unlike those of the fit adds to `notes`. InputError for a wrong value.
    """
    values: dict[str, Array] = {}
    arrays: dict[str, Any] = {role: array for role, (array, _) in table.values.items()}
    num_rows, width = table.rows, int(meta.node_counts[name]["features"])
    if is_new or "feat" in arrays:
        unusual: dict[str, int] = {}
        state, what = state_of(meta, name), str(table.path)
        values["feat"] = encode_later_rows(
            arrays.get("feat"), table.schema, num_rows, width, state, what, unusual
        )
        for column, count in unusual.items():
            notes.append(
                f"{what}: column `{column}`: {count} of {num_rows} rows are unlike those that the"
                " feature pipeline was fitted to"
            )
    if name != meta.target or meta.request.get("split") == "none":
        return values
    if "label" in arrays:
        where = table.values["label"][1]
        values["labels"] = (
            _number_classes(meta, arrays["label"], where)
            if meta.task == "multiclass"
            else check_columns(
                arrays["label"], meta.num_classes, where, regression=meta.task == "regression"
            )
        )
    blank = np.zeros(num_rows, np.bool_)
    for mask in MASKS if {*MASKS} & arrays.keys() else ():
        values[mask] = check_mask(arrays.get(mask, blank), num_rows, f"{table.path}: {mask}")
    return values


def _number_classes(meta: Meta, array: Array, where: str) -> Ints:
    """Return classes by their numbers in the directory, int64 [n], -1 where blank.

    InputError for a class that the directory has not.
    """
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    names = meta.class_names or list(range(meta.num_classes))
    number = {str(name): place for place, name in enumerate(names)}
    for word, digit in (("False", "0"), ("True", "1")):  # partitioning stores them as integers
        if digit in number:
            number.setdefault(word, number[digit])
    number = {"": -1, "-1": -1} | number
    cells = array.tolist()
    if array.dtype.kind == "f":  # a table with blank cells; 3.0 is class 3
        cells = [
            None if np.isnan(cell) else f"{cell:.0f}" if cell % 1 == 0 else cell for cell in cells
        ]
    texts = ["" if cell is None else str(cell).strip() for cell in cells]
    classes = np.array([number.get(text, -2) for text in texts], np.int64)
    listed = ", ".join(map(str, names[:10])) + (" ..." if len(names) > 10 else "")
    refuse(
        array,
        classes == -2,
        where,
        f"expected one of the classes {listed}, or blank; for a new class, partition again",
    )
    return classes


# --- edges ----------


def _read_edges(
    stored: StoredGraph, name: EdgeType, kind: str, path: Path, nodes: Mapping[str, NodeChange]
) -> Edges:
    """Read a table of edges of one relation; only new ones may end at new nodes.

    InputError for an unknown end or missing columns, and if a changed edge changes nothing.
    """
    state, columns = state_of(stored.meta, name), columns_of(stored.meta)
    relation, is_new = stored.graph.relations[name], kind == "new"
    columns_given, fitted = columns_of_relation(columns, name), state
    if columns_given.weight not in column_names(path):  # a change may come without
        columns_given = replace(columns_given, weight=None)
        if state is not None:
            fitted = state | {"roles": {**state["roles"], "weight": []}}
    ends = [nodes[of_type].grown if is_new else nodes[of_type].known for of_type in name[::2]]
    with_features = relation.edge_feat is not None and kind != "deleted"
    remedy = "; new nodes go into update.new_nodes" if is_new else ""
    table = read_as_fitted(
        lambda columns: read_edges(
            path, columns, (ends[0], ends[1]), with_features=with_features, remedy=remedy
        ),
        columns_given,
        {} if fitted is None else {"edges": fitted},
    )
    data: dict[str, Array] = {}
    if kind != "deleted":
        data |= read_edge_data(table, relation, state, columns, str(path), is_new=is_new)
    if kind == "changed" and not data and len(table.src):
        raise InputError(
            f"{path}: has neither weights nor features that change; edges come and go by"
            " update.new_edges and update.deleted_edges"
        )
    return Edges(table.src.astype(np.int64), table.dst.astype(np.int64), data, str(path))


def _add_reverse(
    meta: Meta, tables: dict[EdgeType, dict[str, Edges]], nodes: Mapping[str, NodeChange]
) -> None:
    """Add the reverse of each edge to `tables` where the directory was made with reverse edges.

    Not to a relation that has a table of its own.
    """
    for name, kinds in list(tables.items()):
        back = name[2], f"{REVERSE}{name[1]}", name[0]
        for kind, edges in list(kinds.items()):
            if name == PLAIN_RELATION and meta.request.get("symmetrize"):
                data: dict[str, Any] = dict(edges.data)
                num_nodes = nodes[PLAIN_TYPE].grown.num_nodes
                both = add_missing_reverse(Relation(edges.src, edges.dst, **data), num_nodes)
                kinds[kind] = replace(edges, src=both.src, dst=both.dst, data=both.edge_data)
            elif back in tables and meta.request.get("relations.reverse", True):
                tables[back].setdefault(kind, replace(edges, src=edges.dst, dst=edges.src))


def _check_edges(change: Change, name: EdgeType) -> None:
    """Raise InputError where a relation's tables contradict each other or the deleted nodes.

    Also for an edge that is there twice, but a new one without duplicates=merge, and for self loops
    to change or delete.
    """
    pairs: dict[str, Ints] = {}
    is_merged = change.stored.meta.request.get("duplicates") == "merge"
    for kind, edges in change.edges[name].items():
        for ends, of_type in ((edges.src, name[0]), (edges.dst, name[2])):
            gone = np.isin(ends, change.nodes[of_type].deleted)
            if gone.any():
                node = change.show(of_type, int(ends[gone][0]))
                raise InputError(
                    f"{edges.where}: {int(gone.sum())} edges end at a node that"
                    f" update.deleted_nodes deletes, {node} for instance; its edges go with it:"
                    " leave them out"
                )
        pairs[kind] = edges.src * change.nodes[name[2]].grown.num_nodes + edges.dst
        if kind != "new" or is_merged:
            again = np.ones(len(edges.src), np.bool_)
            again[np.unique(pairs[kind], return_index=True)[1]] = False
            change.refuse_edges(name, edges, again, "is there twice; leave one out")
        if kind != "new" and name[0] == name[2]:
            why = "is a self loop, which partitions leave out; leave it out"
            change.refuse_edges(name, edges, edges.src == edges.dst, why)
    both, why = np.isin(pairs["changed"], pairs["deleted"]), "is in update.deleted_edges, too"
    change.refuse_edges(name, change.edges[name]["changed"], both, f"{why}; leave one out")
