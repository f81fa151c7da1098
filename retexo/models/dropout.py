"""Dropout with 16 random bits per value on a CPU: fewer bits and fewer passes than torch's."""

import torch
from torch import Tensor, nn


def fast_dropout(values: Tensor, rate: float) -> Tensor:
    """Apply dropout with a rate rounded to a multiple of 1/65536; on a GPU, torch's dropout.

    The random bits are those of torch's global generator. With torch's dropout, commands on Cora,
    PubMed and an eighth of ogbn-products took 1.03, 1.46 and 1.52 times the CPU seconds (2 cores of
    an AMD EPYC, minimum of three alternating runs).
    """
    if values.device.type != "cpu":
        return nn.functional.dropout(values, rate)
    level = round(rate * 2**16)
    if level == 2**16:
        return torch.zeros_like(values)
    words = torch.empty((values.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: values.numel()].view(values.shape)
    # Multiplying by bools takes twice as long.
    kept = torch.ge(bits, level - 2**15, out=torch.empty_like(values))
    # scale and mask in one pass
    return torch.addcmul(values.new_zeros(()), values, kept, value=2**16 / (2**16 - level))
