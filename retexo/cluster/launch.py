"""Start the workers of this node, and end all of them together."""

import multiprocessing
import multiprocessing.forkserver
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from retexo.cluster import rendezvous
from retexo.cluster.rendezvous import Node
from retexo.cluster.watch import STOP_TIMEOUT, Watch, Worker
from retexo.config.settings import ClusterSettings


def warm_up() -> None:
    """Start the fork server of the workers; it imports torch while the parent checks its input."""
    # Building an optimiser imports torch._dynamo, which takes a second; once is enough.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["retexo.worker.train", "torch._dynamo"])
    multiprocessing.forkserver.ensure_running()


def _wait_until_warm() -> None:
    """Wait until workers can be forked at once: other nodes might take slow imports for a dead node."""
    process = multiprocessing.get_context("forkserver").Process(target=int)
    process.start()
    process.join()


@contextmanager
def connect_nodes(cluster: ClusterSettings, settings: Mapping[str, Any], partition: str) -> Iterator[Node]:
    """As rendezvous.connect_nodes, once workers can be forked at once."""
    if cluster.num_nodes > 1:
        _wait_until_warm()
    with rendezvous.connect_nodes(cluster, settings, partition) as node:
        yield node


def run_workers(
    ranks: Sequence[int], target: Callable[..., None], job: Any, node: Node | None = None
) -> dict[int, Any]:
    """Run target(rank, job, connection) in a process for each rank; return their results by rank.

    Raises TrainingError, which names rank, node and phase, as soon as a worker fails here or on another node; none is
    left behind in any case.
    """
    context = multiprocessing.get_context("forkserver")
    workers: dict[int, Worker] = {}
    with terminate_as_exit(), ExitStack() as stack:
        stack.push(lambda kind, *_: _end_all(workers, save=kind in (KeyboardInterrupt, SystemExit)))
        for rank in ranks:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=target, args=(rank, job, sender), name=f"rank {rank}", daemon=True)
            process.start()
            sender.close()
            workers[rank] = Worker(process, receiver)
        watch = Watch(workers, node)
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


def _end_all(workers: dict[int, Worker], save: bool) -> None:
    """End the workers; save: they first finish their round and save it.

    A worker that has reported its result has closed all it opened; nothing is lost by not waiting for its exit.
    """
    for stop in ("terminate", "kill") if save else ("kill",):
        alive = [worker.process for worker in workers.values() if worker.process.is_alive()]
        for process in alive:
            getattr(process, stop)()
        for process in alive:
            process.join(timeout=STOP_TIMEOUT)
    for worker in workers.values():
        worker.receiver.close()
