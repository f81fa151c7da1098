"""Random features that depend on a node's id alone: every worker computes those of its halo."""

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def random_rows(ids: NDArray[np.int64], width: int) -> NDArray[np.float32]:
    """Return uniform numbers of variance 1, float32 [N, width].

    They are SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of the id, int64 [N], and the column.
    """
    rows = np.empty((len(ids), width), np.float32)
    with np.errstate(over="ignore"):
        seeds = _mix(ids.astype(np.uint64) * GOLDEN)
        for column in range(width):
            bits = _mix(seeds + GOLDEN * np.uint64(column + 1))
            rows[:, column] = (bits >> np.uint64(40)).astype(np.float64) * (
                2 * 3**0.5 / 2**24
            ) - 3**0.5
    return rows


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's mix of each 64-bit integer."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
