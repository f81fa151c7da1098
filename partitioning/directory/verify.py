"""Checking a partition directory as a whole, without training on it."""

from pathlib import Path

from partitioning.directory.read_directory import find
from partitioning.errors import InputError


def verify_directory(path: Path) -> dict[int, str]:
    """Check every part: the checksums of its files, and its content against meta.json where there is one.

    Returns what is wrong with each damaged part; empty where all is as it was written.

    Raises:
        InputError: it is no partition directory, or what describes it is damaged.
    """
    directory = find([path], None)
    damages = {}
    for part in range(directory.num_parts):
        try:
            directory.verify([part])
            directory.check(part)
            if directory.meta and (
                copy := directory.meta.first_damaged(directory.path, f"part{part}/")
            ):
                raise InputError(
                    f"{copy}: missing or changed; copy it again, or partition again with overwrite=true"
                )
        except InputError as error:
            damages[part] = str(error)
    return damages
