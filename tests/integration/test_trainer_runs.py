"""Runs of each trainer: what they write, what can be done with it, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import random_graph, read_rounds, thirds, write_partitions

from partitioning.errors import InputError
from retexo.apps import evaluate, train
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings
from retexo.trainers.registry import TRAINERS, check_trainer_settings

SMALL = ("hidden_dim=8", "num_rounds=[6,1]", "device=cpu", "cluster.threads=1")


class Place:
    """A folder with the partitions of a graph, and a run of each trainer that was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_partitions(
            folder, random_graph(48, 200), thirds(48), [node // 3 % 2 for node in range(48)], 2
        )

    def settings(self, *overrides: str) -> Settings:
        data = (
            "dataset_name=file",
            "dataset_file=toy.npz",
            f"partition_dir={self.folder}",
            "num_partitions=2",
        )
        return compose([*data, *overrides])

    def run_of(self, name: str) -> Path:
        if not (self.folder / name).exists():
            train.run(self.settings(*SMALL, f"trainer={name}"), self.folder / name)
        return self.folder / name

    def summary(self, name: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.run_of(name) / "summary.json").read_text())
        return result


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("trainers"))


@pytest.mark.parametrize(
    "name", [name for name in TRAINERS if name != "sampled"]
)  # tests/distributed/test_trainers.py
def test_every_trainer_says_the_same_things(place: Place, name: str) -> None:
    summary, lazy = place.summary(name), place.summary("lazy")
    assert summary.keys() == lazy.keys()
    assert summary["bytes"].keys() == lazy["bytes"].keys()
    assert summary["status"] == "done"
    assert summary["rounds"] == ([6, 1] if name == "lazy" else [6])
    assert summary["settings"]["trainer"] == {"name": name}
    counted = summary["bytes"]
    assert counted["total"] == sum(counted["by_kind"].values()) == sum(map(sum, counted["by_peer"]))
    assert counted["total"] == sum(counted["by_layer"]) + counted["outside_layers"]
    rows = counted["by_kind"]["features"] + counted["by_kind"]["embeddings"]
    assert (rows == 0) == (name == "local")
    assert (counted["by_kind"]["embeddings"] == 0) == (name in ("local", "sign", "fedgcn"))
    lines = read_rounds(place.run_of(name))
    assert [line["round"] for line in lines if line["layer"] == 0] == list(range(7))


def test_evaluate_says_what_the_run_said(place: Place, tmp_path: Path) -> None:
    """The network was trained end to end on other edges than it is evaluated on."""
    summary = place.summary("bns")
    asked = ("app=evaluate", f"checkpoint_dir={place.run_of('bns')}")
    with pytest.raises(InputError, match=r"^trainer=local: the model of .* by trainer=bns;"):
        evaluate.run(place.settings(*asked, "trainer=local"), tmp_path / "out")
    result = evaluate.run(place.settings(*asked, "trainer=bns"), tmp_path / "out")
    for part in ("train", "val", "test"):
        assert result[part] == pytest.approx(summary[part], rel=1e-5)


def test_a_network_of_its_own_cannot_be_evaluated(place: Place, tmp_path: Path) -> None:
    settings = place.settings("app=evaluate", f"checkpoint_dir={place.run_of('sign')}")
    with pytest.raises(InputError, match=r"trainer=sign .* summary\.json"):
        evaluate.run(settings, tmp_path / "out")


REFUSED = [
    (("trainer=bns", "bns.p=1.5"), "bns.p=1.5"),
    (("trainer=bns", "bns.p=-0.1"), "bns.p=-0.1"),
    (("trainer=bns", "bns.p=nan"), "bns.p=nan"),
    (("trainer=bns", "bns.p=often"), "bns.p"),
    (("trainer=bns", "+bns.rate=0.1"), "bns.rate"),
    (("trainer=bns", "gradient=local"), "gradient=local"),
    (("trainer=full_graph", "gradient=local"), "gradient=local"),
    (("trainer=local", "local.degrees=some"), "local.degrees=some"),
    (("trainer=local", "exchange=plain"), "exchange=plain"),
    (("trainer=local", "smoothing.steps=3"), "smoothing.steps=3"),
    (("trainer=local", "exchange.precision=bf16"), "exchange.precision=bf16"),
    (("trainer=fedgcn", "fedgcn.hops=3"), "fedgcn.hops=3"),
    (("trainer=fedgcn", "model=gat"), "model=gat"),
    (("trainer=fedgcn", "model=sage", "model.aggregator=pool"), "model.aggregator=pool"),
    (("trainer=sign", "model=gat"), "model=gat"),
    (("trainer=sign", "model=gin"), "model=gin"),
    (("trainer=fedgcn", "checkpoint.every=5"), "checkpoint.every=5"),
    (("trainer.name=fast",), "trainer=fast"),
    (("trainer=local", "app=plan"), "trainer=local: app=plan predicts"),
    (("compute.precision=fp16",), "compute.precision=fp16: choose one of auto, fp32, bf16"),
    (("batch_size=0",), "batch_size=0: must be at least 1, or auto"),
    (("batch_size=many",), "batch_size=many: must be at least 1, or auto"),
    (("batch_size=2.5",), "batch_size: "),
]


@pytest.mark.parametrize(("overrides", "words"), REFUSED)
def test_what_cannot_be_had_is_refused(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        check_trainer_settings(compose(overrides))


def test_it_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="model=gat"):
        train.run(
            compose(["trainer=sign", "model=gat", f"partition_dir={tmp_path}"]), tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()
