"""Users' tables, from files to predictions: node regression with plan, evaluation and report."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from graph_files import write_files
from sklearn import metrics
from support import assert_sent_as_planned

import retexo
from retexo.apps import evaluate, plan, predict, report, train
from retexo.settings.compose import compose

PARTS, HOUSES = 2, 240
SETTINGS = [
    "dataset_name=file",
    "dataset_file=houses",
    "columns.label=[price,age]",
    "symmetrize=true",
    f"num_partitions={PARTS}",
    "device=cpu",
    "cluster.threads=1",
]
SPLIT = ["split=fraction", "split.train=0.5", "split.val=0.25", "split.test=0.25"]
TRAINED = [
    *("task=node_regression", "hidden_dim=32", "num_rounds=[40]", "learning_rate=[0.03]"),
    "stopping=none",
]
SAGE = "node_classification_sage"


def write_houses(folder: Path) -> pd.DataFrame:
    """Prices depend on the house's size and its neighbours' condition; a tenth is unknown."""
    rng = np.random.default_rng(0)
    size, condition = rng.normal(size=(2, HOUSES))
    src = np.repeat(np.arange(HOUSES), 2)
    dst = (src + np.tile([1, 7], HOUSES)) % HOUSES
    around = np.zeros(HOUSES)
    np.add.at(around, src, condition[dst] / 4)
    np.add.at(around, dst, condition[src] / 4)
    houses = pd.DataFrame({"id": [f"h{row:03d}" for row in range(HOUSES)], "size": size})
    houses = houses.assign(condition=condition, price=3e5 + 4e4 * size + 1e5 * around)
    houses = houses.assign(age=30 - 5 * size + 5 * condition)
    houses.loc[rng.random(HOUSES) < 0.1, "price"] = np.nan
    names = houses["id"].to_numpy()
    edges = pd.DataFrame({"src": names[src], "dst": names[dst]})
    write_files(folder, {"nodes.csv": houses, "edges.csv": edges})
    return houses


@pytest.mark.timeout(300)
def test_tables_from_training_to_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    houses = write_houses(Path("houses"))
    overrides = [*SETTINGS, *SPLIT, *TRAINED]
    run = train.run(compose(overrides, SAGE), Path("run"))
    assert run["chosen"]["metric"] == "loss"
    assert [row["target"] for row in run["targets"]["test"]] == ["price", "age"]
    assert min(row["r2"] for row in run["targets"]["test"]) > 0.8
    assert run["test"]["r2"] == np.mean([row["r2"] for row in run["targets"]["test"]])
    assert_sent_as_planned(plan.run(compose([*overrides, "app=plan"], SAGE), Path("plan")), run)

    evaluation = evaluate.run(compose([*overrides, "checkpoint_dir=run"], SAGE), Path("evaluated"))
    for split in ("train", "val", "test"):
        assert evaluation["targets"][split] == run["targets"][split]
    _check_predictions(houses)
    report.run(compose(["app=report", "report.runs=run"]), Path("reported"))
    assert "R2 on test is 0." in Path("reported/report.md").read_text(encoding="utf-8")


def _check_predictions(houses: pd.DataFrame) -> None:
    """Predict the same houses without prices, by the command and from Python."""
    edges = Path("houses/edges.csv").read_text(encoding="utf-8")
    nodes = houses.drop(columns=["price", "age"])
    write_files(Path("unknown"), {"nodes.csv": nodes, "edges.csv": edges})
    overrides = [
        override.replace("dataset_file=houses", "dataset_file=unknown") for override in SETTINGS
    ]
    overrides = [override for override in overrides if "columns.label" not in override]
    overrides += ["checkpoint_dir=run", "predict.format=csv"]
    predict.run(compose(overrides), Path("predicted"))
    table = pd.read_csv("predicted/predictions.csv")
    known = ["known_value_price", "known_value_age"]
    assert list(table.columns) == ["id", "value_price", "value_age", *known, "split"]
    assert table[[*known, "split"]].isna().all(axis=None)
    assert (table["id"] == houses["id"]).all()
    known = houses["price"].notna()
    assert metrics.r2_score(houses["price"][known], table["value_price"][known]) > 0.8
    (directory,) = Path("data/partitions").glob("unknown*")
    asked = retexo.load_run("run").predict(directory, node_ids=["h007", "h003"])
    expected = table.set_index("id").loc[["h007", "h003"], ["value_price", "value_age"]]
    np.testing.assert_allclose(asked.values, expected.to_numpy(), rtol=1e-4)
    scores = json.loads(Path("predicted/predictions.json").read_text(encoding="utf-8"))
    assert scores["test"]["r2"] is None  # nothing is known there
