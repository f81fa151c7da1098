"""What commit f039c07 left on disk, before the modules moved into rooms, is read as it was
(tests/fixtures).
"""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import ROOT, need_dgl

from retexo.apps import evaluate, train
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

BEFORE = ROOT / "tests" / "fixtures" / "before_rooms"
DEFAULTS_THEN = ("base=published",)


def arguments(path: Path) -> tuple[str, list[str]]:
    """The configuration's name and the overrides of a command line that was kept."""
    _, name, *overrides = shlex.split(path.read_text(encoding="utf-8"))
    return name, [word for word in overrides if not word.startswith("partition_dir=")]


def settings_of(*more: str) -> Settings:
    name, overrides = arguments(BEFORE / "interrupted" / "arguments.txt")
    return compose(
        [*DEFAULTS_THEN, *overrides, f"partition_dir={BEFORE / 'partitions'}", *more], name
    )


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the end of the one that was not interrupted; its boundary rows are sent once more, in the
    order of now.
    """
    need_dgl()  # its partitions are files of DGL
    run_dir = tmp_path / "run"
    shutil.copytree(BEFORE / "interrupted", run_dir)
    stored_request = json.loads((run_dir / "state" / "run.json").read_text())["run"]
    here = train.versions()
    monkeypatch.setattr(
        train,
        "versions",
        lambda: {**here, **{name: stored_request[name] for name in ("retexo", "torch")}},
    )
    former = "stopping.metric=micro_f1 stopping.use_loss=false temperature=none threshold=0.5"
    former += " class_weights=none"
    resumed = train.run(settings_of("resume=auto", *former.split()), run_dir)
    whole = summary(BEFORE / "whole")
    assert resumed["resumed"]["layer"] == 1
    assert resumed["resumed"]["round"] > 0
    assert resumed["rounds"] == whole["rounds"]
    for name, value in whole["test"].items():
        assert resumed["test"][name] == pytest.approx(value, abs=0.05)
    assert resumed["bytes"]["by_kind"]["features"] == whole["bytes"]["by_kind"]["features"]
    for layer in range(2):
        found, expected = (
            load_file(folder / "checkpoint" / f"layer{layer}.safetensors")
            for folder in (run_dir, BEFORE / "whole")
        )
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin"])
def test_a_checkpoint_is_evaluated(model: str, tmp_path: Path) -> None:
    need_dgl()  # its partitions are files of DGL
    checkpoint = BEFORE / f"run-{model}"
    settings = settings_of(
        "app=evaluate", f"checkpoint_dir={checkpoint}", f"model={model}", "hidden_dim=8", "heads=2"
    )
    scores = evaluate.run(settings, tmp_path / "evaluation")
    for name in ("train", "val", "test"):
        former = summary(checkpoint)[name]
        assert {key: scores[name][key] for key in former} == pytest.approx(former, abs=1e-6)
