"""Convolutions compared with closed forms on dense matrices.

Their building blocks, too: sums over in-edges, products and dropout.
"""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support import dense_conv
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from retexo.models import aggregate
from retexo.models.aggregate import edge_max, edge_softmax, edge_sum, edge_sum_per_head
from retexo.models.block import Block, HaloRows, InEdges, NumberedEdges, Sources, gather_source_rows
from retexo.models.conv.gat import GAT
from retexo.models.conv.gcn import GCN
from retexo.models.conv.gin import GIN
from retexo.models.conv.sage import SAGEMean, SAGEPool
from retexo.models.convolution import Convolution
from retexo.models.matrix import SparseMatrix, fast_dropout, is_sparse, matmul
from retexo.models.network import (
    CONVOLUTIONS,
    Architecture,
    Schema,
    build_network,
    default_model_settings,
    hidden_convolution,
)
from retexo.models.streaming_aggregate import AggregateAccumulator

NODES, WIDTH, OUT = 6, 9, 4
# 5 has no edges at all, 4 none that comes in; (0, 1) is there twice
SRC = torch.tensor([0, 0, 2, 3, 4, 1, 4])
DST = torch.tensor([1, 1, 1, 0, 0, 2, 3])
F64 = torch.float64

NOTHING = Sources(
    HaloRows.empty(0, WIDTH, F64), HaloRows.empty(0, OUT, F64)
)  # one part owns all nodes

COUNT = torch.zeros(NODES, NODES, dtype=F64)  # [to, from]
COUNT.index_put_((DST, SRC), torch.ones(len(SRC), dtype=F64), accumulate=True)


def in_edges(
    weight: Tensor | None = None, feat: Tensor | None = None, times: Tensor | None = None
) -> InEdges:
    """`times`: how often each edge is there."""
    repeated = torch.ones(len(SRC), dtype=torch.int64) if times is None else times
    src, dst = (torch.repeat_interleave(ends, repeated) for ends in (SRC, DST))
    degrees = (torch.bincount(ends, weight, minlength=NODES) for ends in (dst, src))
    return InEdges.build(src, dst, *degrees, F64, weight=weight, edge_feat=feat)


def rows(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    dense = torch.randn(NODES, WIDTH, dtype=F64, generator=generator)
    return (
        dense if kind == "dense" else dense * (torch.rand(NODES, WIDTH, generator=generator) < 0.1)
    )


def make(kind: type[Convolution], **arguments: Any) -> Any:
    torch.manual_seed(0)
    conv = kind(WIDTH, OUT, 0.0, **arguments).double()  # type: ignore[call-arg]
    for parameter in conv.parameters():
        torch.nn.init.normal_(parameter)  # biases, too
    return conv


def outputs(conv: Any, x: Tensor, nodes: list[int], edges: InEdges | None = None) -> Tensor:
    block = NumberedEdges(edges or in_edges(), NOTHING).cut_block(torch.tensor(nodes))
    return conv(conv.prepare(block, *gather_source_rows(block, x, NOTHING)))


LAYERS = {
    "gcn": (GCN, {}),
    "sage-mean": (SAGEMean, {}),
    "sage-pool": (SAGEPool, {}),
    "gin": (GIN, {"width": 5}),
    "gat-mean": (GAT, {"heads": 3, "merge": "mean", "self_loops": False}),
    "gat-concat": (GAT, {"heads": 3, "merge": "concat", "self_loops": True}),
}


def assert_same(actual: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    """Values and gradients are equal."""
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)
    weight = torch.rand(actual.shape, dtype=F64)
    both = [
        torch.autograd.grad((values * weight).sum(), inputs, materialize_grads=True)
        for values in (actual, expected)
    ]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("nodes", [[0, 1, 2, 3, 4, 5], [1, 4], [5], [0, 3]])
@pytest.mark.parametrize("name", LAYERS)
def test_closed_form(name: str, nodes: list[int], kind: str) -> None:
    layer, arguments = LAYERS[name]
    conv, x = make(layer, **arguments), rows(kind)
    assert is_sparse(x) == (kind == "sparse")
    assert_same(outputs(conv, x, nodes), dense_conv(conv, COUNT, x)[nodes], *conv.parameters())


@pytest.mark.parametrize("rows_first", [True, False])
@pytest.mark.parametrize("merge", ["mean", "concat"])
def test_gat_sums_rows_before_the_weights_or_after_them(
    merge: str, rows_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv, x = make(GAT, heads=3, merge=merge, self_loops=False), rows("dense")
    monkeypatch.setattr(GAT, "_sums_first", lambda *_: rows_first)
    got = outputs(conv, x, list(range(NODES)))
    assert_same(got, dense_conv(conv, COUNT, x), *conv.parameters())


@pytest.mark.parametrize("self_loops", [True, False])
def test_gat_is_that_of_torch_geometric(self_loops: bool) -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    conv, x = make(GAT, heads=3, merge="concat", self_loops=self_loops), rows("dense")
    other = geometric.GATConv(WIDTH, OUT, heads=3, add_self_loops=self_loops).double()
    parameters = (conv.weight.T, conv.attention_src, conv.attention_dst, conv.bias)
    for own, same in zip(
        (other.lin.weight, other.att_src, other.att_dst, other.bias), parameters, strict=True
    ):
        own.data.copy_(same)
    got = outputs(conv, x, list(range(NODES)))
    torch.testing.assert_close(got, other(x, torch.stack((SRC, DST))), rtol=1e-9, atol=1e-9)
    # 5 is alone: its own transformed row, or nothing
    torch.testing.assert_close(got[5], x[5] @ conv.weight * self_loops + conv.bias)


# --- edge weights and features ----------

WEIGHTS = torch.tensor([2.0, 1, 3, 1, 2, 1, 4], dtype=F64)


def accumulate(conv: Any, x: Tensor, nodes: list[int], edges: InEdges) -> Tensor:
    host, chosen = torch.device("cpu"), torch.tensor(nodes)
    total = AggregateAccumulator(conv, edges, chosen, x, conv.project(x), host)
    total.add(NOTHING)
    return conv(total.inputs())


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("name", ["gcn", "sage-mean", "gin"])
def test_sums_are_weighted_and_a_weight_of_k_is_k_edges(name: str, kind: str) -> None:
    layer, arguments = LAYERS[name]
    conv, x, nodes = make(layer, **arguments), rows(kind), [0, 1, 4, 5]
    for weights in (WEIGHTS, WEIGHTS / 8 + 0.1):  # of a mean may add up to less than one
        matrix, degrees = torch.zeros_like(COUNT), None
        matrix.index_put_((DST, SRC), weights, accumulate=True)
        if name == "sage-mean":
            matrix /= matrix.sum(1, keepdim=True).clamp(min=1e-9)
            degrees = torch.ones(NODES, dtype=F64), None
        expected = dense_conv(conv, matrix, x, degrees)[nodes]
        for run in (outputs, accumulate):
            actual = run(conv, x.clone(), nodes, in_edges(weights))
            torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    parallel = outputs(conv, x, nodes, in_edges(times=WEIGHTS.long()))
    weighted = outputs(conv, x, nodes, in_edges(WEIGHTS))
    torch.testing.assert_close(weighted, parallel, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("self_loops", [False, True])
def test_gat_reads_features_of_edges(self_loops: bool) -> None:
    conv = make(GAT, heads=2, merge="concat", self_loops=self_loops, num_edge_features=3)
    feat, x, nodes = torch.randn(len(SRC), 3, dtype=F64), rows("dense"), [0, 1, 3, 5]
    z, t = (x @ conv.weight).view(NODES, 2, OUT), (feat @ conv.weight_edge).view(-1, 2, OUT)
    expected = []
    for v in nodes:
        into = (v == DST).nonzero()[:, 0]  # type: ignore[attr-defined]
        messages, terms = z[SRC[into]], t[into]
        if self_loops:
            mean = terms.mean(dim=0, keepdim=True) if len(into) else t.new_zeros(1, 2, OUT)
            messages, terms = torch.cat((messages, z[v : v + 1])), torch.cat((terms, mean))
        score = (
            messages * conv.attention_src + z[v] * conv.attention_dst + terms * conv.attention_edge
        ).sum(-1)
        alpha = torch.softmax(torch.nn.functional.leaky_relu(score, 0.2), dim=0)
        expected.append((alpha[..., None] * (messages + terms)).sum(dim=0).flatten() + conv.bias)
    actual = outputs(conv, x, nodes, in_edges(feat=feat))
    assert_same(actual, torch.stack(expected), *conv.parameters())


# --- sparse matrices ----------


def test_sparse_dropout_scales_what_it_keeps() -> None:
    torch.manual_seed(1)
    dropped = SparseMatrix.from_scipy(sp.csr_array(np.ones((40, 20)))).dropout(0.25)
    is_kept = dropped.values != 0
    assert 0.6 < float(is_kept.double().mean()) < 0.9
    assert set(dropped.values[is_kept].tolist()) == {1 / 0.75}


KINDS = {name: hidden_convolution(default_model_settings(name, 1, 8)) for name in CONVOLUTIONS}
PLAIN = [name for name, kind in KINDS.items() if not (kind.relational or kind.reads_relations)]


@pytest.mark.parametrize("name", PLAIN)
def test_parameters_depend_on_the_seed_and_the_layer_only(name: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = (
        build_network(
            Architecture(default_model_settings(name, 2, 8), Schema.of_plain_graph(5), 4), seed
        )[1].state_dict()
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)


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


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("edges", [edges for edges in BLOCKS if edges.in_edges.order is None])
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
    expected = torch.stack([edge_sum(edges, rows, share.contiguous()) for share in shares])
    assert_same(edge_sum_per_head(edges, rows, alpha), expected, alpha)


@pytest.mark.parametrize("edges", [block_of_graph.with_self_loops() for block_of_graph in BLOCKS])
def test_softmax(edges: Block) -> None:
    score = (30 * torch.randn(len(edges.src), 2, dtype=F64)).requires_grad_()
    power = (score - score.detach().max()).exp()
    total = torch.zeros(edges.num_dst, 2, dtype=F64).index_add(0, edges.dst, power)
    assert_same(edge_softmax(edges, score), power / total[edges.dst], score)
    alpha = edge_softmax(edges, 1000 * score.float())
    assert alpha.isfinite().all()


def test_no_tensor_has_a_row_for_each_edge() -> None:
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                    largest = max(largest, tensor.numel())
            return result

    edges = block(50, 40, 5000)
    rows = torch.randn(len(edges.nodes), 16, requires_grad=True)
    score = torch.randn(len(edges.src), 2, requires_grad=True)
    with Watch():
        alpha = edge_softmax(edges, score)
        total = edge_sum(edges, rows) + edge_sum(edges, rows, alpha[:, 1].contiguous())
        (total + edge_max(edges, torch.relu(rows))).sum().backward()
    assert 2 * 5003 <= largest < 3 * 5003


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_biases_begin_with_zero(name: str) -> None:
    shape = Architecture(default_model_settings(name, 2, 8), Schema.of_plain_graph(5), 3)
    stages = build_network(shape, seed=0)
    parameters = [
        named_parameter for stage in stages for named_parameter in stage.conv.named_parameters()
    ]
    biases = [parameter for path, parameter in parameters if "bias" in path]
    assert not any(parameter.any() for parameter in biases)


def test_products_in_bfloat16() -> None:
    rows, weight = torch.randn(600, 256), torch.randn(256, 64)
    assert matmul(rows.bfloat16(), weight.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert matmul(rows, weight).dtype == torch.bfloat16


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
