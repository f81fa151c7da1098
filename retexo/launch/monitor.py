"""A node's parent watches its workers and the other nodes until all are done or one fails."""

import json
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from retexo.errors import Interrupted, TrainingError
from retexo.launch.channels import Channel, ChannelClosed, make_printable
from retexo.launch.failure import CURABLE, KINDS, ROOT_CAUSES, Failure, read_failure
from retexo.launch.handshake import describe_node
from retexo.launch.heartbeat import ProcessMonitor, Stopwatch, heartbeat_interval
from retexo.launch.rendezvous import Node
from retexo.launch.ticker import ticker

logger = logging.getLogger(__name__)

CAUSE_WAIT = 2.0
"""Seconds to wait for other failures after the first, to tell the cause from its effects."""
LOOK_INTERVAL = 0.25
"""Most seconds between two looks of callbacks at the run."""
Look = Callable[[str, int, Sequence[dict[str, Any]]], None]
"""From the phase of this node's first worker, the bytes that its workers have sent, and the lines
of metrics.jsonl since the last look."""
STOP_TIMEOUT = 5.0
"""Seconds within which workers have to finish their round and save it after SIGTERM."""


class Worker:
    """A worker process, as its parent sees it."""

    def __init__(self, process: BaseProcess, receiver: Connection) -> None:
        self.process, self.receiver = process, receiver
        self.monitor = ProcessMonitor(process.pid or 0)
        self.phase = "start"
        self.bytes_sent = 0
        self.rounds: list[dict[str, Any]] = []
        """Lines of metrics.jsonl that no callback has seen."""
        self.outcome: dict[str, Any] | None = None
        """Its last message: a result or an error."""
        self._out_of_memory = _oom_kills()

    def handle(self, content: bytes | None) -> None:
        """Take a heartbeat, a log line, a round or the outcome; None: the worker died."""
        self.monitor.note_heartbeat()
        if content is None:
            self.outcome = {
                "error": {"kind": "death", "message": self._how_it_died(), "traceback": ""}
            }
            return
        message: dict[str, Any] = json.loads(content)
        if "beat" in message:
            self.phase, self.bytes_sent = message["beat"], message.get("sent", 0)
        elif "log" in message:
            logger.info(message["log"])
        elif "round" in message:
            self.rounds.append(message["round"])
        else:
            self.outcome = message

    def _how_it_died(self) -> str:
        self.process.join(timeout=5)
        code = self.process.exitcode or 0
        if code >= 0:
            return f"exited with status {code}"
        memory = code == -signal.SIGKILL and _oom_kills() > self._out_of_memory
        cause = " (out of memory, says the kernel)" if memory else ""
        return f"was killed by {signal.Signals(-code).name}{cause}"


def _oom_kills() -> int:
    """Return how often this machine's kernel has killed a process because it ran out of memory."""
    with suppress(OSError):  # a container may hide it
        for line in Path("/proc/vmstat").read_text(encoding="utf-8").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


class PipeReader:
    """Reads the workers' pipes in a thread, so that a slow callback never blocks a worker."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._by_pipe = {worker.receiver: worker for worker in workers}
        self._messages: SimpleQueue[tuple[Worker, bytes | None]] = SimpleQueue()
        self.arrival, self._notify = socket.socketpair()
        """`arrival` is readable when there are messages."""
        self.arrival.setblocking(False)
        self._notify.setblocking(False)
        self._thread = threading.Thread(target=self._read_all, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.arrival.close()  # ends the thread
        self._thread.join(STOP_TIMEOUT)

    def take(self) -> list[tuple[Worker, bytes | None]]:
        """Return the messages since the last call, in order; None: the pipe was closed."""
        with suppress(BlockingIOError):
            self.arrival.recv(4096)
        return [self._messages.get() for _ in range(self._messages.qsize())]

    def _read_all(self) -> None:
        pipes: list[Any] = [*self._by_pipe]
        while True:
            ready: list[Any] = connection.wait([*pipes, self._notify])
            if self._notify in ready:
                break
            for pipe in ready:
                content = None
                try:
                    content = pipe.recv_bytes()
                except (EOFError, OSError):
                    pipes.remove(pipe)
                self._messages.put((self._by_pipe[pipe], content))
            with suppress(OSError):  # the parent has not read the last notice, or has ended
                self._notify.send(b".")
        self._notify.close()


class NodeMonitor:
    """The loop of a parent.

    It reads its workers' and the other nodes' messages and sends its own.
    """

    def __init__(
        self,
        workers: dict[int, Worker],
        node: Node,
        *,
        may_restart: bool = False,
        look: Look | None = None,
    ) -> None:
        """Args:
        may_restart: whether a curable failure raises Interrupted on all nodes. Node 0 decides.
        look: called a few times per second; what it raises ends the run.
        """
        self._call_look = look
        self._workers, self._node, self._may_restart = workers, node, may_restart
        self._pipes = PipeReader([*workers.values()])
        self._links: dict[int, Channel] = dict(node.links)
        self._lost_links: list[Channel] = []
        self._own = node.rank
        self._timeout = node.cluster.heartbeat_timeout
        self._seconds_silent = dict.fromkeys(self._links, 0.0)
        self._phases = dict.fromkeys(self._links, "start")
        self._failures: list[Failure] = []
        self._deadline = float("inf")
        """When the cause is raised, even if node 0 has not decided or workers still run."""
        self._done: set[int] = set()
        """Nodes whose workers are all done."""
        self._all_done = False
        self._decision: dict[str, Any] | None = None
        """Node 0's message with the cause."""

    def run(self) -> dict[int, Any]:
        """Wait until all workers of all nodes are done; results by local rank.

        Raises:
            Interrupted: a process or connection failed, and all nodes restart.
            TrainingError: another failure; both as soon as it is known.
        """
        with self._pipes:
            self._run_until_done()
        return {
            rank: worker.outcome["result"]
            for rank, worker in self._workers.items()
            if worker.outcome
        }

    def _run_until_done(self) -> None:
        stopwatch = Stopwatch(heartbeat_interval(self._timeout))
        next_beat = 0.0
        while not self._all_done:
            if time.monotonic() >= next_beat:
                self._send_heartbeat()
                next_beat = time.monotonic() + heartbeat_interval(self._timeout)
            wait = min(next_beat, self._deadline) - time.monotonic()
            self._read(wait if self._call_look is None else min(wait, LOOK_INTERVAL))
            self._look()
            self._check_heartbeats(stopwatch.elapsed())
            self._check_done()
            self._check_failed()

    def _look(self) -> None:
        """Call `look` with phase, bytes and new rounds, unless a failure is known.

        The phase is the first worker's; the bytes are those sent by all workers here.
        """
        if self._call_look is not None and not self._failures:
            workers = [*self._workers.values()]
            rounds = [line for worker in workers for line in worker.rounds]
            for worker in workers:
                worker.rounds.clear()
            self._call_look(workers[0].phase, sum(worker.bytes_sent for worker in workers), rounds)

    def announce_stop(self, why: str) -> None:
        """Tell the other nodes that this one ends, so that all workers save the same round."""
        message = f"{self._name(self._own)} was ended by {why}{self._phase_text(self._own)}"
        self._send(
            {"failed": asdict(Failure("ended", -1, message))}, only=0 if self._own != 0 else None
        )

    # --- receiving ---

    def _read(self, timeout: float) -> None:
        """Wait for messages of workers and nodes, at most `timeout` seconds, and read them."""
        links: dict[Any, int] = {channel: other for other, channel in self._links.items()}
        ready: list[Any] = connection.wait([self._pipes.arrival, *links], max(0.0, timeout))
        for worker, content in self._pipes.take():
            if worker.outcome is None:
                self._handle_worker(worker, content)
        for source in ready:
            if source in links:
                self._read_node(links[source])

    def _handle_worker(self, worker: Worker, content: bytes | None) -> None:
        """Take a worker's message, and tell the other nodes when its phase changes."""
        before = worker.phase
        worker.handle(content)
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
        """Read the messages of another node; a closed connection counts as a lost node."""
        try:
            messages = self._links[other].receive()
        except ChannelClosed as error:
            self._node_lost(other, str(error))
            return
        self._seconds_silent[other] = 0.0
        for message in messages:
            self._handle(other, message)

    def _handle(self, other: int, message: dict[str, Any]) -> None:
        """Process another node's message: its phase, end or failure, or node 0's decision."""
        if "beat" in message:
            self._phases[other] = make_printable(message["beat"])
        if "done" in message:
            self._done.add(other)
        if "finished" in message:
            self._all_done = True
        if "failed" in message:
            self._add_failure(read_failure(message["failed"]), other)
        if "end" in message:
            self._decision = message

    def _node_lost(self, other: int, why: str) -> None:
        """Note that a node's connection is closed or silent, as a failure."""
        self._lost_links.append(self._links.pop(other))
        to = f" to {self._name(self._own)}" if self._own != 0 and other != 0 else ""
        self._add_failure(
            Failure("lost", -1, f"{self._name(other)} is lost{to}: {why}{self._phase_text(other)}")
        )

    def _check_heartbeats(self, seconds: float) -> None:
        for worker in self._workers.values():
            if worker.outcome is None:
                worker.monitor.add(seconds)
                if worker.monitor.idle_seconds > self._timeout:
                    worker.outcome = {}
                    self._worker_failed(worker, "death", str(worker.monitor))
                    worker.process.kill()  # a stopped process would not end otherwise
        for other in list(self._links):
            self._seconds_silent[other] += seconds
            if self._seconds_silent[other] > self._timeout:
                self._node_lost(other, f"no heartbeat for {self._seconds_silent[other]:.0f} s")

    # --- sending, and the end ---

    def _send_heartbeat(self) -> None:
        phases = {worker.phase for worker in self._workers.values() if worker.outcome is None}
        self._phases[self._own] = ", ".join(sorted(phases)) or "done"
        ticker.doing = f"workers: {self._phases[self._own]}"
        self._send({"beat": self._phases[self._own]})

    def _send(self, message: dict[str, Any], only: int | None = None) -> None:
        """Send to all nodes or to one. A node that is gone shows by its missing heartbeats."""
        links = [channel for node, channel in self._links.items() if only in (None, node)]
        for channel in (*links, *self._lost_links):  # a lost node may only have been stopped
            with suppress(ChannelClosed):
                channel.send(message)

    def _add_failure(self, failure: Failure, source: int | None = None) -> None:
        """Add a failure. Node 0 decides which one is the cause; the others wait for its decision.

        Args:
            source: the node that reported it; None for this node.
        """
        self._failures.append(failure)
        wait = 0.0 if failure.kind in ROOT_CAUSES else CAUSE_WAIT
        if self._own != 0 and source is None and 0 in self._links:
            self._send({"failed": asdict(failure.for_others())}, only=0)
            wait = 2 * CAUSE_WAIT + 1
        if failure.kind == "ended":
            self._deadline = time.monotonic() + STOP_TIMEOUT  # workers save their round meanwhile
            for worker in self._workers.values():
                worker.process.terminate()  # one without a recovery state ends at once
            if self._own == 0:
                self._send({"failed": asdict(failure)})
        elif not self._is_stopping:
            self._deadline = min(self._deadline, time.monotonic() + wait)

    @property
    def _is_stopping(self) -> bool:
        """Whether a signal told a node to end."""
        return any(failure.kind == "ended" for failure in self._failures)

    def _check_failed(self) -> None:
        """Raise the cause once it is known and, when stopping, the workers here have stopped."""
        if not self._failures and self._decision is None:
            return
        running = any(worker.outcome is None for worker in self._workers.values())
        known = not running if self._is_stopping else self._decision is not None
        if known or time.monotonic() >= self._deadline:
            self._raise_cause()

    def _check_done(self) -> None:
        """Tell node 0 that the workers here are done; node 0 tells all once every node is."""
        if self._failures or any(worker.outcome is None for worker in self._workers.values()):
            return
        if self._own != 0:
            if self._own not in self._done:
                self._done.add(self._own)
                self._send({"done": True}, only=0)
        elif self._done >= self._links.keys():
            self._send({"finished": True})
            self._all_done = True

    def _raise_cause(self) -> None:
        """Raise Interrupted or TrainingError with the cause; node 0 sends it to the others."""
        order = {kind: place for place, kind in enumerate(KINDS)}
        causes = sorted(self._failures, key=lambda each: (order[each.kind], each.rank))
        message = causes[0].message if causes else ""
        restart = self._may_restart and causes[:1] != [] and causes[0].kind in CURABLE
        if self._decision is not None:
            message = make_printable(self._decision["end"])
            restart = self._may_restart and self._decision.get("restart") is True
        elif self._own == 0:
            self._send({"end": causes[0].for_others().message, "restart": restart})
        if restart:
            raise Interrupted(message)
        details = [each.traceback for each in causes if each.kind == "error" and each.traceback]
        details += [
            each.message for each in causes if each.kind == "input" and each.message != message
        ]
        raise TrainingError("\n".join([message, *details[:1]]))

    def _name(self, node: int) -> str:
        """The node and the ranks of its workers, for messages."""
        return describe_node(node, self._node.cluster.ranks_of(node))

    def _phase_text(self, node: int) -> str:
        """The end of a message about a node: the phase that it last reported."""
        return f"; phase: {self._phases.get(node, 'start')}"
