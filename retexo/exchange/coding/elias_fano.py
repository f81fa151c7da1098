"""Sorted integers in few bytes: the code of Elias (1974) and Fano (1971).

n values below U take n * low + n + (U - 1 >> low) bits: about 2 + log2(U / n) bits per value
with the best number of low bits, half a bit above the entropy of a random set. Values may
repeat. The code starts with the high bits: value v of rank k sets bit (v >> low) + k. Then
follow the low bits of every value, then padding to a whole byte.

Several lists can follow each other, each with its own number of low bits. Shape letters: S
lists, n values of all lists.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.thread_pool import blocks, in_blocks
from retexo.arrays import ByteArray, IntArray, Mask, counts_to_pointers

VALUES_PER_BLOCK, BITS_PER_BLOCK = 1 << 16, 1 << 17
"""Values encoded, and high bits decoded, per thread at a time. A block fits in a core's cache."""


def encoded_size(count: int, universe: int) -> int:
    """Return the bytes that `count` values in [0, universe) take."""
    return int(num_bits(count, universe, best_num_low_bits(count, universe)) + 7) // 8


def encode_sorted(values: IntArray, universe: int) -> ByteArray:
    """Encode sorted values in [0, universe), int64 [n], as uint8 [encoded_size(n, universe)]."""
    count, low = len(values), best_num_low_bits(len(values), universe)
    num_high = num_bits(count, universe, low) - count * low
    high, (first_byte, shift) = np.zeros(num_high, np.uint8), divmod(num_high, 8)

    def write(block: slice) -> ByteArray:
        """Set the high bits of a block; return its low bits, shifted to their bit position."""
        part = values[block]
        high[(part >> low) + np.arange(block.start, block.stop)] = 1
        planes = np.unpackbits(
            part.view(np.uint8).reshape(-1, 8), axis=1, count=low, bitorder="little"
        )
        return np.packbits(
            np.concatenate((np.zeros(shift, np.uint8), planes.ravel())), bitorder="little"
        )

    lows = in_blocks(write, count, VALUES_PER_BLOCK)
    code = np.zeros(encoded_size(count, universe), np.uint8)
    packed = np.packbits(high, bitorder="little")
    code[: len(packed)] = packed
    for block, part in zip(blocks(count, VALUES_PER_BLOCK), lows, strict=True):
        begin = first_byte + block.start * low // 8
        code[begin : begin + len(part)] |= part  # Blocks overlap in one byte.
    return code


def decode_sorted(code: ByteArray, count: int, universe: int) -> IntArray:
    """Decode what encode_sorted wrote.

    Raises ValueError unless it is `count` sorted values in [0, universe).
    """
    if len(code) != encoded_size(count, universe):
        raise ValueError(
            f"{count} values below {universe} take {encoded_size(count, universe)} bytes, not"
            f" {len(code)}"
        )
    low = best_num_low_bits(count, universe)
    num_high = num_bits(count, universe, low) - count * low
    padded = code if len(code) > 7 else np.append(code, np.zeros(8, np.uint8))
    # A 64-bit word starts at each byte.
    words: NDArray[np.uint64] = np.ndarray(len(padded) - 7, np.uint64, padded, strides=(1,))

    def unpack_high_bits(bits: slice) -> Mask:
        """Return a range of high bits as booleans."""
        part = code[bits.start // 8 : (bits.stop + 7) // 8]
        return np.unpackbits(part, count=bits.stop - bits.start, bitorder="little").view(np.bool_)

    set_bits = in_blocks(
        lambda bits: np.count_nonzero(unpack_high_bits(bits)), num_high, BITS_PER_BLOCK
    )
    first_rank = counts_to_pointers(np.array(set_bits, np.int64))
    if first_rank[-1] != count:
        raise ValueError(f"{count} values are announced, the code has {first_rank[-1]}")
    values = np.empty(count, np.int64)

    def read(bits: slice) -> None:
        """Decode the values whose high bits lie in one block."""
        high = np.flatnonzero(unpack_high_bits(bits))
        first = first_rank[bits.start // BITS_PER_BLOCK]
        rank = np.arange(first, first + len(high))
        bit = num_high + rank * low
        word = np.minimum(bit >> 3, len(words) - 1)
        lows = words[word] >> (bit - 8 * word).astype(np.uint64) & np.uint64((1 << low) - 1)
        high += bits.start - rank
        high <<= low
        values[first : first + len(high)] = high | lows.view(np.int64)

    def is_sorted(block: slice) -> bool:
        """Return whether a block of values is ascending, including its successor."""
        part = values[block.start : block.stop + 1]
        return bool((part[1:] >= part[:-1]).all())

    in_blocks(read, num_high, BITS_PER_BLOCK)
    if count and (values[-1] >= universe or not all(in_blocks(is_sorted, count, VALUES_PER_BLOCK))):
        raise ValueError(f"the values are not ascending below {universe}")
    return values


def num_bits(count: Any, universe: int, low: Any) -> Any:
    """Return the bits of each list before padding. `count` and `low` are int or int64 [S]."""
    return (count * (low + 1) + (universe - 1 >> low)) * (count > 0)


def best_num_low_bits(count: int, universe: int) -> int:
    """Return the number of low bits with the shortest code, at most 57 to fit in a word."""
    return min(
        range(min(58, max(universe, 1).bit_length())),
        key=lambda low: num_bits(count, universe, low),
    )


def encode_lists(values: IntArray, counts: IntArray, low: IntArray, universe: int) -> ByteArray:
    """Encode the values of all lists, int64 [n], sorted within each; counts and low int64 [S]."""
    where = _Layout.build(counts, low, universe)
    bits = np.zeros(len(where.is_low), dtype=np.uint8)
    bits[(values >> where.each_low) + where.offset] = 1
    planes = np.empty((len(values), low.max(initial=0)), dtype=np.uint8)
    for bit in range(planes.shape[1]):
        planes[:, bit] = values >> bit & 1
    bits[where.is_low] = planes[where.is_kept(planes.shape[1])]
    return np.packbits(bits, bitorder="little")


def decode_lists(code: ByteArray, counts: IntArray, low: IntArray, universe: int) -> IntArray:
    """Decode what encode_lists wrote, int64 [n]; does not check that values are sorted.

    Raises ValueError unless every list has as many values as `counts` says.
    """
    where = _Layout.build(counts, low, universe)
    bits = np.unpackbits(code, bitorder="little")
    planes = np.zeros((len(where.offset), low.max(initial=0)), dtype=np.uint8)
    planes[where.is_kept(planes.shape[1])] = bits[where.is_low]
    bits[where.is_low] = 0
    ones = np.flatnonzero(bits)
    lengths = np.diff(np.searchsorted(ones, where.ends), prepend=0)
    if (lengths != counts).any():
        wrong = int((lengths != counts).argmax())
        raise ValueError(f"{counts[wrong]} values are announced, the code has {lengths[wrong]}")
    values = (ones - where.offset) << where.each_low
    for bit in range(planes.shape[1]):
        values |= planes[:, bit].astype(np.int64) << bit
    return values


@dataclass(frozen=True)
class _Layout:
    """Positions of the bits of several lists."""

    ends: IntArray
    """[S] cumulative bits of the lists, with padding."""
    offset: IntArray
    """[n] first bit of the list plus rank in the list; added to the high part of each value."""
    each_low: IntArray
    """[n] number of low bits of each value."""
    is_low: Mask
    """For each bit of the code, whether it is a low bit."""

    @classmethod
    def build(cls, counts: IntArray, low: IntArray, universe: int) -> "_Layout":
        """Compute the layout of lists from their lengths and low bits, int64 [S] each."""
        sizes = num_bits(counts, universe, low)
        ends = np.cumsum((sizes + 7) // 8 * 8)
        padding = -sizes % 8
        lows = counts * low
        regions = np.stack((sizes - lows, lows, padding), axis=1).ravel()
        is_low = np.repeat(np.tile([False, True, False], len(counts)), regions)
        first = ends - padding - sizes - (np.cumsum(counts) - counts)
        offset = np.repeat(first, counts) + np.arange(counts.sum())
        return cls(ends, offset, np.repeat(low, counts), is_low)

    def is_kept(self, num_planes: int) -> Mask:
        """Return which of `num_planes` bits are low bits of each value, [n, num_planes]."""
        return np.arange(num_planes) < self.each_low[:, None]
