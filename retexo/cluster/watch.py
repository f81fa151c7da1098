"""The loop of a node's parent process: it watches the workers and the other nodes until all are done, or one fails."""

import json
import signal
import time
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from retexo.cluster.channel import Channel, ChannelClosed
from retexo.cluster.failure import CERTAIN, KINDS, Failure, read_failure
from retexo.cluster.handshake import name_of
from retexo.cluster.heartbeat import Pulse, Ticker, interval
from retexo.cluster.rendezvous import Node
from retexo.errors import TrainingError

GRACE = 2.0
"""seconds for which the others' reasons are awaited once one worker failed, to tell the cause from its effects"""
KEEPING = 5.0
"""seconds in which workers that are told to stop have to end their round and keep it"""


class Worker:
    """A worker process, as its parent sees it."""

    def __init__(self, process: BaseProcess, receiver: Connection) -> None:
        self.process, self.receiver = process, receiver
        self.pulse = Pulse(process.pid or 0)
        self.phase = "start"
        self.outcome: dict[str, Any] | None = None
        """What it said last: a result, or an error."""
        self._out_of_memory = _oom_kills()

    def read(self) -> None:
        """Take in one message: a heartbeat, or the outcome; where it died without a word, its exit code."""
        self.pulse.heard()
        try:
            message: dict[str, Any] = json.loads(self.receiver.recv_bytes())
        except (EOFError, OSError):
            self.outcome = {"error": {"kind": "death", "message": self._how_it_died(), "traceback": ""}}
            return
        if "beat" in message:
            self.phase = message["beat"]
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
    """How often this machine's kernel has killed a process for want of memory."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


class Watch:
    """The loop of a parent: hears its workers and the other nodes, and tells these how it goes here."""

    def __init__(self, workers: dict[int, Worker], node: Node | None) -> None:
        self._workers, self._node = workers, node
        self._links: dict[int, Channel] = dict(node.links) if node is not None else {}
        self._lost: list[Channel] = []
        self._own = node.rank if node is not None else 0
        self._timeout = node.cluster.heartbeat_timeout if node is not None else 15.0
        self._silent = dict.fromkeys(self._links, 0.0)
        self._phases = dict.fromkeys(self._links, "start")
        self._failures: list[Failure] = []
        self._deadline = float("inf")
        self._done: set[int] = set()
        self._finished = False
        self._told: str | None = None
        """The cause that node 0 decided on."""

    def run(self) -> dict[int, Any]:
        """Until all workers of all nodes are done: results by local rank. TrainingError as soon as one fails."""
        ticker = Ticker(interval(self._timeout))
        next_beat = 0.0
        while not self._finished:
            if time.monotonic() >= next_beat:
                self._beat()
                next_beat = time.monotonic() + interval(self._timeout)
            self._read(min(next_beat, self._deadline) - time.monotonic())
            self._count_silence(ticker.elapsed())
            self._check_done()
            self._check_failed()
        return {rank: worker.outcome["result"] for rank, worker in self._workers.items() if worker.outcome}

    def give_up(self, why: str) -> None:
        """Tell the other nodes that this one was ended; their workers stop with ours, after a round that all keep."""
        message = f"{self._name(self._own)} was ended by {why}{self._in_phase(self._own)}"
        self._tell({"failed": asdict(Failure("ended", -1, message))}, only=0 if self._own != 0 else None)

    # --- what comes in ---

    def _read(self, timeout: float) -> None:
        running = [worker for worker in self._workers.values() if worker.outcome is None]
        sources = {worker.receiver: worker for worker in running}
        links = {channel: other for other, channel in self._links.items()}
        ready: list[Any] = connection.wait([*sources, *links], max(0.0, timeout))  # type: ignore[list-item]
        for source in ready:
            if source in sources:
                self._hear_worker(sources[source])
            else:
                self._hear_node(links[source])

    def _hear_worker(self, worker: Worker) -> None:
        before = worker.phase
        worker.read()
        if worker.phase.partition(",")[0] != before.partition(",")[0]:
            self._beat()  # another phase, not only another round: should this node die, the others can name it
        if worker.outcome is not None and "error" in worker.outcome:
            error = worker.outcome["error"]
            if error["kind"] == "death":
                self._note(worker, "death", error["message"])
            else:
                self._note(worker, error["kind"], f"failed: {error['message']}", error["traceback"])

    def _note(self, worker: Worker, kind: str, what: str, traceback: str = "") -> None:
        rank = next(rank for rank, other in self._workers.items() if other is worker)
        who, what = f"rank {rank} (node {self._own})", what.splitlines()[0]
        refused = f"{who} refused its input, and says why on its node; phase: {worker.phase}"
        told = refused if kind == "input" else ""
        self._add(Failure(kind, rank, f"{who} {what}; phase: {worker.phase}", traceback, told))

    def _hear_node(self, other: int) -> None:
        try:
            messages = self._links[other].receive()
        except ChannelClosed as error:
            self._lose(other, str(error))
            return
        self._silent[other] = 0.0
        for message in messages:
            self._take(other, message)

    def _take(self, other: int, message: dict[str, Any]) -> None:
        if "beat" in message:
            self._phases[other] = str(message["beat"])
        if "done" in message:
            self._done.add(other)
        if "finished" in message:
            self._finished = True
        if "failed" in message:
            self._add(read_failure(message["failed"]), other)
        if "end" in message:
            self._told = str(message["end"])

    def _lose(self, other: int, why: str) -> None:
        self._lost.append(self._links.pop(other))
        to = f" to {self._name(self._own)}" if self._own != 0 and other != 0 else ""
        self._add(Failure("lost", -1, f"{self._name(other)} is lost{to}: {why}{self._in_phase(other)}"))

    def _count_silence(self, seconds: float) -> None:
        for worker in self._workers.values():
            if worker.outcome is None:
                worker.pulse.wait(seconds)
                if worker.pulse.idle_seconds > self._timeout:
                    worker.outcome = {}
                    self._note(worker, "death", str(worker.pulse))
                    worker.process.kill()  # a stopped process would not end otherwise
        for other in list(self._links):
            self._silent[other] += seconds
            if self._silent[other] > self._timeout:
                self._lose(other, f"no heartbeat for {self._silent[other]:.0f} s")

    # --- what goes out, and the end ---

    def _beat(self) -> None:
        phases = {worker.phase for worker in self._workers.values() if worker.outcome is None}
        self._phases[self._own] = ", ".join(sorted(phases)) or "done"
        self._tell({"beat": self._phases[self._own]})

    def _tell(self, message: dict[str, Any], only: int | None = None) -> None:
        """To all nodes, or to one."""
        links = [channel for node, channel in self._links.items() if only in (None, node)]
        for channel in (*links, *self._lost):  # a lost node may only have been stopped
            with suppress(ChannelClosed):  # who is gone will be noticed by its silence
                channel.send(message)

    def _add(self, failure: Failure, source: int | None = None) -> None:
        """Node 0 decides what the cause is; the others wait for its word, but not for long. source: who said it."""
        self._failures.append(failure)
        wait = 0.0 if failure.kind in CERTAIN else GRACE
        if self._own != 0 and source is None and 0 in self._links:
            self._tell({"failed": asdict(failure.for_others())}, only=0)
            wait = 2 * GRACE + 1
        if failure.kind == "ended":
            self._deadline = time.monotonic() + KEEPING  # in which the workers keep how far they came
            if self._own == 0:
                self._tell({"failed": asdict(failure)})
        elif not self._ended:
            self._deadline = min(self._deadline, time.monotonic() + wait)

    @property
    def _ended(self) -> bool:
        """Whether a node was told to end."""
        return any(failure.kind == "ended" for failure in self._failures)

    def _check_failed(self) -> None:
        """Raise the cause, once it is known and, where a node was told to end, the workers here have stopped."""
        if not self._failures and self._told is None:
            return
        running = any(worker.outcome is None for worker in self._workers.values())
        known = not running if self._ended else self._told is not None
        if known or time.monotonic() >= self._deadline:
            self._fail()

    def _check_done(self) -> None:
        if self._failures or any(worker.outcome is None for worker in self._workers.values()):
            return
        if self._own != 0:
            if self._own not in self._done:
                self._done.add(self._own)
                self._tell({"done": True}, only=0)
        elif self._done >= self._links.keys():
            self._tell({"finished": True})
            self._finished = True

    def _fail(self) -> None:
        """Raise the cause; node 0 tells it to all, the others have been told it."""
        cause = min(self._failures, key=lambda failure: (KINDS.index(failure.kind), failure.rank), default=None)
        if self._own == 0 and cause is not None:
            self._tell({"end": cause.for_others().message})
        sentence = self._told if self._told is not None else cause.message if cause is not None else ""
        own = [failure.traceback for failure in self._failures if failure.kind == "error" and failure.traceback]
        own += [
            failure.message for failure in self._failures if failure.kind == "input" and failure.message != sentence
        ]
        raise TrainingError("\n".join([sentence, *own[:1]]))

    def _name(self, node: int) -> str:
        return name_of(node, self._node.cluster.ranks_of(node)) if self._node is not None else f"node {node}"

    def _in_phase(self, node: int) -> str:
        return f"; phase: {self._phases.get(node, 'start')}"
