"""Applies tables of changes to a partition directory: a change is applied to the graph, which is
written in the place of the former one.

A change is known by the checksum of its tables. meta.json keeps the history of changes, so that one
is not applied twice. Nodes and edges that stay keep their order, and new ones follow: so the graph
is that of tables without the deleted rows and with the new ones at the end. N nodes of a type, E
edges of a relation, n new ones.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.directory.meta import Meta
from partitioning.directory.replace_directory import writing
from partitioning.directory.stored_graph import StoredGraph, read_graph, read_meta
from partitioning.errors import InputError
from partitioning.files.file_io import file_checksum, json_checksum
from partitioning.graph.array_checks import Array, Ints, check_split
from partitioning.graph.graph_data import MASKS, EdgeType, Relation, is_labelled
from partitioning.graph.node_names import Names
from partitioning.partition_settings import UpdateSettings
from partitioning.read.table_files import list_visible
from partitioning.update.place import place_new
from partitioning.update.read_change import (
    KINDS,
    Change,
    Edges,
    NodeChange,
    Tables,
    check_features,
    find_tables,
    read_change,
)

UNPLACED = -1
"""Partition of a new node before it is placed."""


def update_directory(path: Path, settings: UpdateSettings, version: str) -> tuple[Meta, list[str]]:
    """Apply the tables of the settings to a directory, which is locked and replaced.

    Args:
        version: Of this program, for the history.

    Returns:
        The new description, whose history ends with this update, and what was decided.

    Raises:
        InputError: no table is set or one does not fit the directory, the directory cannot be
            changed, the change was applied before, or another process writes the directory. The
            directory is as before.
    """
    with writing(path):
        meta = read_meta(path)
        check_features(path, meta)
        tables = find_tables(settings, meta)
        if not tables:
            raise InputError(
                "app=update: nothing to change; give tables by update.new_nodes, changed_nodes,"
                " deleted_nodes, new_edges, changed_edges or deleted_edges"
            )
        files = _describe_files(tables)
        digest = _make_digest(path, meta, files)
        stored = read_graph(path, meta)
        change = read_change(stored, tables)
        changed = _apply_change(change)
        _check_split(stored, changed)
        placed = place_new(changed)
        new = [
            placed[name][-1 : -1 - len(nodes.new_ids) : -1] for name, nodes in change.nodes.items()
        ]
        edges = {
            kind: sum(len(kinds[kind].src) for kinds in change.edges.values()) for kind in KINDS
        }
        edges["deleted"] = stored.graph.num_edges + edges["new"] - changed.graph.num_edges
        counted = (("new", "new_ids"), ("changed", "changed"), ("deleted", "deleted"))
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "change": digest,
            "files": files,
            "nodes": {
                kind: sum(len(getattr(nodes, field)) for nodes in change.nodes.values())
                for kind, field in counted
            },
            "edges": edges,
            "placed": np.bincount(np.concatenate(new), minlength=len(meta.parts)).tolist(),
            "notes": change.notes,
            "version": version,
        }
        written = replace(changed, assignment=placed).write(path, entry)
    notes = list(change.notes)
    if any(name.endswith((".dgl", ".json")) for name in meta.checksums):
        notes.append(
            "DGL's files are left out, because they are not updated; app=partition_data"
            f" partition.from={path} writes them again where DGL is installed"
        )
    return written, notes


def _describe_files(tables: Tables) -> dict[str, dict[str, str]]:
    """Return the checksums of a change's files, by setting and path from the table's folder."""
    described: dict[str, dict[str, str]] = {}
    for (setting, _), path in tables.items():
        of_setting = described.setdefault(f"update.{setting}", {})
        for file in list_visible(path) if path.is_dir() else [path]:
            of_setting[file.relative_to(path.parent).as_posix()] = file_checksum(file)
    return described


def _make_digest(path: Path, meta: Meta, files: Mapping[str, Mapping[str, str]]) -> str:
    """Return the checksum of a change from its files' checksums, by setting and name.

    It does not depend on the names. InputError where meta.history has it: applied before.
    """
    digest = json_checksum({setting: sorted(sums.values()) for setting, sums in files.items()})
    for entry in meta.history:
        if entry.get("change") == digest:
            raise InputError(
                f"{path}: this change was applied at {entry.get('time')} (its tables have the"
                f" checksum {digest[:12]}); leave it out, or put its rows"
                " in another order to apply them once more"
            )
    return digest


def _check_split(stored: StoredGraph, changed: StoredGraph) -> None:
    """Raise InputError for an unlabelled node in a set of the split, or one in two sets.

    Also where no training node is left of some.
    """
    masks = changed.target_rows
    labelled = is_labelled(masks.pop("labels"))
    check_split(masks, labelled, "the changed graph", changed.graph.target_nodes.shown_id)
    if stored.target_rows[MASKS[0]].any() and not masks[MASKS[0]].any():
        raise InputError(
            "app=update: no training node would be left, so nothing could be trained; keep some"
            " (update.deleted_nodes, or the column split)"
        )


def _apply_change(change: Change) -> StoredGraph:
    """Return the changed graph, whose new nodes have the partition UNPLACED.

    Raises:
        InputError: an edge of a table is not in the graph.
    """
    stored = change.stored
    nodes, assignment = {}, {}
    target_rows: Any = stored.target_rows
    for name, table in stored.graph.nodes.items():
        new_nodes = change.nodes[name]
        stays = new_nodes.stays[: table.num_nodes]
        names = table.node_names
        if names is not None and not stays.all():
            names = names.take(np.flatnonzero(stays))
        if names is not None and new_nodes.new_names is not None:
            names = Names.join([names, new_nodes.new_names])
        nodes[name] = replace(
            table,
            features=_change_rows("feat", np.asarray(table.features), stays, new_nodes),
            node_ids=np.concatenate((table.node_ids[stays], new_nodes.new_ids)),
            node_names=names,
        )
        unplaced = np.full(len(new_nodes.new_ids), UNPLACED)
        assignment[name] = np.concatenate((stored.assignment[name][stays], unplaced))
        if name == stored.meta.target:
            target_rows = {
                file: _change_rows(file, array, stays, new_nodes)
                for file, array in target_rows.items()
            }
    relations = {edge_type: _change_edges(edge_type, change) for edge_type in change.edges}
    graph = replace(stored.graph, nodes=nodes, relations=relations, **target_rows)
    return replace(stored, graph=graph, assignment=assignment)


def _change_rows(file: str, array: Array, stays: NDArray[np.bool_], change: NodeChange) -> Array:
    """Change an array with a row for each node, [N, ...]; new rows follow the ones that stay.

    A new node without a value has no label and is in no set of the split.
    """
    if file in change.changed_values:
        array = array.copy()
        array[change.changed] = change.changed_values[file]
    if not stays.all():
        array = array[stays]
    if not len(change.new_ids):
        return array
    blank = {"i": -1, "f": np.nan, "b": False}[array.dtype.kind]
    rows = change.new_values.get(file)
    if rows is None:
        rows = np.full((len(change.new_ids), *array.shape[1:]), blank)
    return np.concatenate((array, rows.astype(array.dtype)))


def _change_edges(
    name: EdgeType,
    change: Change,
) -> Relation:
    """Return a relation with its edges changed; new ones come last.

    All copies of a deleted edge go, and the edges of deleted nodes. InputError for an edge to
    change or delete that is missing, one to change that is there several times, and with
    duplicates=merge a new one that is there.
    """
    relation = change.stored.graph.relations[name]
    new, changed, deleted = (change.edges[name][kind] for kind in ("new", "changed", "deleted"))
    sources, destinations = change.nodes[name[0]], change.nodes[name[2]]
    # Edges are sorted by destination, then source: so are these numbers.
    first = np.int64(sources.grown.num_nodes)
    keys = relation.dst * first + relation.src

    def find(table: Edges) -> tuple[Ints, Ints]:
        """Return the position of the first copy of each edge, and the number of copies."""
        keys_wanted = table.dst * first + table.src
        order = np.argsort(keys_wanted)  # a search in order takes a third of the time
        edges = np.empty((2, len(keys_wanted)), np.int64)
        for row, side in enumerate(("left", "right")):
            edges[row, order] = np.searchsorted(keys, keys_wanted[order], side)  # type: ignore[call-overload]
        return edges[0], edges[1] - edges[0]

    stays = np.ones(len(keys), np.bool_)
    begin, num_copies = find(deleted)
    change.refuse_edges(name, deleted, num_copies == 0, "is not in the graph; leave it out")
    for copy in range(num_copies.max(initial=0)):
        stays[begin[num_copies > copy] + copy] = False
    data: dict[str, Any] = dict(relation.edge_data)
    begin, num_copies = find(changed)
    change.refuse_edges(name, changed, num_copies == 0, "is not in the graph; leave it out")
    change.refuse_edges(
        name, changed, num_copies > 1, "is there several times; delete it and add it anew"
    )
    for file, values in changed.data.items():
        data[file] = data[file].copy()
        data[file][begin] = values
    if change.stored.meta.request.get("duplicates") == "merge":
        begin, num_copies = find(new)
        is_there = num_copies > 0
        is_there[is_there] = stays[begin[is_there]]
        change.refuse_edges(
            name,
            new,
            is_there,
            "is in the graph already, which was made with duplicates=merge; change its weight by"
            " update.changed_edges",
        )
    if not (sources.stays.all() and destinations.stays.all()):
        stays &= sources.stays[relation.src] & destinations.stays[relation.dst]
    for file, array in data.items():
        data[file] = np.concatenate((array[stays], new.data.get(file, array[:0])))
    return Relation(
        sources.position[np.concatenate((relation.src[stays], new.src))],
        destinations.position[np.concatenate((relation.dst[stays], new.dst))],
        **data,
    )
