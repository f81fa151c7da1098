"""Start the workers of this node, and end all of them together."""

import importlib
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from types import FrameType, ModuleType
from typing import Any

from retexo.cluster import rendezvous
from retexo.cluster.rendezvous import Node
from retexo.cluster.streams import with_doors, with_local_streams
from retexo.cluster.ticker import ticker
from retexo.cluster.watch import STOP_TIMEOUT, Watch, Worker
from retexo.config.cluster_settings import ClusterSettings
from retexo.errors import TrainingError

WORKERS = "retexo.worker.train"
"""What the fork server imports before it forks; above this room, so by name."""
_forked: int | None = None
"""What a fork server that is a copy of this process waits for the end of."""


def warm_up() -> None:
    """Start the fork server of the workers; it imports torch while the parent checks its input."""
    global _forked
    if _forked is not None:
        os.close(_forked)
        _forked = None
    multiprocessing.get_context("forkserver").set_forkserver_preload([WORKERS])
    multiprocessing.forkserver.ensure_running()


def fork_fork_server() -> None:
    """Make a copy of this process the fork server: torch is imported once, not once here and once there.

    It starts workers from `warm_up` on. Only in a process that has computed nothing yet: the copy of a pool of threads
    has no threads, and waits for ever. What multiprocessing.forkserver.ForkServer.ensure_running does (CPython 3.11),
    but for the fork.
    """
    global _forked
    importlib.import_module(WORKERS)
    server: Any = multiprocessing.forkserver._forkserver
    address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        os.chmod(address, 0o600)  # noqa: PTH101
        listener.listen()
        (alive, kept), (told, _forked) = os.pipe(), os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            try:
                os.close(kept)
                os.close(_forked)
                for handler in logging.root.handlers[:]:  # Hydra's: workers have their own
                    logging.root.removeHandler(handler)
                os.read(told, 1)
                multiprocessing.forkserver.main(listener.fileno(), alive, [])
            finally:  # it ends with SystemExit, when nobody holds the other end of `alive`
                os._exit(0)
        os.close(alive)
        os.close(told)
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = (
        address,
        kept,
        pid,
    )


def _wait_until_warm(timeout: float) -> None:
    """Wait until workers can be forked at once: other nodes might take slow imports for a dead node."""
    process = multiprocessing.get_context("forkserver").Process(target=int, daemon=True)
    _start([process], timeout)
    process.join(timeout)


def _start(processes: Sequence[BaseProcess], timeout: float) -> None:
    """Start processes by the fork server; TrainingError where it has ended, or does not answer for `timeout` seconds.

    In a thread: multiprocessing itself waits for ever for a fork server that was stopped.
    """

    def start_all() -> None:
        # Workers would import __main__, a script of the user's, and so run it again; all they need is in modules.
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            for process in processes:
                process.start()
        finally:
            sys.modules["__main__"] = main

    ticker.doing = "starting the workers"
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(start_all).result(timeout)
        except BaseException as error:
            _kill_fork_server()  # which ends the thread, too
            if not isinstance(error, EOFError | OSError):
                raise
            reason = (
                f"no answer for {timeout:g} s" if isinstance(error, TimeoutError) else str(error)
            )
            raise TrainingError(
                f"the fork server, the process that starts the workers, was killed or stopped: {reason}; start again "
                "(where this machine is only slow, with a longer distributed.init_timeout)"
            ) from error


def _kill_fork_server() -> None:
    """Kill it, and wait until it has ended: multiprocessing starts another when it is needed."""
    pid = getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@contextmanager
def connect_nodes(
    cluster: ClusterSettings, settings: Mapping[str, Any], partition: str
) -> Iterator[Node]:
    """As rendezvous.connect_nodes, once workers can be forked at once."""
    if cluster.num_nodes > 1:
        _wait_until_warm(cluster.init_timeout)
    with rendezvous.connect_nodes(cluster, settings, partition) as node:
        yield node


def run_workers(
    ranks: Sequence[int], target: Callable[..., None], job: Any, node: Node
) -> dict[int, Any]:
    """Run target(rank, job, connection, streams) in a process for each rank; return their results by rank.

    streams: to the other workers, None for gloo, which connects them itself.

    Raises TrainingError, which names rank, node and phase, as soon as a worker fails here or on another node; none is
    left behind in any case.
    """
    context = multiprocessing.get_context("forkserver")
    pipes = {rank: context.Pipe(duplex=False) for rank in ranks}
    handed_over = ExitStack()
    streams = (
        with_local_streams(ranks, node.streams, handed_over) if node.streams is not None else {}
    )
    doors: dict[int, socket.socket] = {}
    if node.reopening is not None:
        streams, doors = with_doors(streams, handed_over)
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
        for receiver, _ in pipes.values():
            stack.callback(receiver.close)
        stack.push(
            lambda kind, *_: _end_all(processes, save=kind in (KeyboardInterrupt, SystemExit))
        )
        _start(processes, node.cluster.init_timeout)
        handed_over.close()  # so that a worker notices when the other end of a stream has ended
        for _, sender in pipes.values():
            sender.close()
        if node.reopening is not None:
            node.reopening.start(doors)
        started = zip(processes, pipes.items(), strict=True)
        watch = Watch(
            {rank: Worker(process, receiver) for process, (rank, (receiver, _)) in started}, node
        )
        try:
            return watch.run()
        except (KeyboardInterrupt, SystemExit) as error:
            watch.announce_stop("Ctrl-C" if isinstance(error, KeyboardInterrupt) else "SIGTERM")
            raise


@contextmanager
def terminate_as_exit() -> Iterator[None]:
    """Within the block SIGTERM raises SystemExit with status 143, so that everything is cleaned up."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_all(processes: Sequence[BaseProcess], save: bool) -> None:
    """End the workers; save: they first finish their round and save it.

    A worker that has reported its result has closed all it opened; nothing is lost by not waiting for its exit.
    """
    for stop in ("terminate", "kill") if save else ("kill",):
        alive = [process for process in processes if process.is_alive()]
        for process in alive:
            getattr(process, stop)()
        deadline = time.monotonic() + STOP_TIMEOUT
        for process in alive:
            process.join(timeout=max(0.0, deadline - time.monotonic()))
    if any(process.is_alive() for process in processes):  # so says a fork server that was stopped
        _kill_fork_server()
