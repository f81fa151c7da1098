"""The values of rows at the precision that travels: as they are, rounded to bfloat16, or in few bits with a scale."""

from typing import Literal, TypeVar

import numpy as np
import torch

from retexo.arrays import IntArray, repeat_interleave
from retexo.comm.int8 import SCALE_BYTES, to_int8

Precision = Literal["full", "bf16", "int8", "int4"]
Count = TypeVar("Count", int, IntArray)

MAX_CODES = {"int8": 127, "int4": 7}
"""The largest code of the precisions that have a scale for each row, float32: largest magnitude / largest code."""


def code_dtype(dtype: torch.dtype, precision: Precision) -> torch.dtype:
    """The type of codes for values of a type; two of "int4" travel in one byte."""
    return (
        torch.int8 if precision in MAX_CODES else torch.bfloat16 if precision == "bf16" else dtype
    )


def value_bytes(count: Count, dtype: torch.dtype, precision: Precision) -> Count:
    """Bytes of so many values of one row, their scale included; count: int, or int64 [R]."""
    if precision == "int4":
        return (count + 1) // 2 + SCALE_BYTES
    return count * code_dtype(dtype, precision).itemsize + (
        SCALE_BYTES if precision == "int8" else 0
    )


def quantize(rows: torch.Tensor, precision: Precision) -> tuple[torch.Tensor, torch.Tensor]:
    """The values at their precision, [R, D], and the scale of each row, float32 [R] (none but for int8 and int4).

    Raises ValueError for values that these cannot hold.
    """
    if precision not in MAX_CODES:
        return rows.to(code_dtype(rows.dtype, precision)), torch.empty(0)
    codes, scales = to_int8(rows, MAX_CODES[precision])
    if not bool(torch.isfinite(scales).all()):
        raise ValueError(
            f'precision "{precision}" holds finite float32 values only; these rows have others'
        )
    return codes, scales


def encode_values(
    codes: torch.Tensor, scales: torch.Tensor, counts: IntArray, precision: Precision
) -> torch.Tensor:
    """uint8 [B]: scales [R], then codes [sum of counts], row by row; of "int4" the first in a byte's low half."""
    if precision == "int4":
        halves = torch.zeros(2 * int(((counts + 1) // 2).sum()), dtype=torch.uint8)
        halves[_half_byte_positions(counts)] = codes.view(torch.uint8) & 15
        codes = halves[::2] | halves[1::2] << 4
    return torch.cat([as_bytes(scales), as_bytes(codes)])


def decode_values(
    reader: "ByteReader", counts: IntArray, dtype: torch.dtype, precision: Precision
) -> torch.Tensor:
    """What `write_values` wrote as values of dtype, [sum of counts]; counts int64 [R]."""
    scaled = precision in MAX_CODES
    scales = reader.take(len(counts) if scaled else 0, torch.float32)
    if precision == "int4":
        packed = reader.take(int(((counts + 1) // 2).sum()), torch.uint8)
        halves = (
            torch.stack([packed << 4, packed & 240], dim=1)
            .view(torch.int8)
            .flatten()[_half_byte_positions(counts)]
        )
        codes = halves >> 4  # the sign goes along
    else:
        codes = reader.take(int(counts.sum()), code_dtype(dtype, precision))
    values = codes.to(dtype)
    if scaled and len(counts) and (counts == counts[0]).all():
        values.view(len(counts), int(counts[0])).mul_(scales.to(dtype)[:, None])
    elif scaled:
        values *= repeat_interleave(scales.to(dtype), torch.from_numpy(counts))
    return values


def _half_byte_positions(counts: IntArray) -> torch.Tensor | slice:
    """Where each of so many values of each row stands, in halves of bytes: a row begins with a byte; int64, or all."""
    if not (counts % 2).any():
        return slice(None)
    padding = np.repeat(np.cumsum(counts % 2) - counts % 2, counts)
    return torch.arange(len(padding)) + torch.from_numpy(padding)


def as_bytes(values: torch.Tensor) -> torch.Tensor:
    """The same memory as uint8 [B]."""
    return values.reshape(-1).view(torch.uint8)


class ByteReader:
    """A position in a buffer of bytes, uint8 [B]; reads past the end raise ValueError."""

    def __init__(self, buffer: torch.Tensor) -> None:
        if buffer.dtype != torch.uint8 or buffer.dim() != 1:
            raise ValueError(f"a block is a uint8 vector, not {buffer.dtype} {tuple(buffer.shape)}")
        self._buffer = buffer
        self._position = 0

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """The next `count` values of a type, [count]."""
        end = self._position + count * dtype.itemsize
        if end > len(self._buffer):
            raise ValueError(
                f"a block of {len(self._buffer)} bytes ends before the {end} that its headers announce"
            )
        # A copy: a view of another type has to begin at a multiple of its size.
        taken = self._buffer[self._position : end].clone().view(dtype)
        self._position = end
        return taken

    def finish(self) -> None:
        """Raises ValueError where bytes are left."""
        if self._position != len(self._buffer):
            raise ValueError(
                f"a block of {len(self._buffer)} bytes has rows in its first {self._position} only"
            )
