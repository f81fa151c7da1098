"""`logger=csv,tensorboard,mlflow,wandb`: metrics of a run in the files or the server of a tracker.

Each tracker is a Callback. One that fails during a run is left out with a warning.
"""

import csv
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from partitioning.errors import require_packages
from partitioning.files.file_io import open_regular
from retexo.results.callbacks import Callback
from retexo.settings.flatten import flatten

METRICS = ("train_loss", "val_metric", "val_loss")
COLUMNS = ("layer", "round", *METRICS, "seconds")
PROJECT = "retexo"
"""Experiment of MLflow and project of W&B, unless their environment variables name another."""
FILES = ("config.json", "summary.json")


def metrics_of(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a round that have a value, by a name with their layer."""
    return {
        f"layer {line['layer']}/{name}": line[name]
        for name in METRICS
        if line.get(name) is not None
    }


def results_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return scores, bytes and seconds of summary.json by dotted name."""
    groups = {name: summary.get(name, {}) for name in ("train", "val", "test", "bytes", "seconds")}
    return {
        name: float(value)
        for name, value in flatten(groups).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


class Csv(Callback):
    """Writes rounds.csv."""

    def on_start(self, settings: Mapping[str, Any], run_dir: Path) -> None:
        """Begin rounds.csv in the run directory; an older one is replaced."""
        self._file = open_regular(run_dir / "rounds.csv", "w", buffering=1)
        self._rows = csv.DictWriter(self._file, COLUMNS, extrasaction="ignore")
        self._rows.writeheader()

    def on_round(self, line: Mapping[str, Any]) -> None:
        self._rows.writerow(line)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._file.close()


class TensorBoard(Callback):
    """Writes the folder tensorboard/, anew for a resumed run."""

    def on_start(self, settings: Mapping[str, Any], run_dir: Path) -> None:
        """Begin the folder tensorboard in the run directory; an older one is removed."""
        from torch.utils.tensorboard import SummaryWriter

        shutil.rmtree(run_dir / "tensorboard", ignore_errors=True)
        self._board = SummaryWriter(str(run_dir / "tensorboard"))

    def on_round(self, line: Mapping[str, Any]) -> None:
        for name, value in metrics_of(line).items():
            self._board.add_scalar(name, value, line["round"])

    def on_end(self, summary: Mapping[str, Any]) -> None:
        for name, value in results_of(summary).items():
            self._board.add_scalar(f"results/{name}", value, 0)
        self._board.close()


class MLflow(Callback):
    """Logs to the server of MLFLOW_TRACKING_URI, or to mlflow.db, which `mlflow ui` shows."""

    def on_start(self, settings: Mapping[str, Any], run_dir: Path) -> None:
        """Create a run at MLFLOW_TRACKING_URI, by default mlflow.db here, and log all settings.

        Sets environment variables, so that MLflow gives up soon.
        """
        uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{Path('mlflow.db').absolute()}")
        # By default MLflow tries for minutes, in which this process does not watch the workers.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._run_dir, self._client = run_dir, MlflowClient(uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        identity = experiment.experiment_id if experiment else self._client.create_experiment(name)
        self._id = self._client.create_run(identity, run_name=run_dir.name).info.run_id
        values = [Param(name, str(value)) for name, value in settings.items()]
        self._client.log_batch(self._id, params=values)

    def on_round(self, line: Mapping[str, Any]) -> None:
        """Send the metrics of a round to MLflow."""
        self._log(metrics_of(line), line["round"])

    def _log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics; characters that MLflow refuses in a name, as in hits@10, become _."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = [
            Metric(re.sub(r"[^\w\-. :/]", "_", name), value, now, step)
            for name, value in metrics.items()
        ]
        self._client.log_batch(self._id, metrics=values)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Log the results and the kept files, and end the run.

        FAILED unless the summary is of a done run.
        """
        status = "FAILED"
        try:
            self._log(results_of(summary), 0)
            for path in _kept_files(self._run_dir):
                log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
                log(self._id, str(path), *([path.name] if path.is_dir() else []))
            if summary.get("status") == "done":
                status = "FINISHED"
        finally:
            self._client.set_terminated(self._id, status)


class WandB(Callback):
    """Logs to Weights & Biases; WANDB_MODE=offline keeps the run in the run directory."""

    def on_start(self, settings: Mapping[str, Any], run_dir: Path) -> None:
        """Begin a run of the project WANDB_PROJECT with all settings, in the run directory."""
        import wandb

        self._run_dir = run_dir
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run_dir.name,
            dir=str(run_dir),
            config=dict(settings),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("layer*", step_metric="round")

    def on_round(self, line: Mapping[str, Any]) -> None:
        """Send the metrics of a round to W&B, which shows them over the rounds of their layer."""
        self._run.log({**metrics_of(line), "round": line["round"]})

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Log the results and the kept files, and end the run; exit code 1 unless it is done."""
        import wandb

        self._run.summary.update(results_of(summary))
        artefact = wandb.Artifact(f"run-{self._run.id}", type="run")
        for path in _kept_files(self._run_dir):
            add = artefact.add_dir if path.is_dir() else artefact.add_file
            add(str(path), name=path.name)
        self._run.log_artifact(artefact)
        self._run.finish(exit_code=0 if summary.get("status") == "done" else 1)


def _kept_files(run_dir: Path) -> Iterator[Path]:
    """Return what a tracker keeps: FILES and the checkpoint folder, if the run has them."""
    return (path for name in (*FILES, "checkpoint") if (path := run_dir / name).exists())


TRACKERS: dict[str, tuple[Callable[[], Callback], tuple[str, ...], str]] = {
    "csv": (Csv, (), ""),
    "tensorboard": (TensorBoard, ("tensorboard",), "report"),
    "mlflow": (MLflow, ("mlflow",), "trackers"),
    "wandb": (WandB, ("wandb",), "trackers"),
}
"""Name -> class, the packages that it needs, and the extra that has them."""


def make_trackers(names: Sequence[str]) -> list[Callback]:
    """Return the trackers that `logger` names; InputError if one is not installed."""
    for name in names:
        _, packages, extra = TRACKERS[name]
        require_packages(f"logger={name}", extra, *packages)
    return [TRACKERS[name][0]() for name in names]
