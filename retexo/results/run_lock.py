"""Locks: one run at a time uses a run directory."""

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from partitioning.errors import InputError
from partitioning.files.file_io import exclusive, open_regular
from retexo.results.atomic_write import remove_unfinished
from retexo.settings.run_settings import Settings

Result = TypeVar("Result")
Others = ParamSpec("Others")


@contextmanager
def exclusive_run_dir(run_dir: Path, node: int) -> Iterator[None]:
    """Make and lock a run directory for this node; remove unfinished files of a killed run.

    InputError if another command of this node uses it.
    """
    with exclusive(run_dir / f".lock{node}", f"hydra.run.dir={run_dir}"):
        remove_unfinished(run_dir)
        yield


class _RegularFileHandler(logging.FileHandler):
    def _open(self) -> Any:
        return open_regular(Path(self.baseFilename), self.mode)


@contextmanager
def _main_log(log: Path) -> Iterator[None]:
    """Write the log to a file, too, including the lines logged before.

    The root logger's memory handlers hold those. An InputError takes this command's lines out of
    the file again; any other error is written with its traceback.
    """
    size = log.stat().st_size if log.exists() else 0
    file = _RegularFileHandler(log, delay=True)
    buffers = [
        handler for handler in logging.getLogger().handlers if isinstance(handler, MemoryHandler)
    ]
    for handler in buffers:  # of conf/node_classification.yaml
        file.setFormatter(handler.formatter)
        handler.setTarget(file)
        handler.flush()
    try:
        yield
    except InputError:
        if log.exists():
            os.truncate(log, size)
            if not size:
                log.unlink()
        raise
    except Exception:
        if buffers:  # the console shows it when the job has ended
            values = {"levelname": "ERROR", "msg": "failed", "exc_info": sys.exc_info()}
            with suppress(OSError):  # of a full disk
                file.handle(logging.makeLogRecord(values))
        raise
    finally:
        for handler in buffers:
            handler.setTarget(None)
        file.close()


def locks_run_dir(
    app: Callable[Concatenate[Settings, Path, Others], Result],
) -> Callable[Concatenate[Settings, Path, Others], Result]:
    """Decorate an app to lock its run directory, and to write main.log in it.

    The app raises InputError if another run holds the lock.
    """

    @functools.wraps(app)
    def run(
        settings: Settings, run_dir: Path, /, *others: Others.args, **named: Others.kwargs
    ) -> Result:
        with (
            exclusive_run_dir(run_dir, settings.node_rank),
            _main_log(run_dir / "main.log"),
        ):
            return app(settings, run_dir, *others, **named)

    return run
