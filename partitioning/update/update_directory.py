"""Applies tables of changes to a partition directory: a change is applied to the graph, which is
written in the place of the former one.

A change is known by the checksum of its tables. meta.json keeps the history of changes, so that one
is not applied twice.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

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
from partitioning.update.place import place_new
from partitioning.update.read_change import (
    Tables,
    check_features,
    find_tables,
    read_change,
)


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
        digest = _make_digest(path, meta, files)
        stored = read_graph(path, meta)
        change = read_change(stored, tables)
        changed, num_edges = apply_change(change)
        _check_split(stored, changed)
        placed = place_new(changed)
        new = [
            placed[name][-1 : -1 - len(nodes.new_ids) : -1] for name, nodes in change.nodes.items()
        ]
        counted = (("new", "new_ids"), ("changed", "changed"), ("deleted", "deleted"))
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "change": digest,
            "files": files,
            "nodes": {
                kind: sum(len(getattr(nodes, field)) for nodes in change.nodes.values())
                for kind, field in counted
            },
            "edges": num_edges,
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
    """Return the checksum of a change, which does not depend on the names of its files.

    InputError where the tables were applied before.
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
