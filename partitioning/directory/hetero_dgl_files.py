"""Partition directories of heterogeneous graphs that DGL's partition_graph made.

Nodes of all types are numbered together, part after part and in a part type after type: node_map has the ranges, and
edge_map those of edges, by part and relation. A part's graph is homogeneous; its _ID are these numbers. Features are
named TYPE/feat, SOURCE:RELATION:DESTINATION/weight. I inner nodes of a type, E edges of a relation, P parts.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from partitioning.array_checks import (
    Array,
    check_dense,
    check_edge_weight,
    check_labels,
    check_length,
    check_mask,
    check_node_ids,
    check_split,
    check_unique,
)
from partitioning.dgl_import import import_dgl
from partitioning.dgl_probe import check_readable
from partitioning.directory.hetero_files import HeteroDirectory
from partitioning.directory.partition import HeteroPartition, PartEdges, PartNodes
from partitioning.directory.read_directory import FEATURE_NAMES, LABEL_NAMES
from partitioning.errors import InputError
from partitioning.file_io import read_json
from partitioning.graph_data import EDGE_NAMES, MASKS, EdgeType, is_labelled
from partitioning.node_names import Names

log = logging.getLogger(__name__)
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Ranges:
    """The ranges of node_map or edge_map, ascending: K of them cover 0 ... N-1."""

    names: list[str]
    start: Ints
    """[K]"""
    size: Ints
    name: Ints
    """[K] place in `names`."""
    part: Ints

    def of(self, numbers: Ints) -> tuple[Ints, Ints, Ints]:
        """Name, part and place within its range of each number."""
        at = np.searchsorted(self.start, numbers, side="right") - 1
        return self.name[at], self.part[at], numbers - self.start[at]

    def count(self, name: str, part: int) -> int:
        return int(self.size[(self.name == self.names.index(name)) & (self.part == part)].sum())


def is_hetero(config: Path) -> bool:
    """Whether a partition config of DGL's has several types of nodes or edges."""
    content = read_json(config)
    return any(
        isinstance(content.get(name), dict) and len(content[name]) > 1
        for name in ("node_map", "edge_map")
    )


def open_directory(path: Path, file: Path) -> "HeteroDglDirectory":
    """InputError for a config that does not fit together."""
    config = read_json(file)
    parts = config.get("num_parts")
    if not isinstance(parts, int) or isinstance(parts, bool) or not 0 < parts < 2**31:
        raise InputError(f"{file}: num_parts is {parts!r}, needs an integer from 1 on")
    nodes, _ = (_ranges(config, name, parts, file) for name in ("node_map", "edge_map"))
    for each in config["edge_map"]:
        ends = each.split(":")
        if len(ends) != 3 or ends[0] not in nodes.names or ends[2] not in nodes.names:
            raise InputError(
                f"{file}: relation {each!r} is not SOURCE:RELATION:DESTINATION with types of node_map"
            )
    for part in range(parts):
        if f"part-{part}" not in config:
            raise InputError(f"{file}: does not name the files of part {part}")
    counts = [int(nodes.size[nodes.part == part].sum()) for part in range(parts)]
    return HeteroDglDirectory(path, parts, None, np.cumsum([0, *counts]).tolist(), config)


def _ranges(config: Mapping[str, Any], name: str, num_parts: int, file: Path | str) -> _Ranges:
    try:
        names = list(config[name])
        bounds = np.array([config[name][each] for each in names], np.int64).reshape(
            len(names), num_parts, 2
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{file}: {name} has no range for each type and part: {error}") from error
    order = np.lexsort((bounds[:, :, 1].ravel(), bounds[:, :, 0].ravel()))
    start, end = bounds.reshape(-1, 2)[order].T
    if start[0] != 0 or (start[1:] != end[:-1]).any() or (end < start).any():
        raise InputError(
            f"{file}: the ranges of {name} leave a gap, or share numbers; partition again"
        )
    at, parts = np.divmod(order, num_parts)
    filled = end > start  # an empty one begins where the next does
    return _Ranges(names, start[filled], (end - start)[filled], at[filled], parts[filled])


@dataclass(frozen=True)
class HeteroDglDirectory(HeteroDirectory):
    """One that DGL made; types without features get log(1 + in-degree) under every relation into them."""

    @property
    def type_names(self) -> list[str]:
        assert self.config is not None
        return list(self.config["node_map"])

    def node_names(self, part: int) -> Names | None:
        return None

    def verify(self, parts: Iterable[int]) -> None:
        """By reading them: nobody took a checksum."""
        parts = list(parts)
        check_readable([file for part in parts for file in self.files_of(part)])
        read = [self.read_hetero(part) for part in parts]
        for name in self.type_names if read else ():
            check_unique(
                torch.cat([part.nodes[name].node_ids for part in read]).numpy(),
                f"{self.path}: ids of {name}",
            )

    def read_hetero(self, part: int) -> HeteroPartition:
        """Read one part, checked; InputError names what is wrong with it."""
        assert self.config is not None
        where = f"{self.path}: part {part}"
        nodes, edges = (
            _ranges(self.config, name, self.num_parts, self.path)
            for name in ("node_map", "edge_map")
        )
        raw = _load(self.files_of(part))
        numbers = np.concatenate((raw.src, raw.dst))
        if (
            len(raw.edge_ids) != len(raw.src)
            or ((numbers < 0) | (numbers >= len(raw.node_ids))).any()
        ):
            raise InputError(
                f"{where}: its edges have ends that are none of its nodes; copy it again"
            )
        if any(
            len(ids) and not 0 <= ids.min() <= ids.max() < ranges.size.sum()
            for ids, ranges in ((raw.node_ids, nodes), (raw.edge_ids, edges))
        ):
            raise InputError(
                f"{where}: has numbers of nodes or edges that the config does not know; copy it again"
            )
        kind, owner, index = nodes.of(raw.node_ids)
        inner = owner == part
        for at, name in enumerate(nodes.names):
            held = np.sort(index[inner & (kind == at)])
            if not np.array_equal(held, np.arange(nodes.count(name, part))):
                raise InputError(
                    f"{where}: its inner nodes of type {name} are not those of the config; copy it again"
                )
        between = inner[raw.dst] & (raw.src != raw.dst)
        halo = np.setdiff1d(
            raw.node_ids[raw.src[between]], raw.node_ids[inner]
        )  # ascending, so by owner and index
        places = _local_ids(nodes, raw.node_ids, halo, part)
        relations = {}
        for at, each in enumerate(edges.names):
            source, name, destination = each.split(":")
            of_edge, edge_owner, place = edges.of(raw.edge_ids)
            kept = np.flatnonzero(between & (of_edge == at))
            ends = (
                (raw.src[kept], nodes.names.index(source)),
                (raw.dst[kept], nodes.names.index(destination)),
            )
            if (
                any((kind[end] != wanted).any() for end, wanted in ends)
                or (edge_owner[kept] != part).any()
            ):
                raise InputError(
                    f"{where}: an edge of {each} has an end of another type, or belongs to another part"
                )
            weight = _weight(raw.of_edges, each, place[kept], edges.count(each, part), where)
            relations[source, name, destination] = _sorted(
                places[raw.src[kept]], places[raw.dst[kept]], weight
            )
        made = {}
        for at, name in enumerate(nodes.names):
            _, owners, indices = nodes.of(halo[nodes.of(halo)[0] == at])
            ids, rows = _ids_and_rows(raw.of_nodes, name, nodes, part, relations, where)
            made[name] = PartNodes(rows, ids, torch.from_numpy(owners), torch.from_numpy(indices))
        target = _target(raw.of_nodes, nodes.names, where)
        loops = int((inner[raw.dst] & (raw.src == raw.dst)).sum())
        of_target = _labels(
            raw.of_nodes, target, made[target].num_inner, int(nodes.size.sum()), where
        )
        return HeteroPartition(
            part, self.num_parts, target, made, relations, self_loops=loops, **of_target
        )


@dataclass(frozen=True, eq=False)
class _Raw:
    """What the three files of a part hold."""

    src: Ints
    dst: Ints
    node_ids: Ints
    edge_ids: Ints
    of_nodes: Mapping[str, Array]
    of_edges: Mapping[str, Array]


def _load(files: list[Path]) -> _Raw:
    dgl = import_dgl(f"{files[0].parent}: a part in DGL's files alone")
    try:
        structure = dgl.load_graphs(str(files[0]))[0][0]
        of_nodes, of_edges = (dgl.data.utils.load_tensors(str(file)) for file in files[1:])
        src, dst = structure.edges(order="eid")
        arrays = [
            tensor.numpy().astype(np.int64)
            for tensor in (src, dst, structure.ndata["_ID"], structure.edata["_ID"])
        ]
    except Exception as error:  # DGL raises its own, of many kinds
        raise InputError(f"{files[0].parent}: DGL cannot read this part: {error}") from error
    tensors = (
        {name: tensor.numpy() for name, tensor in held.items()} for held in (of_nodes, of_edges)
    )
    return _Raw(*arrays, *tensors)


def _local_ids(nodes: _Ranges, ids: Ints, halo: Ints, part: int) -> NDArray[np.int32]:
    """The local id of each of a part's nodes within its type: inner ones first, then the halo; -1 where unused."""
    kind, owner, local = nodes.of(ids)
    at = np.minimum(np.searchsorted(halo, ids), max(len(halo) - 1, 0))
    in_halo = halo[at] == ids if len(halo) else np.zeros(len(ids), np.bool_)
    of_halo = nodes.of(halo)[0]
    for number, name in enumerate(nodes.names):
        rank = np.cumsum(of_halo == number) - 1
        mine = in_halo & (kind == number)
        local[mine] = nodes.count(name, part) + rank[at[mine]]
    local[(owner != part) & ~in_halo] = -1
    return local.astype(np.int32)


def _sorted(
    src: NDArray[np.int32], dst: NDArray[np.int32], weight: NDArray[np.float32] | None
) -> PartEdges:
    order = np.lexsort((src, dst))
    ends = torch.from_numpy(src[order]), torch.from_numpy(dst[order])
    return PartEdges(*ends, edge_weight=None if weight is None else torch.from_numpy(weight[order]))


def _weight(
    of_edges: Mapping[str, Array], each: str, places: Ints, count: int, where: str
) -> NDArray[np.float32] | None:
    """Those of some edges, by their places in the part's of the relation."""
    for name in of_edges:
        relation, _, short = name.rpartition("/")
        if relation == each and EDGE_NAMES.get(short) == "edge_weight":
            weight = of_edges[name]
            check_edge_weight(weight, count, f"{where}: {name}")
            return weight.reshape(-1).astype(np.float32)[places]
        if relation == each:
            log.warning("%s: edata `%s`: left out", where, name)
    return None


def _ids_and_rows(
    of_nodes: Mapping[str, Array],
    name: str,
    nodes: _Ranges,
    part: int,
    relations: Mapping[EdgeType, PartEdges],
    where: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and features of a type's inner nodes, int64 [I] and float32 [I, F]."""
    count = nodes.count(name, part)
    before = sum(nodes.count(name, other) for other in range(part))
    ids = check_node_ids(
        of_nodes.get(f"{name}/orig_id", before + np.arange(count)),
        count,
        f"{where}: {name}/orig_id",
    )
    for key in FEATURE_NAMES:
        if f"{name}/{key}" in of_nodes:
            rows = check_dense(of_nodes[f"{name}/{key}"], count, f"{where}: {name}/{key}")
            return torch.from_numpy(ids), torch.from_numpy(rows)
    degrees = [
        torch.bincount(edges.dst, minlength=count)
        for each, edges in relations.items()
        if each[2] == name
    ]
    return torch.from_numpy(ids), torch.log1p(
        torch.stack(degrees or [torch.zeros(count)], dim=1).float()
    )


def _target(of_nodes: Mapping[str, Array], types: list[str], where: str) -> str:
    labelled = [name for name in types if any(f"{name}/{key}" in of_nodes for key in LABEL_NAMES)]
    learned = [name for name in labelled if f"{name}/{MASKS[0]}" in of_nodes]
    if len(learned) != 1:
        raise InputError(
            f"{where}: expected one type of nodes with label and train_mask, found {learned or 'none'}; "
            "give them to the one that is to be learned, and partition again"
        )
    return learned[0]


def _labels(
    of_nodes: Mapping[str, Array], target: str, count: int, num_nodes: int, where: str
) -> dict[str, Any]:
    key = next(f"{target}/{key}" for key in LABEL_NAMES if f"{target}/{key}" in of_nodes)
    labels = check_labels(of_nodes[key], num_nodes, f"{where}: {key}")
    check_length(labels, count, f"{where}: {key}")
    masks = {}
    for name in MASKS:
        if f"{target}/{name}" not in of_nodes:
            raise InputError(
                f"{where}: has no '{target}/{name}'; give nodes of type {target} all three masks"
            )
        masks[name] = check_mask(of_nodes[f"{target}/{name}"], count, f"{where}: {target}/{name}")
    check_split(masks, is_labelled(labels), where)
    return {
        "labels": torch.from_numpy(labels),
        **{name: torch.from_numpy(mask) for name, mask in masks.items()},
    }
