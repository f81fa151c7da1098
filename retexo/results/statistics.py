"""Mean, standard deviation and paired differences of values, some of which may be missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from scipy.stats import ttest_rel

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Sample:
    """Statistics of one quantity over seeds."""

    n: int
    mean: float | None
    spread: float | None
    """Sample standard deviation (n - 1 in the denominator); None for fewer than two values."""


def summarize(values: Sequence[float | None]) -> Sample:
    """Compute the statistics of the values that are not None."""
    known = [value for value in values if value is not None]
    return Sample(
        len(known), fmean(known) if known else None, stdev(known) if len(known) > 1 else None
    )


@dataclass(frozen=True)
class Difference:
    """Paired difference, second minus first, with Student's t and n - 1 degrees of freedom."""

    n: int
    mean: float
    low: float
    high: float
    """Ends of the 95 % interval of the mean difference."""
    p: float | None
    """Two-sided p-value; None if all differences are equal."""


def compare_pairs(
    first: Mapping[str, float | None], second: Mapping[str, float | None]
) -> Difference | None:
    """Compare two methods on their common draws; None for fewer than two."""
    pairs = [
        (first[draw], second[draw]) for draw in first if None not in (first[draw], second.get(draw))
    ]
    if len(pairs) < 2:
        return None
    before, after = np.array(pairs, dtype=np.float64).T
    mean = float(np.mean(after - before))
    if np.ptp(after - before) == 0:
        return Difference(len(pairs), mean, mean, mean, None)
    test = ttest_rel(after, before)
    interval = test.confidence_interval(CONFIDENCE)
    return Difference(
        len(pairs), mean, float(interval.low), float(interval.high), float(test.pvalue)
    )


def correct_by_holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values by Holm's method, in the given order; None stays None."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, index) in enumerate(order):
        least = max(least, min(1.0, p * (len(order) - rank)))
        corrected[index] = least
    return corrected
