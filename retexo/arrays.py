"""NumPy array types and small array helpers: take, count, unique, repeat, CSR construction.

Each helper does what the NumPy or PyTorch function of the same name does, but faster for int32
indices or in several threads.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array
from torch import Tensor

from partitioning.thread_pool import BLOCK, in_blocks

IntArray = NDArray[np.int64]
Int32Array = NDArray[np.int32]
"""Node indices of edge ends. A partition has fewer than 2^31 nodes, so four bytes are enough."""
IndexArray = NDArray[np.signedinteger[Any]]
"""Integers of 32 or 64 bits."""
FloatArray = NDArray[np.float64]
WeightArray = NDArray[np.float32]
ByteArray = NDArray[np.uint8]
Mask = NDArray[np.bool_]
BLOCK_SIZE = 1 << 17
"""Array entries that one thread processes at a time. A block fits in a core's cache."""


def take_weights(
    values: WeightArray | None, edges: Mask | IndexArray | slice
) -> WeightArray | None:
    """Return the weights of the selected edges, or None for an unweighted graph."""
    return None if values is None else values[edges]


def take(values: NDArray[Any], index: IndexArray) -> NDArray[Any]:
    """Return values[index] of 1-D values in a third of the time.

    IndexError below 0 as above the end. NumPy copies an index that is not int64. Threads take
    blocks.
    """
    rows, number = torch.from_numpy(values), torch.from_numpy(index)
    rows_taken = torch.empty(len(index), dtype=rows.dtype)
    in_blocks(
        lambda block: torch.index_select(rows, 0, number[block], out=rows_taken[block]),
        len(index),
        BLOCK_SIZE,
    )
    return rows_taken.numpy()


def bincount(ids: IndexArray, count: int = 0) -> IntArray:
    """Count how often each id occurs, int64 [count] or longer. np.bincount takes twice as long."""
    number: IntArray = torch.bincount(torch.from_numpy(ids), minlength=count).numpy()
    return number


def counts_to_pointers(counts: IntArray) -> IntArray:
    """Return CSR row pointers, int64 [L + 1].

    Row i has the entries pointers[i] to pointers[i + 1] - 1.

    Args:
        counts: [L] number of entries of each row.
    """
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))


def runs(values: NDArray[Any]) -> IntArray:
    """Return the start of each of R runs of equal values [n], and n, int64 [R + 1]."""

    def find_starts(block: slice) -> IntArray:
        """Return the positions in a block whose value differs from the one before."""
        after = values[block.start + 1 : block.stop + 1]
        starts: IntArray = np.flatnonzero(after != values[block][: len(after)])
        starts += block.start + 1
        return starts

    pieces = in_blocks(find_starts, len(values), BLOCK)
    return np.concatenate(
        (np.zeros(min(1, len(values)), np.int64), *pieces, np.full(1, len(values)))
    )


def row_pointers(rows: Tensor, num_rows: int) -> Tensor | None:
    """Return the CSR row pointers of sorted entries, int64 [num_rows + 1]; None for unsorted ones.

    The entries of row v are pointers[v] ... pointers[v + 1] - 1.

    Args:
        rows: int [E] in [0, num_rows), the row of each entry.
    """
    row = rows.numpy()

    def is_sorted(block: slice) -> bool:
        after = row[block.start + 1 : block.stop + 1]
        return bool((after >= row[block][: len(after)]).all())

    if not all(in_blocks(is_sorted, len(row), BLOCK)):
        return None
    return torch.from_numpy(counts_to_pointers(bincount(row, num_rows)))


def csr_from_counts(
    values: NDArray[Any], columns: IndexArray, counts: IntArray, num_columns: int
) -> csr_array:
    """Build a CSR matrix [R, num_columns] from its values, its columns and the length of each row.

    The row pointers get the type of the columns: otherwise SciPy would widen both to int64.

    Args:
        values: [n] row by row.
        columns: [n]
        counts: [R] number of values of each row.
    """
    row_ptr = counts_to_pointers(counts).astype(
        columns.dtype if len(columns) < np.iinfo(np.int32).max else np.int64
    )
    return csr_array((values, columns, row_ptr), shape=(len(counts), num_columns))


def ids_to_mask(ids: IndexArray, count: int) -> Mask:
    """Return a boolean mask [count] that is true for every id that occurs in `ids`."""
    mask = np.zeros(count, bool)

    def mark(block: slice) -> None:
        """Mark the ids of one block."""
        mask[ids[block]] = True

    in_blocks(mark, len(ids), BLOCK_SIZE)
    return mask


def unique_inverse(ids: IndexArray, dtype: DTypeLike = np.int32) -> tuple[IntArray, IndexArray]:
    """Return the sorted distinct ids, and for each id its index among them, of type `dtype`.

    Same as np.unique(ids, return_inverse=True) for non-negative ids, but in linear time.
    """
    occurs = ids_to_mask(ids, int(ids.max()) + 1 if len(ids) else 0)
    place = np.cumsum(occurs, dtype=dtype)
    place -= 1
    return np.flatnonzero(occurs), take(place, ids)


def repeat_interleave(values: Tensor, counts: Tensor) -> Tensor:
    """torch.repeat_interleave of values [n] by counts int64 [n] on the CPU, five times as fast."""
    return torch.from_numpy(np.repeat(values.numpy(), counts.numpy()))
