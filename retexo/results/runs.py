"""Reading run directories: summary.json and metrics.jsonl.

A damaged file affects only its own run, which keeps the reason.
"""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from io import StringIO
from pathlib import Path
from typing import Any

from partitioning.errors import InputError
from partitioning.files.file_io import UNREADABLE, check_unchanged, read_json, read_text
from partitioning.files.json_shape import NUMBER, check_shape
from retexo.scores import SCORES
from retexo.settings.flatten import flatten
from retexo.settings.schema import keys, normal_form

SEEDS = sorted(keys(lambda setting: setting.is_seed))
IGNORED = keys(lambda setting: not setting.compared or setting.is_seed)
SCORES_SHOWN = {
    **{
        f"{split} {score.label}": f"{split}.{name}"
        for name, score in SCORES.items()
        for split in ("test", "val")
        if score.label and (split == "test" or score.validates)
    },
    "test hits@20": "test.hits@20",
}
"""Name in reports -> field of summary.json; scores of other tasks are left out."""
BYTES = "bytes "
"""Begins the name of the measure of a kind of message."""
CLASS_SCORES = ("precision", "recall", "f1", "support")
ROUND = ["layer", "round", "train_loss", "val_metric", "val_loss"]
"""What the report reads of a line of metrics.jsonl."""
REASON_LENGTH = 300


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory."""

    path: Path
    status: str
    """done, failed, unfinished (running, or killed), damaged."""
    reason: str = ""
    """Why the run is not done."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Content of summary.json; empty of a damaged run."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings by dotted name, as in config.json."""
    measures: dict[str, float | None] = field(default_factory=dict)
    """Bytes, costs and the scores of its task of a finished run, by name; None without data."""

    @cached_property
    def classes(self) -> dict[str, dict[str, float]]:
        """Return the scores of the test nodes by class; empty for links."""
        rows = self.summary.get("classes", {}).get("test", [])
        return {_shorten(str(row["class"])): row for row in rows}

    @cached_property
    def bytes_by_layer(self) -> dict[str, dict[str, int]]:
        """Return a finished run's bytes by kind, and total: by layer, outside layers and in all."""
        layers = self.summary["bytes"].get("by_layer_and_kind", [])
        names = [*(f"layer {layer}" for layer in range(len(layers) - 1)), "outside layers"]
        by_layer = {
            name: {**by_kind, "total": sum(by_kind.values())}
            for name, by_kind in zip(names, layers, strict=False)
        }
        counted = self.summary["bytes"]
        return by_layer | {"total": {**counted["by_kind"], "total": counted["total"]}}

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

    def read_rounds(self) -> Any:
        """Return a DataFrame of the rounds of metrics.jsonl, whose columns are ROUND.

        A killed run ends in half a line, which is left out. Empty without the file, or where it is
        damaged: the run counts, but for its curve.
        """
        import pandas as pd

        with suppress(*UNREADABLE):
            lines = read_text(self.path / "metrics.jsonl").rpartition("\n")[0]
            table = pd.read_json(StringIO(lines), lines=True, precise_float=True)
            return table.reindex(columns=ROUND).astype(float)
        return pd.DataFrame(columns=ROUND, dtype=float)


def read_runs(*folders: Path) -> list[Run]:
    """Read all runs below folders, in order of their paths; missing folders are left out.

    Raises:
        InputError: no folder exists, or none has a run.
    """
    existing = [folder for folder in folders if folder.is_dir()]
    setting = f"report.runs={' and '.join(map(str, folders))}"
    if not existing:
        raise InputError(
            f"{setting}: no such folder; give one that holds run directories of app=train"
        )
    files = ("summary.json", "metrics.jsonl")
    paths = {file.parent for name in files for folder in existing for file in folder.rglob(name)}
    if not paths:
        raise InputError(
            f"{setting}: no summary.json below it; train first (app=train"
            f" hydra.run.dir={folders[0]}/NAME), or give the folder that holds the run directories"
        )
    return [read_run(path) for path in sorted(paths)]


def read_run(path: Path) -> Run:
    """Read a run directory. Errors become the reason of a damaged run."""
    try:
        summary = read_json(path / "summary.json")
        check_unchanged(summary, path / "summary.json", "take the original")
        summary["settings"] = settings = flatten(summary["settings"])  # 10,000 runs keep one copy
        status, reason = summary.get("status"), ""
        measures = _read_measures(summary) if status == "done" else {}
        if status == "failed":
            reason = _shorten(str(summary.get("error", "no reason given")))
        elif status == "running":
            files = (path / "summary.json", path / "metrics.jsonl")
            written = max(file.stat().st_mtime for file in files if file.exists())
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(written))
            status, reason = "unfinished", f"running or killed; last written {when}"
        elif status != "done":
            raise ValueError(f"status is {status!r}, not done, failed or running")
        return Run(path, status, reason, summary, settings, measures)
    except UNREADABLE as error:
        reason = f"has no {error}" if isinstance(error, KeyError) else str(error)
        return Run(path, "damaged", _shorten(f"summary.json: {reason}"))


def _read_measures(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return `Run.measures`; UNREADABLE errors if the file is no summary of a finished run."""
    numbers = flatten({group: summary.get(group, {}) for group in ("test", "val")})
    measures = {name: numbers[key] for name, key in SCORES_SHOWN.items() if key in numbers}
    measures |= {
        "bytes total": summary["bytes"]["total"],
        "seconds train": summary["seconds"]["train"],
        "seconds total": summary["seconds"]["total"],
        "rounds": sum(summary["rounds"]),
        "memory": max(summary["peak_memory_bytes"], default=None),
        "private memory": max(summary["peak_private_bytes"], default=None),
        **{f"{BYTES}{kind}": sent for kind, sent in summary["bytes"]["by_kind"].items()},
    }
    check_shape(measures, {"*": NUMBER}, "")
    return measures


def _shorten(text: str) -> str:
    """Return the first line, cut after REASON_LENGTH characters."""
    line = (text.strip().splitlines() or [""])[0]
    return line if len(line) <= REASON_LENGTH else f"{line[:REASON_LENGTH]} ..."


# --- settings ----------


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that define an experiment, in normal form: without seeds and paths.

    Of the data's file its name without folder and suffix is kept, and `synthetic.*` only for that
    data set.
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
