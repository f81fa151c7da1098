"""A node's parent watches its workers and the other nodes until all are done or one fails."""

import logging
import signal
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from retexo.errors import Interrupted, TrainingError
from retexo.launch.channels import Channel, ChannelClosed, Message, make_printable
from retexo.launch.heartbeat import ProcessMonitor, Stopwatch, heartbeat_interval
from retexo.launch.rendezvous import Node
from retexo.launch.ticker import ticker

logger = logging.getLogger(__name__)

KINDS = ("ended", "died", "lost", "refused", "failed", "peer")
"""Kinds of failures; one that comes first here is the cause of those after it. ended: a node
received a signal; died: a worker is gone; lost: a node is gone; refused: its input; peer: a
collective lost a peer."""
ROOT_CAUSES = ("died", "lost")
"""Kinds that no other failure causes."""
CURABLE = ("died", "lost", "peer")
"""Kinds that may not happen again after a restart."""
CAUSE_WAIT = 2.0
"""Seconds to wait for other failures after the first, to tell the cause from its effects."""
DONE = "done"
"""Phase of a node whose workers are done."""
LOOK_INTERVAL = 0.25
"""Most seconds until another thread's `stop` is seen, and between two looks of callbacks."""
STOP_TIMEOUT = 5.0
"""Seconds within which workers have to finish their round and save it after SIGTERM."""


@dataclass(frozen=True)
class Failure:
    """A reason why a run ends."""

    kind: str
    rank: int
    """-1: a whole node."""
    message: str
    """The line that is shown: which process, what happened, in which phase."""
    traceback: str = ""
    """Traceback of an unexpected error, else empty."""


def read_failure(content: Any) -> Failure:
    """Parse the failure that another node sent; of kind failed if it cannot be parsed."""
    try:
        failure = Failure(content["kind"], int(content["rank"]), make_printable(content["message"]))
        KINDS.index(failure.kind)
    except (KeyError, TypeError, ValueError):
        return Failure("failed", -1, "another node failed and sent no reason")
    return failure


class Worker:
    """A worker process, as its parent sees it."""

    def __init__(self, process: BaseProcess, channel: Channel) -> None:
        self.process, self.channel = process, channel
        self.monitor = ProcessMonitor(process.pid or 0)
        self.phase = "start"
        self.bytes_sent = 0
        self.rounds: deque[dict[str, Any]] = deque()
        """Lines of metrics.jsonl that no callback has seen; another thread may take them."""
        self.outcome: dict[str, Any] | None = None
        """Its last message: a result or an error."""
        self._out_of_memory = _oom_kills()

    def receive(self) -> list[Message]:
        """Return its messages so far; once it has ended, an error that says how."""
        try:
            return self.channel.receive()
        except ChannelClosed:
            error = {"kind": "died", "message": self._how_it_died(), "traceback": ""}
            return [{"error": error}]

    def handle(self, message: Message) -> None:
        """Take a heartbeat, a log line, a round or the outcome."""
        self.monitor.idle_seconds = 0.0
        if "beat" in message:
            self.phase, self.bytes_sent = message["beat"], message.get("sent", 0)
        elif "log" in message:
            logger.info(message["log"])
        elif "round" in message:
            self.rounds.append(message["round"])
        else:
            self.outcome = message

    def _how_it_died(self) -> str:
        """Return how the process ended, in words; waits at most 5 s for its end."""
        self.process.join(timeout=5)
        code = self.process.exitcode or 0
        if code >= 0:
            return f"exited with status {code}"
        memory = code == -signal.SIGKILL and _oom_kills() > self._out_of_memory
        cause = " (out of memory, says the kernel)" if memory else ""
        return f"was killed by {signal.Signals(-code).name}{cause}"


def _oom_kills() -> int:
    """Return how often this machine's kernel has killed a process because it ran out of memory.

    0 where the kernel's counts cannot be read.
    """
    with suppress(OSError):  # a container may hide it
        for line in Path("/proc/vmstat").read_text(encoding="utf-8").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


@dataclass(eq=False)
class Peer:
    """Another node, as this one sees it."""

    channel: Channel
    seconds_silent: float = 0.0
    phase: str = "start"
    is_lost: bool = False

    @property
    def is_done(self) -> bool:
        """Whether its workers are done."""
        return self.phase == DONE


class NodeMonitor:
    """Loop of a parent, which reads its workers' and the other nodes' messages and sends its own.

    It runs in a thread of its own, so that a slow callback delays neither workers nor heartbeats.
    Other threads may call `take_rounds` and `stop`.
    """

    def __init__(
        self,
        workers: dict[int, Worker],
        node: Node,
        *,
        may_restart: bool = False,
    ) -> None:
        """Watch workers by rank that run already; `run` begins to read their messages.

        Args:
            may_restart: whether a curable failure raises Interrupted on all nodes. Node 0 decides.
        """
        self._workers, self._may_restart = workers, may_restart
        self._peers = {other: Peer(channel) for other, channel in node.links.items()}
        self._own, self._describe = node.rank, node.cluster.describe_node
        self._phase = "start"
        self._timeout = node.cluster.distributed.heartbeat_timeout
        self._failures: list[Failure] = []
        self._stopped_by: str | None = None
        self._deadline = float("inf")
        """When the cause is raised, even if node 0 has not decided or workers still run."""
        self._decision: Failure | None = None
        """The cause, says node 0; of a curable kind if all nodes restart."""

    def run(self) -> dict[int, Any]:
        """Wait until all workers of all nodes are done; return this node's results by rank.

        Raises:
            Interrupted: a process or connection failed, and all nodes restart.
            TrainingError: another failure; both as soon as it is known.
        """
        interval = heartbeat_interval(self._timeout)
        stopwatch, next_beat = Stopwatch(interval), 0.0
        while self._phase != DONE or not all(peer.is_done for peer in self._peers.values()):
            if time.monotonic() >= next_beat:
                self._send_heartbeat()
                next_beat = time.monotonic() + interval
            self._read(min(LOOK_INTERVAL, next_beat - time.monotonic()))
            self._check_heartbeats(stopwatch.elapsed())
            self._check_stopped()
            self._raise_if_failed()
        outcomes = {rank: worker.outcome or {} for rank, worker in self._workers.items()}
        return {rank: outcome["result"] for rank, outcome in outcomes.items()}

    def take_rounds(self) -> tuple[str, int, list[dict[str, Any]]]:
        """Return the first worker's phase, the bytes sent by all here, and the new rounds.

        Rounds are lines of metrics.jsonl, each returned once.
        """
        workers = [*self._workers.values()]
        rounds = [w.rounds.popleft() for w in workers for _ in range(len(w.rounds))]
        return workers[0].phase, sum(worker.bytes_sent for worker in workers), rounds

    @property
    def has_failed(self) -> bool:
        """Whether a failure is known, here or at another node."""
        return bool(self._failures)

    def stop(self, why: str) -> None:
        """Let `run` end the workers of all nodes, after a round that all save.

        It then raises TrainingError with `why`. Returns at once.
        """
        self._stopped_by = why

    # --- receiving ---

    def _read(self, timeout: float) -> None:
        """Wait for messages of workers and nodes, at most `timeout` seconds, and read them."""
        nodes = {peer.channel: other for other, peer in self._peers.items() if not peer.is_lost}
        running = [worker for worker in self._workers.values() if worker.outcome is None]
        workers = {worker.channel: worker for worker in running}
        sources: list[Any] = [*workers, *nodes]
        ready: list[Any] = connection.wait(sources, max(0.0, timeout))
        for channel in ready:
            if channel in nodes:
                self._read_node(nodes[channel])
                continue
            for message in workers[channel].receive():
                if workers[channel].outcome is None:
                    self._handle_worker(workers[channel], message)

    def _handle_worker(self, worker: Worker, message: Message) -> None:
        """Take a worker's message, and tell the other nodes when its phase changes, or it ends."""
        before = worker.phase
        worker.handle(message)
        if worker.outcome is not None and "error" in worker.outcome:
            self._worker_failed(worker, **worker.outcome["error"])
        is_new = worker.phase.partition(",")[0] != before.partition(",")[0]
        if is_new or worker.outcome is not None:
            self._send_heartbeat()  # the others know the phase, should this node die

    def _worker_failed(self, worker: Worker, kind: str, message: str, traceback: str = "") -> None:
        """Note a worker's error as a failure, with its rank, node and phase."""
        rank = next(rank for rank, other in self._workers.items() if other is worker)
        how = message if kind == "died" else f"failed: {message}"
        line = f"rank {rank} (node {self._own}) {how.splitlines()[0]}; phase: {worker.phase}"
        self._add_failure(Failure(kind, rank, line, traceback))

    def _read_node(self, other: int) -> None:
        """Read the messages of another node; a closed connection counts as a lost node."""
        peer = self._peers[other]
        try:
            messages = peer.channel.receive()
        except ChannelClosed as error:
            if self._phase == DONE and peer.is_done:  # it has heard that all are done
                peer.is_lost = True
            else:
                self._node_lost(other, str(error))
            return
        peer.seconds_silent = 0.0
        for message in messages:
            self._handle(other, message)

    def _handle(self, other: int, message: Message) -> None:
        """Note another node's message: its phase, end or failure, or node 0's decision."""
        if "beat" in message:
            self._peers[other].phase = make_printable(message["beat"])
        if "failed" in message:
            self._add_failure(read_failure(message["failed"]), other)
        if "end" in message:
            self._decision = read_failure(message["end"])

    def _node_lost(self, other: int, why: str) -> None:
        """Note that a node's connection is closed or silent, as a failure."""
        peer = self._peers[other]
        peer.is_lost = True
        to = f" to {self._describe(self._own)}" if self._own != 0 and other != 0 else ""
        message = f"{self._describe(other)} is lost{to}: {why}; phase: {peer.phase}"
        self._add_failure(Failure("lost", -1, message))

    def _check_heartbeats(self, seconds: float) -> None:
        """Count silent seconds, and note workers and nodes above the timeout as failed.

        Such workers are killed.
        """
        for worker in self._workers.values():
            if worker.outcome is None:
                worker.monitor.add(seconds)
                if worker.monitor.idle_seconds > self._timeout:
                    worker.outcome = {}
                    self._worker_failed(worker, "died", str(worker.monitor))
                    worker.process.kill()  # a stopped process would not end otherwise
        for other, peer in self._peers.items():
            peer.seconds_silent += seconds
            if peer.seconds_silent > self._timeout and not peer.is_lost:
                self._node_lost(other, f"no heartbeat for {peer.seconds_silent:.0f} s")

    # --- sending, and the end ---

    def _send_heartbeat(self) -> None:
        """Send the phases of the workers that run, or "done", to the other nodes.

        The ticker shows them.
        """
        phases = {worker.phase for worker in self._workers.values() if worker.outcome is None}
        self._phase = ", ".join(sorted(phases)) or ("failed" if self._failures else DONE)
        ticker.doing = f"workers: {self._phase}"
        self._send({"beat": self._phase})

    def _send(self, message: Message, only: int | None = None) -> None:
        """Send to all nodes or to one. That a node is gone is noticed by its missing heartbeats."""
        for other, peer in self._peers.items():  # also a lost one, which may have been stopped
            if only in (None, other):
                with suppress(ChannelClosed):
                    peer.channel.send(message)

    def _add_failure(self, failure: Failure, source: int | None = None) -> None:
        """Add a failure, report it to node 0, and set how long this node waits before it stops.

        Node 0 decides which one is the cause; the others wait for its decision. A failure of kind
        `ended` terminates this node's workers.

        Args:
            source: the node that reported it; None for this node.
        """
        self._failures.append(failure)
        wait = 0.0 if failure.kind in ROOT_CAUSES else CAUSE_WAIT
        if self._own != 0 and source is None and not self._peers[0].is_lost:
            self._send({"failed": asdict(self._public(failure))}, only=0)
            wait = 2 * CAUSE_WAIT + 1
        if failure.kind == "ended":
            self._deadline = time.monotonic() + STOP_TIMEOUT  # workers save their round meanwhile
            for worker in self._workers.values():
                worker.process.terminate()  # one without a recovery state ends at once
            if self._own == 0:
                self._send({"failed": asdict(failure)})
        elif not self._is_stopping:
            self._deadline = min(self._deadline, time.monotonic() + wait)

    def _public(self, failure: Failure) -> Failure:
        """Return the failure as other nodes may see it.

        It has no traceback. Where a worker of this node refused its input, the message, which may
        quote data, becomes one of its rank and phase; other messages stay.
        """
        message, worker = failure.message, self._workers.get(failure.rank)
        if failure.kind == "refused" and worker is not None:
            message = (
                f"rank {failure.rank} (node {self._own}) refused its input, and says why on its"
                f" node; phase: {worker.phase}"
            )
        return replace(failure, message=message, traceback="")

    @property
    def _is_stopping(self) -> bool:
        """Whether a signal told a node to end."""
        return any(failure.kind == "ended" for failure in self._failures)

    def _check_stopped(self) -> None:
        """Note as a failure that another thread has called `stop`."""
        if self._stopped_by is not None and not self._is_stopping:
            message = f"{self._describe(self._own)} was ended by {self._stopped_by}"
            self._add_failure(Failure("ended", -1, f"{message}; phase: {self._phase}"))

    def _raise_if_failed(self) -> None:
        """Raise the cause once it is known, or at the deadline.

        It is node 0's decision, else the failure known here whose kind is first in KINDS, which
        node 0 sends to the others. When stopping, it is known once the workers here have stopped.

        Raises:
            Interrupted: the run may restart.
            TrainingError: it may not.
        """
        if not self._failures and self._decision is None:
            return
        running = any(worker.outcome is None for worker in self._workers.values())
        known = not running if self._is_stopping else self._decision is not None
        if not known and time.monotonic() < self._deadline:
            return
        cause = self._decision or min(
            self._failures, key=lambda failure: (KINDS.index(failure.kind), failure.rank)
        )
        restart = self._may_restart and cause.kind in CURABLE
        if self._own == 0:
            kind = cause.kind if restart else "failed"
            self._send({"end": asdict(replace(self._public(cause), kind=kind))})
        if restart:
            raise Interrupted(cause.message)
        details = [failure.traceback for failure in self._failures if failure.traceback]
        details += [
            failure.message
            for failure in self._failures
            if failure.kind == "refused" and failure.message != cause.message
        ]
        raise TrainingError("\n".join([cause.message, *details[:1]]))
