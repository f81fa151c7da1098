"""Writing a file atomically: it is complete, or not there."""

import contextlib
import json
import math
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from partitioning.file_io import rename_durably, why_unwritten
from retexo.errors import TrainingError

UNFINISHED = ".unfinished-"


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it at the end of the block, and removed where that fails.

    Both the file and its new name are on the disk then. TrainingError names the path where the block cannot write.
    """
    unfinished = path.with_name(
        f"{UNFINISHED}{secrets.token_hex(4)}-{path.name}"
    )  # nodes may share a directory
    try:
        yield unfinished
        rename_durably(unfinished, path)
    except OSError as error:
        raise TrainingError(f"{path}: {why_unwritten(error)}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def remove_unfinished(run_dir: Path) -> None:
    """Remove what a process that was killed was writing, in a run directory that nobody else has."""
    for folder in ("", "checkpoint", "state", "state/*", "predictions", "embeddings"):
        for path in run_dir.glob(f"{folder}/{UNFINISHED}*".lstrip("/")):
            path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically; TrainingError where it cannot be written."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(json.dumps(plain_json(value), indent=2) + "\n", encoding="utf-8")


def plain_json(value: Any) -> Any:
    """The value with null for NaN and infinity, which JSON does not have, and with names as strings."""
    if isinstance(value, dict):
        return {str(name): plain_json(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [plain_json(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
