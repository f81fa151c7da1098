"""Reads directories of PyG's torch_geometric.distributed.Partitioner, by torch.load with
weights_only.

    META.json, node_map.pt              num_parts; int64 [N] the partition of each node
    part_0/graph.pt, node_feats.pt      row, col, edge_id of the in-edges; global_id, x of the nodes

The Partitioner leaves out labels and masks, and its edge_feats.pt cannot be read with weights_only.
The user saves them beside its files, for instance by torch.save(data.y, DIR + "/label.pt"):

    label.pt, train_mask.pt, val_mask.pt, test_mask.pt    [N]
    edge_attr.pt, edge_weight.pt                          [E], where edges have features or weights

N nodes of the graph, I inner nodes of a partition, H halo nodes, E edges.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.array_checks import check_endpoints, check_length
from partitioning.directory.foreign_part import ForeignPart
from partitioning.errors import InputError
from partitioning.file_io import file_checksum, open_regular, read_json, reading
from partitioning.graph_data import EDGE_NAMES, MASKS

log = logging.getLogger(__name__)

DESCRIPTION = "META.json"
NODE_FILES = {"label": "y", **{name: name for name in MASKS}}
"""Names of the files with data of all nodes -> attributes of PyG's Data."""
MAX_EMPTY_BYTES = 1 << 11
"""An edge_feats.pt of at most this size holds nothing."""


def files_of(path: Path, part: int) -> list[Path]:
    """Return the files that a partition is read from."""
    edges = (path / f"{name}.pt" for name in ("edge_attr", "edge_weight"))
    return [
        path / f"part_{part}" / "graph.pt",
        path / f"part_{part}" / "node_feats.pt",
        *filter(Path.is_file, edges),
        *(path / f"{name}.pt" for name in ("node_map", *NODE_FILES)),
    ]


def read_config(path: Path) -> tuple[dict[str, Any], list[int]]:
    """Read META.json and node_map.pt.

    Returns:
        The description with the checksum of node_map.pt, and the bounds [P + 1] of the partitions'
        ids.
    """
    config = read_json(path / DESCRIPTION)
    parts = config.get("num_parts")
    if config.get("is_hetero") is not False or type(parts) is not int or parts < 1:
        raise InputError(
            f"{path / DESCRIPTION}: expected num_parts, and is_hetero=false: a graph with one type"
            " of nodes"
        )
    node_map = _load(path / "node_map.pt")
    counts = np.bincount(
        check_endpoints(node_map.numpy(), parts, f"{path}/node_map.pt"), minlength=parts
    )
    return {**config, "node_map": file_checksum(path / "node_map.pt")}, [
        0,
        *np.cumsum(counts).tolist(),
    ]


def _load(path: Path) -> Any:
    if path.stem in NODE_FILES and not path.is_file():
        raise InputError(
            f"{path}: missing; PyG's partitions have no labels and masks:"
            f" torch.save(data.{NODE_FILES[path.stem]}, PATH)"
        )
    with (
        reading(path, "file of torch.save", "partition again with torch_geometric"),
        open_regular(path) as file,
    ):
        return torch.load(file, weights_only=True)


def read_part(path: Path, part: int, bounds: list[int]) -> ForeignPart:
    """Read one partition; nodes are numbered partition after partition, by PyG's ids."""
    where = f"{path}/part_{part}"
    order = np.argsort(_load(path / "node_map.pt").numpy(), kind="stable")
    first, end = bounds[part : part + 2]
    inner = order[first:end]
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    graph, feats = (_load(file) for file in files_of(path, part)[:2])
    with reading(files_of(path, part)[0], "part of PyG's"):
        ends = [graph[name].numpy() for name in ("row", "col")]
        held, x = feats["global_id"].numpy(), feats["feats"]["x"]
    src, dst = (place[check_endpoints(each, len(order), f"{where}/graph.pt")] for each in ends)
    if x is None or not np.array_equal(np.sort(held), inner):
        raise InputError(
            f"{where}/node_feats.pt: expected x of the {len(inner)} nodes that node_map.pt gives"
            " this part"
        )
    outside = (src < first) | (src >= end)
    halo = np.unique(src[outside])
    local = np.where(outside, end - first + np.searchsorted(halo, src), src - first).astype(
        np.int32
    )
    tensors = {"feat": x[torch.from_numpy(np.argsort(held))], "orig_id": torch.from_numpy(inner)}
    for name in NODE_FILES:
        values = _load(path / f"{name}.pt")
        check_length(values, len(order), f"{path}/{name}.pt")
        tensors[name] = values[torch.from_numpy(inner)]
    ids: NDArray[np.int64] = np.concatenate((np.arange(first, end), halo))
    edges: dict[str, Tensor] = {
        "src": torch.from_numpy(local),
        "dst": torch.from_numpy((dst - first).astype(np.int32)),
    }
    for name in ("edge_attr", "edge_weight"):
        if (path / f"{name}.pt").is_file():
            edges[EDGE_NAMES[name]] = _load(path / f"{name}.pt")[graph["edge_id"]]
    theirs = path / f"part_{part}" / "edge_feats.pt"
    if "edge_feat" not in edges and theirs.is_file() and theirs.stat().st_size > MAX_EMPTY_BYTES:
        log.warning(
            "%s: left out; to use it, torch.save(data.edge_attr, '%s/edge_attr.pt')", theirs, path
        )
    return ForeignPart(edges, torch.from_numpy(ids), tensors)
