"""Reads a partition from the files that DGL's partition_graph wrote (dgl_files.py lists them).

A partition's graph is homogeneous: nodes and edges of all types have ids of one numbering, in
`_ID`, whose ranges dgl_config.py describes. Nodes of a heterogeneous graph without features get
log(1 + in-degree) under each relation. Edges into halo nodes and self loops are left out, and so
are halo nodes that send nothing: DGL's halo can be wider than one hop. I inner nodes of a type, E
edges of a relation.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partitioning.array_checks import (
    Array,
    check_dense,
    check_edge_feat,
    check_edge_weight,
    check_labels,
    check_length,
    check_mask,
    check_node_ids,
    check_split,
)
from partitioning.dgl_import import import_dgl
from partitioning.directory.dgl_config import PartitionConfig
from partitioning.directory.partition import PartEdges, Partition, PartNodes
from partitioning.errors import InputError, join_names
from partitioning.file_io import explaining
from partitioning.graph_data import EDGE_DATA, EDGE_NAMES, MASKS, EdgeType, is_labelled

log = logging.getLogger(__name__)

FEATURE_NAMES = ("feat", "features")
LABEL_NAMES = ("label", "labels")
"""Names in DGL's examples, GraphStorm and the public Retexo code."""


def read_part(config: PartitionConfig, part: int) -> Partition:
    """Read and check one partition; InputError names what is wrong with it.

    Edges are sorted by destination, then source.
    """
    where = f"{config.file.parent}: part {part}"
    with explaining(where, "partition of DGL's", "copy it again"):
        graph, node_data, edge_data = _load(config, part)
        src, dst = (ends.numpy() for ends in graph.edges(order="eid"))
        node_ids = graph.ndata["_ID"].numpy()
        node_type, owner, local_ids = config.nodes.locate(node_ids)
        edge_type, edge_owner, position = config.edges.locate(graph.edata["_ID"].numpy())
        is_inner = owner == part
        is_kept = is_inner[dst] & (src != dst)
        is_source = np.zeros(len(node_ids), np.bool_)
        is_source[src[is_kept]] = True
        halos: dict[str, Any] = {}
        for index, (name, sizes) in enumerate(config.nodes.sizes.items()):
            of_type = node_type == index
            inner = np.sort(local_ids[of_type & is_inner])
            if not np.array_equal(inner, np.arange(sizes[part])):
                raise ValueError(f"its inner nodes of {name} are not those of the config")
            is_halo = of_type & is_source & ~is_inner
            halo, rank = np.unique(node_ids[is_halo], return_inverse=True)
            local_ids[is_halo] = sizes[part] + rank
            halos[name] = map(torch.from_numpy, config.nodes.locate(halo)[1:])
        relations: dict[EdgeType, PartEdges] = {}
        types, local_ids = [*config.types.values()], local_ids.astype(np.int32)
        for index, (name, relation) in enumerate(config.relations.items()):
            kept = np.flatnonzero(is_kept & (edge_type == index))
            kept = kept[np.lexsort((node_ids[src[kept]], local_ids[dst[kept]]))]
            ends = ((src[kept], relation[0]), (dst[kept], relation[2]))
            is_wrong = [(node_type[nodes] != types.index(end)).any() for nodes, end in ends]
            if any(is_wrong) or (edge_owner[kept] != part).any():
                raise ValueError(f"an edge of {name} has an end of another type, or part")
            known = EDGE_DATA if config.is_plain else EDGE_DATA[:1]
            num_edges, named = config.edges.sizes[name][part], f"{where}: {name}"
            data = _check_edge_data(edge_data.get(name, {}), known, num_edges, named)
            relations[relation] = PartEdges(
                *(torch.from_numpy(local_ids[nodes]) for nodes, _ in ends),
                **{key: torch.from_numpy(array[position[kept]]) for key, array in data.items()},
            )
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
        target = _find_target(node_data, where)
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
    """Load the files: the graph; arrays of its nodes by type and name; of its edges by relation."""
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

    Other arrays than `known` are left out with a warning.
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

    Args:
        into: The edges of each relation into the type; None: features are needed.
    """
    if into is None or {*FEATURE_NAMES} & data.keys():
        features = _require(data, FEATURE_NAMES, where)
        return torch.from_numpy(check_dense(features, num_nodes, f"{where}/{FEATURE_NAMES[0]}"))
    degrees = [torch.bincount(edges.dst, minlength=num_nodes) for edges in into]
    return torch.log1p(torch.stack(degrees or [torch.zeros(num_nodes)], dim=1).float())


def _find_target(node_data: Mapping[str, Mapping[str, Array]], where: str) -> str:
    """Return the one node type with labels and a training mask."""
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
    """Return labels and masks of the target's inner nodes, by the names of their fields."""
    num_nodes = sizes[part]
    labels = check_labels(_require(data, LABEL_NAMES, where), sum(sizes), f"{where}/label")
    check_length(labels, num_nodes, f"{where}/label")
    masks = {
        name: check_mask(_require(data, (name,), where), num_nodes, f"{where}/{name}")
        for name in MASKS
    }
    check_split(masks, is_labelled(labels), where)
    return {name: torch.from_numpy(array) for name, array in ({"labels": labels} | masks).items()}
