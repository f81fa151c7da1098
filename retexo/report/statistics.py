"""Mean, spread and paired differences. Nothing is assumed of values that are not there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Sample:
    """Values of one quantity over seeds."""

    n: int
    mean: float | None
    spread: float | None
    """Sample standard deviation (n - 1 in the denominator); None for fewer than two values."""


def sample(values: Sequence[float | None]) -> Sample:
    """n, mean and spread of the values that are there."""
    known = [value for value in values if value is not None]
    n = len(known)
    if n == 0:
        return Sample(0, None, None)
    mean = sum(known) / n
    if n == 1:
        return Sample(1, mean, None)
    return Sample(n, mean, sqrt(sum((value - mean) ** 2 for value in known) / (n - 1)))


@dataclass(frozen=True)
class Difference:
    """Second minus first, over the draws that both have; Student's t with n - 1 degrees of freedom."""

    n: int
    mean: float
    low: float
    high: float
    """Ends of the 95 % interval of the mean difference."""
    p: float | None
    """Two-sided, of no difference; None where all differences are equal, which t cannot judge."""


def paired_difference(first: Mapping[str, float | None], second: Mapping[str, float | None]) -> Difference | None:
    """Compare two methods on the draws that they share; None for fewer than two."""
    pairs = [(first[draw], second[draw]) for draw in first if draw in second]
    differences = sample([b - a if a is not None and b is not None else None for a, b in pairs])
    n, mean, spread = differences.n, differences.mean, differences.spread
    if mean is None or spread is None:
        return None
    error = spread / sqrt(n)
    reach = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * error
    p = 2 * float(stdtr(n - 1, -abs(mean) / error)) if error > 0 else None
    return Difference(n, mean, mean - reach, mean + reach, p)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction of several tests made at once, in the order given; None stays None."""
    order = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, place) in enumerate(order):
        least = max(least, min(1.0, p * (len(order) - rank)))
        corrected[place] = least
    return corrected
