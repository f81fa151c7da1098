"""Elias-Fano code: lossless round trips, predicted and nearly minimal sizes, rejected bytes."""

import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import torch_threads

from retexo.arrays import IntArray
from retexo.exchange.coding import elias_fano
from retexo.exchange.coding.elias_fano import (
    VALUES_PER_BLOCK,
    best_num_low_bits,
    decode_sorted,
    encode_lists,
    encode_sorted,
    encoded_size,
)

without_hurry = settings(deadline=None)  # other processes may hold the cores


@st.composite
def sets(draw: st.DrawFn) -> tuple[IntArray, int]:
    """Sorted values, some repeated, and their exclusive upper bound."""
    universe = draw(st.sampled_from([1, 2, 3, 8, 100, 1 << 20, 1 << 40]))
    values = draw(st.lists(st.integers(0, universe - 1), max_size=40))
    return np.array(sorted(values), dtype=np.int64), universe


@pytest.mark.parametrize("at_once", [VALUES_PER_BLOCK, 8])
@without_hurry
@given(given=sets())
def test_values_come_back(given: tuple[IntArray, int], at_once: int) -> None:
    values, universe = given
    with (
        mock.patch.multiple(elias_fano, VALUES_PER_BLOCK=at_once, BITS_PER_BLOCK=at_once),
        torch_threads(2),
    ):
        code = encode_sorted(values, universe)
        assert decode_sorted(code, len(values), universe).tolist() == values.tolist()
    assert code.dtype == np.uint8
    assert len(code) == encoded_size(len(values), universe)


@pytest.mark.parametrize("universe", [1 << 17, 1 << 40])
def test_a_list_of_several_chunks_is_written_as_among_others(universe: int) -> None:
    values = np.sort(np.random.default_rng(0).integers(universe, size=2 * VALUES_PER_BLOCK + 3))
    counts, low = np.array([len(values)]), np.array([best_num_low_bits(len(values), universe)])
    code = encode_sorted(values, universe)
    assert (code == encode_lists(values, counts, low, universe)).all()
    assert (decode_sorted(code, len(values), universe) == values).all()


@pytest.mark.parametrize("place", range(1, 17))
def test_values_that_fall_are_refused_wherever_they_do(place: int) -> None:
    values = np.array([5] * place + [3] * (17 - place))
    code = encode_sorted(values, 1 << 20)  # 16 bits of each are low ones
    with (
        mock.patch.object(elias_fano, "VALUES_PER_BLOCK", 8),
        pytest.raises(ValueError, match="not ascending"),
    ):
        decode_sorted(code, 17, 1 << 20)


@without_hurry
@given(st.integers(0, 10_000), st.integers(1, 1 << 40))
def test_a_code_is_at_most_two_bits_a_value_and_their_logarithm(count: int, universe: int) -> None:
    bits = count * (2 + max(0.0, math.log2(universe / max(count, 1)))) if count else 0
    assert encoded_size(count, universe) <= (bits + 7.001) / 8


@pytest.mark.parametrize(
    ("values", "universe", "code"),
    [
        ([], 9, []),
        ([], 0, []),
        ([0], 1, [0b1]),
        ([0, 1, 3], 4, [0b100101]),  # 0, 1, 3 and their ranks 0, 1, 2: bits 0, 2, 5
        ([2, 2, 2], 3, [0b11100]),
        ([5], 8, [0b0110]),  # 5 >> 2 sets bit 1 of two; then 01, what is left of 5, in two bits
    ],
)
def test_codes_by_hand(values: list[int], universe: int, code: list[int]) -> None:
    assert encode_sorted(np.array(values, dtype=np.int64), universe).tolist() == code


@pytest.mark.parametrize(
    ("code", "count", "universe", "message"),
    [
        ([0b1, 0], 1, 1, "1 values below 1 take 1 bytes, not 2"),
        ([], 1, 1, "take 1 bytes, not 0"),
        ([0], 0, 5, "take 0 bytes, not 1"),
        ([0b0], 1, 1, "1 values are announced, the code has 0"),
        ([0b100101], 2, 5, "2 values are announced, the code has 3"),
        ([0b1110], 1, 7, "not ascending below 7"),  # 7
        (
            [0b1101100, 0],
            2,
            16,
            "not ascending below 16",
        ),  # 11, then 8: the last four bits are 11 00
        ([], 1, 0, "1 values are announced, the code has 0"),
    ],
)
def test_bad_codes_are_refused(code: list[int], count: int, universe: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_sorted(np.array(code, dtype=np.uint8), count, universe)


@without_hurry
@given(sets(), st.data())
def test_what_is_read_would_be_written_so(given: tuple[IntArray, int], data: st.DataObject) -> None:
    """A damaged code is rejected or decodes to values with that code, except for the padding."""
    values, universe = given
    code = encode_sorted(values, universe)
    for bit in (
        data.draw(st.sets(st.integers(0, max(8 * len(code) - 1, 0)), max_size=3))
        if len(code)
        else ()
    ):
        code[bit // 8] ^= 1 << bit % 8
    try:
        read = decode_sorted(code, len(values), universe)
    except ValueError:
        return
    assert all(0 <= value < universe for value in read)
    written = encode_sorted(read, universe)
    assert written.tolist()[:-1] == code.tolist()[:-1]
    assert not len(code) or written[-1] & code[-1] == written[-1]
