"""Partition config of DGL, NAME.json: ranges of node and edge ids, files of each partition.

DGL numbers nodes partition after partition, and within a partition type after type. node_map has
the range of each type and partition, edge_map that of each relation and partition; those of a plain
graph have one type and one relation.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from partitioning.errors import InputError
from partitioning.files.file_io import explaining, path_below, read_json
from partitioning.graph.array_checks import Ints
from partitioning.graph.graph_data import PLAIN_RELATION, PLAIN_TYPE, EdgeType
from partitioning.read.tables import check_name

FILES = {
    "part_graph": "graph.dgl",
    "node_feats": "node_feat.dgl",
    "edge_feats": "edge_feat.dgl",
}
"""Files of a partition, by their keys in the config."""


@dataclass(frozen=True, eq=False)
class IdRanges:
    """Ranges of node_map or edge_map, ascending: K ranges that cover 0 ... N-1.

    Each range has the ids of one node type, or one relation, in one partition.
    """

    sizes: dict[str, list[int]]
    """Number of ids of a type or relation in each partition."""
    start: Ints
    """[K] first id."""
    name_index: Ints
    """[K] position of the name in `sizes`."""
    part: Ints
    """[K] partition."""

    @classmethod
    def of(cls, config: dict[str, Any], key: str) -> Self:
        """Read node_map or edge_map, without its empty ranges.

        A plain graph may have a list of ranges instead of a dictionary.

        Raises:
            ValueError: the ranges leave a gap, overlap, or are not partition after partition.
        """
        ranges = config[key] if isinstance(config[key], dict) else {"_N": config[key]}
        bounds = np.array([*ranges.values()], np.int64)
        bounds = bounds.reshape(len(ranges), config["num_parts"], 2)
        order = np.lexsort((bounds[:, :, 1].ravel(), bounds[:, :, 0].ravel()))
        start, end = bounds.reshape(-1, 2)[order].T
        name_index, part = np.divmod(order, config["num_parts"])
        filled = end > start  # an empty range begins where the next one does
        is_whole = start[0] == 0 and (start[1:] == end[:-1]).all() and (end >= start).all()
        if not is_whole or (np.diff(part[filled]) < 0).any():
            raise ValueError(f"the ranges of {key} leave a gap, or share numbers")
        sizes = dict(zip(ranges, (bounds[:, :, 1] - bounds[:, :, 0]).tolist(), strict=True))
        return cls(sizes, start[filled], name_index[filled], part[filled])

    def ids_of(self, part: int) -> dict[str, range]:
        """Return the ids of each type or relation in a partition, range(0) where it has none."""
        names, ids = [*self.sizes], dict.fromkeys(self.sizes, range(0))
        for at in np.flatnonzero(self.part == part):
            name, first = names[self.name_index[at]], int(self.start[at])
            ids[name] = range(first, first + self.sizes[name][part])
        return ids

    def locate(self, ids: Ints) -> tuple[Ints, Ints, Ints]:
        """Return for ids [n] the index in `sizes`, the partition, and the position in its range.

        Shape [n] each. ValueError for an id that is in no range.
        """
        if len(ids) and not 0 <= ids.min() <= ids.max() < sum(map(sum, self.sizes.values())):
            raise ValueError("has numbers of nodes or edges that the config does not know")
        index = np.searchsorted(self.start, ids, side="right") - 1
        return self.name_index[index], self.part[index], ids - self.start[index]


@dataclass(frozen=True, eq=False)
class PartitionConfig:
    """A partition config, checked."""

    file: Path
    content: dict[str, Any]
    nodes: IdRanges
    edges: IdRanges
    types: dict[str, str]
    """Our names of the node types, by those in `nodes`."""
    relations: dict[str, EdgeType]
    """And of the relations in `edges`."""
    files: list[list[Path]]
    """Files of each partition, as in FILES; they may be on other machines."""

    @property
    def is_plain(self) -> bool:
        return PLAIN_RELATION in self.relations.values()


def config_file(path: Path) -> Path | None:
    """Return DGL's partition config in a directory: the file named after it, else the only one.

    None if it has none, or is no directory. Other JSON files in it are passed over.

    Raises:
        InputError: it has several.
    """
    named = path / f"{path.name}.json"
    if named.is_file():
        return named
    files = (file for file in sorted(path.glob("*.json")) if file.name != "meta.json")
    configs = []
    for file in files:
        with suppress(InputError):  # a table, say
            if "num_parts" in read_json(file):
                configs.append(file)
    if len(configs) > 1:
        names = ", ".join(file.name for file in configs)
        raise InputError(
            f"{path}: holds several partition configs ({names}); keep each in a directory of"
            " its own"
        )
    return configs[0] if configs else None


def read_config(file: Path) -> PartitionConfig:
    """Read a partition config; InputError names what is missing or does not fit together."""
    content = read_json(file)
    with explaining(str(file), "partition config of DGL's", "copy the directory again"):
        if type(content["num_parts"]) is not int or content["num_parts"] < 1:
            raise ValueError(f"num_parts is {content['num_parts']!r}, needs an integer from 1 on")
        nodes, edges = (IdRanges.of(content, key) for key in ("node_map", "edge_map"))
        files = [
            [path_below(file.parent, content[f"part-{part}"][key], str(file)) for key in FILES]
            for part in range(content["num_parts"])
        ]
        types = {name: name for name in nodes.sizes}
        relations: dict[str, Any] = {name: tuple(name.split(":")) for name in edges.sizes}
        is_plain = len(types) == len(relations) == 1
        if is_plain:
            types = dict.fromkeys(types, PLAIN_TYPE)
            relations = dict.fromkeys(relations, PLAIN_RELATION)
        for name, relation in relations.items():
            if len(relation) != 3 or not {relation[0], relation[2]} <= {*types.values()}:
                raise ValueError(f"{name!r} is no SOURCE:RELATION:DESTINATION of types in node_map")
        words = {*types.values(), *(name for _, name, _ in relations.values())}
        for word in () if is_plain else words:
            check_name(word, str(file))  # it becomes a folder
    return PartitionConfig(file, content, nodes, edges, types, relations, files)


def make_config(
    name: str, method: str, num_nodes: Sequence[int], num_edges: Sequence[int]
) -> dict[str, Any]:
    """Return the partition config of a plain graph; the numbers are those of each partition."""
    node_bounds, edge_bounds = (np.cumsum([0, *sizes]).tolist() for sizes in (num_nodes, num_edges))
    return {
        "graph_name": name,
        "num_nodes": node_bounds[-1],
        "num_edges": edge_bounds[-1],
        "part_method": method,
        "num_parts": len(num_nodes),
        "halo_hops": 1,
        "node_map": {"_N": [*map(list, pairwise(node_bounds))]},
        "edge_map": {"_N:_E:_N": [*map(list, pairwise(edge_bounds))]},
        "ntypes": {"_N": 0},
        "etypes": {"_N:_E:_N": 0},
        **{
            f"part-{part}": {key: f"part{part}/{file}" for key, file in FILES.items()}
            for part in range(len(num_nodes))
        },
    }
