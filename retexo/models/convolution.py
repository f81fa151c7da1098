"""What a convolution is to the rest of the program.

The inputs of a layer are fixed while it trains, so a convolution has two halves: `prepare`, without parameters, is
computed once before the rounds, and `forward` in each round. With a linear aggregator `prepare` does all the work on
edges, and a round is dense products only.

N_src source and N_dst destination nodes of a block, F input width, D output width, K features of an edge.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from retexo.models.block import Block
from retexo.models.matrix import Matrix, RowIndex, dropout, matmul, take_rows
from retexo.settings.run_settings import ModelSettings


@dataclass(frozen=True)
class RelationInput:
    """What a relation brings to its destinations: rows of its sources."""

    rows: str
    """Whose rows: those of equal name are alike, and may share weights."""
    width: int
    """F of the rows."""
    dropout: float | None = None
    """Rate, of them or of their mean; None: the convolution's."""


@dataclass(frozen=True)
class LayerShape:
    """The place of a convolution in a network, from which its module builds it."""

    num_in: int
    """F"""
    num_out: int
    """Width of what the convolution adds to the stage: hidden_dim, or a share of it; the number of classes for a last
    layer that is the bare convolution."""
    is_last: bool
    """Whether it is that bare convolution."""
    model: ModelSettings
    num_edge_features: int = 0
    """K that attention reads."""
    groups: tuple[tuple[RelationInput, ...], ...] = ()
    """Of a relational convolution: what it adds up, group by group."""
    num_own: int = 0
    """Of relational attention: the width of the destinations' own features."""


@dataclass(frozen=True)
class Inputs:
    """What `forward` reads in each round: fixed matrices, and for attention and pooling the edges."""

    matrices: tuple[Matrix, ...]
    num_rows: int
    """N_dst"""
    projected: Tensor
    """Rows that were multiplied with the weights before they came; [0, 0] for none. Linear aggregation: [N_dst, D],
    the aggregate itself, and its place in `matrices` is [N_dst, 0]. Else [m, D], the last sources of the block."""
    block: Block | None = None
    skips: tuple[Matrix, ...] = ()
    """[N_dst, F] each: what the stage reads past the convolution: the destinations' own rows, an earlier aggregate."""
    blocks: tuple[Block, ...] = ()
    """Of relational attention: the in-edges of each relation, whose sources are the rows of the last `matrices`."""
    bf16: bool = False
    """Whether dense products are in bfloat16."""

    @property
    def dense_on_host(self) -> bool:
        """Whether all matrices are dense and in the memory of the CPU, where some rows of one are no copy."""
        matrices = (*self.matrices, *self.skips)
        return all(isinstance(each, Tensor) and each.device.type == "cpu" for each in matrices)

    def to_bf16(self) -> "Inputs":
        """The same with dense matrices and products in bfloat16."""

        def converted(matrices: tuple[Matrix, ...]) -> tuple[Matrix, ...]:
            return tuple(
                matrix.bfloat16() if isinstance(matrix, Tensor) else matrix for matrix in matrices
            )

        return replace(
            self, matrices=converted(self.matrices), skips=converted(self.skips), bf16=True
        )

    def at(self, rows: RowIndex) -> "Inputs":
        """The inputs of some rows of the output, for a convolution without edges."""
        assert self.block is None
        assert not self.blocks
        assert not len(self.projected)
        matrices = tuple(take_rows(matrix, rows) for matrix in self.matrices)
        skips = tuple(take_rows(matrix, rows) for matrix in self.skips)
        return replace(self, matrices=matrices, skips=skips, num_rows=matrices[0].shape[0])


class Convolution(nn.Module):
    """A graph convolution, [N_src, F] -> [N_dst, D]."""

    linear_aggregation: ClassVar[bool] = False
    """Whether neighbours enter only by a weighted sum of their rows: then a partial sum can stand for several of them,
    and A(HW) = (AH)W."""
    fixed_inputs: ClassVar[bool] = False
    """Whether `prepare` does all the work on edges."""
    takes_projected: ClassVar[bool] = True
    """Whether rows may come after `project`."""
    reads_relations: ClassVar[bool] = False
    """Whether the features of an edge are its relation, one-hot (Partition.edge_relation)."""
    uses_out_degree: ClassVar[bool] = False
    """Whether `source_scale` depends on it."""
    adds_skips: bool = False
    """Whether skips of the stage are added to the output, rather than put beside it."""
    relational: ClassVar[bool] = False
    """Whether it is for heterogeneous graphs: it has an input for each relation, and is none for plain graphs."""
    attention_heads: int = 0
    """Attention scores of an edge; 0 for a convolution without attention."""
    weight: nn.Parameter
    """[F, D]; a convolution with another name for it defines `neighbour_weight`."""

    def __init__(self, num_out: int, dropout: float) -> None:
        """num_out: D. dropout: rate, in [0, 1)."""
        super().__init__()
        self.output_dim, self.dropout_rate = num_out, dropout

    def source_scale(self, out_degree: Tensor) -> Tensor | None:
        """The factor of each source, from its out-degree in the whole graph, float [n]; None for ones."""
        return None

    def prepare(self, block: Block, rows: Tensor, projected: Tensor) -> Inputs:
        """Compute all that needs no parameters.

        Args:
            block: the in-edges of the destinations.
            rows: [block.num_unprojected, F] of the block's first sources; may be overwritten.
            projected: [N_src - block.num_unprojected, D] of the others, after `project`; may be overwritten.
        """
        raise NotImplementedError

    def forward(self, inputs: Inputs) -> Tensor:
        """[N_dst, D]"""
        raise NotImplementedError

    @property
    def neighbour_weight(self) -> nn.Parameter:
        """The first weight [F, D] that a neighbour's row, or the sum of several, is multiplied with."""
        return self.weight

    def project(self, rows: Matrix) -> Tensor:
        """A neighbour's row after that weight, without dropout: [n, F] -> [n, D]."""
        return matmul(rows, self.neighbour_weight)

    @property
    def projected_width(self) -> int:
        """D of `project`."""
        return self.neighbour_weight.shape[1]

    @property
    def first_weights(self) -> tuple[nn.Parameter, ...]:
        """The weights [F, D] that each of Inputs.matrices [n, F] is multiplied with, in that order."""
        return (self.neighbour_weight,)

    def weighted_aggregate(self, inputs: Inputs) -> Tensor | None:
        """[N_dst, K] the aggregate after `neighbour_weight`, without dropout; None where aggregation is not linear."""
        return None

    def apply_dropout(self, matrix: Matrix, rate: float | None = None) -> Matrix:
        """The matrix after dropout, drawn anew in each round of training; rate: None for the convolution's."""
        return dropout(matrix, self.dropout_rate if rate is None else rate, self.training)


def make_norm(kind: str, width: int) -> nn.Module:
    """What model.norm says, of vectors [n, width]."""
    return nn.LayerNorm(width) if kind == "layer" else nn.Identity()


def xavier(num_in: int, num_out: int) -> nn.Parameter:
    """A weight [num_in, num_out], Glorot and Bengio's uniform initialisation with the gain of ReLU."""
    weight = torch.empty(num_in, num_out)
    nn.init.xavier_uniform_(weight, gain=nn.init.calculate_gain("relu"))
    return nn.Parameter(weight)
