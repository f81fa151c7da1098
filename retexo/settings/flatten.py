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


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as nested groups: the inverse of `flatten`."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *groups, last = key.split(".")
        holder = nested
        for group in groups:
            holder = holder.setdefault(group, {})
        holder[last] = value
    return nested


def with_values(settings: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with other values of NAME or GROUP.NAME."""
    changed = dict(settings)
    for key, value in values.items():
        group, _, name = key.rpartition(".")
        if group:
            changed[group] = {**changed.get(group, {}), name: value}
        else:
            changed[name] = value
    return changed


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
