"""The in-edges of some nodes: the bipartite graph that one layer is computed on.

N_dst destinations (the nodes whose output is computed), N_src sources, E edges. As in DGL's blocks the destinations
are the first sources, so that a layer finds a node's own row. No self loops: a layer adds what it needs.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from partitioning.dgl_import import dgl


@dataclass(frozen=True, eq=False)
class Block:
    """In-edges of N_dst nodes, with the degrees that these and their sources have in the whole graph."""

    nodes: Tensor
    """int64 [N_src] local ids (inner nodes, then halo nodes) of the sources; the first N_dst are the destinations."""
    num_dst: int
    src: Tensor
    """int64 [E] in [0, N_src)."""
    dst: Tensor
    """int64 [E] in [0, N_dst)."""
    out_degree: Tensor
    """float [N_src] in the whole graph, self loops left out."""
    in_degree: Tensor
    """float [N_dst], likewise."""

    @cached_property
    def graph(self) -> Any:
        """The same as a DGL graph, for dgl.ops."""
        ends = (self.src, self.dst)
        return dgl.create_block(ends, num_src_nodes=len(self.nodes), num_dst_nodes=self.num_dst)

    def to(self, device: torch.device) -> "Block":
        tensors = (self.src, self.dst, self.out_degree, self.in_degree)
        src, dst, out_degree, in_degree = (tensor.to(device) for tensor in tensors)
        return Block(self.nodes, self.num_dst, src, dst, out_degree, in_degree)


@dataclass(frozen=True, eq=False)
class InEdges:
    """All in-edges of a partition, from which blocks are cut. I inner nodes, H halo nodes."""

    src: Tensor
    """int64 [E] local ids, sorted by destination."""
    row_ptr: Tensor
    """int64 [I + 1] the in-edges of inner node v are row_ptr[v] ... row_ptr[v + 1] - 1."""
    out_degree: Tensor
    """float [I + H] in the whole graph."""
    in_degree: Tensor
    """float [I] in the whole graph."""

    @classmethod
    def build(cls, src: Tensor, dst: Tensor, in_degree: Tensor, out_degree: Tensor, dtype: torch.dtype) -> "InEdges":
        order = torch.argsort(dst, stable=True)
        counts = torch.bincount(dst, minlength=len(in_degree))
        row_ptr = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
        return cls(src[order], row_ptr, out_degree.to(dtype), in_degree.to(dtype))

    def block(self, nodes: Tensor) -> Block:
        """Cut out the in-edges of inner nodes, int64 [N_dst], ascending and distinct."""
        degree = self.row_ptr[nodes + 1] - self.row_ptr[nodes]
        dst = torch.repeat_interleave(torch.arange(len(nodes)), degree)
        first_of_node = degree.cumsum(0) - degree
        edges = torch.arange(len(dst)) - first_of_node[dst] + self.row_ptr[nodes][dst]
        sources = self.src[edges]
        place = torch.full((len(self.out_degree),), -1, dtype=torch.int64)
        place[sources] = 0
        place[nodes] = -1
        others = (place == 0).nonzero()[:, 0]
        block_nodes = torch.cat((nodes, others))
        place[block_nodes] = torch.arange(len(block_nodes))
        return Block(
            nodes=block_nodes,
            num_dst=len(nodes),
            src=place[sources],
            dst=dst,
            out_degree=self.out_degree[block_nodes],
            in_degree=self.in_degree[nodes],
        )
