"""A model in memory (retexo.load) predicts what a partition directory's workers predict.

This holds for known and new nodes, for the torch module and for exported files. split.inductive is
scored with new nodes and on the whole graph.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from graph_files import write_files
from hetero_support import hetero_parts, random_hetero, write_hetero
from safetensors.torch import load_file
from support import (
    random_graph,
    run_main,
    save_npz,
    save_untrained,
    snapshot,
    thirds,
    with_arrays,
    write_partitions,
)
from test_inference import scattered

import retexo
from partitioning import datasets
from partitioning.errors import InputError
from partitioning.features.build import add_kinds, encode_tables
from partitioning.graph.graph_data import PLAIN_RELATION, GraphData
from retexo.apps.export import example_inputs, name_relations, to_program
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.models.network import Architecture, Schema, default_model_settings
from retexo.models.stage import OutputHeads
from retexo.settings.compose import compose
from retexo.worker.make_context import hide_held_out

NEW = 3
"""Nodes that join a graph."""
HEADS = dataclasses.asdict(
    OutputHeads((0, 1), alpha=0.3, steps=3, reach="hops", offsets=(0.1, 0.2, -0.3))
)


def checkpoint_of(folder: Path, shape: Any, **described: Any) -> Path:
    """A checkpoint of a network that nobody trained, with smoothing and calibration."""
    answer = {**HEADS, "temperature": 0.7, **described.pop("answer", {})}
    return save_untrained(folder, shape, answer, **described)


def model_of(name: str, **changes: Any) -> Any:
    return dataclasses.replace(default_model_settings(name, 2, 8), heads=2, **changes)


def with_edge_data(graph: GraphData, weighted: bool, num_features: int) -> GraphData:
    rng, count = np.random.default_rng(5), graph.num_edges
    return with_arrays(
        graph,
        edge_weight=rng.uniform(0.5, 2, count).astype(np.float32) if weighted else None,
        edge_feat=rng.normal(size=(count, num_features)).astype(np.float32)
        if num_features
        else None,
    )


PLAIN: dict[str, tuple[Any, bool, int]] = {
    "gcn": (model_of("gcn"), True, 0),
    "lookahead": (model_of("sage", lookahead=1, residual=True, self_weight=True), True, 2),
    "sage": (model_of("sage"), True, 2),
    "pool": (model_of("sage", aggregator="pool"), False, 0),
    "gin": (model_of("gin"), False, 0),
    "gat": (model_of("gat"), True, 2),
}
"""Model, whether edges have weights, and their number of features."""


def as_data(graph: GraphData, keep: Any = slice(None)) -> Any:
    """A graph, or some of its edges, as torch_geometric's Data."""
    data = pytest.importorskip("torch_geometric.data").Data
    ends = torch.tensor(np.stack((graph.edges.src, graph.edges.dst))[:, keep])
    edge_data = {"edge_weight": graph.edges.edge_weight, "edge_attr": graph.edges.edge_feat}
    edge_tensors = {
        name: torch.tensor(array[keep]) for name, array in edge_data.items() if array is not None
    }
    return data(
        x=torch.tensor(graph.features),
        edge_index=ends,
        node_id=torch.tensor(graph.node_ids),
        **edge_tensors,
    )


def probabilities(frame: pd.DataFrame) -> np.ndarray:
    return frame[[name for name in frame if str(name).startswith("p")]].to_numpy()


def assert_traced(predictor: Any, graph: Any, expected: np.ndarray) -> None:
    """The module, and what torch.export makes of it for any number of nodes and edges."""
    module, inputs = predictor.to_module(explainable=False), predictor.network_inputs(graph)
    exported = to_program(module, inputs).module()
    for run in (module, exported):
        traced = torch.softmax(run(*inputs), dim=1).detach().numpy()
        np.testing.assert_allclose(traced, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", PLAIN)
def test_a_plain_graph_in_memory(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, weighted, num_features = PLAIN[kind]
    graph = with_edge_data(random_graph(), weighted, num_features)
    read = num_features + weighted if kind == "gat" else num_features
    shape = Architecture(model, Schema.of_plain_graph(6), 3, num_edge_features=read)
    scaled = {"slopes": [0.5, 2.0, 1.5], "biases": [-1.0, 0.5, 1.0]} if kind == "gcn" else {}
    trained_on = {"weighted": ["node__edge__node"] if weighted else []}
    run = checkpoint_of(tmp_path / "run", shape, answer=scaled, graph=trained_on)
    predictor = retexo.load(run)
    parts = write_partitions(tmp_path, graph, thirds(40), scattered(40, 3), 3)
    of_parts, data = predictor.predict(parts), as_data(graph)

    of_data = predictor.predict(data)
    pd.testing.assert_frame_equal(of_data, of_parts, atol=1e-5, rtol=0)
    pd.testing.assert_frame_equal(predictor.embed(data), predictor.embed(parts), atol=1e-5, rtol=0)
    with pytest.raises(InputError, match="a partition directory, whose parts"):
        predictor.attach(parts.path)
    with pytest.raises(InputError, match="new: needs an attached graph"):
        predictor.predict(parts, new=(None, None))
    some = predictor.attach(data).predict(node_ids=[1030, 1003, 1003])
    assert some.id.tolist() == [1030, 1003, 1003]
    np.testing.assert_array_equal(probabilities(some), probabilities(of_data)[[30, 3, 3]])
    predictor.predict(as_data(with_edge_data(random_graph(), False, num_features)))
    assert ("each edge weighs 1" in caplog.text) == weighted
    assert_traced(predictor, data, probabilities(of_parts))

    # The last nodes join the graph of the others.
    old = (graph.edges.src < 40 - NEW) & (graph.edges.dst < 40 - NEW)
    smaller = as_data(
        with_arrays(
            graph,
            features=graph.features[:-NEW],
            node_ids=graph.node_ids[:-NEW],
        ),
        old,
    )
    nodes = pd.DataFrame({"id": graph.node_ids[-NEW:], "x": list(graph.features[-NEW:])})
    edges = pd.DataFrame({"src": graph.edges.src[~old] + 1000, "dst": graph.edges.dst[~old] + 1000})
    if weighted:
        edges["weight"] = graph.edges.edge_weight[~old]
    if num_features:
        edges["f"] = list(graph.edges.edge_feat[~old])
    predictor.attach(smaller)
    before = predictor.predict()
    new = predictor.predict(new=(nodes, edges))
    pd.testing.assert_frame_equal(new, of_data.tail(NEW).reset_index(drop=True), atol=1e-5, rtol=0)
    embedded = predictor.embed(new=(nodes, edges), output="tensors")["embeddings"].numpy()
    expected_rows = predictor.embed(data).to_numpy()[-NEW:, 1:]
    np.testing.assert_allclose(embedded, expected_rows, rtol=0, atol=1e-5)
    pd.testing.assert_frame_equal(predictor.predict(), before)


def as_hetero_data(graph: GraphData, sizes: dict[str, int]) -> Any:
    """The first nodes of each type, with the edges between them."""
    data = pytest.importorskip("torch_geometric.data").HeteroData()
    for name, table in graph.nodes.items():
        data[name].x = torch.tensor(np.asarray(table.features)[: sizes[name]])
        data[name].node_id = torch.tensor(table.node_ids[: sizes[name]])
    for edge_type, relation in reversed(graph.relations.items()):
        keep = (relation.src < sizes[edge_type[0]]) & (relation.dst < sizes[edge_type[2]])
        data[edge_type].edge_index = torch.tensor(np.stack((relation.src, relation.dst))[:, keep])
        if relation.edge_weight is not None:
            data[edge_type].edge_weight = torch.tensor(relation.edge_weight[keep])
    return data


WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
SCHEMA = Schema("paper", {"paper": 5, "author": 4}, (WRITES, CITES, ("paper", "by", "author")))


TRAINED_ON = {"relations.reverse": False, "weighted": ["__".join(CITES)]}
"""What a checkpoint of `typed_graph` says of it."""


def typed_graph() -> GraphData:
    sizes = {"paper": (30, 5), "author": (20, 4)}
    return random_hetero(sizes, dict.fromkeys(SCHEMA.relations, 70), weighted=[CITES])


@pytest.mark.parametrize("kind", ["hetero_sage", "rgcn", "rgat", "rgcn end to end"])
def test_a_typed_graph_in_memory(tmp_path: Path, kind: str) -> None:
    graph, schema = typed_graph(), SCHEMA
    by_layers = not kind.endswith("end to end")
    answer = {} if by_layers else {"stages": [1], "reach": "computed"}
    shape = Architecture(model_of(kind.split()[0], input_skip=by_layers), schema, 3)
    run = checkpoint_of(tmp_path / "run", shape, answer=answer, graph=TRAINED_ON)
    predictor = retexo.load(run)
    no_split = {name: mask & False for name, mask in thirds(30).items()}
    parts = write_hetero(tmp_path, graph, 3, masks=no_split)
    data = as_hetero_data(graph, SIZES)

    predictions = predictor.predict(data)
    pd.testing.assert_frame_equal(predictions, predictor.predict(parts), atol=1e-5, rtol=0)
    pd.testing.assert_frame_equal(predictor.embed(data), predictor.embed(parts), atol=1e-5, rtol=0)
    assert_traced(predictor, data, probabilities(predictions))

    sizes = {"paper": 28, "author": 19}
    nodes = {
        name: pd.DataFrame(
            {"id": table.node_ids[sizes[name] :], "x": [*table.features[sizes[name] :]]}
        )
        for name, table in graph.nodes.items()
    }
    edges = {}
    for edge_type, relation in graph.relations.items():
        new = (relation.src >= sizes[edge_type[0]]) | (relation.dst >= sizes[edge_type[2]])
        ids = [graph.nodes[edge_type[end]].node_ids for end in (0, 2)]
        edges[edge_type] = pd.DataFrame(
            {"src": ids[0][relation.src[new]], "dst": ids[1][relation.dst[new]]}
        )
        if relation.edge_weight is not None:
            edges[edge_type]["weight"] = relation.edge_weight[new]
    predictor.attach(as_hetero_data(graph, sizes))
    new_papers = predictor.predict(new=(nodes, edges))
    expected = predictions.tail(2).reset_index(drop=True)
    pd.testing.assert_frame_equal(new_papers, expected, atol=1e-5, rtol=0)


def weighted_case(kind: str, folder: Path) -> tuple[Path, Any]:
    """The run of a network that nobody trained on weights, and a weighted graph."""
    if kind in PLAIN:
        model, _, num_features = PLAIN[kind]
        graph = with_edge_data(random_graph(), True, num_features)
        shape = Architecture(
            model, Schema.of_plain_graph(6), 3, num_edge_features=num_features + (kind == "gat")
        )
        trained_on = {"weighted": ["node__edge__node"]}
        few = {"stages": [1], "steps": 1}  # ONNX takes seconds for each layer and step
        run = checkpoint_of(folder / "run", shape, graph=trained_on, answer=few)
        return run, as_data(graph)
    typed = Architecture(model_of(kind, input_skip=True), SCHEMA, 3)
    data = as_hetero_data(typed_graph(), SIZES)
    return checkpoint_of(folder / "run", typed, graph=TRAINED_ON), data


@pytest.mark.parametrize("kind", ["sage", "rgcn"])
def test_an_exported_file_takes_the_weights_and_features_of_edges(
    tmp_path: Path, kind: str
) -> None:
    run, data = weighted_case(kind, tmp_path)
    predictor = retexo.load(run)
    expected, inputs = probabilities(predictor.predict(data)), predictor.network_inputs(data)
    is_typed = kind not in PLAIN
    files = ["pt2"] if is_typed else ["pt2", "onnx"]
    for name in files:
        common = ("app=export", f"checkpoint_dir={run}", f"export.format={name}")
        run_main(*common, f"hydra.run.dir={name}", cwd=tmp_path)
    described = json.loads((tmp_path / "pt2" / "export.json").read_text())
    weight = "edge_weight.paper__cites__paper" if is_typed else "edge_weight"
    assert weight in described["inputs"]
    assert ("edge_attr" in described["inputs"]) == (not is_typed)

    module = torch.export.load(tmp_path / "pt2" / "model.pt2").module()
    exported = torch.softmax(module(*name_relations(inputs)), dim=1).detach().numpy()
    np.testing.assert_allclose(exported, expected, rtol=0, atol=1e-5)

    def changed(weights: Any) -> tuple[Any, ...]:
        edge_weights = {CITES: weights} if is_typed else weights
        return (*inputs[:2], edge_weights, *inputs[3:])

    weights = inputs[2][CITES] if is_typed else inputs[2]
    wrong = (
        inputs[:2],
        *(changed(bad_weights) for bad_weights in (weights[:-1], weights[:1], weights[:, None])),
    )
    for bad_inputs in wrong:
        with pytest.raises((ValueError, AssertionError, RuntimeError)):
            module(*name_relations(bad_inputs))
        with pytest.raises(InputError, match=r"edge_weight.*: (missing, and the network|has the)"):
            predictor.to_module()(*bad_inputs)
    if "onnx" in files:
        session = pytest.importorskip("onnxruntime").InferenceSession(
            tmp_path / "onnx" / "model.onnx"
        )
        tensors = [
            tensor.numpy()
            for group in inputs
            for tensor in (group.values() if isinstance(group, dict) else [group])
        ]
        feed = dict(zip(described["inputs"], tensors, strict=True))
        logits = torch.from_numpy(session.run(None, feed)[0])
        np.testing.assert_allclose(torch.softmax(logits, dim=1), expected, rtol=0, atol=1e-5)
        with pytest.raises(Exception, match="Non-zero status code"):
            session.run(None, feed | {weight: feed[weight][:1]})


def test_a_network_of_a_union_of_relations_is_exported(tmp_path: Path) -> None:
    shape = Architecture(
        model_of("rgcn_union"), Schema.of_plain_graph(6), 8, scorer="dot", num_edge_features=3
    )
    answer = {"offsets": [], "alpha": 1.0}
    predictor = retexo.load(checkpoint_of(tmp_path / "run", shape, answer=answer))
    program = to_program(predictor.to_module(explainable=False), example_inputs(predictor))
    x, ends = torch.randn(20, 6), torch.randint(20, (2, 50))
    relations = torch.eye(3)[torch.randint(3, (50,))]
    expected = predictor.to_module()(x, ends, None, relations)
    torch.testing.assert_close(program.module()(x, ends, None, relations), expected)


# --- tables with columns to encode ----------

TRAIN = ("hidden_dim=8", "num_rounds=[4]", "split=fraction", "split.train=0.5", "split.val=0.2")


def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    rng, count = np.random.default_rng(1), 60
    nodes = pd.DataFrame(
        {
            "customer": [f"c{number:02}" for number in range(count)],
            "age": rng.normal(40, 10, count),
            "city": rng.choice(["Bern", "Rome", "Oslo"], count),
            "label": rng.choice(["good", "bad"], count),
        }
    )
    ends = rng.choice(nodes.customer, (150, 2))
    return nodes, pd.DataFrame({"src": ends[:, 0], "dst": ends[:, 1]})


@pytest.fixture(scope="module")
def of_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of an untrained network for tables, which are in its folder tables/."""
    folder = Path(tmp_path_factory.mktemp("tables"))
    return untrained(folder, *tables(), "columns.id=customer", "symmetrize=true")


def test_tables_are_a_folder_or_frames_in_any_order(of_tables: Path) -> None:
    predictor, (nodes, edges) = retexo.load(of_tables), tables()
    of_folder = predictor.predict(of_tables / "tables")
    of_frames = predictor.predict((nodes.drop(columns="label")[::-1], edges))
    pd.testing.assert_frame_equal(of_frames, of_folder, atol=1e-6, rtol=0, check_dtype=False)
    some = retexo.load(of_tables, output="tensors").predict((nodes, edges), ["c03", "c01"])
    assert some["id"].tolist() == ["c03", "c01"]
    np.testing.assert_allclose(some["probabilities"], probabilities(of_folder)[[3, 1]], atol=1e-6)


def new_node(**changes: Any) -> pd.DataFrame:
    row = {"customer": "new", "age": 30.0, "city": "Bern", **changes}
    return pd.DataFrame({name: [value] for name, value in row.items() if value is not None})


def edge(src: Any = "new", dst: Any = "c01", **more: Any) -> pd.DataFrame:
    return pd.DataFrame({"src": [src], "dst": [dst], **more})


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "unknown id": (lambda p: p.predict(node_ids=["c01", "c99"]), "node_ids: .* no node c99"),
    "no graph": (lambda p: retexo.load(p.checkpoint.directory).predict(), "call attach"),
    "no such form": (lambda p: p.predict({"nodes": 1}), "graph: dict: expected a path, a Data"),
    "no file": (lambda p: p.predict("nowhere"), "nowhere: there is no such file"),
    "known node": (
        lambda p: p.predict(new=(new_node(customer="c01"), edge())),
        "c01; in the graph already",
    ),
    "no column": (lambda p: p.predict(new=(new_node(age=None), edge())), "no column `age`"),
    "text": (lambda p: p.predict(new=(new_node(age="old"), edge())), "new nodes.*`age`"),
    "no such end": (
        lambda p: p.predict(new=(new_node(), edge(dst="c99"))),
        "new edges.*c99; .*; give it among the new nodes, or leave the edge out",
    ),
    "old ends": (lambda p: p.predict(new=(new_node(), edge("c02"))), "row 0 joins two nodes"),
    "weights": (lambda p: p.predict(new=(new_node(), edge(weight=[2]))), "new edges: have weights"),
    "mixed cells": (
        lambda p: p.predict(new=(pd.DataFrame({"customer": ["a", 1], "age": [1, "b"]}), edge())),
        "one type of values in each column",
    ),
    "no column of ids": (
        lambda p: p.predict(new=(new_node().rename(columns={"customer": "id"}), edge())),
        "new nodes: no column of ids; give it as `customer`",
    ),
    "nodes alone": (lambda p: p.predict(new=new_node()), "new: expected a pair"),
    "links": (lambda p: p.score([("c01", "c02")]), "its model is for node_classification"),
    "partners": (lambda p: p.top(["c01"]), "its model is for node_classification"),
    "other table": (
        lambda p: p.predict((tables()[0].drop(columns="age"), tables()[1])),
        "no column `age`, which the model was trained with; nodes, edges have customer, city",
    ),
    "typed": (lambda p: p.predict(as_hetero_data(typed_graph(), SIZES)), "a heterogeneous graph"),
    "no features": (
        lambda p: p.predict((tables()[0][["customer"]], tables()[1])),
        "no column `age`, which the model was trained with",
    ),
    "width": (lambda p: p.predict(as_data(random_graph())), "feat|age"),
}
SIZES = {"paper": 30, "author": 20}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_named(of_tables: Path, name: str) -> None:
    before = snapshot(of_tables)
    predictor = retexo.load(of_tables).attach(tables())
    call, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        call(predictor)
    assert snapshot(of_tables) == before


def write_weighted_tables(folder: Path) -> Path:
    """A folder of tables in which the edges of one of two relations have weights."""
    rng = np.random.default_rng(3)
    ids, label = np.arange(40), np.arange(40) % 2
    users = pd.DataFrame({"id": ids, "x": rng.normal(size=40) + label, "label": label})
    knows = pd.DataFrame({"src": rng.integers(40, size=150), "dst": rng.integers(40, size=150)})
    visits = knows.assign(dst=knows.dst % 10)
    knows["weight"] = rng.uniform(0.5, 2, 150).round(3)
    nodes = {"user": users, "shop": users.drop(columns="label")[:10]}
    edges = {("user", "knows", "user"): knows, ("user", "visits", "shop"): visits}
    return write_files(folder, {**name_tables("nodes", nodes), **name_tables("edges", edges)})


def test_tables_of_which_some_have_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weighted = write_weighted_tables(tmp_path / "tables")
    common = ("--config-name=node_classification_rgcn", *TRAIN, "dropout=0", "split.test=0.3")
    data = ("dataset_name=file", "num_partitions=1", "num_layers=2", "dataset_file=tables")
    run_main("app=train", *common, *data, "hydra.run.dir=run", cwd=tmp_path)
    graph = json.loads((tmp_path / "run" / "checkpoint" / "model.json").read_text())["graph"]
    assert sorted(graph["weighted"]) == ["user__knows__user", "user__rev_knows__user"]

    predictor = retexo.load(tmp_path / "run").attach(weighted)
    of_weights, file = probabilities(predictor.predict()), weighted / "edges/user__knows__user.csv"
    edges = pd.read_csv(file)
    edges.assign(weight=1).to_csv(file, index=False)
    of_ones = probabilities(predictor.predict(weighted))
    assert "each edge weighs 1" in caplog.text
    assert not np.allclose(of_ones, of_weights, atol=1e-4)
    arguments = ("app=predict", *data[:2], "dataset_file=tables", "checkpoint_dir=run")
    run_main(*arguments, "partition_dir=ones", "hydra.run.dir=ones", cwd=tmp_path)
    table = pd.read_parquet(tmp_path / "ones" / "predictions.parquet")
    np.testing.assert_allclose(probabilities(table), of_ones, rtol=0, atol=1e-5)

    edges.drop(columns="weight").to_csv(file, index=False)
    visits = weighted / "edges/user__visits__shop.csv"  # has a column of that name now
    pd.read_csv(visits).assign(weight=2).to_csv(visits, index=False)
    with pytest.raises(InputError, match=r"no column `weight`.*, which the model was trained with"):
        predictor.predict(weighted)
    ended = run_main(*arguments, "partition_dir=new", "hydra.run.dir=none", cwd=tmp_path, rc=2)
    assert "weight" in ended.stderr.splitlines()[-1]


# --- new nodes, and the same nodes in the tables ----------


def untrained(folder: Path, nodes: Any, edges: Any, *settings: str, **more: Any) -> Path:
    """The run directory of an untrained network for tables, with the pipelines fitted to them.

    The tables are written to tables/ in it; `more` is part of model.json.
    """
    files = {**name_tables("nodes", nodes), **name_tables("edges", edges)}
    write_files(folder / "tables", files)
    file = ("dataset_name=file", f"dataset_file={folder / 'tables'}")
    dataset = compose([*file, *settings])
    encoded, states = encode_tables(datasets.read_graph(dataset), dataset.features, None)
    graph, kind = add_kinds(encoded, dataset.features), dataset.features.kind
    described = {
        "symmetrize": bool(dataset.symmetrize),
        "duplicates": dataset.duplicates,
        "features": kind if isinstance(kind, dict) else list(kind),
        "weighted": [],
    }
    if not graph.is_plain:
        widths = {name: table.features.shape[1] for name, table in graph.nodes.items()}
        schema = Schema(graph.target, widths, tuple(graph.relations))
        shape: Any = Architecture(model_of("hetero_sage"), schema, 2)
    else:
        shape = Architecture(model_of("gcn"), Schema.of_plain_graph(graph.num_features), 2)
        described["weighted"] = (
            ["__".join(PLAIN_RELATION)] if graph.edges.edge_weight is not None else []
        )
    more["answer"] = {"offsets": (0.1, 0.2), **more.get("answer", {})}
    return checkpoint_of(folder, shape, features=states, graph=described, **more)


def name_tables(name: str, tables: Any) -> dict[str, pd.DataFrame]:
    """The tables of nodes or edges by the names of their files."""
    if isinstance(tables, pd.DataFrame):
        return {f"{name}.csv": tables}
    joined = {
        key if isinstance(key, str) else "__".join(key): table for key, table in tables.items()
    }
    return {f"{name}/{key}.csv": table for key, table in joined.items()}


def people(count: int, prefix: str = "c", **more: Any) -> pd.DataFrame:
    rng = np.random.default_rng(count)
    ids = [f"{prefix}{number}" for number in range(count)]
    age, city = rng.normal(40, 10, count), rng.choice(["Bern", "Rome"], count)
    return pd.DataFrame({"id": ids, "age": age, "city": city, **more})


def between(src: pd.DataFrame, dst: pd.DataFrame, count: int, **more: Any) -> pd.DataFrame:
    rng = np.random.default_rng(count)
    ends = {"src": rng.choice(src.id, count), "dst": rng.choice(dst.id, count)}
    return pd.DataFrame({**ends, **more})


def joined(old: Any, new: Any) -> Any:
    """Tables with the rows of others."""
    if isinstance(old, pd.DataFrame):
        return pd.concat([old, new], ignore_index=True)
    return {key: joined(table, new[key]) if key in new else table for key, table in old.items()}


BLANK = pd.DataFrame({"id": ["n1", "n2"], "age": [None, 30.0], "city": [None, "Rome"]})
ALL_BLANK = BLANK.astype(object).assign(age=None, city=None)
REPEATED = pd.DataFrame(
    {"src": ["n1", "n1", "c2", "n2", "c5"], "dst": ["c1", "c1", "n1", "n1", "n2"]}
)
JOINING: dict[str, tuple[tuple[str, ...], pd.DataFrame, dict[str, Any]]] = {
    "merged": (("duplicates=merge",), BLANK, {}),
    "merged weights": (("duplicates=merge",), BLANK, {"weight": [0.5, 1.5, 2, 1, 0.25]}),
    "weights of 1": ((), BLANK, {"weight": [1] * 5}),
    "neighbours": (("features=neighbours",), BLANK, {}),
    "all blank": (("features=neighbours",), ALL_BLANK, {}),
    "zeros beside degrees": (("features=[given,degree]",), BLANK, {}),
    "filled": ((), BLANK, {}),
}


@pytest.mark.parametrize("name", JOINING)
def test_new_nodes_get_the_predictions_of_the_same_nodes_in_tables(
    name: str, tmp_path: Path
) -> None:
    settings, nodes, more = JOINING[name]
    old_nodes = people(30, label=["a", "b"] * 15)
    old_nodes.loc[7, ["age", "city"]] = None
    weight = {"weight": np.linspace(0.5, 2, 90)} if more else {}
    old, new = (
        (old_nodes, between(old_nodes, old_nodes, 90, **weight)),
        (nodes, REPEATED.assign(**more)),
    )
    predictor = retexo.load(untrained(tmp_path, *old, "symmetrize=true", *settings))
    expected = predictor.predict(tuple(map(joined, old, new)), ["n1", "n2"])
    of_new_nodes = predictor.attach(old).predict(new=new)
    np.testing.assert_allclose(
        probabilities(of_new_nodes), probabilities(expected), rtol=0, atol=1e-6
    )


KNOWS, BUYS = ("user", "knows", "user"), ("user", "buys", "item")
TYPED: dict[str, tuple[str, ...]] = {
    "merged": ("duplicates=merge",),
    "neighbours": ("features={user:neighbours}",),
    "filled": (),
    "own reverse": (),
}


@pytest.mark.parametrize("name", TYPED)
def test_new_nodes_of_types_get_the_predictions_of_the_same_nodes_in_tables(
    name: str, tmp_path: Path
) -> None:
    users, items = people(30, label=["a", "b"] * 15), people(20, "i")
    users.loc[7, ["age", "city"]] = None
    edges = {
        BUYS: between(users, items, 60, weight=np.linspace(0.5, 2, 60)),
        KNOWS: between(users, users, 50),
    }
    if name == "own reverse":  # the table's own edges, not those of `knows` reversed
        edges["user", "rev_knows", "user"] = between(users, users, 20)
    bought = pd.DataFrame({"src": ["n1"] * 2, "dst": ["i1"] * 2, "weight": [0.5, 1.5]})
    old = {"user": users, "item": items}, edges
    new = {"user": BLANK}, {BUYS: bought, KNOWS: REPEATED}
    predictor = retexo.load(untrained(tmp_path, *old, "target=user", *TYPED[name]))
    expected = predictor.predict(tuple(map(joined, old, new)), ["n1", "n2"])
    of_new_nodes = predictor.attach(old).predict(new=new)
    np.testing.assert_allclose(
        probabilities(of_new_nodes), probabilities(expected), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([-0.1, 1], "new edges: column `weight`: row 0 is -0.1"),
        ([1e30, 1], r"new edges: column `weight`: row 0 is 1e\+30"),
        ([1, None], "new edges: column `weight`, row 1 is blank"),
        ([2e18 / 3, 2e18 / 3], "new edges: column `weight`, merged: row 0"),
        (None, "new edges: no column `weight`, and the edges of the graph have weights; add it"),
    ],
)
def test_weights_of_new_edges_are_checked(weight: Any, message: str, tmp_path: Path) -> None:
    old_nodes = people(30, label=["a", "b"] * 15)
    old = old_nodes, between(old_nodes, old_nodes, 90, weight=np.linspace(0.5, 2, 90))
    predictor = retexo.load(untrained(tmp_path, *old, "duplicates=merge")).attach(old)
    edges = pd.DataFrame({"src": ["n1"] * 2, "dst": ["c1"] * 2})
    if weight is not None:
        edges["weight"] = weight
    with pytest.raises(InputError, match=message):
        predictor.predict(new=(BLANK, edges))


def test_pyg_explains_a_module(tmp_path: Path) -> None:
    """Its gradient-based and its learnt masks find the edges that count: those within two hops."""
    explain = pytest.importorskip("torch_geometric.explain")
    graph = random_graph()
    run = checkpoint_of(
        tmp_path / "run",
        Architecture(model_of("gcn"), Schema.of_plain_graph(6), 3),
        answer={"alpha": 1.0, "stages": [1]},
    )
    data = as_data(graph)
    module = retexo.load(run).to_module()
    explainer = explain.Explainer(
        model=module,
        algorithm=explain.GNNExplainer(epochs=20),
        explanation_type="model",
        node_mask_type="attributes",
        edge_mask_type="object",
        model_config={
            "mode": "multiclass_classification",
            "task_level": "node",
            "return_type": "raw",
        },
    )
    explanation = explainer(data.x, data.edge_index, index=7)
    within = {7}
    for _ in range(2):
        within |= set(graph.edges.src[np.isin(graph.edges.dst, [*within])].tolist())
    outside = ~np.isin(graph.edges.dst, [*within])
    assert (explanation.edge_mask.numpy()[outside] == 0).all()
    assert (explanation.edge_mask > 0).any()
    assert (explanation.node_mask > 0).any()


COMMON = (
    "app=train",
    "dataset_name=file",
    "num_partitions=2",
    "hidden_dim=8",
    "num_rounds=[5]",
    "best_val_model=false",
    "stopping=none",
    "classifiers=last",
    "smoothing.steps=0",
    "exchange.precision=[fp32]",
    "gradient.compression=none",
    "device=cpu",
    "cluster.threads=1",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hidden/ and whole/: trained inductively, and on the graph without edges of held-out nodes."""
    folder = Path(tmp_path_factory.mktemp("inductive"))
    graph, masks = random_graph(), thirds(40)
    held_out = masks["val_mask"] | masks["test_mask"]
    between = ~held_out[graph.edges.src] & ~held_out[graph.edges.dst]
    without = with_arrays(graph, src=graph.edges.src[between], dst=graph.edges.dst[between])
    save_npz(folder / "graph.npz", graph, masks)
    save_npz(folder / "without.npz", without, masks)
    for name, model, file in (
        ("hidden-gcn", "gcn", "graph"),
        ("without-gcn", "gcn", "without"),
        ("hidden-sage", "sage", "graph"),
    ):
        inductive = file == "graph"
        ended = run_main(
            "--config-name",
            f"node_classification_{model}",
            *COMMON,
            f"dataset_file={file}.npz",
            f"split.inductive={str(inductive).lower()}",
            f"partition_dir=parts-{file}",
            f"hydra.run.dir={name}",
            cwd=folder,
        )
        assert ("in the whole graph" in ended.stdout) == inductive
    return folder


def test_the_network_is_that_of_the_graph_without_held_out_nodes(runs: Path) -> None:
    for layer in range(2):
        one, other = (
            load_file(runs / f"{name}-gcn" / "checkpoint" / f"layer{layer}.safetensors")
            for name in ("hidden", "without")
        )
        for name, values in one.items():
            np.testing.assert_allclose(values, other[name], rtol=1e-4, atol=1e-6)


def test_scores_of_nodes_that_join_and_of_the_whole_graph(runs: Path) -> None:
    """The predictor gives both: each test node joins alone, and all are there at once."""
    graph, masks = random_graph(), thirds(40)
    summary = json.loads((runs / "hidden-sage" / "summary.json").read_text())
    assert summary["test"] != summary["transductive"]["test"]
    held_out = masks["val_mask"] | masks["test_mask"]
    predictor = retexo.load(runs / "hidden-sage")
    transductive = predictor.predict(as_data(graph))["class"].to_numpy()
    test = np.flatnonzero(masks["test_mask"])
    accuracy = (transductive[test] == graph.labels[test]).mean()
    assert summary["transductive"]["test"]["accuracy"] == pytest.approx(accuracy)

    training_nodes = np.flatnonzero(~held_out)
    place = np.full(40, -1)
    place[training_nodes] = np.arange(len(training_nodes))
    between = ~held_out[graph.edges.src] & ~held_out[graph.edges.dst]
    seen = with_arrays(
        graph,
        src=place[graph.edges.src[between]],
        dst=place[graph.edges.dst[between]],
        features=graph.features[training_nodes],
        node_ids=graph.node_ids[training_nodes],
    )
    predictor.attach(as_data(seen))
    right = []
    for node in test:
        into = (graph.edges.dst == node) & ~held_out[graph.edges.src]
        edges = pd.DataFrame(
            {"src": graph.edges.src[into] + 1000, "dst": graph.edges.dst[into] + 1000}
        )
        new = pd.DataFrame({"id": [node + 1000], "x": [graph.features[node]]})
        predicted = predictor.predict(new=(new, edges))["class"][0]
        right.append(predicted == graph.labels[node])
    assert summary["test"]["accuracy"] == pytest.approx(np.mean(right))


def test_no_edge_leaves_a_held_out_node_of_a_typed_graph() -> None:
    graph, count = random_hetero(), 3
    masks = thirds(len(graph.labels))
    parts = hetero_parts(graph, count, masks=masks)
    sizes = {name: tuple(len(part.nodes[name].node_ids) for part in parts) for name in graph.nodes}

    def work(comm: Communicator) -> dict[str, int]:
        visible = hide_held_out(parts[comm.rank], sizes, comm)
        return {edge_type[1]: len(edges.src) for edge_type, edges in visible.relations.items()}

    counts_by_rank = run_threads(count, work)
    held_out = masks["val_mask"] | masks["test_mask"]
    for edge_type, relation in graph.relations.items():
        is_visible = ~held_out[relation.src] if edge_type[0] == graph.target else relation.src >= 0
        is_visible = is_visible & ((relation.src != relation.dst) | (edge_type[0] != edge_type[2]))
        assert sum(counts[edge_type[1]] for counts in counts_by_rank) == is_visible.sum()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("trainer=sign",), "trainer=sign has no such training"),
        (("features=degree", "partition_dir=degrees"), "features=degree"),
        (("app=plan",), "app=plan predicts runs in which no node is hidden"),
    ],
)
def test_what_cannot_hide_nodes_is_refused(
    runs: Path, tmp_path: Path, changes: tuple[str, ...], message: str
) -> None:
    ended = run_main(
        *COMMON,
        "split.inductive=true",
        f"dataset_file={runs / 'graph.npz'}",
        "partition_dir=parts",
        *changes,
        f"hydra.run.dir={tmp_path / 'out'}",
        cwd=tmp_path,
        rc=2,
    )
    assert message in ended.stderr
