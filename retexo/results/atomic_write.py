"""Atomic writes: a file is either complete or absent."""

import contextlib
import json
import math
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from partitioning.files.file_io import rename_durably, why_unwritten, with_checksum
from retexo.errors import TrainingError

UNFINISHED = ".unfinished-"


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and rename it to `path` at the end of the block.

    The file and its name are durable then. If the block fails, the file is removed.

    Raises:
        TrainingError: The file cannot be written.
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
        with contextlib.suppress(NotADirectoryError):  # a file is in the folder's place
            unfinished.unlink(missing_ok=True)


def remove_unfinished(run_dir: Path) -> None:
    """Remove the unfinished files of a killed process, in a run directory and its folders.

    The caller holds the run directory's lock.
    """
    for folder in ("", "checkpoint", "state", "state/*", "predictions", "embeddings"):
        for path in run_dir.glob(f"{folder}/{UNFINISHED}*".lstrip("/")):
            path.unlink(missing_ok=True)


def write_json(path: Path, value: Any, *, checksum: bool = False) -> None:
    """Write a JSON file atomically, NaN as null; TrainingError if it cannot be written.

    checksum: whether an object gets the field that `check_unchanged` compares.
    """
    content = plain_json(value)
    content = with_checksum(content) if checksum else content
    with atomic_write(path) as unfinished:
        unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def plain_json(value: Any) -> Any:
    """Return the value with NaN and infinity as None, and keys as strings; tuples stay."""
    if isinstance(value, dict):
        return {str(name): plain_json(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [plain_json(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
