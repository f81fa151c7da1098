"""Checksums of public files: compares downloads with published ones, and notices later changes.

Few hosts publish a checksum, so sha256.txt has what others published. The checksum of every
file is written beside it at its first use, NAME.sha256, in the form of sha256sum.
"""

import contextlib
import logging
from pathlib import Path

from partitioning.errors import InputError
from partitioning.files.file_io import file_checksum, read_text, reading, write_durably

log = logging.getLogger(__name__)

PUBLISHED = Path(__file__).with_name("sha256.txt")


def published_checksum(url: str) -> str | None:
    """Return the published sha256 (hex) of the file at an address; None where none is known."""
    for line in read_text(PUBLISHED).splitlines():
        checksum, _, address = line.partition("  ")
        if address == url:
            return checksum
    return None


def check_published(path: Path, url: str) -> None:
    """Raise OSError if a download differs from the file that others had from this address."""
    checksum, published = file_checksum(path), published_checksum(url)
    if published not in (None, checksum):
        raise OSError(
            f"it has sha256 {checksum}, and {published} is published: damaged on the way, or"
            " replaced; look at it before you use it"
        )


def check_unchanged(path: Path, url: str) -> None:
    """Raise InputError if a file differs from its first use, which records it in NAME.sha256.

    A file that the user has put there may differ from the published one; the log then says so. In a
    folder where nothing can be written nothing is recorded, nor noticed later.
    """
    record = path.with_name(f"{path.name}.sha256")
    with reading(path, "file"):
        checksum = file_checksum(path)
    if record.is_file():
        with reading(record, "checksum", "remove it"):
            recorded = read_text(record).split()[:1]
        if recorded != [checksum]:
            raise InputError(
                f"{path}: has changed since its first use (its sha256 is {checksum}, {record} has"
                f" {' '.join(recorded)}); remove both to fetch it again, or only {record.name} to"
                " use the file as it is"
            )
        return
    published = published_checksum(url)
    if published not in (None, checksum):
        log.warning("%s: differs from the published file, whose sha256 is %s", path, published)
    with contextlib.suppress(OSError):  # a folder that others own
        write_durably(record, f"{checksum}  {path.name}\n")
