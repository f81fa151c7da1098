"""Classes and numbers of edges (docs/edges.md), from tables to predictions.

Accounts and their payments are a plain graph; users and the items they rate are typed.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from graph_files import write_files
from support import assert_sent_as_planned

import retexo
from partitioning import datasets
from partitioning.directory.read_directory import find_partition_directory
from partitioning.errors import InputError
from partitioning.graph.graph_data import MASKS, GraphData
from partitioning.read.labelled_edges import choose_message_edges
from retexo.apps import evaluate, partition_data, plan, predict, train
from retexo.settings.compose import compose

ACCOUNTS, PAYMENTS = 90, 900
TASK = "edge_classification"
PAYS, FROM, TO = (
    ("node", "edge", "node"),
    ("node", "source", "edge"),
    ("node", "destination", "edge"),
)
RATED, KNOWS = ("user", "rated", "item"), ("user", "knows", "user")
SHARES = ("split=fraction", "split.train=0.5", "split.val=0.25", "split.test=0.25")
BANK_SETTINGS = (
    *("dataset_name=file", "dataset_file=bank", "columns.label=is_fraud", "device=cpu"),
    *("cluster.threads=1", "columns.time=day", "seed=3"),
)
TRAINING = (
    *("hidden_dim=16", "num_layers=2", "num_rounds=[20]", "learning_rate=[0.03]"),
    *("stopping=none", "dropout=0"),
)


def write_bank(folder: Path, *, random_labels: bool = False) -> pd.DataFrame:
    """Fraud depends on the amount and both accounts; a tenth of the payments has no label."""
    rng = np.random.default_rng(0)
    risk, age = rng.normal(size=(2, ACCOUNTS))
    names = np.array([f"a{row}" for row in range(ACCOUNTS)])
    src, dst = rng.integers(ACCOUNTS, size=(2, PAYMENTS))
    amount = rng.normal(size=PAYMENTS)
    is_fraud = risk[src] + risk[dst] + amount > 0.5
    if random_labels:
        is_fraud = rng.random(PAYMENTS) < 0.5
    edges = pd.DataFrame({"src": names[src], "dst": names[dst], "amount": amount})
    edges["day"] = np.arange(PAYMENTS)
    edges["is_fraud"] = np.where(is_fraud, "yes", "no")
    edges.loc[rng.random(PAYMENTS) < 0.1, "is_fraud"] = None
    nodes = pd.DataFrame({"id": names, "risk": risk, "age": age})
    write_files(folder, {"nodes.csv": nodes, "edges.csv": edges})
    return edges


def write_ratings(folder: Path) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    taste, genre = rng.normal(size=60), rng.normal(size=30)
    users, items = rng.integers(60, size=800), rng.integers(30, size=800)
    stars = 3 + taste[users] + genre[items] + 0.1 * rng.normal(size=800)
    rated = pd.DataFrame({"user": users + 100, "item": items, "stars": stars})
    files = {
        "nodes/user.csv": pd.DataFrame({"id": np.arange(60) + 100, "taste": taste}),
        "nodes/item.csv": pd.DataFrame({"id": np.arange(30), "genre": genre}),
        "edges/user__rated__item.csv": rated,
        "edges/user__knows__user.csv": "src,dst,years\n100,102,1.5\n101,100,3.0\n",
    }
    write_files(folder, files)
    return rated


def read_labelled(*settings: str, folder: str = "bank", task: str = TASK) -> GraphData:
    overrides = ["dataset_name=file", f"dataset_file={folder}", *settings]
    graph = datasets.read_graph(compose(overrides, task))
    assert not graph.is_plain
    return graph


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    monkeypatch.chdir(tmp_path)
    return write_bank(Path("bank"))


def test_an_edge_is_a_node_that_its_ends_send_to(bank: pd.DataFrame) -> None:
    graph = read_labelled("columns.label=is_fraud", "columns.time=day")
    assert list(graph.nodes) == ["node", "edge"]
    assert (graph.target, graph.labelled_edges, graph.class_names) == ("edge", PAYS, ("no", "yes"))
    assert (
        read_labelled("columns.label=is_fraud", "columns.time=day", "target=edge").target == "edge"
    )
    names: Any = graph.nodes["node"].node_names
    for relation, column in ((FROM, "src"), (TO, "dst")):
        ends = graph.relations[relation]
        assert np.array(names.tolist())[ends.src].tolist() == bank[column].tolist()
        assert ends.dst.tolist() == list(range(PAYMENTS))
    class_numbers = [{"no": 0, "yes": 1}.get(name, -1) for name in bank["is_fraud"]]
    assert graph.labels.tolist() == class_numbers
    np.testing.assert_allclose(graph.nodes["edge"].features[:, 0], bank["amount"], rtol=1e-6)
    assert graph.nodes["edge"].features.shape[1] == 1
    np.testing.assert_array_equal(graph.node_time, bank["day"])
    assert graph.relations[PAYS].edge_feat is None


@pytest.mark.parametrize(
    ("settings", "last_kept"),
    [
        ((), 599),
        (("task.message_edges=all",), 899),
        (("split=time", "task.message_edges=all"), 599),
    ],
)
def test_edges_that_are_held_out_carry_no_messages(
    bank: pd.DataFrame, settings: tuple[str, ...], last_kept: int
) -> None:
    """With a split by time, edges later than the first one held out carry none either."""
    composed = compose(
        ["dataset_name=file", "dataset_file=bank", *BANK_SETTINGS[2:], *settings], TASK
    )
    graph: Any = datasets.read_graph(composed)
    message_graph: Any = choose_message_edges(graph, composed, np.arange(PAYMENTS) >= 600)
    all_edges, expected = graph.relations[PAYS], slice(last_kept + 1)
    for relation, ends in ((PAYS, ("src", "dst")), (("node", "rev_edge", "node"), ("dst", "src"))):
        assert (
            message_graph.relations[relation].src.tolist()
            == getattr(all_edges, ends[0])[expected].tolist()
        )
        assert (
            message_graph.relations[relation].dst.tolist()
            == getattr(all_edges, ends[1])[expected].tolist()
        )
    assert not [relation for relation in message_graph.relations if relation[0] == "edge"]


def test_an_edge_without_label_needs_no_time(bank: pd.DataFrame) -> None:
    times = bank["day"].where(bank["is_fraud"].notna())
    bank.assign(day=times).to_csv("bank/edges.csv", index=False)
    graph = read_labelled("columns.label=is_fraud", "columns.time=day")
    np.testing.assert_array_equal(graph.node_time, times)


def test_a_source_has_all_its_edges_in_one_set(bank: pd.DataFrame) -> None:
    overrides = [
        *BANK_SETTINGS,
        *SHARES,
        "split.by=source",
        "num_partitions=2",
        "partition_dir=parts",
    ]
    partition_data.run(compose(overrides, TASK))
    directory = find_partition_directory(list(Path("parts").iterdir()), None)
    sets: dict[str, set[str]] = {}
    for part in range(2):
        partition = directory.read_part(part)
        ends = directory.ends_of_edges(part)["source"]
        for mask in MASKS:
            sets.setdefault(mask, set()).update(ends[getattr(partition, mask).numpy()].tolist())
    assert all(sets.values())
    assert len(set.union(*sets.values())) == sum(map(len, sets.values()))


def test_partitions_change_no_prediction_and_bytes_are_as_planned(bank: pd.DataFrame) -> None:
    overrides = [*BANK_SETTINGS, *SHARES, *TRAINING, "+experiment=exact", "task.scorer=mlp"]
    overrides.append("task.class_weights=none")
    tables = {}
    for parts in (1, 3):
        settings = [*overrides, f"num_partitions={parts}", f"partition_dir=parts{parts}"]
        run = train.run(compose(settings, TASK), Path(f"run{parts}"))
        with_model = [*settings, f"checkpoint_dir=run{parts}", "predict.format=csv"]
        predict.run(compose(with_model, TASK), Path(f"predicted{parts}"))
        tables[parts] = pd.read_csv(f"predicted{parts}/predictions.csv")
        assert run["test"]["roc_auc"] > 0.8
    again = evaluate.run(compose(with_model), Path("evaluated"))  # by the model's task
    assert again["test"]["roc_auc"] == pytest.approx(run["test"]["roc_auc"], abs=1e-6)
    planned = plan.run(compose([*settings, "app=plan"], TASK), Path("plan"))
    assert_sent_as_planned(planned, run)
    one, three = tables[1], tables[3]
    assert list(one) == ["id", "class", "p0", "p1", "known_class", "split", "source", "destination"]
    assert one["source"].tolist() == bank["src"].tolist()
    assert one["destination"].tolist() == bank["dst"].tolist()
    assert one["known_class"].fillna("").tolist() == bank["is_fraud"].fillna("").tolist()
    assert three.drop(columns=["p0", "p1", "class"]).equals(one.drop(columns=["p0", "p1", "class"]))
    np.testing.assert_allclose(three["p1"], one["p1"], rtol=0, atol=2e-4)


def test_an_edge_is_predicted_the_same_as_a_further_one(bank: pd.DataFrame) -> None:
    settings = [*BANK_SETTINGS, *SHARES, *TRAINING, "num_partitions=1", "task.scorer=dot"]
    train.run(compose(settings, TASK), Path("run"))
    nodes = pd.read_csv("bank/nodes.csv")
    model = retexo.load("run").attach((nodes, bank.drop(columns="is_fraud")))
    of_graph = model.predict()
    further_edges = model.predict(edges=bank.drop(columns="is_fraud").head(20))
    assert further_edges["id"].tolist() == list(range(20))
    np.testing.assert_allclose(further_edges["p1"], of_graph["p1"].head(20), rtol=0, atol=1e-6)
    indexed = model.predict(edges=bank.drop(columns="is_fraud").head(20).set_index("src"))
    np.testing.assert_array_equal(indexed["p1"], further_edges["p1"])
    _check_service((nodes, bank.drop(columns="is_fraud")), further_edges)
    with pytest.raises(InputError, match=r"edges: column `dst`: row 0 is a0x; expected .* attach"):
        model.predict(edges=pd.DataFrame({"src": ["a1"], "dst": ["a0x"], "amount": 1.0, "day": 1}))
    with pytest.raises(InputError, match="edges, node_ids, new: give one"):
        model.predict(edges=bank.head(1), node_ids=[1])
    with pytest.raises(InputError, match=r"no column `amount`, .* found nothing"):
        model.predict(edges=bank[["src", "dst"]].head(1))
    further = [*settings[:-1], "init=run", "num_rounds=[1]"]
    with pytest.raises(InputError, match=r"task\.scorer=mlp: the model of .* has task.scorer=dot"):
        train.run(compose([*further, "task.scorer=mlp"], TASK), Path("other"))
    for task in ("edge_regression", "node_classification"):
        with pytest.raises(InputError, match=rf"^task={task}: .* is for task=edge_classification;"):
            evaluate.run(compose([*settings, "checkpoint_dir=run", f"task={task}"]), Path("other"))
    (parts,) = Path("data/partitions").iterdir()
    of_nodes = compose([*TRAINING, f"partition_dir={parts}"], "node_classification_rgcn")
    with pytest.raises(InputError, match="classes of edges; choose task=edge_classification, or"):
        train.run(of_nodes, Path("other"))
    with pytest.raises(InputError, match=r"task\.message_edges says which labelled edges carry"):
        train.run(compose([*settings, "split.inductive=true"], TASK), Path("other"))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model=gcn", "model=gcn: an edge with a label is .*choose --config-name edge_class"),
        ("trainer=bns", "trainer=bns: not for .*, nor labels of edges; choose one of lazy, full"),
    ],
)
def test_models_and_trainers_of_plain_graphs_are_refused_at_once(
    setting: str, message: str, bank: pd.DataFrame
) -> None:
    with pytest.raises(InputError, match=message):
        train.run(compose([*BANK_SETTINGS, *SHARES, setting], TASK), Path("run"))
    assert not Path("data").exists()  # nothing is partitioned


def _check_service(graph: tuple[pd.DataFrame, pd.DataFrame], expected: pd.DataFrame) -> None:
    pytest.importorskip("uvicorn", reason="the extra serve")
    from test_service import Service

    rows = json.loads(graph[1].head(20).to_json(orient="records"))
    with contextlib.closing(Service(Path("run"), graph)) as service:
        status, content = service.ask("/predict", {"edges": rows})
    assert status == 200, content
    assert [prediction["class"] for prediction in content["predictions"]] == expected[
        "class"
    ].tolist()


def test_random_labels_are_not_learned_from_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_bank(Path("bank"), random_labels=True)
    overrides = [*BANK_SETTINGS, *SHARES, *TRAINING, "num_partitions=2", "task.message_edges=all"]
    run = train.run(compose(overrides, TASK), Path("run"))
    assert abs(run["test"]["roc_auc"] - 0.5) < 0.13  # four standard errors of 200 edges


def test_partitions_change_no_number_of_edges_between_two_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rated = write_ratings(Path("shop"))
    task, columns = "edge_regression", ("columns.label=stars", "columns.src={rated: user}")
    columns = (*columns, "columns.dst={rated: item}")
    graph = read_labelled(*columns, folder="shop", task=task)
    assert (graph.target, graph.labelled_edges) == ("rated", RATED)
    np.testing.assert_allclose(graph.labels[:, 0], rated["stars"])
    overrides = ["dataset_name=file", "dataset_file=shop", *columns, *SHARES, "cluster.threads=1"]
    values = []
    for parts in (1, 3):
        settings = [*overrides, *TRAINING, "+experiment=exact", f"num_partitions={parts}"]
        run = train.run(
            compose([*settings, f"partition_dir=parts{parts}"], task), Path(f"run{parts}")
        )
        assert run["test"]["r2"] > 0.8
        model = retexo.load(f"run{parts}")
        values.append(model.attach("shop").predict()["value"])
    np.testing.assert_allclose(values[1], values[0], rtol=0, atol=2e-4)
    nodes = {name: pd.read_csv(f"shop/nodes/{name}.csv") for name in ("user", "item")}
    edges = {
        RATED: rated.drop(columns="stars"),
        KNOWS: pd.read_csv("shop/edges/user__knows__user.csv"),
    }
    of_frames = model.attach((nodes, edges)).predict()
    np.testing.assert_array_equal(of_frames["value"], model.attach("shop").predict()["value"])


@pytest.mark.parametrize("is_typed", [True, False])
def test_edges_of_pyg(is_typed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pyg = pytest.importorskip("torch_geometric.data")
    rng = np.random.default_rng(0)
    ends, labels = torch.from_numpy(rng.integers(9, size=(2, 30))), torch.arange(30) % 2
    data, prefix = (pyg.HeteroData(), "") if is_typed else (pyg.Data(x=torch.eye(9)), "edge_")
    rated, knows = (data["u", "rated", "u"], [ends.T]) if is_typed else (data, [])
    if is_typed:
        data["u"].x = torch.eye(9)
        data["u", "knows", "u"].update({"edge_index": ends, "edge_attr": ends.T.float()})
    rated.edge_index, rated.edge_attr = ends, ends.T.float()
    rated["y" if is_typed else "edge_label"] = labels
    rated[f"{prefix}time"] = torch.arange(30)
    for name, mask in zip(MASKS, (labels == 0, labels == 1, labels == 2), strict=True):
        rated[f"{prefix}{name}"] = mask
    graph = read_labelled(folder=retexo.from_pyg(data, tmp_path / "g.npz"))
    assert "left out" not in caplog.text
    sources = graph.relations[graph.from_ends["source"]].src
    for actual, expected in (
        (graph.labels, labels),
        (sources, ends[0]),
        (graph.train_mask, labels == 0),
        (graph.node_time, torch.arange(30)),
        (graph.relations[graph.labelled_edges].edge_feat, None),
        (graph.nodes[graph.target].features, ends.T),
        (
            [relation.edge_feat for name, relation in graph.relations.items() if "knows" in name],
            knows,
        ),
    ):
        np.testing.assert_array_equal(actual, expected)


def test_labels_of_edges_are_left_out_of_node_tasks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = {"src": [0, 1], "dst": [1, 0], "label": [0, 1], "edge_label": [0, 1]}
    np.savez(tmp_path / "g.npz", feat=np.eye(2), **arrays)
    datasets.read_graph(compose(["dataset_name=file", f"dataset_file={tmp_path}/g.npz"]))
    assert "arrays of labelled edges are left out: edge_label" in caplog.text


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"edge_label": [0, 1]}, "array `edge_label` has 2 rows; expected 3, one per edge"),
        ({"edge_label": [0, 1, 0], "edge_id": [5, 5, 6]}, "array `edge_id`: rows 0 and 1 are both"),
        ({"edge_label": [0, 1, 0.5]}, "task=node_regression or edge_regression"),
        ({"edge_label": [0, 1, 0], "label": [0, 1, 1]}, "rename or take out the one that is not"),
    ],
)
def test_arrays_of_edges_are_refused_by_their_names(
    arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "g.npz", src=[0, 1, 2], dst=[1, 2, 0], feat=np.eye(3), **arrays)
    with pytest.raises(InputError, match=message):
        read_labelled(folder=str(tmp_path / "g.npz"))


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("bank", ["label=is_fraud"]),
        ("shop", ["label=stars", "src={rated: user}", "dst={rated: item}"]),
    ],
)
def test_a_task_of_nodes_says_how_labels_of_edges_are_learned(
    name: str, columns: list[str], bank: pd.DataFrame
) -> None:
    write_ratings(Path("shop"))
    overrides = [
        "dataset_name=file",
        f"dataset_file={name}",
        *(f"columns.{column}" for column in columns),
    ]
    with pytest.raises(InputError, match="labels of edges are learned with --config-name edge_cl"):
        datasets.read_graph(compose(overrides))


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ("labels of nodes", [], r"nodes\.csv: .*labels of nodes, and .*edges\.csv has"),
        (
            "two relations",
            [],
            "^several relations have labels of edges: t__a__t, t__b__t; choose one by",
        ),
        ("two relations", ["task.relation=c"], "task.relation=c: no relation .*choose one of t__"),
        ("no labels", [], "^no relation has labels of edges"),
        ("unknown end", ["edges.unknown=drop"], "1 of 4 edges have an end that is no node, which"),
        ("unknown end", [], "row 3 is"),
        ("fine", ["task.relation=likes"], "task.relation=likes"),
        ("fine", ["duplicates=merge"], "duplicates=merge"),
        ("fine", ["target=node"], "target=node: not with labels of edges"),
        ("fine", ["symmetrize=true"], "relations.reverse=true"),
    ],
)
def test_what_edges_with_labels_cannot_be(
    tmp_path: Path, change: str, settings: list[str], message: str
) -> None:
    nodes, edges = "id,x\n1,1\n2,2\n3,3\n", "src,dst,label\n1,2,a\n2,3,b\n3,1,a\n2,1,b\n"
    if change == "labels of nodes":
        nodes = "id,x,label\n1,1,u\n2,2,v\n3,3,u\n"
    if change == "no labels":
        edges = edges.replace("label", "note")
    if change == "unknown end":
        edges = edges.replace("2,1,b", "9,1,b")
    files = {"nodes.csv": nodes, "edges.csv": edges}
    if change == "two relations":
        files = {"nodes/t.csv": nodes, "edges/t__a__t.csv": edges, "edges/t__b__t.csv": edges}
    write_files(tmp_path, files)
    with pytest.raises(InputError, match=message):
        read_labelled(*settings, folder=str(tmp_path))
