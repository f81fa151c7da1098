"""Graph attention of Velickovic et al., "Graph Attention Networks", ICLR 2018 (eqs. 1 to 6).

    z_u = W^T x_u
    e_uv = LeakyReLU(a_src . z_u + a_dst . z_v)
    alpha_uv = softmax over u in N(v) of e_uv
    h_v = merge over the heads of  sum over u in N(v) of alpha_uv z_u  + b

With edge features f_uv, [K] (an edge weight is one feature), t_uv = W_e^T f_uv enters score and
sum:

    e_uv = LeakyReLU(a_src . z_u + a_dst . z_v + a_edge . t_uv)
    h_v = merge over the heads of  sum over u in N(v) of alpha_uv (z_u + t_uv)  + b

The score is that of PyG's GATConv with edge_dim, the sum that of PyG's TransformerConv (Shi et
al., "Masked Label Prediction", IJCAI 2021). A self loop has the mean features of the node's
in-edges.

N(v) contains v itself, as in the paper (section 2.1) and in PyG's GATConv(add_self_loops=True),
so a node without in-edges has h_v = merge of z_v + b. With self_loops=False it does not, as in
the public Retexo code, and such a node has h_v = b. Heads are averaged or concatenated (concat).
"""

import torch
from torch import Tensor, nn

from partitioning.errors import InputError
from retexo.models.aggregate import edge_softmax, edge_sum, edge_sum_per_head
from retexo.models.block import Block
from retexo.models.convolution import Convolution, Inputs, LayerShape, xavier
from retexo.models.matrix import Matrix, as_matrix, matmul
from retexo.settings.options import GATOptions

NEGATIVE_SLOPE = 0.2


def build(layer: LayerShape, options: GATOptions) -> "GAT":
    """Build a layer whose heads have width hidden_dim / heads, or num_out in the last layer.

    The last layer averages its heads, the others merge them by options.head_merge. InputError if
    hidden_dim is no multiple of heads.
    """
    if options.hidden_dim % options.heads:
        raise InputError(
            f"hidden_dim={options.hidden_dim}: must be a multiple of heads={options.heads} for gat"
        )
    width = layer.num_out if layer.is_last else options.hidden_dim // options.heads
    merge = "mean" if layer.is_last else options.head_merge
    return GAT(
        layer.num_in,
        width,
        options.dropout,
        options.heads,
        merge,
        options.self_loops,
        layer.num_edge_features,
    )


class GAT(Convolution):
    """[N_src, F] -> [N_dst, D] with merge=mean, [N_dst, heads D] with merge=concat.

    Args:
        num_in: F
        num_out: D, the width of one head.
        dropout: rate, applied to the rows.
        heads: number of attention heads.
        merge: "mean" or "concat".
        self_loops: whether a node is its own neighbour.
        num_edge_features: K
    """

    adds_skips = True

    def __init__(
        self,
        num_in: int,
        num_out: int,
        dropout: float,
        heads: int,
        merge: str,
        self_loops: bool,
        num_edge_features: int = 0,
    ) -> None:
        super().__init__(num_out if merge == "mean" else heads * num_out, dropout)
        self.weight = xavier(num_in, heads * num_out)
        self.attention_src = nn.Parameter(_draw_attention(heads, num_out))
        self.attention_dst = nn.Parameter(_draw_attention(heads, num_out))
        if num_edge_features:
            self.weight_edge = xavier(num_edge_features, heads * num_out)
            self.attention_edge = nn.Parameter(_draw_attention(heads, num_out))
        self.bias = nn.Parameter(torch.zeros(self.output_dim))
        self.attention_heads, self.merge, self.self_loops = heads, merge, self_loops

    def prepare(self, block: Block, rows: Tensor, projected: Tensor) -> Inputs:
        block = block.with_self_loops() if self.self_loops else block
        return Inputs((as_matrix(rows),), block.num_dst, projected, block)

    def forward(self, inputs: Inputs) -> Tensor:
        assert inputs.block is not None
        rows, block = self.apply_dropout(inputs.matrices[0]), inputs.block
        weight = self.weight.view(len(self.weight), self.attention_heads, -1)
        if self._sums_first(rows, inputs):
            assert isinstance(rows, Tensor)
            score_src, score_dst = (
                (some @ (weight * vector).sum(dim=-1)).to(weight.dtype)
                for some, vector in (
                    (rows, self.attention_src),
                    (rows[: inputs.num_rows], self.attention_dst),
                )
            )
            alpha = self._attention(block, score_src, score_dst).to(rows.dtype)
            merged = (
                (edge_sum_per_head(block, rows, alpha) @ weight.transpose(0, 1))
                .to(weight.dtype)
                .transpose(0, 1)
            )
        else:
            z = matmul(rows, self.weight).to(weight.dtype)
            z = torch.cat((z, inputs.projected)) if len(inputs.projected) else z
            z = z.view(-1, *weight.shape[1:])
            score_src, score_dst = (
                (z * self.attention_src).sum(-1),
                (z[: inputs.num_rows] * self.attention_dst).sum(-1),
            )
            alpha = self._attention(block, score_src, score_dst)
            heads = zip(z.unbind(1), alpha.unbind(1), strict=True)
            merged = torch.stack(
                [edge_sum(block, values, share.contiguous()) for values, share in heads], dim=1
            )
        if block.edge_feat is not None:
            merged = merged + self._edge_sum(block, block.edge_feat, alpha.to(weight.dtype))
        merged = merged.mean(dim=1) if self.merge == "mean" else merged.flatten(1)
        return merged + self.bias

    def _sums_first(self, rows: Matrix, inputs: Inputs) -> bool:
        """Return whether to sum rows before multiplying by the weights, per head.

        The result is the same, with less work if edges share few sources. Measured costs: adding
        one value equals 10 multiply-adds of a product; computing one value of z equals 14
        additions.
        """
        block = inputs.block
        assert block is not None
        if (
            not isinstance(rows, Tensor)
            or block.scale is not None
            or rows.requires_grad
            or len(inputs.projected)
            or not len(block.src)
        ):
            return False
        width, others = rows.shape[1], len(rows) - inputs.num_rows
        after = self.weight.shape[1] * (14 * len(rows) + others * width / 10)
        return len(block.src) * self.attention_heads * width < after

    def _attention(self, block: Block, score_src: Tensor, score_dst: Tensor) -> Tensor:
        """Return alpha, [E, heads], from scores of sources [N_src, heads] and destinations."""
        score = score_src.index_select(0, block.src) + score_dst.index_select(0, block.dst)
        if block.edge_feat is not None:
            score = score + self._edge_score(block.edge_feat)
        return edge_softmax(block, nn.functional.leaky_relu(score, NEGATIVE_SLOPE, inplace=True))

    def _edge_score(self, feat: Tensor) -> Tensor:
        """Return a_edge . t for each edge, [E, heads], from features [E, K], without t."""
        weight = self.weight_edge.view(len(self.weight_edge), self.attention_heads, -1)
        scores: Tensor = feat @ (weight * self.attention_edge).sum(dim=-1)
        return scores.to(self.weight.dtype)

    def _edge_sum(self, block: Block, feat: Tensor, alpha: Tensor) -> Tensor:
        """Return the sums of alpha W_edge t over in-edges, [N_dst, heads, D].

        Edge features t, [E, K], are summed before they are multiplied by the weights; alpha is [E,
        heads], and is multiplied by block.scale.
        """
        weight = self.weight_edge.view(len(self.weight_edge), self.attention_heads, -1)
        alpha = alpha if block.scale is None else alpha * block.scale[:, None]
        zeros = feat.new_zeros(block.num_dst, feat.shape[1])
        sums = [zeros.index_add(0, block.dst, feat * share[:, None]) for share in alpha.unbind(1)]
        return torch.stack([total @ weight[:, head] for head, total in enumerate(sums)], dim=1)


def _draw_attention(heads: int, width: int) -> Tensor:
    """Draw small attention vectors [1, heads, width]: starting near the mean overfits less."""
    vectors = torch.empty(1, heads, width)
    # On the meta device (check_model) this would import torch's compiler, for seconds.
    if not vectors.is_meta:
        nn.init.xavier_normal_(vectors, gain=nn.init.calculate_gain("relu"))
    return vectors
