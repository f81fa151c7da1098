"""Start the workers of this node, and end all of them together."""

import multiprocessing
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import combinations
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from retexo.comm.socket_transport import Streams, StreamsByRank
from retexo.launch import fork_server
from retexo.launch.channels import Channel
from retexo.launch.monitor import LOOK_INTERVAL, STOP_TIMEOUT, NodeMonitor, Worker
from retexo.launch.rendezvous import Node

Results = Future[dict[int, Any]]
SPARE_FILES = 256
"""Files that a process opens besides its streams."""
Look = Callable[[str, int, Sequence[dict[str, Any]]], None]
"""From the phase of this node's first worker, the bytes that its workers have sent, and the lines
of metrics.jsonl since the last look."""


def run_workers(
    ranks: Sequence[int],
    target: Callable[..., None],
    job: Any,
    node: Node,
    *,
    may_restart: bool = False,
    look: Look = lambda phase, bytes_sent, rounds: None,
) -> dict[int, Any]:
    """Run target(rank, job, parent, streams) in a process for each rank.

    `parent` is a socket that takes the worker's messages (retexo.worker.process).
    `streams` are the connections to the other workers, or None for gloo, which opens its own. All
    processes have ended, and `node.streams` are closed, when this function returns or raises.

    Args:
        may_restart: see NodeMonitor.
        look: called a few times per second; what it raises ends the run.

    Returns:
        Results by rank.

    Raises:
        Interrupted, TrainingError: see NodeMonitor.run. They name rank, node and phase.
        Interrupted: the fork server does not start the processes.
        SystemExit: at SIGTERM or SIGHUP; see `terminate_as_exit`.
    """
    context = multiprocessing.get_context("forkserver")
    sockets = {rank: socket.socketpair() for rank in ranks}
    handed_over = ExitStack()
    streams = (
        add_local_streams(ranks, node.streams, handed_over) if node.streams is not None else {}
    )
    for _, parent in sockets.values():
        handed_over.callback(parent.close)
    processes = [
        context.Process(
            target=target,
            args=(rank, job, parent, streams.get(rank)),
            name=f"rank {rank}",
            daemon=True,
        )
        for rank, (_, parent) in sockets.items()
    ]
    with terminate_as_exit(), ExitStack() as stack:
        for own, _ in sockets.values():
            stack.callback(own.close)
        stack.enter_context(handed_over)
        stack.callback(_kill_all, processes)
        fork_server.start_processes(processes, node.cluster.distributed.init_timeout)
        handed_over.close()  # a worker then notices when the other end of a stream has ended
        workers = {
            rank: Worker(process, Channel(own, limit=None))
            for process, (rank, (own, _)) in zip(processes, sockets.items(), strict=True)
        }
        watch, results = NodeMonitor(workers, node, may_restart=may_restart), Results()
        try:
            # A daemon: one that waits for a full pipe of the log keeps no process alive.
            threading.Thread(target=_run, args=(watch, results), daemon=True).start()
            while wait([results], LOOK_INTERVAL).not_done:
                if not watch.has_failed:
                    look(*watch.take_rounds())
            with suppress(Exception) if results.exception() else nullcontext():
                look(*watch.take_rounds())  # the error of a worker is the cause, not one of these
        except BaseException as error:  # a signal, or an error of a callback
            watch.stop(name_of(error))
            wait([results], 2 * STOP_TIMEOUT)
            raise
        return results.result()


def _run(watch: NodeMonitor, results: Results) -> None:
    """Watch the workers in a thread; `results` gets what NodeMonitor.run returns or raises."""
    try:
        results.set_result(watch.run())
    except BaseException as error:
        results.set_exception(error)


def add_local_streams(
    ranks: Sequence[int], remote: StreamsByRank, stack: ExitStack
) -> dict[int, Streams]:
    """Add the streams between the workers of this node; `stack` closes all streams.

    Two workers of one node get a socket pair, which no other process can reach. No worker listens.
    Raises this process's limit of open files as far as allowed.

    Args:
        remote: the streams to workers of other nodes.
    """
    _raise_file_limit(len(ranks) ** 2 + sum(map(len, remote.values())))
    streams: StreamsByRank = {rank: dict(remote.get(rank, {})) for rank in ranks}
    for first, second in combinations(ranks, 2):
        streams[first][second], streams[second][first] = socket.socketpair()
    for stream in (stream for own in streams.values() for stream in own.values()):
        stack.callback(stream.close)
    return {rank: dict(sorted(own.items())) for rank, own in streams.items()}


def _raise_file_limit(count: int) -> None:
    """Raise this process's limit of open files as far as needed and allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_files = count + SPARE_FILES
    if soft < num_files:
        resource.setrlimit(
            resource.RLIMIT_NOFILE,
            (num_files if hard == resource.RLIM_INFINITY else min(num_files, hard), hard),
        )


@contextmanager
def terminate_as_exit() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP raise SystemExit with status 128 + number.

    Only the first one does: a closing session sends both, and workers may be saving their round. A
    signal that is ignored, as SIGHUP is below nohup, stays ignored. Outside the main thread, which
    receives all signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    caught = [number for number, handler in before.items() if handler != signal.SIG_IGN]

    def stop(number: int, _frame: FrameType | None) -> None:
        for later in caught:
            signal.signal(later, lambda *_: None)
        raise SystemExit(128 + number)

    for number in caught:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])


def name_of(error: BaseException) -> str:
    """Return the signal that raised KeyboardInterrupt or, in `terminate_as_exit`, SystemExit.

    For other errors return their type.
    """
    code = getattr(error, "code", None)
    if code in [128 + number for number in signal.Signals]:  # else a callback has called sys.exit
        return signal.Signals(code - 128).name
    return "Ctrl-C" if isinstance(error, KeyboardInterrupt) else type(error).__name__


def _kill_all(processes: Sequence[BaseProcess]) -> None:
    """Kill the workers that run, and wait for them for at most STOP_TIMEOUT.

    If one still seems to run then, the fork server, which reports it, is killed, too.
    """
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        process.kill()
    deadline = time.monotonic() + STOP_TIMEOUT
    for process in alive:
        process.join(timeout=max(0.0, deadline - time.monotonic()))
    if any(process.is_alive() for process in alive):
        fork_server.kill()
