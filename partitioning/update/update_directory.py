"""Applies tables of changes to a partition directory: a change is applied to the graph, which is
written in the place of the former one.

A change is known by the checksum of its tables. meta.json keeps the history of changes, so that one
is not applied twice.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.array_checks import check_split
from partitioning.datasets.table_files import list_visible
from partitioning.directory.meta import Meta
from partitioning.directory.replace_directory import writing
from partitioning.directory.stored_graph import StoredGraph, read_graph, read_meta
from partitioning.errors import InputError
from partitioning.file_io import file_checksum, json_checksum
from partitioning.graph_data import MASKS, is_labelled
from partitioning.partition_settings import UpdateSettings
from partitioning.update.apply_change import apply_change
from partitioning.update.change import Change, NodeChange, Tables, find_tables
from partitioning.update.place import place_new
from partitioning.update.read_edges import read_edge_changes
from partitioning.update.read_nodes import read_nodes
from partitioning.update.stored_columns import check_features


def update_directory(path: Path, settings: UpdateSettings, version: str) -> tuple[Meta, list[str]]:
    """Apply the tables of the settings to a directory.

    Args:
        path: The directory.
        settings: The tables, and how new nodes are placed.
        version: Of this program, for the history.

    Returns:
        The new description, whose history ends with this update, and what was decided.

    Raises:
        InputError: a table does not fit the directory, the change was applied before, or another
            process writes the directory. The directory is as before.
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
        digest = _make_digest(files)
        _refuse_again(path, meta, digest)
        stored = read_graph(path, meta)
        change = read_change(stored, tables)
        changed, num_edges = apply_change(stored, change)
        _check_split(stored, changed)
        placed = place_new(changed)
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "change": digest,
            "files": files,
            "nodes": _count_nodes(change.nodes),
            "edges": num_edges,
            "placed": _count_placed(change.nodes, placed, len(meta.parts)),
            "notes": change.notes,
            "version": version,
        }
        written = replace(changed, assignment=placed).write(path, entry)
    return written, [*change.notes, *_note_dgl_files(path, meta)]


def read_change(stored: StoredGraph, tables: Tables) -> Change:
    """Read the tables of a change.

    Raises:
        InputError: names setting, file, row and value of what does not fit the graph.
    """
    notes: list[str] = []
    nodes = {name: read_nodes(stored, name, tables, notes) for name in stored.graph.nodes}
    target = nodes[stored.meta.target_type]
    if len(target.deleted) == target.grown.num_nodes:
        raise InputError(
            "update.deleted_nodes: no node would be left; remove the directory instead"
        )
    edges = read_edge_changes(stored, tables, nodes)
    new = f"the {len(target.new_ids)} new nodes"
    if len(target.new_ids) and MASKS[0] not in target.new_values:
        notes.append(
            f"{new} are in no set of the split: a column split (train, val, test) puts them into"
            " one"
        )
    if len(target.new_ids) and "labels" not in target.new_values:
        notes.append(f"{new} have no label: there is no such column")
    return Change(nodes, edges, notes)


def _describe_files(tables: Tables) -> dict[str, dict[str, str]]:
    """Return the checksums of a change's files, by setting and path from the table's folder."""
    described: dict[str, dict[str, str]] = {}
    for (setting, _), path in tables.items():
        of_setting = described.setdefault(f"update.{setting}", {})
        for file in list_visible(path) if path.is_dir() else [path]:
            of_setting[file.relative_to(path.parent).as_posix()] = file_checksum(file)
    return described


def _make_digest(files: Mapping[str, Mapping[str, str]]) -> str:
    """Return the checksum of a change, which does not depend on the names of its files."""
    sums = {setting: sorted(tables.values()) for setting, tables in files.items()}
    return json_checksum(sums)


def _refuse_again(path: Path, meta: Meta, digest: str) -> None:
    """Raise InputError where the tables were applied before."""
    for entry in meta.history:
        if entry.get("change") == digest:
            raise InputError(
                f"{path}: this change was applied at {entry.get('time')} (its tables have the"
                f" checksum {digest[:12]}); leave it out, or put its rows"
                " in another order to apply them once more"
            )


def _check_split(stored: StoredGraph, changed: StoredGraph) -> None:
    """Raise InputError for an unlabelled node in a set of the split, or no training node."""
    masks = changed.target_rows
    labelled = is_labelled(masks.pop("labels"))
    ids = changed.graph.nodes[changed.meta.target_type].node_ids
    check_split(masks, labelled, "the changed graph", ids)
    if stored.target_rows[MASKS[0]].any() and not masks[MASKS[0]].any():
        raise InputError(
            "app=update: no training node would be left, so nothing could be trained; keep some"
            " (update.deleted_nodes, or the column split)"
        )


def _count_nodes(nodes: Mapping[str, NodeChange]) -> dict[str, int]:
    """Return the number of new, changed and deleted nodes of all types."""
    counted = {"new": "new_ids", "changed": "changed", "deleted": "deleted"}
    return {
        kind: sum(len(getattr(nodes_of_type, field)) for nodes_of_type in nodes.values())
        for kind, field in counted.items()
    }


def _count_placed(
    nodes: Mapping[str, NodeChange], placed: Mapping[str, Any], num_parts: int
) -> list[int]:
    """Return the number of new nodes of each partition; the new ones of a type are its last."""
    new = [
        placed[name][len(placed[name]) - len(nodes_of_type.new_ids) :]
        for name, nodes_of_type in nodes.items()
    ]
    counts: list[int] = np.bincount(np.concatenate(new), minlength=num_parts).tolist()
    return counts


def _note_dgl_files(path: Path, meta: Meta) -> list[str]:
    """Return a note that DGL's files are not written again, if the directory has some."""
    if not any(name.endswith((".dgl", ".json")) for name in meta.checksums):
        return []
    return [
        "DGL's files are left out, because they are not updated; app=partition_data"
        f" partition.from={path} writes them again where DGL is installed"
    ]
