"""Loops on a CPU that torch is slow at, compiled by numba when first imported or used: a few seconds, once a machine.

Torch's own search for the row that is the largest takes seven times as long as the maximum, its products along edges
four times as long as these; it drops, normalises and cuts off at zero in several passes over values that leave the
cache between them. N_src source and N_dst destination nodes, E edges, D width of a row, K weights of an edge.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numba
import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  what numba multiplies with, for ThreadpoolController to find
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

DRAWN = 1 << 10
"""Values whose random bits are drawn together."""
SUMMED = 1 << 10
"""Rows whose gradients of a weight are added up together."""
GAMMA, MIX_1, MIX_2 = (
    np.uint64(each) for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""Of SplitMix64."""
ANY_ORDER = {"reassoc", "contract", "nsz"}
"""Sums by several values at a time; NaN stays NaN."""


def max_of_rows(row_ptr: Tensor, column: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Of rows [N_src, D], not negative, the largest over in-edges, [N_dst, D], 0 for none, and whose it is.

    That is int32 [N_dst, D], -1 where the maximum is 0; of equal rows it is the first edge's. row_ptr [N_dst + 1].
    """
    top = rows.new_zeros(len(row_ptr) - 1, rows.shape[1])
    source = torch.full(top.shape, -1, dtype=torch.int32)
    arrays = [each.numpy() for each in (row_ptr, column, rows.contiguous(), top, source)]
    _in_threads(_search, len(top), *arrays)
    return top, source


def add_to_sources(gradient: Tensor, source: Tensor, num_rows: int) -> Tensor:
    """The gradient of the rows, [num_rows, D], from that of the maxima, [N_dst, D], and whose they are."""
    total = gradient.new_zeros(num_rows, gradient.shape[1])
    _in_threads(_add, total.shape[1], source.numpy(), gradient.contiguous().numpy(), total.numpy())
    return total


def edge_products(row_ptr: Tensor, column: Tensor, rows: Tensor, others: Tensor) -> Tensor:
    """The product of the rows of an edge's two ends, [E, K], of sources [N_src, D] and destinations [N_dst, D, K]."""
    products = rows.new_empty(len(column), others.shape[2])
    arrays = [each.contiguous().numpy() for each in (row_ptr, column, rows, others)]
    with _blas().limit(
        limits=1, user_api="blas"
    ):  # its own threads would wait in loops, on cores that others need
        _in_threads(_multiply, len(others), *arrays, products.numpy())
    return products


def dropped(values: Tensor, level: int, seed: int) -> Tensor:
    """float32 [...] values, each with probability level / 2^16 replaced by 0, the others scaled up by what that leaves.

    Value i is kept where the i-th 16 bits of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
    Generators", OOPSLA 2014) from `seed`, an int64, are `level` or more.
    """
    values = values.contiguous()
    out = torch.empty_like(values)
    drawn = np.uint16(level), np.float32(2**16 / (2**16 - level)), np.uint64(seed & (2**64 - 1))
    _in_threads(
        _drop, -(-out.numel() // DRAWN), values.view(-1).numpy(), out.view(-1).numpy(), *drawn
    )
    return out


def norm_relu(rows: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """relu(LayerNorm(rows)), float32 [n, D], and the mean and the reciprocal deviation of each row, [n, 2]."""
    out, moments = torch.empty_like(rows), rows.new_empty(len(rows), 2)
    arrays = (each.detach().numpy() for each in (rows, weight, bias, out, moments))
    _in_threads(_norm_relu, len(rows), *arrays, np.float32(eps))
    return out, moments


def norm_relu_gradient(
    gradient: Tensor, rows: Tensor, weight: Tensor, bias: Tensor, moments: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of rows [n, D], weight [D] and bias [D], from that of what norm_relu returns."""
    of_rows = torch.empty_like(rows)
    count = -(-len(rows) // SUMMED)  # the same sums in any number of threads
    of_weight, of_bias = rows.new_zeros(count, rows.shape[1]), rows.new_zeros(count, rows.shape[1])
    given = (gradient.contiguous(), rows, weight, bias, moments, of_rows, of_weight, of_bias)
    _in_threads(_norm_relu_gradient, count, *(each.detach().numpy() for each in given))
    return of_rows, of_weight.sum(dim=0), of_bias.sum(dim=0)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def _in_threads(kernel: Callable[..., None], size: int, *arguments: Any) -> None:
    """Call kernel(*arguments, first, end) for as many ranges of 0 ... size as torch has threads; none writes another's
    part of an array."""
    count = torch.get_num_threads()
    bounds = [size * number // count for number in range(count + 1)]
    if count == 1:
        kernel(*arguments, 0, size)
        return
    list(
        _pool(count).map(lambda first, end: kernel(*arguments, first, end), bounds[:-1], bounds[1:])
    )


@cache
def _pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)  # kept: to start threads takes as long as a short loop


def _compiled(
    *signature: str, **options: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """numba.njit, kept for the next process where there is a folder to keep it in.

    With a signature it is compiled as this module is imported; later imports read it from numba's cache.
    """

    def compiled(function: Callable[..., None]) -> Callable[..., None]:
        try:
            kernel: Callable[..., None] = numba.njit(*signature, nogil=True, cache=True, **options)(
                function
            )
        except RuntimeError:  # neither beside the module nor in a home
            kernel = numba.njit(*signature, nogil=True, **options)(function)
        return kernel

    return compiled


@_compiled()
def _search(
    row_ptr: np.ndarray,
    column: np.ndarray,
    rows: np.ndarray,
    top: np.ndarray,
    source: np.ndarray,
    first: int,
    end: int,
) -> None:
    """For destinations first ... end - 1."""
    for node in range(first, end):
        best, place = top[node], source[node]
        for edge in range(row_ptr[node], row_ptr[node + 1]):
            sender = column[edge]
            row = rows[sender]
            for at in range(
                len(row)
            ):  # both chosen, in place of a branch: so it takes several columns at a time
                larger = row[at] > best[at]
                best[at] = row[at] if larger else best[at]
                place[at] = sender if larger else place[at]


@_compiled()
def _add(source: np.ndarray, gradient: np.ndarray, total: np.ndarray, first: int, end: int) -> None:
    """For columns first ... end - 1, in the order of destinations."""
    for node in range(len(source)):
        for at in range(first, end):
            if source[node, at] >= 0:
                total[source[node, at], at] += gradient[node, at]


@_compiled()
def _multiply(
    row_ptr: np.ndarray,
    column: np.ndarray,
    rows: np.ndarray,
    others: np.ndarray,
    products: np.ndarray,
    first: int,
    end: int,
) -> None:
    """For destinations first ... end - 1; others are [N_dst, D, K]. A product of small matrices each, by BLAS."""
    largest = 0
    for node in range(first, end):
        largest = max(largest, row_ptr[node + 1] - row_ptr[node])
    gathered = np.empty((largest, rows.shape[1]), rows.dtype)
    for node in range(first, end):
        begin, stop = row_ptr[node], row_ptr[node + 1]
        for edge in range(begin, stop):
            row = rows[column[edge]]
            for at in range(len(row)):
                gathered[edge - begin, at] = row[at]
        np.dot(gathered[: stop - begin], others[node], products[begin:stop])


@_compiled("void(f4[::1], f4[::1], u2, f4, u8, i8, i8)")
def _drop(
    values: np.ndarray,
    out: np.ndarray,
    level: np.uint16,
    scale: np.float32,
    seed: np.uint64,
    first: int,
    end: int,
) -> None:
    """For values DRAWN * first ... DRAWN * end - 1."""
    words = np.empty(DRAWN // 4, np.uint64)
    bits, zero = words.view(np.uint16), np.float32(0)
    for block in range(first, end):
        begin = block * DRAWN
        number = seed + np.uint64(begin // 4 + 1) * GAMMA
        for at in range(len(words)):
            word = number + np.uint64(at) * GAMMA
            word = (word ^ (word >> np.uint64(30))) * MIX_1
            word = (word ^ (word >> np.uint64(27))) * MIX_2
            words[at] = word ^ (word >> np.uint64(31))
        some, result = (
            values[begin : begin + DRAWN],
            out[begin : begin + DRAWN],
        )  # with sums as indices it is slow
        for at in range(len(some)):
            result[at] = some[at] * scale if bits[at] >= level else zero


@_compiled(
    "void(f4[:, ::1], f4[::1], f4[::1], f4[:, ::1], f4[:, ::1], f4, i8, i8)", fastmath=ANY_ORDER
)
def _norm_relu(
    rows: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    out: np.ndarray,
    moments: np.ndarray,
    eps: np.float32,
    first: int,
    end: int,
) -> None:
    """For rows first ... end - 1."""
    zero, share = np.float32(0), np.float32(1) / np.float32(rows.shape[1])
    for node in range(first, end):
        row, result = rows[node], out[node]
        total = zero
        for at in range(len(row)):
            total += row[at]
        mean, squares = total * share, zero
        for at in range(len(row)):
            squares += (row[at] - mean) * (row[at] - mean)
        factor = np.float32(1) / np.sqrt(squares * share + eps)
        moments[node, 0], moments[node, 1] = mean, factor
        for at in range(len(row)):
            value = (row[at] - mean) * factor * weight[at] + bias[at]
            result[at] = zero if value <= zero else value


@_compiled(
    "void(f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], i8, i8)",
    fastmath=ANY_ORDER,
)
def _norm_relu_gradient(
    gradient: np.ndarray,
    rows: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    moments: np.ndarray,
    of_rows: np.ndarray,
    of_weight: np.ndarray,
    of_bias: np.ndarray,
    first: int,
    end: int,
) -> None:
    """For rows SUMMED * first ... SUMMED * end - 1."""
    zero, share = np.float32(0), np.float32(1) / np.float32(rows.shape[1])
    for block in range(first, end):
        of_scale, of_shift = of_weight[block], of_bias[block]
        for node in range(block * SUMMED, min(block * SUMMED + SUMMED, len(rows))):
            row, given, result = rows[node], gradient[node], of_rows[node]
            mean, factor = moments[node, 0], moments[node, 1]
            total, along = zero, zero
            for at in range(len(row)):
                value = (row[at] - mean) * factor
                passed = zero if value * weight[at] + bias[at] <= zero else given[at]
                of_shift[at] += passed
                of_scale[at] += passed * value
                passed *= weight[at]
                total += passed
                along += passed * value
                result[at] = passed
            total, along = total * share, along * share
            for at in range(len(row)):
                result[at] = factor * (result[at] - total - (row[at] - mean) * factor * along)
