"""Convolutions over relations: the sum of each relation's mean row, with its own weights.

n destinations, D output width of a group, F_r width of a relation's rows, B bases.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from retexo.models.aggregate import edge_sum
from retexo.models.block import Block
from retexo.models.convolution import Convolution, Inputs, RelationInput, xavier
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.matrix import Matrix, matmul

Groups = Sequence[Sequence[RelationInput]]


def block_mean(block: Block, rows: Tensor) -> Tensor:
    """Return the weighted mean of rows [N_src, D] over each destination's in-edges, [n, D].

    0 without in-edges.
    """
    degree = torch.where(block.in_degree > 0, block.in_degree, 1)
    return edge_sum(block, rows, block.weight) / degree[:, None]


def relation_inputs(
    conv: Convolution,
    into: Sequence[tuple[Block, Tensor]],
    num_rows: int,
    own: tuple[Matrix, ...],
    first: Sequence[Tensor] = (),
) -> Inputs:
    """Return the inputs of a relational stage: `first`, then each relation's means.

    Attention reads the rows themselves, and the blocks.

    Args:
        into: by relation into the n destinations, its block and the rows [N_src, F] of its sources.
        num_rows: n
        own: [n, F] of the destinations, for the skip connection; empty without features.
        first: [n, F] matrices of other relations.
    """
    blocks: tuple[Block, ...] = ()
    if conv.linear_aggregation:
        read = [block_mean(block, rows) for block, rows in into]
    else:
        blocks, read = tuple(block for block, _ in into), [rows for _, rows in into]
    return Inputs((*first, *read), num_rows, NO_PROJECTED_ROWS, skips=own, blocks=blocks)


class RelationalConvolution(Convolution):
    """The relations' mean neighbours m_r, [n, F_r] -> [n, D] for each group, side by side:

        h_v = [ sum over r of W_r^T m_r(v) ; ... ] + b

    If more than B relations have rows of the same kind, they share B bases (Schlichtkrull et al.,
    2018, equation 3): W_r = sum over b of a_rb V_b.

    With `multiplies` (task.scorer=dot) a group is the product over r of W_r^T m_r(v) + b instead.
    """

    linear_aggregation = True
    relational = True
    multiplies = False

    def __init__(
        self, groups: Groups, num_out: int, dropout: float, num_bases: int | None = None
    ) -> None:
        """Draw the weights by torch's generator.

        More than B relations of a group whose rows are of the same kind share B bases.

        Args:
            groups: the relations whose sum makes one part of the output, for each part.
            num_out: D of each part.
            dropout: rate, applied to inputs whose relation has none of its own.
            num_bases: B; None gives each relation its own weights.
        """
        super().__init__(num_out * len(groups), dropout)
        self.groups, self.width, self.num_bases = groups, num_out, num_bases
        self.weights, self.shares = nn.ParameterList(), nn.ParameterList()
        self.bias = nn.Parameter(torch.zeros(self.output_dim))
        self._places: list[list[tuple[int, int]]] = []
        """By group and relation: the index of its weight, and of its shares of the bases, or -1."""
        for group in groups:
            self._places.append([])
            based: dict[str, int] = {}
            for relation in group:
                num_alike = sum(relation.rows == other.rows for other in group)
                self._places[-1].append(
                    self._add_parameters(
                        relation, num_bases is not None and num_alike > num_bases, based
                    )
                )

    def _add_parameters(
        self, relation: RelationInput, has_bases: bool, based: dict[str, int]
    ) -> tuple[int, int]:
        """Add the weights of one relation, or its shares of the bases.

        Return their indices in `weights` and `shares`, -1 without bases. based: by kind of rows,
        the index of its bases in this group; new ones are added. Draws by torch's generator.
        """
        if has_bases:
            assert self.num_bases is not None
            self.shares.append(nn.Parameter(torch.randn(self.num_bases) / self.num_bases**0.5))
            if relation.rows in based:
                return based[relation.rows], len(self.shares) - 1
            based[relation.rows] = len(self.weights)
            bases = [xavier(relation.width, self.width).detach() for _ in range(self.num_bases)]
            self.weights.append(nn.Parameter(torch.cat(bases, dim=1)))
            return len(self.weights) - 1, len(self.shares) - 1
        self.weights.append(xavier(relation.width, self.width))
        return len(self.weights) - 1, -1

    def weight_of(self, group: int, place: int) -> Tensor:
        """W_r, [F_r, D]; place: of the relation in its group."""
        weight, shares = self._places[group][place]
        bases: Tensor = self.weights[weight]
        if shares < 0:
            return bases
        return torch.einsum(
            "fbd,b->fd", bases.view(len(bases), -1, self.width), self.shares[shares]
        )

    def forward(self, inputs: Inputs) -> Tensor:
        return self.join(self.sums(inputs.matrices, inputs.num_rows, self.groups))

    def join(self, groups: Sequence[Tensor]) -> Tensor:
        """Return the groups side by side, with the bias, which products already have."""
        out = torch.cat([*groups], dim=1)
        return out if self.multiplies else out + self.bias

    def sums(self, matrices: Sequence[Matrix], num_rows: int, groups: Groups) -> list[Tensor]:
        """Return an empty piece [n, 0], then each group's sum or product over its relations."""
        remaining, sums = iter(matrices), [self.bias.new_zeros(num_rows, 0)]
        for group, relations in enumerate(groups):
            parts = [
                matmul(
                    self.apply_dropout(next(remaining), relation.dropout),
                    self.weight_of(group, place),
                )
                for place, relation in enumerate(relations)
            ]
            sums.append(self.combine(group, parts, num_rows))
        return sums

    def combine(self, group: int, parts: Sequence[Tensor], num_rows: int) -> Tensor:
        """Return the sum of a group's parts, or the product of parts plus bias, [n, D].

        Zeros if there are no parts.
        """
        if not parts:
            return self.bias.new_zeros(num_rows, self.width)
        if self.multiplies:
            bias = self.bias[group * self.width :][: self.width]
            return math.prod((part + bias for part in parts[1:]), start=parts[0] + bias)
        return sum(parts[1:], start=parts[0])

    @property
    def neighbour_weight(self) -> nn.Parameter:
        return self.bias  # only its type is read

    @property
    def projected_width(self) -> int:
        """Width D of the rows that a stage passes on after its weights."""
        return self.width

    @property
    def first_weights(self) -> tuple[nn.Parameter, ...]:
        """Return the weights that inputs are multiplied with, in their order.

        Shared bases are repeated.
        """
        return tuple(self.weights[weight] for group in self._places for weight, _ in group)
