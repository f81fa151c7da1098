"""What follows a run: callbacks of users, trackers and the progress bar, in the parent of node 0.

Rank 0 sends its rounds to its parent. This module imports the standard library only,
because `import retexo` has `Callback`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Callback:
    """Follows a run; a subclass overrides what it needs.

    What it raises ends the run and is raised by `retexo.train`; when the run is done and saved, it
    is logged with its traceback.

    The methods are called by the thread that called `retexo.train`, within half a second of what
    they report. Another thread watches the workers, so a slow method delays only later calls.
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
        """Called a few times per second, with the phase and the bytes sent so far.

        The phase is that of the first worker on this node; bytes are of all its workers.
        """

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Called at the end, also of a failed run, with the content of summary.json."""


class RoundCallback(Callback):
    """A function of a round as a callback."""

    def __init__(self, function: Callable[[Mapping[str, Any]], Any]) -> None:
        self.function = function

    def on_round(self, line: Mapping[str, Any]) -> None:
        self.function(line)
