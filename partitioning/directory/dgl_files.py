"""Files of one partition in DGL's format, written on request; dgl_part.py reads them.

    part0/graph.dgl      in-edges of the inner nodes; inner nodes first, then halo nodes
                         ndata: _ID, inner_node, part_id, out_deg (ours)     edata: _ID, inner_edge
    part0/node_feat.dgl  data of the inner nodes, TYPE/NAME: _N/feat, _N/label, _N/orig_id ...
    part0/edge_feat.dgl  data of the inner edges, RELATION/NAME: _N:_E:_N/edge_weight ...

I inner nodes of a partition, H halo nodes, E edges.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from partitioning.array_checks import Array
from partitioning.dgl_import import import_dgl


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
