"""CPU loops compiled by numba, for operations that are slow in torch.

Compiled on first use, a few seconds once per machine. torch's maximum with indices takes seven
times, its edge products four times as long as these. N_src source and N_dst destination nodes, E
edges, D row width, K weights per edge.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numba
import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  numba's BLAS, for ThreadpoolController to find
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor


def max_in_edges(row_ptr: Tensor, column: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum over in-edges, [N_dst, D], and its source, int32 [N_dst, D].

    The maximum is 0 without in-edges; where it is 0, the source is -1. Ties go to the first edge.

    Args:
        row_ptr: [N_dst + 1]
        column: [E] source of each edge.
        rows: [N_src, D], not negative.
    """
    top = rows.new_zeros(len(row_ptr) - 1, rows.shape[1])
    source = torch.full(top.shape, -1, dtype=torch.int32)
    arrays = [array.numpy() for array in (row_ptr, column, rows.contiguous(), top, source)]
    _in_threads(_search, len(top), *arrays)
    return top, source


def scatter_max_gradient(gradient: Tensor, source: Tensor, num_rows: int) -> Tensor:
    """Return the gradient of the rows, [num_rows, D], from that of the maxima, [N_dst, D].

    source: int32 [N_dst, D], the row of each maximum, -1 for none; see max_in_edges.
    """
    total = gradient.new_zeros(num_rows, gradient.shape[1])
    _in_threads(_add, total.shape[1], source.numpy(), gradient.contiguous().numpy(), total.numpy())
    return total


def dot_edge_ends(row_ptr: Tensor, column: Tensor, rows: Tensor, others: Tensor) -> Tensor:
    """Return dot products of the rows of each edge's ends, [E, K].

    Args:
        row_ptr: [N_dst + 1]
        column: [E] source of each edge.
        rows: [N_src, D]
        others: [N_dst, D, K]
    """
    products = rows.new_empty(len(column), others.shape[2])
    arrays = [array.contiguous().numpy() for array in (row_ptr, column, rows, others)]
    # BLAS threads would spin on cores that others need.
    with _threadpool_controller().limit(limits=1, user_api="blas"):
        _in_threads(_multiply, len(others), *arrays, products.numpy())
    return products


@cache
def _threadpool_controller() -> ThreadpoolController:
    return ThreadpoolController()


def _in_threads(kernel: Callable[..., None], size: int, *arguments: Any) -> None:
    """Call kernel(*arguments, first, end) on one range of 0 ... size per torch thread.

    Ranges write disjoint parts of the arrays; where `size` is small, some are empty.
    """
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
    return ThreadPoolExecutor(count)  # Cached: starting threads takes as long as a short loop.


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compile with numba, without the GIL, and cache the result on disk where possible."""
    try:
        kernel: Callable[..., None] = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no cache folder beside the module or in the home directory
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
    """Find maxima over in-edges of destinations first ... end - 1, and their sources.

    `top` and `source` have the start values, and are changed; the first of equal sources counts.
    """
    for node in range(first, end):
        best, place = top[node], source[node]
        for edge in range(row_ptr[node], row_ptr[node + 1]):
            sender = column[edge]
            row = rows[sender]
            # Select instead of branch, so that the compiler vectorises over columns.
            for at in range(len(row)):
                larger = row[at] > best[at]
                best[at] = row[at] if larger else best[at]
                place[at] = sender if larger else place[at]


@_compiled
def _add(source: np.ndarray, gradient: np.ndarray, total: np.ndarray, first: int, end: int) -> None:
    """Add columns first ... end - 1 to `total`, in the order of destinations; -1: no source."""
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
    """Write dot products of destinations first ... end - 1, by a small BLAS product each."""
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
