"""Every reader of what others write, with mutations of a valid input (tests/hostile/doors.py)."""

from pathlib import Path

import pytest
from hostile.doors import Valid
from hostile.readers import DOORS
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

UNSHRUNK = (Phase.explicit, Phase.generate)
"""A smaller seed is no smaller input."""
SHARE = {"settings": 0.4}
"""Of the inputs of a door, at one that takes longer."""
USUAL, ALL = 15, 1_400
"""Inputs of a door, and of --all."""


def cases() -> list[object]:
    many = pytest.mark.long("14,000 inputs"), pytest.mark.timeout(7200)
    usual = [(name, USUAL) for name in DOORS]
    return [*usual, *(pytest.param(name, ALL, marks=many) for name in DOORS)]


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize(("name", "count"), cases())
def test_a_door_accepts_or_refuses(name: str, count: int, tmp_path: Path) -> None:
    valid = Valid.make(DOORS[name], tmp_path / "valid")

    @settings(max_examples=round(count * SHARE.get(name, 1)), phases=UNSHRUNK)
    @given(seed=st.integers(0, 2**32 - 1))
    def enter(seed: int) -> None:
        tried = valid.enter(seed)
        assert not tried.wrong, tried

    enter()
