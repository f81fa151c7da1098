"""`progress`: a bar of tqdm on a terminal and in notebooks, lines elsewhere, or nothing."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from retexo.results.callbacks import Callback
from retexo.results.formats import format_bytes

OF_ROUNDS = ("retexo.launch.monitor", "retexo.launch.ticker")
"""Loggers of the lines that a bar replaces."""
FORMAT = (
    "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} rounds [{elapsed}<{remaining}{postfix}]"
)


def choose_progress(choice: str) -> str:
    """Return the setting `progress`, with auto as bar or lines."""
    if choice != "auto":
        return choice
    on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return "bar" if on_terminal or _in_notebook() else "lines"


def _in_notebook() -> bool:
    """Return whether this code runs in a Jupyter notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class ProgressBar(Callback):
    """Shows the layer, its round, the validation metric, the bytes sent and the time left.

    The time left is an upper limit: layers may stop before num_rounds.
    """

    def __init__(self, num_rounds: Sequence[int]) -> None:
        """num_rounds: the most rounds of each layer, of the whole network in one entry."""
        self._limits = num_rounds
        self._metric = self._sent = ""

    def on_start(self, settings: Mapping[str, Any], run_dir: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a notebook without ipywidgets gets a bar of text
            from tqdm.auto import tqdm
        self._bar = tqdm(total=sum(self._limits), bar_format=FORMAT, desc="start", leave=False)

    def on_round(self, line: Mapping[str, Any]) -> None:
        layer, done = line["layer"], line["round"]
        if line["train_loss"] is None:  # the last round of the layer
            done = self._limits[layer] if layer < len(self._limits) else done
        self._bar.n = min(sum(self._limits[:layer]) + done, self._bar.total)
        if line["val_metric"] is not None:
            self._metric = f", validation {line['val_metric']:.4f}"

    def on_progress(self, phase: str, bytes_sent: int) -> None:
        self._sent = f", {format_bytes(bytes_sent)} sent"
        self._bar.set_description_str(phase, refresh=False)
        self._bar.postfix = f"{self._metric}{self._sent}"[2:]  # tqdm puts ", " before it
        self._bar.refresh()

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._bar.close()


@contextmanager
def shown_progress(kind: str) -> Iterator[None]:
    """Within the block, log lines go to the console as `kind` (bar, lines or none) needs it.

    Lines are printed to stderr where the program that calls `retexo.train` has set up no logging.
    Otherwise the lines of rounds are kept from the console, not from files.
    """
    root, package = logging.getLogger(), logging.getLogger("retexo")
    with ExitStack() as stack:
        if kind == "bar":
            from tqdm.contrib.logging import logging_redirect_tqdm

            stack.enter_context(logging_redirect_tqdm(loggers=[root]))
        if kind == "lines" and not package.isEnabledFor(logging.INFO):
            added = logging.StreamHandler()
            added.setFormatter(logging.Formatter("%(message)s"))
            package.addHandler(added)
            stack.callback(package.removeHandler, added)
            stack.callback(package.setLevel, package.level)
            package.setLevel(logging.INFO)
        for handler in root.handlers if kind != "lines" else ():
            if isinstance(handler, logging.StreamHandler) and not hasattr(handler, "baseFilename"):
                handler.addFilter(_is_of_no_round)
                stack.callback(handler.removeFilter, _is_of_no_round)
        yield


def _is_of_no_round(record: logging.LogRecord) -> bool:
    return record.name not in OF_ROUNDS or record.levelno > logging.INFO
