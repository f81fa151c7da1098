"""The files of DGL's own partition directories: read where there is nothing else, written for DGL's users.

    NAME.json            the partition config: node_map, edge_map, files of each part
    part0/graph.dgl      in-edges of the part's inner nodes; inner nodes first, then halo nodes
                         ndata: _ID, inner_node, part_id, out_deg (ours)     edata: _ID, inner_edge
    part0/node_feat.dgl  of inner nodes: _N/feat, _N/label, _N/{train,val,test}_mask, _N/orig_id, _N/in_deg, _N/out_deg
    part0/edge_feat.dgl  of inner edges: _N:_E:_N/edge_weight, _N:_E:_N/edge_feat, where there are any (of DGL's own
                         directories, edata by any name of EDGE_NAMES)

I inner nodes of a part, H its halo nodes, E edges, P parts.
"""

import logging
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partitioning.array_checks import Array
from partitioning.dgl_import import import_dgl
from partitioning.errors import InputError
from partitioning.file_io import read_json
from partitioning.graph_data import EDGE_NAMES

log = logging.getLogger(__name__)


def config_file(path: Path) -> Path | None:
    """DGL's partition config in a directory: the one named after it, else the only one there."""
    if not path.is_dir():
        return None
    named = path / f"{path.name}.json"
    if named.is_file():
        return named
    others = (file for file in sorted(path.glob("*.json")) if file.name != "meta.json")
    found = [file for file in others if "num_parts" in read_json(file)]
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise InputError(
            f"{path}: holds several partition configs ({names}); keep each in a directory of its own"
        )
    return found[0] if found else None


def read_config(path: Path) -> dict[str, Any]:
    """A partition config, of a homogeneous graph with contiguous ids; `node_bounds`, [P + 1], is added."""
    config = read_json(path)
    for key in ("num_parts", "num_nodes", "node_map"):
        if key not in config:
            raise InputError(f"{path}: has no '{key}', so it is not a partition config of DGL's")
    for key in ("num_parts", "num_nodes"):
        if (
            not isinstance(config[key], int)
            or isinstance(config[key], bool)
            or not 0 <= config[key] < 2**63
        ):
            raise InputError(f"{path}: {key} is {config[key]!r}, needs an integer from 0 on")
    node_map = config["node_map"]
    if isinstance(node_map, dict) and len(node_map) != 1:
        raise InputError(
            f"{path}: has {len(node_map)} node types; only graphs with one are supported"
        )
    ranges = next(iter(node_map.values())) if isinstance(node_map, dict) else node_map
    try:
        bounds = np.array(ranges, dtype=np.int64).reshape(config["num_parts"], 2)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{path}: node_map has no range of ids for each part: {error}") from error
    ascending = (bounds[:, 0] <= bounds[:, 1]).all() and (bounds[1:, 0] == bounds[:-1, 1]).all()
    if (
        not len(bounds)
        or not ascending
        or bounds[0, 0] != 0
        or bounds[-1, 1] != config["num_nodes"]
    ):
        raise InputError(
            f"{path}: node_map {bounds.tolist()} does not cover ids 0 ... {config['num_nodes'] - 1}"
        )
    for part in range(config["num_parts"]):
        if f"part-{part}" not in config:
            raise InputError(f"{path}: does not name the files of part {part}")
    config["node_bounds"] = [0, *bounds[:, 1].tolist()]
    return config


def files_of(directory: Path, config: Mapping[str, Any], part: int) -> list[Path]:
    """A part's graph and the tensors of its nodes and edges; all have to lie in the partition directory."""
    return [
        _inside(directory, config[f"part-{part}"], key)
        for key in ("part_graph", "node_feats", "edge_feats")
    ]


def _inside(directory: Path, files: Any, key: str) -> Path:
    if not isinstance(files, dict) or not isinstance(files.get(key), str):
        raise InputError(f"{directory}: the partition config names no file for '{key}'")
    path = directory / str(files[key])
    if not Path(os.path.realpath(path)).is_relative_to(
        os.path.realpath(directory)
    ):  # resolve() raises on a loop
        raise InputError(
            f"{directory}: the partition config names {files[key]}, outside of the directory"
        )
    if not path.is_file():
        raise InputError(f"{path}: missing; copy the whole part or partition again")
    return path


def read_part(
    graph_file: Path, node_file: Path, edge_file: Path
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Of edges int [E] src and dst, local ids, and EDGE_DATA; the graph's node data; the tensors of the inner nodes."""
    dgl = import_dgl(f"{graph_file.parent}: a part in DGL's files alone")
    try:
        structure = dgl.load_graphs(str(graph_file))[0][0]
        tensors = dgl.data.utils.load_tensors(str(node_file))
        edge_data = dgl.data.utils.load_tensors(str(edge_file))
    except Exception as error:  # DGL raises its own, of many kinds
        raise InputError(f"{graph_file.parent}: DGL cannot read this part: {error}") from error
    inner = structure.edata["inner_edge"].bool()
    for name in list(
        structure.edata
    ):  # numbers that nobody asks for, as many as a third of the edges
        structure.edata.pop(name)
    src, dst = structure.edges(order="eid")
    of_edges = {"src": src, "dst": dst}
    for name, tensor in edge_data.items():
        if (short := name.split("/")[-1]) not in EDGE_NAMES:
            log.warning("%s: edata `%s`: left out", edge_file, short)
            continue
        if len(tensor) != int(inner.sum()):
            raise InputError(
                f"{edge_file}: `{short}` has {len(tensor)} rows, the part {int(inner.sum())} inner edges"
            )
        of_edges[EDGE_NAMES[short]] = whole = tensor.new_zeros(len(src), *tensor.shape[1:])
        whole[inner] = tensor
    return (
        of_edges,
        dict(structure.ndata),
        {name.split("/")[-1]: tensor for name, tensor in tensors.items()},
    )


def write_part(
    folder: Path,
    of_edges: Mapping[str, Array],
    edge_ids: range,
    of_nodes: Mapping[str, Array],
    of_inner: Mapping[str, Array],
) -> None:
    """Write the three files of a part, self loops among the edges.

    Args:
        of_edges: [E] src and dst, int32 local ids, and EDGE_DATA, where there is any.
        edge_ids: those of the edges in the partitioned graph.
        of_nodes: [I + H] _ID, part_id and out_deg.
        of_inner: [I, ...] by name.
    """
    dgl = import_dgl("partition.dgl_files=true")
    edges = {name: torch.from_numpy(array) for name, array in of_edges.items()}
    ends = edges.pop("src").long(), edges.pop("dst").long()
    structure = dgl.graph(ends, num_nodes=len(of_nodes["_ID"]))
    for name, array in of_nodes.items():
        structure.ndata[name] = torch.from_numpy(array)
    structure.ndata["inner_node"] = (
        torch.arange(len(of_nodes["_ID"])) < len(of_inner["orig_id"])
    ).to(torch.uint8)
    structure.edata["_ID"] = torch.arange(edge_ids.start, edge_ids.stop)
    structure.edata["inner_edge"] = torch.ones(len(ends[0]), dtype=torch.uint8)
    dgl.save_graphs(str(folder / "graph.dgl"), [structure])
    # DGL's files know no booleans; its own partition_graph writes masks as uint8, too.
    whole = {
        name: array.astype(np.uint8) if array.dtype == np.bool_ else array
        for name, array in of_inner.items()
    }
    feats = {f"_N/{name}": torch.from_numpy(array) for name, array in whole.items()}
    dgl.data.utils.save_tensors(str(folder / "node_feat.dgl"), feats)
    dgl.data.utils.save_tensors(
        str(folder / "edge_feat.dgl"), {f"_N:_E:_N/{name}": data for name, data in edges.items()}
    )


def make_config(name: str, method: str, node_bounds: Array, edge_bounds: Array) -> dict[str, Any]:
    """The partition config; bounds are int64 [P + 1]."""

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
