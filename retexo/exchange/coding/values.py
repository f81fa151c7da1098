"""The values of rows at the precision that travels: as they are, rounded to bfloat16, or in one byte with a scale."""

from typing import Literal

import torch

from retexo.arrays import IntArray
from retexo.comm.int8 import SCALE_BYTES, to_int8

Precision = Literal["full", "bf16", "int8"]


def code_dtype(dtype: torch.dtype, precision: Precision) -> torch.dtype:
    """The type that values of a type travel in."""
    return {"full": dtype, "bf16": torch.bfloat16, "int8": torch.int8}[precision]


def value_bytes(count: int, dtype: torch.dtype, precision: Precision) -> int:
    """Bytes of so many values of one row, their scale included."""
    return count * code_dtype(dtype, precision).itemsize + (SCALE_BYTES if precision == "int8" else 0)


def quantise(rows: torch.Tensor, precision: Precision) -> tuple[torch.Tensor, torch.Tensor]:
    """The values at their precision, [R, D], and the scale of each row, float32 [R] (none but for "int8").

    Raises ValueError for values that "int8" cannot hold.
    """
    if precision != "int8":
        return rows.to(code_dtype(rows.dtype, precision)), torch.empty(0)
    codes, scales = to_int8(rows)
    if not bool(torch.isfinite(scales).all()):
        raise ValueError('precision "int8" holds finite float32 values only; these rows have others')
    return codes, scales


def dequantise(codes: torch.Tensor, scales: torch.Tensor, counts: IntArray, dtype: torch.dtype) -> torch.Tensor:
    """Codes [sum of counts] as values of dtype; scales [R] as read, empty but for "int8"; counts int64 [R]."""
    values = codes.to(dtype)
    if codes.dtype == torch.int8:
        values *= torch.repeat_interleave(scales.to(dtype), torch.from_numpy(counts))
    return values


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
            raise ValueError(f"a block of {len(self._buffer)} bytes ends before the {end} that its headers announce")
        # A copy: a view of another type has to begin at a multiple of its size.
        taken = self._buffer[self._position : end].clone().view(dtype)
        self._position = end
        return taken

    def finish(self) -> None:
        """Raises ValueError where bytes are left."""
        if self._position != len(self._buffer):
            raise ValueError(f"a block of {len(self._buffer)} bytes has rows in its first {self._position} only")
