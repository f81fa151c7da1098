"""Start the workers of this node, and end all of them together."""

import multiprocessing
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from retexo.comm.socket_transport import Streams, StreamsByRank
from retexo.errors import TrainingError
from retexo.launch import fork_server
from retexo.launch.monitor import STOP_TIMEOUT, Look, NodeMonitor, Worker
from retexo.launch.rendezvous import Node

SPARE_FILES = 256
"""Files that a process opens besides its streams."""


def run_workers(
    ranks: Sequence[int],
    target: Callable[..., None],
    job: Any,
    node: Node,
    *,
    may_restart: bool = False,
    look: Look | None = None,
) -> dict[int, Any]:
    """Run target(rank, job, connection, streams) in a process for each rank.

    `streams` are the connections to the other workers, or None for gloo, which opens its own. All
    processes have ended when this function returns or raises.

    Args:
        may_restart, look: see NodeMonitor.

    Returns:
        Results by rank.

    Raises:
        Interrupted, TrainingError: see NodeMonitor.run. They name rank, node and phase.
    """
    context = multiprocessing.get_context("forkserver")
    pipes = {rank: context.Pipe(duplex=False) for rank in ranks}
    handed_over = ExitStack()
    streams = (
        add_local_streams(ranks, node.streams, handed_over) if node.streams is not None else {}
    )
    processes = [
        context.Process(
            target=target,
            args=(rank, job, sender, streams.get(rank)),
            name=f"rank {rank}",
            daemon=True,
        )
        for rank, (_, sender) in pipes.items()
    ]
    with terminate_as_exit(), ExitStack() as stack:
        stack.enter_context(handed_over)
        stack.push(
            lambda kind, *_: _end_all(processes, save=kind in (KeyboardInterrupt, SystemExit))
        )
        fork_server.start_processes(processes, node.cluster.distributed.init_timeout)
        handed_over.close()  # a worker then notices when the other end of a stream has ended
        for _, sender in pipes.values():
            sender.close()
        started = zip(processes, pipes.items(), strict=True)
        workers = {rank: Worker(process, receiver) for process, (rank, (receiver, _)) in started}
        watch = NodeMonitor(workers, node, may_restart=may_restart, look=look)
        try:
            return watch.run()
        except TrainingError:  # which all nodes know
            raise
        except BaseException as error:  # a signal, an error of a callback or of this program
            watch.announce_stop(name_of(error))
            raise


def add_local_streams(
    ranks: Sequence[int], remote: StreamsByRank, stack: ExitStack
) -> dict[int, Streams]:
    """Add the streams between the workers of this node; `stack` closes all streams.

    Two workers of one node get a socket pair, which no other process can reach. No worker listens.

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


def _end_all(processes: Sequence[BaseProcess], save: bool) -> None:
    """End the workers.

    Args:
        save: let them finish and save their round first, unless a second signal arrives.
    """
    try:
        if save:
            _end(processes, "terminate")
    finally:
        _end(processes, "kill")
    if any(process.is_alive() for process in processes):  # as a stopped fork server reports
        fork_server.kill()


def _end(processes: Sequence[BaseProcess], method: str) -> None:
    """Call a method of the processes that run, and wait for them for at most STOP_TIMEOUT."""
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        getattr(process, method)()
    deadline = time.monotonic() + STOP_TIMEOUT
    for process in alive:
        process.join(timeout=max(0.0, deadline - time.monotonic()))
