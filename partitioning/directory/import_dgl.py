"""Imports a directory of DGL's partition_graph: writes its partitions as ours, once.

The copy is the folder `imported` in it. It is made again when DGL's files change, or when a machine
gets further partitions: it may hold some of them only. What DGL does not write is left out, and the
workers agree on it: the number of classes, and out_deg.npy.

A partition's graph is homogeneous (dgl_files.py lists the files): nodes and edges of all types have
ids of one numbering, in `_ID`, whose ranges the config has. Nodes of a heterogeneous graph without
features get log(1 + in-degree) under each relation. Edges into halo nodes and self loops are left
out, and so are halo nodes that send nothing: DGL's halo can be wider than one hop. I inner nodes of
a type, E edges of a relation.
"""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partitioning.dgl_import import import_dgl
from partitioning.directory.dgl_config import PartitionConfig
from partitioning.directory.meta import IMPORTED, Meta
from partitioning.directory.npy_files import arrays_of
from partitioning.directory.partition import PartCounts, PartEdges, Partition, PartNodes
from partitioning.directory.replace_directory import replaced_when_written, writing
from partitioning.directory.write_directory import (
    PartSizes,
    checksums_of,
    make_meta,
    write_meta,
)
from partitioning.errors import InputError, join_names
from partitioning.files.file_io import explaining, json_checksum
from partitioning.graph.array_checks import (
    Array,
    Ints,
    check_dense,
    check_edge_feat,
    check_edge_weight,
    check_labels,
    check_length,
    check_mask,
    check_node_ids,
    check_split,
    check_unique,
)
from partitioning.graph.graph_data import EDGE_DATA, EDGE_NAMES, MASKS, EdgeType, is_labelled
from partitioning.read.dgl_probe import check_readable

log = logging.getLogger(__name__)

FOLDER = "imported"
PATIENCE = 3600.0
"""Seconds to wait for another process that imports the same directory."""
FEATURE_NAMES = ("feat", "features")
LABEL_NAMES = ("label", "labels")
"""Names in DGL's examples, GraphStorm and the public Retexo code."""


def import_directory(config: PartitionConfig) -> Path:
    """Return the folder of a directory of DGL's that has its partitions in our format.

    It is written where it is missing, or made from other files.

    Raises:
        InputError: DGL is not installed, the directory cannot be written, another process imports
            it for more than PATIENCE, or files of a partition are missing or wrong.
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

    The description states no cut edges, and of other partitions only the nodes. Those that were
    read are logged.

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
            partition = _read_part(config, part)
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


def _read_part(config: PartitionConfig, part: int) -> Partition:
    """Read and check one partition; InputError names what is wrong with it.

    Edges are sorted by destination, then source. The log warns of edge data that are left out.
    """
    where = f"{config.file.parent}: part {part}"
    with explaining(where, "partition of DGL's", "copy it again"):
        graph, node_data, edge_data = _load(config, part)
        src, dst = (ends.numpy() for ends in graph.edges(order="eid"))
        node_ids, edge_ids = (data["_ID"].long().numpy() for data in (graph.ndata, graph.edata))
        del graph  # its other arrays take as much memory
        for ends in (src, dst):
            if len(ends) and not 0 <= ends.min() <= ends.max() < len(node_ids):
                raise ValueError("its edges have ends that are none of its nodes")
        node_type, owner, local_ids = config.nodes.locate(node_ids)
    is_inner = owner == part
    is_kept = is_inner[dst] & (src != dst)
    is_source = np.zeros(len(node_ids), np.bool_)
    is_source[src[is_kept]] = True
    halos: dict[str, Any] = {}
    for index, (name, sizes) in enumerate(config.nodes.sizes.items()):
        of_type = node_type == index
        inner = np.sort(local_ids[of_type & is_inner])
        if not np.array_equal(inner, np.arange(sizes[part])):
            raise InputError(
                f"{where}: its inner nodes of {name} are not those of the config; copy it again"
            )
        is_halo = of_type & is_source & ~is_inner
        halo, rank = np.unique(node_ids[is_halo], return_inverse=True)
        local_ids[is_halo] = sizes[part] + rank
        halos[name] = map(torch.from_numpy, config.nodes.locate(halo)[1:])
    relations: dict[EdgeType, PartEdges] = {}
    types, local_ids = [*config.types.values()], local_ids.astype(np.int32)
    num_kept, own_ids = 0, config.edges.ids_of(part)
    for name, relation in config.relations.items():
        first, end = own_ids[name].start, own_ids[name].stop
        kept = np.flatnonzero(is_kept & (first <= edge_ids) & (edge_ids < end))
        num_kept += len(kept)
        kept = kept[np.lexsort((node_ids[src[kept]], local_ids[dst[kept]]))]
        ends = ((src[kept], relation[0]), (dst[kept], relation[2]))
        if any((node_type[nodes] != types.index(kind)).any() for nodes, kind in ends):
            raise InputError(
                f"{where}: an edge of {name} has an end of another type; copy it again"
            )
        known = EDGE_DATA if config.is_plain else EDGE_DATA[:1]
        num_edges, named = config.edges.sizes[name][part], f"{where}: {name}"
        data = _check_edge_data(edge_data.pop(name, {}), known, num_edges, named)
        relations[relation] = PartEdges(
            *(torch.from_numpy(local_ids[nodes]) for nodes, _ in ends),
            **{key: torch.from_numpy(array[edge_ids[kept] - first]) for key, array in data.items()},
        )
    if num_kept < is_kept.sum():
        raise InputError(f"{where}: has edges of another part by the config; copy it again")
    nodes = {}
    for name, own_name in config.types.items():
        into = [edges for edge_type, edges in relations.items() if edge_type[2] == own_name]
        data, named = node_data.get(name, {}), f"{where}: {name}"
        sizes = config.nodes.sizes[name]
        first_id = sum(sizes[:part])
        ids = data.get("orig_id", np.arange(first_id, first_id + sizes[part]))
        ids = check_node_ids(ids, sizes[part], f"{named}/orig_id")
        features = _read_features(data, sizes[part], named, None if config.is_plain else into)
        nodes[own_name] = PartNodes(features, torch.from_numpy(ids), *halos[name])
    target = next(iter(config.types)) if config.is_plain else _find_target(node_data, where)
    of_target, sizes = node_data[target], config.nodes.sizes[target]
    return Partition(
        rank=part,
        num_parts=len(config.files),
        target=config.types[target],
        nodes=nodes,
        relations=relations,
        self_loops=int((is_inner[dst] & (src == dst)).sum()),
        **_read_target(of_target, sizes, part, f"{where}: {target}"),
    )


def _load(
    config: PartitionConfig, part: int
) -> tuple[Any, dict[str, dict[str, Array]], dict[str, dict[str, Array]]]:
    """Load the files: the graph; arrays of its nodes by type and name; of its edges by relation.

    InputError if DGL is not installed, or cannot read them.
    """
    path, *others = config.files[part]
    dgl = import_dgl(f"{path.parent}: a part in DGL's files alone")
    try:
        graph = dgl.load_graphs(str(path))[0][0]
        node_data, edge_data = (dgl.data.utils.load_tensors(str(file)) for file in others)
    except Exception as error:  # DGL raises errors of many types
        raise InputError(f"{path.parent}: DGL cannot read this part: {error}") from error
    return graph, _group(node_data, config.types), _group(edge_data, config.relations)


def _group(tensors: Mapping[str, Tensor], names: Collection[str]) -> dict[str, dict[str, Array]]:
    """Return tensors named TYPE/NAME by type and name; all are of the only name, if it is one."""
    grouped: dict[str, dict[str, Array]] = {}
    for full_name, tensor in tensors.items():
        owner, _, key = full_name.rpartition("/")
        owner = owner if len(names) > 1 else next(iter(names))
        # NumPy has no bfloat16.
        array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        grouped.setdefault(owner, {})[key] = array
    return grouped


def _require(data: Mapping[str, Array], names: Sequence[str], where: str) -> Array:
    """Return the first of some arrays; InputError if there is none of them."""
    for name in names:
        if name in data:
            return data[name]
    raise InputError(
        f"{where}: has no `{names[0]}`; it has {join_names(sorted(data)) or 'nothing'}"
    )


def _check_edge_data(
    data: Mapping[str, Array], known: Sequence[str], num_edges: int, where: str
) -> dict[str, Array]:
    """Return checked weights and features of edges by our names.

    Other arrays than `known`, and a second one of the same name, are left out with a warning.
    InputError for wrong ones. Weights of 1 stay.
    """
    checks: dict[str, Any] = {"edge_weight": check_edge_weight, "edge_feat": check_edge_feat}
    checked: dict[str, Array] = {}
    for key, array in data.items():
        ours = EDGE_NAMES.get(key, "")
        if ours not in known or ours in checked:
            log.warning("%s: edata `%s`: left out", where, key)
            continue
        values = checks[ours](array, num_edges, f"{where}/{key}")
        checked[ours] = np.ones(num_edges, np.float32) if values is None else values
    return checked


def _read_features(
    data: Mapping[str, Array], num_nodes: int, where: str, into: Sequence[PartEdges] | None
) -> Tensor:
    """Return features, float32 [I, F]; without any, log(1 + in-degree) by relation.

    InputError where they are wrong, or needed and missing.

    Args:
        into: The edges of each relation into the type; None: features are needed.
    """
    if into is None or {*FEATURE_NAMES} & data.keys():
        features = _require(data, FEATURE_NAMES, where)
        return torch.from_numpy(check_dense(features, num_nodes, f"{where}/{FEATURE_NAMES[0]}"))
    degrees = [torch.bincount(edges.dst, minlength=num_nodes) for edges in into]
    return torch.log1p(torch.stack(degrees or [torch.zeros(num_nodes)], dim=1).float())


def _find_target(node_data: Mapping[str, Mapping[str, Array]], where: str) -> str:
    """Return the one node type with labels and a training mask; InputError for none or several."""
    targets = [
        name
        for name, data in node_data.items()
        if MASKS[0] in data and {*LABEL_NAMES} & data.keys()
    ]
    if len(targets) != 1:
        raise InputError(
            f"{where}: expected one type of nodes with label and train_mask, found"
            f" {targets or 'none'}; give them to the one that is to be learned, and partition again"
        )
    return targets[0]


def _read_target(
    data: Mapping[str, Array], sizes: Sequence[int], part: int, where: str
) -> dict[str, Any]:
    """Return labels and masks of the target's inner nodes, by the names of their fields.

    InputError where one is missing or wrong, or the masks overlap or have unlabelled nodes.
    """
    num_nodes = sizes[part]
    labels = check_labels(_require(data, LABEL_NAMES, where), sum(sizes), f"{where}/label")
    check_length(labels, num_nodes, f"{where}/label")
    masks = {
        name: check_mask(_require(data, (name,), where), num_nodes, f"{where}/{name}")
        for name in MASKS
    }
    check_split(masks, is_labelled(labels), where)
    return {name: torch.from_numpy(array) for name, array in ({"labels": labels} | masks).items()}
