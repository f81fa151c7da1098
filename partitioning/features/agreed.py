"""Columns that sites agree on before they fit a pipeline by sums (sums.py).

A JSON file that is the same at every site. `app=describe` writes one from a site's table, to edit:

    {"columns": {"age":  {"role": "numeric", "range": [10, 100]},
                 "emb":  {"role": "embedding", "width": 2, "range": [-3, 3]},
                 "city": {"role": "categorical", "categories": ["Bonn", "Oslo", "Rome"]}}}
"""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.errors import InputError
from partitioning.features.statistics import FittedRows
from partitioning.files.file_io import read_json
from partitioning.graph.schema import Schema

COLUMNS = "columns"
"""Field of the file."""
NUMBER_ROLES = ("numeric", "date", "boolean", "embedding")


@dataclass(frozen=True)
class AgreedColumn:
    """A column of the file."""

    name: str
    role: str
    width: int
    low: float
    high: float
    """Ends of the range of the numbers."""
    categories: tuple[str, ...]
    """Categories of a categorical column; other values share one."""

    def __str__(self) -> str:
        """Describe the column, for sites to compare; the names of categories stay hidden."""
        if self.role == "categorical":
            digest = hashlib.sha256(json.dumps(self.categories).encode()).hexdigest()[:8]
            return f"{self.role}, {len(self.categories)} categories (sha256 {digest})"
        return f"{self.role}, {self.width} wide, range [{self.low:g}, {self.high:g}]"


def read_agreed(file: Path) -> tuple[AgreedColumn, ...]:
    """Read the columns, in their order; InputError names what is wrong."""
    content = read_json(file)
    if COLUMNS not in content:
        raise InputError(
            f"features.spec={file}: has no field `{COLUMNS}`; expected the file columns.json that"
            " app=describe writes without features.spec"
        )
    columns = content[COLUMNS]
    if not isinstance(columns, dict) or not columns:
        raise InputError(f"features.spec={file}: `{COLUMNS}` has no column; add one")
    return tuple(_read_column(file, name, columns[name]) for name in columns)


def _read_column(file: Path, name: str, fields: Any) -> AgreedColumn:
    """Return a column of the file, its categories sorted; InputError for wrong fields."""

    def refuse(expected: str) -> InputError:
        return InputError(f"features.spec={file}: column `{name}` is {fields}; expected {expected}")

    role = fields.get("role") if isinstance(fields, dict) else None
    if role == "categorical":
        categories = fields.get("categories")
        if not isinstance(categories, list) or not all(
            isinstance(category, str) for category in categories
        ):
            raise refuse('"categories": [NAME, ...], the names that every site may know')
        if len(set(categories)) < len(categories) or not categories:
            raise refuse("each category once, at least one")
        return AgreedColumn(name, role, 1, 0, 0, tuple(sorted(categories)))
    if role not in NUMBER_ROLES:
        raise refuse(f'"role": one of {", ".join((*NUMBER_ROLES, "categorical"))}')
    ends, width = fields.get("range"), fields.get("width", 1)
    if not isinstance(ends, list) or len(ends) != 2 or not all(map(_is_number, ends)):
        raise refuse('"range": [LOW, HIGH], between which the values of all sites lie')
    if ends[0] >= ends[1]:
        raise refuse("a range whose first number is smaller")
    if type(width) is not int or width < 1:
        raise refuse('"width": the number of values per row')
    return AgreedColumn(name, role, width, float(ends[0]), float(ends[1]), ())


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def propose_columns(table: FittedRows, schema: Schema) -> dict[str, Any]:
    """Return the content of a file for the columns of a table, its ranges rounded outwards.

    The range is [0, 1] without values.
    """
    columns: dict[str, Any] = {}
    for column in schema.columns:
        entry: dict[str, Any] = {"role": column.role}
        if column.role == "categorical":
            entry["categories"] = sorted(table.count_categories(column)[0])
        else:
            moments = table.moments(column)
            known = moments.count > 0
            low, high = (np.where(known, ends, 0) for ends in (moments.low, moments.high))
            entry |= {"width": column.width} if column.width > 1 else {}
            entry["range"] = _round_outwards(float(low.min()), float(high.max()))
        columns[column.name] = entry
    return {COLUMNS: columns}


def _round_outwards(low: float, high: float) -> list[float]:
    """Round the ends of a range outwards, to a power of ten that is at most their distance."""
    step = 10.0 ** math.floor(math.log10((high - low) or max(abs(high), 1.0)))
    first, last = math.floor(low / step), math.ceil(high / step)
    # 0.1 times 3 is not 0.3: a float of few digits is meant
    return [float(f"{end * step:.12g}") for end in (first, max(last, first + 1))]
