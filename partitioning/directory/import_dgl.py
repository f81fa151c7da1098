"""Imports a directory of DGL's (dgl_config.py, dgl_part.py): writes its partitions as ours, once.

The copy is the folder `imported` in it. It is made again when DGL's files change, or when a machine
gets further partitions: it may hold some of them only. What DGL does not write is left out, and the
workers agree on it: the number of classes, and out_deg.npy.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.array_checks import Ints, check_unique
from partitioning.dgl_probe import check_readable
from partitioning.directory.dgl_config import PartitionConfig
from partitioning.directory.dgl_part import read_part
from partitioning.directory.meta import IMPORTED, Meta
from partitioning.directory.npy_files import arrays_of
from partitioning.directory.partition import PartCounts
from partitioning.directory.replace_directory import replaced_when_written, writing
from partitioning.directory.write_directory import (
    PartSizes,
    checksums_of,
    make_meta,
    write_meta,
)
from partitioning.errors import InputError, join_names
from partitioning.file_io import json_checksum

log = logging.getLogger(__name__)

FOLDER = "imported"
PATIENCE = 3600.0
"""Seconds to wait for another process that imports the same directory."""


def import_directory(config: PartitionConfig) -> Path:
    """Return the folder of a directory of DGL's that has its partitions in our format.

    Raises:
        InputError: the directory cannot be written, or a partition's files are wrong in a way that
            the message names.
    """
    path = config.file.parent
    target = path / FOLDER
    present = {
        part: files
        for part, files in enumerate(config.files)
        if any(file.exists() for file in files)
    }
    files = present or {0: config.files[0]}
    for file in chain.from_iterable(files.values()):
        if not file.is_file():
            raise InputError(f"{file}: missing; copy the whole part or partition again")
    source = {
        IMPORTED: json_checksum(config.content),
        "files": [[_describe(file, path) for file in of_part] for of_part in files.values()],
    }
    if not _is_made_from(target, source):
        if not os.access(path, os.W_OK):
            raise InputError(
                f"{path}: DGL's files are imported into {target} once, where nothing can be"
                " written; copy the directory to where it can be, or run the command once there"
            )
        with writing(target, PATIENCE):
            if not _is_made_from(target, source):
                _write(config, target, files, source)
    return target


def _describe(file: Path, path: Path) -> list[Any]:
    """Return name, size and time of change of a file."""
    return [file.relative_to(path).as_posix(), file.stat().st_size, file.stat().st_mtime_ns]


def _is_made_from(target: Path, source: Mapping[str, Any]) -> bool:
    meta = Meta.read(target)
    return meta is not None and meta.request == source


def _write(
    config: PartitionConfig,
    target: Path,
    files: Mapping[int, Sequence[Path]],
    source: dict[str, Any],
) -> None:
    """Read the partitions of this machine, one after the other, and replace `target` by them.

    The description states no cut edges, and of other partitions only the nodes.

    Raises:
        InputError: a file is unusable, or an id is there twice.
    """
    path = config.file.parent
    check_readable([*chain.from_iterable(files.values())])
    num_nodes = {own: config.nodes.sizes[name] for name, own in config.types.items()}
    bounds = {name: np.cumsum([0, *counts]) for name, counts in num_nodes.items()}
    ids: dict[str, list[Ints]] = {name: [] for name in num_nodes}
    sizes: list[PartSizes] = []
    cut = dict.fromkeys(config.relations.values(), 0)
    with replaced_when_written(target, overwrite=True) as unfinished:
        for part in range(len(config.files)):
            if part not in files:
                inner = {name: counts[part] for name, counts in num_nodes.items()}
                counts = PartCounts(sum(inner.values()), 0, 0, 0, 0, 0, "")
                sizes.append(PartSizes(counts, inner, dict.fromkeys(inner, 0), cut))
                continue
            partition = read_part(config, part)
            sizes.append(PartSizes.of(partition))
            for file, array in arrays_of(partition, bounds, unfinished / f"part{part}").items():
                file.parent.mkdir(parents=True, exist_ok=True)
                np.save(file, array)
            for name, nodes in partition.nodes.items():
                ids[name].append(nodes.node_ids.numpy())
        for name, of_parts in ids.items():
            check_unique(np.concatenate(of_parts), f"{path}: ids{name and f' of {name}'}")
        fields = {
            "name": path.name,
            "dataset": path.name,
            "task": partition.label_kind,
            "num_classes": 0,
            "request": source,
            "split": {},
            "versions": {},
        }
        widths = {name: nodes.features.shape[1] for name, nodes in partition.nodes.items()}
        checksums = checksums_of(unfinished, {})
        meta = make_meta(checksums, sizes, widths, cut, partition.target, fields)
        write_meta(unfinished, meta)
    log.info("%s: DGL's files of parts %s: imported into %s", path, join_names(files), target)
