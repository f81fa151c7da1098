"""Base class of convolutions.

The inputs of a layer are fixed while it trains, so a convolution has two halves: `prepare`,
without parameters, runs once before the rounds, and `forward` runs in each round. For a linear
aggregator `prepare` does all work on edges, and a round consists of dense products.

N_src source and N_dst destination nodes of a block, F input width, D output width, K edge
features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from retexo.models.block import Block
from retexo.models.matrix import Matrix, RowIndex, dropout, matmul, take_rows


@dataclass(frozen=True)
class RelationInput:
    """The rows that a relation passes to its destinations."""

    rows: str
    """Name of the rows. Inputs of equal name have the same rows and may share weights."""
    width: int
    """F"""
    dropout: float | None = None
    """Dropout rate of the rows or their mean; None for the convolution's rate."""


@dataclass(frozen=True)
class LayerShape:
    """Shape and position of a convolution in the network, for its module's `build`."""

    num_in: int
    """F"""
    num_out: int
    """Output width of the convolution: hidden_dim or a share of it, or the number of classes for a
    last layer without output head."""
    is_last: bool
    """Whether it is a last layer without output head."""
    num_edge_features: int = 0
    """K edge features that attention reads."""
    groups: tuple[tuple[RelationInput, ...], ...] = ()
    """For relational convolutions: the inputs, in groups that are summed."""
    num_own: int = 0
    """For relational attention: width of the destinations' own features."""


@dataclass(frozen=True)
class Inputs:
    """What `forward` reads in each round: fixed matrices, and edges for attention and pooling."""

    matrices: tuple[Matrix, ...]
    num_rows: int
    """N_dst"""
    projected: Tensor
    """Rows received after the layer's weights; [0, 0] for none. Linear aggregation: [N_dst, D],
    their aggregate, and its entry in `matrices` is [N_dst, 0]. Otherwise [m, D], the last sources
    of the block."""
    block: Block | None = None
    skips: tuple[Matrix, ...] = ()
    """[N_dst, F] each: inputs of the skip connections (own rows, features, an aggregate)."""
    blocks: tuple[Block, ...] = ()
    """For relational attention: in-edges of each relation; sources are the last `matrices`."""
    bf16: bool = False
    """Whether dense products are computed in bfloat16."""

    @property
    def all_matrices(self) -> tuple[Matrix, ...]:
        """Return `matrices`, then `skips`: what Stage.first_weights are multiplied with."""
        return *self.matrices, *self.skips

    def with_matrices(self, matrices: Sequence[Matrix], num_rows: int) -> "Inputs":
        """Return the inputs with others, in the same order, in place of `all_matrices`."""
        count = len(self.matrices)
        chosen, skips = tuple(matrices[:count]), tuple(matrices[count:])
        return replace(self, matrices=chosen, skips=skips, num_rows=num_rows)

    @property
    def dense_on_host(self) -> bool:
        """Whether all matrices are dense and on the CPU, so that slicing rows makes no copy."""
        return all(
            isinstance(matrix, Tensor) and matrix.device.type == "cpu"
            for matrix in self.all_matrices
        )

    def to_bf16(self) -> "Inputs":
        """Return the inputs with dense matrices and products in bfloat16; sparse ones stay."""

        matrices = [
            matrix.bfloat16() if isinstance(matrix, Tensor) else matrix
            for matrix in self.all_matrices
        ]
        return replace(self.with_matrices(matrices, self.num_rows), bf16=True)

    def at(self, rows: RowIndex) -> "Inputs":
        """Return the inputs of some output rows; only for convolutions without edges."""
        assert self.block is None
        assert not self.blocks
        assert not len(self.projected)
        matrices = [take_rows(matrix, rows) for matrix in self.all_matrices]
        return self.with_matrices(matrices, matrices[0].shape[0])


class Convolution(nn.Module):
    """A graph convolution, [N_src, F] -> [N_dst, D]."""

    linear_aggregation: ClassVar[bool] = False
    """Whether neighbours enter only through a weighted sum of their rows. Then partial sums may be
    sent, and A(HW) = (AH)W."""
    reads_relations: ClassVar[bool] = False
    """Whether edge features are one-hot relations (PartEdges.edge_relation); then it takes no rows
    after `project`."""
    uses_out_degree: ClassVar[bool] = False
    """Whether `source_scale` depends on the out-degree."""
    adds_skips: bool = False
    """Whether skip connections are added to the output instead of concatenated."""
    relational: ClassVar[bool] = False
    """Whether it has one input per relation; only for heterogeneous graphs."""
    attention_heads: int = 0
    """Number of attention heads; 0 without attention."""
    weight: nn.Parameter
    """[F, D]; a convolution with another name for it overrides `neighbour_weight`."""

    def __init__(self, num_out: int, dropout: float) -> None:
        """Keep D = num_out and the dropout rate in [0, 1); subclasses add the parameters."""
        super().__init__()
        self.output_dim, self.dropout_rate = num_out, dropout

    @property
    def fixed_inputs(self) -> bool:
        """Whether `prepare` of a plain graph does all work on edges."""
        return self.linear_aggregation or self.reads_relations

    def read_edges(self, weight: Tensor | None, feat: Tensor | None) -> Tensor | None:
        """Return what it reads of each edge, [E, K], from weights [E] and features; None for most.

        Attention reads a weight as one more feature, the last one.
        """
        if self.reads_relations:
            return feat
        if self.relational or not self.attention_heads:
            return None
        if weight is None:
            return feat
        return weight[:, None] if feat is None else torch.cat((feat, weight[:, None]), dim=1)

    def source_scale(self, out_degree: Tensor) -> Tensor | None:
        """Return the factor of each source from its global out-degree, float [n]; None for ones."""
        return None

    def prepare(self, block: Block, rows: Tensor, projected: Tensor) -> Inputs:
        """Compute everything that needs no parameters.

        Args:
            block: the in-edges of the destinations.
            rows: [block.num_unprojected, F] rows of the block's first sources; may be
                overwritten.
            projected: [N_src - block.num_unprojected, D] rows of the other sources, after
                `project`; may be overwritten.
        """
        raise NotImplementedError

    def forward(self, inputs: Inputs) -> Tensor:
        """Return the output, [N_dst, D]."""
        raise NotImplementedError

    @property
    def neighbour_weight(self) -> nn.Parameter:
        """Return the first weight [F, D] that multiplies a neighbour's row or a sum of rows."""
        return self.weight

    def project(self, rows: Matrix) -> Tensor:
        """Multiply rows by `neighbour_weight` without dropout: [n, F] -> [n, D]."""
        return matmul(rows, self.neighbour_weight)

    @property
    def projected_width(self) -> int:
        """Output width D of `project`."""
        return self.neighbour_weight.shape[1]

    @property
    def first_weights(self) -> tuple[nn.Parameter, ...]:
        """Return the weights [F, D] that multiply each of Inputs.matrices [n, F], in that order."""
        return (self.neighbour_weight,)

    def apply_dropout(self, matrix: Matrix, rate: float | None = None) -> Matrix:
        """Apply dropout, drawn anew in each training round; rate None: the convolution's."""
        return dropout(matrix, self.dropout_rate if rate is None else rate, self.training)


def make_norm(kind: str, width: int) -> nn.Module:
    """Return the normalization that model.norm names, for vectors [n, width]."""
    return nn.LayerNorm(width) if kind == "layer" else nn.Identity()


def make_activation(kind: str) -> Callable[[Tensor], Tensor]:
    """Return the function that model.activation names; relu writes into its argument."""
    functions = {"relu": torch.relu_, "tanh": torch.tanh}
    return functions.get(kind) or getattr(nn.functional, kind)


def xavier(num_in: int, num_out: int) -> nn.Parameter:
    """Return a weight [num_in, num_out], Glorot-uniform with the gain of ReLU."""
    weight = torch.empty(num_in, num_out)
    nn.init.xavier_uniform_(weight, gain=nn.init.calculate_gain("relu"))
    return nn.Parameter(weight)
