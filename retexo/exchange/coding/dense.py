"""The dense encoding of a chunk of rows: the scales of "int8", then every value."""

import numpy as np
import torch

from retexo.exchange.coding.values import ByteReader, Precision, as_bytes, code_dtype, dequantise, quantise


def write(rows: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Rows [R, D] as uint8 [B]."""
    codes, scales = quantise(rows, precision)
    return torch.cat([as_bytes(scales), as_bytes(codes)])


def read(reader: ByteReader, shape: tuple[int, int], dtype: torch.dtype, precision: Precision) -> torch.Tensor:
    """What `write` wrote, dtype [R, D]."""
    num_rows, width = shape
    scales = reader.take(num_rows if precision == "int8" else 0, torch.float32)
    codes = reader.take(num_rows * width, code_dtype(dtype, precision))
    return dequantise(codes, scales, np.full(num_rows, width), dtype).reshape(shape)
