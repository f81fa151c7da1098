"""A run directory belongs to one run at a time."""

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any, TypeVar

from partitioning.errors import InputError
from partitioning.file_io import exclusive, open_regular
from retexo.results.atomic_write import remove_unfinished
from retexo.settings.run_settings import Settings

Result = TypeVar("Result")


@contextmanager
def exclusive_run_dir(run_dir: Path, node: int) -> Iterator[None]:
    """This node's lock on a run directory, which nodes may share; removes what a killed run was writing there."""
    with exclusive(run_dir / f".lock{node}", f"hydra.run.dir={run_dir}"):
        remove_unfinished(run_dir)
        yield


class _RegularFileHandler(logging.FileHandler):
    def _open(self) -> Any:
        return open_regular(Path(self.baseFilename), self.mode)


@contextmanager
def _main_log(log: Path) -> Iterator[None]:
    """The log goes to its file, too, with what was kept until now; a refused command leaves no line there."""
    size = log.stat().st_size if log.exists() else 0
    file = _RegularFileHandler(log, delay=True)
    kept = [each for each in logging.getLogger().handlers if isinstance(each, MemoryHandler)]
    for handler in kept:  # of conf/node_classification.yaml
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
    finally:
        for handler in kept:
            handler.setTarget(None)
        file.close()


def locks_run_dir(app: Callable[[Settings, Path], Result]) -> Callable[[Settings, Path], Result]:
    """An app that has its run directory for itself; InputError, before it does anything, where another run has it."""

    @functools.wraps(app)
    def run(settings: Settings, run_dir: Path) -> Result:
        with (
            exclusive_run_dir(run_dir, settings.train.cluster.node_rank),
            _main_log(run_dir / "main.log"),
        ):
            return app(settings, run_dir)

    return run
