"""seeds=[...]: each run has the settings of seed=N, and the scores are averaged."""

import json
from pathlib import Path
from typing import Any

import pytest

from retexo.apps.seeds import run_seeds
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings


def test_each_seed_is_a_run_and_the_scores_are_averaged(tmp_path: Path) -> None:
    overrides = ["app=train", "dataset_name=cora", "num_partitions=3", "gradient=fp32"]
    seen: dict[str, Settings] = {}

    def train(settings: Settings, run_dir: Path) -> dict[str, Any]:
        seen[run_dir.name] = settings
        seed = settings.seed
        others = {"bytes": {"total": seed}, "seconds": {"train": 1.0}}
        others |= {"val": {"accuracy": None}, "chosen": {"metric": "accuracy"}}
        return {"test": {"accuracy": 0.5 + seed / 10, "log_loss": 1.0}, **others}

    summary = run_seeds(
        compose([*overrides, "seeds=[1,4]"], "node_classification_sage"), tmp_path, train
    )
    for seed in (1, 4):
        alone = compose([*overrides, f"seed={seed}"], "node_classification_sage")
        job = seen[f"seed{seed}"]
        assert job.stored == alone.stored
    assert summary == json.loads((tmp_path / "seeds.json").read_text())
    assert summary["runs"] == ["seed1", "seed4"]
    assert summary["test"]["accuracy"] == pytest.approx({"mean": 0.75, "std": 0.3 / 2**0.5})
    assert summary["test"]["log_loss"] == {"mean": 1.0, "std": 0.0}
    assert summary["bytes"]["total"]["mean"] == 2.5
    assert summary["chosen"] == {"metric": "accuracy"}
    assert "val" not in summary
