"""Seconds of nested phases."""

import time
from collections.abc import Callable

import pytest

from retexo.trainers.context import PHASES, Clock


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
