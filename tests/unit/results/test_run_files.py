"""Observers of a run: callbacks, trackers, lines of the rounds.

What a run leaves: its lock, metrics.jsonl, the checkpoint, predictions as tables and files.
"""

import csv
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from support import ROOT, train_settings

from partitioning.errors import InputError
from partitioning.file_io import exclusive
from retexo.errors import TrainingError
from retexo.launch.heartbeat import Progress
from retexo.models.network import Architecture, Schema, build_network, default_model_settings
from retexo.models.stage import OutputHeads
from retexo.results import run_log, trackers
from retexo.results.atomic_write import UNFINISHED, write_json
from retexo.results.callbacks import Callback
from retexo.results.checkpoint import open_checkpoint, save_layer, save_model
from retexo.results.observers import observing
from retexo.results.predictions import (
    Predictions,
    merge,
    read_table,
    write_part,
    write_table,
)
from retexo.results.run_lock import exclusive_run_dir
from retexo.results.run_log import RunLog
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
    found = {name: [(e.step, e.value) for e in events.Scalars(name)] for name in SERIES}
    assert found == SERIES
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


def statuses_told(callback: Mock) -> list[Any]:
    """With which statuses a run ended."""
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
    told = [statuses_told(callback) for callback in (*callbacks, refusing)]
    assert told == [["failed", "done"], ["failed", "done"], []], "the last run had not started"


def test_a_callback_that_raises_at_the_start_ends_the_run(tmp_path: Path) -> None:
    broken = Mock(spec=Callback, **{"on_start.side_effect": ValueError("no space")})
    with (
        pytest.raises(ValueError, match="no space"),
        observing(train_settings("progress=none"), tmp_path, [broken]) as observers,
    ):
        observers.start(SETTINGS)


@pytest.mark.parametrize("given", [5, Callback])
def test_what_is_no_callback_is_refused_before_the_run(given: Any, tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="neither a function of a round nor an object"),
        observing(train_settings(), tmp_path, [given]),
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
    shown = stream()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [] if lines else [logging.StreamHandler(shown)])
    monkeypatch.setattr(root, "level", logging.WARNING if lines else logging.INFO)
    settings = train_settings(f"progress={progress}", "num_rounds=[5]", "num_layers=2")
    with observing(settings, tmp_path, ()) as observers:
        observers.start(SETTINGS)
        logging.getLogger("retexo.launch.monitor").info("layer 0 round 2, its last")
        logging.getLogger("retexo.worker").warning("never predicted")
        observers.look("exchange (layer 1)", 31_200, lines_of(*ROUNDS[:3]))
        observers.end({"status": "failed"})
    text = shown.getvalue()
    assert ("layer 0 round 2" in text) == lines
    assert text.count("never predicted") == 1
    assert ("exchange (layer 1)  50%" in text) == bar
    assert ("5/10 rounds" in text) == bar
    assert ("validation 0.5000, 31.2 kB sent" in text) == bar


HOLD = """
import sys
from pathlib import Path
from retexo.results.run_lock import exclusive_run_dir
with exclusive_run_dir(Path(sys.argv[1]), 0):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_the_owner_is_named_and_its_death_frees_the_folder(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(InputError) as caught, exclusive_run_dir(tmp_path, 0):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert (
        f"hydra.run.dir={tmp_path}: in use by process {holder.pid} on '{socket.gethostname()}'"
        in str(caught.value)
    )
    assert "which began at '20" in str(caught.value)
    with exclusive_run_dir(tmp_path, 0):
        pass


def test_nodes_share_a_run_directory(tmp_path: Path) -> None:
    in_use = pytest.raises(InputError, match=f"in use by process {os.getpid()} on")
    with (
        exclusive_run_dir(tmp_path, 0),
        exclusive_run_dir(tmp_path, 1),
        in_use,
        exclusive_run_dir(tmp_path, 1),
    ):
        pass


@pytest.mark.parametrize("content", ["", "3", "{}", '{"pid": "x"}', "\x1b[2J"])
def test_an_owner_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    with exclusive(tmp_path / "lock", "here"):
        (tmp_path / "lock").write_text(content)
        with (
            pytest.raises(InputError, match="here: in use by another process"),
            exclusive(tmp_path / "lock", "here"),
        ):
            pass


def test_what_a_killed_run_was_writing_is_removed(tmp_path: Path) -> None:
    """And nothing else."""
    left, kept = (
        [],
        [tmp_path / "summary.json", tmp_path / ".hidden", tmp_path / "other" / f"{UNFINISHED}file"],
    )
    for folder in ("", "checkpoint", "state", "state/rank0", "predictions"):
        (tmp_path / folder).mkdir(exist_ok=True)
        left.append(tmp_path / folder / f"{UNFINISHED}1a2b-file")
    (tmp_path / "other").mkdir()
    for path in (*left, *kept):
        path.touch()
    with exclusive_run_dir(tmp_path, 0):
        assert not [path for path in left if path.exists()]
        assert all(path.exists() for path in kept)


def test_a_refusal_leaves_no_folder_that_was_made_for_the_lock(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError), exclusive(tmp_path / "there" / "made" / "too" / ".lock", "it"):
        raise InputError("no")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_a_run_directory_that_is_removed_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"gone/a.json: .*folder was removed meanwhile; start"):
        write_json(tmp_path / "gone" / "a.json", {})


def log_rounds(folder: Path, rank: int) -> None:
    with RunLog(folder, rank, train_settings()) as log:
        for layer, number, loss, metric in ROUNDS:
            log.round(layer, number, loss, metric)


def test_a_resumed_run_has_no_line_twice(tmp_path: Path) -> None:
    sent: list[Any] = []
    log_rounds(tmp_path, 0)
    with RunLog(tmp_path, 0, train_settings(), Progress(sent.append)) as log:
        log.resume_from(0, 2)
        log.round(0, 2, 1.25, 0.625)
    assert [(line["layer"], line["round"]) for line in (each["round"] for each in sent)] == [
        (0, 0),
        (0, 1),
        (0, 2),
    ]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [
        (line["layer"], line["round"], line["train_loss"], line["val_metric"]) for line in lines
    ] == [*ROUNDS[:2], (0, 2, 1.25, 0.625)]


def test_a_log_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff\xfe\0")
    with (
        RunLog(tmp_path, 0, train_settings()) as log,
        pytest.raises(TrainingError, match=r"metrics\.jsonl: damaged .*; take it away"),
    ):
        log.resume_from(0, 2)


def test_what_is_said_of_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many rounds or seconds, and at the end of a layer, however few rounds it has."""
    for seconds, expected in ((3600.0, [1, 2]), (0.0, [0, 1, 2, 3])):
        said: list[Any] = []
        monkeypatch.setattr(run_log, "LINE_INTERVAL", seconds)
        with RunLog(tmp_path, 0, train_settings("log_every=1"), Progress(said.append)) as log:
            for layer, number, loss, metric in ROUNDS:
                log.round(layer, number, loss, metric)
        lines = [
            "layer 0 round 0: training loss 2.0000, validation 0.2500",
            "layer 0 round 1: training loss 1.5000",
            "layer 0 round 2, its last: validation 0.5000",
            "layer 1 round 0: training loss 1.0000, validation 0.7500",
        ]
        assert [each["log"] for each in said if "log" in each] == [
            lines[place] for place in expected
        ]


SHAPE = Architecture(default_model_settings("gcn", 2, 8), Schema.of_plain_graph(5), 3)


def test_an_incomplete_checkpoint_is_refused(tmp_path: Path) -> None:
    save_layer(tmp_path, 0, build_network(SHAPE, 7)[0])
    described = {"multilabel": False, "partition_digest": "", "answer": asdict(OutputHeads((1,)))}
    save_model(tmp_path, SHAPE, described)
    with pytest.raises(InputError, match=r"not a complete checkpoint"):
        open_checkpoint(tmp_path).stages()


LOGITS = torch.tensor([[0.0, 1.0, -1.0], [2.0, 0.5, 1.9]])
ROWS = torch.tensor([[0.1, 0.2], [0.3, 0.4]])


def found(ids: list[int], *, multilabel: bool = False) -> Predictions:
    logits = LOGITS[: len(ids)]
    predicted = logits > 0 if multilabel else logits.argmax(dim=1)
    return Predictions.of(torch.tensor(ids), logits, ROWS[: len(ids)], predicted)


def known(ids: list[int]) -> Any:
    """Ids below 10 have no known label; the others are test nodes of the class id // 100."""
    number = torch.tensor(ids, dtype=torch.int64)
    labels = torch.where(number < 10, -1, number // 100)
    return found(ids).known_columns(labels, [], {"test": labels >= 0})


def test_labels_each_by_itself() -> None:
    columns = found([7, 5], multilabel=True).columns()
    assert list(columns) == ["id", "label0", "label1", "label2", "p0", "p1", "p2"]
    assert [columns[f"label{place}"].tolist() for place in range(3)] == [[0, 1], [1, 1], [0, 1]]
    np.testing.assert_allclose(columns["p1"], 1 / (1 + np.exp([-1, -0.5])), rtol=1e-6)


def test_a_csv_keeps_ids_and_float32(tmp_path: Path) -> None:
    columns = found([2**62 + 1, -3]).columns()
    write_table(tmp_path / "table.csv", columns)
    header, *lines = (tmp_path / "table.csv").read_text().splitlines()
    assert header == "id,class,p0,p1,p2"
    cells = [line.split(",") for line in lines]
    assert [int(cell[0]) for cell in cells] == [2**62 + 1, -3]
    assert np.float32([cell[2] for cell in cells]).tolist() == columns["p0"].tolist()


@pytest.mark.parametrize("kind", ["parquet", "npy", "csv"])
def test_parts_become_one_file_sorted_by_id(tmp_path: Path, kind: str) -> None:
    for part, ids in enumerate(([30, 4], [], [100])):
        write_part(tmp_path, part, found(ids), kind, known(ids), embeddings=True)
    assert merge(tmp_path, 3, kind) == []
    for name in ("predictions", "embeddings"):
        path = tmp_path / f"{name}.{kind}"
        table = pd.read_csv(path) if kind == "csv" else read_table(path)
        assert table["id"].tolist() == [4, 30, 100]
        if name == "predictions":
            missing = [-1, ""] if kind == "npy" else [None, None]
            shown = table[["known_class", "split"]].astype(object)
            rows = shown.where(shown.notna(), None).to_numpy().tolist()
            assert rows == [missing, [0, "test"], [1, "test"]]
    np.testing.assert_allclose(table["e0"], [0.3, 0.1, 0.1], rtol=1e-6)


def test_parts_that_are_elsewhere_are_named(tmp_path: Path) -> None:
    assert merge(tmp_path, 2, "npy") == []  # nothing was predicted here
    write_part(tmp_path, 1, found([1]), "npy", known([1]), embeddings=False)
    assert merge(tmp_path, 4, "npy") == [0, 2, 3]
    assert read_table(tmp_path / "predictions.npy")["id"].tolist() == [1]
    assert not (tmp_path / "embeddings.npy").exists()
