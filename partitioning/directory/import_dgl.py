"""Imports a directory of DGL's (dgl_config.py, dgl_part.py): writes its partitions as ours, once.

The copy is the folder `imported` in it. It is made again when DGL's files change, or when a machine
gets further partitions: it may hold some of them only. What DGL does not write is left out, and the
workers agree on it: the number of classes, and out_deg.npy.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.array_checks import Ints, check_unique
from partitioning.datasets.tables import check_name
from partitioning.dgl_probe import check_readable
from partitioning.directory import dgl_config, dgl_part
from partitioning.directory.meta import IMPORTED, VERSION, HeteroMeta, Meta
from partitioning.directory.npy_files import content_of, save_part
from partitioning.directory.partition import PartCounts
from partitioning.directory.replace_directory import replaced_when_written, writing
from partitioning.directory.write_directory import checksums_of, write_meta
from partitioning.errors import InputError, join_names
from partitioning.file_io import json_checksum
from partitioning.graph_data import PLAIN_TYPE, SEPARATOR

log = logging.getLogger(__name__)

FOLDER = "imported"
PATIENCE = 3600.0
"""Seconds to wait for another process that imports the same directory."""


def import_directory(path: Path, config: Mapping[str, Any]) -> Path:
    """Return the folder of a directory of DGL's that has its partitions in our format.

    Args:
        path: The directory.
        config: Its partition config, checked.

    Raises:
        InputError: the directory cannot be written, or a partition's files are wrong in a way that
            the message names.
    """
    target, num_parts = path / FOLDER, int(config["num_parts"])
    present = [part for part in range(num_parts) if _has_files(path, config, part)]
    files = {part: dgl_config.files_of(path, config, part) for part in present or [0]}
    digest = json_checksum(config)
    source = {IMPORTED: digest, "files": [_describe_file(path, files[part]) for part in present]}
    if not _is_made_from(target, source):
        if not os.access(path, os.W_OK):
            raise InputError(
                f"{path}: DGL's files are imported into {target} once, where nothing can be"
                " written; copy the directory to where it can be, or run the command once there"
            )
        with writing(target, PATIENCE):
            if not _is_made_from(target, source):
                _write(path, target, config, files, source)
    return target


def _has_files(path: Path, config: Mapping[str, Any], part: int) -> bool:
    """Return whether this machine has files of a partition."""
    files = config[f"part-{part}"]
    return not isinstance(files, dict) or any(
        (path / str(name)).exists() for name in files.values()
    )


def _describe_file(path: Path, files: Sequence[Path]) -> list[list[Any]]:
    """Return name, size and time of change of a partition's files."""
    stats = [(file.relative_to(path).as_posix(), file.stat()) for file in files]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def _is_made_from(target: Path, source: Mapping[str, Any]) -> bool:
    meta = Meta.read(target)
    return meta is not None and meta.request == source


def _write(
    path: Path,
    target: Path,
    config: Mapping[str, Any],
    files: Mapping[int, Sequence[Path]],
    source: dict[str, Any],
) -> None:
    """Read the partitions of this machine, one after the other, and replace `target` by them.

    The description states no cut edges and no halo, and only the edges of these partitions.

    Raises:
        InputError: a file is unusable, or an id is there twice.
    """
    check_readable([file for of_part in files.values() for file in of_part])
    num_parts, is_hetero = int(config["num_parts"]), dgl_config.is_hetero(config)
    ranges = dgl_config.read_ranges(config, "node_map", num_parts, path)
    num_nodes = {
        name if is_hetero else PLAIN_TYPE: [ranges.count(name, part) for part in range(num_parts)]
        for name in ranges.names
    }
    for name in (*ranges.names, *config.get("edge_map", ())) if is_hetero else ():
        for word in name.split(":"):
            check_name(word, str(path))  # they become folders
    bounds = {name: np.cumsum([0, *counts]) for name, counts in num_nodes.items()}
    ids: dict[str, list[Ints]] = {name: [] for name in num_nodes}
    num_edges: dict[str, list[int]] = defaultdict(lambda: [0] * num_parts)
    num_loops = [0] * num_parts
    with replaced_when_written(target, overwrite=True) as unfinished:
        for part in files:
            part_data = dgl_part.read_part(path, config, part)
            save_part(unfinished / f"part{part}", part_data, bounds)
            num_loops[part] = part_data.self_loops
            for edge_type, edges in part_data.relations.items():
                num_edges[SEPARATOR.join(edge_type)][part] = len(edges.src)
            for name, nodes in part_data.nodes.items():
                ids[name].append(nodes.node_ids.numpy())
        for name, of_parts in ids.items():
            where = f"ids of {name}" if is_hetero else "orig_id"
            check_unique(np.concatenate(of_parts), f"{path}: {where}")
        checksums = checksums_of(unfinished, {})
        totals = np.sum([*num_edges.values(), num_loops], axis=0).tolist()
        counts = enumerate(zip(*num_nodes.values(), totals, strict=True))
        fields: dict[str, Any] = {
            "version": VERSION,
            "name": path.name,
            "dataset": path.name,
            "task": part_data.label_kind,
            "num_nodes": ranges.total,
            "num_edges": sum(totals),
            "num_features": part_data.nodes[part_data.target].features.shape[1],
            "num_classes": 0,
            "cut_edges": 0,
            "parts": [
                PartCounts(sum(nodes), edges, 0, 0, 0, 0, content_of(checksums, part))
                for part, (*nodes, edges) in counts
            ],
            "request": source,
            "split": {},
            "versions": {},
            "checksums": checksums,
        }
        if is_hetero:
            fields["target"], halo = part_data.target, [0] * num_parts
            fields["types"] = {
                name: {"features": nodes.features.shape[1], "nodes": num_nodes[name], "halo": halo}
                for name, nodes in part_data.nodes.items()
            }
            fields["relations"] = {
                name: {"edges": count, "cut": 0} for name, count in num_edges.items()
            }
        write_meta(unfinished, HeteroMeta(**fields) if is_hetero else Meta(**fields))
    log.info("%s: DGL's files of parts %s: imported into %s", path, join_names(files), target)
