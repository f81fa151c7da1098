"""Encoding of feature and embedding rows as bytes, and decoding.

Two encodings. "dense" writes every value. "sparse" writes, for each row, its nonzero values and
their columns, in whichever of four forms is the shortest:

    nothing   all columns, or none: the count is enough (a row with few zeros is written whole)
    bitmap    one bit per column: for about half zeros, as after ReLU
    list      the sorted columns in Elias-Fano code, n * (low + 1) + (D - 1 >> low) bits for n of
        D columns: 0.7 bits per column above the entropy on Cora and PubMed
    binary    any of these without values: every value written is exactly 1.0

The count alone decides among the first three, so a row needs no tag. The size of a row does not
depend on other rows, so sizes add up over any block. "sparse" exceeds "dense" by at most its
header of 1, 2 or 4 bytes.

A block is split into chunks of rows, which bounds the memory. A sparse chunk is five arrays:

    headers   [R] uint8, uint16 or uint32 by width: 2 * count + binary
    lists     the Elias-Fano rows, each padded to a byte
    bitmaps   the bitmap rows, each padded to a byte
    scales    float32, one for each row with values; precision "int8" and "int4" only
    values    row by row, columns ascending; "int4" packs two per byte, each row padded to a byte

A dense chunk is the last two arrays. Numbers are in the machine's byte order (little endian
wherever torch runs).

Precision "full" is lossless, including infinities and NaN, except for -0.0, which "sparse"
treats as zero and may decode as 0.0. "bf16" rounds values to two bytes, "int8" to one and "int4"
to half a byte: value / scale rounded to nearest, with scale = largest magnitude in the row / 127
or 7, so the error is at most scale / 2. "int8" and "int4" require finite values.

Shape letters: R rows, D width, n number of columns written in a row.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
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
    """What sender and receiver have to agree on besides the shape and dtype of the rows."""

    encoding: Encoding = "dense"
    precision: Precision = "full"


def row_sizes(rows: Rows, row_format: RowFormat) -> IntArray:
    """Return the encoded bytes of each row, int64 [R]; they sum to the length of the code.

    Args:
        rows: float32 or float64 [R, D], tensor or CSR. For "dense" only the shape matters.
    Raises:
        ValueError: as `encode`, except for errors in the values of dense rows.
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


def encode(rows: Rows, row_format: RowFormat, *, at_random: bool = False) -> torch.Tensor:
    """Encode rows as uint8 [sum of row_sizes], where the rows are ("sparse": on the host).

    Args:
        rows: float32 or float64 [R, D], tensor or CSR (converted to dense a few million values
            at a time).
        at_random: "dense" only, see `quantize`.
    Raises:
        ValueError: for other types or shapes, and for values that "int8" or "int4" cannot
            represent.
    """
    is_dense = row_format.encoding == "dense"
    write = partial(_encode_dense, at_random=at_random) if is_dense else sparse.encode
    if isinstance(rows, torch.Tensor) and row_format == RowFormat():
        _check(rows)
        return as_bytes(rows.detach().contiguous())
    parts = [write(chunk, row_format.precision) for chunk in _chunks(rows)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


def decode(
    buffer: torch.Tensor,
    shape: tuple[int, int],
    dtype: torch.dtype,
    row_format: RowFormat,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decode the rows that `encode` wrote, dtype [R, D].

    Args:
        buffer: uint8 [B], untrusted, on the device of the result ("sparse": on the host). Without
            `out` the result may share its memory.
        shape: (R, D)
        dtype: of the encoded rows.
        out: tensor for the result.
    Raises:
        ValueError: unless the buffer is exactly one block of such rows.
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
    rows = torch.empty(shape, dtype=dtype, device=buffer.device) if out is None else out
    start = 0
    for chunk in _decode_chunks(buffer, shape, dtype, row_format):
        rows[start : start + len(chunk)] = chunk
        start += len(chunk)
    return rows


def _encode_dense(rows: torch.Tensor, precision: Precision, *, at_random: bool) -> torch.Tensor:
    """Encode a chunk of rows [R, D] as uint8 [B]: scales (int8 and int4), then values."""
    codes, scales = quantize(rows, precision, at_random=at_random)
    return encode_values(codes.flatten(), scales, np.full(len(rows), rows.shape[1]), precision)


def _decode_dense(
    reader: ByteReader, shape: tuple[int, int], dtype: torch.dtype, precision: Precision
) -> torch.Tensor:
    """Decode what `_encode_dense` wrote, dtype [R, D]."""
    return decode_values(reader, np.full(shape[0], shape[1]), dtype, precision).reshape(shape)


def _check(rows: Rows) -> None:
    """Raise ValueError unless rows are [R, D], D below _MAX_WIDTH, and a tensor is of floats."""
    if len(rows.shape) != 2 or rows.shape[1] >= _MAX_WIDTH:
        raise ValueError(
            f"rows must have two dimensions and fewer than {_MAX_WIDTH} columns, not"
            f" {tuple(rows.shape)}"
        )
    if isinstance(rows, torch.Tensor) and rows.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"rows must be float32 or float64, not {rows.dtype}")


def _chunks(rows: Rows) -> Iterator[torch.Tensor]:
    """Yield a tensor or CSR matrix as dense contiguous tensors of some rows, without gradient."""
    _check(rows)
    step = _chunk_rows(rows.shape[1])
    for start in range(0, rows.shape[0], step):
        part = rows[start : start + step]
        chunk = part if isinstance(part, torch.Tensor) else torch.from_numpy(part.toarray())
        _check(chunk)
        yield chunk.detach().contiguous()


def _chunk_rows(width: int) -> int:
    """Return the rows per chunk. Part of the format: sender and receiver split a block alike."""
    return max(1, _CHUNK_VALUES // max(1, width))


def _decode_chunks(
    buffer: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype, row_format: RowFormat
) -> Iterator[torch.Tensor]:
    """Yield the decoded chunks of a block.

    Raises ValueError for missing or left-over bytes.
    """
    reader = ByteReader(buffer)
    read = _decode_dense if row_format.encoding == "dense" else sparse.decode
    num_rows, width = shape
    step = _chunk_rows(width)
    for start in range(0, num_rows, step):
        yield read(reader, (min(step, num_rows - start), width), dtype, row_format.precision)
    reader.finish()
