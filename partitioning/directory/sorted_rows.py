"""Where runs of equal numbers begin, as the entries of each row in a list that is sorted by row; how many they are."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.thread_pool import BLOCK, in_blocks


def runs(values: NDArray[Any]) -> NDArray[np.int64]:
    """Where each of R runs of equal values [n] begins, and the end, int64 [R + 1]."""
    begins = in_blocks(lambda block: _begins(values, block), len(values), BLOCK)
    return np.concatenate(
        (np.zeros(min(1, len(values)), np.int64), *begins, np.full(1, len(values)))
    )


def _begins(values: NDArray[Any], block: slice) -> NDArray[np.int64]:
    """Places in a block, behind the first of all, where a value is another than before."""
    after = values[block.start + 1 : block.stop + 1]
    place: NDArray[np.int64] = np.flatnonzero(after != values[block][: len(after)])
    place += block.start + 1
    return place


def row_pointers(rows: Tensor, num_rows: int) -> Tensor | None:
    """int64 [num_rows + 1] of the rows of E entries, int [E] in [0, num_rows); None where they do not ascend.

    The entries of row v are row_pointers[v] ... row_pointers[v + 1] - 1.
    """
    row = rows.numpy()

    def begins(block: slice) -> NDArray[np.int64] | None:
        """None where a lower row begins."""
        place = _begins(row, block)
        return place if bool((row[place[1:]] > row[place[:-1]]).all()) else None

    found = [np.zeros(min(1, len(row)), np.int64)]
    for place in in_blocks(begins, len(row), BLOCK):
        if place is None:
            return None
        found.append(place)
    begin = np.concatenate(found)
    of_begin = row[begin]
    if not (of_begin[1:] > of_begin[:-1]).all():
        return None
    pointers = np.zeros(num_rows + 1, np.int64)
    pointers[of_begin + 1] = np.diff(begin, append=len(row))
    return torch.from_numpy(np.cumsum(pointers, out=pointers))


def degrees(rows: Tensor, weight: Tensor | None, num_rows: int) -> Tensor:
    """How many of the entries, int [E], each row has, int64 [num_rows]; with weights [E] their sums, float64."""
    pointers = row_pointers(rows, num_rows) if weight is None else None
    if pointers is not None:
        return pointers.diff()
    return torch.bincount(rows, None if weight is None else weight.double(), minlength=num_rows)
