"""How the shares of a step are added up over the workers: whole, or as low-rank factors.

What is sent goes with the tail of a round's message (retexo.training.loop). Rows of a weight whose input is zero in
every training row have no gradient, and are left out. P parameters of a stage; of one matrix N rows, M columns, rank R.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from retexo.comm.collectives import Communicator, Summand
from retexo.comm.traffic import Purpose
from retexo.config.settings import GradientSettings
from retexo.training.parameters import FlatParameters, Part


class GradientReduction(Protocol):
    """One way to add up."""

    def add_up(self, tail: Tensor) -> None:
        """Replace flat.gradient [P] by its sum over all workers, and `tail`, float [T], by its exact sum."""

    def memory(self) -> list[Tensor]:
        """What is remembered from one round to the next."""


@dataclass(frozen=True, eq=False)
class Wire:
    """How a step's share travels."""

    comm: Communicator
    purpose: Purpose
    dtype: torch.dtype | None
    """None: the gradient's own."""
    zero_ranks: frozenset[int]
    """Ranks without training nodes: their share is zero, and they send none."""

    def add_up(self, share: Tensor, *others: Tensor) -> None:
        """Sum over all workers in place: of a share of the step, and of what every worker sends as it is."""
        exact = [Summand(other) for other in others]
        self.comm.all_reduce([Summand(share, self.dtype, self.zero_ranks), *exact], self.purpose)

    def rounded(self, share: Tensor) -> Tensor:
        """What of a worker's share arrives at the others."""
        return share if self.dtype is None else share.to(self.dtype).to(share.dtype)


class DenseReduction:
    """Every entry that can have a gradient."""

    def __init__(self, flat: FlatParameters, wire: Wire) -> None:
        self._gradient, self._used, self._wire = flat.gradient, flat.used(), wire

    def add_up(self, tail: Tensor) -> None:
        if self._used is None:
            self._wire.add_up(self._gradient, tail)
            return
        share = self._gradient[self._used]
        self._wire.add_up(share, tail)
        self._gradient[self._used] = share

    def memory(self) -> list[Tensor]:
        return []


class PowerSGDReduction:
    """Low-rank factors of each matrix, with error feedback and warm start; vectors whole.

    Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
    NeurIPS 2019, algorithms 1 and 2. Two messages a round: the sums of M Q, then those of M^T P. A matrix whose factors
    are no shorter than itself goes whole.
    """

    def __init__(self, flat: FlatParameters, wire: Wire, rank: int) -> None:
        self._flat, self._wire = flat, wire
        generator = torch.Generator().manual_seed(0)  # the same start on every worker
        shapes = [_shape(part) for part in flat.parts]
        self._low = [_Matrix(flat, part, rank, generator) for part, shape in zip(flat.parts, shapes, strict=True)
                     if is_compressed(shape, rank)]  # fmt: skip
        self._whole = [part for part, shape in zip(flat.parts, shapes, strict=True) if not is_compressed(shape, rank)]

    def add_up(self, tail: Tensor) -> None:
        low, whole = self._low, [_rows(self._flat.gradient, part) for part in self._whole]
        first = torch.cat([tensor.flatten() for tensor in [*(matrix.left() for matrix in low), *whole]])
        self._wire.add_up(first, tail)
        sums = torch.split(first, [matrix.left_size for matrix in low] + [tensor.numel() for tensor in whole])
        for part, total in zip(self._whole, sums[len(low) :], strict=True):
            _put(self._flat.gradient, part, total)
        if not low:
            return
        second = torch.cat([matrix.right(total, self._wire) for matrix, total in zip(low, sums, strict=False)])
        self._wire.add_up(second)
        for matrix, total in zip(low, torch.split(second, [matrix.right_size for matrix in low]), strict=True):
            matrix.finish(total)

    def memory(self) -> list[Tensor]:
        return [tensor for matrix in self._low for tensor in (matrix.right_factor, matrix.error)]


class _Matrix:
    """One matrix [N, M] of the gradient, and what PowerSGD remembers of it."""

    def __init__(self, flat: FlatParameters, part: Part, rank: int, generator: torch.Generator) -> None:
        self._gradient, self._part = flat.gradient, part
        rows, columns = _shape(part)
        start = torch.randn(columns, rank, generator=generator)
        self.right_factor = start.to(flat.gradient)
        self.error = torch.zeros(rows, columns).to(flat.gradient)
        self._left = torch.zeros(rows, rank).to(flat.gradient)
        self.left_size, self.right_size = rows * rank, columns * rank

    def left(self) -> Tensor:
        """[N, R]"""
        self.error += _rows(self._gradient, self._part)  # now what is to be sent: the share and what is owed
        return self.error @ self.right_factor

    def right(self, left_sum: Tensor, wire: Wire) -> Tensor:
        """[M R]; left_sum [N R] is the sum of all workers' left factors."""
        self._left, _ = torch.linalg.qr(left_sum.view(self._left.shape))
        right = wire.rounded(self.error.T @ self._left)
        self.error -= self._left @ right.T
        return right.flatten()

    def finish(self, right_sum: Tensor) -> None:
        self.right_factor.copy_(right_sum.view(self.right_factor.shape))
        _put(self._gradient, self._part, self._left @ self.right_factor.T)


def is_compressed(shape: tuple[int, ...], rank: int) -> bool:
    """Whether a parameter goes as two factors: a matrix for which these are shorter."""
    return len(shape) == 2 and rank * sum(shape) < shape[0] * shape[1]


def _shape(part: Part) -> tuple[int, ...]:
    """Of what can have a gradient."""
    return tuple(part.shape) if part.used is None else (len(part.used), *part.shape[1:])


def _rows(flat: Tensor, part: Part) -> Tensor:
    values = flat[part.place].view(part.shape)
    return values if part.used is None else values[part.used]


def _put(flat: Tensor, part: Part, values: Tensor) -> None:
    rows = flat[part.place].view(part.shape)
    if part.used is None:
        rows.copy_(values.view(part.shape))
    else:
        rows[part.used] = values.view(-1, *part.shape[1:])


def build_reduction(settings: GradientSettings, flat: FlatParameters, wire: Wire) -> GradientReduction:
    return (
        DenseReduction(flat, wire) if settings.compression == "none" else PowerSGDReduction(flat, wire, settings.rank)
    )
