"""Products of rows and weights, compared with float64."""

import pytest
import torch
from support import torch_threads
from torch import Tensor

from retexo.models import matrix as matrix_module
from retexo.models.matrix import as_matrix, matmul

SHAPES = [(512, 100, 256), (700, 256, 47), (1024, 32, 256), (3001, 1433, 3)]
"""R, F and D of large products."""


def rows_and_weight(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """[R, F], [F, D] and [D] with gradients."""
    num_rows, num_in, num_out = shape
    generator = torch.Generator().manual_seed(num_rows)
    sizes = ((num_rows, num_in), (num_in, num_out), (num_out,))
    rows, weight, bias = (torch.randn(size, generator=generator).requires_grad_() for size in sizes)
    return rows, weight, bias


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Record the shapes that oneDNN multiplies, and enable it on every CPU."""
    calls, multiply = [], matrix_module._onednn_product

    def counted(matrix: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        calls.append((*matrix.shape, weight.shape[1]))
        return multiply(matrix, weight, bias)

    monkeypatch.setattr(matrix_module, "USE_ONEDNN", True)
    monkeypatch.setattr(matrix_module, "_onednn_product", counted)
    return calls


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_long_product_is_that_in_float64(
    shape: tuple[int, int, int],
    with_bias: bool,
    num_threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = calls_of(monkeypatch)
    with torch_threads(num_threads):
        given = rows_and_weight(shape)[: 3 if with_bias else 2]
        exact = [each.detach().double().requires_grad_() for each in given]
        out, expected = matmul(*given), matmul(*exact)
        gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
        out.backward(gradient)
        expected.backward(gradient.double())
    assert calls == [shape]  # not float64
    assert out.is_contiguous()
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-3)
    for each, wanted in zip(given, exact, strict=True):
        torch.testing.assert_close(each.grad.double(), wanted.grad, rtol=1e-4, atol=1e-2)  # type: ignore[union-attr]


def test_few_rows_sparse_ones_and_bfloat16_are_multiplied_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = calls_of(monkeypatch)
    rows, weight, bias = (each.detach() for each in rows_and_weight((1000, 256, 256)))
    few, narrow = matmul(rows[:511], weight, bias), matmul(rows[:600, :8], weight[:8], bias)
    assert torch.equal(few, torch.addmm(bias, rows[:511], weight))
    assert torch.equal(narrow, torch.addmm(bias, rows[:600, :8], weight[:8]))
    sparse = as_matrix(rows * (torch.arange(256) < 9))
    torch.testing.assert_close(
        matmul(sparse, weight, bias), rows[:, :9] @ weight[:9] + bias, rtol=1e-4, atol=1e-4
    )
    assert matmul(rows.bfloat16(), weight.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert matmul(rows, weight).dtype == torch.bfloat16
    assert not calls
