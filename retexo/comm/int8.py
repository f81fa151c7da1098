"""Quantization to codes of at most 8 bits, with one scale per row."""

import torch
from torch import Tensor

SCALE_BYTES = 4


def to_int8(
    rows: Tensor,
    largest: int = 127,
    dtype: torch.dtype = torch.float32,
    *,
    at_random: bool = False,
) -> tuple[Tensor, Tensor]:
    """Quantize rows [R, D]: value = code * scale.

    at_random: take one of the two nearest codes by torch's global generator, the nearer one more
    often, so that the mean over many draws is the value; False takes the nearest.

    Returns:
        Codes, int8 [R, D] in [-largest, largest], and scales, [R] of `dtype`. A row with values
        that are not finite in `dtype` has a scale that is not finite.
    """
    peak = (
        torch.maximum(rows.amax(dim=1), -rows.amin(dim=1)).abs()
        if rows.shape[1]
        else rows.new_zeros(len(rows))
    )
    scales = (peak / largest).to(dtype)
    # The scale of denormal values can round to zero. They become zeros, within the error bound.
    divisor = torch.where(scales > 0, scales, 1.0).to(rows.dtype)
    codes = rows / divisor[:, None]
    codes = codes.add_(torch.rand_like(codes)).floor_() if at_random else codes.round_()
    return codes.clamp_(-largest, largest).to(torch.int8), scales
