"""Nested settings and settings by dotted name: {"model": {"name": "gcn"}}, {"model.name":
"gcn"}.
"""

from collections.abc import Collection, Mapping
from typing import Any


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings by dotted name. An empty group stays, as a value."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, Mapping) and value
        flat |= flatten(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return flat


def without(
    settings: Mapping[str, Any], names: Collection[str], prefix: str = ""
) -> dict[str, Any]:
    """Remove the settings with these dotted names, and groups that become empty by that."""
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if key not in names:
            inner = without(value, names, f"{key}.") if isinstance(value, Mapping) else value
            if inner != {} or value == {}:
                kept[name] = inner
    return kept
