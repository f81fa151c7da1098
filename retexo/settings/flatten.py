"""Nested settings by dotted name."""

from collections.abc import Mapping
from typing import Any


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1, "c": {}}} is {"a.b": 1, "a.c": {}}: an empty group is a value, so that it is not lost."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, Mapping) and value
        flat |= flatten(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return flat
