"""Ascending integers in few bytes: the code of Elias (1974) and Fano (1971).

n values below U take n * low + n + (U - 1 >> low) bits, about 2 + log2(U / n) each: half a bit above the least possible
for a random set. Equal values may follow each other.
"""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def code_size(count: int, universe: int) -> int:
    """Bytes that `count` values in [0, universe) take."""
    return (_bits(count, universe, _low(count, universe)) + 7) // 8


def write_ascending(values: Ints, universe: int) -> NDArray[np.uint8]:
    """Write values in [0, universe), int64 [n] ascending; uint8 [code_size(n, universe)]."""
    count, low = len(values), _low(len(values), universe)
    bits = np.zeros(_bits(count, universe, low), dtype=np.uint8)
    bits[(values >> low) + np.arange(count)] = 1
    rest = bits[len(bits) - count * low :].reshape(count, low)
    for bit in range(low):
        rest[:, bit] = values >> bit & 1
    return np.packbits(bits, bitorder="little")


def read_ascending(code: NDArray[np.uint8], count: int, universe: int) -> Ints:
    """Read what write_ascending wrote. Raises ValueError where it is not `count` values in [0, universe)."""
    low = _low(count, universe)
    num_bits = _bits(count, universe, low)
    if len(code) != (num_bits + 7) // 8:
        raise ValueError(f"{count} values below {universe} take {(num_bits + 7) // 8} bytes, not {len(code)}")
    bits = np.unpackbits(code, count=num_bits, bitorder="little")
    high = np.flatnonzero(bits[: num_bits - count * low])
    if len(high) != count:
        raise ValueError(f"{count} values are announced, the code has {len(high)}")
    values = (high - np.arange(count)) << low
    rest = bits[num_bits - count * low :].reshape(count, low)
    for bit in range(low):
        values |= rest[:, bit].astype(np.int64) << bit
    if count and (values[-1] >= universe or (np.diff(values) < 0).any()):
        raise ValueError(f"the values are not ascending below {universe}")
    return values


def _bits(count: int, universe: int, low: int) -> int:
    return count * low + count + (universe - 1 >> low) if count else 0


def _low(count: int, universe: int) -> int:
    """Bits of each value that are written as they are: what makes the code shortest."""
    return min(range(max(universe, 1).bit_length()), key=lambda low: _bits(count, universe, low))
