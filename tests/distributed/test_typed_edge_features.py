"""Edge features in the tables of a heterogeneous graph: training on any number of partitions, and
prediction with the stored pipeline.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from partitioning.errors import InputError
from retexo import load_run
from retexo.apps import predict, train
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

ACCOUNTS, SHOPS, PAYMENTS = 120, 15, 700
EDGES = "edges/shop__paid_by__account.csv"


def write_tables(folder: Path, *, seed: int = 0) -> Path:
    """An account's class is whether its payments are large on average; nothing else tells it."""
    rng = np.random.default_rng(seed)
    for name in ("nodes", "edges"):
        (folder / name).mkdir(parents=True)
    account = np.concatenate((np.arange(ACCOUNTS), rng.integers(ACCOUNTS, size=PAYMENTS)))
    amount = rng.normal(500, 100, len(account)) + 300 * (account % 2)
    payments = pd.DataFrame(
        {
            "src": rng.integers(SHOPS, size=len(account)),
            "dst": account,
            "amount": amount.round(2),
            "kind": rng.choice(["card", "cash"], len(account)),
        }
    )
    payments.loc[::9, "amount"] = np.nan
    payments.to_csv(folder / EDGES, index=False)
    classes = np.where(np.arange(ACCOUNTS) % 2, "large", "small")
    nodes = pd.DataFrame({"id": np.arange(ACCOUNTS), "label": classes})
    nodes.assign(age=rng.integers(18, 90, ACCOUNTS)).to_csv(
        folder / "nodes/account.csv", index=False
    )
    shops = pd.DataFrame({"id": np.arange(SHOPS), "area": rng.random(SHOPS)})
    shops.to_csv(folder / "nodes/shop.csv", index=False)
    return folder


def settings_of(tables: Path, app: str, parts: int, *more: str, model: str = "rgcn") -> Settings:
    common = (
        f"app={app} dataset_name=file dataset_file={tables} num_partitions={parts}"
        f" partition_dir={tables}-parts{parts}{app}{len(more)} device=cpu cluster.threads=1"
    )
    return compose([*common.split(), *more], f"node_classification_{model}")


TRAIN = (
    "+experiment=exact",
    *("split=fraction", "split.train=0.5", "split.val=0.2", "split.test=0.3"),
    *("hidden_dim=8", "heads=2", "dropout=0", "num_rounds=[30]", "learning_rate=[0.05]", "seed=0"),
    *("stopping=none", "smoothing.steps=0", "output_heads=last", "best_val_model=false"),
    "num_layers=2",
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tables(Path(tmp_path_factory.mktemp("typed")) / "payments")


@pytest.fixture(scope="module")
def trained(tables: Path) -> Path:
    train.run(settings_of(tables, "train", 1, *TRAIN), tables.parent / "run")
    return tables.parent / "run"


def test_what_they_tell_is_learned_on_any_number_of_parts(
    tables: Path, trained: Path, tmp_path: Path
) -> None:
    summary = train.run(settings_of(tables, "train", 3, *TRAIN), tmp_path / "run")
    assert summary["test"]["accuracy"] > 0.9
    directories = [next(tables.parent.glob(f"payments-parts{parts}*/*")) for parts in (1, 3)]
    one, three = (
        load_run(run).predict(directory)
        for run, directory in zip((trained, tmp_path / "run"), directories, strict=True)
    )
    np.testing.assert_allclose(one.probabilities, three.probabilities, atol=1e-4)
    np.testing.assert_allclose(
        load_run(trained).predict(directories[1]).probabilities, one.probabilities, atol=1e-5
    )
    states = json.loads((directories[0] / "meta.json").read_text())["features"]
    assert [each["name"] for each in states["edges/shop__paid_by__account"]["columns"]] == [
        "amount",
        "kind",
    ]


def change(tables: Path, folder: Path, payments: pd.DataFrame) -> Path:
    """The same tables with other edges."""
    for name in ("nodes", "edges"):
        (folder / name).mkdir(parents=True)
    for file in (tables / "nodes").iterdir():
        (folder / "nodes" / file.name).write_bytes(file.read_bytes())
    payments.to_csv(folder / EDGES, index=False)
    return folder


def predicted(tables: Path, trained: Path, run_dir: Path) -> np.ndarray:
    given = (f"checkpoint_dir={trained}", "predict.format=npy")
    predict.run(settings_of(tables, "predict", 2, *given), run_dir)
    table = np.load(run_dir / "predictions.npy")
    return np.column_stack([table["p0"], table["p1"]])


def test_a_new_graph_is_encoded_by_column_name(
    tables: Path, trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    payments = pd.read_csv(tables / EDGES)
    same = (
        payments[["kind", "dst", "amount", "src"]].assign(note=1.5).sample(frac=1, random_state=0)
    )
    found = predicted(change(tables, tmp_path / "same", same), trained, tmp_path / "out")
    wanted = load_run(trained).predict(next(tables.parent.glob("payments-parts1*/*")))
    np.testing.assert_allclose(found, wanted.probabilities, atol=1e-5)
    assert "`note`: left out, the model was trained without them" in caplog.text
    odd = payments.assign(kind=payments["kind"].replace("cash", "shells"))
    predicted(change(tables, tmp_path / "odd", odd), trained, tmp_path / "odd-out")
    assert "rows have a category that the model does not know" in caplog.text
    for columns, words in (
        (["src", "dst", "kind"], "no table has such a column|no column `?amount"),
        (["src", "dst"], "no table has such a column|no column `?amount"),
    ):
        folder = change(tables, tmp_path / f"{len(columns)}", payments[columns])
        with pytest.raises(InputError, match=words):
            predicted(folder, trained, tmp_path / f"out{len(columns)}")
