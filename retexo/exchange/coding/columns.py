"""A power of two for each column of features, by which rows are divided before they are rounded.

int8 and int4 have one scale per row. Where an age of 50 stands beside a share of .5, the share
would become zero in every row. Dividing by powers of two is exact, and sums of rows stay sums.

R rows, F width.
"""

import numpy as np
import torch
from scipy.sparse import csr_array

from retexo.exchange.coding.rows import RowFormat, Rows, decode
from retexo.exchange.coding.values import MAX_CODES, ByteReader, Precision, as_bytes

SAMPLE = 1 << 20
"""Values by which the columns are compared."""


def choose_exponents(rows: torch.Tensor, precision: Precision) -> torch.Tensor | None:
    """Return an exponent of two for each column, int8 [F]; None where no column would be lost.

    A column is lost if its values, by their root mean square, would be rounded to zero beside
    those of the largest one. Columns that are mostly zero share one exponent: words and
    categories are of one kind, and so Cora's rows stay as they are.

    Args:
        rows: [R, F], of which evenly spaced ones are read; NaN counts as zero.
    """
    if precision not in MAX_CODES or not rows.numel():
        return None
    step = -(-rows.numel() // SAMPLE)
    squares = np.nan_to_num(rows[::step].numpy().astype(np.float64)) ** 2
    num_filled = (squares > 0).sum(axis=0)
    totals = squares.sum(axis=0)
    is_rare = 2 * num_filled < len(squares)
    totals[is_rare], num_filled[is_rare] = totals[is_rare].sum(), num_filled[is_rare].sum()
    size = np.sqrt(totals / np.maximum(num_filled, 1))
    used = size[size > 0]
    if not len(used) or used.max() < 2 * MAX_CODES[precision] * used.min():
        return None
    exponents = np.round(np.log2(np.where(size > 0, size, 1)))
    return torch.from_numpy(exponents.clip(-126, 126).astype(np.int8))


def divide_columns(rows: Rows, exponents: torch.Tensor) -> Rows:
    """Divide each column by its power of two; a tensor is changed in place."""
    factors = torch.ldexp(torch.ones(len(exponents)), -exponents)
    if isinstance(rows, torch.Tensor):
        return rows.mul_(factors.to(rows))
    return csr_array(
        (rows.data * factors.numpy()[rows.indices].astype(rows.dtype), rows.indices, rows.indptr),
        rows.shape,
    )


def write_exponents(exponents: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """Put the exponents before an encoded block, uint8 [F + B]."""
    return torch.cat([as_bytes(exponents), block])


def decode_scaled(
    block: torch.Tensor,
    shape: tuple[int, int],
    dtype: torch.dtype,
    row_format: RowFormat,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decode a block after exponents, and multiply by them; the rest is as in `decode`."""
    width = shape[1]
    exponents = ByteReader(block).take(width, torch.int8)
    rows = decode(block[width:], shape, dtype, row_format, out)
    factors = torch.ldexp(torch.ones(width, dtype=dtype, device=exponents.device), exponents)
    return rows.mul_(factors.to(rows.device))
