"""What follows a run: callbacks of users, trackers and the progress bar, in the parent of node 0.

They read the rounds from metrics.jsonl, which rank 0 writes in any case, so they cost the workers
no message. This module imports the standard library only, because `import retexo` has `Callback`.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Callback:
    """Follows a run; a subclass overrides what it needs. What it raises ends the run.

    The methods are called by the process that called `retexo.train`, within half a second of what
    they report. They have to return at once: the same process watches the workers.
    """

    def on_start(self, settings: Mapping[str, Any], run_dir: Path) -> None:
        """Called before the workers start.

        Args:
            settings: all settings by dotted name.
            run_dir: the run directory.
        """

    def on_round(self, line: Mapping[str, Any]) -> None:
        """Called after each round.

        Args:
            line: `layer`, `round`, `train_loss` (None in the last round of a layer), `val_metric`,
                `val_loss`, `seconds`; as metrics.jsonl has them.
        """

    def on_layer(self, line: Mapping[str, Any]) -> None:
        """Called after on_round for the last round of each layer, with the same argument."""

    def on_progress(self, phase: str, bytes_sent: int) -> None:
        """Called a few times per second, with the phase of the first worker on this node and the
        bytes that all its workers have sent."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Called at the end, also of a failed run, with the content of summary.json."""


class RoundCallback(Callback):
    """A function of a round as a callback."""

    def __init__(self, function: Callable[[Mapping[str, Any]], Any]) -> None:
        self.function = function

    def on_round(self, line: Mapping[str, Any]) -> None:
        self.function(line)


class RoundFollower:
    """Reads each round of metrics.jsonl once, in order, while rank 0 writes the file.

    A run that resumes or restarts truncates the file, and writes the same rounds again.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._last = path, 0, (-1, -1)

    def read(self) -> list[dict[str, Any]]:
        """The rounds since the last call; none while the file is missing or half written."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                lines = file.read().splitlines(keepends=True)
            found = [json.loads(line) for line in lines if line.endswith(b"\n")]
        except FileNotFoundError:
            return []
        except ValueError:  # a truncated file has grown past the offset already
            self._offset = 0
            return []
        self._offset += sum(len(line) for line in lines if line.endswith(b"\n"))
        new = [line for line in found if (line["layer"], line["round"]) > self._last]
        if new:
            self._last = (new[-1]["layer"], new[-1]["round"])
        return new
