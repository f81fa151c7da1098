"""The in-edges of some nodes: the bipartite graph that one layer is computed on.

N_dst destinations (the nodes whose output is computed), N_src sources, E edges. As in DGL's blocks the destinations
are the first sources, so that a layer finds a node's own row. No self loops: a layer adds what it needs.

A neighbour that another part owns is there as its row, as its row after the layer's weights ("late"), or as a part of
a sum of several. Such a partial sum is a source of its own, with one edge and the out-degree 0: every aggregator that
adds up takes it as it is. I inner nodes, H halo nodes of the partition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from partitioning.dgl_import import dgl

EDGES_AT_ONCE = 1 << 21
"""In-edges that are looked at together."""


@dataclass(frozen=True, eq=False)
class Arrival:
    """Vectors that come from one peer: rows of halo nodes, then sums for inner nodes."""

    halo: Tensor
    """int64 [rows] the halo nodes."""
    sum_dst: Tensor
    """int64 [sums] the inner nodes."""
    read: Callable[[Tensor], None]
    """Writes them into a tensor [rows + sums, F]: so they are not there twice."""
    projected: bool = False
    """Whether they come after the layer's weights; then D wide."""


@dataclass(frozen=True, eq=False)
class Vectors:
    """What a worker holds of other parts' nodes: [n, F] rows and sums, in the order of their arrival."""

    values: Tensor
    halo: Tensor
    """int64 [H] the place of each halo node's row in values, -1 where there is none."""
    sums: Tensor
    """int64 [S] the places of the sums."""
    sum_dst: Tensor
    """int64 [S] the inner node of each."""

    @classmethod
    def none(cls, num_halo: int, width: int, dtype: torch.dtype) -> Self:
        nothing = torch.zeros(0, dtype=torch.int64)
        return cls(torch.zeros(0, width, dtype=dtype), torch.full((num_halo,), -1), nothing, nothing)

    def extended(self, arrivals: Sequence[Arrival]) -> "Vectors":
        if not arrivals:
            return self
        counts = [len(arrival.halo) + len(arrival.sum_dst) for arrival in arrivals]
        halo, sums, end = self.halo.clone(), [self.sums], len(self.values)
        values = self.values.new_empty(end + sum(counts), self.values.shape[1])
        values[:end] = self.values
        for arrival, count in zip(arrivals, counts, strict=True):
            first_sum = end + len(arrival.halo)
            halo[arrival.halo] = torch.arange(end, first_sum)
            arrival.read(values[end : end + count])
            end += count
            sums.append(torch.arange(first_sum, end))
        sum_dst = torch.cat([self.sum_dst, *(arrival.sum_dst for arrival in arrivals)])
        return Vectors(values, halo, torch.cat(sums), sum_dst)


@dataclass(frozen=True, eq=False)
class Sources:
    """All vectors of other parts' nodes: those of the layer's input, [n, F], and late ones, [m, D]."""

    unprojected: Vectors
    projected: Vectors

    def extended(self, arrivals: Sequence[Arrival]) -> "Sources":
        unprojected, projected = (
            [arrival for arrival in arrivals if arrival.projected is which] for which in (False, True)
        )
        return Sources(self.unprojected.extended(unprojected), self.projected.extended(projected))


@dataclass(frozen=True, eq=False)
class Block:
    """In-edges of N_dst nodes, with the degrees that these and their sources have in the whole graph."""

    nodes: Tensor
    """int64 [N_src] sources: inner nodes, then I + place of an early vector, then I + n + place of a late one. The
    first N_dst are the destinations; the others ascend."""
    num_dst: int
    num_unprojected: int
    """Sources that are no late vectors; those come last."""
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
        return Block(self.nodes, self.num_dst, self.num_unprojected, src, dst, out_degree, in_degree)


@dataclass(frozen=True, eq=False)
class InEdges:
    """All in-edges of a partition, from which blocks are cut."""

    src: Tensor
    """int32 [E] local ids: inner nodes, then halo nodes; sorted by destination."""
    row_ptr: Tensor
    """int64 [I + 1] the in-edges of inner node v are row_ptr[v] ... row_ptr[v + 1] - 1."""
    out_degree: Tensor
    """float [I + H] in the whole graph."""
    in_degree: Tensor
    """float [I] in the whole graph."""

    @classmethod
    def build(cls, src: Tensor, dst: Tensor, in_degree: Tensor, out_degree: Tensor, dtype: torch.dtype) -> Self:
        if not bool((dst[1:] >= dst[:-1]).all()):  # else they come from the directory sorted, and no copy is made
            src = src[torch.argsort(dst, stable=True)]
        counts = torch.bincount(dst, minlength=len(in_degree))
        row_ptr = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
        return cls(src.int(), row_ptr, out_degree.to(dtype), in_degree.to(dtype))

    def block(self, nodes: Tensor, sources: Sources) -> Block:
        """Cut out the in-edges of inner nodes, int64 [N_dst], ascending and distinct.

        An edge of a halo node whose row is not there is left out: a sum serves it.
        """
        return self.numbered(sources).block(nodes)

    def numbered(self, sources: Sources) -> "NumberedEdges":
        """What several blocks with the same sources are cut from."""
        num_inner, num_unprojected = len(self.in_degree), len(sources.unprojected.values)
        unprojected, projected = sources.unprojected.halo, sources.projected.halo
        halo = torch.where(projected >= 0, projected + num_unprojected, unprojected)
        number = torch.cat((torch.arange(num_inner), torch.where(halo >= 0, halo + num_inner, -1)))
        out_degree = self.out_degree.new_zeros(num_inner + num_unprojected + len(sources.projected.values))
        out_degree[number[number >= 0]] = self.out_degree[number >= 0]
        return NumberedEdges(self, sources, number, out_degree)

    def in_edges(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The in-edges of nodes, int64 [n]: sources (local ids), int32 [E'], and row pointers, int64 [n + 1]."""
        begin = self.row_ptr[nodes]
        degree = self.row_ptr[nodes + 1] - begin
        row_ptr = torch.cat((torch.zeros(1, dtype=torch.int64), degree.cumsum(0)))
        edges = torch.arange(int(row_ptr[-1])).add_(torch.repeat_interleave(begin - row_ptr[:-1], degree))
        return self.src.index_select(0, edges), row_ptr

    def chunks(self, nodes: Tensor, edges: int = EDGES_AT_ONCE) -> list[Tensor]:
        """The nodes, int64 [n], in pieces whose in-edges are about `edges` at most."""
        degree = self.row_ptr[nodes + 1] - self.row_ptr[nodes]
        piece = (degree.cumsum(0) - degree) // edges
        return list(torch.split(nodes, torch.unique_consecutive(piece, return_counts=True)[1].tolist()))


@dataclass(frozen=True, eq=False)
class NumberedEdges:
    """All in-edges of a partition, with a number for each source that is there."""

    edges: InEdges
    sources: Sources
    number: Tensor
    """int64 [I + H] the number of each local id, -1 for none; see Block.nodes."""
    out_degree: Tensor
    """float, of each number."""

    def block(self, nodes: Tensor) -> Block:
        """As InEdges.block."""
        src, row_ptr = self.edges.in_edges(nodes)
        dst = torch.repeat_interleave(torch.arange(len(nodes)), row_ptr.diff())
        src = self.number.index_select(0, src)
        src, dst = src[src >= 0], dst[src >= 0]
        num_inner, unprojected, projected = len(self.edges.in_degree), self.sources.unprojected, self.sources.projected
        for vectors, first in ((unprojected, num_inner), (projected, num_inner + len(unprojected.values))):
            if len(vectors.sums):
                place = torch.full((num_inner,), -1)
                place[nodes] = torch.arange(len(nodes))
                target = place[vectors.sum_dst]
                src = torch.cat((src, vectors.sums[target >= 0] + first))
                dst = torch.cat((dst, target[target >= 0]))
        return self._compact(nodes, src, dst, num_inner + len(unprojected.values))

    def _compact(self, nodes: Tensor, src: Tensor, dst: Tensor, first_late: int) -> Block:
        place = torch.full((len(self.out_degree),), -1)
        place[src] = 0
        place[nodes] = -1
        others = (place == 0).nonzero()[:, 0]
        block_nodes = torch.cat((nodes, others))
        place[block_nodes] = torch.arange(len(block_nodes))
        return Block(
            nodes=block_nodes,
            num_dst=len(nodes),
            num_unprojected=len(nodes) + int((others < first_late).sum()),
            src=place[src],
            dst=dst,
            out_degree=self.out_degree[block_nodes],
            in_degree=self.edges.in_degree[nodes],
        )


def rows_of(block: Block, own: Tensor, sources: Sources) -> tuple[Tensor, Tensor]:
    """Of a block's sources the rows [num_early, F], and the late vectors [N_src - num_early, D]; own are [I, F]."""
    nodes, projected = block.nodes[: block.num_unprojected], block.nodes[block.num_unprojected :]
    num_own = int((nodes < len(own)).sum())  # they come first
    rows = own.new_empty(len(nodes), own.shape[1])
    torch.index_select(own, 0, nodes[:num_own], out=rows[:num_own])
    torch.index_select(sources.unprojected.values, 0, nodes[num_own:] - len(own), out=rows[num_own:])
    return rows, sources.projected.values[projected - len(own) - len(sources.unprojected.values)]
