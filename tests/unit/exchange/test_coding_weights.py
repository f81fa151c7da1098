"""Encoding of edge weights."""

import numpy as np
import pytest

from retexo.exchange.coding.weights import decode_weights, encode_weights


@pytest.mark.parametrize(
    ("weights", "size"),
    [
        ([], 2),
        ([2.5] * 1000, 2 + 4),
        ([1.0, 3.0] * 500, 2 + 8 + 125),
        (np.arange(5) + 0.5, 2 + 20),  # a table would be longer
        (np.arange(1000) % 256, 2 + 1024 + 1000),
        (np.arange(1000) % 257, 2 + 4000),
        (np.random.default_rng(0).random(999), 2 + 4 * 999),
    ],
)
def test_weights_come_back_in_so_many_bytes(weights: list[float], size: int) -> None:
    given = np.array(weights, np.float32)
    code = encode_weights(given)
    assert len(code) == size
    np.testing.assert_array_equal(decode_weights(code, len(given)), given)


def test_a_code_of_another_length_is_refused() -> None:
    code = encode_weights(np.array([1.0, 3.0] * 8, np.float32))
    with pytest.raises(ValueError, match="11 bytes for 16 weights of 2 values"):
        decode_weights(code[:-1], 16)
