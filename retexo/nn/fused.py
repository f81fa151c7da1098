"""Dropout, and LayerNorm with ReLU, of many dense values on a CPU: in one pass each, where torch takes three to six.

The passes are compiled (retexo.nn.compiled); few values, other types, other devices and what is only evaluated are
torch's.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ROWS_AT_ONCE = 1 << 12
"""Rows of a round that go through a stage together on a CPU: what is larger leaves its caches between two operations,
and takes memory that is cleared anew each time."""
MANY = 1 << 18
"""Values, of as many rows, that torch takes longer for than it takes to import numba, after some hundreds of rounds."""


def drop(values: Tensor, rate: float) -> Tensor:
    """Dropout by 16 random bits a value, so the rate is in 65,536ths; on a CPU 9 to 70 times as fast as torch's."""
    if values.device.type != "cpu":
        return nn.functional.dropout(values, rate)
    level = round(rate * 2**16)
    if level == 2**16:
        return torch.zeros_like(values)
    if _is_large(values):
        seed = int(torch.randint(-(2**63), 2**63 - 1, ()))
        dropped: Tensor = _Drop.apply(values, level, seed)  # type: ignore[no-untyped-call]
        return dropped
    words = torch.empty((values.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: values.numel()].view(values.shape)
    kept = torch.ge(
        bits, level - 2**15, out=torch.empty_like(values)
    )  # a product with bools takes twice as long
    return torch.addcmul(
        values.new_zeros(()), values, kept, value=2**16 / (2**16 - level)
    )  # in one pass


def relu_of_norm(norm: nn.Module, rows: Tensor) -> Tensor:
    """relu(norm(rows)), [n, D]; `rows` may be overwritten.

    Without gradients torch takes only a third longer, which would not pay for the import.
    """
    if isinstance(norm, nn.LayerNorm) and _is_large(rows) and torch.is_grad_enabled():
        out: Tensor = _NormRelu.apply(rows.contiguous(), norm.weight, norm.bias, norm.eps)  # type: ignore[no-untyped-call]
        return out
    return torch.relu_(norm(rows))


def _is_large(values: Tensor) -> bool:
    is_large = len(values) >= ROWS_AT_ONCE and values.numel() >= MANY
    return is_large and values.device.type == "cpu" and values.dtype == torch.float32


class _Drop(torch.autograd.Function):
    """The gradient is dropped where the value was: by the same seed, in place of a mask that is kept."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, level: int, seed: int) -> Tensor:
        from retexo.nn.compiled import dropped

        ctx.drawn = level, seed
        return dropped(values, level, seed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        from retexo.nn.compiled import dropped

        return dropped(gradient, *ctx.drawn), None, None


class _NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        from retexo.nn.compiled import norm_relu

        out, moments = norm_relu(rows, weight, bias, eps)
        ctx.save_for_backward(rows, weight, bias, moments)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        from retexo.nn.compiled import norm_relu_gradient

        return *norm_relu_gradient(gradient, *ctx.saved_tensors), None
