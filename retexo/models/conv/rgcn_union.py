"""R-GCN (conv/rgcn.py) on a plain graph whose edges have a relation: all node types as one.

    h_v = sum over relations r of  W_r^T mean over u in N_r(v) of x_u + b

The means are computed once per layer, as for linear aggregators. Neighbours are always sent as
rows, because a partial sum belongs to one relation. More than NUM_BASES relations share
bases.
"""

from dataclasses import replace

from torch import Tensor

from retexo.models.aggregate import edge_sum
from retexo.models.block import Block
from retexo.models.conv.rgcn import NUM_BASES
from retexo.models.convolution import Inputs, LayerShape, RelationInput
from retexo.models.linear import NO_PROJECTED_ROWS, neighbour_sum
from retexo.models.relational import RelationalConvolution
from retexo.settings.options import ModelSettings


def build(layer: LayerShape, options: ModelSettings) -> "UnionRGCN":
    """Build the convolution over the relations of a union graph."""
    groups = ((RelationInput("rows", layer.num_in),) * layer.num_edge_features,)
    return UnionRGCN(groups, layer.num_out, options.dropout, NUM_BASES)


class UnionRGCN(RelationalConvolution):
    """[N_src, F] -> [N_dst, D]; the block's edge_feat is one-hot, [E, R]."""

    linear_aggregation, relational, reads_relations = False, False, True

    def prepare(self, block: Block, rows: Tensor, projected: Tensor) -> Inputs:
        """Return means over each relation's in-edges, weighted by its column of edge_feat."""
        assert not len(projected)
        assert block.edge_feat is not None
        ones, means = rows.new_ones(rows.shape[0], 1), []  # len() would fix it in an export
        for weight in block.edge_feat.to(rows.dtype).T.contiguous():
            of_relation = replace(block, weight=weight)
            count = edge_sum(of_relation, ones, weight)[:, 0]
            means.append(neighbour_sum(of_relation, rows, None, 1 / count.clamp(min=1), None))
        return Inputs(tuple(means), block.num_dst, NO_PROJECTED_ROWS)
