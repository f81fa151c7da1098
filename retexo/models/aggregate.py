"""Sums, maxima and softmax over the in-edges of nodes, forward and backward, without a row for each edge.

On a CPU they are torch's embedding bag and segment reduction, and loops of our own for maxima and for products along
edges. All take a node's in-edges one after the other: results do not depend on the number of threads.
benchmarks/aggregation.py measures them beside DGL's. N_src source and N_dst destination nodes of a block, E edges, D
width of a row.
"""

from typing import Any

import torch
from torch import Tensor

from retexo.models.block import Block
from retexo.models.matrix import sum_rows

MIN_COMPILED_EDGES = 1 << 15
"""Edges whose products take longer than it takes to import numba."""


def edge_sum(block: Block, rows: Tensor, weight: Tensor | None = None) -> Tensor:
    """sum over in-edges (u, v) of weight[u, v] x[u]: [N_dst, D] of rows [N_src, D] and weights [E], None for ones."""
    total: Tensor = _Sum.apply(rows, weight, block)  # type: ignore[no-untyped-call]
    return total


class _Sum(torch.autograd.Function):
    """The gradient of the rows is the same sum over out-edges, that of a weight the product of its two rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor | None, block: Block) -> Tensor:
        edges = block.in_edges
        leaf = None if weight is None else weight.detach().requires_grad_(ctx.needs_input_grad[1])
        with (
            torch.enable_grad()
        ):  # the bag's own gradient of the weights, but not that of the rows, which sorts anew
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
        gradient, leaf, of_rows, of_weight = gradient.contiguous(), ctx.leaf, None, None
        if ctx.needs_input_grad[0]:
            edges = ctx.block.out_edges
            of_rows = sum_rows(
                gradient,
                edges.column,
                edges.row_ptr,
                None if leaf is None else edges.reorder(leaf.detach()),
            )
        if ctx.needs_input_grad[1]:
            (of_weight,) = torch.autograd.grad(ctx.total, leaf, gradient)
        return of_rows, of_weight, None


def edge_sum_per_head(block: Block, rows: Tensor, alpha: Tensor) -> Tensor:
    """As edge_sum for each of K weights of an edge, [E, K], sorted by destination, of rows without gradient:
    [K, N_dst, D]."""
    total: Tensor = _HeadSums.apply(rows, alpha, block)  # type: ignore[no-untyped-call]
    return total


class _HeadSums(torch.autograd.Function):
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
                [(rows[block.src] * each[block.dst]).sum(dim=-1) for each in gradient], dim=1
            )
        else:
            from retexo.models.numba_kernels import dot_edge_ends

            products = dot_edge_ends(edges.row_ptr, edges.column, rows, gradient.permute(1, 2, 0))
        return None, products.to(ctx.rows.dtype), None


def edge_softmax(block: Block, score: Tensor) -> Tensor:
    """Softmax over the in-edges of each destination, of scores [E, K]; the block's edges are sorted by destination."""
    assert block.in_edges.order is None
    alpha: Tensor = _Softmax.apply(score, block)  # type: ignore[no-untyped-call]
    return alpha


class _Softmax(torch.autograd.Function):
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
    """max over in-edges (u, v) of x[u], [N_dst, D], 0 for none, of rows [N_src, D] that are not negative."""
    edges = block.in_edges
    if rows.device.type != "cpu":
        bag = torch.nn.functional.embedding_bag
        return bag(edges.column, rows, edges.row_ptr, mode="max", include_last_offset=True)
    whole = rows.float() if rows.dtype == torch.bfloat16 else rows
    top: Tensor = _Max.apply(whole, block)  # type: ignore[no-untyped-call]
    return top.to(rows.dtype)


class _Max(torch.autograd.Function):
    """There is no gradient where the maximum is 0."""

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
