"""Edge weights and edge features in the convolutions, compared with edge-by-edge sums."""

from typing import Any

import pytest
import torch
from torch import Tensor

from retexo.models.block import HaloRows, InEdges, Sources, gather_source_rows
from retexo.models.conv.gat import GAT
from retexo.models.conv.gcn import GCN
from retexo.models.conv.gin import GIN
from retexo.models.conv.sage import SAGEMean
from retexo.models.streaming_aggregate import AggregateAccumulator

N, F, D, K = 7, 9, 4, 3
F64 = torch.float64
# 6 has no edge, 5 none that comes in; (0, 1) is there twice
SRC, DST = torch.tensor([0, 0, 2, 3, 4, 1, 4, 5]), torch.tensor([1, 1, 1, 0, 0, 2, 3, 4])
NOTHING = Sources(HaloRows.empty(0, F, F64), HaloRows.empty(0, D, F64))
WEIGHTS = torch.tensor([2.0, 1, 3, 1, 2, 1, 4, 0], dtype=F64)
LINEAR: dict[str, Any] = {"gcn": (GCN, {}), "sage": (SAGEMean, {}), "gin": (GIN, {"width": 5})}


def edges(
    weight: Tensor | None, feat: Tensor | None = None, times: Tensor | None = None
) -> InEdges:
    src, dst = (
        ends if times is None else torch.repeat_interleave(ends, times) for ends in (SRC, DST)
    )
    degrees = (torch.bincount(ends, weight, minlength=N) for ends in (dst, src))
    return InEdges.build(src, dst, *degrees, F64, weight=weight, edge_feat=feat)


def rows(sparse: bool) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    dense = torch.randn(N, F, dtype=F64, generator=generator)
    return dense * (torch.rand(N, F, generator=generator) < 0.1) if sparse else dense


def make(kind: Any, **arguments: Any) -> Any:
    torch.manual_seed(0)
    conv = kind(F, D, 0.0, **arguments).double()
    for parameter in conv.parameters():
        torch.nn.init.normal_(parameter)
    return conv


def outputs(conv: Any, in_edges: InEdges, x: Tensor, nodes: Tensor) -> Tensor:
    block = in_edges.cut_block(nodes, NOTHING)
    return conv(conv.prepare(block, *gather_source_rows(block, x, NOTHING)))


def added_up(conv: Any, in_edges: InEdges, x: Tensor, nodes: Tensor) -> Tensor:
    total = AggregateAccumulator(conv, in_edges, nodes, x, conv.project(x), torch.device("cpu"))
    total.add(NOTHING)
    return conv(total.inputs())


def aggregate(name: str, x: Tensor, w: Tensor) -> Tensor:
    """The weighted sums of the docstrings, edge by edge."""
    total = torch.zeros(N, F, dtype=F64)
    d_in, d_out = (torch.bincount(ends, w, minlength=N) for ends in (DST, SRC))
    for u, v, each in zip(SRC.tolist(), DST.tolist(), w.tolist(), strict=True):
        scale = {
            "gcn": ((d_out[u] + 1) * (d_in[v] + 1)) ** -0.5,
            "sage": 1 / max(d_in[v], 1e-9),
            "gin": 1,
        }[name]
        total[v] += each * scale * x[u]
    own = {"gcn": ((d_out + 1) * (d_in + 1)) ** -0.5, "sage": torch.zeros(N), "gin": torch.ones(N)}[
        name
    ]
    return total + own[:, None] * x


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", LINEAR)
def test_sums_are_weighted_and_a_weight_of_k_is_k_edges(name: str, sparse: bool) -> None:
    conv, x = make(LINEAR[name][0], **LINEAR[name][1]), rows(sparse)
    halves = WEIGHTS / 8 + 0.1 * (WEIGHTS > 0)  # a mean of weights that add up to less than one
    nodes = torch.tensor([0, 1, 4, 5, 6])
    for weights in (WEIGHTS, halves):
        total = aggregate(name, x, weights)
        first = conv.weight_self if name == "sage" else None
        hidden = total @ conv.neighbour_weight + (conv.bias_in if name == "gin" else conv.bias)
        wanted = hidden if first is None else hidden + x @ first
        if name == "gin":
            wanted = torch.relu(conv.norm(hidden)) @ conv.weight_out + conv.bias_out
        for run in (outputs, added_up):
            got = run(conv, edges(weights), x.clone(), nodes)
            torch.testing.assert_close(got, wanted[nodes], rtol=1e-12, atol=1e-12)
    parallel = outputs(conv, edges(None, times=WEIGHTS.long()), x.clone(), nodes)
    torch.testing.assert_close(
        outputs(conv, edges(WEIGHTS), x.clone(), nodes), parallel, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("self_loops", [False, True])
def test_gat_reads_features_of_edges(self_loops: bool) -> None:
    conv = make(GAT, heads=2, merge="concat", self_loops=self_loops, num_edge_features=K)
    feat, x = torch.randn(len(SRC), K, dtype=F64), rows(False)
    z, t = (x @ conv.weight).view(N, 2, D), (feat @ conv.weight_edge).view(-1, 2, D)
    wanted = []
    for v in range(N):
        into = (v == DST).nonzero()[:, 0]
        messages, terms = z[SRC[into]], t[into]
        if self_loops:
            mean = terms.mean(dim=0, keepdim=True) if len(into) else t.new_zeros(1, 2, D)
            messages, terms = torch.cat((messages, z[v : v + 1])), torch.cat((terms, mean))
        score = (
            messages * conv.attention_src + z[v] * conv.attention_dst + terms * conv.attention_edge
        ).sum(-1)
        alpha = torch.softmax(torch.nn.functional.leaky_relu(score, 0.2), dim=0)
        wanted.append((alpha[..., None] * (messages + terms)).sum(dim=0).flatten() + conv.bias)
    nodes = torch.tensor([0, 1, 3, 5, 6])
    got = outputs(conv, edges(None, feat), x, nodes)
    torch.testing.assert_close(got, torch.stack(wanted)[nodes], rtol=1e-11, atol=1e-11)
    parameters = list(conv.parameters())
    for own, other in zip(
        torch.autograd.grad(got.sin().sum(), parameters),
        torch.autograd.grad(torch.stack(wanted)[nodes].sin().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-9)
