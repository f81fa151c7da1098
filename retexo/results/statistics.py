"""Paired differences of two methods."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """Paired difference, second minus first."""

    n: int
    mean: float
    low: float
    high: float
    """Ends of the 95 % interval of the mean by Student's t with n - 1 degrees of freedom."""


def compare_pairs(
    first: Mapping[str, float | None], second: Mapping[str, float | None]
) -> Difference | None:
    """Compare two methods, the second minus the first, on their common draws; None: under two."""
    pairs = [
        (first[draw], second[draw]) for draw in first if None not in (first[draw], second.get(draw))
    ]
    if len(pairs) < 2:
        return None
    before, after = np.array(pairs, dtype=np.float64).T
    mean = float(np.mean(after - before))
    if np.ptp(after - before) == 0:
        return Difference(len(pairs), mean, mean, mean)
    from scipy.stats import ttest_rel  # takes half a second to load, and training needs none

    interval = ttest_rel(after, before).confidence_interval(CONFIDENCE)
    return Difference(len(pairs), mean, float(interval.low), float(interval.high))
