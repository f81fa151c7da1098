"""GraphSAGE-mean for each relation, as PyG's HeteroConv of SAGEConv.

Hamilton, Ying and Leskovec, NeurIPS 2017.

    h_v = W_self^T x_v + sum over relations r of  W_r^T mean over u in N_r(v) of x_u

W_self belongs to the stage. With weighted edges the mean is weighted.
"""

from retexo.models.convolution import LayerShape
from retexo.models.relational import RelationalConvolution
from retexo.settings.options import ModelSettings


def build(layer: LayerShape, options: ModelSettings) -> RelationalConvolution:
    """Build the convolution with one weight per relation."""
    return RelationalConvolution(layer.groups, layer.num_out, options.dropout)
