"""A lock on a folder that is written: one run at a time. The kernel releases it when its process ends, in any way."""

import fcntl
import functools
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from partitioning.errors import InputError
from retexo.config.settings import Settings
from retexo.outputs.files import remove_unfinished

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


@contextmanager
def exclusive(path: Path, where: str) -> Iterator[int]:
    """Hold the lock file at `path`, which stays there; yields its descriptor, for child processes that hold it as well.

    InputError, with `where` and the owner's process, host and start, if another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{where}: in use by {_owner(path)}; wait for its end, or choose another") from None
        except OSError as error:
            logger.warning(
                "%s: %s: this file system has no locks; see that no other run writes there", path, error.strerror
            )
        file.truncate(0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": started}))
        file.flush()
        yield file.fileno()


def _owner(path: Path) -> str:
    try:
        owner = json.loads(path.read_text())
        host, started = str(owner["host"])[:100], str(owner["started"])[:30]
        return f"process {int(owner['pid'])} on {host!a}, which began at {started!a}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


@contextmanager
def exclusive_run_dir(run_dir: Path, node: int) -> Iterator[None]:
    """This node's lock on a run directory, which nodes may share; removes what a killed run was writing there."""
    with exclusive(run_dir / f".lock{node}", f"hydra.run.dir={run_dir}"):
        remove_unfinished(run_dir)
        yield


def locks_run_dir(app: Callable[[Settings, Path], Result]) -> Callable[[Settings, Path], Result]:
    """An app that has its run directory for itself; InputError, before it does anything, where another run has it."""

    @functools.wraps(app)
    def run(settings: Settings, run_dir: Path) -> Result:
        with exclusive_run_dir(run_dir, settings.train.cluster.node_rank):
            return app(settings, run_dir)

    return run
