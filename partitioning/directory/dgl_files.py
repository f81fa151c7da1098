"""Files of one partition in DGL's format, read where there are no npy files, written on request.

    part0/graph.dgl      in-edges of the inner nodes; inner nodes first, then halo nodes
                         ndata: _ID, inner_node, part_id, out_deg (ours)     edata: _ID, inner_edge
    part0/node_feat.dgl  data of the inner nodes, TYPE/NAME: _N/feat, _N/label, _N/orig_id ...
    part0/edge_feat.dgl  data of the inner edges, RELATION/NAME: _N:_E:_N/edge_weight ...

I inner nodes of a partition, H halo nodes, E edges.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from partitioning.array_checks import Array
from partitioning.dgl_import import import_dgl
from partitioning.directory.foreign_part import ForeignPart, require
from partitioning.errors import InputError
from partitioning.graph_data import EDGE_NAMES

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class DglPart:
    """What the three files of a partition hold, unchecked."""

    src: Tensor
    """int64 [E] local ids, in the order of the edge ids."""
    dst: Tensor
    nodes: dict[str, Tensor]
    """ndata of the graph, [I + H] by name."""
    edges: dict[str, Tensor]
    """The edata of the graph that was asked for, [E] by name."""
    node_tensors: dict[str, Tensor]
    edge_tensors: dict[str, Tensor]


def load_part(files: Sequence[Path], edge_data: str) -> DglPart:
    """Load a partition's graph, node data and edge data.

    Args:
        edge_data: the name of the edata that is kept; the rest takes a third of the edges' memory.
    """
    folder = files[0].parent
    dgl = import_dgl(f"{folder}: a part in DGL's files alone")
    try:
        graph = dgl.load_graphs(str(files[0]))[0][0]
        node_tensors, edge_tensors = (dgl.data.utils.load_tensors(str(file)) for file in files[1:])
        kept = {edge_data: graph.edata[edge_data]}
        for name in list(graph.edata):
            graph.edata.pop(name)
        src, dst = graph.edges(order="eid")
    except Exception as error:  # DGL raises errors of many types
        raise InputError(f"{folder}: DGL cannot read this part: {error}") from error
    return DglPart(src, dst, dict(graph.ndata), kept, node_tensors, edge_tensors)


def read_part(files: Sequence[Path], where: str) -> ForeignPart:
    """Read a partition of a plain graph."""
    found = load_part(files, "inner_edge")
    is_inner = found.edges["inner_edge"].bool()
    edges = {"src": found.src, "dst": found.dst}
    for name, tensor in found.edge_tensors.items():
        short = name.split("/")[-1]
        if short not in EDGE_NAMES:
            log.warning("%s: edata `%s`: left out", files[2], short)
            continue
        if len(tensor) != int(is_inner.sum()):
            raise InputError(
                f"{files[2]}: `{short}` has {len(tensor)} rows, the part {int(is_inner.sum())}"
                " inner edges"
            )
        whole = tensor.new_zeros(len(found.src), *tensor.shape[1:])
        whole[is_inner] = tensor
        edges[EDGE_NAMES[short]] = whole
    return ForeignPart(
        edges,
        require(found.nodes, ("_ID",), where).to(torch.int64),
        {name.split("/")[-1]: tensor for name, tensor in found.node_tensors.items()},
    )


def write_part(
    folder: Path,
    edges: Mapping[str, Array],
    edge_ids: range,
    nodes: Mapping[str, Array],
    inner_nodes: Mapping[str, Array],
) -> None:
    """Write the three files of a partition of a plain graph, with its self loops.

    Args:
        edges: src and dst, int32 [E] local ids; edge_weight and edge_feat, where they exist.
        edge_ids: ids of the edges in the partitioned graph.
        nodes: _ID, part_id and out_deg, [I + H].
        inner_nodes: data of the inner nodes by name, [I, ...].
    """
    dgl = import_dgl("partition.dgl_files=true")
    edge_data = {name: torch.from_numpy(array) for name, array in edges.items()}
    ends = edge_data.pop("src").long(), edge_data.pop("dst").long()
    graph = dgl.graph(ends, num_nodes=len(nodes["_ID"]))
    for name, array in nodes.items():
        graph.ndata[name] = torch.from_numpy(array)
    is_inner = torch.arange(len(nodes["_ID"])) < len(inner_nodes["orig_id"])
    graph.ndata["inner_node"] = is_inner.to(torch.uint8)
    graph.edata["_ID"] = torch.arange(edge_ids.start, edge_ids.stop)
    graph.edata["inner_edge"] = torch.ones(len(ends[0]), dtype=torch.uint8)
    dgl.save_graphs(str(folder / "graph.dgl"), [graph])
    # DGL's files have no booleans; its partition_graph writes masks as uint8, too.
    node_data = {
        f"_N/{name}": torch.from_numpy(array.astype(np.uint8) if array.dtype == np.bool_ else array)
        for name, array in inner_nodes.items()
    }
    dgl.data.utils.save_tensors(str(folder / "node_feat.dgl"), node_data)
    dgl.data.utils.save_tensors(
        str(folder / "edge_feat.dgl"),
        {f"_N:_E:_N/{name}": data for name, data in edge_data.items()},
    )
