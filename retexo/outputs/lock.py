"""A run directory belongs to one run at a time."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from partitioning.files import exclusive
from retexo.config.settings import Settings
from retexo.outputs.files import remove_unfinished

Result = TypeVar("Result")


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
