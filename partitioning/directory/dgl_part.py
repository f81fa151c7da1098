"""Reads a partition from the files that DGL's partition_graph wrote (dgl_files.py lists them).

A partition's graph is homogeneous: nodes and edges of all types have ids of one numbering, in
`_ID`, whose ranges dgl_config.py describes. A plain graph is read as one type and one relation.
Nodes of a heterogeneous graph without features get log(1 + in-degree) under each relation.
Edges into halo nodes and self loops are left out, and so are halo nodes that send nothing: DGL's
halo can be wider than one hop. I inner nodes of a type, E edges of a relation.
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
    check_edge_feat,
    check_edge_weight,
    check_labels,
    check_length,
    check_mask,
    check_node_ids,
    check_split,
)
from partitioning.dgl_import import import_dgl
from partitioning.directory.dgl_config import IdRanges, files_of, is_hetero, read_ranges
from partitioning.directory.partition import PartEdges, Partition, PartNodes
from partitioning.errors import InputError
from partitioning.graph_data import (
    EDGE_NAMES,
    MASKS,
    PLAIN_RELATION,
    PLAIN_TYPE,
    EdgeType,
    is_labelled,
)

log = logging.getLogger(__name__)

FEATURE_NAMES = ("feat", "features")
LABEL_NAMES = ("label", "labels")
"""Names in DGL's examples, GraphStorm and the public Retexo code."""


@dataclass(frozen=True, eq=False)
class _Graph:
    """Graph of one partition, unchecked."""

    part: int
    where: str
    """What messages begin with."""
    nodes: IdRanges
    edges: IdRanges | None
    """None for a plain graph, whose edges have one relation."""
    src: Ints
    """[E of all relations] rows of node_ids."""
    dst: Ints
    node_ids: Ints
    edge_ids: Ints
    """[E]; of a plain graph whether the edge is one of the partition's own."""
    node_tensors: dict[str, dict[str, Array]]
    """Data of the inner nodes by type and name."""
    edge_tensors: dict[str, dict[str, Array]]
    """Data of the partition's own edges by relation and name."""

    def show(self, name: str, key: str) -> str:
        """Return what messages call an array of a type or relation."""
        return key if self.edges is None else f"{name}/{key}"

    def find(self, name: str, keys: tuple[str, ...]) -> tuple[str, Array] | None:
        """Return the first of some arrays of a node type, and its name; None where none exists."""
        tensors = self.node_tensors.get(name, {})
        return next(((key, tensors[key]) for key in keys if key in tensors), None)

    def require(self, name: str, keys: tuple[str, ...]) -> tuple[str, Array]:
        """Return the name and values of the first of some arrays that a node type has.

        InputError: none.
        """
        tensor = self.find(name, keys)
        if tensor is None:
            there = ", ".join(sorted(self.node_tensors.get(name, {}))) or "nothing"
            raise InputError(f"{self.where}: has no '{self.show(name, keys[0])}'; it has {there}")
        return tensor


def read_part(directory: Path, config: Mapping[str, Any], part: int) -> Partition:
    """Read and check one partition; InputError names what is wrong with it."""
    graph = _load(directory, config, part)
    node_type, owner, _ = graph.nodes.locate(graph.node_ids)
    is_inner = owner == part
    is_own, is_loop = is_inner[graph.dst], graph.src == graph.dst
    is_source = np.zeros(len(graph.node_ids), np.bool_)
    is_source[graph.src[is_own & ~is_loop]] = True
    halo_ids = np.unique(graph.node_ids[is_source & ~is_inner])  # by owner, then by position
    local_ids = _number_locally(graph, halo_ids)
    relations = _read_relations(graph, is_own & ~is_loop, node_type, local_ids)
    nodes = {}
    halo_type, halo_owner, halo_index = graph.nodes.locate(halo_ids)
    for index, name in enumerate(graph.nodes.names):
        ids, features = _read_nodes(graph, name, relations)
        in_halo = halo_type == index
        nodes[PLAIN_TYPE if graph.edges is None else name] = PartNodes(
            features,
            ids,
            torch.from_numpy(halo_owner[in_halo]),
            torch.from_numpy(halo_index[in_halo]),
        )
    target = graph.nodes.names[0] if graph.edges is None else _find_target(graph)
    return Partition(
        part,
        int(config["num_parts"]),
        PLAIN_TYPE if graph.edges is None else target,
        nodes,
        relations,
        self_loops=int((is_own & is_loop).sum()),
        **_read_target(graph, target),
    )


def _load(directory: Path, config: Mapping[str, Any], part: int) -> _Graph:
    """Load the files and check that their ids are those of the config."""
    where = f"{directory}: part {part}"
    num_parts = int(config["num_parts"])
    nodes = read_ranges(config, "node_map", num_parts, directory)
    edges = read_ranges(config, "edge_map", num_parts, directory) if is_hetero(config) else None
    files = files_of(directory, config, part)
    dgl = import_dgl(f"{files[0].parent}: a part in DGL's files alone")
    try:
        graph = dgl.load_graphs(str(files[0]))[0][0]
        node_tensors, edge_tensors = (dgl.data.utils.load_tensors(str(file)) for file in files[1:])
        edge_ids = graph.edata["inner_edge" if edges is None else "_ID"].numpy()
        for name in list(graph.edata):  # takes a third of the edges' memory
            graph.edata.pop(name)
        src, dst = (ends.numpy() for ends in graph.edges(order="eid"))
        node_ids = graph.ndata["_ID"].numpy().astype(np.int64)
    except Exception as error:  # DGL raises errors of many types
        raise InputError(f"{files[0].parent}: DGL cannot read this part: {error}") from error
    if any(len(ends) and not 0 <= ends.min() <= ends.max() < len(node_ids) for ends in (src, dst)):
        raise InputError(f"{where}: its edges have ends that are none of its nodes; copy it again")
    for ids, ranges in ((node_ids, nodes), (edge_ids, edges)):
        if ranges is not None and len(ids) and not 0 <= ids.min() <= ids.max() < ranges.total:
            raise InputError(
                f"{where}: has numbers of nodes or edges that the config does not know; copy it"
                " again"
            )
    node_type, owner, position = nodes.locate(node_ids)
    for index, name in enumerate(nodes.names):
        local_ids = np.sort(position[(owner == part) & (node_type == index)])
        if not np.array_equal(local_ids, np.arange(nodes.count(name, part))):
            of_type = "" if edges is None else f" of type {name}"
            raise InputError(
                f"{where}: its inner nodes{of_type} are not those of the config; copy it again"
            )
    only_type = nodes.names[0] if edges is None else None
    return _Graph(
        part,
        where,
        nodes,
        edges,
        src,
        dst,
        node_ids,
        edge_ids,
        _group(node_tensors, only_type),
        _group(edge_tensors, only_type),
    )


def _group(tensors: Mapping[str, Tensor], only_type: str | None) -> dict[str, dict[str, Array]]:
    """Return tensors named TYPE/NAME by type and name; all are of `only_type`, if given."""
    grouped: dict[str, dict[str, Array]] = {}
    for full_name, tensor in tensors.items():
        owner, _, name = full_name.rpartition("/")
        # NumPy has no bfloat16.
        array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        grouped.setdefault(only_type or owner, {})[name] = array
    return grouped


def _number_locally(graph: _Graph, halo_ids: Ints) -> NDArray[np.int32]:
    """Return the local id of each node within its type.

    Inner nodes come first, then halo nodes; an unused node gets -1. halo_ids ascend.
    """
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


def _read_relations(
    graph: _Graph, is_kept: NDArray[np.bool_], node_type: Ints, local_ids: NDArray[np.int32]
) -> dict[EdgeType, PartEdges]:
    """Return the kept edges, bool [E], by relation, in the order of the file.

    Args:
        node_type: [nodes] type of each node of the file.
        local_ids: [nodes] ids that the ends get: inner nodes, then halo nodes.

    Raises:
        InputError: an edge has an end of another type, or belongs to another part.
    """
    relations: dict[EdgeType, PartEdges] = {}
    if graph.edges is None:
        is_own = graph.edge_ids.astype(np.bool_)
        names: dict[str, Any] = dict.fromkeys(graph.nodes.names, PLAIN_RELATION)
        edge_type = np.zeros(len(is_own), np.int64)
        owner = np.where(is_own, graph.part, -1)
        position = np.cumsum(is_own) - 1
        num_own = {name: int(is_own.sum()) for name in names}
    else:
        names = {name: tuple(name.split(":")) for name in graph.edges.names}
        edge_type, owner, position = graph.edges.locate(graph.edge_ids)
        num_own = {name: graph.edges.count(name, graph.part) for name in names}
    for index, (name, relation) in enumerate(names.items()):
        kept = np.flatnonzero(is_kept & (edge_type == index))
        src, dst = graph.src[kept], graph.dst[kept]
        source, destination = (
            graph.nodes.names.index(end or name) for end in (relation[0], relation[2])
        )
        if (
            (node_type[src] != source).any()
            or (node_type[dst] != destination).any()
            or (owner[kept] != graph.part).any()
        ):
            raise InputError(
                f"{graph.where}: an edge of {name} has an end of another type, or belongs to"
                " another part"
            )
        data = _read_edge_data(graph, name, num_own[name], position[kept])
        relations[relation] = PartEdges(
            torch.from_numpy(local_ids[src]), torch.from_numpy(local_ids[dst]), **data
        )
    return relations


def _read_edge_data(graph: _Graph, name: str, num_edges: int, rows: Ints) -> dict[str, Any]:
    """Return weights and, of a plain graph, features of some of the partition's own edges.

    The names are ours. Other tensors are left out with a warning.

    Args:
        rows: Of the edges.
    """
    checks: dict[str, Any] = {"edge_weight": check_edge_weight}
    if graph.edges is None:
        checks["edge_feat"] = check_edge_feat
    data: dict[str, Any] = {}
    for key, array in graph.edge_tensors.get(name, {}).items():
        ours = EDGE_NAMES.get(key, "")
        if ours not in checks or ours in data:
            log.warning("%s: edata `%s`: left out", graph.where, key)
            continue
        checked = checks[ours](array, num_edges, f"{graph.where}: {graph.show(name, key)}")
        data[ours] = torch.ones(len(rows)) if checked is None else torch.from_numpy(checked[rows])
    return data


def _read_nodes(
    graph: _Graph, name: str, relations: Mapping[EdgeType, PartEdges]
) -> tuple[Tensor, Tensor]:
    """Return ids, int64 [I], and features, float32 [I, F], of a type's inner nodes.

    A type without features gets log(1 + in-degree) by relation, and a plain graph an InputError.
    """
    num_inner = graph.nodes.count(name, graph.part)
    first = sum(graph.nodes.count(name, other) for other in range(graph.part))
    _, ids = graph.find(name, ("orig_id",)) or ("", first + np.arange(num_inner))
    ids = check_node_ids(ids, num_inner, f"{graph.where}: {graph.show(name, 'orig_id')}")
    find = graph.require if graph.edges is None else graph.find
    features = find(name, FEATURE_NAMES)
    if features is not None:
        rows = check_dense(
            features[1], num_inner, f"{graph.where}: {graph.show(name, features[0])}"
        )
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
        if graph.find(name, MASKS[:1]) and graph.find(name, LABEL_NAMES)
    ]
    if len(targets) != 1:
        raise InputError(
            f"{graph.where}: expected one type of nodes with label and train_mask, found"
            f" {targets or 'none'}; give them to the one that is to be learned, and partition again"
        )
    return targets[0]


def _read_target(graph: _Graph, target: str) -> dict[str, Any]:
    """Return labels and masks of the target's inner nodes, by the names of their fields."""
    num_inner, where = graph.nodes.count(target, graph.part), graph.where
    found = graph.require(target, LABEL_NAMES)[1]
    labels = check_labels(found, graph.nodes.total, f"{where}: label")
    check_length(labels, num_inner, f"{where}: label")
    masks = {
        name: check_mask(graph.require(target, (name,))[1], num_inner, f"{where}: {name}")
        for name in MASKS
    }
    check_split(masks, is_labelled(labels), where)
    return {name: torch.from_numpy(array) for name, array in ({"labels": labels} | masks).items()}
