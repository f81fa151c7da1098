"""Converts the feature columns of a table to a float32 matrix and its schema.

Numbers stay numbers, texts become positions in a list of categories, lists become several columns.
Encoding comes later, when the split is known (partitioning/features).
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.features.roles import SPLITS, find_usual
from partitioning.graph.array_checks import Array
from partitioning.graph.schema import Column, Schema, Source
from partitioning.read.cells import (
    DECIMAL_COMMA,
    FALSE,
    GROUPED,
    NUMBER,
    TRUE,
    Cells,
    words_to_digits,
)
from partitioning.read.times import are_dates, parse_compact, read_times

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

LARGE = 2.0**24
"""From here on float32 does not hold every integer."""
HEAD = 10_000
"""Cells of a column that show whether its texts repeat: then only the different ones are judged."""
INDEX = ("index", "level_0", "row", "rownum", "row_number", "rowid")
"""Columns of integers that are left out if all differ; reset_index of pandas adds the first two."""
FEW = 10
"""A column with at most so many different texts is categorical."""
BOOLEANS = [{*pair} for pair in zip(TRUE, FALSE, strict=True)]
CURRENCY = "[$€£¥]|USD|EUR|GBP|CHF|JPY|CNY|INR"
UNIT = (
    rf"^(?P<sign>[+-]?)(?P<before>(?:{CURRENCY})?)\s?(?P<number>[0-9+.,' \x{{a0}}\x{{202f}}-]*?)"
    rf"\s?(?P<after>(?:%|{CURRENCY}|[A-Za-z°]{{1,5}})?)$"
)
"""A number, with a currency, a percent sign or a unit."""
BRACKETS = r"^(?:array|tensor)?[\[({<\s]+|[\])}>\s]+(?:,\s*dtype=[\w.]+\))?$"
"""What is around the numbers of a vector: of a list, of Postgres, of NumPy's and torch's repr."""
NOTATION = f"{DECIMAL_COMMA}|{GROUPED}"
REMEDY = (
    "expected a number, or a blank cell; columns.categorical={name} takes texts as categories,"
    " columns.ignore={name} leaves it out"
)


def read_features(
    path: Source,
    columns: dict[str, Cells],
    requested: Mapping[str, str | None],
    *,
    needs_ids: bool = False,
) -> tuple[NDArray[np.float32] | None, Schema]:
    """Convert the feature columns of a table.

    Args:
        path: The table.
        columns: Its columns by name; those that are read are removed, which frees memory.
        requested: The feature columns in order, with the roles that settings give them. Those with
            the role `ignore`, and dates without a role, are only listed in Schema.ignored.
        needs_ids: Whether a column may be that of the ids, which the table lacks; for a message.

    Returns:
        The raw matrix [N, W], NaN where blank, None if no column is a feature; and its schema.

    Raises:
        InputError: A cell does not fit its column.
    """
    ignored = {name: "columns.ignore" for name, role in requested.items() if role == "ignore"}
    blocks: list[Column] = []
    pieces: list[NDArray[np.float32]] = []
    first = 0
    for name, role in requested.items():
        if role == "ignore":
            continue
        column_and_values = _read_column(columns.pop(name), role)
        if column_and_values is None:
            ignored[name] = f"a date: columns.date={name} makes it a feature, in seconds since 1970"
            continue
        column, values = column_and_values
        if column.role == "categorical":
            where = f"{path}: column `{name}`"
            _check_repeats(where, column, values, is_free=role is None, needs_ids=needs_ids)
        blocks.append(replace(column, first=first))
        pieces.append(values)
        first += column.width
    schema = Schema(str(path), tuple(blocks), {}, ignored)
    return (np.hstack(pieces) if pieces else None), schema


def find_numbering(
    columns: Mapping[str, Cells], requested: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the columns without a role that number the rows, such as an index of pandas, and why.

    So does one that is called id, and is none of a node, where its values differ.
    """
    return {
        name: f"it numbers the rows: columns.numeric={name} makes it a feature"
        for name, role in requested.items()
        if role is None and _numbers_rows(columns[name])
    }


def _numbers_rows(cells: Cells) -> bool:
    is_index = cells.name.lower() in INDEX and cells.to_integers() is not None
    may_be_ids = cells.kind in ("number", "text") and bool(find_usual("id", [cells.name]))
    return (is_index or may_be_ids) and len(cells.data.unique()) == len(cells) > 1


def _read_column(cells: Cells, requested: str | None) -> tuple[Column, NDArray[np.float32]] | None:
    """Return a column, whose place in the matrix is not known yet, and its values [N, width].

    None for a date that no setting makes a feature. The log warns of dates such as 20240131, which
    stay numbers. InputError for a cell that does not fit.
    """
    column = Column(cells.name, "numeric", 0)
    if cells.kind not in ("number", "boolean", "text", "list", "date", "blank"):
        cells.texts(f"write numbers or texts, or columns.ignore={cells.name} leaves it out")
    if requested == "categorical":
        return _read_categories(cells, requested)
    if requested == "date":
        return _to_float32(cells, replace(column, role="date"), read_times(cells))
    if cells.kind == "list":
        return _read_lists(cells)
    if cells.kind == "boolean" and requested is None:
        return _to_float32(cells, replace(column, role="boolean"), cells.numbers())
    if cells.kind == "date" and requested is None:
        return None
    if cells.kind != "text" or requested == "numeric":
        role = "embedding" if requested == "embedding" else "numeric"
        values = cells.numbers(REMEDY.format(name=cells.name))
        if requested is None and parse_compact(values) is not None:
            said = "%s: dates such as %.0f are read as numbers; columns.date=%s reads dates"
            log.warning(said, cells.where, values[~np.isnan(values)][0], cells.name)
        return _to_float32(cells, replace(column, role=role), values)
    return _read_texts(cells, requested)


def _read_texts(cells: Cells, requested: str | None) -> tuple[Column, NDArray[np.float32]] | None:
    """Read texts as numbers (with a unit, or %: divided by 100), vectors, booleans or categories.

    One number among the cells makes the column numeric, and the other cells are refused. A column
    without a text is NaN. The log warns of a unit that is left out. None for dates, which are
    features only where a setting says so.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = Column(cells.name, requested or "numeric", 0)
    trimmed = pc.utf8_trim_whitespace(cells.data)
    text = pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.string()), trimmed)
    if text.null_count == len(text):
        return _to_float32(cells, column, np.full(len(text), np.nan))
    known = text.drop_null()
    head = known.slice(0, HEAD)
    few_differ = 2 * pc.count_distinct(head).as_py() <= len(head)
    judged = pa.chunked_array([pc.unique(known)]) if few_differ else known
    bare, unit = _split_unit(judged)
    if pc.any(pc.match_substring_regex(bare, NUMBER)).as_py():
        expected = REMEDY.format(name=cells.name)
        if any(map(str.isalpha, unit)):
            said = "%s: read as numbers, without their `%s`; columns.categorical=%s keeps the texts"
            log.warning(said, cells.where, unit, cells.name)
        bare_text = _split_unit(text)[0] if unit else text
        values = replace(cells, data=bare_text).numbers(expected)
        return _to_float32(cells, column, values / 100 if unit == "%" else values)
    first = int(pc.index(pc.is_valid(text), True).as_py())
    if pc.all(pc.match_substring_regex(bare, NOTATION)).as_py():
        cells.refuse(
            first,
            ", a number with a decimal comma or grouped thousands; write it as 1234.5, or set"
            f" columns.categorical={cells.name} if the texts are categories",
        )
    vectors = _parse_vectors(text)
    if vectors is not None:
        column = replace(column, role="embedding", width=vectors.shape[1])
        return _to_float32(cells, column, vectors)
    if requested == "embedding":
        cells.refuse(
            first,
            "expected as many numbers in each row, such as [0.1, 0.2] or 0.1 0.2;"
            f" columns.ignore={cells.name} leaves the column out",
        )
    names = pc.unique(known).to_pylist()
    if any({name.lower() for name in names[:FEW]} <= words for words in BOOLEANS):
        values = replace(cells, data=words_to_digits(text)).numbers()
        return _to_float32(cells, replace(column, role="boolean"), values)
    if are_dates(names):
        return None
    return _read_categories(replace(cells, data=text), requested)


def _split_unit(text: "pa.ChunkedArray") -> tuple["pa.ChunkedArray", str]:
    """Return texts without a currency, percent sign or unit, and what was left out.

    They stay as they are, with "", unless all have the same.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = pa.chunked_array([pc.extract_regex(text, UNIT).combine_chunks()])
    sign, before, number, after = parts.flatten()
    units = pc.unique(pc.binary_join_element_wise(before, after, "").drop_null()).to_pylist()
    if parts.null_count > text.null_count or len(units) != 1 or not units[0]:
        return text, ""
    return pc.binary_join_element_wise(sign, number, ""), units[0]


def _parse_vectors(text: "pa.ChunkedArray") -> Array | None:
    """Parse texts such as [0.1, 0.2], {0.1,0.2}, 0.1|0.2 and 0.1 0.2, [N, width].

    NaN where blank or [].

    None unless all have the same number of numbers, at least two.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_empty = pc.match_substring_regex(text, r"^\[\s*\]$")
    text = pc.if_else(is_empty, pa.scalar(None, pa.string()), text)
    known = text.drop_null()
    for rows in (known.slice(0, 1), known):  # most texts are told from vectors by the first
        # NumPy writes its numbers in a list as np.float64(0.1).
        plain = pc.replace_substring_regex(rows, r"np\.\w+\(([^()]*)\)", r"\1")
        inner = pc.replace_substring_regex(plain, BRACKETS, "")
        parts = pc.split_pattern_regex(inner, r"\s*[,;|]\s*|\s+")
        widths = pc.unique(pc.list_value_length(parts)).to_pylist()
        try:
            numbers = pc.list_flatten(parts).cast(pa.float64()).to_numpy()
        except pa.ArrowInvalid:
            return None
        if len(widths) != 1 or widths[0] < 2:
            return None
    values = np.full((len(text), widths[0]), np.nan)
    values[text.is_valid().to_numpy()] = numbers.reshape(-1, widths[0])
    return values


def _read_categories(cells: Cells, requested: str | None) -> tuple[Column, NDArray[np.float32]]:
    """Return texts as positions in the list of categories, NaN where blank: float32 [N, 1].

    Categories are numbered as they appear; 3.0 is 3. The log warns of words of a split.
    """
    codes, texts = cells.factorize()
    names = [re.sub(r"^(-?\d+)\.0+$", r"\1", text.strip()) for text in texts]
    places: dict[str, int] = {}
    place_of = [places.setdefault(name, len(places)) if name else np.nan for name in names]
    values = np.array([*place_of, np.nan], np.float32)[codes]
    if requested is None and {name.lower() for name in places} <= SPLITS.keys() and len(places) > 1:
        said = "%s: is a feature; columns.split=%s takes it as the split"
        log.warning(said, cells.where, cells.name)
    return Column(cells.name, "categorical", 0, categories=tuple(places)), values[:, None]


def _check_repeats(
    where: str, column: Column, values: NDArray[np.float32], *, is_free: bool, needs_ids: bool
) -> None:
    """Raise InputError for categories, positions [N, 1], that seem to be free text.

    The log warns instead if a setting asks for them, so that the column is not free.
    """
    number, num_known = len(column.categories), int((~np.isnan(values)).sum())
    if number <= FEW or 2 * number <= num_known:
        return
    example = f"{number} different texts in {num_known} rows, `{column.categories[0][:40]}`"
    if is_free:
        as_ids = f" columns.id={column.name} takes it as ids," if needs_ids else ""
        raise InputError(
            f"{where}: {example} for instance: no categories; columns.ignore={column.name} leaves"
            f" it out,{as_ids} columns.categorical={column.name} takes it as categories"
        )
    log.warning("%s: %s for instance, are categories", where, example)


def _read_lists(cells: Cells) -> tuple[Column, NDArray[np.float32]]:
    """Return cells that are lists of numbers, NaN where blank.

    Raises InputError for a list of another length, or of something else.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.list_value_length(cells.data).to_numpy()
    known = lengths > 0  # an empty list is blank, as [] is in a csv
    width = int(lengths[known][0]) if known.any() else 1
    inner = cells.data.type.value_type
    if not (
        pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner)
    ):
        cells.refuse(
            int(known.argmax()), f"expected a list of numbers, or columns.ignore={cells.name}"
        )
    other = known & (lengths != width)
    if other.any():
        row = int(other.argmax())
        raise InputError(
            f"{cells.where}, length: row {row} is {int(lengths[row])}; expected {width}, as before,"
            f" or columns.ignore={cells.name}"
        )
    values = np.full((len(cells), width), np.nan)
    numbers = pc.list_flatten(cells.data).cast(pa.float64()).to_numpy()
    values[known] = numbers.reshape(-1, width)
    return _to_float32(cells, Column(cells.name, "embedding", 0, width), values)


def _to_float32(cells: Cells, column: Column, values: Array) -> tuple[Column, NDArray[np.float32]]:
    """Return the column with its offset, and its numbers as float32 [N, width], NaN where blank.

    The offset of a single column with large numbers is the first one; it is subtracted.

    Raises InputError for a number that is infinite in float32.
    """
    values = values.reshape(len(values), column.width)
    known = values[~np.isnan(values)]
    offset = 0.0
    if column.width == 1 and len(known) and float(np.abs(known).max()) >= LARGE:
        offset = float(known[0]) if np.isfinite(known[0]) else 0.0
    narrow = values
    if offset or values.dtype != np.float32:
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = (values.astype(np.float64) - offset).astype(np.float32)
    infinite = np.isinf(narrow)
    if infinite.any():
        row, at = np.argwhere(infinite)[0]
        cells.refuse(
            int(row),
            f"expected a finite float32: mend it, or columns.ignore={cells.name} leaves the column"
            " out",
            values[row, at],
        )
    return replace(column, offset=offset), narrow
