"""Trackers, callbacks and the progress bar follow a run by its metrics.jsonl."""

import csv
import importlib.util
import io
import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import train_settings

from partitioning.errors import InputError
from retexo.results import trackers
from retexo.results.callbacks import Callback, RoundFollower
from retexo.results.observers import observing
from retexo.results.trackers import make_trackers

ROUNDS = ((0, 0, 2.0, 0.25), (0, 1, 1.5, None), (0, 2, None, 0.5), (1, 0, 1.0, 0.75))
SETTINGS = {"dataset_name": "toy", "stopping": {"patience": 20}, "objective": None}
SUMMARY = {
    "status": "done",
    "test": {"accuracy": 0.75},
    "bytes": {"total": 12, "by_kind": {"features": 7}},
}
SERIES = {
    "layer 0/train_loss": [(0, 2.0), (1, 1.5)],
    "layer 0/val_metric": [(0, 0.25), (2, 0.5)],
    "layer 1/train_loss": [(0, 1.0)],
    "layer 1/val_metric": [(0, 0.75)],
}


def write_rounds(run_dir: Path, *rounds: tuple[Any, ...], mode: str = "a") -> None:
    keys = ("layer", "round", "train_loss", "val_metric")
    with (run_dir / "metrics.jsonl").open(mode) as file:
        for each in rounds:
            line = dict(zip(keys, each, strict=True)) | {"val_loss": None, "seconds": 0.5}
            file.write(json.dumps(line) + "\n")


def follow(run_dir: Path, *loggers: str) -> None:
    """A run of ROUNDS without workers, followed by trackers."""
    settings = train_settings(f"logger=[{','.join(loggers)}]", "progress=none")
    with observing(settings, run_dir, ()) as observers:
        observers.start(SETTINGS)
        write_rounds(run_dir, *ROUNDS[:2])
        observers.look("round", 5)
        write_rounds(run_dir, *ROUNDS[2:])
        observers.look("done", 12)
        (run_dir / "summary.json").write_text(json.dumps(SUMMARY))
        observers.end(SUMMARY)


def test_each_round_is_read_once_also_of_a_run_that_restarts(tmp_path: Path) -> None:
    follower = RoundFollower(tmp_path / "metrics.jsonl")
    assert follower.read() == []
    write_rounds(tmp_path, *ROUNDS[:3])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"layer": 1, "rou')
    assert [line["round"] for line in follower.read()] == [0, 1, 2]
    write_rounds(tmp_path, ROUNDS[0], mode="w")  # it goes on from a saved state
    assert follower.read() == []
    write_rounds(tmp_path, *ROUNDS[1:])
    assert [(line["layer"], line["round"]) for line in follower.read()] == [(1, 0)]
    write_rounds(tmp_path, ROUNDS[0], (0, 1, 1.125, 0.25), (0, 2, 1.25, 0.5), (0, 3, 1.5, 0.75))
    assert follower.read() == []


def test_csv_and_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events.former").touch()
    follow(tmp_path, "csv", "tensorboard")
    with (tmp_path / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["layer"], row["round"], row["val_metric"]) for row in rows] == [
        ("0", "0", "0.25"),
        ("0", "1", ""),
        ("0", "2", "0.5"),
        ("1", "0", "0.75"),
    ]
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = {name: [(e.step, e.value) for e in events.Scalars(name)] for name in SERIES}
    assert found == SERIES
    assert events.Scalars("results/bytes.total")[0].value == 12
    assert not (tmp_path / "tensorboard" / "events.former").exists()


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_dir = tmp_path / "first"
    run_dir.mkdir()
    follow(run_dir, "mlflow")
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("retexo").experiment_id])
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params["stopping.patience"] == "20"
    assert run.data.metrics["test.accuracy"] == 0.75
    found = {
        name: [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]
        for name in SERIES
    }
    assert found == SERIES
    assert [each.path for each in client.list_artifacts(run.info.run_id)] == ["summary.json"]


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    follow(tmp_path, "wandb")
    wandb.teardown()  # as at the end of a process: its service writes the file
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    for word in (b"layer 0/val_metric", b"stopping.patience", b"test.accuracy", b"summary.json"):
        assert word in content, word


class Broken(Callback):
    def on_round(self, line: Mapping[str, Any]) -> None:
        raise ConnectionError("the server is gone")


def test_a_tracker_that_fails_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(trackers.TRACKERS, "mlflow", (Broken, "csv", ""))
    follow(tmp_path, "mlflow", "csv")
    assert caplog.text.count("logger=mlflow: the server is gone; the run goes on") == 1
    assert len((tmp_path / "rounds.csv").read_text().splitlines()) == 5


class Ending(Callback):
    def __init__(self, ended: list[Any], *, raises: bool = False) -> None:
        self.ended, self.raises = ended, raises

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.ended.append(summary.get("status"))
        if self.raises:
            raise ValueError("no space")


def test_all_that_have_started_are_told_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Any] = []
    callbacks = [Ending(ended, raises=True), Ending(ended)]
    for status in ("failed", "done"):
        with observing(train_settings("progress=none"), tmp_path, callbacks) as observers:
            observers.start(SETTINGS)
            if status == "failed":
                observers.end({"status": status})
            else:
                with pytest.raises(ValueError, match="no space"):
                    observers.end({"status": status})
    assert ended == ["failed", "failed", "done", "done"]
    monkeypatch.setitem(trackers.TRACKERS, "wandb", (Refusing, "csv", ""))
    with observing(train_settings("logger=[csv,wandb]"), tmp_path, callbacks) as observers:
        with pytest.raises(InputError, match="logger=wandb: no key; correct that"):
            observers.start(SETTINGS)
        observers.end({})
    assert len(ended) == 4, "they had not started"


class Refusing(Callback):
    def on_start(self, settings: Mapping[str, Any], run_dir: Path) -> None:
        raise PermissionError("no key")


@pytest.mark.parametrize("given", [5, Broken])
def test_what_is_no_callback_is_refused_before_the_run(given: Any, tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="neither a function of a round nor an object"),
        observing(train_settings(), tmp_path, [given]),
    ):
        pass


def test_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="logger=neptune: choose one of csv"):
        train_settings("logger=neptune")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"logger=wandb: .*pip install -e '\.\[trackers\]'"):
        make_trackers(("wandb",))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "progress", "bar", "lines"),
    [
        (Terminal, "auto", True, False),
        (io.StringIO, "auto", False, True),
        (Terminal, "none", False, False),
        (io.StringIO, "bar", True, False),
    ],
)
def test_what_is_shown_of_the_rounds(
    stream: type[io.StringIO],
    progress: str,
    bar: bool,
    lines: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lines also in a program without logging of its own, such as a notebook."""
    shown = stream()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [] if lines else [logging.StreamHandler(shown)])
    monkeypatch.setattr(root, "level", logging.WARNING if lines else logging.INFO)
    settings = train_settings(f"progress={progress}", "num_rounds=[5]", "num_layers=2")
    with observing(settings, tmp_path, ()) as observers:
        observers.start(SETTINGS)
        write_rounds(tmp_path, *ROUNDS[:3])
        logging.getLogger("retexo.launch.monitor").info("layer 0 round 2, its last")
        logging.getLogger("retexo.worker").warning("never predicted")
        observers.look("exchange (layer 1)", 31_200)
        observers.end({"status": "failed"})
    text = shown.getvalue()
    assert ("layer 0 round 2" in text) == lines
    assert text.count("never predicted") == 1
    assert ("exchange (layer 1)  50%" in text) == bar
    assert ("5/10 rounds" in text) == bar
    assert ("validation 0.5000, 31.2 kB sent" in text) == bar
