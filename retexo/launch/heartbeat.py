"""Heartbeats of a worker, and how its parent tells a dead worker from a slow one.

A call into C can keep Python's other threads, and so heartbeats, from running. A worker without
heartbeats therefore counts as dead only if it uses no CPU time either.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

BEATS_PER_TIMEOUT = 5
"""Fewest heartbeats within distributed.heartbeat_timeout. There is at least one per second."""


def heartbeat_interval(timeout: float) -> float:
    """Return seconds between two heartbeats."""
    return min(1.0, timeout / BEATS_PER_TIMEOUT)


def _log_line(message: dict[str, Any]) -> None:
    """Log a line here, where there is no parent."""
    if "log" in message:
        logger.info(message["log"])


class Progress:
    """What a worker tells its parent, from any thread: heartbeats with its phase, layer and round,
    log lines, the lines of metrics.jsonl, and its result.
    """

    def __init__(self, transmit: Callable[[dict[str, Any]], None] = _log_line) -> None:
        """transmit: passes a message to the parent."""
        self._transmit, self._lock = transmit, threading.Lock()
        self.count_bytes: Callable[[], int] = lambda: 0
        """The bytes that this worker has sent."""
        self._phase, self._layer, self._round = "start", -1, -1

    def send(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._transmit(message)

    def enter(self, phase: str) -> None:
        """Begin a phase, and tell the parent at once."""
        self._phase = phase
        self.beat()

    def set_round(self, layer: int, number: int = -1) -> None:
        """Set the layer and, once rounds begin, the round."""
        self._layer, self._round = layer, number

    def beat(self) -> None:
        """Send a heartbeat; the last one that the parent gets has the last phase."""
        with self._lock:
            self._transmit({"beat": str(self), "sent": self.count_bytes()})

    def start_heartbeat(self, timeout: float) -> None:
        """Send heartbeats from a thread, at least BEATS_PER_TIMEOUT within `timeout` seconds.

        The thread ends with the process.
        """

        def beat_forever() -> None:
            while True:
                self.beat()
                time.sleep(heartbeat_interval(timeout))

        threading.Thread(target=beat_forever, daemon=True).start()

    def fail(self, message: str) -> None:
        """Send an error to the parent and end this process at once."""
        self.send({"error": {"kind": "died", "message": message, "traceback": ""}})
        os._exit(1)

    def __str__(self) -> str:
        """Return the phase for messages, such as "plan" or "round (layer 1, round 20)"."""
        if self._layer < 0 or self._phase in ("load", "rendezvous", "plan", "evaluation"):
            return self._phase
        number = f", round {self._round}" if self._phase == "round" and self._round >= 0 else ""
        return f"{self._phase} (layer {self._layer}{number})"


class ProcessMonitor:
    """Measures how long a process on this machine has sent no heartbeat and used no CPU time."""

    def __init__(self, pid: int) -> None:
        """Begin with 0 seconds; pid: of the process."""
        self._stat = Path(f"/proc/{pid}/stat")
        self._usage: list[str] = []
        self._state = ""
        self.idle_seconds = 0.0
        """Seconds without CPU time, and since the last heartbeat, which sets them to 0."""

    def add(self, seconds: float) -> None:
        """Add seconds that passed without a heartbeat.

        If the process used CPU time or waits for a disk, `idle_seconds` begins again at 0.
        """
        state, usage = self._look()
        # D: waits for a disk, however slow. Loading memory from it causes major page faults.
        working = usage != self._usage or state == "D"
        self._state, self._usage = state, usage
        self.idle_seconds = 0.0 if working else self.idle_seconds + seconds

    def _look(self) -> tuple[str, list[str]]:
        """State, and [major page faults, CPU time in user mode, in the kernel]; see proc(5).

        "" and [] for a process that is gone.
        """
        try:
            columns = self._stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            return "", []
        return columns[0], [columns[9], columns[11], columns[12]]

    def __str__(self) -> str:
        how = "was stopped (SIGSTOP, or a debugger)" if self._state in ("T", "t") else "hangs"
        return f"{how}: no heartbeat and no CPU time for {self.idle_seconds:.0f} s"


class Stopwatch:
    """Measures time in steps, without the time for which this process itself was stopped."""

    def __init__(self, step: float) -> None:
        """Start; step: seconds between two calls of `elapsed`."""
        self._step, self._last = step, time.monotonic()

    def elapsed(self) -> float:
        """Return the seconds since the last call, at most two steps."""
        now = time.monotonic()
        seconds, self._last = min(now - self._last, 2 * self._step), now
        return seconds
