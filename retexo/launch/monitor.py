"""The loop of a node's parent process: it watches the workers and the other nodes until all are done, or one fails."""

import json
import logging
import signal
import time
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from retexo.errors import TrainingError
from retexo.launch.control_channel import Channel, ChannelClosed, Disconnected, printable
from retexo.launch.failure import KINDS, ROOT_CAUSES, Failure, read_failure
from retexo.launch.handshake import name_of
from retexo.launch.heartbeat import ProcessMonitor, Stopwatch, interval
from retexo.launch.rendezvous import Node
from retexo.launch.ticker import ticker

logger = logging.getLogger(__name__)

CAUSE_WAIT = 2.0
"""seconds for which failures of other workers are awaited after the first one, to tell the cause from its effects"""
STOP_TIMEOUT = 5.0
"""seconds within which workers that are told to stop have to finish their round and save it"""


class Worker:
    """A worker process, as its parent sees it."""

    def __init__(self, process: BaseProcess, receiver: Connection) -> None:
        self.process, self.receiver = process, receiver
        self.monitor = ProcessMonitor(process.pid or 0)
        self.phase = "start"
        self.outcome: dict[str, Any] | None = None
        """Its last message: a result, or an error."""
        self._out_of_memory = _oom_kills()

    def read(self) -> None:
        """Read one message: a heartbeat, or the outcome; the exit status of a worker that died without one."""
        self.monitor.reset()
        try:
            message: dict[str, Any] = json.loads(self.receiver.recv_bytes())
        except (EOFError, OSError):
            self.outcome = {
                "error": {"kind": "death", "message": self._how_it_died(), "traceback": ""}
            }
            return
        if "beat" in message:
            self.phase = message["beat"]
        elif "log" in message:
            logger.info(message["log"])
        else:
            self.outcome = message

    def _how_it_died(self) -> str:
        self.process.join(timeout=5)
        code = self.process.exitcode or 0
        if code >= 0:
            return f"exited with status {code}"
        memory = code == -signal.SIGKILL and _oom_kills() > self._out_of_memory
        return f"was killed by {signal.Signals(-code).name}{' (out of memory, says the kernel)' if memory else ''}"


def _oom_kills() -> int:
    """How often this machine's kernel has killed a process because memory ran out."""
    with suppress(OSError):  # a container may hide it
        for line in Path("/proc/vmstat").read_text(encoding="utf-8").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


class Watch:
    """The loop of a parent: reads what its workers and the other nodes send, and sends these its own state."""

    def __init__(self, workers: dict[int, Worker], node: Node) -> None:
        self._workers, self._node = workers, node
        self._links: dict[int, Channel] = dict(node.links)
        self._others = set(node.links)
        """Nodes that are not lost; a link may be broken for a while."""
        self._said: dict[int, list[dict[str, Any]]] = {other: [] for other in node.links}
        """To each, but for heartbeats: over a new link it is said again, and does no harm twice."""
        self._lost: list[Channel] = []
        self._own = node.rank
        self._timeout = node.cluster.heartbeat_timeout
        self._seconds_silent = dict.fromkeys(self._links, 0.0)
        self._broken: dict[int, str] = {}
        """Why the last link to a node broke."""
        self._phases = dict.fromkeys(self._links, "start")
        self._failures: list[Failure] = []
        self._deadline = float("inf")
        self._done: set[int] = set()
        self._bye: set[int] = set()
        self._all_done = False
        self._decision: str | None = None
        """What node 0 says the cause is."""

    def run(self) -> dict[int, Any]:
        """Until all workers of all nodes are done: results by local rank. TrainingError as soon as one fails."""
        stopwatch = Stopwatch(interval(self._timeout))
        next_beat = 0.0
        while not self._all_done:
            if time.monotonic() >= next_beat:
                self._send_heartbeat()
                next_beat = time.monotonic() + interval(self._timeout)
            self._read(min(next_beat, self._deadline) - time.monotonic())
            self._check_heartbeats(stopwatch.elapsed())
            self._check_done()
            self._check_failed()
        self._linger()
        return {
            rank: worker.outcome["result"]
            for rank, worker in self._workers.items()
            if worker.outcome
        }

    def announce_stop(self, why: str) -> None:
        """Tell the other nodes that this one ends; their workers stop after the same round as ours, and save it."""
        message = f"{self._name(self._own)} was ended by {why}{self._in_phase(self._own)}"
        self._send(
            {"failed": asdict(Failure("ended", -1, message))}, only=0 if self._own != 0 else None
        )

    # --- what comes in ---

    def _read(self, timeout: float) -> None:
        running = [worker for worker in self._workers.values() if worker.outcome is None]
        sources = {worker.receiver: worker for worker in running}
        links: dict[Any, int] = {channel: other for other, channel in self._links.items()}
        bell = [self._node.reopening.bell] if self._node.reopening else []
        ready: list[Any] = connection.wait([*sources, *links, *bell], max(0.0, timeout))
        for source in ready:
            if source in sources:
                self._read_worker(sources[source])
            elif source in bell:
                self._take_up()
            elif self._links.get(links[source]) is source:
                self._read_node(links[source])

    def _read_worker(self, worker: Worker) -> None:
        before = worker.phase
        worker.read()
        if worker.phase.partition(",")[0] != before.partition(",")[0]:
            self._send_heartbeat()  # the others know the phase, should this node die
        if worker.outcome is not None and "error" in worker.outcome:
            error = worker.outcome["error"]
            if error["kind"] == "death":
                self._worker_failed(worker, "death", error["message"])
            else:
                self._worker_failed(
                    worker, error["kind"], f"failed: {error['message']}", error["traceback"]
                )

    def _worker_failed(self, worker: Worker, kind: str, what: str, traceback: str = "") -> None:
        rank = next(rank for rank, other in self._workers.items() if other is worker)
        who, what = f"rank {rank} (node {self._own})", what.splitlines()[0]
        refused = f"{who} refused its input, and says why on its node; phase: {worker.phase}"
        public_message = refused if kind == "input" else ""
        self._add_failure(
            Failure(kind, rank, f"{who} {what}; phase: {worker.phase}", traceback, public_message)
        )

    def _read_node(self, other: int) -> None:
        try:
            messages = self._links[other].receive()
        except ChannelClosed as error:
            if self._node.reopening is not None and isinstance(error, Disconnected):
                self._reopen(other, str(error))
            else:
                self._node_lost(other, str(error))
            return
        self._seconds_silent[other] = 0.0
        for message in messages:
            self._handle(other, message)

    def _handle(self, other: int, message: dict[str, Any]) -> None:
        if "beat" in message:
            self._phases[other] = printable(message["beat"])
        if "done" in message:
            self._done.add(other)
        if "finished" in message:
            self._all_done = True
        if "failed" in message:
            self._add_failure(read_failure(message["failed"]), other)
        if "end" in message:
            self._decision = printable(message["end"])
        if "bye" in message:
            self._bye.add(other)

    def _reopen(self, other: int, why: str) -> None:
        """The link broke: whether the node is lost is known once it was silent for long enough."""
        self._links.pop(other).close()
        self._broken[other] = why
        self._ask_for(other)

    def _ask_for(self, other: int) -> None:
        assert self._node.reopening is not None
        self._node.reopening.ask(other)

    def _take_up(self) -> None:
        """Go on over the new links that came."""
        reopening = self._node.reopening
        assert reopening is not None
        reopening.bell.recv(64)
        while not reopening.links.empty():
            other, channel = reopening.links.get()
            if other not in self._others:
                channel.close()
                continue
            if other in self._links:
                self._links.pop(other).close()
            self._links[other] = channel
            logger.info("%s: the link was taken up again", self._name(other))
            for message in self._said[other]:
                with suppress(ChannelClosed):
                    channel.send(message)

    def _node_lost(self, other: int, why: str) -> None:
        self._others.remove(other)
        if other in self._links:
            self._lost.append(self._links.pop(other))
        to = f" to {self._name(self._own)}" if self._own != 0 and other != 0 else ""
        self._add_failure(
            Failure("lost", -1, f"{self._name(other)} is lost{to}: {why}{self._in_phase(other)}")
        )

    def _check_heartbeats(self, seconds: float) -> None:
        for worker in self._workers.values():
            if worker.outcome is None:
                worker.monitor.add(seconds)
                if worker.monitor.idle_seconds > self._timeout:
                    worker.outcome = {}
                    self._worker_failed(worker, "death", str(worker.monitor))
                    worker.process.kill()  # a stopped process would not end otherwise
        for other in list(self._others):
            self._seconds_silent[other] += seconds
            if self._seconds_silent[other] > self._timeout:
                why = (
                    self._broken.get(other, "no heartbeat")
                    if other not in self._links
                    else "no heartbeat"
                )
                self._node_lost(other, f"{why} for {self._seconds_silent[other]:.0f} s")
            elif (
                self._node.reopening is not None and self._seconds_silent[other] > self._timeout / 2
            ):
                self._ask_for(other)  # cut, maybe, and nobody was told

    # --- what goes out, and the end ---

    def _send_heartbeat(self) -> None:
        phases = {worker.phase for worker in self._workers.values() if worker.outcome is None}
        self._phases[self._own] = ", ".join(sorted(phases)) or "done"
        ticker.doing = f"workers: {self._phases[self._own]}"
        self._send({"beat": self._phases[self._own]})

    def _send(self, message: dict[str, Any], only: int | None = None) -> None:
        """Send to all nodes, or to one; one that is gone shows by its missing heartbeats."""
        links = [channel for node, channel in self._links.items() if only in (None, node)]
        for node in self._others if "beat" not in message else ():
            if only in (None, node):
                self._said[node].append(message)
        for channel in (*links, *self._lost):  # a lost node may only have been stopped
            with suppress(ChannelClosed):
                channel.send(message)

    def _add_failure(self, failure: Failure, source: int | None = None) -> None:
        """Note a failure, of the node `source` or seen here; node 0 decides on the cause, the others wait for that."""
        self._failures.append(failure)
        wait = 0.0 if failure.kind in ROOT_CAUSES else CAUSE_WAIT
        if self._own != 0 and source is None and 0 in self._others:
            self._send({"failed": asdict(failure.for_others())}, only=0)
            wait = 2 * CAUSE_WAIT + 1
        if failure.kind == "ended":
            self._deadline = (
                time.monotonic() + STOP_TIMEOUT
            )  # in which the workers save their round
            for worker in self._workers.values():
                worker.process.terminate()  # one that keeps no rounds ends at once
            if self._own == 0:
                self._send({"failed": asdict(failure)})
        elif not self._stopping:
            self._deadline = min(self._deadline, time.monotonic() + wait)

    @property
    def _stopping(self) -> bool:
        """Whether a signal told a node to end."""
        return any(failure.kind == "ended" for failure in self._failures)

    def _check_failed(self) -> None:
        """Raise the cause once it is known and, when stopping, the workers here have stopped."""
        if not self._failures and self._decision is None:
            return
        running = any(worker.outcome is None for worker in self._workers.values())
        known = not running if self._stopping else self._decision is not None
        if known or time.monotonic() >= self._deadline:
            self._raise_cause()

    def _check_done(self) -> None:
        if self._failures or any(worker.outcome is None for worker in self._workers.values()):
            return
        if self._own != 0:
            if self._own not in self._done:
                self._done.add(self._own)
                self._send({"done": True}, only=0)
        elif self._done >= self._others:
            self._send({"finished": True})
            self._all_done = True

    def _linger(self) -> None:
        """Node 0 stays until the others know that all are done, should a link break just then."""
        if self._node.reopening is None:
            return
        if self._own != 0:
            self._send({"bye": True}, only=0)
        else:
            deadline = time.monotonic() + self._timeout
            while not self._bye >= self._others and (seconds := deadline - time.monotonic()) > 0:
                self._read(min(seconds, interval(self._timeout)))

    def _raise_cause(self) -> None:
        """Raise TrainingError with the cause; node 0 sends it to the others."""
        cause = min(
            self._failures,
            key=lambda failure: (KINDS.index(failure.kind), failure.rank),
            default=None,
        )
        if self._own == 0 and cause is not None:
            self._send({"end": cause.for_others().message})
        sentence = (
            self._decision
            if self._decision is not None
            else cause.message
            if cause is not None
            else ""
        )
        own = [
            failure.traceback
            for failure in self._failures
            if failure.kind == "error" and failure.traceback
        ]
        own += [
            failure.message
            for failure in self._failures
            if failure.kind == "input" and failure.message != sentence
        ]
        raise TrainingError("\n".join([sentence, *own[:1]]))

    def _name(self, node: int) -> str:
        return name_of(node, self._node.cluster.ranks_of(node))

    def _in_phase(self, node: int) -> str:
        return f"; phase: {self._phases.get(node, 'start')}"
