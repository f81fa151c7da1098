"""Fits the feature pipeline on training nodes and applies it.

Numbers are filled, centred and scaled per column, categories become one-hot columns, and an extra
column marks the rows whose value is blank.

N rows, W columns of the raw matrix, F columns after encoding.
"""

import logging
from collections.abc import Hashable, Sequence
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.errors import InputError, join_names
from partitioning.features.statistics import (
    BLOCK,
    SIMILAR,
    FittedRows,
    Moments,
    Statistics,
    Values,
    signed_log,
)
from partitioning.graph.schema import VERSION, Column, Rows, Schema
from partitioning.partition_settings import FeatureSettings

log = logging.getLogger(__name__)

State = dict[str, Any]
"""A fitted pipeline, as JSON holds it."""
MAX_CATEGORIES = 64
"""One-hot columns of a categorical column; rarer categories share one more."""


# --- fitting ----------


def fit_pipeline(
    features: Rows | sp.csr_array,
    schema: Schema,
    settings: FeatureSettings,
    rows: NDArray[np.bool_] | None = None,
) -> State:
    """Learn how to encode the columns.

    Args:
        features: [N, W] raw numbers, NaN where blank; a CSR matrix stays as it is.
        schema: What the columns hold.
        settings: How to scale and fill.
        rows: [N] which rows to learn from; None: all.

    Returns:
        A JSON value for `apply_pipeline`.

    Raises:
        InputError: the settings ask for scaling of a CSR matrix.
    """
    used = np.arange(features.shape[0]) if rows is None else np.flatnonzero(rows)
    if isinstance(features, sp.csr_array):
        columns = [_keep_sparse(schema, settings)] if schema.columns else []
    else:
        columns = fit_columns(FittedRows(features, schema, used), schema, settings)
    return {
        "version": VERSION,
        "fitted_on": "all" if rows is None else "train",
        "num_rows": len(used),
        "missing": settings.missing,
        "roles": schema.roles,
        "ignored": schema.ignored,
        "columns": columns,
    }


def fit_columns(table: Statistics, schema: Schema, settings: FeatureSettings) -> list[State]:
    """Return the states of the columns, in the schema's order, from the statistics of a table.

    Of columns that are blank in the same rows only the first has an indicator.
    """
    columns = [_fit_column(table, column, settings) for column in schema.columns]
    _merge_indicators(table, schema, columns)
    return columns


def _keep_sparse(schema: Schema, settings: FeatureSettings) -> State:
    """Return the state of a sparse matrix, which stays as it is.

    Raises InputError if the settings ask for scaling.
    """
    if settings.scale not in ("auto", "none"):
        raise InputError(
            f"features.scale={settings.scale}: {schema.path} is a sparse matrix, which stays as it"
            " is; give a dense one, or leave the setting out"
        )
    return _make_column_state(schema.columns[0], "none")


def _make_column_state(column: Column, scale_by: str, **fields: Any) -> State:
    """Return the fitted state of a column as JSON.

    Without further fields its values stay as they are.
    """
    nothing = {"center": None, "scale": None, "fill": None, "indicator": False, "num_blank": 0}
    state = {"name": column.name, "role": column.role, "width": column.width, "scale_by": scale_by}
    return state | nothing | fields


def _fit_column(table: Statistics, column: Column, settings: FeatureSettings) -> State:
    """Fit how a column is scaled, filled and encoded; return its state.

    A matrix without blanks that is not scaled has no fill: later blanks are refused.
    """
    if column.role == "categorical":
        return _fit_categories(table, column)
    moments = table.moments(column)
    scale_by = _choose_scale(column, moments, settings.scale)
    is_matrix = column.role in ("matrix", "embedding")
    if scale_by == "none" and is_matrix and not table.has_blanks(column):
        return _make_column_state(column, "none")
    center = scale = None
    if scale_by == "robust":
        low, center, high = table.quantiles(column, [0.25, 0.5, 0.75])
        scale = np.where(high > low, high - low, moments.deviation)
    elif scale_by != "none":
        scaled = table.log_moments(column) if scale_by == "log" else moments
        center, scale = scaled.mean, scaled.deviation
    if settings.missing == "zero":
        fill = np.zeros(column.width)
    else:
        fill = moments.mean if settings.missing == "mean" else table.quantiles(column, [0.5])[0]
    num_blank = int(moments.num_blank.max())
    return _make_column_state(
        column,
        scale_by,
        center=None if center is None else center.tolist(),
        scale=None if scale is None else scale.tolist(),
        fill=fill.tolist(),
        indicator=num_blank > 0,
        num_blank=num_blank,
    )


def _fit_categories(table: Statistics, column: Column) -> State:
    """Return the state with the MAX_CATEGORIES most frequent categories, sorted by name.

    The first names win ties. The other categories share one column.
    """
    counts, num_blank = table.count_categories(column)
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    return _make_column_state(
        column,
        "none",
        categories=sorted(ranked[:MAX_CATEGORIES]),
        rest=len(ranked) > MAX_CATEGORIES,
        indicator=num_blank > 0,
        num_blank=num_blank,
    )


def _choose_scale(column: Column, moments: Moments, scaling: str) -> str:
    """Return how a column is scaled: standardised, robust, log or none.

    The log warns where "auto" standardises a matrix.
    """
    is_matrix = column.role in ("matrix", "embedding")
    if scaling == "none" or (not is_matrix and moments.binary.all()):
        return "none"
    if scaling != "auto":
        return {"standard": "standardised"}.get(scaling, scaling)
    if not is_matrix:
        return "standardised"
    sparse = 2 * moments.num_zeros.sum() > moments.count.sum()
    if sparse or moments.binary.all() or moments.has_similar_scales:
        return "none"
    log.warning(
        "`%s`: its %d columns differ in scale by more than %g times; each is standardised "
        "(features.scale=none leaves them)",
        column.name,
        column.width,
        SIMILAR,
    )
    return "standardised"


def _merge_indicators(table: Statistics, schema: Schema, columns: list[State]) -> None:
    """Change the states `columns`: of columns blank in the same rows, only the first keeps its
    indicator.
    """
    seen: set[Hashable] = set()
    for column, state in zip(schema.columns, columns, strict=True):
        if state["indicator"]:
            pattern = table.blank_pattern(column)
            state["indicator"] = pattern not in seen
            seen.add(pattern)


# --- applying ----------


class EncodedFeatures:
    """[N, F] features that are encoded when rows of them are taken; in memory is the raw matrix."""

    def __init__(
        self, raw: Rows, schema: Schema, state: State, zeroed: NDArray[np.bool_] | None = None
    ) -> None:
        """Keep the raw matrix [N, W], not a copy; nothing is encoded yet.

        Args:
            raw: [N, W].
            schema: of its columns.
            state: of the fitted pipeline.
            zeroed: bool [N], rows that become zeros: nodes without features.
        """
        self.raw, self.schema, self.state, self.zeroed = raw, schema, state, zeroed
        self.shape = raw.shape[0], count_columns(state)

    def __getitem__(self, rows: NDArray[Any]) -> Rows:
        """Encode the rows at indices [n]; return [n, F], 0 in the `zeroed` ones.

        Raises:
            InputError: a number is not finite in float32 once it is encoded.
        """
        rows_encoded = np.empty((len(rows), self.shape[1]), np.float32)
        size = max(1, BLOCK // max(self.raw.shape[1], 1))
        for begin in range(0, len(rows), size):
            block = slice(begin, begin + size)
            with np.errstate(over="ignore"):
                rows_encoded[block] = encode_rows(self.state, self.raw[rows[block]], self.schema)
            if self.zeroed is not None:
                rows_encoded[block][self.zeroed[rows[block]]] = 0
            finite = np.isfinite(rows_encoded[block]).all(axis=1)
            if not finite.all():
                self._refuse(int(rows[block][finite.argmin()]))
        return rows_encoded

    def __len__(self) -> int:
        return int(self.shape[0])

    def toarray(self) -> Rows:
        """Encode all rows; return [N, F]."""
        return self[np.arange(len(self))]

    def _refuse(self, row: int) -> NoReturn:
        """Raise InputError for a row of `raw` that is not finite once it is encoded."""
        for fitted in self.state["columns"]:
            one = self.state | {"columns": [fitted]}
            with np.errstate(over="ignore"):
                encoded = encode_rows(one, self.raw[row : row + 1], self.schema)
            if not np.isfinite(encoded).all():
                column = self.schema.find(fitted["name"])
                assert column is not None
                value = self.raw[row, column.columns].astype(np.float64) + column.offset
                cells = ", ".join(f"{number:g}" for number in value)
                raise InputError(
                    f"{self.schema.path}: column `{fitted['name']}`, row {row} is {cells}; once it"
                    " is encoded, that is no finite float32: mend the table"
                )
        raise AssertionError("a row that is finite")


def count_columns(state: State) -> int:
    """F: the columns that a fitted pipeline makes."""
    return sum(_count_outputs(column) + column["indicator"] for column in state["columns"])


def _count_outputs(column: State) -> int:
    """Return how many encoded columns a column makes, without the one that marks blank cells."""
    if column["role"] == "categorical":
        return len(column["categories"]) + int(column["rest"])
    return int(column["width"])


def is_matrix(state: State) -> bool:
    """Return whether a pipeline was fitted to a matrix without names of columns."""
    return [column["role"] for column in state["columns"]] == ["matrix"]


def warn_of_unused(path: str, names: Sequence[str]) -> None:
    """Log the columns of a table that a pipeline does not read."""
    names_text = join_names(names, "`")
    log.warning("%s: columns %s: left out, the model was trained without them", path, names_text)


def is_identity(state: State, schema: Schema) -> bool:
    """Return whether a table without blanks stays as it is."""
    return all(
        column["role"] != "categorical" and column["center"] is None and not column["indicator"]
        for column in state["columns"]
    ) and not any(column.offset for column in schema.columns)


def apply_pipeline(
    state: State,
    features: Rows | sp.csr_array,
    schema: Schema,
    zeroed: NDArray[np.bool_] | None = None,
) -> Any:
    """Encode another table with a fitted pipeline, by the names of its columns.

    Columns may be in any order. The log warns of further ones, which are not used, and of
    categories that the model does not know.

    Args:
        state: What `fit_pipeline` returned.
        features: [N, W] raw numbers of the table.
        schema: Of the table.
        zeroed: [N] rows that become zeros, of a dense table; None: none.

    Returns:
        [N, F] EncodedFeatures, which encodes rows on access, or the sparse matrix as it is.

    Raises:
        InputError: a column is missing, or does not hold what it held when the pipeline was fitted.
    """
    names = [column["name"] for column in state["columns"]]
    missing = [name for name in names if schema.find(name) is None]
    if missing:
        names_there = join_names(column.name for column in schema.columns) or "nothing"
        can_add = is_matrix(state) or any(column.role != "matrix" for column in schema.columns)
        remedy = "add it" if can_add else "give tables or data frames that have it"
        raise InputError(
            f"{schema.path}: there is no column `{missing[0]}`, which the model was trained with;"
            f" {remedy}; found {names_there}"
        )
    for fitted in state["columns"]:
        _check_column(fitted, schema)
    known = set(names)
    extra = [column.name for column in schema.columns if column.name not in known]
    labels = set(state["roles"].get("label", ())).intersection(extra)
    for label in sorted(labels):
        said = (
            "%s: column `%s`, the label of training, is not read: columns.label=%s and the settings"
            " of its split add known classes and scores"
        )
        log.warning(said, schema.path, label, label)
    if unused := [name for name in extra if name not in labels]:
        warn_of_unused(schema.path, unused)
    if isinstance(features, sp.csr_array):
        return features
    _check_known(state, features, schema)
    for name, number in count_unknown(state, features, schema).items():
        log.warning(
            "%s: column `%s`: %d rows have a category that the model does not know",
            schema.path,
            name,
            number,
        )
    return EncodedFeatures(features, schema, state, zeroed)


def _check_column(fitted: State, schema: Schema) -> None:
    """Raise InputError for a column of another width, or numbers for categories or the reverse."""
    column = schema.find(fitted["name"])
    assert column is not None
    if (fitted["role"] == "categorical") != (column.role == "categorical"):
        example = f", such as `{column.categories[0]}`" if column.categories else ""
        remedy = (
            "mend the values" if column.categories else f"set columns.categorical={column.name}"
        )
        raise InputError(
            f"{schema.path}: column `{column.name}` is {column.role}{example}; it was"
            f" {fitted['role']} when the model was trained: {remedy}"
        )
    if column.width != fitted["width"]:
        raise InputError(
            f"{schema.path}: `{column.name}` has {column.width} columns; the model was trained with"
            f" {fitted['width']}"
        )


def _check_known(state: State, features: Rows, schema: Schema) -> None:
    """Raise InputError for a blank in a matrix that had none when the pipeline was fitted."""
    for fitted in state["columns"]:
        column = schema.find(fitted["name"])
        if column is not None and fitted["role"] != "categorical" and fitted["fill"] is None:
            blank = np.isnan(features[:, column.columns]).any(axis=1)
            if blank.any():
                raise InputError(
                    f"{schema.path}: `{column.name}`, row {int(blank.argmax())} has a blank; the"
                    " model was trained without blanks: fill it"
                )


def count_unknown(state: State, features: Rows, schema: Schema) -> dict[str, int]:
    """Count, by column, the rows whose category was not seen when the pipeline was fitted.

    Columns without such rows, or with an output for the rest, are left out.
    """
    counts = {}
    for fitted in state["columns"]:
        column = schema.find(fitted["name"])
        if fitted["role"] == "categorical" and column is not None:
            known = set(fitted["categories"])
            unknown = [code for code, name in enumerate(column.categories) if name not in known]
            number = int(np.isin(features[:, column.first], unknown).sum())
            if number and not fitted["rest"]:
                counts[column.name] = number
    return counts


def encode_rows(state: State, raw: Rows, schema: Schema) -> Rows:
    """Encode the rows of a raw matrix, [n, W] -> a new one, [n, F], by columns of the state.

    A column's outputs are followed by its indicator of missing values, if it has one.
    """
    matrix = np.empty((len(raw), count_columns(state)), np.float32)
    numbers: list[tuple[State, Column]] = []
    places: list[range] = []
    first = 0
    for fitted in state["columns"]:
        column = schema.find(fitted["name"])
        assert column is not None
        end = first + _count_outputs(fitted)
        if fitted["role"] == "categorical":
            matrix[:, first:end] = _one_hot(fitted, column, raw[:, column.first])
        else:
            numbers.append((fitted, column))
            places.append(range(first, end))
        if fitted["indicator"]:
            matrix[:, end] = np.isnan(raw[:, column.columns]).any(axis=1)
            end += 1
        first = end
    if numbers:
        matrix[:, _join_ranges(places)] = _scaled(numbers, raw)
    return matrix


def _scaled(columns: list[tuple[State, Column]], raw: Rows) -> Values:
    """Fill, centre and scale the columns of numbers, side by side.

    In float64, because an offset may be large; all columns at once, in a third of the time.
    """

    def of_all(name: str, default: float) -> Values:
        values = [fitted[name] or [default] * column.width for fitted, column in columns]
        return np.concatenate(values)

    widths = [column.width for _, column in columns]
    places_of_numbers = _join_ranges(
        [range(column.first, column.columns.stop) for _, column in columns]
    )
    values = raw[:, places_of_numbers].astype(np.float64)
    values += np.repeat([column.offset for _, column in columns], widths)
    np.copyto(values, of_all("fill", np.nan), where=np.isnan(values))
    is_log = np.repeat([fitted["scale_by"] == "log" for fitted, _ in columns], widths)
    if is_log.any():
        values[:, is_log] = signed_log(values[:, is_log])
    values -= of_all("center", 0.0)
    values /= of_all("scale", 1.0)
    return values


def _join_ranges(ranges: list[range]) -> slice | NDArray[np.int64]:
    """Return the places of ranges, one after the other: int64, or a slice for a single range."""
    joined = np.concatenate(ranges)
    one = np.arange(joined[0], joined[0] + len(joined))
    return slice(int(one[0]), int(one[-1]) + 1) if np.array_equal(joined, one) else joined


def _one_hot(fitted: State, column: Column, codes: Rows) -> Rows:
    """Return one-hot rows, float32 [n, K], of codes [n] of column.categories, NaN for a blank cell.

    There is a column for each fitted category, and one for all others if the column has a rest.
    Blank cells, and other categories without a rest, give a row of zeros.
    """
    width = _count_outputs(fitted)
    places = {name: place for place, name in enumerate(fitted["categories"])}
    rest = width - 1 if fitted["rest"] else -1
    place_of = np.array([*(places.get(name, rest) for name in column.categories), -1])
    place = place_of[np.where(np.isnan(codes), -1, codes).astype(np.int64)]
    matrix = np.zeros((len(codes), width), np.float32)
    known = np.flatnonzero(place >= 0)
    matrix[known, place[known]] = 1
    return matrix
