"""Searches by Hydra's sweepers and launchers, as docs/experiments.md shows them."""

import json
import multiprocessing
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import random_graph, run_cli, run_main, save_npz, thirds

import retexo

DATA = ("dataset_name=file", "dataset_file=toy.npz", "num_partitions=2", "num_rounds=[3]")
SEARCH = ("+hparams_search=optuna", *DATA, "hidden_dim=8", "hydra.sweep.dir=search")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    save_npz(tmp_path / "toy.npz", random_graph(), thirds(40))
    return tmp_path


def test_optuna_finds_the_best_run_and_continues(place: Path) -> None:
    ended = run_main(*SEARCH, "hydra.sweeper.n_trials=2", "objective=val.log_loss", cwd=place)
    assert "direction=maximize: objective=val.log_loss needs" in ended.stderr
    assert ended.rc == 2
    command = (*SEARCH, "objective=val.log_loss", "hydra.sweeper.direction=minimize")
    assert run_main(*command, "hydra.sweeper.n_trials=2", cwd=place).rc == 0
    again = run_main(*command, "hydra.sweeper.n_trials=3", cwd=place)
    assert again.output.count("this run is finished already") == 2, again.output
    runs = [json.loads(each.read_text()) for each in place.glob("search/*/summary.json")]
    losses = {run["settings"]["dropout"]: run["val"]["log_loss"] for run in runs}
    found = yaml.safe_load((place / "search" / "optimization_results.yaml").read_text())
    assert len(losses) == 3
    assert found["best_value"] == min(losses.values())
    assert losses[found["best_params"]["dropout"]] == found["best_value"]
    best = re.search(r"best of 3 jobs: \S+ in (.+)", again.stdout)
    assert best is not None
    summary = json.loads(Path(best[1], "summary.json").read_text(encoding="utf-8"))
    assert summary["val"]["log_loss"] == found["best_value"]
    assert len(list(place.glob("data/partitions/*/toy-random-vol-2"))) == 1


@pytest.mark.long("test_cli.py has a multirun whose jobs fail")
@pytest.mark.timeout(300)
def test_jobs_of_joblib_report_their_failures(place: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=jobs")
    ended = run_cli("-m", *DATA, *launcher, "seed=3", "dropout=0.1,2", cwd=place)
    assert ended.rc == 2, ended.output
    assert "1 of 2 jobs failed" in ended.stdout
    assert "dropout=2" in ended.stdout.partition("jobs failed")[2]
    assert len(list(place.glob("jobs/*/summary.json"))) == 1


def test_a_sweeper_that_is_missing_is_named_with_its_remedy(tmp_path: Path) -> None:
    ended = run_main("-m", "hydra/sweeper=nevergrad", "seed=1,2", cwd=tmp_path)
    assert (ended.rc, "pip install -e '.[sweeps]'" in ended.stderr) == (2, True)


def test_a_callback_prunes_a_trial_of_optuna(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it raises ends the run in the middle of a layer, with all its processes."""
    import optuna

    monkeypatch.chdir(place)
    study = optuna.create_study(direction="maximize")
    layers: list[int] = []

    class Prune(retexo.Callback):
        def __init__(self, trial: optuna.Trial) -> None:
            self.trial = trial

        def on_layer(self, line: Mapping[str, Any]) -> None:
            layers.append(line["layer"])

        def on_round(self, line: Mapping[str, Any]) -> None:
            self.trial.report(line["val_metric"], 1000 * line["layer"] + line["round"])
            if self.trial.number == 1 and line["round"] == 3:
                raise optuna.TrialPruned

    def objective(trial: optuna.Trial) -> float:
        settings = {"dataset_name": "file", "dataset_file": "toy.npz", "num_partitions": 2}
        settings |= {"hidden_dim": trial.suggest_int("hidden_dim", 4, 8), "progress": "none"}
        settings |= {"hydra.run.dir": f"trial{trial.number}", "stopping": "none"}
        settings |= {"num_rounds": 2} if trial.number == 0 else {"num_rounds": 100_000}
        summary = retexo.train(settings, callbacks=[Prune(trial)])
        return float(summary["val"][summary["chosen"]["metric"]])

    study.optimize(objective, n_trials=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
    assert layers == [0, 1]
    assert sorted(study.trials[0].intermediate_values) == [0, 1, 2, 1000, 1001, 1002]
    summary = json.loads((place / "trial1" / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "failed"
    assert summary["error"] == "TrialPruned; raised by the callback Prune, which ended the run"
    assert not [each for each in multiprocessing.active_children() if "rank" in each.name]
