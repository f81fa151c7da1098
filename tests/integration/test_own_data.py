"""Tables with names and without features, from the files to predictions that are read
by name.
"""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from support import run_main

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
