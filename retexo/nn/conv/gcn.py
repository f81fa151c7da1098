"""Graph convolution of Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.

    h_v = W^T ( sum over u in N(v) and v itself of  x_u / sqrt((d_out(u) + 1) (d_in(v) + 1)) ) + b      (their eq. 2)

with the degrees of the whole graph and one self loop added, existing ones removed.
"""

import torch
from torch import Tensor, nn

from retexo.nn.convolution import Inputs, xavier
from retexo.nn.linear import SumConvolution


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

    def sum_scale(self, in_degree: Tensor) -> Tensor:
        return (in_degree + 1).rsqrt()

    def own_scale(self, in_degree: Tensor, out_degree: Tensor) -> Tensor:
        return self.sum_scale(in_degree) * self.source_scale(out_degree)

    def forward(self, inputs: Inputs) -> Tensor:
        (total,) = inputs.matrices
        return self.weighted(total, inputs.projected, self.bias)

    @property
    def neighbour_weight(self) -> nn.Parameter:
        return self.weight
