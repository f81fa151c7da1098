"""Graphs of other libraries come back as they were: objects that these libraries make."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support import dataset_settings

import retexo
from partitioning import datasets
from partitioning.errors import InputError


def load(path, **fields):
    return datasets.load(dataset_settings("file", path, **fields))


def test_pyg(tmp_path):
    pyg = pytest.importorskip("torch_geometric", reason="the extra pyg")
    data = pyg.data.Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([[4], [5], [4]]))
    data.edge_weight, data.edge_attr = torch.tensor([0.5, 2]), torch.ones(2, 3)
    data.train_mask = data.val_mask = data.test_mask = torch.tensor([True, False, False])
    graph = load(retexo.from_pyg(data, tmp_path / "g.npz"))
    assert (graph.src.tolist(), graph.dst.tolist()) == ([0, 1], [1, 2])
    assert graph.labels.tolist() == [4, 5, 4]
    assert graph.features.tolist() == np.eye(3).tolist()
    assert graph.edge_weight.tolist() == [0.5, 2]
    assert graph.edge_feat.shape == (2, 3)
    assert graph.train_mask.tolist() == [True, False, False]
    with pytest.raises(InputError, match="exists; choose another"):
        retexo.from_pyg(data, tmp_path / "g.npz")
    data.x = data.x.to_sparse()
    assert sp.issparse(load(retexo.from_pyg(data, tmp_path / "g.npz", overwrite=True)).features)
    with pytest.raises(InputError, match="no labels"):
        retexo.from_pyg(pyg.data.Data(x=torch.eye(3), edge_index=data.edge_index), tmp_path / "h.npz")
    with pytest.raises(InputError, match="to_homogeneous"):
        retexo.from_pyg(pyg.data.HeteroData(), tmp_path / "h.npz")


def test_dgl(tmp_path):
    dgl = pytest.importorskip("dgl", reason="has no wheels for this Python")
    g = dgl.graph((torch.tensor([0, 1]), torch.tensor([1, 2])))
    g.ndata["feat"], g.ndata["label"] = torch.eye(3), torch.tensor([0, 1, -1])
    g.edata["weight"] = torch.tensor([0.5, 3])
    graph = load(retexo.from_dgl(g, tmp_path / "g.npz"))
    assert (graph.src.tolist(), graph.dst.tolist()) == ([0, 1], [1, 2])
    assert graph.labels.tolist() == [0, 1, -1]
    assert graph.edge_weight.tolist() == [0.5, 3]


def test_networkx(tmp_path):
    nx = pytest.importorskip("networkx", reason="comes with the extra pyg")
    G = nx.Graph()
    for name, kind, feat in (("ann", "x", [1.0, 2]), ("bob", None, None), ("eve", "y", [3, 4])):
        G.add_node(name, label=kind, feat=feat)
    G.add_edge("ann", "bob", weight=2)
    G.add_edge("bob", "eve")
    graph = load(retexo.from_networkx(G, tmp_path / "g.npz"), features=("neighbours",))
    names = graph.node_names.tolist()
    assert names == ["ann", "bob", "eve"]
    edges = zip(graph.src, graph.dst, graph.edge_weight, strict=True)
    found = {(names[src], names[dst]): weight for src, dst, weight in edges}
    assert found == {("ann", "bob"): 2, ("bob", "ann"): 2, ("bob", "eve"): 1, ("eve", "bob"): 1}
    assert [None if label < 0 else graph.class_names[label] for label in graph.labels] == ["x", None, "y"]
    assert graph.features.tolist() == [[1, 2], [2, 3], [3, 4]]
    club = load(retexo.from_networkx(nx.karate_club_graph(), tmp_path / "k.npz", label="club"), features=("degree",))
    assert (club.num_nodes, club.num_edges, club.class_names) == (34, 156, ("Mr. Hi", "Officer"))


def test_scipy(tmp_path):
    A = sp.csr_array(np.array([[0, 2.0, 0], [0, 0, 1], [0, 0, 0]]))
    graph = load(retexo.from_scipy(A, sp.eye_array(3), np.array(["u", "v", ""]), tmp_path / "g.npz"))
    assert (graph.src.tolist(), graph.dst.tolist(), graph.edge_weight.tolist()) == ([0, 1], [1, 2], [2, 1])
    assert graph.labels.tolist() == [0, 1, -1]
    graph = load(retexo.from_scipy(A != 0, None, [0, 1, 1], tmp_path / "h.npz"), features=("degree",))
    assert graph.edge_weight is None
