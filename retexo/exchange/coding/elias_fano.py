"""Ascending integers in few bytes: the code of Elias (1974) and Fano (1971).

n values below U take n * low + n + (U - 1 >> low) bits: about 2 + log2(U / n) each with the best low, half a bit above
the least possible for a random set. Equal values may follow each other. First come the high bits, in which the value v
of rank k sets bit (v >> low) + k; then the low bits of every value; then padding to a whole byte.

Several lists can stand one after the other, each with a low of its own. Shape letters: S lists, n values of all lists.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from partitioning.threads import AT_LOCK, blocks, in_blocks, in_threads
from retexo.arrays import ByteArray, IntArray, Mask

AT_ONCE = 1 << 16
"""Values of one list that are written together: they stay in a core's cache."""
BITS = 1 << 18
"""High bits that are read together, of which a third or so are ones."""
T = TypeVar("T")


class Ascending(Protocol):
    """int64 [n] ascending: an array, or what makes some of it at a time."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: slice, /) -> IntArray: ...


def code_size(count: int, universe: int) -> int:
    """Bytes that `count` values in [0, universe) take."""
    return int(num_bits(count, universe, best_low(count, universe)) + 7) // 8


def write_ascending(values: Ascending, universe: int) -> ByteArray:
    """Write values in [0, universe), int64 [n]; uint8 [code_size(n, universe)]."""
    count, low = len(values), best_low(len(values), universe)
    num_high = num_bits(count, universe, low) - count * low
    high, (first_byte, shift) = np.zeros(num_high, np.uint8), divmod(num_high, 8)

    def write(block: slice) -> ByteArray:
        """Set the high bits; the low ones, which begin within a byte as those of every block do."""
        part = values[block]
        high[(part >> low) + np.arange(block.start, block.stop)] = 1
        packed = _packed(part, low)
        shifted = np.zeros(len(packed) + 1, np.uint8)
        shifted[:-1] = packed << shift
        shifted[1:] |= packed >> 8 - shift
        return shifted

    lows = in_blocks(write, count, AT_ONCE)
    code = np.zeros(code_size(count, universe) + 1, np.uint8)
    packed = np.packbits(high, bitorder="little")
    code[: len(packed)] = packed
    for block, part in zip(blocks(count, AT_ONCE), lows, strict=True):
        begin = first_byte + block.start * low // 8
        code[begin : begin + len(part)] |= part  # the last byte of the block before is the first of this one
    return code[:-1]


def _packed(values: IntArray, low: int) -> ByteArray:
    """The `low` lowest bits of each value, one after the other, and zeros up to a whole byte.

    8 values fill `low` bytes; the eights are put together all at once.
    """
    eights, width = -(-len(values) // 8), -(-low // 8)
    rest = np.zeros(8 * eights, np.uint64)
    np.bitwise_and(values.view(np.uint64), np.uint64((1 << low) - 1), out=rest[: len(values)])
    words = np.zeros((width + 1, eights), np.uint64)
    for number, value in enumerate(np.ascontiguousarray(rest.reshape(eights, 8).T)):
        word, bit = divmod(number * low, 64)
        words[word] |= value << np.uint64(bit)
        if bit + low > 64:
            words[word + 1] |= value >> np.uint64(64 - bit)
    filled = np.ascontiguousarray(words.T).view(np.uint8)[:, :low].ravel()
    return filled[: (len(values) * low + 7) // 8]


def read_ascending(code: ByteArray, count: int, universe: int) -> IntArray:
    """Read what write_ascending wrote, int64 [count]. Raises ValueError where it is not that many in [0, universe)."""
    values = np.empty(count, np.int64)
    read_in_blocks(code, count, universe, values.__setitem__)
    return values


def read_in_blocks(code: ByteArray, count: int, universe: int, use: Callable[[slice, IntArray], T]) -> list[T]:
    """As read_ascending, some values at a time: what `use` makes of their places and of them, which
    it may change; in several threads."""
    if len(code) != code_size(count, universe):
        raise ValueError(f"{count} values below {universe} take {code_size(count, universe)} bytes, not {len(code)}")
    low = best_low(count, universe)
    num_high = int(num_bits(count, universe, low)) - count * low
    padded = np.concatenate((code, np.zeros(8, np.uint8)))
    words: NDArray[np.uint64] = np.ndarray(len(code) + 1, np.uint64, padded, strides=(1,))  # that begin at each byte

    def ones(bits: slice) -> Mask:
        """Of some of the high bits."""
        found = np.unpackbits(code[bits.start // 8 :], count=bits.stop - bits.start, bitorder="little")
        return found.view(np.bool_)

    def read(bits: slice, first: int) -> tuple[T, int, int]:
        """Of the values that these bits tell, of which there are some; the least and the largest of them."""
        values = np.flatnonzero(ones(bits))
        place = slice(first, first + len(values))
        rank = np.arange(place.start, place.stop)
        values -= rank
        values += bits.start
        values <<= low
        bit = num_high + rank * low
        lows = words[bit >> 3] >> (bit & 7).astype(np.uint64) & np.uint64((1 << low) - 1)
        values |= lows.view(np.int64)
        if values[-1] >= universe or (values[1:] < values[:-1]).any():
            raise ValueError(out_of_order)
        ends = int(values[0]), int(values[-1])
        return use(place, values), *ends

    out_of_order = f"the values are not ascending below {universe}"
    counts = in_blocks(lambda bits: np.count_nonzero(ones(bits)), num_high, BITS)
    firsts = list(accumulate(counts, initial=0))
    if firsts.pop() != count:
        raise ValueError(f"{count} values are announced, the code has {sum(counts)}")
    some = [(bits, first) for bits, first, number in zip(blocks(num_high, BITS), firsts, counts, strict=True) if number]
    found = in_threads(lambda each: read(*each), some, at_most=AT_LOCK)
    if any(before[2] > after[1] for before, after in pairwise(found)):
        raise ValueError(out_of_order)
    return [each[0] for each in found]


def num_bits(count: Any, universe: int, low: Any) -> Any:
    """Bits of lists before padding; count and low are int or int64 [S]."""
    return (count * (low + 1) + (universe - 1 >> low)) * (count > 0)


def best_low(count: int, universe: int) -> int:
    """Low bits of each value that make the code shortest; a 64-bit word holds them wherever in a byte they begin."""
    return min(range(min(58, max(universe, 1).bit_length())), key=lambda low: num_bits(count, universe, low))


def write_lists(values: IntArray, counts: IntArray, low: IntArray, universe: int) -> ByteArray:
    """Write the values of all lists, int64 [n], ascending in each; counts and low int64 [S]."""
    where = _Layout.of(counts, low, universe)
    bits = np.zeros(len(where.is_low), dtype=np.uint8)
    bits[(values >> where.each_low) + where.offset] = 1
    planes = np.empty((len(values), low.max(initial=0)), dtype=np.uint8)
    for bit in range(planes.shape[1]):
        planes[:, bit] = values >> bit & 1
    bits[where.is_low] = planes[where.is_kept(planes.shape[1])]
    return np.packbits(bits, bitorder="little")


def read_lists(code: ByteArray, counts: IntArray, low: IntArray, universe: int) -> IntArray:
    """Read what write_lists wrote, as many bytes as it returns; int64 [n], not checked to be ascending.

    Raises ValueError where a list does not have as many values as counts says.
    """
    where = _Layout.of(counts, low, universe)
    bits = np.unpackbits(code, bitorder="little")
    planes = np.zeros((len(where.offset), low.max(initial=0)), dtype=np.uint8)
    planes[where.is_kept(planes.shape[1])] = bits[where.is_low]
    bits[where.is_low] = 0
    ones = np.flatnonzero(bits)
    found = np.diff(np.searchsorted(ones, where.ends), prepend=0)
    if (found != counts).any():
        wrong = int((found != counts).argmax())
        raise ValueError(f"{counts[wrong]} values are announced, the code has {found[wrong]}")
    values = (ones - where.offset) << where.each_low
    for bit in range(planes.shape[1]):
        values |= planes[:, bit].astype(np.int64) << bit
    return values


@dataclass(frozen=True)
class _Layout:
    """Where the bits of lists stand."""

    ends: IntArray
    """[S] bits of the lists so far, padding included."""
    offset: IntArray
    """[n] its list's first bit and its rank in the list: what is added to the high part of each value."""
    each_low: IntArray
    """[n] low bits of each value."""
    is_low: Mask
    """Of all bits, whether they are low ones."""

    @classmethod
    def of(cls, counts: IntArray, low: IntArray, universe: int) -> "_Layout":
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
        """Whether a bit is among the low ones of each value, [n, num_planes]."""
        return np.arange(num_planes) < self.each_low[:, None]
