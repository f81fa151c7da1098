"""Cutting a heterogeneous graph into parts: by an assignment of the nodes of every type.

P parts; N_t nodes of a type; E_r edges of a relation.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from partitioning.directory.partition import HeteroPartition, PartEdges, PartNodes
from partitioning.directory.write_directory import Layout, make_layout
from partitioning.graph_data import MASKS, EdgeType, Endpoints, HeteroGraphData, NodeTable, Relation


@dataclass(frozen=True, eq=False)
class _Sorted:
    """The edges of a relation in new ids, by destination and then by source, so by part; no self loops."""

    src: Endpoints
    dst: Endpoints
    edge_weight: NDArray[np.float32] | None
    bounds: NDArray[np.int64]
    """[P + 1] part p has edges bounds[p] ... bounds[p + 1] - 1."""
    loops: NDArray[np.int64]
    """[P] edges from a node to itself that were left out."""


def split_hetero(
    graph: HeteroGraphData,
    masks: Mapping[str, NDArray[np.bool_]],
    assignment: Mapping[str, NDArray[np.int64]],
    num_parts: int,
) -> Iterator[HeteroPartition]:
    """The parts in order. masks: of the target, bool [N] each; assignment: int64 [N_t] in [0, P) for each type."""
    layouts = {name: make_layout(assignment[name], num_parts) for name in graph.nodes}
    relations = {
        each: _sorted(each, relation, layouts) for each, relation in graph.relations.items()
    }
    for part in range(num_parts):
        yield _part(graph, masks, layouts, relations, part)


def _sorted(edge_type: EdgeType, relation: Relation, layouts: Mapping[str, Layout]) -> _Sorted:
    source, _, destination = edge_type
    of_src, of_dst = layouts[source], layouts[destination]
    src, dst, weight = (
        of_src.new_id[relation.src],
        of_dst.new_id[relation.dst],
        relation.edge_weight,
    )
    loops = np.zeros(len(of_dst.node_bounds) - 1, np.int64)
    if source == destination and (loop := src == dst).any():
        loops = np.bincount(of_dst.part_of(dst[loop]), minlength=len(loops))
        src, dst, weight = src[~loop], dst[~loop], None if weight is None else weight[~loop]
    key = dst.astype(np.int64) * len(of_src.new_id) + src
    if weight is None:  # a tenth of the time that an order takes
        key.sort()
    else:
        order = np.argsort(key, kind="stable")
        key, weight = key[order], weight[order]
    dst = (key // max(len(of_src.new_id), 1)).astype(dst.dtype)
    src = (key - dst.astype(np.int64) * len(of_src.new_id)).astype(src.dtype)
    return _Sorted(src, dst, weight, np.searchsorted(dst, of_dst.node_bounds), loops)


def _part(
    graph: HeteroGraphData,
    masks: Mapping[str, NDArray[np.bool_]],
    layouts: Mapping[str, Layout],
    relations: Mapping[EdgeType, _Sorted],
    part: int,
) -> HeteroPartition:
    held = {each: slice(*edges.bounds[part : part + 2]) for each, edges in relations.items()}
    nodes, local_ids = {}, {}
    for name, layout in layouts.items():
        sources = [relations[each].src[held[each]] for each in relations if each[0] == name]
        nodes[name], local_ids[name] = _part_nodes(graph.nodes[name], layout, part, sources)
    edges = {}
    for each, of_all in relations.items():
        src = local_ids[each[0]][of_all.src[held[each]]]
        dst = of_all.dst[held[each]] - layouts[each[2]].node_bounds[part]
        weight = (
            None if of_all.edge_weight is None else torch.from_numpy(of_all.edge_weight[held[each]])
        )
        edges[each] = PartEdges(
            torch.from_numpy(src), torch.from_numpy(dst.astype(np.int32)), weight
        )
    layout = layouts[graph.target]
    inner = layout.node_order[slice(*layout.node_bounds[part : part + 2])]
    return HeteroPartition(
        rank=part,
        num_parts=len(layout.node_bounds) - 1,
        target=graph.target,
        nodes=nodes,
        relations=edges,
        labels=torch.from_numpy(graph.labels[inner]),
        self_loops=sum(int(each.loops[part]) for each in relations.values()),
        **{name: torch.from_numpy(masks[name][inner]) for name in MASKS},
    )


def _part_nodes(
    table: NodeTable, layout: Layout, part: int, sources: list[Endpoints]
) -> tuple[PartNodes, NDArray[np.int32]]:
    """The part's nodes of a type, and the local id of each of all nodes by new id, int32 [N_t]; others have any."""
    first, end = layout.node_bounds[part : part + 2].tolist()
    is_source = np.zeros(table.num_nodes, np.bool_)
    for src in sources:
        is_source[src] = True
    is_source[first:end] = False
    halo = np.flatnonzero(is_source)
    local = np.empty(table.num_nodes, np.int32)
    local[first:end] = np.arange(end - first)
    local[halo] = end - first + np.arange(len(halo))
    inner, owner = layout.node_order[first:end], layout.part_of(halo)
    rows = table.features[inner]
    return PartNodes(
        features=torch.from_numpy(rows.toarray() if isinstance(rows, sp.csr_array) else rows),
        node_ids=torch.from_numpy(table.node_ids[inner]),
        halo_owner=torch.from_numpy(owner),
        halo_index=torch.from_numpy(halo - layout.node_bounds[owner]),
    ), local
