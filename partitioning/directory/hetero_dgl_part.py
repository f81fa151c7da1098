"""Reads a partition of a heterogeneous graph from the files that DGL's partition_graph wrote.

A partition's graph is homogeneous: nodes and edges of all types have ids of one numbering, in
`_ID`, whose ranges dgl_config.py describes. Nodes without features get log(1 + in-degree) under
each relation. I inner nodes of a type, E edges of a relation.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.array_checks import (
    Array,
    Ints,
    check_dense,
    check_edge_weight,
    check_node_ids,
)
from partitioning.directory.dgl_config import IdRanges, files_of, read_ranges
from partitioning.directory.dgl_files import load_part
from partitioning.directory.foreign_part import FEATURE_NAMES, LABEL_NAMES
from partitioning.directory.npy_files import check_target
from partitioning.directory.partition import HeteroPartition, PartEdges, PartNodes
from partitioning.errors import InputError
from partitioning.graph_data import EDGE_NAMES, MASKS, EdgeType

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Graph:
    """The graph of one partition, with the type, owner and position of each node and edge."""

    part: int
    where: str
    """What messages begin with."""
    nodes: IdRanges
    edges: IdRanges
    src: Ints
    """[E of all relations] rows of node_ids."""
    dst: Ints
    node_ids: Ints
    edge_ids: Ints
    node_tensors: Mapping[str, Array]
    edge_tensors: Mapping[str, Array]


def read_part(directory: Path, config: Mapping[str, Any], part: int) -> HeteroPartition:
    """Read and check one partition; InputError names what is wrong with it."""
    graph = _load(directory, config, part)
    node_type, owner, _ = graph.nodes.locate(graph.node_ids)
    is_inner = owner == part
    is_kept = is_inner[graph.dst] & (graph.src != graph.dst)
    halo_ids = np.setdiff1d(
        graph.node_ids[graph.src[is_kept]], graph.node_ids[is_inner]
    )  # ascending: by owner, then by position
    local_ids = _number_locally(graph, halo_ids)
    relations: dict[EdgeType, PartEdges] = {}
    for index, relation in enumerate(graph.edges.names):
        source, name, destination = relation.split(":")
        edges = _read_edges(graph, index, is_kept, node_type, local_ids)
        relations[source, name, destination] = edges
    nodes = {}
    halo_type, halo_owner, halo_index = graph.nodes.locate(halo_ids)
    for index, name in enumerate(graph.nodes.names):
        ids, features = _read_nodes(graph, name, relations)
        in_halo = halo_type == index
        nodes[name] = PartNodes(
            features,
            ids,
            torch.from_numpy(halo_owner[in_halo]),
            torch.from_numpy(halo_index[in_halo]),
        )
    target = _find_target(graph)
    return HeteroPartition(
        part,
        int(config["num_parts"]),
        target,
        nodes,
        relations,
        self_loops=int((is_inner[graph.dst] & (graph.src == graph.dst)).sum()),
        **_read_target(graph, target, nodes[target].num_inner),
    )


def _load(directory: Path, config: Mapping[str, Any], part: int) -> _Graph:
    """Load the files and check that their ids are those of the config."""
    where = f"{directory}: part {part}"
    num_parts = int(config["num_parts"])
    nodes, edges = (
        read_ranges(config, name, num_parts, directory) for name in ("node_map", "edge_map")
    )
    found = load_part(files_of(directory, config, part), "_ID")
    if "_ID" not in found.nodes:
        raise InputError(f"{where}: its graph has no _ID of nodes; copy it again")
    src, dst, node_ids, edge_ids = (
        tensor.numpy().astype(np.int64)
        for tensor in (found.src, found.dst, found.nodes["_ID"], found.edges["_ID"])
    )
    ends = np.concatenate((src, dst))
    if len(edge_ids) != len(src) or ((ends < 0) | (ends >= len(node_ids))).any():
        raise InputError(f"{where}: its edges have ends that are none of its nodes; copy it again")
    for ids, ranges in ((node_ids, nodes), (edge_ids, edges)):
        if len(ids) and not 0 <= ids.min() <= ids.max() < ranges.total:
            raise InputError(
                f"{where}: has numbers of nodes or edges that the config does not know; copy it"
                " again"
            )
    node_type, owner, position = nodes.locate(node_ids)
    for index, name in enumerate(nodes.names):
        held = np.sort(position[(owner == part) & (node_type == index)])
        if not np.array_equal(held, np.arange(nodes.count(name, part))):
            raise InputError(
                f"{where}: its inner nodes of type {name} are not those of the config; copy it"
                " again"
            )
    node_tensors, edge_tensors = (
        {name: tensor.numpy() for name, tensor in tensors.items()}
        for tensors in (found.node_tensors, found.edge_tensors)
    )
    return _Graph(
        part, where, nodes, edges, src, dst, node_ids, edge_ids, node_tensors, edge_tensors
    )


def _number_locally(graph: _Graph, halo_ids: Ints) -> NDArray[np.int32]:
    """Return each node's local id within its type: inner nodes, halo nodes; -1 for unused ones."""
    node_type, owner, local_ids = graph.nodes.locate(graph.node_ids)
    local_ids[owner != graph.part] = -1
    halo_type = graph.nodes.locate(halo_ids)[0]
    is_halo = np.isin(graph.node_ids, halo_ids)
    for index, name in enumerate(graph.nodes.names):
        members = halo_ids[halo_type == index]
        chosen = is_halo & (node_type == index)
        rank = np.searchsorted(members, graph.node_ids[chosen])
        local_ids[chosen] = graph.nodes.count(name, graph.part) + rank
    return local_ids.astype(np.int32)


def _read_edges(
    graph: _Graph,
    index: int,
    is_kept: NDArray[np.bool_],
    node_type: Ints,
    local_ids: NDArray[np.int32],
) -> PartEdges:
    """Return the edges of one relation, sorted by destination and then by source."""
    relation = graph.edges.names[index]
    source, _, destination = relation.split(":")
    edge_type, owner, position = graph.edges.locate(graph.edge_ids)
    kept = np.flatnonzero(is_kept & (edge_type == index))
    src, dst = graph.src[kept], graph.dst[kept]
    if (
        (node_type[src] != graph.nodes.names.index(source)).any()
        or (node_type[dst] != graph.nodes.names.index(destination)).any()
        or (owner[kept] != graph.part).any()
    ):
        raise InputError(
            f"{graph.where}: an edge of {relation} has an end of another type, or belongs to"
            " another part"
        )
    order = np.lexsort((local_ids[src], local_ids[dst]))
    weight = _find_weight(graph, relation)
    return PartEdges(
        torch.from_numpy(local_ids[src][order]),
        torch.from_numpy(local_ids[dst][order]),
        None if weight is None else torch.from_numpy(weight[position[kept]][order]),
    )


def _find_weight(graph: _Graph, relation: str) -> NDArray[np.float32] | None:
    """Return the weights of the partition's edges of one relation; other edge data are left out."""
    found = None
    for name, array in graph.edge_tensors.items():
        owner, _, short = name.rpartition("/")
        if owner != relation:
            continue
        if EDGE_NAMES.get(short) == "edge_weight" and found is None:
            num_edges = graph.edges.count(relation, graph.part)
            check_edge_weight(array, num_edges, f"{graph.where}: {name}")
            found = array.reshape(-1).astype(np.float32)
        else:
            log.warning("%s: edata `%s`: left out", graph.where, name)
    return found


def _read_nodes(
    graph: _Graph, name: str, relations: Mapping[EdgeType, PartEdges]
) -> tuple[Tensor, Tensor]:
    """Return ids, int64 [I], and features, float32 [I, F], of a type's inner nodes."""
    num_inner = graph.nodes.count(name, graph.part)
    first = sum(graph.nodes.count(name, other) for other in range(graph.part))
    ids = check_node_ids(
        graph.node_tensors.get(f"{name}/orig_id", first + np.arange(num_inner)),
        num_inner,
        f"{graph.where}: {name}/orig_id",
    )
    for key in (f"{name}/{each}" for each in FEATURE_NAMES):
        if key in graph.node_tensors:
            rows = check_dense(graph.node_tensors[key], num_inner, f"{graph.where}: {key}")
            return torch.from_numpy(ids), torch.from_numpy(rows)
    degrees = [
        torch.bincount(edges.dst, minlength=num_inner)
        for edge_type, edges in relations.items()
        if edge_type[2] == name
    ]
    in_degree = torch.stack(degrees or [torch.zeros(num_inner)], dim=1)
    return torch.from_numpy(ids), torch.log1p(in_degree.float())


def _find_target(graph: _Graph) -> str:
    """Return the one node type with labels and a training mask."""
    targets = [
        name
        for name in graph.nodes.names
        if f"{name}/{MASKS[0]}" in graph.node_tensors
        and any(f"{name}/{key}" in graph.node_tensors for key in LABEL_NAMES)
    ]
    if len(targets) != 1:
        raise InputError(
            f"{graph.where}: expected one type of nodes with label and train_mask, found"
            f" {targets or 'none'}; give them to the one that is to be learned, and partition again"
        )
    return targets[0]


def _read_target(graph: _Graph, target: str, num_inner: int) -> dict[str, Any]:
    """Return labels and masks of the target's inner nodes."""
    tensors = graph.node_tensors
    label = next(key for key in LABEL_NAMES if f"{target}/{key}" in tensors)
    arrays = {"label": tensors[f"{target}/{label}"]}
    for name in MASKS:
        if f"{target}/{name}" not in tensors:
            raise InputError(
                f"{graph.where}: has no '{target}/{name}'; give nodes of type {target} all three"
                " masks"
            )
        arrays[name] = tensors[f"{target}/{name}"]
    return check_target(arrays, num_inner, graph.nodes.total, graph.where)
