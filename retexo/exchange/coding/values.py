"""Values of rows as transmitted: unchanged, bfloat16, or int8/int4 with one scale per row."""

from typing import TypeVar

import numpy as np
import torch

from retexo.arrays import IntArray, repeat_interleave
from retexo.codecs import ROWS
from retexo.comm.int8 import SCALE_BYTES, to_int8

Precision = str
"""A name of retexo.codecs.ROWS, or "full" for the values' own type."""
Count = TypeVar("Count", int, IntArray)

MAX_CODES = {name: codec.largest for name, codec in ROWS.items() if codec.largest}
"""Largest code by precision; a row's scale is its largest magnitude / largest code."""


def code_dtype(dtype: torch.dtype, precision: Precision) -> torch.dtype:
    """Return the dtype of the codes. Two codes of 4 bits are packed into one byte."""
    name = ROWS[precision].dtype if precision in ROWS else ""
    torch_dtype: torch.dtype = getattr(torch, name) if name else dtype
    return torch_dtype


def is_packed(precision: Precision) -> bool:
    """Return whether two codes share a byte."""
    return precision in ROWS and ROWS[precision].bits == 4


def value_bytes(count: Count, dtype: torch.dtype, precision: Precision) -> Count:
    """Return the bytes of `count` values of a row; `count` is int, or int64 [R].

    Packed precisions have two values in a byte; coded ones a scale, even where count is 0.
    """
    scale = SCALE_BYTES if precision in MAX_CODES else 0
    if is_packed(precision):
        return (count + 1) // 2 + scale
    return count * code_dtype(dtype, precision).itemsize + scale


def quantize(
    rows: torch.Tensor, precision: Precision, *, at_random: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert values to codes [R, D]; return codes and scales, float32 [R] or empty.

    at_random: whether integer codes are right on average (see to_int8), not the nearest ones.

    Raises ValueError for values that "int8" or "int4" cannot represent.
    """
    if precision not in MAX_CODES:
        no_scales = rows.new_empty(0, dtype=torch.float32)
        return rows.to(code_dtype(rows.dtype, precision)), no_scales
    codes, scales = to_int8(rows, MAX_CODES[precision], at_random=at_random)
    if not bool(torch.isfinite(scales).all()):
        raise ValueError(
            f'precision "{precision}" holds finite float32 values only; these rows have others'
        )
    return codes, scales


def encode_values(
    codes: torch.Tensor, scales: torch.Tensor, counts: IntArray, precision: Precision
) -> torch.Tensor:
    """Encode scales [R] and codes [sum of counts] as uint8 [B]; low halves are filled first."""
    if is_packed(precision):
        num_halves = 2 * int(((counts + 1) // 2).sum())
        halves = torch.zeros(num_halves, dtype=torch.uint8, device=codes.device)
        halves[_half_byte_positions(counts)] = codes.view(torch.uint8) & 15
        codes = halves[::2] | halves[1::2] << 4
    return torch.cat([as_bytes(scales), as_bytes(codes)])


def decode_values(
    reader: "ByteReader", counts: IntArray, dtype: torch.dtype, precision: Precision
) -> torch.Tensor:
    """Decode what `encode_values` wrote, as values of `dtype` [sum of counts].

    Args:
        counts: int64 [R] number of values of each row.
    """
    scaled = precision in MAX_CODES
    scales = reader.take(len(counts) if scaled else 0, torch.float32)
    if is_packed(precision):
        packed = reader.take(int(((counts + 1) // 2).sum()), torch.uint8)
        halves = (
            torch.stack([packed << 4, packed & 240], dim=1)
            .view(torch.int8)
            .flatten()[_half_byte_positions(counts)]
        )
        codes = halves >> 4  # arithmetic shift, keeps the sign
    else:
        codes = reader.take(int(counts.sum()), code_dtype(dtype, precision))
    values = codes.to(dtype)
    if scaled and len(counts) and (counts == counts[0]).all():
        values.view(len(counts), int(counts[0])).mul_(scales.to(dtype)[:, None])
    elif scaled:
        values *= repeat_interleave(scales.to(dtype), torch.from_numpy(counts))
    return values


def _half_byte_positions(counts: IntArray) -> torch.Tensor | slice:
    """Return each int4 value's position, in half bytes, in a code with rows at whole bytes.

    A full slice means all.
    """
    if not (counts % 2).any():
        return slice(None)
    padding = np.repeat(np.cumsum(counts % 2) - counts % 2, counts)
    return torch.arange(len(padding)) + torch.from_numpy(padding)


def as_bytes(values: torch.Tensor) -> torch.Tensor:
    """Return the same memory as uint8 [B]."""
    return values.reshape(-1).view(torch.uint8)


class ByteReader:
    """Reads arrays from a byte buffer, uint8 [B]. Reading past the end raises ValueError."""

    def __init__(self, buffer: torch.Tensor) -> None:
        """Begin at the first byte; ValueError for another dtype or shape than uint8 [B]."""
        if buffer.dtype != torch.uint8 or buffer.dim() != 1:
            raise ValueError(f"a block is a uint8 vector, not {buffer.dtype} {tuple(buffer.shape)}")
        self._buffer = buffer
        self._position = 0

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Copy the next `count` values of a dtype, [count], and go on; ValueError at the end."""
        end = self._position + count * dtype.itemsize
        if end > len(self._buffer):
            raise ValueError(
                f"a block of {len(self._buffer)} bytes ends before the {end} that its headers"
                " announce"
            )
        # Copy, because a view of another dtype must start at a multiple of its size.
        taken = self._buffer[self._position : end].clone().view(dtype)
        self._position = end
        return taken

    def finish(self) -> None:
        """Raise ValueError if bytes are left."""
        if self._position != len(self._buffer):
            raise ValueError(
                f"a block of {len(self._buffer)} bytes has rows in its first {self._position} only"
            )
