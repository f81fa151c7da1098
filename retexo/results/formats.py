"""How tables, figures and sentences write bytes, memory, scores, settings, paths and names."""

import json
import math
import os
from pathlib import Path
from typing import Any

NO_VALUE = "-"
"""Cell without a value."""
SPLITS = {"train": "training", "val": "validation", "test": "test"}
OF_DATA_UNIT = ("mae", "rmse")
"""Scores in the unit of the data."""


def format_bytes(value: float) -> str:
    """Format bytes as 512 B, 31.2 kB, 1.78 GB: powers of 1,000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB" if value < 999.5 else f"{value:,.0f} TB"


def format_memory(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"


def format_seconds(value: float) -> str:
    return f"{value:,.2f}"


def format_count(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def format_score(value: float | None, name: str = "") -> str:
    """Format a score; MAE and RMSE, in the unit of the data, and counts of pairs by their size.

    None, NaN and infinity are NO_VALUE.
    """
    if value is None or not math.isfinite(value):
        return NO_VALUE
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if name in OF_DATA_UNIT else f"{value:.4f}"


def format_setting(value: Any, digits: int = 17) -> str:
    """Format a setting's value briefly: 30 for [30]; 17 digits keep a float as it is."""
    if isinstance(value, list | tuple):
        return ",".join(format_setting(item, digits) for item in value)
    if isinstance(value, float):
        return json.dumps(float(f"{value:.{digits}g}"))
    return value if isinstance(value, str) else json.dumps(value, default=str)


def format_path(path: Path) -> str:
    """Return a path as valid Unicode: names on disk need not be UTF-8."""
    return os.fsencode(path).decode(errors="replace")
