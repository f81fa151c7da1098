"""Files of the user's: checksums, JSON, and the types that JSON gave."""

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from partitioning.errors import InputError


def file_checksum(path: Path) -> str:
    """sha256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds; InputError if it holds none."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a JSON {type(content).__name__}, needs an object")
    return content


def check_types(read: Any) -> None:
    """Raise ValueError for a field of a dataclass to which JSON gave another type, or a number out of all range."""
    hints = get_type_hints(type(read))
    for name in (field.name for field in fields(read)):
        hint, value = hints[name], getattr(read, name)
        choices = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        allowed = tuple(get_origin(choice) or choice for choice in choices)
        if not isinstance(value, (*allowed, int) if float in allowed else allowed) or isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}")
        if isinstance(value, int | float) and not 0 <= value < 2**63:
            raise ValueError(f"{name} is {value}")
