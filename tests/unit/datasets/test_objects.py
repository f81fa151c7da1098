"""Graphs of other libraries come back as they were: objects that these libraries make."""

import errno
import math
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from graph_files import assert_graph, load, write_files
from support import dataset_settings, dgl, split_settings

import retexo
from partitioning import datasets
from partitioning.errors import InputError
from partitioning.update import prediction_graph

# Three edges in a path of four nodes.
DATA = {
    "x": torch.eye(4),
    "edge_index": torch.tensor([[0, 1, 2], [1, 2, 3]]),
    "y": torch.tensor([[4], [5], [4], [5]]),
}
SEVERAL_MASKS = {
    "train_mask": torch.eye(4).bool(),
    "val_mask": torch.eye(4).bool()[:, [1, 0, 2, 3]],
    "test_mask": torch.eye(4).bool()[0],
}


@pytest.mark.parametrize(
    ("data", "fields", "expected"),
    [
        (
            {
                "edge_weight": torch.tensor([0.5, 2, 1]),
                "edge_attr": torch.ones(3, 2),
                "train_mask": torch.tensor([True, False, False, True]),
                "val_mask": torch.tensor([False, True, False, False]),
                "test_mask": torch.tensor([False, False, True, False]),
            },
            {},
            {
                "src": [0, 1, 2],
                "dst": [1, 2, 3],
                "labels": [0, 1, 0, 1],
                "class_names": (4, 5),
                "features": np.eye(4),
                "edge_weight": [0.5, 2, 1],
                "edge_feat": np.ones((3, 2)),
                "train_mask": [1, 0, 0, 1],
                "val_mask": [0, 1, 0, 0],
                "test_mask": [0, 0, 1, 0],
            },
        ),
        ({"x": torch.eye(4).to_sparse()}, {}, {"features": np.eye(4), "features.format": "csr"}),
        (
            {
                "x": torch.eye(4, dtype=torch.bfloat16),
                "node_id": torch.tensor([70, 10, 30, 50]),
                "train_idx": torch.tensor([0, 2]),
                "val_idx": torch.tensor([1]),
                "test_idx": torch.tensor([3]),
            },
            {},
            {"node_ids": [70, 10, 30, 50], "features": np.eye(4), "train_mask": [1, 0, 1, 0]},
        ),
        (
            SEVERAL_MASKS,
            {"split": split_settings("given", index=1)},
            {"train_mask": [0, 1, 0, 0], "val_mask": [1, 0, 0, 0], "test_mask": [1, 0, 0, 0]},
        ),
        (
            {"y": torch.tensor([[1.5], [2.25], [torch.nan], [4]])},
            {"task": "node_regression"},
            {"labels": [[1.5], [2.25], [math.nan], [4]], "class_names": None},
        ),
    ],
    ids=["edges and masks", "sparse", "ids and lists of nodes", "several masks", "targets"],
)
def test_pyg(tmp_path, data, fields, expected):
    pyg = pytest.importorskip("torch_geometric", reason="the extra pyg")
    graph = load(retexo.from_pyg(pyg.data.Data(**DATA | data), tmp_path / "g.npz"), **fields)
    assert_graph(graph, **expected)


def test_of_several_masks_of_pyg_one_is_asked_for(tmp_path):
    pyg = pytest.importorskip("torch_geometric", reason="the extra pyg")
    path = retexo.from_pyg(pyg.data.Data(**DATA | SEVERAL_MASKS), tmp_path / "g.npz")
    with pytest.raises(InputError, match=r"4 masks; set split\.index to one of 0 \.\.\. 3"):
        load(path)


def read_to_predict(graph_object, stored=None, **fields):
    """A path, or an object, as a graph to predict by a model with these pipelines."""
    settings = dataset_settings("file", None, **fields)
    settings = replace(settings, split=replace(settings.split, kind="none"))
    return prediction_graph.read_prediction_graph(graph_object, settings, stored or {})


def make_pyg(_folder, feat):
    pyg = pytest.importorskip("torch_geometric", reason="the extra pyg")
    return pyg.data.Data(x=feat, edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=5)


def make_dgl(_folder, feat):
    graph = dgl.graph(([0, 1], [1, 2]), num_nodes=5)
    graph.ndata.update({} if feat is None else {"feat": feat})
    return graph


def make_dgl_file(folder, feat):
    dgl.save_graphs(str(folder / "g.dgl"), [make_dgl(folder, feat)])
    return folder / "g.dgl"


def make_networkx(_folder, feat):
    graph = pytest.importorskip("networkx").DiGraph([(0, 1), (1, 2)])
    graph.add_nodes_from((node, {"feat": row.tolist()}) for node, row in enumerate(feat))
    return graph


def make_npz(folder, feat):
    arrays = {"src": [0, 1], "dst": [1, 2], "train_mask": np.arange(5) < 2, **(feat or {})}
    return write_files(folder, {"g.npz": arrays}) / "g.npz"


CSR = {
    "feat_data": np.ones(5),
    "feat_indices": np.arange(5),
    "feat_indptr": np.arange(6),
    "feat_shape": [5, 5],
}


@pytest.mark.parametrize(
    ("make", "feat"),
    [
        (make_pyg, None),
        (make_pyg, torch.eye(5)),
        (make_pyg, torch.eye(5).to_sparse()),
        (make_dgl, None),
        (make_dgl, torch.eye(5)),
        (make_dgl_file, None),
        (make_dgl_file, torch.eye(5)),
        (make_networkx, torch.eye(5)),
        (make_npz, None),
        (make_npz, {"feat": np.eye(5)}),
        (make_npz, CSR),
    ],
)
def test_the_last_nodes_may_be_isolated(tmp_path, make, feat):
    features = ("degree",) if feat is None else ("given",)
    graph = read_to_predict(make(tmp_path, feat), features=features).graph
    width = 2 if feat is None else 5
    assert_graph(graph, **{"node_ids": [0, 1, 2, 3, 4], "features.shape": (5, width)})


def test_pandas(tmp_path):
    index = pd.Index(["b", "a"], name="id")
    nodes = pd.DataFrame({"label": ["x", "y"], "age": [3, 4]}, index=index)
    edges = pd.DataFrame({"src": ["a"], "dst": ["b"], "since": [1999]})
    graph = load(retexo.from_pandas(nodes, edges, tmp_path / "toy"))
    expected = {"features": [[3], [4]], "edge_feat": [[1999]], "src": [1], "dst": [0]}
    assert_graph(graph, shown_ids=["b", "a"], **expected)
    with pytest.raises(InputError, match=r"toy.* exists; choose another"):
        retexo.from_pandas(nodes, edges, tmp_path / "toy")


def test_scipy(tmp_path):
    A = sp.csr_array(np.array([[0, 2.0, 0], [0, 0, 1], [0, 0, 0]]))
    path = retexo.from_scipy(A, sp.eye_array(3), np.array(["u", "v", ""]), tmp_path / "g.npz")
    assert_graph(load(path), src=[0, 1], dst=[1, 2], labels=[0, 1, -1], edge_weight=[2, 1])
    with pytest.raises(InputError, match=r"g\.npz.* exists; choose another"):
        retexo.from_scipy(A != 0, None, [0, 1, 1], path)
    path = retexo.from_scipy(A != 0, None, [0, 1, 1], path, overwrite=True)
    assert_graph(load(path, features=("degree",)), labels=[0, 1, 1], edge_weight=None)


@pytest.mark.parametrize(
    ("kind", "nodes", "edges", "fields", "expected", "said"),
    [
        pytest.param(
            "Graph",
            [
                ("ann", {"label": "x", "feat": [1.0, 2]}),
                ("bob", {"label": None, "feat": None}),
                ("eve", {"label": "y", "feat": [3, 4]}),
            ],
            [("ann", "bob", {"weight": 2}), ("bob", "eve")],
            {"features": ("neighbours",)},
            {
                "shown_ids": ["ann", "bob", "eve"],
                "src": [0, 1, 1, 2],
                "dst": [1, 0, 2, 1],
                "edge_weight": [2, 2, 1, 1],
                "labels": [0, -1, 1],
                "class_names": ("x", "y"),
                "features": [[1, 2], [2, 3], [3, 4]],
            },
            [],
            id="names, both directions, weights of some edges",
        ),
        pytest.param(
            "Graph",
            [
                (0, {"label": 1, "feat": 0, "train_mask": True}),
                (1, {"label": math.nan, "feat": 1, "train_mask": None}),
                (2, {"label": 0, "feat": 2, "val_mask": True}),
                (3, {"label": 0, "feat": 3, "test_mask": True}),
            ],
            [(0, 1)],
            {},
            {"labels": [1, -1, 0, 0], "val_mask": [0, 0, 1, 0], "features": [[0], [1], [2], [3]]},
            [],
            id="masks of their own nodes, a label that is NaN",
        ),
        pytest.param(
            "Graph",
            [(0, {"label": "b"}), (1, {"label": math.nan}), (2, {"label": "a"})],
            [(0, 1)],
            {"features": ("degree",)},
            {"labels": [1, -1, 0], "class_names": ("a", "b")},
            [],
            id="names and NaN as labels",
        ),
        pytest.param(
            "MultiDiGraph",
            [(0, {"label": torch.tensor(4), "age": 30}), (1, {"label": 5})],
            [(0, 1, {"weight": 2}), (0, 1, {"kind": "x"}), (1, 0)],
            {"features": ("degree",)},
            {"edge_weight": [2, 1, 1], "class_names": (4, 5)},
            [
                "2 of 3 edges have no attribute 'weight', (0, 1) for instance",
                "nodes: `age`: left out",
                "edges: `kind`: left out",
            ],
            id="attributes without a meaning, missing weights",
        ),
        pytest.param(
            "DiGraph",
            [(0, {"label": np.uint64(2**60 + 1), "feat": 2**70}), (1, {"label": 2, "feat": 1})],
            [(0, 1)],
            {},
            {"class_names": (2, 2**60 + 1), "features": [[2.0**70], [1]]},
            [],
            id="large integers",
        ),
        pytest.param(
            "DiGraph",
            [(0, {"label": [1, 0]}), (1, {"label": (0, 1)})],
            [(0, 1)],
            {"features": ("degree",)},
            {"labels": [[1, 0], [0, 1]]},
            [],
            id="lists of labels",
        ),
    ],
)
def test_networkx(tmp_path, caplog, kind, nodes, edges, fields, expected, said):
    nx = pytest.importorskip("networkx", reason="comes with the extra pyg")
    graph = getattr(nx, kind)()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    path = retexo.from_networkx(graph, tmp_path / "new" / "g.npz")
    assert_graph(load(path, **fields), **expected)
    for words in said:
        assert words in caplog.text


def test_the_attribute_that_is_the_label_may_be_named(tmp_path):
    nx = pytest.importorskip("networkx", reason="comes with the extra pyg")
    path = retexo.from_networkx(nx.karate_club_graph(), tmp_path / "k.npz", label="club")
    club = load(path, features=("degree",))
    assert_graph(club, num_nodes=34, num_edges=156, class_names=("Mr. Hi", "Officer"))
    with pytest.raises(InputError, match=r"feat='size': no node has .*; they have `club`"):
        retexo.from_networkx(nx.karate_club_graph(), tmp_path / "i.npz", label="club", feat="size")


def heterograph():
    """Ends by relation, and of every type feat, label and masks."""
    edges = {
        ("person", "acts_in", "movie"): ([0, 1, 1], [2, 0, 1]),
        ("movie", "after", "movie"): ([0], [1]),
    }
    masks = {
        f"{part}_mask": torch.tensor([part == "train", False, False])
        for part in ("train", "val", "test")
    }
    return edges, {"feat": torch.eye(3), "label": torch.tensor([0, 1, -1]), **masks}


EDGE_FEAT = torch.tensor([[1.0, 1e5], [3, 3e5], [5, 5e5]])


def assert_heterograph(path):
    """Edge features are standardised; their means join the destinations' features."""
    kinds = {"kind": {"person": "degree"}, "scale": "auto"}
    graph = load(path, features=kinds)
    assert_graph(graph, target="movie", labels=[0, 1, -1], train_mask=[1, 0, 0])
    acts_in = graph.relations["person", "acts_in", "movie"]
    assert_graph(acts_in, src=[0, 1, 1], dst=[2, 0, 1], edge_weight=[1, 2, 3])
    assert_graph(graph.relations["movie", "after", "movie"], src=[0], dst=[1])
    assert graph.nodes["person"].num_nodes == 2
    up = math.sqrt(1.5)
    movies = [[1, 0, 0, 0, 0], [0, 1, 0, up, up], [0, 0, 1, -up, -up]]
    features = graph.nodes["movie"].features
    features = features.toarray() if hasattr(features, "toarray") else features
    np.testing.assert_allclose(features, movies, rtol=1e-5)


def test_pyg_of_several_types(tmp_path, caplog):
    pyg = pytest.importorskip("torch_geometric", reason="the extra pyg")
    edges, movie = heterograph()
    data = pyg.data.HeteroData()
    data["movie"].x, data["movie"].y = movie["feat"].to_sparse(), movie["label"]
    data["movie"].train_mask, data["movie"].val_mask, data["movie"].test_mask = list(
        movie.values()
    )[2:]
    data["person"].num_nodes = 2
    for edge_type, ends in edges.items():
        data[edge_type].edge_index = torch.tensor(ends)
    data["person", "acts_in", "movie"].edge_weight = torch.tensor([1.0, 2, 3])
    data["person", "acts_in", "movie"].edge_attr = EDGE_FEAT
    data.y, data.num_classes = torch.tensor([1]), 3
    path = retexo.from_pyg(data, tmp_path / "g.npz")
    assert path == str(tmp_path / "g")
    assert "data: `num_classes`, `y`: left out" in caplog.text
    assert_heterograph(path)
    data["per__son", "to", "movie"].edge_index = torch.tensor([[0], [0]])
    with pytest.raises(InputError, match="'per__son' cannot be the name"):
        retexo.from_pyg(data, tmp_path / "h")
    del data["movie"].y
    with pytest.raises(InputError, match="no labels"):
        retexo.from_pyg(data, tmp_path / "h")


def test_dgl_of_several_types(tmp_path):
    edges, movie = heterograph()
    ends = {edge_type: tuple(map(torch.tensor, pair)) for edge_type, pair in edges.items()}
    g = dgl.heterograph(ends, {"movie": 3, "person": 2})
    g.nodes["movie"].data.update(movie)
    g.edges["acts_in"].data["weight"] = torch.tensor([1.0, 2, 3])
    g.edges["acts_in"].data["feat"] = EDGE_FEAT
    assert_heterograph(retexo.from_dgl(g, tmp_path / "g"))
    dgl.save_graphs(str(tmp_path / "g.bin"), [g])
    assert_heterograph(str(tmp_path / "g.bin"))


@pytest.mark.parametrize(
    ("at", "name", "value", "message"),
    [
        ("edge", "weight", "heavy", "'weight' of 0 to 1 is 'heavy'; expected a finite number"),
        ("edge", "weight", None, "'weight' of 0 to 1 is None; expected a finite number"),
        ("edge", "weight", math.nan, "'weight' of 0 to 1 is nan; expected a finite number"),
        ("node", "feat", [[1.0], [2.0]], r"'feat' of node 1 is \[\[1.0\], \[2.0\]\]; expected"),
        ("node", "feat", "1.5", "'feat' of node 1 is '1.5'; expected a number or a list"),
        ("node", "feat", 1j, "'feat' of node 1 is 1j; expected a number"),
        ("node", "feat", [1.0, 2.0], "'feat' of node 1 has 2 numbers; expected 1, as before"),
        (
            "node",
            "label",
            {"a": 1},
            r"node 1 is \{'a': 1\}; expected a number or a text",
        ),
        ("node", "label", object(), "'label' of node 1 is <object"),
        ("node", "label", [0, 1], "'label' of node 1 has 2 numbers; expected 1.* a list of 0"),
        ("node", "train_mask", "no", "'train_mask' of node 1 is 'no'; expected True or False"),
        ("node", "train_mask", math.nan, "'train_mask' of node 1 is nan; expected True or False"),
        ("node", "train_mask", np.ones(2), "'train_mask' of node 1 is array"),
    ],
)
def test_an_attribute_of_networkx_that_is_no_number_is_named(
    tmp_path: Path, at: str, name: str, value: Any, message: str
) -> None:
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph([(0, 1)])
    networkx.set_node_attributes(graph, {0: 1, 1: 0}, "label")
    networkx.set_node_attributes(graph, {0: 1.0}, "feat")
    (graph.edges[0, 1] if at == "edge" else graph.nodes[1])[name] = value
    with pytest.raises(InputError, match=message):
        retexo.from_networkx(graph, tmp_path / "new" / "graph.npz")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("ids", [torch.tensor([3, 2, 1, 0]), ["d", "c", "b", "a"]])
def test_edges_of_types_end_at_the_nodes_of_their_positions(tmp_path, ids):
    geometric = pytest.importorskip("torch_geometric.data")
    data = geometric.HeteroData()
    data["a"].x, data["a"].y, data["a"].node_id = torch.eye(4), torch.tensor([0, 1, 0, 1]), ids
    data["a", "to", "a"].edge_index = torch.tensor([[0, 1], [1, 2]])
    path = retexo.from_pyg(data, tmp_path / "g")
    graph = datasets.read_graph(dataset_settings("file", path, reverse=False))
    (relation,) = graph.relations.values()
    assert (relation.src.tolist(), relation.dst.tolist()) == ([0, 1], [1, 2])
    data["a", "to", "a"].edge_index = torch.tensor([[0, -1], [1, 2]])
    with pytest.raises(InputError, match="a__to__a: src: row 1 is -1; expected a node in"):
        retexo.from_pyg(data, tmp_path / "odd")
    data["b", "to", "a"].edge_index = torch.tensor([[0], [1]])
    with pytest.raises(InputError, match=r"relation \('b', 'to', 'a'\): expected edges between"):
        retexo.from_pyg(data, tmp_path / "odd")


def test_two_nodes_of_networkx_with_one_name_are_named(tmp_path):
    networkx = pytest.importorskip("networkx")
    with pytest.raises(InputError, match="nodes 1 and '1' have the same name; rename one"):
        retexo.from_networkx(networkx.Graph([(0, 1), ("1", 0)]), tmp_path / "g.npz")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_idx": torch.tensor([-1])}, r"train_idx: row 0 is -1; expected a node in \[0, 4"),
        ({"train_idx": torch.tensor([0, 4])}, "train_idx: row 1 is 4; expected a node"),
        ({"train_idx": torch.tensor([0.5])}, "train_idx: row 0 is 0.5; expected int"),
        ({"train_idx": torch.eye(2).bool()}, "train_idx has shape"),
        ({"valid_idx": torch.tensor([1])}, "data: has `val_idx` and `valid_idx`, which mean"),
        (
            {"num_nodes": 6},
            r"x has shape \(4, 4\), .* expected 6 rows, one per node \(as .*num_nodes",
        ),
        ({"num_nodes": -1}, "num_nodes is -1; expected the number of nodes"),
        ({"y": torch.tensor([[0, 1, 0, 1]])}, r"y has shape \(1, 4\), .* expected 4 rows"),
        (
            {"y": torch.tensor([1])},
            r"y has shape \(1,\), .* expected 4 rows, one per node \(as data.*of the whole graph",
        ),
        ({"y": torch.tensor(3.5)}, r"y has shape \(\), .*; a label of the whole graph"),
        ({"y": np.array(["a", [1], [0], [1]], object)}, "y has texts and lists; expected a number"),
        (
            {"node_id": np.array([[7], "b", "c", "d"], object)},
            r"node_id of node 0 is \[7\]; expected a number or a text$",
        ),
        ({"y": {"a": 1}}, "y: object values; expected numbers or texts"),
        ({"y": torch.eye(4).to_sparse()}, "y: sparse values"),
        ({"x": torch.ones(4, 2, device="meta")}, "x: .*Cannot copy out of meta tensor"),
        ({"x": torch.tensor(1.0)}, "x: .*; give a row for each node"),
        ({"test_mask": torch.ones(3).bool()}, r"test_mask has shape \(3,\)"),
    ],
)
@pytest.mark.parametrize("typed", [False, True])
def test_odd_nodes_of_pyg_are_named_and_nothing_is_left(
    tmp_path: Path, typed: bool, changed: dict[str, Any], message: str
) -> None:
    pyg = pytest.importorskip("torch_geometric", reason="the extra pyg")
    valid = {"x": torch.eye(4), "y": torch.tensor([0, 1, 0, 1]), "val_idx": torch.tensor([2])}
    data = pyg.data.HeteroData() if typed else pyg.data.Data()
    for name, value in (valid | changed).items():
        (data["a"] if typed else data)[name] = value
    (data["a", "to", "a"] if typed else data).edge_index = torch.tensor([[0, 1], [1, 2]])
    message = message.replace("data", r"data\['a'\]") if typed else message
    with pytest.raises(InputError, match=message):
        retexo.from_pyg(data, tmp_path / "new" / "g.npz")
    assert not [*tmp_path.iterdir()]


def test_the_name_feature_of_dgls_data_sets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
    kinds = [("review", relation, "review") for relation in ("rur", "rtr")]
    for at, g in enumerate((dgl.graph(ends), dgl.heterograph(dict.fromkeys(kinds, ends)))):
        g.ndata.update({"feature": torch.eye(3), "label": torch.tensor([0, 1, 0]), "age": ends[0]})
        dgl.save_graphs(str(tmp_path / f"{at}.dgl"), [g])
        for path in (retexo.from_dgl(g, tmp_path / f"{at}.npz"), tmp_path / f"{at}.dgl"):
            graph = load(path)
            (nodes,) = graph.nodes.values()
            assert np.asarray(nodes.features[:, :3]).tolist() == np.eye(3).tolist()
    assert caplog.text.count("`age`: left out") == 4
    with pytest.raises(InputError, match="this DGLBlock: expected a DGLGraph that is no block"):
        retexo.from_dgl(dgl.to_block(dgl.graph(ends)), tmp_path / "block.npz")
    g = dgl.graph(ends)
    g.edata.update({"w": torch.ones(3), "weight": torch.ones(3)})
    with pytest.raises(InputError, match="edata: has `w` and `weight`, which mean the same"):
        retexo.from_dgl(g, tmp_path / "twice.npz")


FRAMES = pd.DataFrame({"id": [7, 9], "age": [1.0, 2]}), pd.DataFrame({"src": [7], "dst": [9]})


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        (*FRAMES, ""),
        ({"a": FRAMES[0]}, {("a", "to", "a"): FRAMES[1]}, ""),
        (FRAMES[0], FRAMES[1].assign(dst=8), "^edges: column `dst`: row 0 is 8; expected one of"),
        (FRAMES[0], FRAMES[0], "^edges: has the columns id, age; expected src and dst"),
        ({"a": FRAMES[0]}, {("a", "b"): FRAMES[1]}, r"^edges: \('a', 'b'\): expected \(SOURCE"),
        ({1: FRAMES[0]}, {(1, "to", 1): FRAMES[1]}, "^graph: 1 cannot be the name of a type"),
        ({"a": FRAMES[0]}, {}, "^graph/edges: there is no table"),
        ({"a": FRAMES[0]}, {("a", "to", "a"): None}, "^edges/a__to__a: NoneType; expected a data"),
    ],
)
def test_frames_to_predict_are_read_in_memory(
    monkeypatch: pytest.MonkeyPatch, nodes: Any, edges: Any, message: str
) -> None:
    monkeypatch.setattr("tempfile.mkdtemp", None)
    settings = dataset_settings("file", None, target="a" if isinstance(nodes, dict) else None)
    settings = replace(settings, split=replace(settings.split, kind="none"))
    if not message:
        graph = prediction_graph.read_prediction_graph((nodes, edges), settings, {}).graph
        (table,), relation = graph.nodes.values(), next(iter(graph.relations.values()))
        assert table.node_ids.tolist() == [7, 9]
        assert (relation.src.tolist(), relation.dst.tolist()) == ([0], [1])
        return
    with pytest.raises(InputError, match=message):
        prediction_graph.read_prediction_graph((nodes, edges), settings, {})


@pytest.mark.parametrize("feat", [None, [1.0]])
def test_a_model_of_columns_asks_an_object_for_tables(feat: Any) -> None:
    graph = pytest.importorskip("networkx").DiGraph([(7, 9)])
    graph.add_nodes_from((node, {} if feat is None else {"feat": feat}) for node in (7, 9))
    stored = read_to_predict(FRAMES).stored
    message = "no column `age`, which the model was trained with; give tables or data frames"
    with pytest.raises(InputError, match=message):
        read_to_predict(graph, stored)


def test_uuids_are_ids_as_texts() -> None:
    ids = [uuid.UUID(int=7), uuid.UUID(int=9)]
    frames = FRAMES[0].assign(id=ids), pd.DataFrame({"src": ids[:1], "dst": ids[1:]})
    assert_graph(read_to_predict(frames).graph, shown_ids=[*map(str, ids)], src=[0], dst=[1])


def test_ends_of_pyg_are_integers(tmp_path: Path) -> None:
    pyg = pytest.importorskip("torch_geometric", reason="the extra pyg")
    data = pyg.data.Data(**DATA | {"edge_index": torch.tensor([[0.0, 1], [1, 2]])})
    with pytest.raises(InputError, match=r"data\.edge_index has .*float32; expected integers"):
        retexo.from_pyg(data, tmp_path / "g.npz")


@pytest.mark.parametrize(
    "no_graph", [None, "graph", [1], {"a": 1}, pd.Series([1]), np.ones((3, 4)), int]
)
@pytest.mark.parametrize(
    ("write", "message"),
    [
        (retexo.from_pyg, "this {} has no edge_index|a list of 1 graphs"),
        (retexo.from_dgl, "this {}: expected a DGLGraph"),
        (retexo.from_networkx, "this {}: expected a graph of networkx"),
        (
            lambda no_graph, path: retexo.from_pandas(no_graph, FRAMES[1], path),
            "nodes: {}; expected a data frame",
        ),
        (
            lambda no_graph, path: retexo.from_pandas(FRAMES[0], no_graph, path),
            "edges: {}; expected a data frame",
        ),
        (
            lambda no_graph, path: retexo.from_scipy(no_graph, None, [0, 1], path),
            "^A.*; (expected|give) .*nodes, nodes",
        ),
    ],
    ids=["pyg", "dgl", "networkx", "nodes", "edges", "scipy"],
)
def test_what_is_no_graph_at_all(tmp_path: Path, no_graph: Any, write: Any, message: str) -> None:
    with pytest.raises(InputError, match=message.format(type(no_graph).__name__)):
        write(no_graph, tmp_path / "g.npz")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1j, 2], "not a table with .*column z with type complex128.*astype"),
        (["a", 1], "not a table with .*column z .*Expected bytes, got a 'int'.*astype"),
        ([object(), None], "column z with type object: Could not convert"),
        (pd.arrays.SparseArray([0, 1]), r"Sparse.*column z.*sparse\.to_dense"),
        (pd.Series([{3, 1}, {2}]), r"column 'z' has sets.*\.map\(sorted\)"),
        ([{"a": 1}, {}], r"column 'z' has dictionaries"),
        (pd.interval_range(0, 2), r"column 'z' has .*intervals.*astype\(str\)"),
        (pd.cut([1, 2], 2), r"column 'z' has .*intervals.*astype\(str\)"),
    ],
)
def test_a_frame_that_is_no_table_leaves_nothing(
    tmp_path: Path, column: list[Any], message: str
) -> None:
    nodes = pd.DataFrame({"id": [1, 2], "label": [0, 1]})
    edges = pd.DataFrame({"src": [1, 2], "dst": [2, 1]})
    with pytest.raises(InputError, match=f"nodes: .*{message}"):
        retexo.from_pandas(nodes.assign(z=column), edges, tmp_path / "new" / "graph")
    with pytest.raises(InputError, match="nodes: two columns are called 'id'; rename one"):
        retexo.from_pandas(pd.concat([nodes, nodes], axis=1), edges, tmp_path / "graph")
    with pytest.raises(InputError, match="nodes: two columns are called 'label'; rename one"):
        retexo.from_pandas(nodes.assign(**{"label ": 1}), edges, tmp_path / "graph")
    with pytest.raises(InputError, match="edges: columns of several levels"):
        retexo.from_pandas(nodes, pd.concat({"a": edges}, axis=1), tmp_path / "graph")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("is_new", [True, False])
def test_a_folder_of_which_one_table_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    write, (nodes, edges) = pq.write_table, FRAMES
    changed = pd.concat([edges, edges])
    target = tmp_path / "out"

    def write_edges(table: Any, path: Path) -> None:
        if "src" not in table.column_names:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(table, path)

    if not is_new:
        retexo.from_pandas(nodes, edges, target)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    monkeypatch.setattr(pq, "write_table", write_edges)
    with pytest.raises(InputError, match=r"cannot be written .No space left on device"):
        retexo.from_pandas(nodes, changed, target, overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before
    monkeypatch.undo()
    retexo.from_pandas(nodes, changed, target, overwrite=not is_new)
    assert sorted(path.name for path in target.iterdir()) == ["edges.parquet", "nodes.parquet"]
    assert len(pd.read_parquet(target / "edges.parquet")) == 2


@pytest.mark.parametrize("path", [None, 3, "a\0.npz", "file/g.npz", f"{'a' * 300}.npz"])
@pytest.mark.parametrize(
    "write",
    [
        lambda path: retexo.from_scipy(sp.eye_array(2), None, [0, 1], path),
        lambda path: retexo.from_pandas(*FRAMES, path),
    ],
    ids=["file", "folder"],
)
def test_what_is_no_path_to_write(tmp_path: Path, path: Any, write: Any) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"^path="):
        write(tmp_path / path if isinstance(path, str) else path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
