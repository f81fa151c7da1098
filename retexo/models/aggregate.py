"""Weighted sum, maximum and softmax over the in-edges of nodes, forward and backward.

No tensor has a row per edge. On a CPU they use torch's embedding bag and segment reduction, and
numba loops for maxima and edge products. Each node's in-edges are added in order, so results do
not depend on the number of threads. benchmarks/aggregation.py compares them with DGL's.

Where a block has factors of messages (Block.scale), plain torch scatters them instead, edge by
edge.

N_src source and N_dst destination nodes of a block, E edges, D row width.
"""

from typing import Any

import torch
from torch import Tensor

from retexo.models.block import Block
from retexo.models.matrix import sum_rows

MIN_COMPILED_EDGES = 1 << 15
"""From this many edges on, numba saves more time than importing it takes."""


def edge_sum(block: Block, rows: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return sum over in-edges (u, v) of weight[u, v] scale[u, v] x[u], [N_dst, D].

    Args:
        block: the edges, with their scale [E], if any.
        rows: [N_src, D]
        weight: [E]; None for ones.
    """
    if block.scale is not None:
        factor = block.scale if weight is None else block.scale * weight
        messages = rows.index_select(0, block.src) * factor.to(rows.dtype)[:, None]
        return rows.new_zeros(block.num_dst, rows.shape[1]).index_add(0, block.dst, messages)
    total: Tensor = _Sum.apply(rows, weight, block)  # type: ignore[no-untyped-call]
    return total


def mean_at_destinations(
    dst: Tensor, values: Tensor, weight: Tensor | None, in_degree: Tensor
) -> Tensor:
    """Return the weighted mean of the in-edges' values, [N_dst, K], 0 without in-edges.

    Args:
        dst: integers [E], the destination of each edge.
        values: [E, K]
        weight: [E]; None for ones.
        in_degree: [N_dst] sums of the weights.
    """
    total = values.new_zeros(in_degree.shape[0], values.shape[1])
    total = total.index_add(0, dst, values if weight is None else values * weight[:, None])
    return total / torch.where(in_degree > 0, in_degree, 1)[:, None].to(values.dtype)


class _Sum(torch.autograd.Function):
    """Weighted sum over in-edges.

    Gradient of rows: the same sum over out-edges. Gradient of a weight: dot product of its two
    rows.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor | None, block: Block) -> Tensor:
        edges = block.in_edges
        leaf = None if weight is None else weight.detach().requires_grad_(ctx.needs_input_grad[1])
        # embedding_bag differentiates the weights; its gradient of rows would sort edges again.
        with torch.enable_grad():
            total = sum_rows(
                rows.detach(),
                edges.column,
                edges.row_ptr,
                None if leaf is None else edges.reorder(leaf),
            )
        ctx.block, ctx.leaf, ctx.total = block, leaf, total
        return total.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        gradient, leaf, rows_gradient, weight_gradient = gradient.contiguous(), ctx.leaf, None, None
        if ctx.needs_input_grad[0]:
            edges = ctx.block.out_edges
            rows_gradient = sum_rows(
                gradient,
                edges.column,
                edges.row_ptr,
                None if leaf is None else edges.reorder(leaf.detach()),
            )
        if ctx.needs_input_grad[1]:
            (weight_gradient,) = torch.autograd.grad(ctx.total, leaf, gradient)
        return rows_gradient, weight_gradient, None


def edge_sum_per_head(block: Block, rows: Tensor, alpha: Tensor) -> Tensor:
    """Return `edge_sum` for each of K edge weights, [K, N_dst, D]; rows have no gradient.

    Args:
        block: edges sorted by destination, without scale.
        rows: [N_src, D]
        alpha: [E, K]
    """
    total: Tensor = _HeadSums.apply(rows, alpha, block)  # type: ignore[no-untyped-call]
    return total


class _HeadSums(torch.autograd.Function):
    """Sums per head. The gradient of alpha is the dot product of an edge's two rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, alpha: Tensor, block: Block) -> Tensor:
        edges = block.in_edges
        ctx.block, ctx.rows = block, rows
        return torch.stack(
            [sum_rows(rows, edges.column, edges.row_ptr, share) for share in alpha.T.contiguous()]
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        block, rows = ctx.block, ctx.rows.to(torch.promote_types(ctx.rows.dtype, torch.float32))
        edges, gradient = block.in_edges, gradient.to(rows.dtype)
        if rows.device.type != "cpu" or len(edges.column) < MIN_COMPILED_EDGES:
            products = torch.stack(
                [(rows[block.src] * head[block.dst]).sum(dim=-1) for head in gradient], dim=1
            )
        else:
            from retexo.models.numba_kernels import dot_edge_ends

            products = dot_edge_ends(edges.row_ptr, edges.column, rows, gradient.permute(1, 2, 0))
        return None, products.to(ctx.rows.dtype), None


def edge_softmax(block: Block, score: Tensor) -> Tensor:
    """Softmax of scores [E, K] over the in-edges of each destination (edges sorted by it).

    Edges of scale 0 are left out, and have 0.
    """
    if block.scale is not None:
        return _scatter_softmax(block, score, (block.scale != 0)[:, None])
    assert block.in_edges.order is None
    alpha: Tensor = _Softmax.apply(score, block)  # type: ignore[no-untyped-call]
    return alpha


def _scatter_softmax(block: Block, score: Tensor, counted: Tensor) -> Tensor:
    """Compute edge_softmax over the counted edges, bool [E, 1]; 0 at the others."""
    place = block.dst[:, None].expand_as(score)
    lowest = score.new_full((block.num_dst, score.shape[1]), -1e30)
    top = lowest.scatter_reduce(0, place, score.where(counted, -1e30), "amax")
    power = (score - top.index_select(0, block.dst)).where(counted, -1e30).exp()
    total = torch.zeros_like(lowest).index_add(0, block.dst, power)
    return power / total.index_select(0, block.dst).clamp(min=1e-30)


class _Softmax(torch.autograd.Function):
    """Softmax over in-edges, computed with segment reductions."""

    @staticmethod
    def forward(ctx: Any, score: Tensor, block: Block) -> Tensor:
        top = torch.segment_reduce(score, "max", offsets=block.in_edges.row_ptr, unsafe=True)
        power = (score - top.index_select(0, block.dst)).exp_()
        total = torch.segment_reduce(power, "sum", offsets=block.in_edges.row_ptr, unsafe=True)
        alpha = power.div_(total.index_select(0, block.dst))
        ctx.block = block
        ctx.save_for_backward(alpha)
        return alpha

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        block, (alpha,) = ctx.block, ctx.saved_tensors
        product = alpha * gradient
        total = torch.segment_reduce(product, "sum", offsets=block.in_edges.row_ptr, unsafe=True)
        return product.addcmul_(alpha, total.index_select(0, block.dst), value=-1), None


def edge_max(block: Block, rows: Tensor) -> Tensor:
    """Return max over in-edges (u, v) of x[u], times block.scale if any, [N_dst, D]; 0 without any.

    Args:
        block: the edges.
        rows: [N_src, D], not negative.
    """
    if block.scale is not None:
        messages = rows.index_select(0, block.src) * block.scale.to(rows.dtype)[:, None]
        place = block.dst[:, None].expand_as(messages)
        zeros = rows.new_zeros(block.num_dst, rows.shape[1])
        return zeros.scatter_reduce(0, place, messages, "amax")
    edges = block.in_edges
    if rows.device.type != "cpu":
        bag = torch.nn.functional.embedding_bag
        return bag(edges.column, rows, edges.row_ptr, mode="max", include_last_offset=True)
    wide_rows = rows.float() if rows.dtype == torch.bfloat16 else rows
    top: Tensor = _Max.apply(wide_rows, block)  # type: ignore[no-untyped-call]
    return top.to(rows.dtype)


class _Max(torch.autograd.Function):
    """Elementwise maximum. Its gradient is 0 where the maximum is 0."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, block: Block) -> Tensor:
        from retexo.models.numba_kernels import max_in_edges

        top, source = max_in_edges(block.in_edges.row_ptr, block.in_edges.column, rows)
        ctx.num_rows = len(rows)
        ctx.save_for_backward(source)
        return top

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        from retexo.models.numba_kernels import scatter_max_gradient

        (source,) = ctx.saved_tensors
        return scatter_max_gradient(gradient, source, ctx.num_rows), None
