"""Partition config of DGL, NAME.json: ranges of node and edge ids, files of each partition.

DGL numbers nodes partition after partition, and within a partition type after type. node_map has
the range of each type and partition, edge_map that of each relation and partition.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.array_checks import Array, Ints
from partitioning.errors import InputError
from partitioning.file_io import read_json


@dataclass(frozen=True, eq=False)
class IdRanges:
    """Ranges of node_map or edge_map, ascending: K ranges that cover 0 ... N-1.

    Each range has the ids of one node type, or one relation, in one partition.
    """

    names: list[str]
    """Node types or relations."""
    start: Ints
    """[K] first id."""
    size: Ints
    """[K] number of ids."""
    name_index: Ints
    """[K] index into `names`."""
    part: Ints
    """[K] partition."""

    def locate(self, ids: Ints) -> tuple[Ints, Ints, Ints]:
        """Return for ids [n] the index in `names`, the partition, and the position in its range.

        Shape [n] each.
        """
        index = np.searchsorted(self.start, ids, side="right") - 1
        return self.name_index[index], self.part[index], ids - self.start[index]

    def count(self, name: str, part: int) -> int:
        """Return the number of ids of a node type or relation, `name`, in one partition."""
        chosen = (self.name_index == self.names.index(name)) & (self.part == part)
        return int(self.size[chosen].sum())

    @property
    def total(self) -> int:
        """Return the number of ids in all ranges, N."""
        return int(self.size.sum())


def config_file(path: Path) -> Path | None:
    """Return DGL's partition config in a directory: the file named after it, else the only one.

    None if it has none, or is no directory.

    Raises:
        InputError: it has several.
    """
    if not path.is_dir():
        return None
    named = path / f"{path.name}.json"
    if named.is_file():
        return named
    others = (file for file in sorted(path.glob("*.json")) if file.name != "meta.json")
    configs = [file for file in others if "num_parts" in read_json(file)]
    if len(configs) > 1:
        names = ", ".join(file.name for file in configs)
        raise InputError(
            f"{path}: holds several partition configs ({names}); keep each in a directory of"
            " its own"
        )
    return configs[0] if configs else None


def is_hetero(config: Mapping[str, Any]) -> bool:
    """Return whether a config has several node types or relations."""
    return any(
        isinstance(config.get(name), dict) and len(config[name]) > 1
        for name in ("node_map", "edge_map")
    )


def read_config(file: Path) -> dict[str, Any]:
    """Read a partition config; InputError names what does not fit together."""
    config = read_json(file)
    for key in ("num_parts", "node_map", *(() if is_hetero(config) else ("num_nodes",))):
        if key not in config:
            raise InputError(f"{file}: has no '{key}', so it is not a partition config of DGL's")
    num_parts = config["num_parts"]
    if type(num_parts) is not int or not 0 < num_parts < 2**31:
        raise InputError(f"{file}: num_parts is {num_parts!r}, needs an integer from 1 on")
    nodes = read_ranges(config, "node_map", num_parts, file)
    if is_hetero(config):
        read_ranges(config, "edge_map", num_parts, file)
        _check_relations(config, nodes.names, file)
    elif (np.diff(nodes.part) < 0).any() or nodes.total != config["num_nodes"]:
        raise InputError(
            f"{file}: node_map {config['node_map']} does not cover ids 0 ... num_nodes - 1 in"
            f" order, num_nodes is {config['num_nodes']!r}"
        )
    for part in range(num_parts):
        if f"part-{part}" not in config:
            raise InputError(f"{file}: does not name the files of part {part}")
    return config


def _check_relations(config: Mapping[str, Any], types: list[str], file: Path) -> None:
    for relation in config["edge_map"]:
        ends = relation.split(":")
        if len(ends) != 3 or ends[0] not in types or ends[2] not in types:
            raise InputError(
                f"{file}: relation {relation!r} is not SOURCE:RELATION:DESTINATION with types of"
                " node_map"
            )


def read_ranges(
    config: Mapping[str, Any], name: str, num_parts: int, where: Path | str
) -> IdRanges:
    """Read node_map or edge_map, without its empty ranges.

    A plain graph may have a list of ranges instead of a dictionary; its type is called `_N`.

    Raises:
        InputError: a range is missing, or the ranges leave a gap or overlap.
    """
    try:
        ranges = config[name] if isinstance(config[name], dict) else {"_N": config[name]}
        names = list(ranges)
        bounds = np.array([ranges[name] for name in names], np.int64)
        bounds = bounds.reshape(len(names), num_parts, 2)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{where}: {name} has no range for each type and part: {error}") from error
    order = np.lexsort((bounds[:, :, 1].ravel(), bounds[:, :, 0].ravel()))
    start, end = bounds.reshape(-1, 2)[order].T
    if not len(start) or start[0] != 0 or (start[1:] != end[:-1]).any() or (end < start).any():
        raise InputError(
            f"{where}: the ranges of {name} leave a gap, or share numbers; partition again"
        )
    name_index, parts = np.divmod(order, num_parts)
    filled = end > start  # an empty range begins where the next one does
    return IdRanges(names, start[filled], (end - start)[filled], name_index[filled], parts[filled])


def files_of(directory: Path, config: Mapping[str, Any], part: int) -> list[Path]:
    """Return a partition's files of the graph, of node data and of edge data.

    Raises:
        InputError: one is missing, or outside the partition directory.
    """
    return [
        _file_inside(directory, config[f"part-{part}"], key)
        for key in ("part_graph", "node_feats", "edge_feats")
    ]


def _file_inside(directory: Path, files: Any, key: str) -> Path:
    """Return the path of a file in the directory.

    Raises InputError if it is not named, missing or outside.
    """
    if not isinstance(files, dict) or not isinstance(files.get(key), str):
        raise InputError(f"{directory}: the partition config names no file for '{key}'")
    path = directory / str(files[key])
    resolved = Path(os.path.realpath(path))  # Path.resolve raises on a loop of links
    if not resolved.is_relative_to(os.path.realpath(directory)):
        raise InputError(
            f"{directory}: the partition config names {files[key]}, outside of the directory"
        )
    if not path.is_file():
        raise InputError(f"{path}: missing; copy the whole part or partition again")
    return path


def make_config(
    name: str, method: str, node_bounds: NDArray[np.int64], edge_bounds: NDArray[np.int64]
) -> dict[str, Any]:
    """Return the partition config of a plain graph; bounds are int64 [P + 1]."""

    def ranges(bounds: Array) -> list[list[int]]:
        return [[int(first), int(end)] for first, end in pairwise(bounds)]

    files = {
        "node_feats": "node_feat.dgl",
        "edge_feats": "edge_feat.dgl",
        "part_graph": "graph.dgl",
    }
    num_parts = len(node_bounds) - 1
    return {
        "graph_name": name,
        "num_nodes": int(node_bounds[-1]),
        "num_edges": int(edge_bounds[-1]),
        "part_method": method,
        "num_parts": num_parts,
        "halo_hops": 1,
        "node_map": {"_N": ranges(node_bounds)},
        "edge_map": {"_N:_E:_N": ranges(edge_bounds)},
        "ntypes": {"_N": 0},
        "etypes": {"_N:_E:_N": 0},
        **{
            f"part-{part}": {key: f"part{part}/{file}" for key, file in files.items()}
            for part in range(num_parts)
        },
    }
