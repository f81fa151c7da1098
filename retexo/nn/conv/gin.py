"""Graph isomorphism network of Xu, Hu, Leskovec and Jegelka, "How Powerful are Graph Neural Networks?", ICLR 2019.

    h_v = MLP( x_v + sum over u in N(v) of x_u )      (their eq. 4.1 with epsilon fixed at 0: GIN-0)

The MLP is linear, LayerNorm, ReLU, linear. LayerNorm stands where they have batch normalisation, whose statistics
would have to cross the network in every round.
"""

import torch
from torch import Tensor, nn

from retexo.nn.convolution import Inputs, xavier
from retexo.nn.linear import SumConvolution


class GIN(SumConvolution):
    """[N_src, F] -> [N_dst, D]; the MLP is `width` wide."""

    def __init__(self, num_in: int, num_out: int, dropout: float, width: int) -> None:
        super().__init__()
        self.weight_in = xavier(num_in, width)
        self.bias_in = nn.Parameter(torch.zeros(width))
        self.norm = nn.LayerNorm(width)
        self.weight_out = xavier(width, num_out)
        self.bias_out = nn.Parameter(torch.zeros(num_out))
        self.dropout_rate = dropout

    def own_scale(self, in_degree: Tensor, out_degree: Tensor) -> Tensor:
        return torch.ones_like(in_degree)

    def forward(self, inputs: Inputs) -> Tensor:
        (total,) = inputs.matrices
        hidden = self.weighted(total, inputs.projected, self.bias_in)
        return torch.relu(self.norm(hidden)) @ self.weight_out + self.bias_out

    @property
    def neighbour_weight(self) -> nn.Parameter:
        return self.weight_in
