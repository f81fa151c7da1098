"""Reads fitted feature pipelines from where they are stored: a run, a partition directory, a file."""

import json
from pathlib import Path
from typing import Any

from partitioning.errors import InputError
from partitioning.features.encoder import VERSION
from partitioning.features.schema import check_states
from partitioning.file_io import UNREADABLE, check_path, read_text

PLACES = ("checkpoint/model.json", "model.json", "meta.json")
"""Files of a run directory, a checkpoint and a partition directory with a field `features`."""


def find_spec(setting: str) -> Path:
    """Return the file that `features.spec` names; InputError where there is none."""
    path = check_path("features.spec", setting)
    file = next((path / place for place in PLACES if (path / place).is_file()), path)
    if not file.is_file():
        raise InputError(
            f"features.spec={path}: expected a run directory, a partition directory or a JSON file"
        )
    return file


def read_spec(setting: str) -> dict[str, Any]:
    """Read the pipelines that `features.spec` names.

    Args:
        setting: A run directory, a checkpoint folder, a partition directory, or a JSON file.

    Returns:
        The fitted pipeline of each table, by `nodes`, `edges` or `nodes/TYPE`.

    Raises:
        InputError: there is none, or it is damaged.
    """
    file = find_spec(setting)
    try:
        content = json.loads(read_text(file))
        states = content["features"]
        check_states(states)
        versions = {state.get("version") for state in states.values()}
    except KeyError as error:
        raise InputError(
            f"features.spec={file}: has no field {error}: it was written before feature pipelines "
            "were stored; leave features.spec out, and set features.scale=none"
        ) from error
    except UNREADABLE as error:
        raise InputError(f"features.spec={file}: damaged: {error}") from error
    if versions - {VERSION}:
        raise InputError(
            f"features.spec={file}: has pipelines of version {sorted(map(str, versions))}; "
            f"expected {VERSION}"
        )
    return dict(states)
