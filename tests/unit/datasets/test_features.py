"""The feature pipeline: what it learns from the training nodes, and what it makes of later
tables.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from support import dataset_settings

from partitioning import datasets, prediction_graph
from partitioning.array_checks import Array
from partitioning.errors import InputError
from partitioning.features.build import encode_tables
from partitioning.features.encoder import EncodedFeatures, apply, fit
from partitioning.features.schema import Schema, check_states, describe
from partitioning.graph_data import GraphData
from partitioning.partition_settings import FeatureSettings


def settings(**fields: Any) -> FeatureSettings:
    defaults = {
        "kind": ("given",),
        "scale": "auto",
        "missing": "median",
        "fit": "train",
        "max_categories": 64,
    }
    return FeatureSettings(**{**defaults, "spec": None, **fields})


def read(folder: Path, nodes: str, **columns: Any) -> GraphData:
    """The raw graph of a table of nodes without edges."""
    folder.mkdir(exist_ok=True)
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text("src,dst\n")
    graph = datasets.read_graph(dataset_settings("file", str(folder), columns=columns))
    assert isinstance(graph, GraphData)
    return graph


def values(graph: GraphData) -> Array:
    features: Any = graph.features
    made: Array = features.toarray() if isinstance(features, EncodedFeatures) else features
    return made


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
    made, states = encode_tables(graph, settings(), TRAIN)
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
    assert np.allclose(values(made), expected)
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
    made, states = encode_tables(graph, settings(), TRAIN)
    state = json.loads(json.dumps(states))["nodes"]
    again = read(tmp_path / "later", "vip,zip,city,extra,age,label,id\nno,0200,Pisa,1,60,0,7\n")
    assert again.schema is not None
    with pytest.raises(InputError, match=r"column `zip` is numeric; it was categorical"):
        apply(state, again.features, again.schema)
    again = read(
        tmp_path / "later",
        "vip,zip,city,extra,age,label,id\nno,0200,Pisa,1,60,0,7\n",
        categorical=("zip",),
    )
    row = apply(state, again.features, again.schema).toarray()[0]
    assert np.allclose(row, [values(made)[3, 0], 0, 0, 0, 0, 0, 0, 1])
    assert "`city`: 1 rows have a category that the model does not know" in caplog.text
    assert "columns `extra`: left out" in caplog.text
    without = read(tmp_path / "less", "id,label,city,vip,zip\n7,0,Rome,no,0100\n")
    with pytest.raises(InputError, match=r"nodes\.csv: there is no column `age`"):
        apply(state, without.features, without.schema)


@pytest.mark.parametrize(
    "damage",
    [
        {"roles": 3},
        {"ignored": {"x": 1}},
        {"columns": [{}]},
        {"columns": None},
        {"columns": ("fill", ["x"])},
        {"columns": ("width", 0)},
        {"columns": ("scale", None)},
        {"columns": ("role", "matrices")},
    ],
)
def test_a_damaged_state_is_refused(tmp_path: Path, damage: dict[str, Any]) -> None:
    graph = read(tmp_path, TABLE)
    states = json.loads(json.dumps(encode_tables(graph, settings(), TRAIN)[1]))
    check_states(states)
    ((name, value),) = damage.items()
    if isinstance(value, tuple):
        states["nodes"]["columns"][0][value[0]] = value[1]
    else:
        states["nodes"][name] = value
    with pytest.raises(ValueError, match=r"features\.nodes is no feature pipeline"):
        check_states(states)


def test_rare_categories_share_a_column(tmp_path: Path) -> None:
    rows = "".join(f"{row},0,{'abbcccdddd'[row]}\n" for row in range(10))
    graph = read(tmp_path, f"id,label,kind\n{rows}")
    made, states = encode_tables(graph, settings(max_categories=2), None)
    assert states["nodes"]["columns"][0]["categories"] == ["c", "d"]
    assert values(made).sum(axis=0).tolist() == [3, 4, 3]


@pytest.mark.parametrize(
    ("fields", "column"),
    [
        ({"scale": "none"}, [1, 2, 2, 3, 100]),
        ({"scale": "robust"}, [-1.5, -0.5, 0, 0.5, 97.5] / np.array(25.5)),
        ({"scale": "none", "missing": "zero"}, [1, 2, 0, 3, 100]),
        ({"scale": "none", "missing": "mean"}, [1, 2, 26.5, 3, 100]),
    ],
)
def test_scales_and_fillings(tmp_path: Path, fields: dict[str, Any], column: list[float]) -> None:
    graph = read(tmp_path, "id,label,x\n0,0,1\n1,0,2\n2,0,\n3,0,3\n4,0,100\n")
    made = values(encode_tables(graph, settings(**fields), None)[0])
    if fields["scale"] == "none" and "missing" not in fields:
        column = [1, 2, 2.5, 3, 100]
    assert np.allclose(made[:, 0], column)
    assert made[:, 1].tolist() == [0, 0, 1, 0, 0]


def test_large_numbers_and_constants(tmp_path: Path) -> None:
    """A timestamp in milliseconds has more digits than float32; a constant has no scale."""
    times = 1_700_000_000_000 + np.arange(4) * 1000
    rows = "".join(f"{row},0,{time},0.1\n" for row, time in enumerate(times))
    graph = read(tmp_path, f"id,label,ms,same\n{rows}")
    made = values(encode_tables(graph, settings(), None)[0])
    assert np.allclose(made[:, 0], (times - times.mean()) / times.std(), atol=1e-6)
    assert np.allclose(made[:, 1], 0, atol=1e-6)
    logged = values(encode_tables(graph, settings(scale="log"), None)[0])
    assert np.allclose(logged[:, 0].std(), 1)


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
    state = fit(rows, schema, settings())
    made = apply(state, rows, schema).toarray()
    expected = (matrix - matrix.mean(axis=0)) / matrix.std(axis=0) if is_scaled else rows
    assert np.allclose(made, expected, atol=1e-3)
    assert made.tolist() == apply(state, rows, schema)[np.arange(50)].tolist()


def test_a_sparse_matrix_stays_as_it_is() -> None:
    rows = sp.csr_array(np.eye(4, dtype=np.float32))
    schema = Schema.of_matrix("x.npz", 4)
    assert apply(fit(rows, schema, settings()), rows, schema) is rows
    with pytest.raises(InputError, match=r"features\.scale=standard: x\.npz is a sparse matrix"):
        fit(rows, schema, settings(scale="standard"))


def test_edge_columns_become_features_of_edges(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id,label,x\n0,0,1\n1,1,2\n")
    (tmp_path / "edges.csv").write_text("src,dst,amount,kind,weight\n0,1,10,a,2\n1,0,30,b,1\n")
    asked = dataset_settings(
        "file", str(tmp_path), features={"scale": "auto", "missing": "median"}, symmetrize=True
    )
    graph = datasets.load(asked)
    assert graph.edge_weight is not None
    assert graph.edge_feat is not None
    assert graph.edge_feat.tolist() == [[-1, 1, 0], [1, 0, 1]]
    assert graph.edge_weight.tolist() == [2, 1]


def test_ends_and_weights_are_read_as_in_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A weight that is a plain column to later tables would change every prediction."""
    named = {"src": "payer", "dst": "payee", "weight": "times"}
    (tmp_path / "nodes.csv").write_text("key,label,x\n5,0,1\n7,1,2\n")
    edges = tmp_path / "edges.csv"
    edges.write_text("payer,payee,times\n5,7,3\n7,5,2\n")
    graph = datasets.read_graph(dataset_settings("file", str(tmp_path), columns=named))
    assert isinstance(graph, GraphData)
    _, states = encode_tables(graph, settings(), None)
    assert describe(states)[-1] == "edges: src payer; dst payee; weight times"
    later = dataset_settings("file", None)
    later = replace(later, split=replace(later.split, kind="none"))
    found = prediction_graph.read(str(tmp_path), later, json.loads(json.dumps(states))).graph
    assert isinstance(found, GraphData)
    assert found.edge_weight is not None
    assert found.edge_weight.tolist() == [3, 2]
    edges.write_text("payer,payee,amount\n5,7,3\n")
    with pytest.raises(InputError, match=r"columns\.weight=times: .* has the columns payer"):
        prediction_graph.read(str(tmp_path), later, states)
    edges.write_text("from,to\n5,7\n")
    with pytest.raises(InputError, match=r"columns\.src=payer: .* has the columns from, to; set"):
        prediction_graph.read(str(tmp_path), later, states)
    edges.write_text("payer,payee,times\n")
    prediction_graph.read(str(tmp_path), later, states)
    assert f"{edges}: has no edges, only a header" in caplog.messages


@pytest.mark.parametrize(
    ("nodes", "columns", "message"),
    [
        ("id,label,x\n0,0,1\n1,1,?\n", {}, r"column `x`, row 1 is '\?'.*columns\.categorical=x"),
        ("id,label,x\n0,0,inf\n1,1,2\n", {}, r"column `x`, row 0 is inf; expected a finite"),
        (
            "id,label,note\n" + "".join(f"{row},0,text {row}\n" for row in range(12)),
            {},
            r"`note`: 12 different texts in 12 rows.*columns\.ignore=note",
        ),
        ("id,label,x\n0,0,1\n", {"ignore": ("y*",)}, r"columns\.ignore=y\*: no table has such"),
        (
            "id,label,x\n0,0,1\n",
            {"numeric": ("x",), "ignore": ("x",)},
            "`x` is in both columns.numeric and columns.ignore",
        ),
        (
            "key,uid,label,x\n1,2,0,1\n0,1,0,2\n2,0,0,3\n",
            {},
            r"the edges may refer to `key` or to `uid`; set columns\.id",
        ),
    ],
)
def test_what_cannot_be_encoded_is_refused(
    tmp_path: Path, nodes: str, columns: dict[str, Any], message: str
) -> None:
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n")
    with pytest.raises(InputError, match=message):
        datasets.load(dataset_settings("file", str(tmp_path), columns=columns))
