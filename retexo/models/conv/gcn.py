"""Graph convolution (GCN).

Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.

    h_v = W^T ( sum over u in N(v) + {v} of  w_uv x_u / sqrt((d_out(u) + 1) (d_in(v) + 1)) ) + b

(eq. 2) with one self loop added and existing self loops removed. w are edge weights, 1 for
unweighted edges and the self loop. Degrees d are sums of w in the whole graph (as in DGL's
EdgeWeightNorm; PyG's gcn_norm uses d_in for both ends).
"""

import torch
from torch import Tensor, nn

from retexo.models.convolution import Inputs, LayerShape, xavier
from retexo.models.linear import LinearConvolution
from retexo.settings.options import ModelSettings


def build(layer: LayerShape, options: ModelSettings) -> "GCN":
    """Build the graph convolution of one layer."""
    return GCN(layer.num_in, layer.num_out, options.dropout)


class GCN(LinearConvolution):
    """[N_src, F] -> [N_dst, D]

    Args:
        num_in: F
        num_out: D
        dropout: rate, applied to the aggregate.
    """

    normalized = True
    uses_out_degree = True

    def __init__(self, num_in: int, num_out: int, dropout: float) -> None:
        super().__init__(num_out, dropout)
        self.weight = xavier(num_in, num_out)
        self.bias = nn.Parameter(torch.zeros(num_out))

    def source_scale(self, out_degree: Tensor) -> Tensor:
        return (out_degree + 1).rsqrt()

    def destination_scale(self, in_degree: Tensor) -> Tensor:
        return (in_degree + 1).rsqrt()

    def self_loop_scale(self, in_degree: Tensor, out_degree: Tensor) -> Tensor:
        return self.destination_scale(in_degree) * self.source_scale(out_degree)

    def forward(self, inputs: Inputs) -> Tensor:
        (aggregate,) = inputs.matrices
        return self.apply_weight(aggregate, inputs.projected, self.bias)
