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
from partitioning.directory.npy_files import content_of, load_array
from partitioning.directory.write_directory import replaced_when_written, write_meta, writing
from partitioning.errors import InputError
from partitioning.file_io import file_checksum
from partitioning.graph_data import PLAIN_RELATION, PLAIN_TYPE, SEPARATOR, EdgeType
from partitioning.update.change import Change, table_files
from partitioning.update.held_graph import HeldDirectory, open_directory
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
        files = table_files(held, settings)
        digest, described = _describe_files(files)
        _refuse_again(held, digest, again=settings.again)
        change = read_change(held, settings)
        numbers = _number(held, change, settings)
        with replaced_when_written(path, overwrite=True) as unfinished:
            parts = _write_parts(held, change, numbers, unfinished)
            entry = {
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "change": digest,
                "files": described,
                **_count(held, change, numbers, parts),
                "notes": change.notes,
                "version": version,
            }
            meta = _make_meta(held, change, numbers, parts, unfinished, entry)
            write_meta(unfinished, meta)
    return Update(meta, entry, [*change.notes, *_left_out(held)])


def _describe_files(files: Mapping[str, list[Path]]) -> tuple[str, dict[str, Any]]:
    """Return the checksum of a change, and name and checksum of its files by setting."""
    if not files:
        raise InputError(
            "app=update: nothing to change; give tables by update.new_nodes, changed_nodes,"
            " deleted_nodes, new_edges, changed_edges or deleted_edges"
        )
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


def _refuse_again(held: HeldDirectory, digest: str, *, again: bool) -> None:
    for entry in held.meta.history:
        if entry.get("change") == digest and not again:
            raise InputError(
                f"{held.path}: this change was applied at {entry.get('time')} (its tables have the"
                f" checksum {digest[:12]}); leave it out, or set update.again=true to apply it once"
                " more"
            )


def _number(
    held: HeldDirectory, change: Change, settings: UpdateSettings
) -> dict[str, Renumbering]:
    """Place the new nodes, and number all nodes anew, by type."""
    bounds = {name: each.bounds for name, each in held.types.items()}
    sizes = {}
    for name, nodes in change.nodes.items():
        gone = np.searchsorted(bounds[name], nodes.deleted, side="right") - 1
        sizes[name] = np.diff(bounds[name]) - np.bincount(gone, minlength=held.num_parts)
    edges = [
        ((name[0], each.new.src), (name[2], each.new.dst)) for name, each in change.edges.items()
    ]
    num_new = {name: len(nodes.new_ids) for name, nodes in change.nodes.items()}
    parts = place(bounds, sizes, num_new, edges, settings.max_imbalance)
    return {
        name: Renumbering.of(bounds[name], nodes.deleted, parts[name])
        for name, nodes in change.nodes.items()
    }


def _write_parts(
    held: HeldDirectory, change: Change, numbers: dict[str, Renumbering], folder: Path
) -> list[UpdatedPart]:
    merges = held.meta.request.get("duplicates") == "merge"
    updater = PartUpdater(held, change, numbers, folder, merges)
    with ThreadPoolExecutor(min(held.num_parts, os.cpu_count() or 1, 4)) as pool:
        parts = list(pool.map(updater.update, range(held.num_parts)))
    if PLAIN_RELATION in held.relations:
        update_degrees(held, folder, PLAIN_RELATION, numbers[PLAIN_TYPE], parts)
    return parts


def _count(
    held: HeldDirectory,
    change: Change,
    numbers: Mapping[str, Renumbering],
    parts: list[UpdatedPart],
) -> dict[str, Any]:
    """The counts of a change for the history, over all types and relations."""
    nodes, edges = change.nodes.values(), change.edges.values()
    placed = sum(
        np.bincount(each.parts_of_new, minlength=held.num_parts) for each in numbers.values()
    )
    removed = sum(len(each) for part in parts for each in part.removed.values())
    return {
        "nodes": {
            "new": sum(len(each.new_ids) for each in nodes),
            "changed": sum(len(each.changed) for each in nodes),
            "deleted": sum(len(each.deleted) for each in nodes),
        },
        "edges": {
            "new": sum(len(each.new.src) + len(each.self_loops) for each in edges),
            "changed": sum(len(each.changed.src) for each in edges),
            "deleted": removed,
        },
        "placed": np.asarray(placed).tolist(),
    }


def _make_meta(
    held: HeldDirectory,
    change: Change,
    numbers: Mapping[str, Renumbering],
    parts: list[UpdatedPart],
    folder: Path,
    entry: dict[str, Any],
) -> Meta:
    meta = held.meta
    checksums = _checksums(held, folder)
    loops = _count_self_loops(held, change, numbers)
    counts = [
        replace(
            before,
            nodes=sum(made.num_inner.values()),
            edges=sum(made.num_edges.values()) + loops[part],
            halo=sum(len(halo) for halo in made.halo.values()),
            **made.split,
            content=content_of(checksums, part),
        )
        for part, (before, made) in enumerate(zip(meta.parts, parts, strict=True))
    ]
    cut = {name: sum(made.num_cut[name] for made in parts) for name in held.relations}
    by_type: dict[str, Any] = {}
    if isinstance(meta, HeteroMeta):
        by_type["types"] = {
            name: {
                "features": meta.types[name]["features"],
                "nodes": [made.num_inner[name] for made in parts],
                "halo": [len(made.halo[name]) for made in parts],
            }
            for name in meta.types
        }
        by_type["relations"] = {
            SEPARATOR.join(name): {
                "edges": [made.num_edges[name] for made in parts],
                "cut": cut[name],
            }
            for name in held.relations
        }
    return replace(
        meta,
        num_nodes=sum(each.nodes for each in counts),
        num_edges=sum(each.edges for each in counts),
        cut_edges=sum(cut.values()),
        parts=counts,
        checksums=checksums,
        cover_rows=None,
        history=[*meta.history, entry],
        **by_type,
    )


def _count_self_loops(
    held: HeldDirectory, change: Change, numbers: Mapping[str, Renumbering]
) -> list[int]:
    """Self loops of each partition, which are counted only: those of deleted nodes stay counted."""
    counts = np.zeros(held.num_parts, np.int64)
    for part, before in enumerate(held.meta.parts):
        counts[part] = before.edges - sum(_num_edges(held, name, part) for name in held.relations)
    for name, each in change.edges.items():
        owner = numbers[name[2]].part_of(each.self_loops)
        counts += np.bincount(owner, minlength=held.num_parts)
    return [int(count) for count in counts]


def _num_edges(held: HeldDirectory, name: EdgeType, part: int) -> int:
    if isinstance(held.meta, HeteroMeta):
        return int(held.meta.relations[SEPARATOR.join(name)]["edges"][part])
    return len(load_array(held.folder(part) / "dst.npy"))


def _checksums(held: HeldDirectory, folder: Path) -> dict[str, str]:
    """The sha256 of every file, by its path in the directory; of files that stayed as before."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in files]

    def checksum(place: int) -> str:
        old = held.path / names[place]
        stated = held.meta.checksums.get(names[place])
        if stated is not None and old.is_file() and old.samefile(files[place]):
            return stated
        return file_checksum(files[place])

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing releases Python's lock
        return dict(zip(names, pool.map(checksum, range(len(files))), strict=True))


def _left_out(held: HeldDirectory) -> list[str]:
    """Say that DGL's files are not part of the new directory."""
    if not any(name.endswith((".dgl", ".json")) for name in held.meta.checksums):
        return []
    return [
        "DGL's files are left out, because they are not updated; app=partition_data"
        f" partition.from={held.path} writes them again where DGL is installed"
    ]
