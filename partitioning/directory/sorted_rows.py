"""Row pointers and degrees of a sorted list of rows, as in CSR; computed in threads."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.thread_pool import BLOCK, in_blocks


def runs(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the start of each of R runs of equal values [n], and n, int64 [R + 1]."""
    starts = in_blocks(lambda block: _find_starts(values, block), len(values), BLOCK)
    return np.concatenate(
        (np.zeros(min(1, len(values)), np.int64), *starts, np.full(1, len(values)))
    )


def _find_starts(values: NDArray[Any], block: slice) -> NDArray[np.int64]:
    """Return the positions in a block whose value differs from the one before."""
    after = values[block.start + 1 : block.stop + 1]
    positions: NDArray[np.int64] = np.flatnonzero(after != values[block][: len(after)])
    positions += block.start + 1
    return positions


def row_pointers(rows: Tensor, num_rows: int) -> Tensor | None:
    """Return the CSR row pointers of sorted entries, int64 [num_rows + 1]; None for unsorted ones.

    The entries of row v are pointers[v] ... pointers[v + 1] - 1.

    Args:
        rows: int [E] in [0, num_rows), the row of each entry.
    """
    row = rows.numpy()

    def find_sorted_starts(block: slice) -> NDArray[np.int64] | None:
        """Return `_find_starts` of a block.

        Returns None where the values at these positions do not ascend.
        """
        starts = _find_starts(row, block)
        return starts if bool((row[starts[1:]] > row[starts[:-1]]).all()) else None

    pieces = [np.zeros(min(1, len(row)), np.int64)]
    for block_starts in in_blocks(find_sorted_starts, len(row), BLOCK):
        if block_starts is None:
            return None
        pieces.append(block_starts)
    starts = np.concatenate(pieces)
    nonempty_rows = row[starts]
    if not (nonempty_rows[1:] > nonempty_rows[:-1]).all():
        return None
    pointers = np.zeros(num_rows + 1, np.int64)
    pointers[nonempty_rows + 1] = np.diff(starts, append=len(row))
    return torch.from_numpy(np.cumsum(pointers, out=pointers))
