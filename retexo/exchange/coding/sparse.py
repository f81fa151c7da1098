"""Sparse encoding of a chunk of rows: nonzero values and their columns (see coding/rows.py).

Shape letters: R rows, D width.
"""

from dataclasses import dataclass

import numpy as np
import torch

from retexo.arrays import IntArray, Mask
from retexo.exchange.coding.elias_fano import decode_lists, encode_lists, num_bits
from retexo.exchange.coding.values import (
    MAX_CODES,
    ByteReader,
    Precision,
    as_bytes,
    decode_values,
    encode_values,
    quantize,
    value_bytes,
)


@dataclass(frozen=True)
class _Chunk:
    """Rows prepared for encoding."""

    codes: torch.Tensor
    """[R, D] values at the chosen precision."""
    scales: torch.Tensor
    """float32 [R]"""
    present: torch.Tensor
    """bool [R, D] cells that are written."""
    counts: IntArray
    """[R] number of cells written."""
    binary: Mask
    """[R] whether all cells written are 1.0."""

    @property
    def valued(self) -> Mask:
        """Whether the values of a row are written, [R]."""
        return (self.counts > 0) & ~self.binary


@dataclass(frozen=True)
class _Index:
    """How the columns of each row are written: as a list, as a bitmap, or implied by the count."""

    is_list: Mask
    """[R]"""
    is_bitmap: Mask
    """[R]"""
    low: IntArray
    """[R] number of low bits of a row's Elias-Fano list."""
    nbytes: IntArray
    """[R] bytes of the list or bitmap."""


def row_sizes(rows: torch.Tensor, precision: Precision) -> IntArray:
    """Return the bytes of each row encoded, int64 [R]; ValueError as of `quantize`."""
    chunk, width = _prepare_chunk(rows, precision), rows.shape[1]
    values = np.where(chunk.valued, value_bytes(chunk.counts, rows.dtype, precision), 0)
    return _header_dtype(width).itemsize + _choose_index(chunk.counts, width).nbytes + values


def encode(rows: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Encode rows [R, D] as uint8 [B]; int8 and int4 raise ValueError for what is not finite."""
    chunk, width = _prepare_chunk(rows, precision), rows.shape[1]
    index = _choose_index(chunk.counts, width)
    headers = torch.from_numpy(2 * chunk.counts + chunk.binary).to(_header_dtype(width))
    columns = np.nonzero(chunk.present.numpy()[index.is_list])[1]
    lists = encode_lists(columns, chunk.counts[index.is_list], index.low[index.is_list], width)
    bitmaps = np.packbits(chunk.present.numpy()[index.is_bitmap], axis=1, bitorder="little")
    valued = torch.from_numpy(chunk.valued)
    scales = chunk.scales[valued] if precision in MAX_CODES else chunk.scales
    codes = chunk.codes.masked_select(chunk.present & valued[:, None])
    values = encode_values(codes, scales, chunk.counts[chunk.valued], precision)
    arrays = (headers, torch.from_numpy(lists), torch.from_numpy(bitmaps), values)
    return torch.cat([as_bytes(array) for array in arrays])


def decode(
    reader: ByteReader, shape: tuple[int, int], dtype: torch.dtype, precision: Precision
) -> torch.Tensor:
    """Decode what `encode` wrote, dtype [R, D]; ValueError if another wrote it."""
    num_rows, width = shape
    headers = reader.take(num_rows, _header_dtype(width)).to(torch.int64).numpy()
    counts, binary = headers >> 1, (headers & 1).astype(np.bool_)
    if (counts > width).any():
        raise ValueError(f"a header announces {counts.max()} columns in rows of {width}")
    present = _decode_mask(reader, counts, width)
    valued = (counts > 0) & ~binary
    values = decode_values(reader, counts[valued], dtype, precision)
    rows = torch.zeros(shape, dtype=dtype)
    rows.masked_scatter_(present & torch.from_numpy(valued)[:, None], values)
    return rows.masked_fill_(present & torch.from_numpy(binary)[:, None], 1)


def _header_dtype(width: int) -> torch.dtype:
    """Return the integer type of a row's header: it holds the count of values and a flag."""
    return torch.uint8 if width < 1 << 7 else torch.uint16 if width < 1 << 15 else torch.uint32


def _prepare_chunk(rows: torch.Tensor, precision: Precision) -> _Chunk:
    """Quantize rows [R, D] and decide which cells to write."""
    codes, scales = quantize(rows, precision)
    width = rows.shape[1]
    # NumPy compares ten times as fast as torch, but has no bfloat16.
    present = (codes.float() if codes.dtype == torch.bfloat16 else codes).numpy() != 0
    counts, is_one = _count_true(present), rows.numpy() == 1
    binary = (
        (counts > 0) & (_count_true(is_one & present) == counts)
        if is_one.any()
        else np.zeros(len(counts), bool)
    )
    skipped = value_bytes(width, rows.dtype, precision) - value_bytes(counts, rows.dtype, precision)
    is_complete = (counts > 0) & ~binary & (_choose_index(counts, width).nbytes >= skipped)
    present[is_complete] = True
    return _Chunk(
        codes, scales, torch.from_numpy(present), np.where(is_complete, width, counts), binary
    )


def _count_true(mask: Mask) -> IntArray:
    """Count the true cells of each row of [R, D], int64 [R].

    np.count_nonzero takes twice as long.
    """
    counts: IntArray = mask.view(np.uint8).sum(axis=1, dtype=np.uint32).astype(np.int64)
    return counts


def _choose_index(counts: IntArray, width: int) -> _Index:
    """Return the shortest form for the columns of each row, given its count, int64 [R].

    A bitmap is chosen if a list is as long. Rows with 0 or `width` values need neither, 0 bytes.
    """
    bitmap_bytes = (width + 7) // 8
    nbytes = np.full(len(counts), bitmap_bytes)
    low = np.zeros(len(counts), dtype=np.int64)
    for bits in range(width.bit_length()):
        list_bytes = (num_bits(counts, width, bits) + 7) // 8
        shorter = list_bytes < nbytes
        nbytes[shorter], low[shorter] = list_bytes[shorter], bits
    by_count = (counts == 0) | (counts == width)
    nbytes[by_count] = 0
    is_bitmap = ~by_count & (nbytes == bitmap_bytes)
    return _Index(~by_count & ~is_bitmap, is_bitmap, low, nbytes)


def _decode_mask(reader: ByteReader, counts: IntArray, width: int) -> torch.Tensor:
    """Decode from counts, lists and bitmaps which cells were written, bool [R, D].

    ValueError if they contradict each other.
    """
    index = _choose_index(counts, width)
    present = np.zeros((len(counts), width), dtype=np.bool_)
    present[counts == width] = True
    lists = reader.take(int(index.nbytes[index.is_list].sum()), torch.uint8).numpy()
    columns = decode_lists(lists, counts[index.is_list], index.low[index.is_list], width)
    row = np.repeat(np.flatnonzero(index.is_list), counts[index.is_list])
    ascending = (np.diff(columns) > 0) | (np.diff(row) > 0)
    if (columns >= width).any() or not ascending.all():
        raise ValueError(f"a list names columns out of order or beyond the width of {width}")
    present[row, columns] = True
    num_bitmaps, bitmap_bytes = int(index.is_bitmap.sum()), (width + 7) // 8
    packed = (
        reader.take(num_bitmaps * bitmap_bytes, torch.uint8)
        .numpy()
        .reshape(num_bitmaps, bitmap_bytes)
    )
    bits = np.unpackbits(packed, axis=1, bitorder="little").astype(np.bool_)
    if bits[:, width:].any() or (bits.sum(axis=1) != counts[index.is_bitmap]).any():
        raise ValueError("a bitmap does not have as many columns as its header announces")
    present[index.is_bitmap] = bits[:, :width]
    return torch.from_numpy(present)
