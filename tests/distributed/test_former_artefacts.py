"""Artefacts that commit 8666332 wrote are read as they were: partitions, checkpoints, predictions
(tests/fixtures).
"""

import json
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import ROOT

from partitioning.errors import InputError
from retexo.apps import evaluate, predict, train
from retexo.results.checkpoint import open_checkpoint
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

FORMER = ROOT / "tests" / "fixtures" / "written_by_8666332"
SMALL = "hidden_dim=8 heads=2 num_rounds=[6,5] seed=1 device=cpu cluster.threads=1"
KINDS = {
    "plain": f"dataset_file={FORMER}/tables partition_dir={FORMER}/partitions",
    "links": f"dataset_file={FORMER}/tables partition_dir={FORMER}/partitions-links",
    "typed": f"dataset_file={FORMER}/typed partition_dir={FORMER}/partitions-typed target=film",
}
CONFIGS = {
    "plain": "node_classification",
    "links": "link_prediction",
    "typed": "node_classification",
}


LONG = pytest.mark.long("artefacts of other models are read likewise")
REST, TYPED = ("gcn", "sage", "gin"), ("hetero_sage", "rgat")


def settings_of(kind: str, model: str, *more: str) -> Settings:
    overrides = f"dataset_name=file num_partitions=2 {KINDS[kind]} {SMALL}"
    return compose([*shlex.split(overrides), *more], f"{CONFIGS[kind]}_{model}")


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("kind", "model", "name"),
    [
        ("plain", "gat", "predict-gat"),
        ("typed", "rgcn", "predict-typed-rgcn"),
        *(pytest.param("plain", each, f"predict-{each}", marks=LONG) for each in REST),
        *(pytest.param("typed", each, f"predict-typed-{each}", marks=LONG) for each in TYPED),
    ],
)
def test_a_former_model_predicts_the_same(kind: str, model: str, name: str, tmp_path: Path) -> None:
    checkpoint = FORMER / name.replace("predict", "run")
    given = ("app=predict", f"checkpoint_dir={checkpoint}", "predict.precision=trained")
    predict.run(settings_of(kind, model, *given), tmp_path)
    found = pd.read_parquet(tmp_path / "predictions.parquet")
    expected = pd.read_parquet(FORMER / name / "predictions.parquet")
    pd.testing.assert_frame_equal(found, expected, rtol=1e-3, atol=1e-4)
    scores, former = (read(folder / "predictions.json") for folder in (tmp_path, FORMER / name))
    for split in ("train", "val", "test"):
        assert {name: scores[split][name] for name in former[split]} == pytest.approx(former[split])


@pytest.mark.parametrize(
    "model", ["gcn", *(pytest.param(each, marks=LONG) for each in ("sage", "gat"))]
)
def test_a_former_link_model_scores_the_same(model: str, tmp_path: Path) -> None:
    checkpoint = FORMER / f"run-links-{model}"
    settings = settings_of("links", model, "app=evaluate", f"checkpoint_dir={checkpoint}")
    assert evaluate.run(settings, tmp_path)["test"] == pytest.approx(
        read(checkpoint / "summary.json")["test"], abs=1e-4
    )


@pytest.mark.parametrize("name", ["run-full_graph", "run-sign", "sites/run-north"])
def test_other_former_checkpoints_are_read(name: str) -> None:
    description = read(FORMER / name / "checkpoint" / "model.json")
    if description["own_model"]:
        with pytest.raises(InputError, match=f"trainer={description['trainer']}"):
            open_checkpoint(FORMER / name)
    else:
        stages = open_checkpoint(FORMER / name).stages()
        assert len(stages) == description["architecture"]["num_layers"]


def test_a_former_interrupted_run_is_refused_with_a_remedy(tmp_path: Path) -> None:
    more = ("app=train", "stopping=none", "num_rounds=[6,20000]", "checkpoint.every=5")
    with pytest.raises(InputError, match="resume"):
        train.run(settings_of("plain", "gcn", *more, f"resume={FORMER}/interrupted"), tmp_path)
