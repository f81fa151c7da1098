"""Start the workers of this node, and end all of them together."""

import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from retexo.launch import fork_server, rendezvous
from retexo.launch.monitor import STOP_TIMEOUT, Watch, Worker
from retexo.launch.rendezvous import Node
from retexo.launch.worker_streams import with_doors, with_local_streams
from retexo.settings.cluster_settings import ClusterSettings


@contextmanager
def connect_nodes(
    cluster: ClusterSettings, settings: Mapping[str, Any], partition: str
) -> Iterator[Node]:
    """As rendezvous.connect_nodes, once workers can be forked at once."""
    if cluster.num_nodes > 1:
        fork_server.wait_until_warm(cluster.init_timeout)
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
        fork_server.start_processes(processes, node.cluster.init_timeout)
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
            watch.announce_stop(name_of_signal(error))
            raise


@contextmanager
def terminate_as_exit() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP raise SystemExit with status 128 + number, so that everything is cleaned up.

    Only the first one does: a closing session sends both, and workers may be saving their round. One that is ignored
    already, as nohup has SIGHUP ignored, stays so.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    caught = [number for number, handler in before.items() if handler != signal.SIG_IGN]

    told_before = False

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal told_before
        if not told_before:
            told_before = True
            raise SystemExit(128 + number)

    for number in caught:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])


def name_of_signal(error: BaseException) -> str:
    """The signal that raised KeyboardInterrupt or, in `terminate_as_exit`, SystemExit."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return signal.Signals(error.code - 128).name
    return "Ctrl-C"


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
        fork_server.kill()
