"""Seconds of work while several processes share a core, all of them in step, as workers do."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from typing import Any

from retexo.worker.process import release_freed_memory

UnitCosts = dict[str, float]
"""Seconds of one core for one unit of each kind of work, by its name."""
PER_CORE = 2
"""Processes that share a core while they measure."""
NARROW, WIDE = 48, 256
"""Columns, as few as of classes and as many as of hidden layers."""
SLOWEST = 600.0
"""Seconds that they wait for each other before all of them measure the same."""
_together: Barrier | None = None
"""Where they do so; None in a process alone."""


def join(together: Barrier) -> None:
    """Wait there before each measurement, with PER_CORE processes on each of the cores that these need."""
    global _together
    _together = together
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: together.parties // PER_CORE])


@contextlib.contextmanager
def measuring() -> Iterator[None]:
    """Around all measurements of a process: none waits for one that failed."""
    try:
        yield
    except threading.BrokenBarrierError:
        return
    except Exception:
        if _together is not None:
            _together.abort()
        raise


def seconds_of(
    units: int, work: Callable[[], Any], repeats: int = 5, *, fresh: bool = False
) -> float:
    """Seconds of one unit while PER_CORE processes share a core, until the last of them is done; the mean of several.

    fresh: whether it begins without the memory that it needs, as a phase does; else that is there, as in a round.
    """
    own, waited = _seconds(work, repeats, fresh)
    return (own + waited) / units / PER_CORE


def own_seconds_of(units: int, work: Callable[[], Any]) -> tuple[float, float]:
    """As seconds_of, once and fresh, of what ends before others are done; and the share more that these take then."""
    own, waited = _seconds(work, 1, True)
    return own / units / PER_CORE, waited / own


def _seconds(work: Callable[[], Any], repeats: int, fresh: bool) -> tuple[float, float]:
    """Of each repeat: until this process is done, and from then on until the last one is."""
    if fresh:
        release_freed_memory()
    else:
        work()
    _wait_for_all()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    done = time.perf_counter()
    _wait_for_all()
    return (done - start) / repeats, (time.perf_counter() - done) / repeats


def _wait_for_all() -> None:
    if _together is not None:
        _together.wait()


def line(of_width: Callable[[int], float]) -> tuple[float, float]:
    """Seconds an edge, and a value more, through what rows of two widths take."""
    narrow, wide = of_width(NARROW), of_width(WIDE)
    slope = max(0.0, (wide - narrow) / (WIDE - NARROW))
    return max(0.0, narrow - NARROW * slope), slope
