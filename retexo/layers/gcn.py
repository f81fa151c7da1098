"""Graph convolution of Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.

    h_v = W^T ( sum over u in N(v) and v itself of  x_u / sqrt((d_out(u) + 1) (d_in(v) + 1)) ) + b      (their eq. 2)

with the degrees of the whole graph and one self loop added, existing ones removed.
"""

import torch
from torch import Tensor, nn

from retexo.layers.base import Inputs, SumConvolution, xavier
from retexo.layers.block import Block


class GCN(SumConvolution):
    """[N_src, F] -> [N_dst, D]"""

    scales_sources = True

    def __init__(self, num_in: int, num_out: int, dropout: float) -> None:
        super().__init__()
        self.weight = xavier(num_in, num_out)
        self.bias = nn.Parameter(torch.zeros(num_out))
        self.dropout_rate = dropout

    def source_scale(self, out_degree: Tensor) -> Tensor:
        return (out_degree + 1).rsqrt()

    def gather(self, block: Block, rows: Tensor, late: Tensor) -> Inputs:
        dst_scale = (block.in_degree + 1).rsqrt()
        self_scale = dst_scale * self.source_scale(block.out_degree[: block.num_dst])
        total, late_sum = self.total(block, rows, late, dst_scale, self_scale)
        return Inputs((total,), block.num_dst, late_sum)

    def forward(self, inputs: Inputs) -> Tensor:
        (total,) = inputs.matrices
        return self.weighted(total, inputs.late) + self.bias

    @property
    def neighbour_weight(self) -> nn.Parameter:
        return self.weight
