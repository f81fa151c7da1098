"""GraphSAGE with mean or pooling.

Hamilton, Ying and Leskovec, "Inductive Representation Learning on Large Graphs", NeurIPS 2017.

    mean:  h_v = W_self^T x_v + W_neigh^T mean over u in N(v) of x_u + b
    pool:  h_v = W_self^T x_v + W_neigh^T max over u in N(v) of relu(W_pool^T x_u + b_pool) + b

The pool aggregator is the paper's eq. 3.

A node without in-edges has the neighbourhood vector 0. With edge weights w the mean is

    sum over u in N(v) of w_uv x_u  /  sum over u in N(v) of w_uv    (DGL's EdgeWeightNorm)

The pool aggregator rejects edge weights, because a maximum cannot count an edge twice.
"""

import torch
from torch import Tensor, nn

from retexo.models.aggregate import edge_max
from retexo.models.block import Block
from retexo.models.convolution import Convolution, Inputs, LayerShape, xavier
from retexo.models.linear import LinearConvolution
from retexo.models.matrix import Matrix, as_matrix, matmul
from retexo.settings.options import SAGEOptions


def build(layer: LayerShape, options: SAGEOptions) -> "SAGEMean | SAGEPool":
    """Build the GraphSAGE layer with the aggregator that the options name."""
    if options.aggregator == "pool":
        return SAGEPool(layer.num_in, layer.num_out, options.dropout)
    return SAGEMean(
        layer.num_in, layer.num_out, options.dropout, root_weight=not options.self_weight
    )


class SAGEMean(LinearConvolution):
    """[N_src, F] -> [N_dst, D]

    Args:
        num_in: F
        num_out: D
        dropout: rate, applied to the node's own row and to the mean.
        root_weight: whether there is a W_self; False if the stage adds the node's own row
            itself.
    """

    normalized = True

    def __init__(
        self, num_in: int, num_out: int, dropout: float, *, root_weight: bool = True
    ) -> None:
        super().__init__(num_out, dropout)
        self.root_weight = root_weight
        if root_weight:
            self.weight_self = xavier(num_in, num_out)
        self.weight_neigh = xavier(num_in, num_out)
        self.bias = nn.Parameter(torch.zeros(num_out))

    def destination_scale(self, in_degree: Tensor) -> Tensor:
        return 1 / torch.where(in_degree > 0, in_degree, 1)

    def forward(self, inputs: Inputs) -> Tensor:
        *own, mean = inputs.matrices
        roots = [matmul(self.apply_dropout(rows), self.weight_self) for rows in own]
        return sum(roots, start=self.apply_weight(mean, inputs.projected, self.bias))

    @property
    def neighbour_weight(self) -> nn.Parameter:
        return self.weight_neigh

    @property
    def first_weights(self) -> tuple[nn.Parameter, ...]:
        return (self.weight_self, self.weight_neigh) if self.root_weight else (self.weight_neigh,)


class SAGEPool(Convolution):
    """[N_src, F] -> [N_dst, D]; pooled vectors have the input's width, but at most max(D, 64).

    Args:
        num_in: F
        num_out: D
        dropout: rate, applied to all rows.
    """

    def __init__(self, num_in: int, num_out: int, dropout: float) -> None:
        """Make the parameters; pooled messages have min(F, max(D, 64)) columns."""
        super().__init__(num_out, dropout)
        width = min(num_in, max(num_out, 64))
        self.weight_pool = xavier(num_in, width)
        self.bias_pool = nn.Parameter(torch.zeros(width))
        self.weight_self = xavier(num_in, num_out)
        self.weight_neigh = xavier(width, num_out)
        self.bias = nn.Parameter(torch.zeros(num_out))

    def prepare(self, block: Block, rows: Tensor, projected: Tensor) -> Inputs:
        return Inputs(
            (as_matrix(rows), as_matrix(rows[: block.num_dst])), block.num_dst, projected, block
        )

    def forward(self, inputs: Inputs) -> Tensor:
        assert inputs.block is not None
        rows, own = inputs.matrices
        messages = torch.relu(
            matmul(self.apply_dropout(rows), self.weight_pool, self.bias_pool)
        ).to(self.bias.dtype)
        if len(inputs.projected):
            messages = torch.cat((messages, inputs.projected))
        pooled = edge_max(inputs.block, messages)
        return matmul(self.apply_dropout(own), self.weight_self) + matmul(
            pooled, self.weight_neigh, self.bias
        )

    def project(self, rows: Matrix) -> Tensor:
        return torch.relu(matmul(rows, self.weight_pool, self.bias_pool))

    @property
    def neighbour_weight(self) -> nn.Parameter:
        return self.weight_pool

    @property
    def first_weights(self) -> tuple[nn.Parameter, ...]:
        return self.weight_pool, self.weight_self
