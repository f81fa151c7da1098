"""What a convolution is to the rest of the program.

The inputs of a layer are fixed while it trains. So a convolution has two halves: `prepare`, without parameters, is
computed once before the rounds; `forward` is computed in each. For a linear aggregator `prepare` does all the work on
edges and a round is dense products only.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from retexo.nn.block import Block
from retexo.nn.matrix import Matrix, Place, dropout, take


@dataclass(frozen=True)
class Inputs:
    """What `forward` reads in each round: fixed matrices, and for attention and pooling the edges."""

    matrices: tuple[Matrix, ...]
    num_rows: int
    """Rows of the output."""
    projected: Tensor
    """What came after the weights. Where the aggregator adds up: the sums [N_dst, D], and the matrix of sums is empty;
    else rows [m, D] of the block's last sources. [0, 0] for none."""
    block: Block | None = None
    bf16: bool = False
    """Whether dense products are in bfloat16."""

    def in_bf16(self) -> "Inputs":
        matrices = (matrix.bfloat16() if isinstance(matrix, Tensor) else matrix for matrix in self.matrices)
        return replace(self, matrices=tuple(matrices), bf16=True)

    def at(self, place: Place) -> "Inputs":
        """Of some rows of the output; of a convolution without edges."""
        assert self.block is None
        assert not len(self.projected)
        matrices = tuple(take(matrix, place) for matrix in self.matrices)
        return replace(self, matrices=matrices, num_rows=matrices[0].shape[0])


class Convolution(nn.Module):
    """A graph convolution, [N_src, F] -> [N_dst, D]."""

    dropout_rate: float
    sums_neighbours: ClassVar[bool] = False
    """Whether neighbours enter only by a sum of their rows, each with a factor of its own: then a partial sum can stand
    for several of them, and A(HW) = (AH)W."""

    scales_sources: ClassVar[bool] = False
    """Whether `source_scale` is not one."""

    def source_scale(self, out_degree: Tensor) -> Tensor | None:
        """The factor of each source, from its out-degree in the whole graph, float [n]; None for ones."""
        return None

    def prepare(self, block: Block, rows: Tensor, projected: Tensor) -> Inputs:
        """All that needs no parameters; [num_early, F] and [N_src - num_early, D] of the block's sources.

        Both may be overwritten.
        """
        raise NotImplementedError

    def forward(self, inputs: Inputs) -> Tensor:
        """[N_dst, D]"""
        raise NotImplementedError

    @property
    def neighbour_weight(self) -> nn.Parameter:
        """The first weight [F, D] that a neighbour's row, or the sum of several, is multiplied with."""
        raise NotImplementedError

    def project(self, rows: Matrix) -> Tensor:
        """What a neighbour's row is after that weight, without dropout: [n, F] -> [n, D]."""
        return rows @ self.neighbour_weight

    @property
    def projected_width(self) -> int:
        """D of `project`."""
        return self.neighbour_weight.shape[1]

    @property
    def first_weights(self) -> tuple[nn.Parameter, ...]:
        """The weights [F, D] that each of Inputs.matrices [n, F] is multiplied with, in that order."""
        return (self.neighbour_weight,)

    def dropped(self, matrix: Matrix) -> Matrix:
        """Dropout, drawn anew in each round of training."""
        return dropout(matrix, self.dropout_rate, self.training)


def xavier(num_in: int, num_out: int) -> nn.Parameter:
    """A weight [num_in, num_out], Glorot and Bengio's uniform initialisation with the gain of ReLU."""
    weight = torch.empty(num_in, num_out)
    nn.init.xavier_uniform_(weight, gain=nn.init.calculate_gain("relu"))
    return nn.Parameter(weight)
