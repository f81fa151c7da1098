"""Maxima over in-edges on a CPU, compiled by numba at the first use: a few seconds, once a machine.

Torch's own search for the row that is the largest takes seven times as long as the maximum. N_src source and N_dst
destination nodes, E edges, D width of a row.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch
from torch import Tensor


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


def _in_threads(kernel: Callable[..., None], size: int, *arrays: np.ndarray) -> None:
    """Call kernel(*arrays, first, end) for as many ranges of 0 ... size as torch has threads; none writes another's."""
    count = torch.get_num_threads()
    bounds = [size * number // count for number in range(count + 1)]
    if count == 1:
        kernel(*arrays, 0, size)
        return
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda first, end: kernel(*arrays, first, end), bounds[:-1], bounds[1:]))


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _search(
    row_ptr: np.ndarray, column: np.ndarray, rows: np.ndarray, top: np.ndarray, source: np.ndarray, first: int, end: int
) -> None:
    """For destinations first ... end - 1."""
    for node in range(first, end):
        best, place = top[node], source[node]
        for edge in range(row_ptr[node], row_ptr[node + 1]):
            sender = column[edge]
            row = rows[sender]
            for at in range(len(row)):  # both chosen, in place of a branch: so it takes several columns at a time
                larger = row[at] > best[at]
                best[at] = row[at] if larger else best[at]
                place[at] = sender if larger else place[at]


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _add(source: np.ndarray, gradient: np.ndarray, total: np.ndarray, first: int, end: int) -> None:
    """For columns first ... end - 1, in the order of destinations."""
    for node in range(len(source)):
        for at in range(first, end):
            if source[node, at] >= 0:
                total[source[node, at], at] += gradient[node, at]
