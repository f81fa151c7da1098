"""The checksum of messages in the replay log: whatever their pieces, and of every bit of them in
its place.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo.comm.replay_log import checksum

ROWS = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
MESSAGE = ROWS.reshape(-1).view(np.uint8)


@given(st.lists(st.integers(0, len(MESSAGE)), max_size=5))
def test_the_checksum_does_not_depend_on_the_pieces(cuts: list[int]) -> None:
    assert checksum(np.split(MESSAGE, sorted(cuts))) == checksum([MESSAGE])


@pytest.mark.parametrize("place", [0, 7, 4095, 4096, len(MESSAGE) - 1])
def test_the_checksum_is_of_every_byte(place: int) -> None:
    changed = MESSAGE.copy()
    changed[place] ^= 128
    assert checksum([changed]) != checksum([MESSAGE])


@pytest.mark.parametrize("other", [1, 15, 16, 39])
def test_the_checksum_is_of_the_order_of_rows(other: int) -> None:
    swapped = ROWS.copy()
    swapped[[0, other]] = ROWS[[other, 0]]
    assert checksum([swapped.reshape(-1).view(np.uint8)]) != checksum([MESSAGE])


def test_the_checksum_is_of_the_length() -> None:
    sizes = (0, 1, 8, 4095, 4096, 4097)
    assert len({checksum([np.zeros(size, np.uint8)]) for size in sizes}) == len(sizes)
