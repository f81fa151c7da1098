"""How rows of features or embeddings are written to bytes, and read back.

Two encodings. "dense" writes every value. "sparse" writes, row by row, only the values that are not zero and where they
stand, in whichever of four ways is the shortest for that row:

    nothing   all columns, or none: the count says it (a row with few zeros is written whole)
    bitmap    one bit a column: about half zeros, as after ReLU
    list      the ascending columns in Elias-Fano code, n * (low + 1) + (D - 1 >> low) bits for n of D columns
              (Elias 1974, Fano 1971): 0.7 bits a column above the least possible on Cora and PubMed
    binary    any of these without values: every value written is exactly 1.0

Which of the first three it is follows from the count alone, so a row needs no tag, and its size depends on itself
alone: sizes add up over any block. "sparse" is never longer than "dense" by more than its header of 1, 2 or 4 bytes.

A block is cut into chunks of rows, which bounds the memory; a sparse chunk is five arrays, one after the other:

    headers   [R] uint8, uint16 or uint32 by width: 2 * count + binary
    lists     the Elias-Fano rows, each padded to a byte
    bitmaps   the bitmap rows, each padded to a byte
    scales    float32, one for each row with values; precision "int8" and "int4" only
    values    row by row, columns ascending; those of "int4" two to a byte, each row padded to a byte

and a dense chunk the last two. Numbers are in the machine's byte order: little endian, wherever torch runs.

Precision "full" is lossless bit for bit, infinities and NaN included, but for -0.0, which "sparse" takes for a zero
(every masked negative value is one) and may read back as 0.0. On request "bf16" rounds values to two bytes, "int8"
to one and "int4" to half of one: value / scale rounded to nearest, scale = largest magnitude in the row / 127 or 7, so
that the error is at most scale / 2. Neither takes what is not finite.

Shape letters: R rows, D width, n count of columns written in a row.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.sparse import csr_array

from retexo.arrays import IntArray
from retexo.exchange.coding import sparse
from retexo.exchange.coding.values import (
    ByteReader,
    Precision,
    as_bytes,
    decode_values,
    encode_values,
    quantize,
    value_bytes,
)

Encoding = Literal["dense", "sparse"]
Rows = torch.Tensor | csr_array

_CHUNK_VALUES = 1 << 22
_MAX_WIDTH = 1 << 30


@dataclass(frozen=True)
class RowFormat:
    """What both ends of a transfer have to agree on, besides the shape and the type of the rows."""

    encoding: Encoding = "dense"
    precision: Precision = "full"


def row_sizes(rows: Rows, row_format: RowFormat) -> IntArray:
    """Return the bytes that each row takes, int64 [R]; they add up to the length of what `encode` returns.

    rows: float32 or float64 [R, D], tensor or CSR. Of "dense" the shape alone counts. Raises ValueError as `encode`
    does, but for what only the values tell of dense rows.
    """
    sizes = [np.zeros(0, dtype=np.int64)]
    for chunk in _chunks(rows):
        if row_format.encoding == "dense":
            sizes.append(
                np.full(len(chunk), value_bytes(chunk.shape[1], chunk.dtype, row_format.precision))
            )
        else:
            sizes.append(sparse.row_sizes(chunk, row_format.precision))
    return np.concatenate(sizes)


def encode(rows: Rows, row_format: RowFormat) -> torch.Tensor:
    """Return rows as bytes, uint8 [sum of row_sizes].

    rows: float32 or float64 [R, D], tensor or CSR (taken a few million cells at a time as a dense block).
    Raises ValueError for any other type or shape, and for values that "int8" or "int4" cannot hold.
    """
    write = _encode_dense if row_format.encoding == "dense" else sparse.encode
    if isinstance(rows, torch.Tensor) and row_format == RowFormat():
        _check(rows)
        return as_bytes(rows.detach().contiguous())
    parts = [write(chunk, row_format.precision) for chunk in _chunks(rows)]
    return torch.cat([torch.empty(0, dtype=torch.uint8), *parts])


def decode(
    buffer: torch.Tensor,
    shape: tuple[int, int],
    dtype: torch.dtype,
    row_format: RowFormat,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the rows that `encode` wrote, dtype [R, D]; shape is (R, D) and dtype that of the rows encoded.

    buffer: uint8 [B], not trusted; without `out`, where the rows are to be, its memory may become theirs. Raises
    ValueError where it is not exactly one block of such rows.
    """
    as_they_are = (
        row_format == RowFormat() and buffer.dtype == torch.uint8 and buffer.is_contiguous()
    )
    if as_they_are and buffer.shape == (math.prod(shape) * dtype.itemsize,):
        as_rows = (
            (buffer if buffer.data_ptr() % dtype.itemsize == 0 else buffer.clone())
            .view(dtype)
            .view(shape)
        )
        return as_rows if out is None else out.copy_(as_rows)
    rows, start = torch.empty(shape, dtype=dtype) if out is None else out, 0
    for chunk in _decode_chunks(buffer, shape, dtype, row_format):
        rows[start : start + len(chunk)] = chunk
        start += len(chunk)
    return rows


def _encode_dense(rows: torch.Tensor, precision: Precision) -> torch.Tensor:
    """A chunk of rows [R, D] as uint8 [B]: the scales of "int8" and "int4", then every value."""
    codes, scales = quantize(rows, precision)
    return encode_values(codes.flatten(), scales, np.full(len(rows), rows.shape[1]), precision)


def _decode_dense(
    reader: ByteReader, shape: tuple[int, int], dtype: torch.dtype, precision: Precision
) -> torch.Tensor:
    """What `_write_dense` wrote, dtype [R, D]."""
    return decode_values(reader, np.full(shape[0], shape[1]), dtype, precision).reshape(shape)


def _check(rows: Rows) -> None:
    if len(rows.shape) != 2 or rows.shape[1] >= _MAX_WIDTH:
        raise ValueError(
            f"rows must have two dimensions and fewer than {_MAX_WIDTH} columns, not {tuple(rows.shape)}"
        )
    if isinstance(rows, torch.Tensor) and rows.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"rows must be float32 or float64, not {rows.dtype}")


def _chunks(rows: Rows) -> Iterator[torch.Tensor]:
    _check(rows)
    step = _chunk_rows(rows.shape[1])
    for start in range(0, rows.shape[0], step):
        part = rows[start : start + step]
        chunk = part if isinstance(part, torch.Tensor) else torch.from_numpy(part.toarray())
        _check(chunk)
        yield chunk.detach().contiguous()


def _chunk_rows(width: int) -> int:
    """Return the rows of a chunk: part of the format, for sender and receiver cut a block alike."""
    return max(1, _CHUNK_VALUES // max(1, width))


def _decode_chunks(
    buffer: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype, row_format: RowFormat
) -> Iterator[torch.Tensor]:
    reader = ByteReader(buffer)
    read = _decode_dense if row_format.encoding == "dense" else sparse.decode
    num_rows, width = shape
    step = _chunk_rows(width)
    for start in range(0, num_rows, step):
        yield read(reader, (min(step, num_rows - start), width), dtype, row_format.precision)
    reader.finish()
