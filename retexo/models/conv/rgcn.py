"""Relational graph convolution (R-GCN).

Schlichtkrull et al., "Modeling Relational Data with Graph Convolutional Networks", ESWC 2018.

    h_v = W_0^T x_v + sum over relations r of  W_r^T sum over u in N_r(v) of x_u / c_vr

(eq. 2) with c_vr = |N_r(v)|, or the sum of the edge weights. W_0 belongs to the stage. If more than
NUM_BASES relations share a source type, they share bases: W_r = sum over b of a_rb V_b (eq. 3,
where all relations share one set of bases because all rows are equally wide).
"""

from retexo.models.convolution import LayerShape
from retexo.models.relational import RelationalConvolution
from retexo.settings.options import ModelSettings

NUM_BASES = 8
"""A graph with fewer relations of each source type, as most, has weights of their own."""


def build(layer: LayerShape, options: ModelSettings) -> RelationalConvolution:
    """Build the convolution of one layer, with bases shared by relations."""
    return RelationalConvolution(layer.groups, layer.num_out, options.dropout, NUM_BASES)
