"""The callbacks, trackers and progress bar of one run."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from partitioning.errors import InputError, first_line
from retexo.results.callbacks import Callback, RoundCallback
from retexo.results.progress_bar import ProgressBar, choose_progress, shown_progress
from retexo.results.trackers import make_trackers
from retexo.settings.flatten import flatten
from retexo.settings.run_settings import TrainSettings

logger = logging.getLogger(__name__)


class Observers:
    """Passes the rounds of a run on. Callbacks of users may end it; trackers may not."""

    def __init__(self, run_dir: Path, observers: Sequence[tuple[str | None, Callback]]) -> None:
        """Keep the observers; `start` calls them first.

        observers: each tracker with its name in `logger`, callbacks with None.
        """
        self._run_dir, self._observers = run_dir, observers
        self._started: list[tuple[str | None, Callback]] = []
        self._last_round = (-1, -1)
        """Layer and number of the last round that was passed on."""

    def start(self, settings: Mapping[str, Any]) -> None:
        """Tell all that the run starts; InputError if a tracker cannot be used.

        What a callback raises, it raises.
        """
        flat = flatten(settings)
        for tracker, observer in self._observers:
            try:
                observer.on_start(flat, self._run_dir)
            except Exception as error:
                if tracker is not None:
                    raise InputError(
                        f"logger={tracker}: {first_line(error)}; correct that, or leave it out"
                    ) from error
                _note_callback(error, observer)
                raise
            self._started.append((tracker, observer))

    def look(self, phase: str, bytes_sent: int, rounds: Sequence[Mapping[str, Any]] = ()) -> None:
        """Pass on new rounds; a restarted run repeats some, which are passed on only once.

        What a callback raises, it raises. A tracker that fails is left out, with a warning.
        """
        for line in rounds:
            if (line["layer"], line["round"]) <= self._last_round:
                continue
            self._last_round = line["layer"], line["round"]
            self._call("on_round", line)
            if line["train_loss"] is None:
                self._call("on_layer", line)
        self._call("on_progress", phase, bytes_sent)

    def end(self, summary: Mapping[str, Any]) -> None:
        """Tell all that have started that the run has ended; what they raise is logged.

        Node 0 alone has observers, and the bytes in its summary.
        """
        if self._started and summary.get("status") == "done":
            self._call_at_end("on_progress", "done", summary["bytes"]["total"])
        self._call_at_end("on_end", summary)

    def _call(self, method: str, *arguments: Any) -> None:
        """Call a method of all that started; a tracker that fails is left out from then on.

        It is warned of. What a callback raises, it raises.
        """
        for tracker, observer in list(self._started):
            try:
                getattr(observer, method)(*arguments)
            except Exception as error:
                if tracker is None:
                    _note_callback(error, observer)
                    raise
                logger.warning(
                    "logger=%s: %s; the run goes on without it",
                    *(tracker, first_line(error)),
                    exc_info=True,
                )
                self._started.remove((tracker, observer))
                with suppress(Exception):  # it has failed already
                    observer.on_end({"status": "failed"})

    def _call_at_end(self, method: str, *arguments: Any) -> None:
        """Call a method of all at the end of a run; errors are logged with their traceback."""
        for _, observer in self._started:
            try:
                getattr(observer, method)(*arguments)
            except Exception as error:
                logger.warning(
                    "%s: %s at the end of the run",
                    *(_name_of(observer), first_line(error)),
                    exc_info=True,
                )


def _note_callback(error: Exception, callback: Callback) -> None:
    """Note in an error which user's callback raised it."""
    error.add_note(f"raised by the callback {_name_of(callback)}, which ended the run")


def _as_callback(callback: Any) -> Callback:
    """Return a callback object, also for a function of a round; InputError for anything else."""
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, type) or not callable(callback):
        raise InputError(
            f"callbacks: {callback!r:.100} is neither a function of a round nor an object of a"
            " subclass of retexo.Callback; give a list of these"
        )
    return RoundCallback(callback)


def _name_of(callback: Callback) -> str:
    if isinstance(callback, RoundCallback):
        return getattr(callback.function, "__name__", type(callback.function).__name__)
    return type(callback).__name__


@contextmanager
def observing(
    settings: TrainSettings, run_dir: Path, callbacks: Sequence[Any]
) -> Iterator[Observers]:
    """Yield the observers of a run, with its lines on the console as `progress` says.

    Nodes other than 0 have no rounds, and so no observers. InputError for a tracker that is not
    installed, and for what is no callback.

    Args:
        settings: of the run.
        run_dir: its directory.
        callbacks: of users: a Callback, or a function of a round.
    """
    names = settings.logger or ()
    observers: list[tuple[str | None, Callback]] = [
        *zip(names, make_trackers(names), strict=True),
        *((None, _as_callback(callback)) for callback in callbacks),
    ]
    kind = choose_progress(settings.progress)
    if kind == "bar":
        by_layer = settings.trainer.name == "lazy"
        limits = settings.num_rounds if by_layer else settings.num_rounds[:1]
        observers.append((None, ProgressBar(limits)))
    with shown_progress(kind):
        yield Observers(run_dir, observers if settings.node_rank == 0 else [])
