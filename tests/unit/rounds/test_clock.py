"""Seconds of nested phases."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.trainers.context import PHASES, Clock
from retexo.worker.measure import measurements


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Advance the clock."""
    now = 0.0

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    return advance


def test_no_second_is_in_two_phases(wait: Callable[[float], None]) -> None:
    clock = Clock()
    wait(100)
    with clock.phase("evaluate"):
        wait(1)
        with clock.phase("exchange"):
            wait(2)
            with clock.phase("plan"):
                wait(4)
            wait(8)
        wait(16)
        with clock.phase("exchange"):
            wait(32)
    with clock.phase("plan"):
        wait(64)
    assert clock.seconds == dict.fromkeys(PHASES, 0.0) | {
        "evaluate": 17,
        "exchange": 42,
        "plan": 68,
    }


def test_a_phase_that_fails_is_counted(wait: Callable[[float], None]) -> None:
    clock = Clock()

    def fail() -> None:
        with clock.phase("rounds"):
            wait(1)
            with clock.phase("embed"):
                wait(2)
                raise ValueError("within")

    with pytest.raises(ValueError, match="within"):
        fail()
    assert clock.seconds == dict.fromkeys(PHASES, 0.0) | {"rounds": 1, "embed": 2}


def test_seconds_of_a_run_are_those_of_the_mean_worker() -> None:
    def work(comm: Communicator) -> dict[str, Any]:
        clock = Clock()
        clock.seconds |= {
            "embed": 3.0 + comm.rank,
            "evaluate": 1.0 - comm.rank,
        }  # who is first waits
        return measurements(comm, clock, (0, 0), 4.0, 1)["seconds"]

    assert run_threads(2, work)[0] == {
        "train": 4.0,
        "phase": dict.fromkeys(PHASES, 0.0) | {"embed": 3.5, "evaluate": 0.5},
    }
