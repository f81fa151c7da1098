"""Paired differences of two methods."""

from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """Paired difference, second minus first."""

    n: int
    mean: float
    low: float
    high: float
    """Ends of the 95 % interval of the mean by Student's t with n - 1 degrees of freedom."""


def compare_pairs(first: Any, second: Any) -> Difference | None:
    """Compare two methods, the second minus the first, on their common draws; None: under two.

    first, second: scores by draw, as a mapping or a Series.
    """
    import pandas as pd
    from scipy.special import stdtrit  # scipy.stats takes half a second to load

    pairs: Any = (pd.Series(second, dtype=float) - pd.Series(first, dtype=float)).dropna()
    if len(pairs) < 2:
        return None
    mean, half = pairs.mean(), pairs.sem() * stdtrit(len(pairs) - 1, (1 + CONFIDENCE) / 2)
    return Difference(len(pairs), float(mean), float(mean - half), float(mean + half))
