"""init=RUN: training starts from the parameters of a trained run."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import random_graph, thirds, write_partitions

from partitioning.errors import InputError
from retexo.apps import train
from retexo.results.checkpoint import open_checkpoint
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings


def settings(folder: Path, *more: str) -> Settings:
    data = "dataset_name=file", "dataset_file=toy.npz", f"partition_dir={folder}", "app=train"
    small = "hidden_dim=12", "num_rounds=[8]", "cluster.threads=1", "num_partitions=3", "device=cpu"
    return compose([*data, *small, *more], "node_classification_sage")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(tmp_path_factory.mktemp("parts"))
    write_partitions(folder, random_graph(60, 240), thirds(60), np.arange(60) % 3, 3)
    return folder


@pytest.fixture(scope="module")
def trained(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By settings, the folder of a run."""

    @functools.cache
    def run(*given: str) -> Path:
        folder = Path(tmp_path_factory.mktemp("first"))
        train.run(settings(parts, *given), folder)
        return folder

    return run


LAZY = ("trainer=lazy", "model.lookahead=0")


@pytest.mark.parametrize(
    "given", [LAZY, ("trainer=lazy", "model.lookahead=1"), ("trainer=full_graph",)]
)
def test_training_starts_from_a_run(
    parts: Path, trained: Any, tmp_path: Path, given: tuple[str, ...]
) -> None:
    """Steps of length zero keep its parameters and scores, also where no round improves on it."""
    first = trained(*given)
    still = f"init={first}", "learning_rate=[1e-12]", "num_rounds=[2]"
    again = train.run(settings(parts, *given, *still), tmp_path)
    stages = (open_checkpoint(run).stages() for run in (first, tmp_path))
    for before, after in zip(*stages, strict=True):
        for name, value in before.state_dict().items():
            torch.testing.assert_close(after.state_dict()[name], value, rtol=1e-6, atol=1e-7)
    wanted = json.loads((first / "summary.json").read_text())
    assert again["val"] == pytest.approx(wanted["val"], rel=1e-4)
    assert again["test"] == pytest.approx(wanted["test"], rel=1e-4)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("init=nowhere",), r"^init=nowhere: has no checkpoint/model.json"),
        (("hidden_dim=7",), r"^hidden_dim=7: the model of .*/checkpoint has hidden_dim=12"),
        (("trainer=full_graph",), r"trainer=full_graph: the model of .* trainer=lazy"),
    ],
)
def test_another_model_is_refused(
    parts: Path, trained: Any, tmp_path: Path, given: tuple[str, ...], words: str
) -> None:
    more = () if given[0].startswith("init") else (f"init={trained(*LAZY)}",)
    with pytest.raises(InputError, match=words):
        train.run(settings(parts, *given, *more), tmp_path / "again")
    assert not (tmp_path / "again" / "checkpoint").exists()
