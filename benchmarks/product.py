"""Time dense float32 products of rows and weights: torch's own (MKL) and
retexo.models.matrix.matmul.

    python benchmarks/product.py [--threads 1] [--repeats 30]

Forward only, and with gradients of rows, weights and bias; alternating, medians; layer widths of
Cora, PubMed and ogbn-products. Where `matmul` does not use oneDNN, both are the same.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import common
import torch

from retexo.models.matrix import USE_ONEDNN, matmul

WIDTHS = [(1433, 256), (500, 256), (256, 3), (256, 7), (100, 256), (256, 47), (256, 256)]
ROWS = (512, 1024, 4096)


def torch_product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, rows, weight)


def in_turn(works: list[Callable[[], Any]], repeats: int) -> str:
    """Return milliseconds of each, and their ratio."""
    taken: list[list[float]] = [[] for _ in works]
    for repeat in range(repeats + 2):
        for work, seconds in zip(works, taken, strict=True):
            start = time.perf_counter()
            work()
            if repeat > 1:
                seconds.append(time.perf_counter() - start)
    own, other = (1e3 * statistics.median(seconds) for seconds in taken)
    return f"{own:7.2f} {other:7.2f} {other / own:5.2f}"


def measured(num_rows: int, num_in: int, num_out: int, repeats: int) -> str:
    sizes = (num_rows, num_in), (num_in, num_out), (num_out,)
    plain = [torch.randn(size) for size in sizes]
    learnt, gradient = (
        [each.clone().requires_grad_() for each in plain],
        torch.randn(num_rows, num_out),
    )

    def gradients(multiply: Callable[..., torch.Tensor]) -> Any:
        return torch.autograd.grad(multiply(*learnt), learnt, gradient)

    both = torch_product, matmul
    forward = in_turn([partial(multiply, *plain) for multiply in both], repeats)
    return f"{forward}   {in_turn([partial(gradients, multiply) for multiply in both], repeats)}"


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{common.machine()}; oneDNN in float32: {'yes' if USE_ONEDNN else 'no'}")
    print("  rows      widths     torch product ratio   with gradients, likewise")
    for num_in, num_out in WIDTHS:
        for num_rows in ROWS:
            print(
                f"{num_rows:>6} {num_in:>5} x {num_out:<3} {measured(num_rows, num_in, num_out, options.repeats)}"
            )


if __name__ == "__main__":
    main()
