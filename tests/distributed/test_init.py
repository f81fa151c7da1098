"""init=RUN: training starts from the parameters of a trained run."""

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


def write(folder: Path, **graph: Any) -> None:
    made = random_graph(60, 240, **graph)
    write_partitions(folder, made, thirds(60), np.arange(60) % 3, 3)


def settings(folder: Path, *more: str) -> Settings:
    data = "dataset_name=file", "dataset_file=toy.npz", f"partition_dir={folder}", "app=train"
    small = "hidden_dim=12", "num_rounds=[8]", "cluster.threads=1", "num_partitions=3", "device=cpu"
    return compose([*data, *small, *more], "node_classification_sage")


@pytest.mark.parametrize(
    ("trainer", "lookahead"), [("lazy", "0"), ("lazy", "1"), ("full_graph", "0")]
)
def test_training_starts_from_a_run(tmp_path: Path, trainer: str, lookahead: str) -> None:
    """Steps of length zero keep its parameters and scores, also where no round improves on it."""
    write(tmp_path / "parts")
    given = f"trainer={trainer}", f"model.lookahead={lookahead}"
    first = train.run(settings(tmp_path / "parts", *given), tmp_path / "first")
    still = f"init={tmp_path}/first", "learning_rate=[1e-12]", "num_rounds=[2]"
    again = train.run(settings(tmp_path / "parts", *given, *still), tmp_path / "again")
    stages = [open_checkpoint(tmp_path / run).stages() for run in ("first", "again")]
    for before, after in zip(*stages, strict=True):
        for name, value in before.state_dict().items():
            torch.testing.assert_close(after.state_dict()[name], value, rtol=1e-6, atol=1e-7)
    assert again["val"] == pytest.approx(first["val"], rel=1e-4)
    assert again["test"] == pytest.approx(first["test"], rel=1e-4)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("init=nowhere",), r"^init=nowhere: has no checkpoint/model.json"),
        (("hidden_dim=7",), r"^hidden_dim=7: the model of .*first/checkpoint has hidden_dim=12"),
        (("trainer=full_graph",), r"trainer=full_graph: the model of .* trainer=lazy"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, given: tuple[str, ...], words: str) -> None:
    write(tmp_path / "parts")
    train.run(settings(tmp_path / "parts", "num_rounds=[1]"), tmp_path / "first")
    more = () if given[0].startswith("init") else (f"init={tmp_path}/first",)
    with pytest.raises(InputError, match=words):
        train.run(settings(tmp_path / "parts", *given, *more), tmp_path / "again")
    assert not (tmp_path / "again" / "checkpoint").exists()
