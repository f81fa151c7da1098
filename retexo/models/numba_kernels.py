"""Loops on a CPU that torch is slow at, compiled by numba when first used: a few seconds, once a machine.

Torch's own search for the row that is the largest takes seven times as long as the maximum, its products along edges
four times as long as these. N_src source and N_dst destination nodes, E edges, D width of a row, K weights of an edge.
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


def max_in_edges(row_ptr: Tensor, column: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Of rows [N_src, D], not negative, the largest over in-edges, [N_dst, D], 0 for none, and whose it is.

    That is int32 [N_dst, D], -1 where the maximum is 0; of equal rows it is the first edge's. row_ptr [N_dst + 1].
    """
    top = rows.new_zeros(len(row_ptr) - 1, rows.shape[1])
    source = torch.full(top.shape, -1, dtype=torch.int32)
    arrays = [each.numpy() for each in (row_ptr, column, rows.contiguous(), top, source)]
    _in_threads(_search, len(top), *arrays)
    return top, source


def scatter_max_gradient(gradient: Tensor, source: Tensor, num_rows: int) -> Tensor:
    """The gradient of the rows, [num_rows, D], from that of the maxima, [N_dst, D], and whose they are."""
    total = gradient.new_zeros(num_rows, gradient.shape[1])
    _in_threads(_add, total.shape[1], source.numpy(), gradient.contiguous().numpy(), total.numpy())
    return total


def dot_edge_ends(row_ptr: Tensor, column: Tensor, rows: Tensor, others: Tensor) -> Tensor:
    """The product of the rows of an edge's two ends, [E, K], of sources [N_src, D] and destinations [N_dst, D, K]."""
    products = rows.new_empty(len(column), others.shape[2])
    arrays = [each.contiguous().numpy() for each in (row_ptr, column, rows, others)]
    with _blas().limit(
        limits=1, user_api="blas"
    ):  # its own threads would wait in loops, on cores that others need
        _in_threads(_multiply, len(others), *arrays, products.numpy())
    return products


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


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """numba.njit, kept for the next process where there is a folder to keep it in."""
    try:
        kernel: Callable[..., None] = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither beside the module nor in a home
        kernel = numba.njit(nogil=True)(function)
    return kernel


@_compiled
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


@_compiled
def _add(source: np.ndarray, gradient: np.ndarray, total: np.ndarray, first: int, end: int) -> None:
    """For columns first ... end - 1, in the order of destinations."""
    for node in range(len(source)):
        for at in range(first, end):
            if source[node, at] >= 0:
                total[source[node, at], at] += gradient[node, at]


@_compiled
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
