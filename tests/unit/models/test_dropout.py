"""Dropout with 16 random bits per value: rates, scale, gradient and random draws."""

import pytest
import torch

from retexo.models.dropout import fast_dropout


@pytest.mark.parametrize("rate", [0.001, 0.25, 0.6, 0.999])
def test_values_are_dropped_at_random_and_the_others_scaled_up(rate: float) -> None:
    values = torch.full((500_000,), 2.0, requires_grad=True)
    torch.manual_seed(5)
    first, second = fast_dropout(values, rate), fast_dropout(values, rate)
    torch.manual_seed(5)
    assert torch.equal(fast_dropout(values, rate), first)
    scale = 2**16 / (2**16 - round(rate * 2**16))
    for out in (first, second):
        assert set(out.unique().tolist()) == {0.0, torch.tensor(2.0 * scale).item()}
        share = (out == 0).double().mean().item()
        assert abs(share - rate) < 5 * (rate * (1 - rate) / len(values)) ** 0.5
        (gradient,) = torch.autograd.grad((out * 3).sum(), values)
        assert torch.equal(gradient, torch.where(out == 0, 0.0, 3 * torch.tensor(scale)))
    agree = ((first == 0) & (second == 0)).double().mean().item()
    assert abs(agree - rate**2) < 5 * (rate**2 / len(values)) ** 0.5  # independent of each other
