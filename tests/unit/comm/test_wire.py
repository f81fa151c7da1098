"""The bytes of a sum's values: chunks come back as they were cut, each as long as told."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retexo.comm import message_format


@pytest.mark.parametrize(
    "wire_format", [torch.float32, torch.float64, torch.bfloat16, torch.int64, "int8", "int6"]
)
@given(
    count=st.integers(0, 5 * message_format.BLOCK),
    blocks=st.lists(st.integers(0, 5), max_size=4),
    offset=st.integers(0, 9),
)
def test_chunks_hold_the_values(
    wire_format: message_format.WireFormat, count: int, blocks: list[int], offset: int
) -> None:
    values = (
        torch.arange(
            -count,
            count,
            2,
            dtype=torch.float32 if wire_format in message_format.LARGEST else torch.float64,
        )
        / 8
    )
    encoded = message_format.encode(values, wire_format)
    ends = sorted({0, count, *(min(count, each * message_format.BLOCK) for each in blocks)})
    decoded = []
    for first, end in itertools.pairwise(ends):
        pieces = message_format.chunk(encoded, wire_format, first, end)
        size = message_format.num_bytes(wire_format, end - first)
        # What comes from a peer begins anywhere in a buffer, not at a multiple of the values' size.
        content = np.concatenate([np.zeros(offset, np.uint8), *pieces])[offset:]
        assert len(content) == size
        decoded.append(message_format.decode(content, wire_format, end - first))
    found = torch.cat([torch.empty(0), *decoded]).double()
    scale = (
        values.abs().amax() / message_format.LARGEST[wire_format]
        if count and wire_format in message_format.LARGEST
        else 0
    )
    expected = values.to(
        torch.float32 if wire_format in message_format.LARGEST else wire_format
    ).double()
    assert (found - expected).abs().le(scale / 2 + 1e-6).all()


def test_every_code_of_six_bits_in_every_place() -> None:
    codes = torch.arange(-31, 32)
    for place in range(4):
        values = torch.zeros(4 * len(codes))
        values[place::4] = codes
        encoded = message_format.encode(values, "int6")
        assert len(encoded[0]) == 3 * len(codes)
        found = message_format.decode(np.concatenate(encoded), "int6", len(values)).reshape(-1, 4)
        assert (found[:, [each for each in range(4) if each != place]] == 0).all()
        for first in range(0, 4 * len(codes), message_format.BLOCK):  # each block has its own scale
            block = values[first : first + message_format.BLOCK].reshape(-1, 4)[:, place]
            limit = block.abs().max() / 62 + 1e-6
            assert (found[first // 4 : first // 4 + len(block), place] - block).abs().max() <= limit


@pytest.mark.parametrize("count", [0, 1, 3])
def test_bytes_whatever_the_strides(count: int) -> None:
    """A tensor of one value, or none, may have a stride of 0."""
    one, every_second = torch.arange(1).expand(count), torch.arange(2 * count)[::2]
    for values in (one, every_second):
        assert message_format.as_bytes(values).tobytes() == values.numpy().tobytes()
