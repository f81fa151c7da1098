"""Checks a whole partition directory, for `app=partition_data verify=true`."""

from pathlib import Path

from partitioning.directory.read_directory import find_partition_directory
from partitioning.errors import InputError


def verify_directory(path: Path) -> dict[int, str]:
    """Check the files of each partition by their checksums, and that its arrays can be read.

    Returns:
        The damage of each damaged partition; empty for an intact directory.

    Raises:
        InputError: it is no partition directory, or its description is damaged.
    """
    directory = find_partition_directory([path], None)
    damages = {}
    for part in range(directory.num_parts):
        try:
            directory.verify([part])
            directory.read_part(part)
            if directory.meta and (
                copy := directory.meta.first_damaged(directory.path, f"part{part}/")
            ):
                raise InputError(
                    f"{copy}: missing or changed; copy it again, or partition again with"
                    " overwrite=true"
                )
        except InputError as error:
            damages[part] = str(error)
    return damages
