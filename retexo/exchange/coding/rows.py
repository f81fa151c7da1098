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
    scales    float32, one for each row with values; precision "int8" only
    values    row by row, columns ascending

and a dense chunk the last two. Numbers are in the machine's byte order: little endian, wherever torch runs.

Precision "full" is lossless bit for bit, infinities and NaN included, but for -0.0, which "sparse" takes for a zero
(every masked negative value is one) and may read back as 0.0. On request "bf16" rounds values to two bytes, and "int8"
to one: value / scale rounded to nearest, scale = largest magnitude in the row / 127, so that the error is at most
scale / 2. "int8" refuses what is not finite.

Shape letters: R rows, D width, n count of columns written in a row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

Encoding = Literal["dense", "sparse"]
Precision = Literal["full", "bf16", "int8"]
Rows = torch.Tensor | csr_array
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_CHUNK_CELLS = 1 << 22
_SCALE_BYTES = 4
_MAX_WIDTH = 1 << 30


@dataclass(frozen=True)
class RowFormat:
    """What both ends of a transfer have to agree on, besides the shape and the type of the rows."""

    encoding: Encoding = "dense"
    precision: Precision = "full"


@dataclass(frozen=True)
class _Chunk:
    """Rows taken apart for writing: codes [R, D] are the values at their precision, scales float32 [R].

    Of the sparse encoding: present bool [R, D] marks the cells written, counts int64 [R] counts them, and binary
    bool [R] marks the rows in which all of them are 1.0.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    present: torch.Tensor
    counts: Ints
    binary: Mask


@dataclass(frozen=True)
class _Index:
    """How the columns of each row are written: by a list, by a bitmap or, in neither, by the count alone; all [R].

    low: bits of each column that a list keeps apart from the rest. nbytes: bytes of the list or bitmap.
    """

    is_list: Mask
    is_bitmap: Mask
    low: Ints
    nbytes: Ints


# ---------------------------------------------------------------------------------------------------------- interface


def row_sizes(rows: Rows, row_format: RowFormat) -> Ints:
    """Return the bytes that each row takes, int64 [R]; they add up to the length of what `encode` returns.

    rows: float32 or float64 [R, D], tensor or CSR. Of "dense" the shape alone counts. Raises ValueError as `encode`
    does, but for what only the values tell of dense rows.
    """
    sizes = [np.zeros(0, dtype=np.int64)]
    for chunk in _chunks(rows):
        if row_format.encoding == "dense":
            sizes.append(np.full(len(chunk), _value_bytes(chunk.shape[1], chunk.dtype, row_format.precision)))
        else:
            sizes.append(_sparse_sizes(_take_apart(chunk, row_format.precision), row_format.precision))
    return np.concatenate(sizes)


def dense_size(width: int, dtype: torch.dtype, precision: Precision) -> int:
    """Return the bytes of every row of so many values in the "dense" encoding."""
    return _value_bytes(width, dtype, precision)


def encode(rows: Rows, row_format: RowFormat) -> torch.Tensor:
    """Return rows as bytes, uint8 [sum of row_sizes].

    rows: float32 or float64 [R, D], tensor or CSR (taken a few million cells at a time as a dense block).
    Raises ValueError for any other type or shape, and for values that "int8" cannot hold.
    """
    write = _write_dense if row_format.encoding == "dense" else _write_sparse
    parts = [write(chunk, row_format.precision) for chunk in _chunks(rows)]
    return torch.cat([torch.empty(0, dtype=torch.uint8), *parts])


def decode(buffer: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype, row_format: RowFormat) -> torch.Tensor:
    """Return the rows that `encode` wrote, dtype [R, D]; shape is (R, D) and dtype that of the rows encoded.

    buffer: uint8 [B], not trusted. Raises ValueError where it is not exactly one block of such rows.
    """
    rows = torch.empty(shape, dtype=dtype)
    decode_into(rows, buffer, row_format)
    return rows


def decode_into(rows: torch.Tensor, buffer: torch.Tensor, row_format: RowFormat) -> None:
    """The same, into a tensor that is there, [R, D]."""
    start = 0
    for chunk in _read_chunks(buffer, (rows.shape[0], rows.shape[1]), rows.dtype, row_format):
        rows[start : start + len(chunk)] = chunk
        start += len(chunk)


def decode_csr(buffer: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype, row_format: RowFormat) -> csr_array:
    """Return what `decode` returns as CSR, never holding all of it dense; zeros are left out."""
    empty = csr_array((0, shape[1]), dtype=torch.empty(0, dtype=dtype).numpy().dtype)
    chunks = _read_chunks(buffer, shape, dtype, row_format)
    return csr_array(vstack([empty, *(csr_array(chunk.numpy()) for chunk in chunks)], format="csr"))


# ------------------------------------------------------------------------------------------------------ both encodings


def _chunks(rows: Rows) -> Iterator[torch.Tensor]:
    if len(rows.shape) != 2 or rows.shape[1] >= _MAX_WIDTH:
        raise ValueError(f"rows must have two dimensions and fewer than {_MAX_WIDTH} columns, not {tuple(rows.shape)}")
    step = _chunk_rows(rows.shape[1])
    for start in range(0, rows.shape[0], step):
        part = rows[start : start + step]
        chunk = part if isinstance(part, torch.Tensor) else torch.from_numpy(part.toarray())
        if chunk.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"rows must be float32 or float64, not {chunk.dtype}")
        yield chunk.detach().contiguous()


def _chunk_rows(width: int) -> int:
    """Return the rows of a chunk: part of the format, for sender and receiver cut a block alike."""
    return max(1, _CHUNK_CELLS // max(1, width))


def _code_dtype(dtype: torch.dtype, precision: Precision) -> torch.dtype:
    return {"full": dtype, "bf16": torch.bfloat16, "int8": torch.int8}[precision]


def _value_bytes(count: int, dtype: torch.dtype, precision: Precision) -> int:
    """Return the bytes of so many values of one row, their scale included."""
    return count * _code_dtype(dtype, precision).itemsize + (_SCALE_BYTES if precision == "int8" else 0)


def _quantise(rows: torch.Tensor, precision: Precision) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values at their precision, [R, D], and the scale of each row, float32 [R] (none but for "int8")."""
    if precision != "int8":
        return rows.to(_code_dtype(rows.dtype, precision)), torch.empty(0)
    # The zero column lets rows without columns have a largest value.
    peak = torch.cat([rows.abs(), rows.new_zeros(len(rows), 1)], dim=1).amax(dim=1)
    scales = (peak / 127).to(torch.float32)
    if not bool(torch.isfinite(scales).all()):
        raise ValueError('precision "int8" holds finite float32 values only; these rows have others')
    # A scale can round to zero where the values are denormal: they become zeros, within the error promised.
    divisor = torch.where(scales > 0, scales, 1.0).to(rows.dtype)
    return (rows / divisor[:, None]).round().clamp(-127, 127).to(torch.int8), scales


def _dequantise(codes: torch.Tensor, scales: torch.Tensor, counts: Ints, dtype: torch.dtype) -> torch.Tensor:
    """Return codes [sum of counts] as values; scales [R] as read, empty but for "int8"."""
    values = codes.to(dtype)
    if codes.dtype == torch.int8:
        values *= torch.repeat_interleave(scales.to(dtype), torch.from_numpy(counts))
    return values


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(-1).view(torch.uint8)


class _Reader:
    """A place in a buffer of bytes, uint8 [B]; reads past the end raise ValueError."""

    def __init__(self, buffer: torch.Tensor) -> None:
        if buffer.dtype != torch.uint8 or buffer.dim() != 1:
            raise ValueError(f"a block is a uint8 vector, not {buffer.dtype} {tuple(buffer.shape)}")
        self._buffer = buffer
        self._place = 0

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        end = self._place + count * dtype.itemsize
        if end > len(self._buffer):
            raise ValueError(f"a block of {len(self._buffer)} bytes ends before the {end} that its headers announce")
        # A copy: a view of another type has to begin at a multiple of its size.
        taken = self._buffer[self._place : end].clone().view(dtype)
        self._place = end
        return taken

    def finish(self) -> None:
        if self._place != len(self._buffer):
            raise ValueError(f"a block of {len(self._buffer)} bytes has rows in its first {self._place} only")


def _read_chunks(
    buffer: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype, row_format: RowFormat
) -> Iterator[torch.Tensor]:
    reader = _Reader(buffer)
    read = _read_dense if row_format.encoding == "dense" else _read_sparse
    num_rows, width = shape
    step = _chunk_rows(width)
    for start in range(0, num_rows, step):
        yield read(reader, (min(step, num_rows - start), width), dtype, row_format.precision)
    reader.finish()


# --------------------------------------------------------------------------------------------------------------- dense


def _write_dense(rows: torch.Tensor, precision: Precision) -> torch.Tensor:
    codes, scales = _quantise(rows, precision)
    return torch.cat([_bytes(scales), _bytes(codes)])


def _read_dense(reader: _Reader, shape: tuple[int, int], dtype: torch.dtype, precision: Precision) -> torch.Tensor:
    num_rows, width = shape
    scales = reader.take(num_rows if precision == "int8" else 0, torch.float32)
    codes = reader.take(num_rows * width, _code_dtype(dtype, precision))
    return _dequantise(codes, scales, np.full(num_rows, width), dtype).reshape(shape)


# -------------------------------------------------------------------------------------------------------------- sparse


def _header_dtype(width: int) -> torch.dtype:
    return torch.uint8 if width < 1 << 7 else torch.uint16 if width < 1 << 15 else torch.uint32


def _take_apart(rows: torch.Tensor, precision: Precision) -> _Chunk:
    """Decide what the sparse encoding writes of rows [R, D]."""
    codes, scales = _quantise(rows, precision)
    width = rows.shape[1]
    present = codes != 0
    counts = np.count_nonzero(present.numpy(), axis=1)
    ones = np.count_nonzero(((rows == 1) & present).numpy(), axis=1)
    binary = (counts > 0) & (ones == counts)
    skipped = (width - counts) * codes.dtype.itemsize
    whole = (counts > 0) & ~binary & (_index(counts, width).nbytes >= skipped)
    present[torch.from_numpy(whole)] = True
    return _Chunk(codes, scales, present, np.where(whole, width, counts), binary)


def _index(counts: Ints, width: int) -> _Index:
    """Return the shortest way to write which columns a row has, from its count, int64 [R], alone."""
    bitmap_bytes = (width + 7) // 8
    nbytes = np.full(len(counts), bitmap_bytes)
    low = np.zeros(len(counts), dtype=np.int64)
    for bits in range(width.bit_length()):
        list_bytes = (counts * (bits + 1) + ((width - 1) >> bits) + 7) // 8
        better = list_bytes < nbytes
        nbytes[better], low[better] = list_bytes[better], bits
    said = (counts == 0) | (counts == width)
    nbytes[said] = 0
    is_bitmap = ~said & (nbytes == bitmap_bytes)
    return _Index(~said & ~is_bitmap, is_bitmap, low, nbytes)


def _sparse_sizes(chunk: _Chunk, precision: Precision) -> Ints:
    width = chunk.codes.shape[1]
    valued = (chunk.counts > 0) & ~chunk.binary
    scale_bytes = _value_bytes(0, torch.float32, precision)
    values = np.where(valued, chunk.counts * chunk.codes.dtype.itemsize + scale_bytes, 0)
    return _header_dtype(width).itemsize + _index(chunk.counts, width).nbytes + values


def _write_sparse(rows: torch.Tensor, precision: Precision) -> torch.Tensor:
    chunk = _take_apart(rows, precision)
    width = rows.shape[1]
    index = _index(chunk.counts, width)
    headers = torch.from_numpy(2 * chunk.counts + chunk.binary).to(_header_dtype(width))
    columns = np.nonzero(chunk.present.numpy()[index.is_list])[1]
    lists = _write_lists(columns, chunk.counts, index, width)
    bitmaps = np.packbits(chunk.present.numpy()[index.is_bitmap], axis=1, bitorder="little")
    valued = torch.from_numpy((chunk.counts > 0) & ~chunk.binary)
    scales = chunk.scales[valued] if precision == "int8" else chunk.scales
    values = chunk.codes.masked_select(chunk.present & valued[:, None])
    arrays = (headers, torch.from_numpy(lists), torch.from_numpy(bitmaps), scales, values)
    return torch.cat([_bytes(array) for array in arrays])


def _read_sparse(reader: _Reader, shape: tuple[int, int], dtype: torch.dtype, precision: Precision) -> torch.Tensor:
    num_rows, width = shape
    headers = reader.take(num_rows, _header_dtype(width)).to(torch.int64).numpy()
    counts, binary = headers >> 1, (headers & 1).astype(np.bool_)
    if (counts > width).any():
        raise ValueError(f"a header announces {counts.max()} columns in rows of {width}")
    present = _read_present(reader, counts, width)
    valued = (counts > 0) & ~binary
    scales = reader.take(int(valued.sum()) if precision == "int8" else 0, torch.float32)
    codes = reader.take(int(counts[valued].sum()), _code_dtype(dtype, precision))
    rows = torch.zeros(shape, dtype=dtype)
    rows.masked_scatter_(present & torch.from_numpy(valued)[:, None], _dequantise(codes, scales, counts[valued], dtype))
    return rows.masked_fill_(present & torch.from_numpy(binary)[:, None], 1)


def _read_present(reader: _Reader, counts: Ints, width: int) -> torch.Tensor:
    """Return which cells were written, bool [R, D], from counts int64 [R] and the lists and bitmaps that follow."""
    index = _index(counts, width)
    present = np.zeros((len(counts), width), dtype=np.bool_)
    present[counts == width] = True
    lists = reader.take(int(index.nbytes[index.is_list].sum()), torch.uint8).numpy()
    row, columns = _read_lists(lists, counts, index, width)
    present[row, columns] = True
    num_bitmaps, bitmap_bytes = int(index.is_bitmap.sum()), (width + 7) // 8
    packed = reader.take(num_bitmaps * bitmap_bytes, torch.uint8).numpy().reshape(num_bitmaps, bitmap_bytes)
    bits = np.unpackbits(packed, axis=1, bitorder="little").astype(np.bool_)
    if bits[:, width:].any() or (bits.sum(axis=1) != counts[index.is_bitmap]).any():
        raise ValueError("a bitmap does not have as many columns as its header announces")
    present[index.is_bitmap] = bits[:, :width]
    return torch.from_numpy(present)


# --------------------------------------------------------------------------------------------------- Elias-Fano lists


@dataclass(frozen=True)
class _ListBits:
    """Where the bits of the column lists stand, all int64: start [lists + 1], the others [columns].

    A list of n columns is n + (D - 1 >> low) high bits, in which the column c of rank k sets bit (c >> low) + k, then
    n * low low bits, in which it has the bits k * low and on. start: first bit of each list, and the end of the last.
    row: the list, by its row, of each column. base: first bit of its list. rest: first of its low bits.
    low: how many these are.
    """

    start: Ints
    row: Ints
    rank: Ints
    base: Ints
    rest: Ints
    low: Ints


def _list_bits(counts: Ints, index: _Index, width: int) -> _ListBits:
    rows = np.flatnonzero(index.is_list)
    count, low = counts[rows], index.low[rows]
    start = 8 * np.concatenate([[0], np.cumsum(index.nbytes[rows])])
    rank = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    each_low, base = np.repeat(low, count), np.repeat(start[:-1], count)
    rest = base + np.repeat(count + ((width - 1) >> low), count) + rank * each_low
    return _ListBits(start, np.repeat(rows, count), rank, base, rest, each_low)


def _write_lists(columns: Ints, counts: Ints, index: _Index, width: int) -> NDArray[np.uint8]:
    """Return the columns of all list rows, ascending in each, int64 [sum of their counts], as bytes."""
    where = _list_bits(counts, index, width)
    bits = np.zeros(where.start[-1], dtype=np.uint8)
    bits[where.base + (columns >> where.low) + where.rank] = 1
    for bit in range(int(where.low.max(initial=0))):
        has = where.low > bit
        bits[where.rest[has] + bit] = columns[has] >> bit & 1
    return np.packbits(bits, bitorder="little")


def _read_lists(lists: NDArray[np.uint8], counts: Ints, index: _Index, width: int) -> tuple[Ints, Ints]:
    """Return row and column of every cell that the lists name; raises ValueError for what no list says."""
    where = _list_bits(counts, index, width)
    bits = np.unpackbits(lists, bitorder="little")
    low_part = np.zeros(len(where.row), dtype=np.int64)
    for bit in range(int(where.low.max(initial=0))):
        has = where.low > bit
        low_part[has] |= bits[where.rest[has] + bit].astype(np.int64) << bit
        bits[where.rest[has] + bit] = 0
    ones = np.flatnonzero(bits)
    if (np.diff(np.searchsorted(ones, where.start)) != counts[index.is_list]).any():
        raise ValueError("a list does not have as many columns as its header announces")
    columns = (ones - where.base - where.rank) << where.low | low_part
    ascending = (np.diff(columns) > 0) | (np.diff(where.row) > 0)
    if (columns >= width).any() or not ascending.all():
        raise ValueError(f"a list names columns out of order or beyond the width of {width}")
    return where.row, columns
