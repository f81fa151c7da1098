"""Nested settings and settings by dotted name: {"model": {"name": "gcn"}}, {"model.name":
"gcn"}.
"""

import sys
from collections.abc import Collection, Mapping
from typing import Any


def flatten(
    settings: Mapping[str, Any], prefix: str = "", *, without: Collection[str] = ()
) -> dict[str, Any]:
    """Return settings by dotted name, but for the settings and groups named in `without`.

    An empty group stays, as a value.
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        key = sys.intern(f"{prefix}{name}")  # thousands of runs have the same names
        if key not in without:
            nested = isinstance(value, Mapping) and value
            flat |= flatten(value, f"{key}.", without=without) if nested else {key: value}
    return flat
