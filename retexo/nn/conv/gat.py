"""Graph attention of Velickovic et al., "Graph Attention Networks", ICLR 2018.

    z_u = W^T x_u      e_uv = LeakyReLU(a_src . z_u + a_dst . z_v)      alpha_uv = softmax over u in N(v) of e_uv
    h_v = merge over the heads of  sum over u in N(v) of alpha_uv z_u  + b                     (their eqs. 1 to 6)

Heads are merged by their mean or side by side (concat). No self loops are added; a node without in-edges has h_v = b.
"""

import torch
from torch import Tensor, nn

from partitioning.dgl_import import dgl
from retexo.nn.block import Block
from retexo.nn.convolution import Convolution, Inputs, xavier
from retexo.nn.matrix import as_matrix

NEGATIVE_SLOPE = 0.2


class GAT(Convolution):
    """[N_src, F] -> [N_dst, D] with merge=mean, [N_dst, heads D] with merge=concat."""

    def __init__(self, num_in: int, num_out: int, dropout: float, heads: int, merge: str) -> None:
        super().__init__()
        self.weight = xavier(num_in, heads * num_out)
        self.attention_src = nn.Parameter(_attention(heads, num_out))
        self.attention_dst = nn.Parameter(_attention(heads, num_out))
        self.bias = nn.Parameter(torch.zeros(num_out if merge == "mean" else heads * num_out))
        self.heads, self.merge = heads, merge
        self.dropout_rate = dropout

    def prepare(self, block: Block, rows: Tensor, projected: Tensor) -> Inputs:
        return Inputs((as_matrix(rows),), block.num_dst, projected, block)

    def forward(self, inputs: Inputs) -> Tensor:
        assert inputs.block is not None
        (rows,) = inputs.matrices
        graph = inputs.block.graph
        z = (self.dropped(rows) @ self.weight).to(self.weight.dtype)
        z = torch.cat((z, inputs.projected)) if len(inputs.projected) else z
        z = z.view(-1, self.heads, self.weight.shape[1] // self.heads)
        score_src = (z * self.attention_src).sum(dim=-1, keepdim=True)
        score_dst = (z[: inputs.num_rows] * self.attention_dst).sum(dim=-1, keepdim=True)
        score = nn.functional.leaky_relu(dgl.ops.u_add_v(graph, score_src, score_dst), NEGATIVE_SLOPE)
        alpha = dgl.ops.edge_softmax(graph, score)
        merged: Tensor = dgl.ops.u_mul_e_sum(graph, z, alpha)
        merged = merged.mean(dim=1) if self.merge == "mean" else merged.flatten(1)
        return merged + self.bias

    @property
    def neighbour_weight(self) -> nn.Parameter:
        return self.weight


def _attention(heads: int, width: int) -> Tensor:
    """[1, heads, width], small: attention starts near the mean, which overfits less."""
    vectors = torch.empty(1, heads, width)
    nn.init.xavier_normal_(vectors, gain=nn.init.calculate_gain("relu"))
    return vectors
