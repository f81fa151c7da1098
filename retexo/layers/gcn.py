"""Graph convolution of Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.

    h_v = W^T ( sum over u in N(v) and v itself of  x_u / sqrt((d_out(u) + 1) (d_in(v) + 1)) ) + b      (their eq. 2)

with the degrees of the whole graph and one self loop added, existing ones removed.
"""

import torch
from torch import Tensor, nn

from retexo.layers.base import Convolution, Inputs, neighbour_sum, xavier
from retexo.layers.block import Block


class GCN(Convolution):
    """[N_src, F] -> [N_dst, D]"""

    def __init__(self, num_in: int, num_out: int, dropout: float) -> None:
        super().__init__()
        self.weight = xavier(num_in, num_out)
        self.bias = nn.Parameter(torch.zeros(num_out))
        self.dropout_rate = dropout

    def gather(self, block: Block, rows: Tensor) -> Inputs:
        src_scale, dst_scale = (block.out_degree + 1).rsqrt(), (block.in_degree + 1).rsqrt()
        total = neighbour_sum(block, rows, src_scale, dst_scale, dst_scale * src_scale[: block.num_dst])
        return Inputs((total,), block.num_dst)

    def forward(self, inputs: Inputs) -> Tensor:
        (total,) = inputs.matrices
        return self.dropped(total) @ self.weight + self.bias
