"""One pipeline for the tables of several sites, fitted to sums of numbers that each site computes.

No site learns another's numbers if the sums are secure: only totals are used. Three vectors of
int64 are added up: counts, with a histogram of each column of numbers; sums; and sums of squared
distances from the common mean. All numbers are exact, or in fixed point, so that masks cancel and
the order of sites does not matter.

A column is measured in halves of its agreed range, from the middle: y = (x - middle) / half, |y| is
at most 1. A histogram has BINS bins of equal width, so that a median or quartile is exact to a bin.

E columns of numbers, with each entry of an embedding one.
"""

import hashlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError, join_names
from partitioning.features.agreed import AgreedColumn
from partitioning.features.encoder import State, fit_columns
from partitioning.features.statistics import FittedRows, Moments, Values, signed_log
from partitioning.graph.schema import VERSION, Column, Rows, Schema
from partitioning.partition_settings import FeatureSettings

log = logging.getLogger(__name__)

BINS = 1024
TOLERANCE = 1e-6
"""Share of a range's larger end by which a value may lie outside: float32 rounds."""
SMALLEST = 1e-6
"""A column with a smaller deviation, in halves of its range, is constant."""
PER_ENTRY = ("count", "num_zeros", "num_blank", "not_binary")
Words = NDArray[np.int64]
AddUp = Callable[[Words], Words]
"""Returns the sums of the words of all sites."""


@dataclass(frozen=True, eq=False)
class Share:
    """The numbers that a site adds to the sums."""

    num_rows: int
    counts: Words
    """See `_Layout`."""
    moments: tuple[Values, Values]
    """Means and sums of squared distances in halves of the range, [E], for features.scale=log of
    logarithms behind them: [2 E].
    """


@dataclass(frozen=True)
class _Layout:
    """Where the vector of counts has what."""

    columns: tuple[AgreedColumn, ...]
    has_histograms: bool
    has_logs: bool

    @classmethod
    def of(cls, columns: Sequence[AgreedColumn], settings: FeatureSettings) -> "_Layout":
        """Return the layout of agreed columns.

        The settings decide whether it has histograms and logarithms.
        """
        needs_quantiles = settings.missing == "median" or settings.scale == "robust"
        return cls(tuple(columns), needs_quantiles, settings.scale == "log")

    @property
    def numbers(self) -> list[AgreedColumn]:
        """Return the agreed columns that are not categorical."""
        return [column for column in self.columns if column.role != "categorical"]

    @property
    def num_entries(self) -> int:
        """Return the number of numeric entries E: the widths of the numeric columns, added up."""
        return sum(column.width for column in self.numbers)

    def split(self, counts: Words) -> dict[str, Words]:
        """Return the parts by name.

        Those of PER_ENTRY are [E], bins [E, BINS], has_blanks and pattern [K] by column, num_rows
        [1]; of a categorical column its categories, others, and blanks. Of [0] they are zeros.
        """
        entries = self.num_entries
        sizes = {"num_rows": 1} | dict.fromkeys(PER_ENTRY, entries)
        sizes |= dict.fromkeys(("has_blanks", "pattern"), len(self.columns))
        sizes |= {"bins": BINS * entries * self.has_histograms}
        for column in self.columns:
            if column.role == "categorical":
                sizes[f"/{column.name}"] = len(column.categories) + 2
        if len(counts) == 0:
            counts = np.zeros(sum(sizes.values()), np.int64)
        ends = np.cumsum(list(sizes.values()))[:-1]
        return dict(zip(sizes, np.split(counts, ends), strict=True))

    def ranges(self) -> tuple[Values, Values]:
        """Return middle and half of the ranges: [E], or [2 E] with those of logarithms."""
        ends = np.array(
            [(column.low, column.high) for column in self.numbers for _ in range(column.width)]
        ).reshape(-1, 2)
        if self.has_logs:
            ends = np.concatenate([ends, signed_log(ends)])
        return ends.mean(axis=1), (ends[:, 1] - ends[:, 0]) / 2


# --- a site's share ----------


def share_nothing(columns: Sequence[AgreedColumn], settings: FeatureSettings) -> Share:
    """Return the share of a site without rows."""
    layout = _Layout.of(columns, settings)
    zeros = np.zeros(layout.num_entries * (1 + layout.has_logs))
    return Share(
        0, np.concatenate(list(layout.split(np.empty(0, np.int64)).values())), (zeros, zeros)
    )


def compute_share(
    features: Rows,
    schema: Schema,
    rows: NDArray[np.bool_] | None,
    columns: Sequence[AgreedColumn],
    settings: FeatureSettings,
) -> Share:
    """Compute the numbers of a site's table. Hashes of blanks have a key that is drawn here.

    Args:
        features: [N, W] raw numbers, NaN where blank.
        schema: What the columns hold.
        rows: [N] which rows to learn from; None: all.
        columns: What all sites have agreed on.
        settings: How to scale and fill.

    Raises:
        InputError: a column is missing or holds something else, a number is outside its range, or a
            cell is blank with features.missing=error.
    """
    used = np.arange(len(features)) if rows is None else np.flatnonzero(rows)
    table, layout = FittedRows(features, schema, used), _Layout.of(columns, settings)
    own = [_find(schema, agreed) for agreed in columns]
    parts = layout.split(np.empty(0, np.int64))
    parts["num_rows"][0] = len(used)
    key = secrets.token_bytes(16)
    for at, column in enumerate(own):
        parts["has_blanks"][at] = table.has_blanks(column)
        if parts["has_blanks"][at] and settings.missing == "error":
            raise InputError(
                f"features.missing=error: {schema.path}: column `{column.name}` has blanks; fill"
                " them, or set features.missing=median at all sites"
            )
        # Sums of hashes with a key that no other site has are equal only where all patterns are.
        pattern = hashlib.blake2b(
            repr(table.blank_pattern(column)).encode(), key=key, digest_size=8
        )
        parts["pattern"][at] = np.frombuffer(pattern.digest(), np.int64)[0]
    numbers = [column for column in own if column.role != "categorical"]
    if numbers:
        _count_numbers(parts, table, numbers, layout, schema.path)
    for agreed, column in zip(columns, own, strict=True):
        if column.role == "categorical":
            _count_categories(parts[f"/{agreed.name}"], table, column, agreed, schema)
    moments = [table.moments(column) for column in numbers]
    if layout.has_logs:
        moments += [table.log_moments(column) for column in numbers]
    middle, half = layout.ranges()
    count = _concatenate([moment.count for moment in moments])
    mean = np.where(
        count > 0, (_concatenate([moment.mean for moment in moments]) - middle) / half, 0
    )
    squares = _concatenate([moment.squares for moment in moments]) / half**2
    return Share(len(used), np.concatenate(list(map(np.ravel, parts.values()))), (mean, squares))


def _concatenate(values: list[Values]) -> Values:
    """Concatenate arrays, also none."""
    return np.concatenate([np.empty(0), *values])


def _find(schema: Schema, agreed: AgreedColumn) -> Column:
    """Return the column of a table; InputError if it is missing or holds something else."""
    column = schema.find(agreed.name)
    if column is None:
        names = join_names(column.name for column in schema.columns)
        raise InputError(
            f"{schema.path}: there is no column `{agreed.name}`, which features.spec names; add it,"
            f" or take it out of the file at all sites; found {names}"
        )
    if (column.role, column.width) != (agreed.role, agreed.width):
        raise InputError(
            f"{schema.path}: column `{column.name}` is {column.role} ({column.width} wide);"
            f" features.spec has {agreed.role} ({agreed.width} wide); mend the values, or change"
            " the file at all sites"
        )
    return column


def check_no_others(schema: Schema, columns: Sequence[AgreedColumn]) -> None:
    """Raise InputError for a column of the table that sites have not agreed on."""
    for column in schema.columns:
        if all(column.name != other.name for other in columns):
            why = " The names of its categories stay here otherwise." if column.categories else ""
            raise InputError(
                f"{schema.path}: column `{column.name}` ({column.role}) is not in the file of"
                f" features.spec: add it there at all sites, or set columns.ignore={column.name}."
                + why
            )


def _count_numbers(
    parts: dict[str, Words],
    table: FittedRows,
    columns: list[Column],
    layout: _Layout,
    path: str,
) -> None:
    """Fill in the counts of the numeric columns: values, zeros, blanks and histograms.

    Raises InputError for a value outside its range.
    """
    moments = [table.moments(column) for column in columns]
    for name in ("count", "num_zeros", "num_blank"):
        parts[name][:] = np.concatenate([getattr(moment, name) for moment in moments])
    parts["not_binary"][:] = ~np.concatenate([moment.binary for moment in moments])
    low, high = (
        np.concatenate([getattr(moment, end) for moment in moments]) for end in ("low", "high")
    )
    columns_of_entries = [column for column in layout.numbers for _ in range(column.width)]
    for own, least, most in zip(columns_of_entries, low, high, strict=True):
        margin = min(TOLERANCE * max(abs(own.low), abs(own.high)), (own.high - own.low) / 2)
        for value in (least, most) if least <= most else ():
            if not own.low - margin <= value <= own.high + margin:
                raise InputError(
                    f"{path}: column `{own.name}` has {value:g}, outside the range [{own.low:g},"
                    f" {own.high:g}] of features.spec; widen it at all sites, or mend the value"
                )
    if not layout.has_histograms:
        return
    bins = parts["bins"].reshape(-1, BINS)
    places = np.concatenate([np.arange(column.first, column.columns.stop) for column in columns])
    middle, half = (per_entry[: layout.num_entries] for per_entry in layout.ranges())
    for block in table.blocks():
        place = np.floor(((block[:, places] - middle) / half + 1) * (BINS / 2)).clip(0, BINS - 1)
        for counts, bins_of_rows in zip(bins, place.T, strict=True):
            counts += np.bincount(
                bins_of_rows[~np.isnan(bins_of_rows)].astype(np.int64), minlength=BINS
            )


def _count_categories(
    counts: Words, table: FittedRows, column: Column, agreed: AgreedColumn, schema: Schema
) -> None:
    """Fill in `counts`: the rows of each agreed category, of all others, and of blank cells.

    Warns of others.
    """
    number_by_name, counts[-1] = table.count_categories(column)
    others = {
        name: number for name, number in number_by_name.items() if name not in agreed.categories
    }
    counts[:-2] = [number_by_name.get(name, 0) for name in agreed.categories]
    counts[-2] = sum(others.values())
    if others:
        log.warning(
            "%s: column `%s`: %d rows have one of %d categories that features.spec does not list;"
            " they share one column",
            schema.path,
            column.name,
            counts[-2],
            len(others),
        )


# --- fitting ----------


def fit_sums(
    share: Share,
    columns: Sequence[AgreedColumn],
    settings: FeatureSettings,
    add_up: AddUp,
) -> State:
    """Fit the pipeline, as `fit_pipeline` fits one to a table with the rows of all sites.

    Args:
        share: This site's.
        columns: What all sites have agreed on.
        settings: The same at all sites.
        add_up: Is called three times.

    Returns:
        The same state at all sites.

    Raises:
        InputError: no site has a row to learn from.
    """
    layout = _Layout.of(columns, settings)
    own, total = layout.split(share.counts), layout.split(add_up(share.counts))
    num_rows = int(total["num_rows"][0])
    if num_rows == 0:
        raise InputError(f"features.fit={settings.fit}: no site has rows to learn from")
    repeats = 1 + layout.has_logs
    own_count, count = (
        np.tile(shares_of_column["count"], repeats) for shares_of_column in (own, total)
    )
    mean, squares = share.moments
    mean_of_all = _add_numbers(own_count * mean, num_rows, add_up) / np.maximum(count, 1)
    squares = squares + own_count * (mean - mean_of_all) ** 2
    squares_of_all = _add_numbers(squares, num_rows, add_up)
    table = SummedTables(layout, total, mean_of_all, squares_of_all)
    first, places = 0, []
    for column in columns:
        places.append(Column(column.name, column.role, first, column.width))
        first += column.width
    states = fit_columns(table, Schema("features.spec", tuple(places)), settings)
    for state in states:
        if state["role"] == "categorical":
            state["rest"] |= bool(total[f"/{state['name']}"][-2])
    return {
        "version": VERSION,
        "fitted_on": settings.fit,
        "num_rows": num_rows,
        "missing": settings.missing,
        "roles": {},
        "ignored": {},
        "columns": states,
    }


def _add_numbers(values: Values, num_rows: int, add_up: AddUp) -> Values:
    """Return sums of numbers of at most 16 for each row, in fixed point."""
    unit = 2.0 ** (num_rows.bit_length() - 58)
    sums: Values = add_up(np.rint(values / unit).astype(np.int64)).astype(np.float64) * unit
    return sums


class SummedTables:
    """Statistics of the rows of all sites, from sums received before; statistics.Statistics.

    No method sends a message. Quantiles are middles of bins.
    """

    def __init__(
        self, layout: _Layout, total: dict[str, Words], mean: Values, squares: Values
    ) -> None:
        self._layout, self._total = layout, total
        self._mean, self._squares = mean, squares
        self._entries: dict[str, slice] = {}
        first = 0
        for column in layout.numbers:
            self._entries[column.name] = slice(first, first + column.width)
            first += column.width

    def moments(self, column: Column) -> Moments:
        return self._moments(column, 0)

    def log_moments(self, column: Column) -> Moments:
        return self._moments(column, self._layout.num_entries)

    def _moments(self, column: Column, offset: int) -> Moments:
        """Compute the statistics of a column from the sums.

        offset: where logarithms begin, or 0.
        """
        at = self._entries[column.name]
        count, zeros, blank, not_binary = (self._total[name][at] for name in PER_ENTRY)
        shifted = slice(at.start + offset, at.stop + offset)
        middle, half = (per_entry[shifted] for per_entry in self._layout.ranges())
        mean, squares = self._mean[shifted], self._squares[shifted]
        varies = squares > SMALLEST**2 * np.maximum(count, 1)
        return Moments(
            count.astype(np.float64),
            mean=np.where(count > 0, middle + half * mean, 0),
            squares=squares * half**2,
            # The smallest and largest value stay at their site; the range stands for them.
            low=middle - half,
            high=np.where(varies, middle + half, middle - half),
            binary=not_binary == 0,
            num_zeros=zeros.astype(np.float64),
            num_blank=blank.astype(np.float64),
        )

    def quantiles(self, column: Column, shares: list[float]) -> Values:
        at = self._entries[column.name]
        middle, half = (per_entry[at] for per_entry in self._layout.ranges())
        quantiles = np.zeros((len(shares), column.width))
        for entry, counts in enumerate(self._total["bins"].reshape(-1, BINS)[at]):
            below = np.cumsum(counts)
            # Just before and after: between them may be a gap without values.
            margin = below[-1] * 1e-9
            bins = [
                np.searchsorted(below, below[-1] * np.array(shares) + m) for m in (-margin, margin)
            ]
            place = (np.mean(bins, axis=0) + 0.5) * 2 / BINS - 1
            quantiles[:, entry] = middle[entry] + half[entry] * place if below[-1] else 0
        return quantiles

    def count_categories(self, column: Column) -> tuple[dict[str, int], int]:
        counts = self._total[f"/{column.name}"].tolist()
        names = next(
            agreed_column.categories
            for agreed_column in self._layout.columns
            if agreed_column.name == column.name
        )
        known = dict(zip(names, counts[:-2], strict=True))
        return {name: count for name, count in known.items() if count}, counts[-1]

    def has_blanks(self, column: Column) -> bool:
        return bool(self._count_of("has_blanks", column))

    def blank_pattern(self, column: Column) -> int:
        return self._count_of("pattern", column)

    def _count_of(self, name: str, column: Column) -> int:
        """Return the summed count with this name of a column."""
        names = [column.name for column in self._layout.columns]
        return int(self._total[name][names.index(column.name)])


def describe_sums(columns: Sequence[AgreedColumn], settings: FeatureSettings) -> list[str]:
    """Return lines that say which sums the sites add up."""
    layout = _Layout.of(columns, settings)
    numbers = ", ".join(column.name for column in layout.numbers)
    categorical = [column.name for column in columns if column.role == "categorical"]
    more = f", histogram of {BINS} bins" if layout.has_histograms else ""
    more += ", sums of logarithms" if layout.has_logs else ""
    lines = [f"counts, sum, sum of squares{more}: {numbers}"] if numbers else []
    return lines + ([f"rows with each category: {', '.join(categorical)}"] if categorical else [])
