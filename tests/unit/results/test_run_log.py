"""The lines of a run's rounds: metrics.jsonl, and what is said of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import train_settings

from retexo.errors import TrainingError
from retexo.launch.heartbeat import Progress
from retexo.results import run_log
from retexo.results.run_log import RunLog

ROUNDS = ((0, 0, 2.0, 0.25), (0, 1, 1.5, None), (0, 2, None, 0.5), (1, 0, 1.0, 0.75))


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
    assert [(line["layer"], line["round"]) for line in (message["round"] for message in sent)] == [
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
    for seconds, expected in ((3600.0, [1, 2, 4]), (0.0, [0, 1, 2, 3, 4])):
        progress_messages: list[Any] = []
        monkeypatch.setattr(run_log, "LINE_INTERVAL", seconds)
        with RunLog(
            tmp_path, 0, train_settings("log_every=1"), Progress(progress_messages.append)
        ) as log:
            log.metric_name = "accuracy"
            for layer, number, loss, metric in ROUNDS:
                log.round(layer, number, loss, metric)
            log.metric_name = "loss"
            log.round(1, 1, None, -0.5, 0.5)
        lines = [
            "layer 0 round 0: training loss 2.0000, validation accuracy 0.2500",
            "layer 0 round 1: training loss 1.5000",
            "layer 0 round 2, its last: validation accuracy 0.5000",
            "layer 1 round 0: training loss 1.0000, validation accuracy 0.7500",
            "layer 1 round 1, its last: validation loss 0.5000",
        ]
        assert [message["log"] for message in progress_messages if "log" in message] == [
            lines[place] for place in expected
        ]
