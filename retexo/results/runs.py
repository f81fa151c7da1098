"""Reading run directories: summary.json and metrics.jsonl.

A damaged file affects only its own run, which keeps the reason.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from partitioning.errors import InputError
from partitioning.file_io import parse_json, read_text
from partitioning.json_shape import COUNT, NUMBER, check_shape
from retexo.scores import SCORES
from retexo.settings.flatten import flatten
from retexo.settings.schema import keys, normal_form

SEEDS = sorted(keys(lambda setting: setting.is_seed))
IGNORED = keys(lambda setting: not setting.compared or setting.is_seed)
MEASURES = {
    **{
        f"{split} {score.label}": f"{split}.{name}"
        for name, score in SCORES.items()
        for split in ("test", "val")
        if score.label and (split == "test" or score.validates)
    },
    "test hits@20": "test.hits@20",
    "bytes total": "bytes.total",
    "seconds train": "seconds.train",
    "seconds total": "seconds.total",
}
"""Name in reports -> field of summary.json; scores of other tasks are left out."""
BYTES = "bytes "
"""Begins the name of the measure of a kind of message."""
CLASS_SCORES = ("precision", "recall", "f1", "support")
BIN = dict.fromkeys(("count", "confidence", "accuracy"), NUMBER)
SCORE_BIN = dict.fromkeys(("probability", "positives", "negatives"), NUMBER)
SCORES_SHAPE = {"*": NUMBER}
OF_ANY: dict[str, Any] = {
    "settings": {},
    "versions": {},
    "partition_digest?": (None, str),
    "data_checksums?": {"*": str},
    "chosen?": {"metric?": str},
}
"""What the report reads of any run's summary.json: with ? a name may be missing, * is any name."""
SHAPE: dict[str, Any] = {
    **dict.fromkeys(("train?", "val?", "test?", "standard_error?"), SCORES_SHAPE),
    "baselines?": {"*": SCORES_SHAPE},
    "baseline?": {},
    "features?": [str],
    "rounds": [COUNT],
    "val_by_layer?": [NUMBER],
    "peak_memory_bytes": [COUNT],
    "peak_private_bytes": [COUNT],
    "seconds": {"train": COUNT, "total": COUNT, "phase?": {"*": COUNT}},
    "bytes": {
        "total": COUNT,
        "by_kind": {"*": COUNT},
        "by_layer_and_kind?": [{"*": COUNT}],
        "by_peer": [[COUNT]],
    },
    "classes?": {"test?": [dict.fromkeys(CLASS_SCORES, NUMBER)]},
    "confusion?": [[COUNT]],
    "calibration?": {"*": [BIN]},
    "score_bins?": {"*": [SCORE_BIN]},
}
"""What it reads besides of a finished run's."""
POINT = {
    "layer": int,
    "round": int,
    **dict.fromkeys(("val_metric", "train_loss?", "val_loss?"), NUMBER),
}
"""What it reads of a line of metrics.jsonl."""
REASON_LENGTH = 300
MAX_FOLDERS = 10_000
"""Limit of folders without runs that a search visits."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory."""

    path: Path
    status: str
    """done, failed, unfinished (running, or killed), damaged."""
    reason: str = ""
    """Why the run is not done."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Content of summary.json; of a finished run checked by SHAPE; empty of a damaged one."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings by dotted name, as in config.json."""

    @cached_property
    def measures(self) -> dict[str, float | None]:
        """Return the scores, bytes and costs of a finished run by name; None without data."""
        if self.status != "done":
            return {}
        numbers = {
            f"{group}.{name}": value
            for group in ("test", "val", "bytes", "seconds")
            for name, value in self.summary.get(group, {}).items()
        }
        return {
            **{name: numbers[key] for name, key in MEASURES.items() if key in numbers},
            "rounds": sum(self.summary["rounds"]),
            "memory": max(self.summary["peak_memory_bytes"], default=None),
            "private memory": max(self.summary["peak_private_bytes"], default=None),
            **{f"{BYTES}{kind}": sent for kind, sent in self.bytes_sent["by_kind"].items()},
        }

    @cached_property
    def classes(self) -> dict[str, dict[str, float]]:
        """Return CLASS_SCORES of the test nodes by class; empty for links."""
        rows = self.summary.get("classes", {}).get("test", [])
        return {_shorten(str(row.get("class"))): row for row in rows}

    @property
    def bytes_sent(self) -> dict[str, Any]:
        """Return the field `bytes` of a finished run: by_kind, by_layer_and_kind, by_peer."""
        return self.summary["bytes"] if self.status == "done" else {}

    @cached_property
    def bytes_by_layer(self) -> dict[str, dict[str, int]]:
        """Return the bytes by kind, and their total, for each layer and outside the layers."""
        layers = self.bytes_sent.get("by_layer_and_kind", [])
        names = [*(f"layer {layer}" for layer in range(len(layers) - 1)), "outside layers"]
        return {
            name: {**by_kind, "total": sum(by_kind.values())}
            for name, by_kind in zip(names, layers, strict=False)
        }

    def read_curve(self) -> list[dict[str, Any]]:
        """Read the rounds with a validation metric."""
        return [line for line in self.read_rounds() if line["val_metric"] is not None]

    @property
    def metric(self) -> str | None:
        """Return the validation metric that stopping looked at; None where it is not stored."""
        metric: str | None = self.summary.get("chosen", {}).get("metric")
        return metric

    @cached_property
    def draw(self) -> str:
        """Key of the draw: equal for runs with the same seeds, split and partitions."""
        seeds = [self.settings.get(name) for name in SEEDS]
        return json.dumps([*seeds, self.summary.get("partition_digest")])

    def read_rounds(self) -> list[dict[str, Any]]:
        """Read metrics.jsonl up to the first damaged line: a killed run ends in half a line.

        Empty if the file cannot be read.
        """
        rounds: list[dict[str, Any]] = []
        # Without the file the run counts, but for its curve, which is a picture.
        with suppress(OSError, ValueError, RecursionError):
            for line in read_text(self.path / "metrics.jsonl").splitlines():
                entry = json.loads(line)
                check_shape(entry, POINT, "")
                rounds.append(entry)
        return rounds


def read_runs(*folders: Path) -> list[Run]:
    """Read all runs below folders, in order of their paths.

    Raises:
        InputError: no folder exists, or none has a run.
    """
    existing = [folder for folder in folders if folder.is_dir()]
    setting = f"report.runs={' and '.join(map(str, folders))}"
    if not existing:
        raise InputError(
            f"{setting}: no such folder; give one that holds run directories of app=train"
        )
    paths = _find_run_dirs(existing, setting)
    if not paths:
        raise InputError(
            f"{setting}: no summary.json below it; train first (app=train"
            f" hydra.run.dir={folders[0]}/NAME), or give the folder that holds the run directories"
        )
    return [read_run(path) for path in sorted(paths)]


def _find_run_dirs(folders: Sequence[Path], setting: str) -> set[Path]:
    """Find the run directories among `folders` and all folders below, also inside other runs.

    Raises:
        InputError: more than MAX_FOLDERS folders are neither runs nor directly inside one; its
            text begins with `setting`.
    """
    folders_found: set[Path] = set()
    others = 0
    for folder, within, files in (entry for top in folders for entry in os.walk(top)):
        path = Path(folder)
        if {"summary.json", "metrics.jsonl"} & {*within, *files}:
            folders_found.add(path)
        elif path.parent not in folders_found:
            others += 1
        if others > MAX_FOLDERS:
            raise InputError(
                f"{setting}: more than {MAX_FOLDERS:,} folders below it are no run directories;"
                " give the folder that holds these"
            )
    return folders_found


def read_run(path: Path) -> Run:
    """Read a run directory. Errors become the reason of a damaged run."""
    try:
        summary = parse_json(read_text(path / "summary.json"))
        check_shape(summary, OF_ANY, "summary")
        status, reason = summary.get("status"), ""
        if status == "done":
            _check_results(summary)
        elif status == "failed":
            reason = _shorten(str(summary.get("error", "no reason given")))
        elif status == "running":
            files = (path / "summary.json", path / "metrics.jsonl")
            written = max(file.stat().st_mtime for file in files if file.exists())
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(written))
            status, reason = "unfinished", f"running or killed; last written {when}"
        else:
            raise ValueError(f"status is {_shorten(repr(status))}, not done, failed or running")
        return Run(path, status, reason, summary, flatten(summary["settings"]))
    except (OSError, ValueError, RecursionError) as error:
        return Run(path, "damaged", _shorten(f"summary.json: {error}"))


def _check_results(summary: dict[str, Any]) -> None:
    """Raise ValueError unless the summary of a finished run has SHAPE and square tables."""
    check_shape(summary, SHAPE, "")
    peers, parts = summary["bytes"]["by_peer"], summary["settings"].get("num_partitions")
    confusion = summary.get("confusion", [])
    for name, rows, size in (
        ("bytes.by_peer", peers, parts),
        ("confusion", confusion, len(confusion)),
    ):
        if len(rows) != size or any(len(row) != size for row in rows):
            raise ValueError(f"{name} is not {size} x {size}")


def _shorten(text: str) -> str:
    """Return the first line, cut after REASON_LENGTH characters."""
    line = (text.strip().splitlines() or [""])[0]
    return line if len(line) <= REASON_LENGTH else f"{line[:REASON_LENGTH]} ..."


# --- settings ----------


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that define an experiment, in normal form: without seeds and paths.

    Of the data's file its name without folder and suffix is kept.
    """
    known = normal_form(settings)
    kept = {name: value for name, value in known.items() if not _is_ignored(name)}
    for name in ("dataset_file", "partition_file"):
        if kept.get(name) is not None:
            kept[name] = Path(str(kept[name])).stem
    if kept.get("dataset_name") != "synthetic":
        kept = {name: value for name, value in kept.items() if not name.startswith("synthetic.")}
    return kept


@cache
def _is_ignored(name: str) -> bool:
    return any(f"{name}.".startswith(f"{key}.") for key in IGNORED)
