"""How the updates of a round are summed over the workers: whole, or as low-rank factors (PowerSGD).

The sum travels with the tail of a round's message (retexo.training.message). Rows of a weight whose input is zero in
every training row have no gradient, and are left out. P parameters of a stage; of one matrix N rows, M columns, rank R.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
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
    NeurIPS 2019, algorithms 1 and 2. Two messages per round: the sums of M Q, then those of M^T P. Weights of the same
    input width are one matrix, side by side, so that they share left factors. A matrix that is no larger than its
    factors is sent whole.
    """

    def __init__(self, flat: FlatParameters, all_reduce: AllReduce, rank: int) -> None:
        self._flat, self._all_reduce = flat, all_reduce
        generator = torch.Generator().manual_seed(0)  # the same start on every worker
        groups = [_Matrix.of(parts) for parts in side_by_side(flat.slices)]
        compressed = [group for group in groups if is_compressed(group.shape, rank)]
        self._low = [_LowRankGradient(flat, matrix, rank, generator) for matrix in compressed]
        low = [part for matrix in compressed for part in matrix.parts]
        self._whole = [part for part in flat.slices if part not in low]

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


@dataclass(frozen=True, eq=False)
class _Matrix:
    """Parameters [F, M_i] side by side, of the rows that can have a gradient in any of them."""

    parts: tuple[ParameterSlice, ...]
    used: Tensor | None
    """int64 [N] ascending; None for all."""

    @classmethod
    def of(cls, parts: Sequence[ParameterSlice]) -> "_Matrix":
        used = [part.used for part in parts if part.used is not None]
        together = (
            torch.from_numpy(np.unique(torch.cat(used).cpu())).to(used[0].device) if len(used) == len(parts) else None
        )
        return cls(tuple(parts), together)

    @property
    def shape(self) -> tuple[int, ...]:
        """N, M; or what a single parameter that is no matrix has."""
        rows, *columns = self.parts[0].shape
        if not columns:
            return (rows,)
        return rows if self.used is None else len(self.used), sum(part.shape[1] for part in self.parts)

    def read(self, flat: Tensor) -> Tensor:
        """[N, M]"""
        values = torch.cat([flat[part.place].view(part.shape) for part in self.parts], dim=1)
        return values if self.used is None else values[self.used]

    def write(self, flat: Tensor, values: Tensor) -> None:
        """values: [N, M]"""
        widths = [part.shape[1] for part in self.parts]
        for part, columns in zip(self.parts, torch.split(values, widths, dim=1), strict=True):
            rows = flat[part.place].view(part.shape)
            rows[slice(None) if self.used is None else self.used] = columns


def side_by_side(slices: Sequence[ParameterSlice]) -> list[list[ParameterSlice]]:
    """Matrices of the same number of rows together, in the order of the first; every other parameter by itself."""
    groups: dict[tuple[int, ...], list[ParameterSlice]] = {}
    for place, part in enumerate(slices):
        key = (part.shape[0],) if len(part.shape) == 2 else (-1, place)
        groups.setdefault(key, []).append(part)
    return list(groups.values())


class _LowRankGradient:
    """One matrix [N, M] of the gradient, and what PowerSGD remembers of it."""

    def __init__(self, flat: FlatParameters, matrix: _Matrix, rank: int, generator: torch.Generator) -> None:
        self._gradient, self._matrix = flat.gradient, matrix
        rows, columns = matrix.shape
        start = torch.randn(columns, rank, generator=generator)
        self.right_factor = start.to(flat.gradient)
        self.error = torch.zeros(rows, columns).to(flat.gradient)
        self._left = torch.zeros(rows, rank).to(flat.gradient)
        self.left_size, self.right_size = rows * rank, columns * rank

    def left(self) -> Tensor:
        """The left factor, [N, R]."""
        self.error += self._matrix.read(self._gradient)  # error feedback: what earlier rounds did not send is added
        return self.error @ self.right_factor

    def right(self, left_sum: Tensor, all_reduce: AllReduce) -> Tensor:
        """The right factor [M R], from the sum of all workers' left factors [N R], which is made orthonormal here."""
        self._left, _ = torch.linalg.qr(left_sum.view(self._left.shape))
        right = all_reduce.rounded(self.error.T @ self._left)
        self.error -= self._left @ right.T
        return right.flatten()

    def finish(self, right_sum: Tensor) -> None:
        self.right_factor.copy_(right_sum.view(self.right_factor.shape))
        self._matrix.write(self._gradient, self._left @ self.right_factor.T)


def is_compressed(shape: tuple[int, ...], rank: int) -> bool:
    """Whether a parameter is sent as two factors: a matrix for which these are smaller."""
    return len(shape) == 2 and rank * sum(shape) < shape[0] * shape[1]


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
