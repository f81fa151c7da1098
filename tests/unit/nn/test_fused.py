"""Compiled passes over many values: dropout held to its random bits, LayerNorm with ReLU to torch's in float64."""

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytest
import torch
from support import torch_threads
from torch import Tensor, nn

from retexo.nn import compiled
from retexo.nn.fused import MANY, ROWS_AT_ONCE, drop, relu_of_norm

MASK = (1 << 64) - 1
SHAPES = [(8_400, 47), (4_097, 256), (ROWS_AT_ONCE, MANY // ROWS_AT_ONCE), (4_200, 1_433)]
"""n and D with as many values as are worth compiled passes; no multiples of what is drawn or added up together."""


@pytest.fixture(params=[1, 3])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with torch_threads(request.param):
        yield request.param


def splitmix64(seed: int, count: int) -> list[int]:
    """As Steele, Lea and Flood have it, in whole numbers of any size."""
    words = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        word = seed
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
        words.append(word ^ (word >> 31))
    return words


def test_splitmix64_is_the_published_one() -> None:
    """The first outputs from the seed 1234567, as the reference implementation prints them."""
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("seed", [0, 1234567, -(2**63), 2**63 - 2])
def test_what_is_dropped_is_what_the_random_bits_say(seed: int, num_threads: int) -> None:
    values = torch.arange(1, 2_504, dtype=torch.float32)  # two blocks and a bit
    level = 20_000
    bits = [
        word >> shift & 0xFFFF for word in splitmix64(seed & MASK, 626) for shift in (0, 16, 32, 48)
    ]
    kept = torch.tensor([each >= level for each in bits[: len(values)]])
    expected = torch.where(kept, values * torch.tensor(2**16 / (2**16 - level)), 0.0)
    assert torch.equal(compiled.dropped(values, level, seed), expected)
    assert torch.equal(
        compiled.dropped(values[:-3].view(500, 5), level, seed).flatten(), expected[:-3]
    )


@pytest.mark.parametrize("rate", [0.001, 0.25, 0.6, 0.999])
def test_dropout_of_many_values_is_drawn_anew_each_time_and_again_for_the_gradient(
    rate: float,
) -> None:
    values = torch.full((2 * MANY,), 2.0, requires_grad=True)
    torch.manual_seed(5)
    first, second = drop(values, rate), drop(values, rate)
    torch.manual_seed(5)
    assert torch.equal(drop(values, rate), first)
    scale = 2**16 / (2**16 - round(rate * 2**16))
    for out in (first, second):
        assert set(out.unique().tolist()) == {0.0, torch.tensor(2.0 * scale).item()}
        share = (out == 0).double().mean().item()
        assert abs(share - rate) < 5 * (rate * (1 - rate) / len(values)) ** 0.5
        (gradient,) = torch.autograd.grad((out * 3).sum(), values)
        assert torch.equal(gradient, torch.where(out == 0, 0.0, 3 * torch.tensor(scale)))
    agree = ((first == 0) & (second == 0)).double().mean().item()
    assert abs(agree - rate**2) < 5 * (rate**2 / len(values)) ** 0.5  # independent of each other


def norm_and_rows(shape: tuple[int, int]) -> tuple[nn.LayerNorm, Tensor, Tensor]:
    """A norm with any weights, rows [n, D] and the gradient of the result."""
    torch.manual_seed(sum(shape))
    norm, rows = nn.LayerNorm(shape[1]), 3 * torch.randn(shape) + 1
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    rows[0] = 0.1  # without variance
    return norm, rows.requires_grad_(), torch.randn(shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_norm_with_relu_is_torchs_in_float64(shape: tuple[int, int], num_threads: int) -> None:
    norm, rows, gradient = norm_and_rows(shape)
    exact, given = nn.LayerNorm(shape[1]).double(), rows.detach().double().requires_grad_()
    exact.load_state_dict(norm.state_dict())
    normed = exact(given)
    # A value nearer to zero than the error of float32 may take either side of the ReLU, and each
    # side has its own gradient: which one depends on the processor, so these values get none.
    error = torch.full((len(rows), 1), 1e-5)
    error[0] = 1e-3  # its deviations are multiplied by 1 / sqrt(eps)
    gradient[normed.detach().abs() < error] = 0
    out, expected = relu_of_norm(norm, rows), torch.relu(normed)
    assert out.grad_fn.name() == "_NormReluBackward"  # type: ignore[union-attr]
    out.backward(gradient)
    expected.backward(gradient.double())
    torch.testing.assert_close(out[1:].double(), expected[1:], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[0].double(), expected[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(rows.grad[1:].double(), given.grad[1:], rtol=1e-4, atol=1e-5)  # type: ignore[index]
    for each, wanted in zip(norm.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(each.grad.double(), wanted.grad, rtol=1e-4, atol=1e-3)  # type: ignore[union-attr]


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    found = []
    for count in (1, 2, 5):
        norm, rows, gradient = norm_and_rows((5_000, 100))
        with torch_threads(count):
            out = drop(relu_of_norm(norm, rows), 0.5)
            out.backward(gradient)
        found.append((out, rows.grad, norm.weight.grad, norm.bias.grad))
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


def test_what_is_not_a_number_stays_so() -> None:
    norm, rows, gradient = norm_and_rows((5_000, 80))
    with torch.no_grad():
        rows[7, 3] = torch.nan
    out = relu_of_norm(norm, rows)
    out.backward(gradient)
    assert out[7].isnan().all()
    assert not out[:7].isnan().any()
    assert not out[8:].isnan().any()
    assert norm.weight.grad.isnan().all()  # type: ignore[union-attr]
    assert drop(out, 0.1)[7].isnan().any()


def test_few_values_other_types_and_what_is_only_evaluated_are_torchs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("dropped", "norm_relu"):
        monkeypatch.setattr(compiled, name, None)
    norm = nn.LayerNorm(256)
    many = torch.randn(ROWS_AT_ONCE, 256)
    few, double, half = many[1:], many.double(), many.bfloat16()
    assert torch.equal(relu_of_norm(norm, few), torch.relu(norm(few)))
    assert torch.equal(
        relu_of_norm(nn.LayerNorm(63), many[:, :63]), torch.relu(nn.LayerNorm(63)(many[:, :63]))
    )
    assert relu_of_norm(nn.LayerNorm(256).double(), double).dtype == torch.float64
    assert torch.equal(relu_of_norm(nn.Identity(), many.clone()), torch.relu(many))
    with torch.no_grad():
        assert torch.equal(relu_of_norm(norm, many.clone()), torch.relu(norm(many)))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(relu_of_norm(norm, half), torch.relu(norm(half)))
    for values in (few, double, half):
        assert drop(values, 0.5).dtype == values.dtype


def test_loops_are_compiled_where_there_is_no_folder_to_keep_them_in() -> None:
    source = (
        "def fill(values, first, end):\n    for at in range(first, end):\n        values[at] = at\n"
    )
    names: dict[str, Any] = {}
    exec(
        source, names
    )  # which is in no file: numba has no place for it, as in a folder and a home that are read-only
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(cache=True)(names["fill"])
    values = np.zeros(4)
    compiled._compiled()(names["fill"])(values, 1, 3)
    assert values.tolist() == [0, 1, 2, 0]
