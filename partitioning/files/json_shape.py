"""Shape that the content of a JSON file has to have: types of fields, items and values."""

from typing import Any

NUMBER, WHOLE = "number", "whole number"
"""A number, or null for a ratio without data; an integer from 0 on.

All lie below MAX_NUMBER.
"""
MAX_NUMBER = 2**63
KEY_LENGTH = 200
"""Longest name of a field."""
SHOWN = 60
"""Characters of a wrong value that an error shows."""


def check_shape(value: Any, shape: Any, name: str) -> None:
    """Raise ValueError, with the dotted name of what is wrong, unless a value has a shape.

    Args:
        value: of JSON.
        shape: a type, where true and false are no numbers; NUMBER or WHOLE; None for null; a
            tuple of shapes, one of which fits; [shape of each item]; {name: shape}, where a name
            that ends with ? may be missing and further ones pass; or {"*": shape of each value}.
        name: of the value in messages; "" for the value of the file.
    """
    said = f"{name or 'it'} is {repr(value)[:SHOWN]}"
    if isinstance(shape, tuple):
        _check_choices(value, shape, name)
    elif shape == NUMBER:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and -MAX_NUMBER <= value < MAX_NUMBER):
            raise ValueError(f"{said}, not a number")
    elif shape == WHOLE:
        if type(value) is not int or not 0 <= value < MAX_NUMBER:
            raise ValueError(f"{said}, no count")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise ValueError(f"{said}, not a list")
        for item in value:
            check_shape(item, shape[0], name)
    elif isinstance(shape, dict):
        if not isinstance(value, dict) or any(len(key) > KEY_LENGTH for key in value):
            raise ValueError(f"{said}, not an object of short names")
        shapes = dict.fromkeys(value, shape["*"]) if "*" in shape else shape
        for key, inner in shapes.items():
            path = f"{name}.{key}".strip(".?")
            if key.removesuffix("?") in value:
                check_shape(value[key.removesuffix("?")], inner, path)
            elif not key.endswith("?"):
                raise ValueError(f"has no {path}")
    elif not isinstance(value, shape or type(None)) or (shape is int and isinstance(value, bool)):
        raise ValueError(said)


def _check_choices(value: Any, shapes: tuple[Any, ...], name: str) -> None:
    """Raise the ValueError that the last of several shapes has against a value, unless one fits."""
    *others, last = shapes
    for shape in others:
        try:
            check_shape(value, shape, name)
        except ValueError:
            continue
        return
    check_shape(value, last, name)
