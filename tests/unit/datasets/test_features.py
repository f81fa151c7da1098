"""The feature pipeline: what it learns, features of nodes that have none, and of edges.

It learns from training nodes, or by sums over the network.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from graph_files import assert_graph, write_files
from support import count_edges, dataset_settings, random_graph, split_settings, with_arrays

from partitioning import datasets
from partitioning.errors import InputError
from partitioning.features import encoder
from partitioning.features.agreed import read_agreed
from partitioning.features.build import encode_tables
from partitioning.features.encoder import EncodedFeatures, State, apply_pipeline, fit_pipeline
from partitioning.features.kinds import HOPS, WIDTH, with_features
from partitioning.features.random_rows import random_rows
from partitioning.features.spec import read_spec
from partitioning.features.statistics import Moments
from partitioning.features.sums import BINS, Words, compute_share, fit_sums, share_nothing
from partitioning.graph.array_checks import Array
from partitioning.graph.graph_data import GraphData
from partitioning.graph.schema import Column, Schema, describe
from partitioning.partition_settings import FeatureSettings
from partitioning.update import prediction_graph
from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import SETUP
from retexo.sites.secure_sums import agree_on_masks


def settings(**fields: Any) -> FeatureSettings:
    defaults = {
        "kind": ("given",),
        "scale": "auto",
        "missing": "median",
        "fit": "train",
    }
    return FeatureSettings(**{**defaults, "spec": None, **fields})


def read(folder: Path, nodes: str, **columns: Any) -> GraphData:
    """The raw graph of a table of nodes without edges."""
    folder.mkdir(exist_ok=True)
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text("src,dst\n")
    graph = datasets.read_graph(dataset_settings("file", str(folder), columns=columns))
    assert graph.is_plain
    return graph


def values(graph: GraphData) -> Array:
    features: Any = graph.features
    rows: Array = features.toarray() if isinstance(features, EncodedFeatures) else features
    return rows


TABLE = """id,label,age,city,vip,zip
0,0,20,Rome,yes,0100
1,1,40,Bonn,no,0200
2,0,,Rome,no,0100
3,1,60,,yes,0200
4,,90,Oslo,no,0300
"""
TRAIN = np.array([True, True, True, True, False])


def test_each_column_is_encoded_by_its_role(tmp_path: Path) -> None:
    graph = read(tmp_path, TABLE, categorical=("z*",))
    encoded, states = encode_tables(graph, settings(), TRAIN)
    known = np.array([20, 40, 60])
    ages = (np.array([20, 40, 40, 60, 90]) - known.mean()) / known.std()
    expected = np.column_stack(
        [
            ages,
            [0, 0, 1, 0, 0],  # age is blank
            [[0, 1], [1, 0], [0, 1], [0, 0], [0, 0]],  # Bonn, Rome; Oslo is in no training row
            [0, 0, 0, 1, 0],  # city is blank
            [1, 0, 0, 1, 0],
            [[1, 0], [0, 1], [1, 0], [0, 1], [0, 0]],
        ]
    )
    assert np.allclose(values(encoded), expected)
    assert "\n".join(describe(states)).splitlines() == [
        "nodes: id id; label label",
        "nodes: numeric (standardised, blanks filled, 1 of the fitted rows): age",
        "nodes: categorical (2 one-hot columns): city (Bonn, Rome), zip (0100, 0200)",
        "nodes: boolean (as given): vip",
        "edges: src src; dst dst",
    ]


def test_the_stored_state_encodes_another_table_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = read(tmp_path, TABLE, categorical=("zip",))
    encoded, states = encode_tables(graph, settings(), TRAIN)
    state = json.loads(json.dumps(states))["nodes"]
    again = read(tmp_path / "later", "vip,zip,city,extra,age,label,id\nno,0200,Pisa,1,60,0,7\n")
    with pytest.raises(InputError, match=r"column `zip` is numeric; it was categorical"):
        apply_pipeline(state, again.features, again.target_nodes.schema)
    state["roles"]["label"] = ["churn"]
    again = read(
        tmp_path / "later",
        "vip,zip,city,extra,churn,age,label,id\nno,0200,Pisa,1,1,60,0,7\n",
        categorical=("zip",),
    )
    row = apply_pipeline(state, again.features, again.target_nodes.schema).toarray()[0]
    assert np.allclose(row, [values(encoded)[3, 0], 0, 0, 0, 0, 0, 0, 1])
    assert "`city`: 1 rows have a category that the model does not know" in caplog.text
    assert "columns `extra`: left out" in caplog.text
    assert "column `churn`, the label of training, is not read: columns.label=churn" in caplog.text
    without = read(tmp_path / "less", "id,label,city,vip,zip\n7,0,Rome,no,0100\n")
    with pytest.raises(InputError, match=r"nodes\.csv: there is no column `age`"):
        apply_pipeline(state, without.features, without.target_nodes.schema)


def test_a_number_that_scaling_makes_infinite_is_named(tmp_path: Path) -> None:
    graph = read(tmp_path, "id,label,x\n0,0,0.01\n1,0,0.02\n2,0,\n")
    state = encode_tables(graph, settings(), None)[1]["nodes"]
    later = read(tmp_path / "later", "id,label,x\n3,0,1\n4,0,3e38\n")
    encoded = apply_pipeline(state, later.features, later.target_nodes.schema)
    with pytest.raises(InputError, match=r"nodes\.csv: column `x`, row 1 is 3e\+38"):
        encoded.toarray()


LOGS = np.log1p([0, 1, 9])
FIVE = "id,label,x\n0,0,1\n1,0,2\n2,0,\n3,0,3\n4,0,100\n"
BLANK = [0, 0, 1, 0, 0]
KINDS = "id,label,kind\n" + "".join(f"{row},0,{kind}\n" for row, kind in enumerate("abbcccdddd"))


@pytest.mark.parametrize(
    ("nodes", "fields", "columns"),
    [
        (FIVE, {"scale": "none"}, [[1, 2, 2.5, 3, 100], BLANK]),
        (FIVE, {"scale": "robust"}, [np.array([-1.5, -0.5, 0, 0.5, 97.5]) / 25.5, BLANK]),
        (FIVE, {"scale": "none", "missing": "zero"}, [[1, 2, 0, 3, 100], BLANK]),
        (FIVE, {"scale": "none", "missing": "mean"}, [[1, 2, 26.5, 3, 100], BLANK]),
        (
            KINDS,
            {},  # c, d, and the others
            [np.repeat([0, 1, 0], [3, 3, 4]), np.repeat([0, 1], [6, 4]), np.repeat([1, 0], [3, 7])],
        ),
        (  # milliseconds have more digits than float32; a constant has no scale
            "id,label,ms,same\n0,0,1700000000000,0.1\n1,0,1700000001000,0.1\n",
            {},
            [[-1, 1], [0, 0]],
        ),
        (
            "id,label,x\n0,0,0\n1,0,1\n2,0,9\n",
            {"scale": "log"},
            [(LOGS - LOGS.mean()) / LOGS.std()],
        ),
    ],
)
def test_columns_are_scaled_filled_and_merged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: str,
    fields: dict[str, Any],
    columns: list[Any],
) -> None:
    monkeypatch.setattr(encoder, "MAX_CATEGORIES", 2)
    encoded = values(encode_tables(read(tmp_path, nodes), settings(**fields), None)[0])
    np.testing.assert_allclose(encoded, np.column_stack(columns), atol=1e-6)


@pytest.mark.parametrize(
    ("matrix", "is_scaled"),
    [
        (np.random.default_rng(0).standard_normal((50, 4)), False),
        (np.eye(50, 4), False),
        (np.random.default_rng(0).standard_normal((50, 4)) * [1, 1, 1, 1000], True),
        (np.random.default_rng(0).random((50, 4)) + np.array([0, 0, 0, 1985]), True),
    ],
    ids=["similar", "binary", "scales", "year"],
)
def test_a_matrix_is_scaled_only_if_its_columns_differ(matrix: Array, is_scaled: bool) -> None:
    rows = matrix.astype(np.float32)
    schema = Schema.of_matrix("x.npy", 4)
    state = fit_pipeline(rows, schema, settings())
    scaled = apply_pipeline(state, rows, schema).toarray()
    expected = (matrix - matrix.mean(axis=0)) / matrix.std(axis=0) if is_scaled else rows
    assert np.allclose(scaled, expected, atol=1e-3)
    assert scaled.tolist() == apply_pipeline(state, rows, schema)[np.arange(50)].tolist()


def test_a_sparse_matrix_stays_as_it_is() -> None:
    rows = sp.csr_array(np.eye(4, dtype=np.float32))
    schema = Schema.of_matrix("x.npz", 4)
    assert apply_pipeline(fit_pipeline(rows, schema, settings()), rows, schema) is rows
    unused = replace(schema, columns=())  # features=degree
    assert apply_pipeline(fit_pipeline(rows, unused, settings()), rows, unused) is rows
    with pytest.raises(InputError, match=r"features\.scale=standard: x\.npz is a sparse matrix"):
        fit_pipeline(rows, schema, settings(scale="standard"))


PAYMENTS = {
    "nodes.csv": "key,label,x\n5,0,1\n7,1,2\n",
    "edges.csv": "payer,payee,times\n5,7,3\n7,5,2\n",
}


def read_payments_again(folder: Path, edges: str) -> GraphData:
    """Other edges, read to predict with the columns of PAYMENTS."""
    ends = {"src": "payer", "dst": "payee", "weight": "times"}
    write_files(folder, PAYMENTS)
    graph: Any = datasets.read_graph(dataset_settings("file", str(folder), columns=ends))
    states = json.loads(json.dumps(encode_tables(graph, settings(), None)[1]))
    assert describe(states)[-1] == "edges: src payer; dst payee; weight times"
    later = dataset_settings("file", None, split=split_settings("none"))
    write_files(folder, {"edges.csv": edges})
    again: Any = prediction_graph.read_prediction_graph(str(folder), later, states).graph
    return again


def test_ends_and_weights_are_read_as_in_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = read_payments_again(tmp_path, PAYMENTS["edges.csv"])
    assert_graph(graph, edge_weight=[3, 2])
    read_payments_again(tmp_path, "payer,payee,times\n")
    assert f"{tmp_path / 'edges.csv'}: has no edges, only a header" in caplog.messages


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (  # a weight that is a plain column would change every prediction
            "payer,payee,amount\n5,7,3\n",
            r"no column `times`, which .* columns payer, .*; add it, or set columns\.weight to one",
        ),
        ("from,to\n5,7\n", r"columns\.src=payer: .* has the columns from, to; set"),
    ],
)
def test_other_ends_and_weights_than_in_training_are_refused(
    tmp_path: Path, edges: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_payments_again(tmp_path, edges)


def test_random_rows_are_of_the_id_alone() -> None:
    ids = np.array([5, -3, 2**62, 0])
    rows = random_rows(ids, 64)
    assert (random_rows(ids[[2, 0]], 64) == rows[[2, 0]]).all()
    assert (random_rows(ids, 16) == rows[:, :16]).all()
    many = random_rows(np.arange(20_000), 8).astype(np.float64)
    assert np.allclose(many.mean(axis=0), 0, atol=0.03)
    assert np.allclose(np.cov(many.T), np.eye(8), atol=0.03)
    assert np.abs(many).max() <= 3**0.5


def test_positional_is_the_sum_of_normalised_averages() -> None:
    graph = random_graph()
    dense = np.asarray(count_edges(graph) + count_edges(graph).T)
    mean = dense / np.maximum(dense.sum(axis=1, keepdims=True), 1)
    rows, expected = random_rows(graph.node_ids, WIDTH).astype(np.float64), 0
    for _ in range(HOPS):
        rows = mean @ rows
        expected = expected + rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    assert np.allclose(with_features(graph, ("positional",)).features, expected, atol=1e-4)


def test_a_list_is_side_by_side(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "partitioning")
    graph = random_graph()
    joined = with_features(graph, ("degree", "given", "random"))
    assert joined.features.shape[1] == 2 + graph.num_features + WIDTH
    assert (joined.features[:, 2 : 2 + graph.num_features] == graph.features).all()
    assert not joined.features_of_ids
    assert "not used" not in caplog.text
    assert with_features(graph, ("random",)).features_of_ids
    assert f"the {graph.num_features} features of the data are not used" in caplog.text
    assert with_features(graph, ("given",)) is graph


def test_nobody_to_take_features_from() -> None:
    graph = random_graph()
    nothing = with_arrays(
        graph,
        features=graph.features[:, :0],
        featured=np.zeros(graph.num_nodes, np.bool_),
    )
    with pytest.raises(InputError, match="no node has features; set features=degree"):
        with_features(nothing, ("neighbours",))


RANGES = {
    "age": [0, 150],
    "balance": [0, 1e6],
    "time": [1.6e9, 1.8e9],
    "flag": [0, 1],
    "empty": [-1, 1],
    "constant": [0, 1],
    "pair": [-10, 10],
    "emb": [-1000, 1000],
}
NAMES = ("age", "balance", "time", "flag", "empty", "constant", "pair")
CITIES = ("Rome", "Bonn", "Oslo", "Pisa")
COLUMNS = (
    *(Column(name, "numeric", at) for at, name in enumerate(NAMES)),
    Column("emb", "embedding", len(NAMES), 2),
    Column("city", "categorical", len(NAMES) + 2, categories=CITIES),
)
SIZES = (300, 200, 401)


def table(rows: int, seed: int) -> Array:
    """[rows, W]: columns of all kinds, whose distribution depends on the seed."""
    rng = np.random.default_rng(seed)
    columns = np.column_stack(
        [
            rng.integers(18, 91, rows) + 10 * seed,
            rng.lognormal(7, 1.5, rows),
            1.7e9 + rng.normal(0, 1e6, rows) * (1 + seed),
            rng.integers(0, 2, rows),
            np.full(rows, np.nan),
            np.full(rows, 0.1),
            rng.normal(seed, 1, rows),
            rng.normal(0, [1, 100], (rows, 2)),
            rng.integers(0, 2 + seed, rows),
        ]
    ).astype(np.float32)
    columns[rng.random(rows) < 0.1, 0] = np.nan
    blank = rng.random(rows) < 0.1
    columns[blank, 1] = columns[blank, 6] = np.nan
    columns[rng.random(rows) < 0.05, -1] = np.nan
    return columns


TABLES = [table(rows, seed) for seed, rows in enumerate(SIZES)]
TRAINED = [np.arange(rows) % 3 > 0 for rows in SIZES]
SCHEMA = Schema("nodes.csv", COLUMNS, {"id": ["id"]}, {"note": "columns.ignore"})


def agreed_file(folder: Path) -> Path:
    columns: dict[str, Any] = {
        name: {"role": "numeric", "range": ends} for name, ends in RANGES.items()
    }
    columns["emb"] |= {"role": "embedding", "width": 2}
    columns["city"] = {"role": "categorical", "categories": CITIES}
    path = folder / "columns.json"
    path.write_text(json.dumps({"columns": columns}))
    return path


def add_up(folder: Path, *, masked: bool, **fields: Any) -> State:
    """The pipeline of four sites, of which the last has no rows."""
    agreed, asked = read_agreed(agreed_file(folder)), settings(**fields)

    def work(comm: Communicator) -> State:
        def total(words: Words) -> Words:
            sums = torch.from_numpy(words.copy())
            comm.all_reduce([ReduceInput(sums)], SETUP)
            return np.asarray(sums)

        if masked:
            comm.masks = agree_on_masks(comm, "a run")
        share = share_nothing(agreed, asked)
        if comm.rank < len(TABLES):
            share = compute_share(TABLES[comm.rank], SCHEMA, TRAINED[comm.rank], agreed, asked)
        return fit_sums(share, agreed, asked, total)

    states = run_threads(len(TABLES) + 1, work)
    assert all(state == states[0] for state in states)
    return states[0]


@pytest.mark.parametrize(
    ("scale", "missing"),
    [
        ("auto", "median"),
        ("standard", "mean"),
        ("robust", "zero"),
        ("log", "mean"),
        ("none", "median"),
    ],
)
def test_the_pipeline_of_all_sites_is_that_of_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: str, missing: str
) -> None:
    monkeypatch.setattr(encoder, "MAX_CATEGORIES", 3)
    asked = {"scale": scale, "missing": missing}
    one = fit_pipeline(np.concatenate(TABLES), SCHEMA, settings(**asked), np.concatenate(TRAINED))
    merged = add_up(tmp_path, masked=False, **asked)
    assert merged == add_up(tmp_path, masked=True, **asked)
    one |= {"roles": {}, "ignored": {}}
    for key in ("version", "fitted_on", "num_rows", "missing", "roles", "ignored"):
        assert merged[key] == one[key]
    for column, expected, merged_column in zip(
        COLUMNS, one["columns"], merged["columns"], strict=True
    ):
        by_quantile = {
            "center": scale == "robust",
            "scale": scale == "robust",
            "fill": missing == "median",
        }
        for name, value in expected.items():
            if value is None or name not in by_quantile:
                assert merged_column[name] == value, (column.name, name)
            elif by_quantile[name]:
                bin_width = np.ptp(RANGES[column.name]) / BINS
                assert (
                    np.abs(np.subtract(merged_column[name], value)) <= 2 * bin_width + 1e-9
                ).all()
            else:
                assert np.allclose(merged_column[name], value, rtol=1e-8, atol=0), (
                    column.name,
                    name,
                )
    assert [column["indicator"] for column in merged["columns"][:2]] == [True, True]
    assert not merged["columns"][6]["indicator"]  # blank where `balance` is


def test_moments_of_blocks_are_those_of_all_rows() -> None:
    """Blocks of other sizes and means; blanks are left out."""
    blocks = [table[:, :2].astype(np.float64) for table in TABLES]
    moments, rows = Moments.of(blocks, 2), np.concatenate(blocks)
    np.testing.assert_allclose(moments.mean, np.nanmean(rows, axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.deviation, np.nanstd(rows, axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2", "not a readable"),
        ('{"features": 5}', "damaged"),
        ('{"features": {}, "sha256": "0"}', "was changed since it was written"),
    ],
)
def test_a_damaged_pipeline_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=rf"x\.json: {message}"):
        read_spec(settings(spec=str(tmp_path / "x.json")))
