"""DGL's files beside ours, written on request; import_dgl.py reads them.

    part0/graph.dgl      in-edges of the inner nodes; inner nodes first, then halo nodes
                         ndata: _ID, inner_node, part_id, out_deg (ours)     edata: _ID, inner_edge
    part0/node_feat.dgl  data of the inner nodes, TYPE/NAME: _N/feat, _N/label, _N/orig_id ...
    part0/edge_feat.dgl  data of the inner edges, RELATION/NAME: _N:_E:_N/edge_weight ...

Like our partitions, they have no self loops. I inner nodes of a partition, H halo nodes, E edges.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from partitioning.dgl_import import import_dgl
from partitioning.directory.dgl_config import FILES, make_config
from partitioning.directory.meta import Meta
from partitioning.directory.npy_files import new_ids, read_arrays
from partitioning.directory.partition import Partition
from partitioning.directory.write_directory import write_meta
from partitioning.files.file_io import file_checksum, write_durably
from partitioning.graph.graph_data import EDGE_DATA, MASKS, PLAIN_TYPE


def has_dgl_files(meta: Meta) -> bool:
    """Return whether a directory has them all: an interruption may leave some without checksums."""
    return f"part0/{FILES['part_graph']}" in meta.checksums


def add_dgl_files(path: Path, meta: Meta) -> Meta:
    """Write DGL's files into an existing directory of a plain graph, and its new description last.

    Returns:
        The new description.

    Raises:
        InputError: DGL is not installed.
    """
    written = write_dgl_files(path, meta)
    write_meta(path, written)
    return written


def write_dgl_files(path: Path, meta: Meta) -> Meta:
    """Write DGL's files of a plain graph and their config beside ours, described by `meta`.

    Returns:
        The description with their checksums, which is yet to be written.

    Raises:
        InputError: DGL is not installed.
    """
    num_edges: list[int] = []
    for part in range(len(meta.parts)):
        partition = read_arrays(path, meta, part)
        _write_part(path / f"part{part}", partition, meta, sum(num_edges))
        num_edges.append(len(partition.edges.src))
    num_nodes = [counts.nodes for counts in meta.parts]
    config = make_config(meta.name, meta.request["partition_method"], num_nodes, num_edges)
    file = path / f"{meta.name}.json"
    write_durably(file, json.dumps(config, indent=4) + "\n")
    files = [file, *path.glob("part*/*.dgl")]
    checksums = {
        dgl_file.relative_to(path).as_posix(): file_checksum(dgl_file) for dgl_file in files
    }
    return replace(meta, checksums=meta.checksums | checksums)


def _write_part(folder: Path, part: Partition, meta: Meta, first_edge: int) -> None:
    """Write the three files of a partition, whose edges are numbered from `first_edge` on.

    InputError where DGL is not installed.
    """
    dgl = import_dgl("partition.dgl_files=true")
    nodes, edges = part.target_nodes, part.edges
    ids = torch.from_numpy(new_ids(nodes, meta.bounds[PLAIN_TYPE], part.rank))
    out_degree: Any = nodes.out_degree
    graph = dgl.graph((edges.src.long(), edges.dst.long()), num_nodes=len(ids))
    is_inner = torch.arange(len(ids)) < part.num_inner
    owner = torch.cat((torch.full((part.num_inner,), part.rank), nodes.halo_owner))
    of_nodes = {"_ID": ids, "inner_node": is_inner.to(torch.uint8), "part_id": owner}
    graph.ndata.update(of_nodes | {"out_deg": out_degree})
    graph.edata["_ID"] = first_edge + torch.arange(len(edges.src))
    graph.edata["inner_edge"] = torch.ones(len(edges.src), dtype=torch.uint8)
    dgl.save_graphs(str(folder / "graph.dgl"), [graph])
    of_inner = {"feat": nodes.features, "label": part.labels, "orig_id": nodes.node_ids}
    of_inner |= {mask: getattr(part, mask) for mask in MASKS}
    of_inner["in_deg"] = torch.bincount(edges.dst, minlength=part.num_inner)
    of_inner["out_deg"] = out_degree[: part.num_inner]
    # DGL's files have no booleans; its partition_graph writes masks as uint8, too.
    node_data = {
        f"_N/{name}": data.to(torch.uint8) if data.dtype == torch.bool else data
        for name, data in of_inner.items()
    }
    edge_data = {
        f"_N:_E:_N/{name}": data for name in EDGE_DATA if (data := getattr(edges, name)) is not None
    }
    for name, tensors in (("node_feat", node_data), ("edge_feat", edge_data)):
        dgl.data.utils.save_tensors(str(folder / f"{name}.dgl"), tensors)
