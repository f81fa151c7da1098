"""Time sums, maxima and attention over in-edges, forward and backward, ours and DGL's.

    python benchmarks/aggregation.py [--nodes 100000] [--edges 2000000] [--width 128] [--heads 4]
        [--repeats 9]

Random edges, all cores, float32, and sums of fixed rows in bfloat16. Ours and DGL's alternate;
ratios are of medians, with minimum and maximum in brackets. "first" is the first call, in which
both sort the edges.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import common
import torch
from torch import Tensor

from partitioning.dgl_import import import_dgl
from retexo.models.aggregate import edge_max, edge_softmax, edge_sum
from retexo.models.block import Block


def sides(nodes: int, edges: int, width: int, heads: int) -> dict[str, list[Callable[[], Any]]]:
    """Return by name the two functions to time: ours and DGL's."""
    dgl = import_dgl("DGL beside ours")
    src, dst = torch.randint(nodes, (edges,)), torch.randint(nodes, (edges,)).sort().values
    block = Block(
        torch.arange(nodes), nodes, nodes, src, dst, torch.zeros(nodes), torch.zeros(nodes)
    )
    graph = dgl.create_block((src, dst), num_src_nodes=nodes, num_dst_nodes=nodes)
    rows = torch.randn(nodes, width).relu_()
    leaf, score = rows.clone().requires_grad_(), torch.randn(edges, heads, requires_grad=True)
    output_gradient = torch.randn(nodes, width)
    ops = dgl.ops

    def attention() -> Tensor:
        parts = zip(
            leaf.view(nodes, heads, -1).unbind(1), edge_softmax(block, score).unbind(1), strict=True
        )
        return torch.stack(
            [edge_sum(block, part, share.contiguous()) for part, share in parts], dim=1
        ).flatten(1)

    def dgls_attention() -> Tensor:
        alpha = ops.edge_softmax(graph, score[:, :, None])
        return ops.u_mul_e_sum(graph, leaf.view(nodes, heads, -1), alpha).flatten(1)

    def there_and_back(forward: Callable[[], Tensor]) -> Callable[[], Any]:
        return lambda: torch.autograd.backward(forward(), output_gradient)

    half = rows.bfloat16()
    return {
        "sum": [lambda: edge_sum(block, rows), lambda: ops.copy_u_sum(graph, rows)],
        "sum, bfloat16": [lambda: edge_sum(block, half), lambda: ops.copy_u_sum(graph, half)],
        "sum and gradient": [
            there_and_back(side)
            for side in (lambda: edge_sum(block, leaf), lambda: ops.copy_u_sum(graph, leaf))
        ],
        "max": [lambda: edge_max(block, rows), lambda: ops.copy_u_max(graph, rows)],
        "max and gradient": [
            there_and_back(side)
            for side in (lambda: edge_max(block, leaf), lambda: ops.copy_u_max(graph, leaf))
        ],
        "attention": [lambda: attention().detach(), lambda: dgls_attention().detach()],
        "attention and gradient": [there_and_back(attention), there_and_back(dgls_attention)],
    }


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    arguments = common.parser(__doc__, repeats=9)
    for name, default in {"nodes": 100_000, "edges": 2_000_000, "width": 128, "heads": 4}.items():
        arguments.add_argument(f"--{name}", type=int, default=default)
    options = arguments.parse_args()
    dgl = import_dgl("DGL beside ours")
    print(
        f"{common.machine()}, DGL {dgl.__version__}; {options.nodes:,} nodes, {options.edges:,}"
        f" edges, {options.width} floats, {options.heads} heads"
    )
    print(f"{'':24}{'ours: seconds':>24}{'first':>8}{'DGL: seconds':>24}{'first':>8}{'ratio':>8}")
    for name, works in sides(options.nodes, options.edges, options.width, options.heads).items():
        first = [seconds(work) for work in works]
        taken = [[seconds(work) for work in works] for _ in range(options.repeats)]
        columns = list(zip(*taken, strict=True))
        cells = [
            f"{median(column):.3f} [{min(column):.3f}, {max(column):.3f}]" for column in columns
        ]
        ratio = median(columns[0]) / median(columns[1])
        print(
            f"{name:24}{cells[0]:>24}{first[0]:>8.2f}{cells[1]:>24}{first[1]:>8.2f}{ratio:>8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
