"""Graph isomorphism network (GIN).

Xu, Hu, Leskovec and Jegelka, "How Powerful are Graph Neural Networks?", ICLR 2019.

    h_v = MLP( x_v + sum over u in N(v) of x_u )      (eq. 4.1 with epsilon = 0: GIN-0)

With edge weights w the sum is of w_uv x_u, so an edge of weight k equals k edges (as DGL's
GINConv with edge_weight). The MLP is linear, norm, ReLU, linear. The norm is model.norm instead
of the paper's batch normalization, whose statistics would have to cross the network in every
round.
"""

import torch
from torch import Tensor, nn

from retexo.models.convolution import Inputs, LayerShape, make_activation, make_norm, xavier
from retexo.models.linear import LinearConvolution
from retexo.models.matrix import matmul
from retexo.settings.options import ModelSettings


def build(layer: LayerShape, options: ModelSettings) -> "GIN":
    """Build the graph isomorphism layer, with its MLP."""
    width = layer.num_out if options.self_weight else options.hidden_dim
    rate, norm, activation = options.dropout, options.norm, options.activation
    return GIN(layer.num_in, layer.num_out, rate, width, norm, activation)


class GIN(LinearConvolution):
    """[N_src, F] -> [N_dst, D]

    Args:
        num_in: F
        num_out: D
        dropout: rate, applied to the aggregate.
        width: of the MLP's hidden layer.
        norm: model.norm
        activation: model.activation
    """

    def __init__(
        self,
        num_in: int,
        num_out: int,
        dropout: float,
        width: int,
        norm: str = "layer",
        activation: str = "relu",
    ) -> None:
        super().__init__(num_out, dropout)
        self.weight_in = xavier(num_in, width)
        self.bias_in = nn.Parameter(torch.zeros(width))
        self.norm, self.activation = make_norm(norm, width), make_activation(activation)
        self.weight_out = xavier(width, num_out)
        self.bias_out = nn.Parameter(torch.zeros(num_out))

    def self_loop_scale(self, in_degree: Tensor, out_degree: Tensor) -> Tensor:
        return torch.ones_like(in_degree)

    def forward(self, inputs: Inputs) -> Tensor:
        (aggregate,) = inputs.matrices
        hidden = self.apply_weight(aggregate, inputs.projected, self.bias_in)
        return matmul(self.activation(self.norm(hidden)), self.weight_out, self.bias_out)

    @property
    def neighbour_weight(self) -> nn.Parameter:
        return self.weight_in
