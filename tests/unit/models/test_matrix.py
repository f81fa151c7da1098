"""Products of rows and weights."""

import torch

from retexo.models.matrix import as_matrix, matmul


def test_products_with_sparse_rows_and_in_bfloat16() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(shape, generator=generator) for shape in ((600, 256), (256, 64)))
    bias = torch.randn(64, generator=generator)
    sparse = as_matrix(rows * (torch.arange(256) < 9))
    torch.testing.assert_close(
        matmul(sparse, weight, bias), rows[:, :9] @ weight[:9] + bias, rtol=1e-4, atol=1e-4
    )
    assert matmul(rows.bfloat16(), weight.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert matmul(rows, weight).dtype == torch.bfloat16
