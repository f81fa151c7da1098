"""Arrays: names for the types of NumPy's, numbers made compact and values repeated."""

from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array
from torch import Tensor

from partitioning.thread_pool import in_blocks

IntArray = NDArray[np.int64]
Int32Array = NDArray[np.int32]
"""Places of the ends of edges, of which there are several per edge: a part has fewer than 2^31 nodes."""
IndexArray = NDArray[np.signedinteger[Any]]
"""Integers of either width."""
FloatArray = NDArray[np.float64]
WeightArray = NDArray[np.float32]
ByteArray = NDArray[np.uint8]
Mask = NDArray[np.bool_]
BLOCK_SIZE = 1 << 17
"""Numbers that are looked at in one call: they stay in a core's cache."""


def take_weights(
    values: WeightArray | None, edges: Mask | IndexArray | slice
) -> WeightArray | None:
    """The weights of some edges; None of none."""
    return None if values is None else values[edges]


def take(values: NDArray[Any], index: IndexArray) -> NDArray[Any]:
    """values[index] in a third of the time: NumPy copies an index that is not int64."""
    rows, number = torch.from_numpy(values), torch.from_numpy(index)
    found = torch.empty(len(index), dtype=rows.dtype)
    in_blocks(
        lambda block: torch.index_select(rows, 0, number[block], out=found[block]),
        len(index),
        BLOCK_SIZE,
    )
    return found.numpy()


def bincount(ids: IndexArray, count: int = 0) -> IntArray:
    """How often each number occurs, int64 [count], or as many as the largest wants; np.bincount takes twice as long."""
    number: IntArray = torch.bincount(torch.from_numpy(ids), minlength=count).numpy()
    return number


def counts_to_pointers(counts: IntArray) -> IntArray:
    """Where each of L rows of so many entries begins, and the end, int64 [L + 1]."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))


def csr_from_counts(
    values: NDArray[Any], columns: IndexArray, counts: IntArray, num_columns: int
) -> csr_array:
    """[R, num_columns] of which each row has so many of the values [n], counts [R], in these columns.

    SciPy would copy int32 columns to pointers' int64, and look up numbers of twice the length from then on.
    """
    row_ptr = counts_to_pointers(counts).astype(
        columns.dtype if len(columns) < np.iinfo(np.int32).max else np.int64
    )
    return csr_array((values, columns, row_ptr), shape=(len(counts), num_columns))


def ids_to_mask(ids: IndexArray, count: int) -> Mask:
    """Which of so many numbers occur, bool [count]."""
    found = np.zeros(count, bool)

    def mark(block: slice) -> None:
        found[ids[block]] = True

    in_blocks(mark, len(ids), BLOCK_SIZE)
    return found


def unique_inverse(ids: IndexArray, dtype: DTypeLike = np.int32) -> tuple[IntArray, IndexArray]:
    """The distinct ids, none of them negative, ascending, and each id's place among them, of dtype.

    As np.unique(ids, return_inverse=True), which would sort them.
    """
    occurs = ids_to_mask(ids, int(ids.max()) + 1 if len(ids) else 0)
    place = np.cumsum(occurs, dtype=dtype)
    place -= 1
    return np.flatnonzero(occurs), take(place, ids)


def repeat_interleave(values: Tensor, counts: Tensor) -> Tensor:
    """As torch.repeat_interleave, of values [n] and counts int64 [n] on the host, in a fifth of the time or less."""
    return torch.from_numpy(np.repeat(values.numpy(), counts.numpy()))
