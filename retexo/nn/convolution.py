"""What a convolution is to the rest of the program.

The inputs of a layer are fixed while it trains. So a convolution has two halves: `prepare`, without parameters, is
computed once before the rounds; `forward` is computed in each. For a linear aggregator `prepare` does all the work on
edges and a round is dense products only.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import scipy.sparse as sp
import torch
from torch import Tensor, nn

from partitioning.dgl_import import dgl
from retexo.nn.block import Block
from retexo.nn.matrix import SPARSE_BELOW, Matrix, Place, SparseMatrix, dropout, is_sparse, product, take


@dataclass(frozen=True)
class Inputs:
    """What `forward` reads in each round: fixed matrices, and for attention and pooling the edges."""

    matrices: tuple[Matrix, ...]
    num_rows: int
    """Rows of the output."""
    projected: Tensor
    """What came after the weights. Where the aggregator adds up: the sums [N_dst, D], and the matrix of sums is empty;
    else rows [m, D] of the block's last sources. [0, 0] for none."""
    block: Block | None = None
    bf16: bool = False
    """Whether dense products are in bfloat16."""

    def in_bf16(self) -> "Inputs":
        matrices = (matrix.bfloat16() if isinstance(matrix, Tensor) else matrix for matrix in self.matrices)
        return replace(self, matrices=tuple(matrices), bf16=True)

    def at(self, place: Place) -> "Inputs":
        """Of some rows of the output; of a convolution without edges."""
        assert self.block is None
        assert not len(self.projected)
        matrices = tuple(take(matrix, place) for matrix in self.matrices)
        return replace(self, matrices=matrices, num_rows=matrices[0].shape[0])


class Convolution(nn.Module):
    """A graph convolution, [N_src, F] -> [N_dst, D]."""

    dropout_rate: float
    sums_neighbours: ClassVar[bool] = False
    """Whether neighbours enter only by a sum of their rows, each with a factor of its own: then a partial sum can stand
    for several of them, and A(HW) = (AH)W."""

    scales_sources: ClassVar[bool] = False
    """Whether `source_scale` is not one."""

    def source_scale(self, out_degree: Tensor) -> Tensor | None:
        """The factor of each source, from its out-degree in the whole graph, float [n]; None for ones."""
        return None

    def prepare(self, block: Block, rows: Tensor, projected: Tensor) -> Inputs:
        """All that needs no parameters; [num_early, F] and [N_src - num_early, D] of the block's sources.

        Both may be overwritten.
        """
        raise NotImplementedError

    def forward(self, inputs: Inputs) -> Tensor:
        """[N_dst, D]"""
        raise NotImplementedError

    @property
    def neighbour_weight(self) -> nn.Parameter:
        """The first weight [F, D] that a neighbour's row, or the sum of several, is multiplied with."""
        raise NotImplementedError

    def project(self, rows: Matrix) -> Tensor:
        """What a neighbour's row is after that weight, without dropout: [n, F] -> [n, D]."""
        return rows @ self.neighbour_weight

    @property
    def projected_width(self) -> int:
        """D of `project`."""
        return self.neighbour_weight.shape[1]

    @property
    def first_weights(self) -> tuple[nn.Parameter, ...]:
        """The weights [F, D] that each of Inputs.matrices [n, F] is multiplied with, in that order."""
        return (self.neighbour_weight,)

    def dropped(self, matrix: Matrix) -> Matrix:
        """Dropout, drawn anew in each round of training."""
        return dropout(matrix, self.dropout_rate, self.training)


def as_matrix(rows: Tensor | sp.csr_array) -> Matrix:
    """The rows as the kind of matrix that is faster to multiply with."""
    if isinstance(rows, Tensor):
        sparse = rows.device.type == "cpu" and is_sparse(rows)
        return SparseMatrix.from_scipy(sp.csr_array(rows.numpy())) if sparse else rows
    if rows.nnz > SPARSE_BELOW * rows.shape[0] * rows.shape[1]:
        return torch.from_numpy(rows.toarray())
    rows.sort_indices()
    return SparseMatrix.from_scipy(rows)


def neighbour_sum(
    block: Block, rows: Tensor, src_scale: Tensor | None, dst_scale: Tensor | None, self_scale: Tensor | None
) -> Matrix:
    """dst_scale[v] (sum of src_scale[u] x[u] over the in-edges (u, v)) + self_scale[v] x[v]. May overwrite the rows.

    Args:
        rows: [N_src, F].
        src_scale: [N_src]; None for ones.
        dst_scale: [N_dst]; None for ones.
        self_scale: [N_dst]; None for zeros.
    Returns: [N_dst, F], sparse where the rows are sparse and their sums still are.
    """
    if rows.device.type == "cpu" and is_sparse(rows):
        return as_matrix(_sparse_sum(block, rows, src_scale, dst_scale, self_scale))
    return _dense_sum(block, rows, src_scale, dst_scale, self_scale)


def _dense_sum(
    block: Block, rows: Tensor, src_scale: Tensor | None, dst_scale: Tensor | None, self_scale: Tensor | None
) -> Tensor:
    own = None if self_scale is None else rows[: block.num_dst] * self_scale[:, None]
    # In place: the rows are the most that there is in memory, and DGL is ten times slower with a factor an edge.
    total: Tensor = dgl.ops.copy_u_sum(block.graph, rows if src_scale is None else rows.mul_(src_scale[:, None]))
    if dst_scale is not None:
        total = total.mul_(dst_scale[:, None])
    return total if own is None else total.add_(own)


def _sparse_sum(
    block: Block, rows: Tensor, src_scale: Tensor | None, dst_scale: Tensor | None, self_scale: Tensor | None
) -> sp.csr_array:
    weight = torch.ones(len(block.src), dtype=rows.dtype)
    weight = weight if src_scale is None else weight * src_scale[block.src]
    weight = weight if dst_scale is None else weight * dst_scale[block.dst]
    dst, src = block.dst, block.src
    if self_scale is not None:
        own = torch.arange(block.num_dst)
        weight, dst, src = torch.cat((weight, self_scale)), torch.cat((dst, own)), torch.cat((src, own))
    adjacency = sp.csr_array((weight.numpy(), (dst.numpy(), src.numpy())), shape=(block.num_dst, len(rows)))
    return adjacency @ sp.csr_array(rows.numpy())


NOT_PROJECTED = torch.zeros(0, 0)
"""[0, 0]"""


class SumConvolution(Convolution):
    """One whose aggregator adds up: sum_scale[v] (sum of source_scale[u] x[u]) + own_scale[v] x[v], then weights."""

    sums_neighbours = True
    uses_own_row: ClassVar[bool] = False
    """Whether a node's own row is an input besides the sum, with a weight of its own."""

    def sum_scale(self, in_degree: Tensor) -> Tensor | None:
        """From the in-degrees in the whole graph, float [n]; None for ones."""
        return None

    def own_scale(self, in_degree: Tensor, out_degree: Tensor) -> Tensor | None:
        """Likewise; None for zeros."""
        return None

    def prepare(self, block: Block, rows: Tensor, projected: Tensor) -> Inputs:
        assert not len(projected)
        out_degree, count = block.out_degree, block.num_dst
        own = rows[:count].clone() if self.uses_own_row else None  # a view would keep all rows
        scales = self.sum_scale(block.in_degree), self.own_scale(block.in_degree, out_degree[:count])
        return self.inputs(own, neighbour_sum(block, rows, self.source_scale(out_degree), *scales), NOT_PROJECTED)

    def inputs(self, own: Tensor | None, total: Matrix, projected: Tensor) -> Inputs:
        """Own rows [n, F] where they are taken; sums [n, F], or [n, 0] and `late` [n, D] after the weights."""
        return Inputs((total,) if own is None else (as_matrix(own), total), total.shape[0], projected)

    def weighted(self, total: Matrix, projected: Tensor, bias: Tensor) -> Tensor:
        """[N_dst, F] @ [F, D], or what came after the weights, + [D]"""
        return projected + bias if len(projected) else product(self.dropped(total), self.neighbour_weight, bias)


def xavier(num_in: int, num_out: int) -> nn.Parameter:
    """A weight [num_in, num_out], Glorot and Bengio's uniform initialisation with the gain of ReLU."""
    weight = torch.empty(num_in, num_out)
    nn.init.xavier_uniform_(weight, gain=nn.init.calculate_gain("relu"))
    return nn.Parameter(weight)
