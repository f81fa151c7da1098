"""In-edges of some nodes: the bipartite graph that one layer is computed on.

N_dst destinations (nodes whose output is computed), N_src sources, E edges. As in DGL's blocks,
the destinations are the first sources. There are no self loops: a convolution adds its own.

A neighbour in another partition is present as its row; as its projected row, already multiplied
with the layer's weights; or within a partial sum of several neighbours. A partial sum is a
source with one edge and out-degree 0, which a linear aggregator treats like any other row. I
inner nodes, H halo nodes of the partition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from retexo.arrays import repeat_interleave, row_pointers

MAX_CHUNK_EDGES = 1 << 21
"""Maximum number of in-edges in a chunk of nodes."""


@dataclass(frozen=True, eq=False)
class ReceivedMessage:
    """A message from one peer: rows of R halo nodes, then S partial sums for inner nodes."""

    halo: Tensor
    """int64 [R] the halo node of each row, in [0, H)."""
    sum_dst: Tensor
    """int64 [S] the inner node of each partial sum."""
    read: Callable[[Tensor], None]
    """Decodes the vectors into a tensor [R + S, F]."""
    projected: bool = False
    """Whether the vectors were multiplied by the layer's weights; then they are D wide."""


@dataclass(frozen=True, eq=False)
class HaloRows:
    """Received rows of halo nodes and partial sums, in one matrix in order of arrival."""

    values: Tensor
    """[n, F], on the device if sums are added there; the other fields are on the host."""
    halo: Tensor
    """int64 [H] index in `values` of each halo node's row, -1 if it was not received."""
    sums: Tensor
    """int64 [S] index in `values` of each partial sum."""
    sum_dst: Tensor
    """int64 [S] the inner node of each partial sum."""

    @classmethod
    def empty(
        cls, num_halo: int, width: int, dtype: torch.dtype, device: torch.device | None = None
    ) -> Self:
        """Return an empty HaloRows, with its values on a device; None: the CPU."""
        values = torch.zeros(0, width, dtype=dtype, device=device)
        return cls.of_nodes(values, torch.zeros(0, dtype=torch.int64), num_halo)

    @classmethod
    def of_nodes(cls, values: Tensor, nodes: Tensor, num_halo: int) -> Self:
        """Return the rows of some halo nodes, int64 [n], in their order; values: [n, F]."""
        halo = torch.full((num_halo,), -1).index_copy_(0, nodes, torch.arange(len(nodes)))
        nothing = torch.zeros(0, dtype=torch.int64)
        return cls(values, halo, nothing, nothing)

    def append(self, messages: Sequence[ReceivedMessage]) -> "HaloRows":
        """Return the rows with the vectors of some messages, which are decoded now, appended.

        This object stays as it is. Of a halo node that arrives again, the later row counts.
        """
        if not messages:
            return self
        counts = [len(message.halo) + len(message.sum_dst) for message in messages]
        halo, sums, end = self.halo, [self.sums], len(self.values)
        if any(len(message.halo) for message in messages):
            halo = halo.clone()
        values = self.values.new_empty(end + sum(counts), self.values.shape[1])
        values[:end] = self.values
        for message, count in zip(messages, counts, strict=True):
            first_sum = end + len(message.halo)
            halo[message.halo] = torch.arange(end, first_sum)
            message.read(values[end : end + count])
            end += count
            sums.append(torch.arange(first_sum, end))
        sum_dst = torch.cat([self.sum_dst, *(message.sum_dst for message in messages)])
        return HaloRows(values, halo, torch.cat(sums), sum_dst)

    def drop_sums(self) -> "HaloRows":
        """Return the rows without partial sums."""
        if not len(self.sums):
            return self
        nodes = (self.halo >= 0).nonzero()[:, 0]
        kept = self.values[self.halo[nodes].to(self.values.device)]
        return HaloRows.of_nodes(kept, nodes, len(self.halo))


@dataclass(frozen=True, eq=False)
class Sources:
    """All vectors received for one layer's input."""

    unprojected: HaloRows
    """Values [n, F]: input rows and sums of them."""
    projected: HaloRows
    """Values [m, D]: rows and sums after the layer's weights."""

    @classmethod
    def of_halo(cls, rows: Tensor) -> Self:
        """Return the rows of all halo nodes, [H, F], as if they had been received."""
        count = len(rows)
        of_all = HaloRows.of_nodes(rows, torch.arange(count), count)
        return cls(of_all, HaloRows.empty(count, rows.shape[1], rows.dtype))

    @classmethod
    def none(cls, num_halo: int, like: Tensor) -> Self:
        """Return no vectors, for rows that are as wide as `like`, [n, F]."""
        nothing = HaloRows.empty(num_halo, like.shape[1], like.dtype)
        return cls(nothing, nothing)

    def append(self, messages: Sequence[ReceivedMessage]) -> "Sources":
        """Return the vectors with those of some messages appended."""
        projected = [message for message in messages if message.projected]
        unprojected = [message for message in messages if not message.projected]
        return Sources(self.unprojected.append(unprojected), self.projected.append(projected))

    def drop_sums(self) -> "Sources":
        """Return the rows without partial sums."""
        return Sources(self.unprojected.drop_sums(), self.projected.drop_sums())


@dataclass(frozen=True, eq=False)
class EdgesByNode:
    """Edges of a block, grouped by one of their ends (CSR)."""

    row_ptr: Tensor
    """[n + 1] node i has edges row_ptr[i] to row_ptr[i + 1] - 1. int32 if possible, as `column`."""
    column: Tensor
    """[E] the other end of each edge."""
    order: Tensor | None
    """int64 [E] index of each edge in the block; None if the block is sorted this way."""

    @classmethod
    def build(cls, nodes: Tensor, others: Tensor, num_nodes: int) -> Self:
        """Group edges by `nodes`, int64 [E]; `others`, int64 [E], are the other ends.

        Edges of a node keep their order. `order` is None if they are grouped already.
        """
        order = None
        if not bool((nodes[1:] >= nodes[:-1]).all()):
            one_row = (np.arange(len(nodes)), nodes.cpu().numpy(), np.array([0, len(nodes)]))
            # SciPy's transposition is a stable sort in linear time.
            by_node = sp.csr_array(one_row, shape=(1, num_nodes)).tocsc()
            order = torch.from_numpy(by_node.data).to(nodes.device)
            others = others[order]
        row_ptr = nn.functional.pad(torch.bincount(nodes, minlength=num_nodes).cumsum(0), (1, 0))
        # indices are below the number of edges
        dtype = torch.int32 if len(nodes) < 1 << 31 else torch.int64
        return cls(row_ptr.to(dtype), others.to(dtype), order)

    def reorder(self, edge_data: Tensor) -> Tensor:
        """Bring edge data [E, ...] from the block's order into this order."""
        return edge_data if self.order is None else edge_data[self.order]


@dataclass(frozen=True, eq=False)
class Block:
    """In-edges of N_dst nodes, with the global degrees of destinations and sources."""

    nodes: Tensor
    """int64 [N_src] source ids: v for inner node v, I + i for sources.unprojected.values[i], I + n
    + i for sources.projected.values[i]. The first N_dst are the destinations; the others ascend."""
    num_dst: int
    """N_dst"""
    num_unprojected: int
    """Number of sources before the projected vectors, which come last."""
    src: Tensor
    """int64 [E] in [0, N_src)."""
    dst: Tensor
    """int64 [E] in [0, N_dst)."""
    out_degree: Tensor
    """float [N_src] in the whole graph, without self loops."""
    in_degree: Tensor
    """float [N_dst] in the whole graph, without self loops."""
    weight: Tensor | None = None
    """float [E], 1 for partial sums; None for ones."""
    edge_feat: Tensor | None = None
    """float [E, K], or None."""
    scale: Tensor | None = None
    """float [E] factors of the messages, after which no message is left of an edge with 0. Sums are
    then scattered, which torch.export can trace and an explainer can differentiate."""

    @cached_property
    def in_edges(self) -> "EdgesByNode":
        """Return the sources of each destination."""
        return EdgesByNode.build(self.dst, self.src, self.num_dst)

    @cached_property
    def out_edges(self) -> "EdgesByNode":
        """Return the destinations of each source."""
        return EdgesByNode.build(self.src, self.dst, len(self.nodes))

    def with_self_loops(self) -> "Block":
        """Add a self loop to each destination, after its other in-edges; sort by destination.

        Its edge features are the mean of the node's in-edges. Edge weights are dropped. With
        `scale` nothing is sorted, and edges whose factor is 0 are left out of the mean.
        """
        own, feat = torch.arange(self.num_dst, device=self.dst.device), self.edge_feat
        src, dst = torch.cat((self.src, own)), torch.cat((self.dst, own))
        if feat is not None:
            counted = feat.new_ones(feat.shape[0])
            if self.scale is not None:
                counted = (self.scale != 0).to(feat.dtype)
            total = feat.new_zeros(self.num_dst, feat.shape[1])
            total = total.index_add(0, self.dst, feat * counted[:, None])
            count = counted.new_zeros(self.num_dst).index_add(0, self.dst, counted)
            feat = torch.cat((feat, total / count.clamp(min=1)[:, None]))
        looped = replace(self, src=src, dst=dst, weight=None, edge_feat=feat)
        if self.scale is not None:
            scale = torch.cat((self.scale, self.scale.new_ones(self.num_dst)))
            return replace(looped, scale=scale)
        edges = EdgesByNode.build(dst, src, self.num_dst)
        feat = None if feat is None else edges.reorder(feat)
        return replace(looped, src=edges.column.long(), dst=edges.reorder(dst), edge_feat=feat)

    def to(self, device: torch.device) -> "Block":
        """Move all tensors but `nodes` to a device; `scale` is not kept."""
        tensors = (self.src, self.dst, self.out_degree, self.in_degree, self.weight, self.edge_feat)
        moved = (None if tensor is None else tensor.to(device) for tensor in tensors)
        return Block(self.nodes, self.num_dst, self.num_unprojected, *moved)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class InEdges:
    """All in-edges of a partition, from which blocks are cut."""

    src: Tensor
    """int32 [E] local ids (inner nodes, then halo nodes), sorted by destination."""
    row_ptr: Tensor
    """int64 [I + 1] inner node v has the in-edges row_ptr[v] to row_ptr[v + 1] - 1."""
    out_degree: Tensor
    """float [I + H] in the whole graph."""
    in_degree: Tensor
    """float [I] in the whole graph."""
    weight: Tensor | None = None
    """float [E]; None for ones."""
    edge_feat: Tensor | None = None
    """float [E, K], or None."""

    @classmethod
    def build(
        cls,
        src: Tensor,
        dst: Tensor,
        in_degree: Tensor,
        out_degree: Tensor,
        dtype: torch.dtype,
        *,
        weight: Tensor | None = None,
        edge_feat: Tensor | None = None,
    ) -> Self:
        """Sort edges by destination; those of one destination keep their order.

        Args:
            src: int [E] local ids (inner nodes, then halo nodes).
            dst: int [E] inner nodes.
            in_degree: [I] in the whole graph.
            out_degree: [I + H] in the whole graph.
            dtype: of degrees, weights and features.
            weight: [E]; None for ones.
            edge_feat: [E, K], or None.
        """
        weight, edge_feat = (
            None if data is None else data.to(dtype) for data in (weight, edge_feat)
        )
        row_ptr = row_pointers(dst, len(in_degree))
        if row_ptr is None:  # edges of a partition directory are sorted, which avoids a copy
            order = torch.argsort(dst, stable=True)
            src, dst = src[order], dst[order]
            weight, edge_feat = (
                None if data is None else data[order] for data in (weight, edge_feat)
            )
            row_ptr = torch.searchsorted(dst, torch.arange(len(in_degree) + 1, dtype=dst.dtype))
        return cls(src.int(), row_ptr, out_degree.to(dtype), in_degree.to(dtype), weight, edge_feat)

    def in_edges(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the in-edges of nodes, int64 [n].

        Returns:
            int64 [E'] indices of the edges, node by node, and int64 [n + 1] row pointers.
        """
        begin = self.row_ptr[nodes]
        degree = self.row_ptr[nodes + 1] - begin
        row_ptr = torch.cat((torch.zeros(1, dtype=torch.int64), degree.cumsum(0)))
        return (
            torch.arange(int(row_ptr[-1])).add_(repeat_interleave(begin - row_ptr[:-1], degree)),
            row_ptr,
        )

    def chunks(self, nodes: Tensor, edges: int = MAX_CHUNK_EDGES) -> list[Tensor]:
        """Split nodes, int64 [n], in order into chunks of about `edges` in-edges.

        The in-edges of a chunk's last node may exceed that number.
        """
        degree = self.row_ptr[nodes + 1] - self.row_ptr[nodes]
        piece = (degree.cumsum(0) - degree) // edges
        return list(
            torch.split(nodes, torch.unique_consecutive(piece, return_counts=True)[1].tolist())
        )


@dataclass(frozen=True, eq=False)
class NumberedEdges:
    """All in-edges of a partition, with the number of each source in Block.nodes."""

    edges: InEdges
    sources: Sources

    @cached_property
    def number(self) -> Tensor:
        """int64 [I + H] by local id, -1 if the row was not received."""
        num_inner, num_unprojected = len(self.edges.in_degree), len(self.sources.unprojected.values)
        unprojected, projected = self.sources.unprojected.halo, self.sources.projected.halo
        halo = torch.where(projected >= 0, projected + num_unprojected, unprojected)
        return torch.cat((torch.arange(num_inner), torch.where(halo >= 0, halo + num_inner, -1)))

    @cached_property
    def out_degree(self) -> Tensor:
        """float [I + n + m] by number."""
        received = len(self.sources.unprojected.values) + len(self.sources.projected.values)
        degree, is_known = self.edges.out_degree, self.number >= 0
        by_number = degree.new_zeros(len(self.edges.in_degree) + received)
        return by_number.index_put_((self.number[is_known],), degree[is_known])

    def cut_block(self, nodes: Tensor) -> Block:
        """Return the block of the in-edges of inner nodes, int64 [N_dst], ascending and distinct.

        An edge of a halo node without received row is left out, because a partial sum contains
        it.
        """
        edge, row_ptr = self.edges.in_edges(nodes)
        dst = repeat_interleave(torch.arange(len(nodes)), row_ptr.diff())
        src = self.number.index_select(0, self.edges.src.index_select(0, edge))
        edge_data = (self.edges.weight, self.edges.edge_feat)
        weight, feat = (None if data is None else data[edge[src >= 0]] for data in edge_data)
        src, dst = src[src >= 0], dst[src >= 0]
        num_inner, unprojected, projected = (
            len(self.edges.in_degree),
            self.sources.unprojected,
            self.sources.projected,
        )
        for vectors, first in (
            (unprojected, num_inner),
            (projected, num_inner + len(unprojected.values)),
        ):
            if len(vectors.sums):
                place = torch.full((num_inner,), -1)
                place[nodes] = torch.arange(len(nodes))
                target = place[vectors.sum_dst]
                src = torch.cat((src, vectors.sums[target >= 0] + first))
                dst = torch.cat((dst, target[target >= 0]))
        block = self._compact(nodes, src, dst, num_inner + len(unprojected.values))
        if weight is not None:
            weight = torch.cat((weight, weight.new_ones(len(src) - len(weight))))
        return (
            block
            if weight is None and feat is None
            else replace(block, weight=weight, edge_feat=feat)
        )

    def _compact(self, nodes: Tensor, src: Tensor, dst: Tensor, first_projected: int) -> Block:
        """Renumber sources so that destinations come first and unused sources are dropped."""
        place = torch.full((len(self.out_degree),), -1)
        place[src] = 0
        place[nodes] = -1
        others = (place == 0).nonzero()[:, 0]
        block_nodes = torch.cat((nodes, others))
        place[block_nodes] = torch.arange(len(block_nodes))
        return Block(
            nodes=block_nodes,
            num_dst=len(nodes),
            num_unprojected=len(nodes) + int((others < first_projected).sum()),
            src=place[src],
            dst=dst,
            out_degree=self.out_degree[block_nodes],
            in_degree=self.edges.in_degree[nodes],
        )


def gather_source_rows(
    block: Block, own: Tensor, sources: Sources, num_pairs: int = 0
) -> tuple[Tensor, Tensor]:
    """Return two tensors: rows [num_unprojected, F] of sources, and rows after the weights [m, D].

    Args:
        own: [I, F] rows of the inner nodes.
        sources: as given to cut_block.
        num_pairs: numbers between the inner nodes and the received vectors.
    """
    first = len(own) + num_pairs
    nodes, projected = block.nodes[: block.num_unprojected], block.nodes[block.num_unprojected :]
    num_own = int((nodes < len(own)).sum())  # own rows come first
    rows = own.new_empty(len(nodes), own.shape[1])
    torch.index_select(own, 0, nodes[:num_own], out=rows[:num_own])
    torch.index_select(sources.unprojected.values, 0, nodes[num_own:] - first, out=rows[num_own:])
    return rows, sources.projected.values[projected - first - len(sources.unprojected.values)]


def make_block(
    ends: Tensor,
    num_nodes: tuple[int, int],
    *,
    same_type: bool,
    weight: Tensor | None = None,
    feat: Tensor | None = None,
    scale: Tensor | None = None,
    like: Tensor,
) -> Block:
    """Return the block of all edges of a relation, without self loops.

    Edges are sorted by destination unless there is a `scale`. While torch.export traces, self loops
    stay, with a scale of 0. Degrees are sums of the weights.

    Args:
        ends: int64 [2, E] sources and destinations.
        num_nodes: of the source type and the destination type.
        same_type: whether these are the same, so that an edge may be a self loop.
        weight: [E]
        feat: [E, K]
        scale: [E] of an explainer.
        like: features, whose type degrees get.
    """
    is_traced = torch.compiler.is_compiling()
    is_edge = like.new_ones(ends.shape[1])
    if same_type:
        is_edge = (ends[0] != ends[1]).to(like.dtype)
    if is_traced:  # a mask would make the shape depend on data
        weight, feat = (
            None if values is None else _keep_from_broadcast(values, ends)
            for values in (weight, feat)
        )
        scale = is_edge if scale is None else scale * is_edge
    elif not bool(is_edge.all()):
        kept = is_edge.bool()
        ends = ends[:, kept]
        weight, feat, scale = (
            None if values is None else values[kept] for values in (weight, feat, scale)
        )
    if scale is None and not bool((ends[1][1:] >= ends[1][:-1]).all()):  # attention needs the order
        order = torch.argsort(ends[1], stable=True)
        ends = ends[:, order]
        weight, feat = (None if values is None else values[order] for values in (weight, feat))
    src, dst = ends[0], ends[1]
    ones = like.new_ones(ends.shape[1]) if weight is None else weight.to(like.dtype)
    ones = ones * is_edge if is_traced else ones
    out_degree, in_degree = (
        like.new_zeros(count).index_add(0, end, ones)
        for count, end in zip(num_nodes, (src, dst), strict=True)
    )
    return Block(
        nodes=torch.arange(num_nodes[0], device=ends.device),
        num_dst=num_nodes[1],
        num_unprojected=num_nodes[0],
        src=src,
        dst=dst,
        out_degree=out_degree,
        in_degree=in_degree,
        weight=weight,
        edge_feat=feat,
        scale=scale,
    )


def _keep_from_broadcast(values: Tensor, ends: Tensor) -> Tensor:
    """Return values of edges, [E] or [E, K], so that onnxruntime fails at another number of them.

    It would broadcast a single one.
    """
    rows = values if values.ndim == 2 else values[:, None]
    joined = torch.cat((rows, ends[1][:, None].to(values.dtype)), dim=1)  # needs equal lengths
    return joined[:, :-1].reshape(values.shape)
