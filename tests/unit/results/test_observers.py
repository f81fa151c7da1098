"""Observers of a run: callbacks, trackers, what is shown of the rounds."""

import csv
import io
import json
import logging
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support import train_settings

from partitioning.errors import InputError
from retexo.results import trackers
from retexo.results.callbacks import Callback
from retexo.results.observers import observing
from retexo.results.trackers import make_trackers

ROUNDS = ((0, 0, 2.0, 0.25), (0, 1, 1.5, None), (0, 2, None, 0.5), (1, 0, 1.0, 0.75))
SETTINGS = {"dataset_name": "toy", "stopping": {"patience": 20}, "objective": None}
SUMMARY = {
    "status": "done",
    "test": {"accuracy": 0.75, "hits@10": 0.5},
    "bytes": {"total": 12, "by_kind": {"features": 7}},
}
SERIES = {
    "layer 0/train_loss": [(0, 2.0), (1, 1.5)],
    "layer 0/val_metric": [(0, 0.25), (2, 0.5)],
    "layer 1/train_loss": [(0, 1.0)],
    "layer 1/val_metric": [(0, 0.75)],
}


def lines_of(*rounds: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl."""
    keys = ("layer", "round", "train_loss", "val_metric")
    rest = {"val_loss": None, "seconds": 0.5}
    return [dict(zip(keys, values, strict=True)) | rest for values in rounds]


def follow(run_dir: Path, *loggers: str) -> None:
    """A run of ROUNDS without workers, followed by trackers."""
    settings = train_settings(f"logger=[{','.join(loggers)}]", "progress=none")
    with observing(settings, run_dir, ()) as observers:
        observers.start(SETTINGS)
        observers.look("round", 5, lines_of(*ROUNDS[:2]))
        observers.look("done", 12, lines_of(*ROUNDS[2:]))
        (run_dir / "summary.json").write_text(json.dumps(SUMMARY))
        observers.end(SUMMARY)


def test_a_round_that_a_restarted_run_repeats_is_passed_on_once(tmp_path: Path) -> None:
    seen, callback = list[Any](), Mock(spec=Callback)
    with observing(train_settings("progress=none"), tmp_path, [seen.append, callback]) as observers:
        observers.start(SETTINGS)
        for rounds in (ROUNDS[:3], ROUNDS[:1], ROUNDS[1:], ROUNDS):
            observers.look("round", 0, lines_of(*rounds))
    assert seen == lines_of(*ROUNDS)
    callback.on_layer.assert_called_once_with(seen[2])


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
    series = {name: [(e.step, e.value) for e in events.Scalars(name)] for name in SERIES}
    assert series == SERIES
    assert events.Scalars("results/bytes.total")[0].value == 12
    assert not (tmp_path / "tensorboard" / "events.former").exists()


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_dir = tmp_path / "first"
    run_dir.mkdir()
    follow(run_dir, "mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("retexo").experiment_id])
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params["stopping.patience"] == "20"
    assert run.data.metrics["test.accuracy"] == 0.75
    assert run.data.metrics["test.hits_10"] == 0.5, "MLflow refuses the name hits@10"
    series = {
        name: [
            (point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)
        ]
        for name in SERIES
    }
    assert series == SERIES
    assert [artifact.path for artifact in client.list_artifacts(run.info.run_id)] == [
        "summary.json"
    ]


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    follow(tmp_path, "wandb")
    wandb.teardown()  # as at the end of a process: its service writes the file
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    for word in (b"layer 0/val_metric", b"stopping.patience", b"test.accuracy", b"summary.json"):
        assert word in content, word


def statuses_told(callback: Mock) -> list[Any]:
    """Return the statuses with which a callback was told that the run ended."""
    return [call.args[0].get("status") for call in callback.on_end.call_args_list]


def test_a_tracker_that_fails_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Mock(spec=Callback, **{"on_round.side_effect": ConnectionError("the server is gone")})
    monkeypatch.setitem(trackers.TRACKERS, "mlflow", (lambda: broken, (), ""))
    follow(tmp_path, "mlflow", "csv")
    assert caplog.text.count("logger=mlflow: the server is gone; the run goes on") == 1
    assert statuses_told(broken) == ["failed"], "it was not closed"
    assert len((tmp_path / "rounds.csv").read_text().splitlines()) == 5


def test_all_that_have_started_are_told_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Mock(spec=Callback, **{"on_end.side_effect": ValueError("no space")})
    broken.on_progress.side_effect = KeyError("colour")
    callbacks = [broken, Mock(spec=Callback)]
    for status in ("failed", "done"):
        with observing(train_settings("progress=none"), tmp_path, callbacks) as observers:
            observers.start(SETTINGS)
            observers.end({"status": status, "bytes": {"total": 0}})
    assert caplog.text.count("ValueError: no space") == 2
    assert caplog.text.count("KeyError: 'colour'") == 1, "after the last round"
    refusing = Mock(spec=Callback, **{"on_start.side_effect": PermissionError("no key")})
    monkeypatch.setitem(trackers.TRACKERS, "wandb", (lambda: refusing, (), ""))
    with observing(train_settings("logger=[csv,wandb]"), tmp_path, callbacks) as observers:
        with pytest.raises(InputError, match="logger=wandb: no key; correct that"):
            observers.start(SETTINGS)
        observers.end({})
    statuses = [statuses_told(callback) for callback in (*callbacks, refusing)]
    assert statuses == [["failed", "done"], ["failed", "done"], []], "the last run had not started"


def test_a_callback_that_raises_at_the_start_ends_the_run(tmp_path: Path) -> None:
    broken = Mock(spec=Callback, **{"on_start.side_effect": ValueError("no space")})
    with (
        pytest.raises(ValueError, match="no space"),
        observing(train_settings("progress=none"), tmp_path, [broken]) as observers,
    ):
        observers.start(SETTINGS)


@pytest.mark.parametrize("callback", [5, Callback])
def test_what_is_no_callback_is_refused_before_the_run(callback: Any, tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="neither a function of a round nor an object"),
        observing(train_settings(), tmp_path, [callback]),
    ):
        pass


def test_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="logger=neptune: choose one of csv"):
        train_settings("logger=neptune")
    monkeypatch.setitem(sys.modules, "wandb", None)
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
    terminal = stream()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [] if lines else [logging.StreamHandler(terminal)])
    monkeypatch.setattr(root, "level", logging.WARNING if lines else logging.INFO)
    settings = train_settings(f"progress={progress}", "num_rounds=[5]", "num_layers=2")
    with observing(settings, tmp_path, ()) as observers:
        observers.start(SETTINGS)
        logging.getLogger("retexo.launch.monitor").info("layer 0 round 2, its last")
        logging.getLogger("retexo.worker").warning("never predicted")
        observers.look("exchange (layer 1)", 31_200, lines_of(*ROUNDS[:3]))
        observers.end({"status": "failed"})
    text = terminal.getvalue()
    assert ("layer 0 round 2" in text) == lines
    assert text.count("never predicted") == 1
    assert ("exchange (layer 1)  50%" in text) == bar
    assert ("5/10 rounds" in text) == bar
    assert ("validation 0.5000, 31.2 kB sent" in text) == bar
