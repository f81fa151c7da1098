"""Sum of the workers' updates in a round: whole, or as low-rank factors (PowerSGD).

The sum is sent together with the round message's tail (retexo.rounds.round_message). Weight rows
whose input is zero in every training row have no gradient and are left out. P parameters of a
stage; for one matrix N rows, M columns, rank R.
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
from retexo.settings.communication_settings import GradientSettings


class GradientReduction(Protocol):
    """A way to sum updates over all workers."""

    def reduce(self, tail: Tensor) -> None:
        """Replace flat.gradient [P] by its sum over workers, and `tail` [T] by its exact sum.

        With compression the gradient becomes an approximation of the sum; `buffers` change.
        """

    def buffers(self) -> list[Tensor]:
        """Return the tensors that persist between rounds; a saved state contains them."""


class Summation(Protocol):
    """A way to add vectors over all workers: AllReduce, or SecureSum (retexo.sites.secure_sums)."""

    def for_sizes(self, sizes: Sequence[int]) -> "Summation":
        """Return a summation of updates that consist of matrices of these sizes."""

    def __call__(self, update: Tensor, *exact: Tensor) -> None:
        """Sum over all workers in place: `update` as it is sent, `exact` without rounding."""

    def round_as_sent(self, update: Tensor) -> Tensor:
        """Return an update as the other workers receive it."""

    def buffers(self) -> list[Tensor]:
        """Return the tensors that persist between rounds (GradientReduction.buffers)."""


@dataclass(frozen=True, eq=False)
class AllReduce:
    """All-reduce of a round's update: the dtype that is sent, and the ranks that send nothing."""

    comm: Communicator
    tag: MessageTag
    wire: WireFormat | None
    """None: the gradient's own dtype."""
    zero_ranks: frozenset[int]
    """Ranks without training nodes: their summand is zero and is not sent."""

    def for_sizes(self, sizes: Sequence[int]) -> "AllReduce":
        return self

    def buffers(self) -> list[Tensor]:
        return []

    def __call__(self, update: Tensor, *exact: Tensor) -> None:
        """Sum over all workers in place: `update` in the dtype sent, `exact` in its own."""
        self.comm.all_reduce(
            [self._summand(update), *(ReduceInput(tensor) for tensor in exact)], self.tag
        )

    def round_as_sent(self, update: Tensor) -> Tensor:
        """Return an update as the other workers receive it."""
        return self.comm.round_as_sent(self._summand(update))

    def _summand(self, update: Tensor) -> ReduceInput:
        """Return the update as this worker's share of an all-reduce."""
        return ReduceInput(update, self.wire, self.zero_ranks)


class DenseReduction:
    """Sums every entry that can have a gradient."""

    def __init__(self, flat: FlatParameters, all_reduce: Summation) -> None:
        """Prepare to sum the gradients, which stay views of `flat`."""
        self._gradient = flat.gradient
        self._matrices = [
            GradientMatrix([_gradient_as_matrix(flat, piece)], piece.used) for piece in flat.slices
        ]
        self._all_reduce = all_reduce.for_sizes(
            [math.prod(matrix.shape) for matrix in self._matrices]
        )

    def reduce(self, tail: Tensor) -> None:
        if all(matrix.used is None for matrix in self._matrices):
            self._all_reduce(self._gradient, tail)
            return
        taken = [matrix.to_matrix() for matrix in self._matrices]
        sums = torch.cat([values.flatten() for values in taken])
        self._all_reduce(sums, tail)
        totals = torch.split(sums, [values.numel() for values in taken])
        for matrix, values, total in zip(self._matrices, taken, totals, strict=True):
            matrix.scatter(total.view_as(values))

    def buffers(self) -> list[Tensor]:
        return self._all_reduce.buffers()


class PowerSGDReduction:
    """Low-rank gradient compression with error feedback and warm start.

    Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
    Distributed Optimization", NeurIPS 2019, algorithms 1 and 2. Two messages per round: the sums
    of M Q, then those of M^T P. Parameters are concatenated into one matrix where possible
    (`make_gradient_matrices`), because its columns share a factor. A matrix that is no larger
    than its factors is sent whole.
    """

    def __init__(self, flat: FlatParameters, all_reduce: Summation, rank: int) -> None:
        """Draw the first right factors by a fixed seed; gradients stay views of `flat`."""
        generator = torch.Generator().manual_seed(0)  # same seed on every worker
        matrices = make_gradient_matrices(flat)
        self._low = [
            _LowRankMatrix(matrix, rank, generator)
            for matrix in matrices
            if is_compressed(matrix.shape, rank)
        ]
        self._whole = [matrix for matrix in matrices if not is_compressed(matrix.shape, rank)]
        self._first_sizes = [matrix.left_size for matrix in self._low] + [
            math.prod(matrix.shape) for matrix in self._whole
        ]
        self._first_sum = all_reduce.for_sizes(self._first_sizes)
        self._second_sum = all_reduce.for_sizes([matrix.right_size for matrix in self._low])

    def reduce(self, tail: Tensor) -> None:
        low, uncompressed = self._low, [matrix.to_matrix() for matrix in self._whole]
        # By column: columns of a factor differ in magnitude, and neighbours share a scale.
        first = torch.cat(
            [
                tensor.T.flatten()
                for tensor in [*(matrix.left_factor() for matrix in low), *uncompressed]
            ]
        )
        self._first_sum(first, tail)
        sums = torch.split(first, self._first_sizes)
        for matrix, total in zip(self._whole, sums[len(low) :], strict=True):
            matrix.scatter(total.view(matrix.shape[::-1]).T)
        if not low:
            return
        sizes = [matrix.right_size for matrix in low]
        second = self._second_sum.round_as_sent(
            torch.cat(
                [matrix.right_factor_from(total) for matrix, total in zip(low, sums, strict=False)]
            )
        )
        for factors, own in zip(low, torch.split(second, sizes), strict=True):
            factors.update_error(own)
        self._second_sum(second)
        for factors, total in zip(low, torch.split(second, sizes), strict=True):
            factors.apply_product(total)

    def buffers(self) -> list[Tensor]:
        memory = [tensor for matrix in self._low for tensor in (matrix.right_factor, matrix.error)]
        return memory + self._first_sum.buffers() + self._second_sum.buffers()


@dataclass(frozen=True, eq=False)
class GradientMatrix:
    """Gradients of several parameters, concatenated to a matrix [N, M]."""

    parts: list[Tensor]
    """Gradient of each parameter, [F, M_i], a view of the flat gradient."""
    used: Tensor | None
    """Rows that can have a gradient, int64 [N]; None for all."""

    @property
    def shape(self) -> tuple[int, int]:
        """Return the numbers of rows and columns, N and M."""
        num_rows = len(self.parts[0]) if self.used is None else len(self.used)
        return num_rows, sum(self.widths)

    @property
    def widths(self) -> list[int]:
        """Return the number of columns M_i of each parameter's gradient; their sum is M."""
        return [part.shape[1] for part in self.parts]

    # The methods below index whole rows, ten times as fast as single entries.

    def to_matrix(self) -> Tensor:
        """Return the matrix [N, M]; for a single part with all rows a view of the flat gradient."""
        parts = (
            self.parts
            if self.used is None
            else [part.index_select(0, self.used) for part in self.parts]
        )
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def add_to(self, values: Tensor) -> None:
        """Add the matrix to `values`, [N, M], in place."""
        for part, columns in zip(self.parts, torch.split(values, self.widths, dim=1), strict=True):
            columns += part if self.used is None else part.index_select(0, self.used)

    def scatter(self, values: Tensor) -> None:
        """Write values [N, M] into the flat gradient."""
        for part, columns in zip(self.parts, torch.split(values, self.widths, dim=1), strict=True):
            if self.used is None:
                part.copy_(columns)
            else:
                part.index_copy_(0, self.used, columns)

    def scatter_product(self, left: Tensor, right: Tensor) -> None:
        """Write left @ right.T into the flat gradient; left: [N, R], right: [M, R]."""
        for part, columns in zip(self.parts, torch.split(right.T, self.widths, dim=1), strict=True):
            if self.used is None:
                torch.mm(left, columns, out=part)
            else:
                part.index_copy_(0, self.used, left @ columns)


def make_gradient_matrices(flat: FlatParameters) -> list[GradientMatrix]:
    """Return matrices of all gradients; each has views of those with the same number of rows.

    Input weights, [F, K], have matrices of their own. Other weights are transposed where they
    have fewer rows than columns; a vector is one column.
    """
    matrices: dict[tuple[int, bool], GradientMatrix] = {}
    for piece in flat.slices:
        gradient = _gradient_as_matrix(flat, piece)
        if (
            len(piece.shape) == 2
            and not piece.reads_inputs
            and gradient.shape[0] < gradient.shape[1]
        ):
            gradient = gradient.T
        key = len(gradient), piece.reads_inputs
        matrices.setdefault(key, GradientMatrix([], piece.used)).parts.append(gradient)
    return list(matrices.values())


def _gradient_as_matrix(flat: FlatParameters, piece: ParameterSlice) -> Tensor:
    """Return a view of a parameter's gradient as a matrix; a vector becomes one column."""
    gradient = flat.gradient[piece.position]
    return gradient.view(piece.shape) if len(piece.shape) == 2 else gradient.view(-1, 1)


class _LowRankMatrix:
    """One gradient matrix [N, M] and its PowerSGD state: right factor and error."""

    def __init__(self, gradient: GradientMatrix, rank: int, generator: torch.Generator) -> None:
        """Start with no error and a random right factor [M, rank].

        Args:
            gradient: kept, not copied.
            rank: used as it is, also if the factors are then larger than the matrix.
            generator: is advanced; in the same state on all workers, so that factors are equal.
        """
        self._gradient, (rows, columns) = gradient, gradient.shape
        like = gradient.parts[0]
        self.right_factor = torch.randn(columns, rank, generator=generator).to(like)
        self.error = torch.zeros(rows, columns).to(like)
        self._left = torch.zeros(rows, rank).to(like)
        self.left_size, self.right_size = rows * rank, columns * rank

    def left_factor(self) -> Tensor:
        """Return the left factor, [N, R], after adding this round's gradient to the error."""
        # error feedback: adds what earlier rounds did not send
        self._gradient.add_to(self.error)
        return self.error @ self.right_factor

    def right_factor_from(self, left_sum: Tensor) -> Tensor:
        """Orthonormalise the sum of left factors [R N]; return this worker's right factor [R M]."""
        self._left, _ = torch.linalg.qr(left_sum.view(self._left.shape[::-1]).T)
        return (self._left.T @ self.error).flatten()  # three times as fast as error.T @ left

    def update_error(self, right: Tensor) -> None:
        """Subtract the transmitted approximation, given this worker's right factor [R M]."""
        self.error.addmm_(self._left, right.view(self.right_factor.shape[::-1]), alpha=-1)

    def apply_product(self, right_sum: Tensor) -> None:
        """Store the sum of right factors, [R M], and write the approximation into the gradient."""
        self.right_factor.copy_(right_sum.view(self.right_factor.shape[::-1]).T)
        self._gradient.scatter_product(self._left, self.right_factor)


def is_compressed(shape: tuple[int, int], rank: int) -> bool:
    """Return whether a matrix is sent as two factors, that is, whether these are smaller."""
    return rank * sum(shape) < shape[0] * shape[1]


def build_reduction(
    settings: GradientSettings, flat: FlatParameters, all_reduce: Summation
) -> GradientReduction:
    """Build the reduction that gradient.compression names."""
    if settings.compression == "none":
        return DenseReduction(flat, all_reduce)
    return PowerSGDReduction(flat, all_reduce, settings.rank)
