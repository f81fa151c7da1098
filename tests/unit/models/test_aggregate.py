"""Sums, maxima and softmax over in-edges equal the edge-by-edge results, without a row per edge."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from retexo.models import aggregate
from retexo.models.aggregate import edge_max, edge_softmax, edge_sum, edge_sum_per_head
from retexo.models.block import Block

F64 = torch.float64


def block(
    num_src: int, num_dst: int, num_edges: int, *, by_dst: bool = True, seed: int = 0
) -> Block:
    """A random block with duplicate edges; the last destination has no in-edges."""
    rng = torch.Generator().manual_seed(seed)
    src = torch.randint(num_src, (num_edges,), generator=rng)
    dst = torch.randint(max(num_dst - 1, 1), (num_edges,), generator=rng)
    src, dst = torch.cat((src, src[:3])), torch.cat((dst, dst[:3]))
    order = torch.argsort(dst, stable=True) if by_dst else torch.arange(len(dst))
    nothing = torch.zeros(0)
    return Block(torch.arange(num_src), num_dst, num_src, src[order], dst[order], nothing, nothing)


BLOCKS = [block(7, 5, 30), block(7, 5, 30, by_dst=False), block(4, 3, 0), block(1, 1, 2)]


def assert_same(got: Tensor, wanted: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    weight = torch.rand(got.shape, dtype=F64)
    both = [
        torch.autograd.grad((each * weight).sum(), inputs, allow_unused=True)
        for each in (got, wanted)
    ]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("edges", [each for each in BLOCKS if each.in_edges.order is None])
def test_sums_of_several_heads(
    edges: Block, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregate, "MIN_COMPILED_EDGES", 0 if compiled else len(edges.src) + 1)
    rows, alpha = (
        torch.randn(len(edges.nodes), 5, dtype=F64),
        torch.randn(len(edges.src), 3, dtype=F64),
    )
    alpha.requires_grad_()
    shares = alpha.unbind(1)
    wanted = torch.stack([edge_sum(edges, rows, each.contiguous()) for each in shares])
    assert_same(edge_sum_per_head(edges, rows, alpha), wanted, alpha)


@pytest.mark.parametrize("edges", [each.with_self_loops() for each in BLOCKS])
def test_softmax(edges: Block) -> None:
    score = (30 * torch.randn(len(edges.src), 2, dtype=F64)).requires_grad_()
    power = (score - score.detach().max()).exp()
    total = torch.zeros(edges.num_dst, 2, dtype=F64).index_add(0, edges.dst, power)
    assert_same(edge_softmax(edges, score), power / total[edges.dst], score)
    alpha = edge_softmax(edges, 1000 * score.float())
    assert alpha.isfinite().all()


def everything(edges: Block, width: int) -> list[Tensor]:
    """Values and gradients of all operations."""
    torch.manual_seed(1)
    rows = torch.randn(len(edges.nodes), width, requires_grad=True)
    score = torch.randn(len(edges.src), 2, requires_grad=True)
    alpha = edge_softmax(edges, score)
    total = (
        edge_sum(edges, rows)
        + edge_sum(edges, rows, alpha[:, 1].contiguous())
        + edge_max(edges, torch.relu(rows))
    )
    (total * torch.randn(total.shape)).sum().backward()
    assert rows.grad is not None
    assert score.grad is not None
    return [total, rows.grad, score.grad]


def test_no_tensor_has_a_row_for_each_edge() -> None:
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal largest
            made = func(*args, **(kwargs or {}))
            for tensor in made if isinstance(made, tuple | list) else (made,):
                if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                    largest = max(largest, tensor.numel())
            return made

    edges = block(50, 40, 5000)
    with Watch():
        everything(edges, 16)
    assert 2 * 5003 <= largest < 3 * 5003


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_on_a_gpu() -> None:
    edges, device = block(300, 200, 9000), torch.device("cuda")
    rows = torch.rand(300, 20)
    for function in (edge_sum, edge_max):
        there = function(edges.to(device), rows.to(device))
        torch.testing.assert_close(there.cpu(), function(edges, rows))
    score = torch.randn(9003, 2)
    torch.testing.assert_close(
        edge_softmax(edges.to(device), score.to(device)).cpu(), edge_softmax(edges, score)
    )
