"""Loss and validation metric of every round: metrics.jsonl and log lines."""

import json
import time
from pathlib import Path
from typing import Any, Self, TextIO

from partitioning.files.file_io import open_regular, read_text
from retexo.errors import TrainingError
from retexo.launch.heartbeat import Progress
from retexo.launch.ticker import LINE_INTERVAL
from retexo.settings.run_settings import TrainSettings


class RunLog:
    """Context manager that logs rounds on rank 0; other ranks only report progress."""

    def __init__(
        self, run_dir: Path, rank: int, settings: TrainSettings, progress: Progress | None = None
    ) -> None:
        self._path = run_dir / "metrics.jsonl" if rank == 0 else None
        self._settings = settings
        self._progress = progress or Progress()
        self.metric_name = "metric"
        """Of the layer's `val_metric`, for log lines; `loss` if that is the negated `val_loss`."""
        self._file: TextIO | None = None
        self._start = self._said = time.perf_counter()

    def __enter__(self) -> Self:
        """Open metrics.jsonl, on rank 0 only; lines are appended."""
        if self._path is not None:
            self._file = open_regular(
                self._path, "a", buffering=1
            )  # lines are on disk before the state saved after them
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def resume_from(self, layer: int, number: int) -> None:
        """Drop the lines from a round on, which the resumed run writes again.

        Seconds go on from the last one. TrainingError if the file is damaged. Nothing without a
        file.
        """
        if self._file is None or self._path is None:
            return
        try:
            text = read_text(self._path).splitlines(keepends=True)
            lines = [json.loads(line) for line in text if line.endswith("}\n")]
            kept = [line for line in lines if (line["layer"], line["round"]) < (layer, number)]
            seconds = float(kept[-1]["seconds"]) if kept else 0.0
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise TrainingError(
                f"{self._path}: damaged ({error}); take it away to go on without it"
            ) from error
        self._file.truncate(0)
        for line in kept:
            self._write(line)
        self._start -= seconds

    def round(
        self,
        layer: int,
        number: int,
        train_loss: float | None,
        val_metric: float | None = None,
        val_loss: float | None = None,
    ) -> None:
        """Log round `number` of a layer: a line of metrics.jsonl, and one of the log at log_every.

        The log also has the last round, and a line after LINE_INTERVAL seconds.

        Args:
            layer: of the network.
            number: of the round.
            train_loss: mean before the next step; None at the end.
            val_metric: None without validation nodes.
            val_loss: mean over the validation nodes; None where it is not used.
        """
        self._progress.set_round(layer, number)
        if self._file is None:
            return
        now = time.perf_counter()
        seconds = round(now - self._start, 4)
        line = {
            "layer": layer,
            "round": number,
            "train_loss": train_loss,
            "val_metric": val_metric,
            "val_loss": val_loss,
            "seconds": seconds,
        }
        self._write(line)
        due = number > 0 and number % self._settings.log_every == 0
        if due or train_loss is None or now - self._said >= LINE_INTERVAL:
            self._said = now
            value = val_loss if self.metric_name == "loss" else val_metric
            known = {"training loss": train_loss, f"validation {self.metric_name}": value}
            said = ", ".join(
                f"{name} {value:.4f}" for name, value in known.items() if value is not None
            )
            last = ", its last" if train_loss is None else ""
            self._progress.send({"log": f"layer {layer} round {number}{last}: {said}"})

    def _write(self, line: dict[str, Any]) -> None:
        """Write a line, and send it to the parent, whose callbacks follow the run."""
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._progress.send({"round": line})
