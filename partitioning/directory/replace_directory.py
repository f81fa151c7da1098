"""Puts a directory in its place when it is complete: at any time it is the old one or the new one.
A lock keeps other processes from writing it.
"""

import contextlib
import errno
import glob
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from partitioning.errors import InputError
from partitioning.files.file_io import exchange_durably, exclusive, rename_durably, why_unwritten

log = logging.getLogger(__name__)

UNFINISHED, OLD = ".unfinished-", ".old-"
"""Prefixes of the hidden folders beside a directory: the one being written, the one being replaced.
"""


@contextlib.contextmanager
def replaced_when_written(directory: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a hidden folder beside the directory, whose place it takes at the end.

    Parents are made. It is removed on failure.

    Raises:
        InputError: the directory is there without `overwrite`, which is noticed at the end.
        OSError: also of the body, with cause and remedy of a failed write as its text, but for one
            of making the folder.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(
        tempfile.mkdtemp(prefix=f".{directory.name}{UNFINISHED}", dir=directory.parent)
    )
    try:
        unfinished.chmod(0o755)
        yield unfinished
        _move_into_place(unfinished, directory, overwrite)
    except OSError as error:
        raise OSError(error.errno or errno.EIO, why_unwritten(error), str(directory)) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _move_into_place(unfinished: Path, directory: Path, overwrite: bool) -> None:
    """Rename the folder `unfinished` to `directory`; InputError if it is there without `overwrite`.

    An existing directory changes places with it, so that one of them can always be read; where the
    system cannot do that, it is moved aside first.
    """
    if not os.path.lexists(directory):
        rename_durably(unfinished, directory)
        return
    if not overwrite:
        raise InputError(
            f"{directory}: appeared while it was made anew; set overwrite=true to replace it"
        )
    if exchange_durably(unfinished, directory):
        return
    old = Path(tempfile.mkdtemp(prefix=f".{directory.name}{OLD}", dir=directory.parent))
    directory.rename(old / "old")
    rename_durably(unfinished, directory)
    shutil.rmtree(old)


@contextlib.contextmanager
def writing(directory: Path, patience: float = 0.0) -> Iterator[None]:
    """Lock a partition directory, and remove the hidden folders that a killed run left beside it.

    A directory that the run had moved aside is moved back where nothing is in its place. The log
    names unfinished ones.

    Args:
        patience: Seconds to wait for another process that is writing it.

    Raises:
        InputError: another process is writing it; the message names that process.
    """
    with exclusive(directory.with_name(f".{directory.name}.lock"), str(directory), patience):
        name = glob.escape(f".{directory.name}")
        for old in directory.parent.glob(f"{name}{OLD}*"):
            if (old / "old").exists() and not directory.exists():
                (old / "old").rename(directory)  # killed between two renames
            shutil.rmtree(old, ignore_errors=True)
        for unfinished in directory.parent.glob(f"{name}{UNFINISHED}*"):
            log.info("removing %s, left by a killed run", unfinished)
            shutil.rmtree(unfinished, ignore_errors=True)
        yield
