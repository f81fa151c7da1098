"""Numbers in one byte or less, with a scale for each row of them."""

import torch
from torch import Tensor

SCALE_BYTES = 4


def to_int8(
    rows: Tensor, largest: int = 127, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Codes int8 [R, D] in [-largest, largest], and the scale of each row, [R] of dtype: a value is code * scale.

    The scale of a row with values that are not finite in dtype is not finite.
    """
    peak = (
        torch.maximum(rows.amax(dim=1), -rows.amin(dim=1)).abs()
        if rows.shape[1]
        else rows.new_zeros(len(rows))
    )
    scales = (peak / largest).to(dtype)
    # A scale can round to zero where the values are denormal: they become zeros, within the error promised.
    divisor = torch.where(scales > 0, scales, 1.0).to(rows.dtype)
    return (rows / divisor[:, None]).round_().clamp_(-largest, largest).to(torch.int8), scales
