"""Encoding of edge weights: a table of distinct values plus an index per edge, or plain float32.

    2 bytes   D: number of distinct values, at most 256; 0: plain values follow, 4 bytes each
    4 D       the distinct values, float32
    n b / 8   the index of each weight, packed, b = number of bits of D - 1

n weights. With one distinct value the indices take no bits.
"""

import numpy as np

from retexo.arrays import ByteArray, WeightArray

MAX_VALUES = 256


def encode_weights(weights: WeightArray) -> ByteArray:
    """Encode float32 [n] as uint8 [B], in the shorter form."""
    values, index = np.unique(weights, return_inverse=True)
    bits = index[:, None] >> np.arange(_index_bits(len(values))) & 1
    table = np.concatenate((values.view(np.uint8), np.packbits(bits.astype(np.uint8))))
    if len(values) > MAX_VALUES or len(table) >= weights.nbytes:
        values, table = values[:0], weights.view(np.uint8)
    return np.concatenate((np.array([len(values)], np.uint16).view(np.uint8), table))


def max_encoded_size(count: int) -> int:
    """Return the maximum bytes that `count` weights take."""
    return 2 + 4 * count


def decode_weights(code: ByteArray, count: int) -> WeightArray:
    """Decode float32 [count]. Raises ValueError for an invalid code."""
    if len(code) < 2:
        raise ValueError(f"{len(code)} bytes for {count} weights")
    size = int(code[:2].view(np.uint16)[0])
    bits = _index_bits(size)
    if len(code) != 2 + 4 * (size or count) + (count * bits + 7) // 8:
        raise ValueError(f"{len(code)} bytes for {count} weights of {size} values")
    values: WeightArray = code[2 : 2 + 4 * (size or count)].copy().view(np.float32)
    if not size:
        return values
    planes = np.unpackbits(code[2 + 4 * size :], count=count * bits).reshape(count, bits)
    index = (planes.astype(np.int64) << np.arange(bits)).sum(axis=1)
    weights: WeightArray = values[np.minimum(index, size - 1)]
    return weights


def _index_bits(size: int) -> int:
    """Return the bits of an index into a table of `size` values."""
    return max(0, size - 1).bit_length()
