"""Applies a change to a partition directory: the new one is written beside it and takes its place.

A change is known by the checksum of its tables. meta.json keeps the history of changes, so that one
is not applied twice.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.directory.meta import HeteroMeta, Meta
from partitioning.directory.npy_files import content_of, edge_folder, load_array
from partitioning.directory.write_directory import replaced_when_written, write_meta, writing
from partitioning.errors import InputError
from partitioning.file_io import file_checksum
from partitioning.graph_data import PLAIN_RELATION, PLAIN_TYPE, SEPARATOR, EdgeType
from partitioning.update.change import Change, table_files
from partitioning.update.held_graph import (
    HeldDirectory,
    all_bounds,
    open_directory,
    read_meta,
    relations_of,
)
from partitioning.update.place import place
from partitioning.update.read_change import read_change
from partitioning.update.renumbering import Renumbering
from partitioning.update.update_part import PartUpdater, UpdatedPart, update_degrees
from partitioning.update_settings import UpdateSettings

log = logging.getLogger(__name__)
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Update:
    """What an update did."""

    meta: Meta
    """The new description."""
    entry: dict[str, Any]
    """The new entry of its history."""
    notes: list[str]
    """What was decided about the data."""


def update_directory(path: Path, settings: UpdateSettings, version: str) -> Update:
    """Apply the tables of the settings to a directory.

    Args:
        path: The directory.
        settings: The tables, and how new nodes are placed.
        version: Of this program, for the history.

    Raises:
        InputError: a table does not fit the directory, the change was applied before, or another
            process writes the directory. The directory is as before.
    """
    with writing(path):
        held = open_directory(path)
        files = table_files(held.types, held.relations, settings)
        if not files:
            raise InputError(
                "app=update: nothing to change; give tables by update.new_nodes, changed_nodes,"
                " deleted_nodes, new_edges, changed_edges or deleted_edges"
            )
        digest, described = _describe_files(files)
        _refuse_again(path, held.meta, digest, again=settings.again)
        change = read_change(held, settings)
        numbers = _renumber(held, change, settings)
        with replaced_when_written(path, overwrite=True) as unfinished:
            parts = _write_parts(held, change, numbers, unfinished)
            rows = [
                describe_part(held, change, numbers, made, part, unfinished)
                for part, made in enumerate(parts)
            ]
            entry = make_entry(rows, digest, described, change.notes, version)
            meta = make_meta(held.meta, rows, entry)
            write_meta(unfinished, meta)
    return Update(meta, entry, [*change.notes, *_note_dgl_files(held)])


def check_tables(path: Path, settings: UpdateSettings) -> tuple[str, dict[str, Any]]:
    """Return the checksum of a machine's tables, which may be none, and their files by setting.

    Raises:
        InputError: a table is missing, or its change was applied before.
    """
    meta = read_meta(path)
    files = table_files(list(all_bounds(meta)), relations_of(meta), settings)
    digest, described = _describe_files(files)
    _refuse_again(path, meta, digest, again=settings.again or not files)
    return digest, described


def make_entry(
    rows: list[dict[str, Any]],
    digest: str,
    files: dict[str, Any],
    notes: list[str],
    version: str,
) -> dict[str, Any]:
    """Return the entry of a change in the history, from the rows of all partitions."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "change": digest,
        "files": files,
        **count_changes(rows),
        "notes": notes,
        "version": version,
    }


def _describe_files(files: Mapping[str, list[Path]]) -> tuple[str, dict[str, Any]]:
    """Return the checksum of a change, and name and checksum of its files by setting."""
    described = {
        setting: {file.name: _checksum_of(file) for file in found}
        for setting, found in files.items()
    }
    sums = {setting: sorted(found.values()) for setting, found in described.items()}
    digest = hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()
    return digest, described


def _checksum_of(path: Path) -> str:
    """The sha256 of a file, or of the part files of a table."""
    if path.is_dir():
        sums = [file_checksum(file) for file in sorted(path.iterdir()) if file.is_file()]
        return hashlib.sha256(" ".join(sums).encode()).hexdigest()
    return file_checksum(path)


def _refuse_again(path: Path, meta: Meta, digest: str, *, again: bool) -> None:
    """InputError where the tables were applied before, unless update.again is set."""
    for entry in meta.history:
        if entry.get("change") == digest and not again:
            raise InputError(
                f"{path}: this change was applied at {entry.get('time')} (its tables have the"
                f" checksum {digest[:12]}); leave it out, or set update.again=true to apply it once"
                " more"
            )


def _renumber(
    held: HeldDirectory, change: Change, settings: UpdateSettings
) -> dict[str, Renumbering]:
    """Place the new nodes in partitions and number all nodes anew, by type."""
    parts = place_new(held, change, settings)
    return {
        name: Renumbering.of(held.types[name].bounds, nodes.deleted, parts[name])
        for name, nodes in change.nodes.items()
    }


def place_new(held: HeldDirectory, change: Change, settings: UpdateSettings) -> dict[str, Ints]:
    """Return the partition of each new node, by type; sources on other machines do not count."""
    bounds = {name: each.bounds for name, each in held.types.items()}
    num_new = {name: len(nodes.new_ids) for name, nodes in change.nodes.items()}
    sizes = {}
    for name, nodes in change.nodes.items():
        gone = np.searchsorted(bounds[name], nodes.deleted, side="right") - 1
        sizes[name] = np.diff(bounds[name]) - np.bincount(gone, minlength=held.num_parts)
    edges = []
    for (source, _, destination), each in change.edges.items():
        here = each.new.take(each.new.src < bounds[source][-1] + num_new[source])
        edges.append(((source, here.src), (destination, here.dst)))
    return place(bounds, sizes, num_new, edges, settings.max_imbalance)


def _write_parts(
    held: HeldDirectory, change: Change, numbers: dict[str, Renumbering], folder: Path
) -> list[UpdatedPart]:
    """Write all changed partitions in threads."""
    updater = PartUpdater(held, change, numbers, folder)
    with ThreadPoolExecutor(min(held.num_parts, os.cpu_count() or 1, 4)) as pool:
        parts = list(pool.map(updater.update, range(held.num_parts)))
    if PLAIN_RELATION in held.relations:
        update_degrees(held, folder, PLAIN_RELATION, numbers[PLAIN_TYPE], parts)
    return parts


def describe_part(
    held: HeldDirectory,
    change: Change,
    numbers: Mapping[str, Renumbering],
    made: UpdatedPart,
    part: int,
    folder: Path,
) -> dict[str, Any]:
    """Return what an updated partition has, and what changed in it, as JSON values."""
    edges = {SEPARATOR.join(name): count for name, count in made.num_edges.items()}
    loops = {
        name: int((numbers[name[2]].part_of(each.self_loops) == part).sum())
        for name, each in change.edges.items()
    }
    new_nodes = {name: int((each.parts_of_new == part).sum()) for name, each in numbers.items()}
    kinds: dict[str, dict[str, int]] = {"changed": {}, "deleted": {}}
    for name, nodes in change.nodes.items():
        for kind, found in kinds.items():
            owner = numbers[name].part_of(getattr(nodes, kind))
            found[name] = int((owner == part).sum())
    changed_edges = [
        int((numbers[name[2]].part_of(each.changed.dst) == part).sum())
        for name, each in change.edges.items()
    ]
    before = sum(_count_edges(held, name, part) for name in held.relations)
    return {
        "inner": made.num_inner,
        "halo": {name: len(halo) for name, halo in made.halo.items()},
        "edges": edges,
        "cut": {SEPARATOR.join(name): count for name, count in made.num_cut.items()},
        "split": made.split,
        "self_loops": held.meta.parts[part].edges - before + sum(loops.values()),
        "changes": {
            "nodes": {
                "new": sum(new_nodes.values()),
                **{kind: sum(found.values()) for kind, found in kinds.items()},
            },
            "edges": {
                "new": sum(map(len, made.added.values())) + sum(loops.values()),
                "changed": sum(changed_edges),
                "deleted": sum(map(len, made.removed.values())),
            },
        },
        "checksums": _checksums(held, folder, part),
    }


def count_changes(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts of a change for the history, from the rows of all partitions."""
    counts: dict[str, Any] = {
        what: {
            kind: sum(row["changes"][what][kind] for row in rows)
            for kind in ("new", "changed", "deleted")
        }
        for what in ("nodes", "edges")
    }
    return counts | {"placed": [row["changes"]["nodes"]["new"] for row in rows]}


def make_meta(meta: Meta, rows: list[dict[str, Any]], entry: dict[str, Any]) -> Meta:
    """Return the description of an updated directory, from `describe_part` of all partitions.

    Raises:
        InputError: no training node is left of those that there were.
    """
    if any(part.train for part in meta.parts) and not any(row["split"]["train"] for row in rows):
        raise InputError(
            "app=update: no training node would be left, so nothing could be trained; keep some"
            " (update.deleted_nodes, or the column split)"
        )
    checksums = {name: each for row in rows for name, each in row["checksums"].items()}
    counts = [
        replace(
            before,
            nodes=sum(row["inner"].values()),
            edges=sum(row["edges"].values()) + row["self_loops"],
            halo=sum(row["halo"].values()),
            **row["split"],
            content=content_of(checksums, part),
        )
        for part, (before, row) in enumerate(zip(meta.parts, rows, strict=True))
    ]
    by_type: dict[str, Any] = {}
    if isinstance(meta, HeteroMeta):
        by_type["types"] = {
            name: {
                "features": each["features"],
                "nodes": [row["inner"][name] for row in rows],
                "halo": [row["halo"][name] for row in rows],
            }
            for name, each in meta.types.items()
        }
        by_type["relations"] = {
            name: {
                "edges": [row["edges"][name] for row in rows],
                "cut": sum(row["cut"][name] for row in rows),
            }
            for name in meta.relations
        }
    return replace(
        meta,
        num_nodes=sum(each.nodes for each in counts),
        num_edges=sum(each.edges for each in counts),
        cut_edges=sum(sum(row["cut"].values()) for row in rows),
        parts=counts,
        checksums=dict(sorted(checksums.items())),
        cover_rows=None,
        history=[*meta.history, entry],
        **by_type,
    )


def _count_edges(held: HeldDirectory, name: EdgeType, part: int) -> int:
    """Return the number of edges of a relation into a partition, before the change."""
    return len(load_array(edge_folder(held.folder(part), name) / "dst.npy"))


def _checksums(held: HeldDirectory, folder: Path, part: int) -> dict[str, str]:
    """The sha256 of every file of a partition, by its path in the directory.

    A file that stayed keeps the one it had.
    """
    files = sorted(path for path in (folder / f"part{part}").rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in files]

    def checksum(place: int) -> str:
        old = held.path / names[place]
        stated = held.meta.checksums.get(names[place])
        if stated is not None and old.is_file() and old.samefile(files[place]):
            return stated
        return file_checksum(files[place])

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing releases Python's lock
        return dict(zip(names, pool.map(checksum, range(len(files))), strict=True))


def _note_dgl_files(held: HeldDirectory) -> list[str]:
    """Return a note that DGL's files are not written again, if the directory has some."""
    if not any(name.endswith((".dgl", ".json")) for name in held.meta.checksums):
        return []
    return [
        "DGL's files are left out, because they are not updated; app=partition_data"
        f" partition.from={held.path} writes them again where DGL is installed"
    ]
