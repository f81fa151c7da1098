"""Graph attention within each relation, summed over relations: PyG's HeteroConv of GATConv.

Velickovic et al., ICLR 2018; it is WIRGAT of Busbridge et al., "Relational Graph Attention
Networks", 2019.

    z_u = W_r^T x_u
    e_uv = LeakyReLU(a_r . z_u + U_r^T x_v)
    alpha_uv = softmax over u in N_r(v) of e_uv + log w_uv
    h_v = b + sum over relations r of  concatenated heads of  sum over u in N_r(v) of alpha_uv z_u

U_r replaces PyG's product of a weight and the destination's attention vector. An edge of weight
w_uv (default 1) counts as w_uv equal edges. Later layers aggregate the input features by their
means, as R-GCN does, and attend to the previous layer's output only.
"""

import torch
from torch import Tensor, nn

from partitioning.errors import InputError
from retexo.models.aggregate import edge_softmax, edge_sum
from retexo.models.block import Block
from retexo.models.conv.gat import NEGATIVE_SLOPE
from retexo.models.convolution import Inputs, LayerShape, xavier
from retexo.models.matrix import Matrix, matmul
from retexo.models.relational import Groups, RelationalConvolution
from retexo.settings.options import ModelSettings


def build(layer: LayerShape, options: ModelSettings) -> "RelationalAttention":
    """Build the attention of one layer; InputError if hidden_dim is no multiple of heads."""
    heads = 1 if layer.is_last else options.heads
    if layer.num_out % heads:
        raise InputError(
            f"hidden_dim={options.hidden_dim}: the width of a group, {layer.num_out}, must be "
            f"a multiple of heads={heads} for rgat"
        )
    return RelationalAttention(layer.groups, layer.num_out, options.dropout, heads, layer.num_own)


class RelationalAttention(RelationalConvolution):
    """A RelationalConvolution whose last group attends to rows of the sources, [N_src, F_r] each.

    Args:
        groups: the inputs, in groups.
        num_out: D
        dropout: default dropout rate.
        heads: number of attention heads, D / heads wide each.
        num_own: width of the destinations' features; 0 for none, then e_uv depends on u only.
    """

    linear_aggregation = False

    def __init__(
        self, groups: Groups, num_out: int, dropout: float, heads: int, num_own: int
    ) -> None:
        super().__init__(groups, num_out, dropout)
        self.attention_heads = heads
        count = len(groups[-1]) if groups else 0
        vectors = (
            torch.randn(heads, num_out // heads) * (heads / num_out) ** 0.5 for _ in range(count)
        )
        self.attention_src = nn.ParameterList(nn.Parameter(vector) for vector in vectors)
        self.attention_dst = nn.ParameterList(
            xavier(num_own, heads) for _ in range(count if num_own else 0)
        )

    def forward(self, inputs: Inputs) -> Tensor:
        own = inputs.skips[0] if self.attention_dst else None
        count = len(inputs.matrices) - len(self.attention_src)
        out = self.sums(inputs.matrices[:count], inputs.num_rows, self.groups[:-1])
        parts = [
            self._attend(place, rows, block, own)
            for place, (rows, block) in enumerate(
                zip(inputs.matrices[count:], inputs.blocks, strict=True)
            )
        ]
        if self.groups:
            out.append(self.combine(len(self.groups) - 1, parts, inputs.num_rows))
        return self.join(out)

    def _attend(self, place: int, rows: Matrix, block: Block, own: Matrix | None) -> Tensor:
        """Return the attention sum over one relation, [N_dst, D].

        Weights of edges multiply the exponentials of the scores.
        """
        rate = self.groups[-1][place].dropout
        z = matmul(self.apply_dropout(rows, rate), self.weight_of(len(self.groups) - 1, place)).to(
            self.bias.dtype
        )
        z = z.view(-1, self.attention_heads, self.width // self.attention_heads)
        score = (z * self.attention_src[place]).sum(dim=-1).index_select(0, block.src)
        if own is not None:
            score = score + (own @ self.attention_dst[place]).index_select(0, block.dst)
        score = nn.functional.leaky_relu(score, NEGATIVE_SLOPE)
        if block.weight is not None:
            score = score + block.weight.clamp(min=1e-30).log()[:, None]
        alpha = edge_softmax(block, score.to(self.bias.dtype))
        heads = zip(z.unbind(1), alpha.unbind(1), strict=True)
        return torch.cat(
            [edge_sum(block, rows.contiguous(), share.contiguous()) for rows, share in heads], dim=1
        )
