"""How the updates of a round are summed over the workers: whole, or as low-rank factors (PowerSGD).

The sum travels with the tail of a round's message (retexo.rounds.round_message). Rows of a weight whose input is zero in
every training row have no gradient, and are left out. P parameters of a stage; of one matrix N rows, M columns, rank R.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.message_format import WireFormat
from retexo.comm.traffic_meter import MessageTag
from retexo.rounds.parameters import FlatParameters, ParameterSlice
from retexo.settings.run_settings import GradientSettings


class GradientReduction(Protocol):
    """One way to sum."""

    def reduce(self, tail: Tensor) -> None:
        """Replace flat.gradient [P] by its sum over all workers, and `tail`, float [T], by its exact sum."""

    def buffers(self) -> list[Tensor]:
        """Tensors that live from one round to the next; a saved state contains them."""


class Summation(Protocol):
    """How updates are added up: AllReduce, or SecureSum (retexo.sites.secure_sums)."""

    def for_sizes(self, sizes: Sequence[int]) -> "Summation":
        """For updates that are matrices of these sizes, one after the other."""

    def __call__(self, update: Tensor, *exact: Tensor) -> None:
        """Sum over all workers in place: `update` as it is rounded, `exact` as they are."""

    def rounded(self, update: Tensor) -> Tensor:
        """What is added up of an update."""

    def buffers(self) -> list[Tensor]:
        """See GradientReduction."""


@dataclass(frozen=True, eq=False)
class AllReduce:
    """The all-reduce of a round: its tag, the type that is sent, and who sends nothing."""

    comm: Communicator
    tag: MessageTag
    wire: WireFormat | None
    """None: the gradient's own type."""
    zero_ranks: frozenset[int]
    """Ranks without training nodes: their summand is zero, and they send none."""

    def for_sizes(self, sizes: Sequence[int]) -> "AllReduce":
        return self

    def buffers(self) -> list[Tensor]:
        return []

    def __call__(self, update: Tensor, *exact: Tensor) -> None:
        """Sum over all workers in place: `update` in the type that is sent, `exact` in their own type by all ranks."""
        self.comm.all_reduce(
            [self._summand(update), *(ReduceInput(tensor) for tensor in exact)], self.tag
        )

    def rounded(self, update: Tensor) -> Tensor:
        """What the other workers receive of an update."""
        return self.comm.rounded(self._summand(update))

    def _summand(self, update: Tensor) -> ReduceInput:
        return ReduceInput(update, self.wire, self.zero_ranks)


class DenseReduction:
    """Every entry that can have a gradient."""

    def __init__(self, flat: FlatParameters, all_reduce: Summation) -> None:
        self._gradient = flat.gradient
        self._matrices = [
            GradientMatrix([_gradient_as_matrix(flat, each)], each.used) for each in flat.slices
        ]
        self._all_reduce = all_reduce.for_sizes(
            [math.prod(matrix.shape) for matrix in self._matrices]
        )

    def reduce(self, tail: Tensor) -> None:
        if all(matrix.used is None for matrix in self._matrices):
            self._all_reduce(self._gradient, tail)
            return
        taken = [matrix.take() for matrix in self._matrices]
        sums = torch.cat([values.flatten() for values in taken])
        self._all_reduce(sums, tail)
        totals = torch.split(sums, [values.numel() for values in taken])
        for matrix, values, total in zip(self._matrices, taken, totals, strict=True):
            matrix.scatter(total.view_as(values))

    def buffers(self) -> list[Tensor]:
        return self._all_reduce.buffers()


class PowerSGDReduction:
    """Low-rank factors of each matrix, with error feedback and warm start.

    Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
    NeurIPS 2019, algorithms 1 and 2. Two messages per round: the sums of M Q, then those of M^T P. Parameters lie side
    by side in one matrix where they can (`gradient_matrices`), since its columns share a factor. A matrix that is no
    larger than its factors is sent whole.
    """

    def __init__(self, flat: FlatParameters, all_reduce: Summation, rank: int) -> None:
        generator = torch.Generator().manual_seed(0)  # the same start on every worker
        matrices = make_gradient_matrices(flat)
        self._low = [
            _LowRankMatrix(matrix, rank, generator)
            for matrix in matrices
            if is_compressed(matrix.shape, rank)
        ]
        self._whole = [matrix for matrix in matrices if not is_compressed(matrix.shape, rank)]
        self._first_sizes = [each.left_size for each in self._low] + [
            math.prod(each.shape) for each in self._whole
        ]
        self._first_sum = all_reduce.for_sizes(self._first_sizes)
        self._second_sum = all_reduce.for_sizes([each.right_size for each in self._low])

    def reduce(self, tail: Tensor) -> None:
        low, whole = self._low, [matrix.take() for matrix in self._whole]
        # Column by column: those of a factor are of unlike sizes, and values that follow each other share a scale.
        first = torch.cat(
            [tensor.T.flatten() for tensor in [*(matrix.left_factor() for matrix in low), *whole]]
        )
        self._first_sum(first, tail)
        sums = torch.split(first, self._first_sizes)
        for matrix, total in zip(self._whole, sums[len(low) :], strict=True):
            matrix.scatter(total.view(matrix.shape[::-1]).T)
        if not low:
            return
        sizes = [each.right_size for each in low]
        second = self._second_sum.rounded(
            torch.cat([each.right(total) for each, total in zip(low, sums, strict=False)])
        )
        for each, own in zip(low, torch.split(second, sizes), strict=True):
            each.update_error(own)
        self._second_sum(second)
        for each, total in zip(low, torch.split(second, sizes), strict=True):
            each.apply_product(total)

    def buffers(self) -> list[Tensor]:
        memory = [tensor for matrix in self._low for tensor in (matrix.right_factor, matrix.error)]
        return memory + self._first_sum.buffers() + self._second_sum.buffers()


@dataclass(frozen=True, eq=False)
class GradientMatrix:
    """Gradients of parameters side by side, [N, M]."""

    parts: list[Tensor]
    """[F, M_i] each, views of the flat gradient."""
    used: Tensor | None
    """Rows that can have a gradient, int64 [N]; None for all."""

    @property
    def shape(self) -> tuple[int, int]:
        """N, M"""
        num_rows = len(self.parts[0]) if self.used is None else len(self.used)
        return num_rows, sum(self.widths)

    @property
    def widths(self) -> list[int]:
        """M_i"""
        return [part.shape[1] for part in self.parts]

    # Whole rows, which is ten times as fast as a mask or indices over all entries.

    def take(self) -> Tensor:
        """[N, M], of one part with all its rows not a copy."""
        parts = (
            self.parts
            if self.used is None
            else [part.index_select(0, self.used) for part in self.parts]
        )
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def add_to(self, values: Tensor) -> None:
        """Add it to values [N, M]."""
        for part, columns in zip(self.parts, torch.split(values, self.widths, dim=1), strict=True):
            columns += part if self.used is None else part.index_select(0, self.used)

    def scatter(self, values: Tensor) -> None:
        """Write values [N, M] where they belong in the flat gradient."""
        for part, columns in zip(self.parts, torch.split(values, self.widths, dim=1), strict=True):
            if self.used is None:
                part.copy_(columns)
            else:
                part.index_copy_(0, self.used, columns)

    def scatter_product(self, left: Tensor, right: Tensor) -> None:
        """The same of left @ right.T; [N, R], [M, R]."""
        for part, columns in zip(self.parts, torch.split(right.T, self.widths, dim=1), strict=True):
            if self.used is None:
                torch.mm(left, columns, out=part)
            else:
                part.index_copy_(0, self.used, left @ columns)


def make_gradient_matrices(flat: FlatParameters) -> list[GradientMatrix]:
    """All parameters: weights of equally wide inputs together, and of the others those with the same longer side."""
    matrices: dict[tuple[int, bool], GradientMatrix] = {}
    for each in flat.slices:
        gradient = _gradient_as_matrix(flat, each)
        if len(each.shape) == 2 and not each.reads_inputs and gradient.shape[0] < gradient.shape[1]:
            gradient = gradient.T
        key = len(gradient), each.reads_inputs
        matrices.setdefault(key, GradientMatrix([], each.used)).parts.append(gradient)
    return list(matrices.values())


def _gradient_as_matrix(flat: FlatParameters, each: ParameterSlice) -> Tensor:
    """The gradient of a parameter as a matrix, a view; of a vector as one column."""
    gradient = flat.gradient[each.place]
    return gradient.view(each.shape) if len(each.shape) == 2 else gradient.view(-1, 1)


class _LowRankMatrix:
    """One matrix [N, M] of the gradient, and what PowerSGD remembers of it."""

    def __init__(self, gradient: GradientMatrix, rank: int, generator: torch.Generator) -> None:
        self._gradient, (rows, columns) = gradient, gradient.shape
        like = gradient.parts[0]
        self.right_factor = torch.randn(columns, rank, generator=generator).to(like)
        self.error = torch.zeros(rows, columns).to(like)
        self._left = torch.zeros(rows, rank).to(like)
        self.left_size, self.right_size = rows * rank, columns * rank

    def left_factor(self) -> Tensor:
        """The left factor, [N, R]."""
        self._gradient.add_to(
            self.error
        )  # error feedback: what earlier rounds did not send is added
        return self.error @ self.right_factor

    def right(self, left_sum: Tensor) -> Tensor:
        """The right factor [R M], from the sum of all workers' left factors [R N], which is made orthonormal here."""
        self._left, _ = torch.linalg.qr(left_sum.view(self._left.shape[::-1]).T)
        return (self._left.T @ self.error).flatten()  # three times as fast as error.T @ left

    def update_error(self, right: Tensor) -> None:
        """Keep what this worker's right factor [R M] leaves out, as it is sent."""
        self.error.addmm_(self._left, right.view(self.right_factor.shape[::-1]), alpha=-1)

    def apply_product(self, right_sum: Tensor) -> None:
        self.right_factor.copy_(right_sum.view(self.right_factor.shape[::-1]).T)
        self._gradient.scatter_product(self._left, self.right_factor)


def is_compressed(shape: tuple[int, int], rank: int) -> bool:
    """Whether a matrix is sent as two factors: if these are smaller."""
    return rank * sum(shape) < shape[0] * shape[1]


def build_reduction(
    settings: GradientSettings, flat: FlatParameters, all_reduce: Summation
) -> GradientReduction:
    """By gradient.compression."""
    if settings.compression == "none":
        return DenseReduction(flat, all_reduce)
    return PowerSGDReduction(flat, all_reduce, settings.rank)
