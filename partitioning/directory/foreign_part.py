"""Checks what DGL's files hold of a plain graph's partition, and makes a Partition of it.

I inner nodes of the partition, H halo nodes, n nodes in its files, E edges.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from partitioning.array_checks import (
    Array,
    check_dense,
    check_edge_feat,
    check_edge_weight,
    check_node_ids,
)
from partitioning.directory.npy_files import check_target
from partitioning.directory.partition import Partition
from partitioning.directory.sorted_rows import degrees
from partitioning.errors import InputError, join_names
from partitioning.graph_data import MASKS

FEATURE_NAMES = ("feat", "features")
LABEL_NAMES = ("label", "labels")
"""Names in DGL's examples, GraphStorm and the public Retexo code."""


@dataclass(frozen=True, eq=False)
class ForeignPart:
    """What the files of a partition hold, unchecked."""

    edges: dict[str, Tensor]
    """src and dst, int [E] local ids; edge_weight and edge_feat, where they exist."""
    ids: Tensor
    """int64 [n] ids of the nodes in the partitioned graph, the inner nodes first."""
    tensors: dict[str, Tensor]
    """Data of the inner nodes by name, [I, ...]."""


def to_partition(found: ForeignPart, bounds: list[int], part: int, where: str) -> Partition:
    """Check a partition and number its nodes as Partition does.

    Edges into halo nodes and self loops are left out, and so are halo nodes that send nothing
    (DGL's halo can be wider than one hop).

    Args:
        bounds: [P + 1], partition p owns ids bounds[p] ... bounds[p + 1] - 1.
        where: what messages begin with.

    Raises:
        InputError: names what is wrong.
    """
    num_inner, num_nodes = bounds[part + 1] - bounds[part], bounds[-1]
    inner = torch.arange(bounds[part], bounds[part + 1])
    _check_ids(found.ids, inner, num_nodes, where)
    edges = dict(found.edges)
    into_inner, is_loop = edges["dst"] < num_inner, edges["src"] == edges["dst"]
    num_loops = int((into_inner & is_loop).sum())
    kept = into_inner & ~is_loop
    if not bool(kept.all()):
        edges = {name: data[kept] for name, data in edges.items()}
    src, dst = (edges.pop(name).to(torch.int32) for name in ("src", "dst"))
    halo, used = _sort_halo(found.ids[num_inner:], src, num_inner)
    local_id = torch.zeros(len(found.ids), dtype=torch.int32)
    local_id[used] = torch.arange(len(used), dtype=torch.int32)
    edge_data = _check_edge_data(edges, len(src), where)
    tensors = _check_tensors(found.tensors, inner, num_nodes, where)
    part_bounds = torch.tensor(bounds)
    owner = torch.searchsorted(part_bounds, halo, right=True) - 1
    return Partition(
        rank=part,
        num_parts=len(bounds) - 1,
        num_inner=num_inner,
        num_halo=len(halo),
        src=local_id[src],
        dst=dst,
        halo_owner=owner,
        halo_index=halo - part_bounds[owner],
        in_degree=degrees(dst, edge_data.get("edge_weight"), num_inner),
        out_degree=None,
        self_loops=num_loops,
        **tensors,
        **edge_data,
    )


def _check_ids(ids: Tensor, inner: Tensor, num_nodes: int, where: str) -> None:
    """InputError unless ids are distinct, in range, and contain the inner nodes."""
    num_inner = len(inner)
    if len(ids) >= 2**31:
        raise InputError(
            f"{where}: has {len(ids):,} nodes with its halo, at most {2**31 - 1:,} fit; make more"
            " parts"
        )
    if len(ids) < num_inner or not torch.equal(ids[:num_inner], inner):
        raise InputError(f"{where}: its inner nodes are not those of its range of ids, in order")
    halo = ids[num_inner:]
    if bool(((halo < 0) | (halo >= num_nodes)).any()):
        raise InputError(f"{where}: has node ids outside [0, {num_nodes})")
    if bool(torch.isin(halo, inner).any()):
        raise InputError(f"{where}: a halo node is one of its own inner nodes")


def _sort_halo(halo: Tensor, src: Tensor, num_inner: int) -> tuple[Tensor, Tensor]:
    """Return ids of the halo nodes that are sources, ascending, and kept nodes renumbered."""
    num_edges = torch.bincount(src, minlength=num_inner + len(halo))
    used = num_edges[num_inner:].nonzero()[:, 0]
    used = used[torch.argsort(halo[used])]
    return halo[used], torch.cat((torch.arange(num_inner), used + num_inner))


def _check_tensors(
    tensors: dict[str, Tensor], inner: Tensor, num_nodes: int, where: str
) -> dict[str, Any]:
    """Check features, labels, masks and ids of the inner nodes.

    `inner` are their ids in the partitioned graph.
    """
    arrays = {
        # NumPy has no bfloat16.
        name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        for name, tensor in tensors.items()
    }
    features = check_dense(require(arrays, FEATURE_NAMES, where), len(inner), f"{where}: features")
    target: dict[str, Array] = {"label": require(arrays, LABEL_NAMES, where)}
    target |= {name: require(arrays, (name,), where) for name in MASKS}
    checked = check_target(target, len(inner), num_nodes, where)
    node_ids = check_node_ids(arrays.get("orig_id", inner.numpy()), len(inner), f"{where}: orig_id")
    return {
        "features": torch.from_numpy(features),
        "node_ids": torch.from_numpy(node_ids),
        **checked,
    }


def _check_edge_data(edges: dict[str, Tensor], num_edges: int, where: str) -> dict[str, Any]:
    """Check weights and features of edges; weights that are all one are left out."""
    checks = {"edge_weight": check_edge_weight, "edge_feat": check_edge_feat}
    checked: dict[str, Any] = {}
    for name, data in edges.items():
        array = checks[name](data.numpy(), num_edges, f"{where}: {name}")
        if array is not None:
            checked[name] = torch.from_numpy(array)
    return checked


def require(arrays: Mapping[str, Any], names: tuple[str, ...], where: str) -> Any:
    """Return the first of the named arrays that exists; InputError where none does."""
    for name in names:
        if name in arrays:
            return arrays[name]
    raise InputError(
        f"{where}: has no '{names[0]}'; it has {join_names(sorted(arrays)) or 'nothing'}"
    )
