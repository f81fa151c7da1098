"""How the updates of a round are summed over the workers: whole, or as low-rank factors (PowerSGD).

The sum travels with the tail of a round's message (retexo.training.message). Rows of a weight whose input is zero in
every training row have no gradient, and are left out. P parameters of a stage; of one matrix N rows, M columns, rank R.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.traffic import MessageTag
from retexo.config.settings import GradientSettings
from retexo.training.parameters import FlatParameters, ParameterSlice


class GradientReduction(Protocol):
    """One way to sum."""

    def reduce(self, tail: Tensor) -> None:
        """Replace flat.gradient [P] by its sum over all workers, and `tail`, float [T], by its exact sum."""

    def buffers(self) -> list[Tensor]:
        """Tensors that live from one round to the next; a saved state contains them."""


@dataclass(frozen=True, eq=False)
class AllReduce:
    """The all-reduce of a round: its tag, the type that is sent, and who sends nothing."""

    comm: Communicator
    tag: MessageTag
    dtype: torch.dtype | None
    """None: the gradient's own."""
    zero_ranks: frozenset[int]
    """Ranks without training nodes: their summand is zero, and they send none."""

    def __call__(self, update: Tensor, *exact: Tensor) -> None:
        """Sum over all workers in place: `update` in the type that is sent, `exact` in their own type by all ranks."""
        summands = [ReduceInput(update, self.dtype, self.zero_ranks), *(ReduceInput(tensor) for tensor in exact)]
        self.comm.all_reduce(summands, self.tag)

    def rounded(self, update: Tensor) -> Tensor:
        """What the other workers receive of an update."""
        return update if self.dtype is None else update.to(self.dtype).to(update.dtype)


class DenseReduction:
    """Every entry that can have a gradient."""

    def __init__(self, flat: FlatParameters, all_reduce: AllReduce) -> None:
        self._gradient, self._used, self._all_reduce = flat.gradient, flat.used_entries(), all_reduce

    def reduce(self, tail: Tensor) -> None:
        if self._used is None:
            self._all_reduce(self._gradient, tail)
            return
        used = self._gradient[self._used]
        self._all_reduce(used, tail)
        self._gradient[self._used] = used

    def buffers(self) -> list[Tensor]:
        return []


class PowerSGDReduction:
    """Low-rank factors of each matrix, with error feedback and warm start; vectors whole.

    Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
    NeurIPS 2019, algorithms 1 and 2. Two messages per round: the sums of M Q, then those of M^T P. A matrix that is no
    larger than its factors is sent whole.
    """

    def __init__(self, flat: FlatParameters, all_reduce: AllReduce, rank: int) -> None:
        self._flat, self._all_reduce = flat, all_reduce
        generator = torch.Generator().manual_seed(0)  # the same start on every worker
        compressed = [part for part in flat.slices if is_compressed(_shape(part), rank)]
        self._low = [_LowRankGradient(flat, part, rank, generator) for part in compressed]
        self._whole = [part for part in flat.slices if part not in compressed]

    def reduce(self, tail: Tensor) -> None:
        low, whole = self._low, [_rows(self._flat.gradient, part) for part in self._whole]
        first = torch.cat([tensor.flatten() for tensor in [*(matrix.left() for matrix in low), *whole]])
        self._all_reduce(first, tail)
        sums = torch.split(first, [matrix.left_size for matrix in low] + [tensor.numel() for tensor in whole])
        for part, total in zip(self._whole, sums[len(low) :], strict=True):
            _set_rows(self._flat.gradient, part, total)
        if not low:
            return
        second = torch.cat([matrix.right(total, self._all_reduce) for matrix, total in zip(low, sums, strict=False)])
        self._all_reduce(second)
        for matrix, total in zip(low, torch.split(second, [matrix.right_size for matrix in low]), strict=True):
            matrix.finish(total)

    def buffers(self) -> list[Tensor]:
        return [tensor for matrix in self._low for tensor in (matrix.right_factor, matrix.error)]


class _LowRankGradient:
    """One matrix [N, M] of the gradient, and what PowerSGD remembers of it."""

    def __init__(self, flat: FlatParameters, part: ParameterSlice, rank: int, generator: torch.Generator) -> None:
        self._gradient, self._part = flat.gradient, part
        rows, columns = _shape(part)
        start = torch.randn(columns, rank, generator=generator)
        self.right_factor = start.to(flat.gradient)
        self.error = torch.zeros(rows, columns).to(flat.gradient)
        self._left = torch.zeros(rows, rank).to(flat.gradient)
        self.left_size, self.right_size = rows * rank, columns * rank

    def left(self) -> Tensor:
        """The left factor, [N, R]."""
        self.error += _rows(self._gradient, self._part)  # error feedback: what earlier rounds did not send is added
        return self.error @ self.right_factor

    def right(self, left_sum: Tensor, all_reduce: AllReduce) -> Tensor:
        """The right factor [M R], from the sum of all workers' left factors [N R], which is made orthonormal here."""
        self._left, _ = torch.linalg.qr(left_sum.view(self._left.shape))
        right = all_reduce.rounded(self.error.T @ self._left)
        self.error -= self._left @ right.T
        return right.flatten()

    def finish(self, right_sum: Tensor) -> None:
        self.right_factor.copy_(right_sum.view(self.right_factor.shape))
        _set_rows(self._gradient, self._part, self._left @ self.right_factor.T)


def is_compressed(shape: tuple[int, ...], rank: int) -> bool:
    """Whether a parameter is sent as two factors: a matrix for which these are smaller."""
    return len(shape) == 2 and rank * sum(shape) < shape[0] * shape[1]


def _shape(part: ParameterSlice) -> tuple[int, ...]:
    """Of the rows that can have a gradient."""
    return tuple(part.shape) if part.used is None else (len(part.used), *part.shape[1:])


def _rows(flat: Tensor, part: ParameterSlice) -> Tensor:
    values = flat[part.place].view(part.shape)
    return values if part.used is None else values[part.used]


def _set_rows(flat: Tensor, part: ParameterSlice, values: Tensor) -> None:
    rows = flat[part.place].view(part.shape)
    if part.used is None:
        rows.copy_(values.view(part.shape))
    else:
        rows[part.used] = values.view(-1, *part.shape[1:])


def build_reduction(settings: GradientSettings, flat: FlatParameters, all_reduce: AllReduce) -> GradientReduction:
    """By gradient.compression."""
    if settings.compression == "none":
        return DenseReduction(flat, all_reduce)
    return PowerSGDReduction(flat, all_reduce, settings.rank)
