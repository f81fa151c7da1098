"""Summaries of tables that stay with their owners, and the pipeline that is fitted to all of them.

A summary is JSON and holds no rows. It has counts, ranges, means, variances and a histogram of each
numeric column, and the count of each category. Counts and moments of several tables add up exactly.
The histogram of a column has bins of equal width in sign(z) log(1 + |z|), where
z = (x - mean) / deviation of its own table. A median or quartile lies within two deviations of the
mean, where a bin is at most .06 deviations wide.
"""

import functools
import math
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.features.encoder import State, fit_columns
from partitioning.features.schema import ROLES, Column, Rows, Schema
from partitioning.features.schema import VERSION as PIPELINE_VERSION
from partitioning.features.statistics import FittedRows, Moments, Values, signed_log
from partitioning.partition_settings import FeatureSettings

VERSION = 1
BIN = 0.02
"""Width of a bin, in sign(z) log(1 + |z|)."""
MAX_BINS = 100_000
COUNTS = ("count", "num_zeros", "num_blank")
NUMBERS = ("mean", "variance", "low", "high", "log_mean", "log_variance")
Summary = dict[str, Any]


def summarise(features: Rows, schema: Schema, rows: NDArray[np.bool_] | None = None) -> Summary:
    """Summarise the feature columns of a table.

    Args:
        features: [N, W] raw numbers, NaN where blank.
        schema: What the columns hold.
        rows: [N] which rows to summarise; None: all.

    Raises:
        InputError: the features are a sparse matrix.
    """
    if not isinstance(features, np.ndarray):
        raise InputError(
            f"{schema.path}: is a sparse matrix, which stays as it is: there is nothing to describe"
        )
    used = np.arange(len(features)) if rows is None else np.flatnonzero(rows)
    table = FittedRows(features, schema, used)
    patterns: list[Hashable] = [table.blank_pattern(column) for column in schema.columns]
    columns = []
    for column, pattern in zip(schema.columns, patterns, strict=True):
        summary: Summary = {"name": column.name, "role": column.role, "width": column.width}
        summary |= {"has_blanks": table.has_blanks(column), "blank_as": patterns.index(pattern)}
        if column.role == "categorical":
            counts, num_blank = table.count_categories(column)
            summary |= {"categories": dict(sorted(counts.items())), "num_blank": [num_blank]}
        else:
            summary |= _summarise_numbers(table, column)
        columns.append(summary)
    return {
        "version": VERSION,
        "fitted_on": "all" if rows is None else "train",
        "num_rows": len(used),
        "roles": schema.roles,
        "ignored": schema.ignored,
        "columns": columns,
    }


def _summarise_numbers(table: FittedRows, column: Column) -> Summary:
    """Return the summary of a numeric column: moments, also of logarithms, range and histogram."""
    moments, logs = table.moments(column), table.log_moments(column)
    known = np.maximum(moments.count, 1)
    is_empty = moments.count == 0
    values: dict[str, Any] = {
        "count": moments.count.astype(np.int64),
        "num_zeros": moments.num_zeros.astype(np.int64),
        "num_blank": moments.num_blank.astype(np.int64),
        "binary": moments.binary,
        "mean": moments.mean,
        "variance": moments.squares / known,
        "low": np.where(is_empty, 0, moments.low),
        "high": np.where(is_empty, 0, moments.high),
        "log_mean": logs.mean,
        "log_variance": logs.squares / known,
    }
    bins: list[dict[int, int]] = [{} for _ in range(column.width)]
    for block in table.blocks():
        distance = (block[:, column.columns] - moments.mean) / moments.deviation
        for entry, counts in enumerate(bins):
            known_distance = distance[:, entry][~np.isnan(distance[:, entry])]
            places = np.round(signed_log(known_distance) / BIN).astype(np.int64)
            for place, count in zip(*np.unique(places, return_counts=True), strict=True):
                counts[int(place)] = counts.get(int(place), 0) + int(count)
    histogram = []
    for counts in bins:
        first, last = min(counts, default=0), max(counts, default=-1)
        histogram.append(
            {"first": first, "counts": [counts.get(at, 0) for at in range(first, last + 1)]}
        )
    return {name: array.tolist() for name, array in values.items()} | {"histogram": histogram}


# --- fitting ----------


def fit_summaries(summaries: Mapping[str, Summary], settings: FeatureSettings) -> State:
    """Fit one pipeline to all tables, as `encoder.fit` fits one to a table with the rows of all.

    Args:
        summaries: By file, for messages; checked by `check_summary`.
        settings: How to scale and fill.

    Raises:
        InputError: the tables have other columns, or of other roles.
    """
    first_file, first = next(iter(summaries.items()))
    for file, other in summaries.items():
        _check_same_columns(first_file, first, file, other)
    columns, at = [], 0
    for each in first["columns"]:
        columns.append(Column(each["name"], each["role"], at, each["width"]))
        at += each["width"]
    everyone = list(summaries.values())
    is_train = all(each["fitted_on"] == "train" for each in everyone)
    schema = Schema(first_file, tuple(columns), first["roles"])
    table = SummarisedTables(everyone)
    _check_blanks(table, schema, settings)
    return {
        "version": PIPELINE_VERSION,
        "fitted_on": "train" if is_train else "all",
        "num_rows": sum(each["num_rows"] for each in everyone),
        "missing": settings.missing,
        "roles": schema.roles,
        "ignored": {name: why for each in everyone for name, why in each["ignored"].items()},
        "columns": fit_columns(table, schema, settings),
    }


def _check_same_columns(first_file: str, first: Summary, file: str, other: Summary) -> None:
    """InputError unless two summaries have columns of the same names, roles and widths."""
    here, there = (
        {each["name"]: (each["role"], each["width"]) for each in summary["columns"]}
        for summary in (first, other)
    )
    for name in here.keys() ^ there.keys():
        has, lacks = (first_file, file) if name in here else (file, first_file)
        raise InputError(
            f"features.spec: column `{name}` is in {has} and not in {lacks}; give all tables the"
            f" same columns, or leave it out by columns.ignore={name} in app=describe"
        )
    for name, (role, width) in here.items():
        if there[name] != (role, width):
            raise InputError(
                f"features.spec: column `{name}` is {role} ({width} wide) in {first_file} and "
                f"{there[name][0]} ({there[name][1]} wide) in {file}; set columns.numeric={name} or"
                f" columns.categorical={name} in app=describe of both"
            )


def _check_blanks(table: "SummarisedTables", schema: Schema, settings: FeatureSettings) -> None:
    """InputError for a column with blank cells, if features.missing=error."""
    for column in schema.columns if settings.missing == "error" else ():
        if table.has_blanks(column):
            raise InputError(
                f"features.missing=error: column `{column.name}` has blanks in a table of"
                " features.spec; fill them, or set features.missing=median"
            )


class SummarisedTables:
    """The statistics of the rows of several tables, from their summaries."""

    def __init__(self, summaries: list[Summary]) -> None:
        by_name = [{each["name"]: each for each in summary["columns"]} for summary in summaries]
        self.tables = {name: [columns[name] for columns in by_name] for name in by_name[0]}
        """The summaries of each column, by table."""

    def moments(self, column: Column) -> Moments:
        return functools.reduce(Moments.merge, map(_read_moments, self.tables[column.name]))

    def log_moments(self, column: Column) -> Moments:
        logs = (
            each | {"mean": each["log_mean"], "variance": each["log_variance"]}
            for each in self.tables[column.name]
        )
        return functools.reduce(Moments.merge, map(_read_moments, logs))

    def quantiles(self, column: Column, shares: list[float]) -> Values:
        found = np.zeros((len(shares), column.width))
        for entry in range(column.width):
            counted = [
                _count_below(each, entry)
                for each in self.tables[column.name]
                if each["count"][entry]
            ]
            if counted:
                edges = np.unique(np.concatenate([edges for edges, _ in counted]))
                below = sum(np.interp(edges, *each) for each in counted)
                found[:, entry] = _invert(edges, np.asarray(below), np.array(shares))
        return found

    def count_categories(self, column: Column) -> tuple[dict[str, int], int]:
        counts: Counter[str] = Counter()
        for each in self.tables[column.name]:
            counts.update(each["categories"])
        return counts, sum(each["num_blank"][0] for each in self.tables[column.name])

    def has_blanks(self, column: Column) -> bool:
        return any(each["has_blanks"] for each in self.tables[column.name])

    def blank_pattern(self, column: Column) -> tuple[int, ...]:
        return tuple(each["blank_as"] for each in self.tables[column.name])


def _read_moments(column: Summary) -> Moments:
    """Return the statistics in a column's summary."""
    read = {name: np.array(column[name], np.float64) for name in (*COUNTS, *NUMBERS)}
    count, empty = read["count"], read["count"] == 0
    return Moments(
        count,
        read["mean"],
        squares=read["variance"] * count,
        low=np.where(empty, np.inf, read["low"]),
        high=np.where(empty, -np.inf, read["high"]),
        binary=np.array(column["binary"]),
        num_zeros=read["num_zeros"],
        num_blank=read["num_blank"],
    )


def _count_below(column: Summary, entry: int) -> tuple[Values, Values]:
    """The edges of the bins, ascending, and how many values of a table are below each."""
    histogram, moments = column["histogram"][entry], _read_moments(column)
    places = histogram["first"] - 0.5 + np.arange(len(histogram["counts"]) + 1)
    distance = np.sign(places) * np.expm1(np.abs(places) * BIN)
    deviation = moments.deviation[entry] if moments.varies[entry] else 0.0
    edges = moments.mean[entry] + deviation * distance
    edges = np.clip(edges, moments.low[entry], moments.high[entry])
    return edges, np.concatenate([[0], np.cumsum(histogram["counts"])]).astype(np.float64)


def _invert(edges: Values, below: Values, shares: Values) -> Values:
    """The value below which each share of the rows lies; the middle of a gap without values."""
    wanted, margin = shares * below[-1], below[-1] * 1e-9
    around = (np.interp(wanted + sign * margin, below, edges) for sign in (-1, 1))
    middle: Values = sum(around) / 2
    return middle


# --- checks ----------


def check_summaries(summaries: Any) -> None:
    """ValueError unless this is a JSON value of summaries by table: it may come from anyone."""
    try:
        for table, summary in summaries.items():
            names = [name for role in summary["roles"].values() for name in role]
            texts = [*summary["roles"], *names, *summary["ignored"], *summary["ignored"].values()]
            columns = [each["name"] for each in summary["columns"]]
            is_sound = (
                all(isinstance(text, str) for text in (table, *texts, *columns))
                and isinstance(summary["columns"], list)
                and len(set(columns)) == len(columns) > 0
                and summary["fitted_on"] in ("train", "all")
                and _are_counts([summary["num_rows"]], 1)
                and all(_is_column(each, len(columns)) for each in summary["columns"])
            )
            if not is_sound:
                raise ValueError(f"{table} is no summary of a table")
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"it is no summary of a table ({error!r})") from None


def _is_column(column: Summary, num_columns: int) -> bool:
    width, role = column["width"], column["role"]
    is_sound = (
        role in ROLES
        and type(width) is int
        and width > 0
        and type(column["has_blanks"]) is bool
        and column["blank_as"] in range(num_columns)
        and _are_counts(column["num_blank"], width)
    )
    if role == "categorical":
        categories = column["categories"]
        return is_sound and width == 1 and _are_counts(list(categories.values()), len(categories))
    return (
        is_sound
        and all(_are_counts(column[name], width) for name in COUNTS)
        and all(_are_numbers(column[name], width) for name in NUMBERS)
        and min(*column["variance"], *column["log_variance"]) >= 0
        and len(column["binary"]) == width
        and all(type(flag) is bool for flag in column["binary"])
        and len(column["histogram"]) == width
        and all(map(_is_histogram, column["histogram"], column["count"]))
    )


def _is_histogram(histogram: Any, count: int) -> bool:
    counts, first = histogram["counts"], histogram["first"]
    return (
        type(first) is int
        and abs(first) <= MAX_BINS
        and len(counts) <= MAX_BINS
        and _are_counts(counts, len(counts))
        and sum(counts) == count
    )


def _are_counts(values: Any, length: int) -> bool:
    return len(values) == length and all(type(each) is int and 0 <= each < 2**53 for each in values)


def _are_numbers(values: Any, length: int) -> bool:
    return len(values) == length and all(
        type(each) in (int, float) and math.isfinite(each) for each in values
    )
