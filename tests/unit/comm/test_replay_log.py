"""The checksum of messages in the replay log: whatever their pieces, and of every bit of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo.comm.replay_log import BLOCK, checksum

MESSAGE = np.random.default_rng(0).integers(256, size=3 * BLOCK + 7, dtype=np.uint8)


@given(st.lists(st.integers(0, len(MESSAGE)), max_size=5))
def test_the_checksum_does_not_depend_on_the_pieces(cuts: list[int]) -> None:
    assert checksum(np.split(MESSAGE, sorted(cuts))) == checksum([MESSAGE])


@pytest.mark.parametrize(
    "place", [0, 7, BLOCK - 1, BLOCK, 3 * BLOCK - 1, 3 * BLOCK, len(MESSAGE) - 1]
)
def test_the_checksum_is_of_every_byte(place: int) -> None:
    changed = MESSAGE.copy()
    changed[place] ^= 128
    assert checksum([changed]) != checksum([MESSAGE])


def test_the_checksum_is_of_the_order_of_blocks() -> None:
    first, *others = np.split(MESSAGE, [BLOCK, 2 * BLOCK])
    assert checksum([others[0], first, others[1]]) != checksum([MESSAGE])


def test_the_checksum_is_of_the_length() -> None:
    assert (
        len(
            {
                checksum([np.zeros(size, np.uint8)])
                for size in (0, 1, 8, BLOCK - 1, BLOCK, BLOCK + 1)
            }
        )
        == 6
    )
