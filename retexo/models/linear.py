"""Convolutions whose aggregation is linear: a weighted sum of the neighbours' rows."""

from typing import ClassVar

import scipy.sparse as sp
import torch
from torch import Tensor

from retexo.models.aggregate import edge_sum
from retexo.models.block import Block
from retexo.models.convolution import Convolution, Inputs
from retexo.models.matrix import Matrix, as_matrix, is_sparse, matmul


def neighbour_sum(
    block: Block,
    rows: Tensor,
    src_scale: Tensor | None,
    dst_scale: Tensor | None,
    self_scale: Tensor | None,
) -> Matrix:
    """Return dst_scale[v] (sum over (u, v) of w[u, v] src_scale[u] x[u]) + self_scale[v] x[v].

    Args:
        block: the in-edges.
        rows: [N_src, F]; may be overwritten.
        src_scale: [N_src]; None for ones.
        dst_scale: [N_dst]; None for ones.
        self_scale: [N_dst]; None for zeros.
    Returns:
        [N_dst, F], sparse if the rows and their sums are sparse.
    """
    if block.scale is None and rows.device.type == "cpu" and is_sparse(rows):
        return as_matrix(_sparse_sum(block, rows, src_scale, dst_scale, self_scale))
    own = None if self_scale is None else rows[: block.num_dst] * self_scale[:, None]
    # In place, to need no second matrix of the rows' size.
    total = edge_sum(
        block, rows if src_scale is None else rows.mul_(src_scale[:, None]), block.weight
    )
    if dst_scale is not None:
        total = total.mul_(dst_scale[:, None])
    return total if own is None else total.add_(own)


def _sparse_sum(
    block: Block,
    rows: Tensor,
    src_scale: Tensor | None,
    dst_scale: Tensor | None,
    self_scale: Tensor | None,
) -> sp.csr_array:
    """Compute neighbour_sum as a product of sparse matrices, [N_dst, F]."""
    weight = torch.ones(len(block.src), dtype=rows.dtype) if block.weight is None else block.weight
    weight = weight if src_scale is None else weight * src_scale[block.src]
    weight = weight if dst_scale is None else weight * dst_scale[block.dst]
    dst, src = block.dst, block.src
    if self_scale is not None:
        own = torch.arange(block.num_dst)
        weight, dst, src = (
            torch.cat((weight, self_scale)),
            torch.cat((dst, own)),
            torch.cat((src, own)),
        )
    adjacency = sp.csr_array(
        (weight.numpy(), (dst.numpy(), src.numpy())), shape=(block.num_dst, len(rows))
    )
    return adjacency @ sp.csr_array(rows.numpy())


NO_PROJECTED_ROWS = torch.zeros(0, 0)
"""[0, 0]"""


class LinearConvolution(Convolution):
    """A convolution of a weighted sum of the neighbours' rows, the aggregate of node v:

        destination_scale[v] (sum over u in N(v) of w[u, v] source_scale[u] x[u])
          + self_loop_scale[v] x[v]

    w are edge weights (1 if there are none), and degrees are sums of them.
    """

    linear_aggregation = True
    normalized: ClassVar[bool] = False
    """Whether scales shrink with the degree: the sum can be applied hop after hop (SGC, SIGN)."""
    root_weight: bool = False
    """Whether a node's own row is a separate input with its own weight (PyG's root_weight)."""

    def destination_scale(self, in_degree: Tensor) -> Tensor | None:
        """Return the factor of each destination, from global in-degrees [n]; None for ones."""
        return None

    def self_loop_scale(self, in_degree: Tensor, out_degree: Tensor) -> Tensor | None:
        """Return the factor of a node's own row, from global degrees [n]; None for zeros."""
        return None

    def prepare(self, block: Block, rows: Tensor, projected: Tensor) -> Inputs:
        """Compute the aggregate, and copy own rows for a root weight; `projected` must be empty.

        May overwrite `rows`.
        """
        assert not len(projected)
        out_degree, count = block.out_degree, block.num_dst
        # clone: a view would keep all rows alive
        own = rows[:count].clone() if self.root_weight else None
        scales = (
            self.destination_scale(block.in_degree),
            self.self_loop_scale(block.in_degree, out_degree[:count]),
        )
        return self.inputs(
            own,
            neighbour_sum(block, rows, self.source_scale(out_degree), *scales),
            NO_PROJECTED_ROWS,
        )

    def inputs(self, own: Tensor | None, aggregate: Matrix, projected: Tensor) -> Inputs:
        """Return the inputs of `forward`.

        Args:
            own: [n, F] own rows if there is a root weight, else None.
            aggregate: [n, F], or [n, 0] if `projected` is given.
            projected: aggregate of projected rows, [n, D], or [0, 0].
        """
        matrices = (aggregate,) if own is None else (as_matrix(own), aggregate)
        return Inputs(matrices, aggregate.shape[0], projected)

    def apply_weight(self, aggregate: Matrix, projected: Tensor, bias: Tensor) -> Tensor:
        """Return projected [n, D] + bias, or if that is empty aggregate [n, F] @ weight + bias.

        Dropout applies to the aggregate only.
        """
        return (
            projected + bias
            if len(projected)
            else matmul(self.apply_dropout(aggregate), self.neighbour_weight, bias)
        )

    def weighted_aggregate(self, inputs: Inputs) -> Tensor:
        """Return the aggregate after the weights, A(HW) = (AH)W, [N_dst, D], without dropout."""
        return (
            inputs.projected
            if len(inputs.projected)
            else matmul(inputs.matrices[-1], self.neighbour_weight)
        )
