"""Somebody's tables, with names and without features, from the files to predictions that are read
by name.
"""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from support import run_cli, run_main

import retexo

SPLIT = ("split=fraction", "split.train=0.4", "split.val=0.3", "split.test=0.3", "split.seed=1")
SMALL = ("num_partitions=2", "num_rounds=[4]", "device=cpu", "hidden_dim=16")


def write_friends(folder: Path, people: int = 60) -> list[str]:
    """A ring in which each knows the next two, as a table of edges; the labels of all but one in
    another.
    """
    folder.mkdir()
    names = [f"per son, {number}" for number in np.random.default_rng(0).permutation(people)]
    pairs = [(names[at], names[(at + step) % people]) for at in range(people) for step in (1, 2)]
    with (folder / "edges.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("from", "to"), *pairs])
    with (folder / "labels.csv").open("w", newline="") as file:
        rows = [(name, "young" if at < people // 2 else "old") for at, name in enumerate(names[1:])]
        csv.writer(file).writerows([("id", "label"), *rows])
    return names


@pytest.mark.timeout(240)
def test_tables_of_names_are_trained_predicted_and_read_back(tmp_path: Path) -> None:
    names = write_friends(tmp_path / "friends")
    data = (
        "dataset_name=file",
        "dataset_file=friends",
        "symmetrize=true",
        "features=[degree,positional]",
    )
    ended = run_main("app=train", *data, *SPLIT, *SMALL, "hydra.run.dir=run", cwd=tmp_path)
    assert ended.rc == 0, ended.output
    for kind in ("csv", "parquet", "npy"):
        wanted = (
            "app=predict",
            "checkpoint_dir=run",
            f"predict.format={kind}",
            f"hydra.run.dir={kind}",
        )
        ended = run_main(*wanted, *data, *SPLIT, "num_partitions=2", "device=cpu", cwd=tmp_path)
        assert ended.rc == 0, ended.output
    with (tmp_path / "csv" / "predictions.csv").open(newline="") as file:
        rows = {row["id"]: row["class"] for row in csv.DictReader(file)}
    assert rows.keys() == set(names)
    assert set(rows.values()) <= {"old", "young"}
    table = np.load(tmp_path / "npy" / "predictions.npy")
    assert dict(zip(table["id"].tolist(), table["class"].tolist(), strict=True)) == rows
    run = retexo.load_run(tmp_path / "run")
    directory = next((tmp_path / "data/partitions").iterdir())
    found = run.predict(directory, node_ids=[names[5], names[3]])
    assert found.ids.tolist() == [names[5], names[3]]
    assert found.classes.tolist() == [rows[names[5]], rows[names[3]]]


@pytest.mark.timeout(240)
def test_random_features_are_not_sent(tmp_path: Path) -> None:
    write_friends(tmp_path / "friends")
    data = (
        "dataset_name=file",
        "dataset_file=friends",
        "symmetrize=true",
        "features=random",
        *SPLIT,
        *SMALL,
    )
    for app in ("train", "plan"):
        ended = run_main(
            f"app={app}", *data, "exchange.precision=fp32", f"hydra.run.dir={app}", cwd=tmp_path
        )
        assert ended.rc == 0, ended.output
    counted = json.loads((tmp_path / "train" / "summary.json").read_text())["bytes"]["by_kind"]
    assert counted["features"] == 0
    assert counted["embeddings"] > 0
    predicted = json.loads((tmp_path / "plan" / "plan.json").read_text())["entries"]
    assert not sum(entry["num_bytes"] for entry in predicted if entry["kind"] == "features")
    assert not any(entry["layer"] == 0 and entry["phase"] for entry in predicted)
    run = retexo.load_run(tmp_path / "train")
    for parts in (1, 3):
        assert (
            run_main("app=partition_data", *data, f"num_partitions={parts}", cwd=tmp_path).rc == 0
        )
    one, two, three = (
        run.predict(path) for path in sorted((tmp_path / "data/partitions").iterdir())
    )
    assert np.allclose(
        one.probabilities, two.probabilities, atol=1e-5
    )  # halo rows are what their owners have
    assert np.allclose(one.probabilities, three.probabilities, atol=1e-5)


@pytest.mark.timeout(240)
def test_a_grown_graph_whose_classes_are_numbered_otherwise(tmp_path: Path) -> None:
    """A class that was not trained comes first in the order of names: the others are found by
    theirs.
    """
    names = write_friends(tmp_path / "friends")
    data = ("symmetrize=true", "features=degree", "dataset_name=file", *SPLIT, *SMALL)
    ended = run_main("app=train", "dataset_file=friends", *data, "hydra.run.dir=run", cwd=tmp_path)
    assert ended.rc == 0, ended.output
    write_friends(tmp_path / "grown")
    with (tmp_path / "grown" / "labels.csv").open("a", newline="") as file:
        csv.writer(file).writerow((names[0], "ageless"))
    found = {}
    for folder in ("friends", "grown"):
        wanted = (
            "app=predict",
            f"dataset_file={folder}",
            "checkpoint_dir=run",
            "predict.format=csv",
        )
        ended = run_main(
            *wanted,
            *data[:-4],
            "num_partitions=2",
            "device=cpu",
            f"hydra.run.dir={folder}_out",
            cwd=tmp_path,
        )
        assert ended.rc == 0, ended.output
        with (tmp_path / f"{folder}_out" / "predictions.csv").open(newline="") as file:
            found[folder] = {row["id"]: row["class"] for row in csv.DictReader(file)}
    assert found["friends"] == found["grown"]
    [meta] = (tmp_path / "data/partitions").glob("grown-*/meta.json")
    assert json.loads(meta.read_text())["class_names"] == ["ageless", "old", "young"]


def test_files_are_in_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    """In ASCII here; the log on the screen shows what it cannot print as escapes."""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    folder, names = tmp_path / "toy", [f"李明 {number}" for number in range(20)]
    folder.mkdir()
    nodes = [f"{name},{'甲乙'[row % 2]},{row % 2}" for row, name in enumerate(names)]
    (folder / "nodes.csv").write_text("\n".join(["id,label,x", *nodes]), encoding="utf-8")
    edges = [f"{names[row - 1]},{name}" for row, name in enumerate(names)]
    (folder / "edges.csv").write_text("\n".join(["src,dst", *edges]), encoding="utf-8")
    data = ("dataset_name=file", "dataset_file=toy", "num_partitions=2", "device=cpu")
    trained = (*SPLIT, "num_rounds=[2]", "hidden_dim=4", "hydra.run.dir=run")
    ended = run_cli("app=train", *data, *trained, cwd=tmp_path, env=ascii_only)
    assert ended.rc == 0, ended.output
    assert "Error" not in ended.output
    assert "classes are numbered: 0 \\u4e59, 1 \\u7532" in ended.output
    assert "0 乙, 1 甲" in (tmp_path / "run" / "main.log").read_text(encoding="utf-8")
    wanted = ("app=predict", "checkpoint_dir=run", "predict.format=csv", "hydra.run.dir=out")
    ended = run_cli(*wanted, *data, cwd=tmp_path, env=ascii_only)
    assert ended.rc == 0, ended.output
    rows = (tmp_path / "out" / "predictions.csv").read_text(encoding="utf-8").splitlines()
    assert {row.split(",")[0] for row in rows[1:]} == set(names)
    assert {row.split(",")[1] for row in rows[1:]} <= {"甲", "乙"}
