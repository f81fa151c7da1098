"""Convolutions compared with closed forms on dense matrices; sparse inputs with dense ones."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support import dense_conv
from torch import Tensor

from retexo.models.block import HaloRows, InEdges, Sources, gather_source_rows
from retexo.models.conv.gat import GAT
from retexo.models.conv.gcn import GCN
from retexo.models.conv.gin import GIN
from retexo.models.conv.sage import SAGEMean, SAGEPool
from retexo.models.convolution import Convolution
from retexo.models.matrix import SparseMatrix, is_sparse

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


def edges() -> InEdges:
    in_degree, out_degree = (torch.bincount(ends, minlength=NODES) for ends in (DST, SRC))
    return InEdges.build(SRC, DST, in_degree, out_degree, F64)


def rows(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    dense = torch.randn(NODES, WIDTH, dtype=F64, generator=generator)
    return (
        dense if kind == "dense" else dense * (torch.rand(NODES, WIDTH, generator=generator) < 0.1)
    )


def make(kind: type[Convolution], **arguments: Any) -> Convolution:
    torch.manual_seed(0)
    conv = kind(WIDTH, OUT, 0.0, **arguments).double()
    for parameter in conv.parameters():
        torch.nn.init.normal_(parameter)  # biases, too
    return conv


def outputs(conv: Convolution, x: Tensor, nodes: list[int]) -> Tensor:
    block = edges().cut_block(torch.tensor(nodes), NOTHING)
    return conv(conv.prepare(block, *gather_source_rows(block, x, NOTHING)))


LAYERS = {
    "gcn": (GCN, {}),
    "sage-mean": (SAGEMean, {}),
    "sage-pool": (SAGEPool, {}),
    "gin": (GIN, {"width": 5}),
    "gat-mean": (GAT, {"heads": 3, "merge": "mean", "self_loops": False}),
    "gat-concat": (GAT, {"heads": 3, "merge": "concat", "self_loops": True}),
}


NODE_SETS = ([0, 1, 2, 3, 4, 5], [1, 4], [5], [0, 3])
CLOSED = [pytest.param(name, nodes) for name in LAYERS for nodes in NODE_SETS]


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize(("name", "nodes"), CLOSED)
def test_closed_form(name: str, nodes: list[int], kind: str) -> None:
    layer, arguments = LAYERS[name]
    conv, x = make(layer, **arguments), rows(kind)
    assert is_sparse(x) == (kind == "sparse")
    got, wanted = outputs(conv, x, nodes), dense_conv(conv, COUNT, x)[nodes]
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("name", [pytest.param(name) for name in LAYERS])
def test_gradients_of_the_closed_form(name: str, kind: str) -> None:
    layer, arguments = LAYERS[name]
    conv, x = make(layer, **arguments), rows(kind)
    parameters = list(conv.parameters())
    every = outputs(conv, x, list(range(NODES)))
    weight = torch.randn(every.shape, dtype=F64)
    got = torch.autograd.grad((every * weight).sum(), parameters)
    wanted = torch.autograd.grad((dense_conv(conv, COUNT, x) * weight).sum(), parameters)
    for own, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("merge", ["mean", "concat"])
def test_gat_sums_rows_before_the_weights_or_after_them(
    merge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv, x = make(GAT, heads=3, merge=merge, self_loops=False), rows("dense")
    found = []
    for first in (True, False):
        monkeypatch.setattr(GAT, "_sums_first", lambda *_, first=first: first)
        output = outputs(conv, x, list(range(NODES)))
        found.append(
            (
                output,
                *torch.autograd.grad(
                    (output * dense_conv(conv, COUNT, x).detach()).sum(), list(conv.parameters())
                ),
            )
        )
        torch.testing.assert_close(output, dense_conv(conv, COUNT, x), rtol=1e-12, atol=1e-12)
    for before, after in zip(*found, strict=True):
        torch.testing.assert_close(before, after, rtol=1e-11, atol=1e-11)


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


# --- sparse matrices ----------


def random_sparse(num_rows: int, num_columns: int, seed: int = 0) -> sp.csr_array:
    return sp.csr_array(
        sp.random(num_rows, num_columns, density=0.1, rng=np.random.default_rng(seed), format="csr")
    )


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("shape", [(7, 5), (1, 30), (30, 1), (3, 3), (200, 60), (0, 4)])
def test_a_sparse_product_and_its_gradient_are_the_dense_ones(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    matrix = random_sparse(*shape).astype(str(dtype).removeprefix("torch."))
    weight = torch.randn(4, shape[1], dtype=dtype).T.requires_grad_()
    other = weight.detach().clone().requires_grad_()
    sparse = SparseMatrix.from_scipy(matrix)
    assert sparse.shape == shape
    got, wanted = sparse @ weight, torch.from_numpy(matrix.toarray()) @ other
    torch.testing.assert_close(got, wanted)
    (got**2).sum().backward()
    (wanted**2).sum().backward()
    torch.testing.assert_close(weight.grad, other.grad)


def test_sparse_dropout_scales_what_it_keeps_forward_and_backward() -> None:
    torch.manual_seed(1)
    sparse = SparseMatrix.from_scipy(sp.csr_array(np.ones((40, 20))))
    dropped = sparse.dropout(0.25)
    kept = dropped.values != 0
    assert 0.6 < float(kept.double().mean()) < 0.9
    assert set(dropped.values[kept].tolist()) == {1 / 0.75}
    dense = dropped @ torch.eye(20, dtype=F64)
    weight = torch.randn(20, 3, dtype=F64, requires_grad=True)
    (dropped @ weight).sum().backward()
    torch.testing.assert_close(weight.grad, dense.T @ torch.ones(40, 3, dtype=F64))
