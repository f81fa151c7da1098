"""Starts the workers of this node, watches them, and ends them together."""

import json
import multiprocessing
import multiprocessing.forkserver
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from partitioning.errors import InputError
from retexo.comm.group import Rendezvous, check_port_free, loopback, route_interface
from retexo.config import ClusterSettings
from retexo.errors import TrainingError

GRACE = 2.0
"""seconds for which the others' reasons are awaited once one worker failed, to tell the cause from its effects"""
KEEPING = 5.0
"""seconds in which workers that are told to stop have to end their round and keep it"""


def warm_up() -> None:
    """Start the server that workers are forked from; it imports torch while the parent checks its input."""
    # Building an optimiser imports torch._dynamo, which takes a second; once is enough.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["retexo.worker", "torch._dynamo"])
    multiprocessing.forkserver.ensure_running()


@contextmanager
def rendezvous(cluster: ClusterSettings) -> Iterator[Rendezvous]:
    """Where the workers meet: on one node in a private folder and on loopback, else at node 0's address."""
    with ExitStack() as stack:
        file = None
        if cluster.num_nodes == 1:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="retexo-"))) / "rendezvous"
            interface = loopback()
        else:
            interface = cluster.interface or route_interface(cluster.master_addr, cluster.master_port)
            if interface == loopback() and cluster.interface is None:
                raise InputError(
                    f"distributed.master_addr={cluster.master_addr}: a loopback address cannot be reached from another "
                    "node; set it to node 0's address (or distributed.interface=lo for several nodes on one machine)"
                )
            if cluster.node_rank == 0:
                check_port_free(cluster.master_addr, cluster.master_port)
        yield Rendezvous(
            world_size=cluster.num_partitions,
            interface=interface,
            file=file,
            address=cluster.master_addr,
            port=cluster.master_port,
            init_timeout=cluster.init_timeout,
            timeout=cluster.timeout,
        )


def run_workers(ranks: range, target: Callable[..., None], job: Any) -> dict[int, Any]:
    """Run target(rank, job, connection) in a process for each rank; return their results by rank.

    Raises TrainingError, which names the rank, as soon as one of them fails; none is left behind in any case.
    """
    context = multiprocessing.get_context("forkserver")
    workers: dict[int, tuple[BaseProcess, Connection]] = {}
    with terminate_as_exit(), ExitStack() as stack:
        stack.push(lambda kind, *_: _end_all(workers, told=kind in (KeyboardInterrupt, SystemExit)))
        for rank in ranks:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=target, args=(rank, job, sender), name=f"rank {rank}", daemon=True)
            process.start()
            sender.close()
            workers[rank] = (process, receiver)
        return _watch(workers)


@contextmanager
def terminate_as_exit() -> Iterator[None]:
    """SIGTERM ends the program by way of its clean-up, with status 143."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _watch(workers: dict[int, tuple[BaseProcess, Connection]]) -> dict[int, Any]:
    results: dict[int, Any] = {}
    failures: dict[int, dict[str, str]] = {}
    deadline = float("inf")
    while len(results) + len(failures) < len(workers) and time.monotonic() < deadline:
        waiting = {workers[rank][1]: rank for rank in workers if rank not in results and rank not in failures}
        for receiver in connection.wait(list(waiting), timeout=min(deadline - time.monotonic(), 3600)):
            rank = waiting[receiver]  # type: ignore[index]
            outcome = _outcome(*workers[rank])
            if "result" in outcome:
                results[rank] = outcome["result"]
            else:
                failures[rank] = outcome["error"]
                deadline = min(deadline, time.monotonic() + GRACE)
    if failures:
        raise _cause(failures)
    return results


def _outcome(process: BaseProcess, receiver: Connection) -> dict[str, Any]:
    """What a worker reported; where it died without a word, its exit code."""
    try:
        outcome: dict[str, Any] = json.loads(receiver.recv_bytes())
        return outcome
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        return {"error": {"kind": "death", "message": how, "traceback": ""}}


def _cause(failures: dict[int, dict[str, str]]) -> TrainingError:
    """The error to report: a death before an error, an error before what follows from a peer's."""
    order = ("death", "input", "error", "stopped", "peer")
    rank = min(failures, key=lambda rank: (order.index(failures[rank]["kind"]), rank))
    failure = failures[rank]
    trace = f"\n{failure['traceback']}" if failure["kind"] == "error" else ""
    return TrainingError(f"rank {rank} {'failed: ' if failure['kind'] != 'death' else ''}{failure['message']}{trace}")


def _end_all(workers: dict[int, tuple[BaseProcess, Connection]], told: bool) -> None:
    """End the workers; where the user told us to, they first keep how far they came.

    A worker that has reported its result has closed all it opened; nothing is lost by not waiting for its exit.
    """
    for stop in ("terminate", "kill") if told else ("kill",):
        alive = [process for process, _ in workers.values() if process.is_alive()]
        for process in alive:
            getattr(process, stop)()
        for process in alive:
            process.join(timeout=KEEPING)
    for _, receiver in workers.values():
        receiver.close()
