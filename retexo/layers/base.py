"""What a convolution is to the rest of the program.

The inputs of a layer are fixed while it trains. So a convolution has two halves: `gather`, without parameters, is
computed once before the rounds; `forward` is computed in each. For a linear aggregator `gather` does all the work on
edges and a round is dense products only.
"""

from dataclasses import dataclass

import scipy.sparse as sp
import torch
from torch import Tensor, nn

from partitioning.dgl_import import dgl
from retexo.layers.block import Block
from retexo.layers.matrix import SPARSE_BELOW, Matrix, SparseMatrix, dropout, is_sparse


@dataclass(frozen=True)
class Inputs:
    """What `forward` reads in each round: fixed matrices, and for attention and pooling the edges."""

    matrices: tuple[Matrix, ...]
    num_rows: int
    """Rows of the output."""
    block: Block | None = None


class Convolution(nn.Module):
    """A graph convolution, [N_src, F] -> [N_dst, D]."""

    dropout_rate: float

    def gather(self, block: Block, rows: Tensor) -> Inputs:
        """All that needs no parameters; rows are [N_src, F], of the block's nodes."""
        raise NotImplementedError

    def forward(self, inputs: Inputs) -> Tensor:
        """[N_dst, D]"""
        raise NotImplementedError

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
    """dst_scale[v] (sum of src_scale[u] x[u] over the in-edges (u, v)) + self_scale[v] x[v].

    Args:
        rows: [N_src, F].
        src_scale: [N_src]; None for ones.
        dst_scale: [N_dst]; None for ones.
        self_scale: [N_dst]; None for zeros.
    Returns: [N_dst, F], sparse where the rows are sparse and their sums still are.
    """
    if rows.device.type == "cpu" and is_sparse(rows):
        return as_matrix(_sparse_sum(block, rows, src_scale, dst_scale, self_scale))
    total: Tensor = dgl.ops.copy_u_sum(block.graph, rows if src_scale is None else rows * src_scale[:, None])
    if dst_scale is not None:
        total = total.mul_(dst_scale[:, None])
    return total if self_scale is None else total.addcmul_(rows[: block.num_dst], self_scale[:, None])


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


def xavier(num_in: int, num_out: int) -> nn.Parameter:
    """A weight [num_in, num_out], Glorot and Bengio's uniform initialisation with the gain of ReLU."""
    weight = torch.empty(num_in, num_out)
    nn.init.xavier_uniform_(weight, gain=nn.init.calculate_gain("relu"))
    return nn.Parameter(weight)
