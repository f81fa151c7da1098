"""Statistics of the columns of a table, from which a feature pipeline is fitted.

They come from the rows (`FittedRows`), or from the sums over tables that stay with their owners
(`sums.py`). Means and variances are merged over blocks of rows (Chan et al. 1979).
Medians and quartiles of rows are taken from a sample of evenly spaced ones.

N rows, W columns of the raw matrix.
"""

import functools
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from partitioning.graph.schema import Column, Rows, Schema

BLOCK = 1 << 20
"""Numbers of the raw matrix that are read at a time."""
SAMPLE = 1 << 24
"""Numbers from which medians and quartiles are taken at most; 128 MiB."""
SIMILAR = 10.0
"""Columns of a matrix are of similar scales if the largest root mean square is at most this many
times the smallest."""
Values = NDArray[np.float64]


def signed_log(values: Values) -> Values:
    """Return sign(v) log(1 + |v|) of each value."""
    logarithm: Values = np.sign(values) * np.log1p(np.abs(values))
    return logarithm


@dataclass(frozen=True, eq=False)
class Moments:
    """Statistics of several columns, blanks left out; [W] each."""

    count: Values
    mean: Values
    squares: Values
    """Sums of squared distances from the mean."""
    low: Values
    high: Values
    binary: NDArray[np.bool_]
    """Whether all values are 0 or 1."""
    num_zeros: Values
    num_blank: Values

    @classmethod
    def of(cls, blocks: Iterable[Values], width: int) -> "Moments":
        """Compute the statistics of blocks of rows, and merge them."""
        zero, infinite, yes = np.zeros(width), np.full(width, np.inf), np.ones(width, np.bool_)
        return functools.reduce(
            Moments.merge,
            map(cls.of_block, blocks),
            cls(zero, zero, zero, infinite, -infinite, yes, zero, zero),
        )

    @classmethod
    def of_block(cls, values: Values) -> "Moments":
        """Compute the statistics of the columns of one block of rows; NaN is a blank cell."""
        known = ~np.isnan(values)
        count = known.sum(axis=0).astype(np.float64)
        mean = np.where(known, values, 0).sum(axis=0) / np.maximum(count, 1)
        return cls(
            count,
            mean,
            squares=np.where(known, (values - mean) ** 2, 0).sum(axis=0),
            low=np.where(known, values, np.inf).min(axis=0),
            high=np.where(known, values, -np.inf).max(axis=0),
            binary=(~known | (values == 0) | (values == 1)).all(axis=0),
            num_zeros=(values == 0).sum(axis=0).astype(np.float64),
            num_blank=len(values) - count,
        )

    def merge(self, other: "Moments") -> "Moments":
        """Return the statistics of the rows of both."""
        total, delta = self.count + other.count, other.mean - self.mean
        share = other.count / np.maximum(total, 1)
        return Moments(
            total,
            self.mean + delta * share,
            squares=self.squares + other.squares + delta**2 * self.count * share,
            low=np.minimum(self.low, other.low),
            high=np.maximum(self.high, other.high),
            binary=self.binary & other.binary,
            num_zeros=self.num_zeros + other.num_zeros,
            num_blank=self.num_blank + other.num_blank,
        )

    def take(self, column: Column) -> "Moments":
        """Return the statistics of one column of the table."""
        return Moments(*(getattr(self, field.name)[column.columns] for field in fields(self)))

    @property
    def varies(self) -> NDArray[np.bool_]:
        """Whether there are two different values."""
        return self.low < self.high

    @property
    def deviation(self) -> Values:
        """Standard deviation; 1 where a column is empty or constant."""
        deviation = np.sqrt(self.squares / np.maximum(self.count, 1))
        return np.where(self.varies & (deviation > 0), deviation, 1.0)

    @property
    def has_similar_scales(self) -> bool:
        """Whether the root mean squares of all varying columns are within a factor SIMILAR."""
        size = np.sqrt(self.mean**2 + self.squares / np.maximum(self.count, 1))[self.varies]
        return len(size) < 2 or bool(size.max() <= SIMILAR * size.min())


class Statistics(Protocol):
    """What a pipeline is fitted from. Its methods send nothing, also where tables stay at sites."""

    def moments(self, column: Column) -> Moments: ...

    def log_moments(self, column: Column) -> Moments:
        """Return moments of the signed logarithms of the values."""

    def quantiles(self, column: Column, shares: list[float]) -> Values:
        """Return the quantiles at `shares`, [shares, width]; 0 for a column without values."""

    def count_categories(self, column: Column) -> tuple[dict[str, int], int]:
        """Count the rows of each category that occurs, and the blank ones."""

    def has_blanks(self, column: Column) -> bool:
        """Return whether any cell of a column is blank, also in rows that are not fitted on."""

    def blank_pattern(self, column: Column) -> Hashable:
        """Return a value that is equal for two columns if they are blank in the same rows."""


class FittedRows:
    """The rows that the pipeline learns from, and their statistics."""

    def __init__(self, features: Rows, schema: Schema, used: NDArray[np.int64]) -> None:
        """Summarise features [N, W] at the rows `used`, int64, from which the pipeline learns."""
        self.features, self.used = features, used
        self.offsets = np.zeros(features.shape[1])
        for column in schema.columns:
            self.offsets[column.columns] = column.offset
        self._moments = Moments.of(self.blocks(), features.shape[1])

    def blocks(self) -> Iterator[Values]:
        """Yield the rows in the columns' own units, a block at a time."""
        size = max(1, BLOCK // max(self.features.shape[1], 1))
        for begin in range(0, len(self.used), size):
            yield self.features[self.used[begin : begin + size]].astype(np.float64) + self.offsets

    def moments(self, column: Column) -> Moments:
        return self._moments.take(column)

    def log_moments(self, column: Column) -> Moments:
        return self._log_moments.take(column)

    @functools.cached_property
    def _log_moments(self) -> Moments:
        return Moments.of(map(signed_log, self.blocks()), self.features.shape[1])

    @functools.cached_property
    def sample(self) -> Values:
        """Return evenly spaced rows, about SAMPLE values, from which quantiles are computed."""
        step = -(-len(self.used) * self.features.shape[1] // SAMPLE)
        return self.features[self.used[:: max(1, step)]].astype(np.float64) + self.offsets

    def quantiles(self, column: Column, shares: list[float]) -> Values:
        quantiles = np.zeros((len(shares), column.width))
        for entry in range(column.width):
            values = self.sample[:, column.first + entry]
            values = values[~np.isnan(values)]
            if len(values):
                quantiles[:, entry] = np.quantile(values, shares)
        return quantiles

    def count_categories(self, column: Column) -> tuple[dict[str, int], int]:
        codes = self.features[self.used, column.first]
        known = codes[~np.isnan(codes)].astype(np.int64)
        counts = np.bincount(known, minlength=len(column.categories)).tolist()
        number_by_name = {
            name: count for name, count in zip(column.categories, counts, strict=True) if count
        }
        return number_by_name, len(codes) - len(known)

    def has_blanks(self, column: Column) -> bool:
        size = max(1, BLOCK // column.width)
        return any(
            bool(np.isnan(self.features[begin : begin + size, column.columns]).any())
            for begin in range(0, len(self.features), size)
        )

    def blank_pattern(self, column: Column) -> bytes:
        rows = (np.isnan(self.features[self.used, column.first + at]) for at in range(column.width))
        return np.packbits(functools.reduce(np.logical_or, rows)).tobytes()
