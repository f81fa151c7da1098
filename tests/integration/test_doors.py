"""Every reader of what others write, with mutations of a valid input (tests/hostile/doors.py)."""

from pathlib import Path

import pytest
from hostile.doors import Valid
from hostile.readers import DOORS
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

SEEDS = st.integers(0, 2**32 - 1)
UNSHRUNK = (Phase.explicit, Phase.generate)
"""A smaller seed is no smaller input."""
SHARE = {"settings": 0.4, "YAML": 0.4}
"""Of the inputs of a door, at those that take longer."""
ALL = 20_000
"""Inputs of --all."""


@pytest.fixture(scope="module")
def valid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Valid:
    return Valid.make(DOORS[request.param], Path(tmp_path_factory.mktemp("door")) / "valid")


def enter(valid: Valid, count: float) -> None:
    """Try so many inputs."""

    @settings(max_examples=round(count), phases=UNSHRUNK)
    @given(seed=SEEDS)
    def enter_once(seed: int) -> None:
        tried = valid.enter(seed)
        assert not tried.wrong, tried

    enter_once()


@pytest.mark.parametrize(
    ("valid", "share"), [(name, SHARE.get(name, 1)) for name in DOORS], indirect=["valid"]
)
def test_a_door_accepts_or_refuses(valid: Valid, share: float) -> None:
    enter(valid, 15 * share)


@pytest.mark.long("20,000 inputs")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("valid", "share"), [(name, SHARE.get(name, 1)) for name in DOORS], indirect=["valid"]
)
def test_many_inputs_at_a_door(valid: Valid, share: float) -> None:
    shares = [SHARE.get(name, 1) for name in DOORS]
    enter(valid, ALL * share / sum(shares) + 0.5)
