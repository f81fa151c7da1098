"""A worker process: its start, threads and device, the reports to its parent, what it measures."""

import errno
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch

from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from retexo.comm.collectives import Communicator
from retexo.comm.process_group import Rendezvous, connected
from retexo.comm.socket_transport import Streams
from retexo.comm.traffic_meter import KINDS, METRICS
from retexo.comm.transport import PeerLost
from retexo.errors import Stopped, TrainingError, describe_error
from retexo.launch.channels import encode_message
from retexo.launch.cores import usable_cores
from retexo.launch.heartbeat import Progress
from retexo.settings.cluster_settings import ClusterSettings
from retexo.settings.run_settings import TrainSettings
from retexo.sites.disclosure import Disclosure
from retexo.trainers.context import PHASES, Clock

LEAST_MEMORY = 64 << 20
"""Bytes that a worker takes at the least; PyTorch alone takes some 200 MiB."""


@dataclass(frozen=True)
class Job:
    """What a worker receives when it starts."""

    settings: TrainSettings
    directory: PartitionDirectory
    run_dir: Path
    rendezvous: Rendezvous

    @contextmanager
    def connected(self, rank: int, streams: Streams | None) -> Iterator[Disclosure]:
        """Connect a worker to the others, by the collectives of the Disclosure.

        At the end of the block, also of a failed one, it is written, if sites own the partitions.
        PeerLost if a worker is not reached.
        """
        several = self.settings.num_nodes > 1
        with connected(self.rendezvous, rank, streams) as transport:
            comm = Communicator(transport, self.settings.sleep_time, between_nodes=several)
            disclosure = Disclosure(comm, self.directory.sites)
            try:
                yield disclosure
            finally:
                alone = len(self.settings.local_ranks) == 1
                disclosure.write(self.run_dir, self.rendezvous, alone=alone)


AnyJob = TypeVar("AnyJob", bound=Job)


def serve(
    run: Callable[[int, AnyJob, Streams | None, Progress], dict[str, Any]],
    rank: int,
    job: AnyJob,
    parent: socket.socket,
    streams: Streams | None,
) -> None:
    """Call run(rank, job, streams, progress); send heartbeats, then the result or the error.

    After an error the exit status is 1. The process ignores Ctrl-C, and ends with its parent.
    """
    # Ctrl-C reaches the whole terminal; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()

    def transmit(message: dict[str, Any]) -> None:
        with suppress(OSError):  # the parent has ended, and so does this process
            parent.sendall(encode_message(message) + b"\n")

    progress = Progress(transmit)
    try:
        progress.start_heartbeat(job.settings.distributed.heartbeat_timeout)
        progress.send({"result": run(rank, job, streams, progress)})
    except Exception as error:
        kind = {InputError: "refused", PeerLost: "peer"}.get(type(error), "failed")
        expected = type(error) in (InputError, TrainingError, PeerLost, Stopped)
        message = str(error) if expected else describe_error(error)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            expected, message = True, str(error)
        elif (
            isinstance(error, MemoryError | torch.OutOfMemoryError)
            or "DefaultCPUAllocator" in message
        ):
            expected = True
            message = f"not enough memory: {message.rpartition('DefaultCPUAllocator: ')[2]}"
        cause = "" if expected else traceback.format_exc()
        report = {"kind": kind, "message": message, "traceback": cause}
        progress.send({"error": report})
        sys.exit(1)


def catch_termination() -> Callable[[], bool]:
    """Keep SIGTERM from ending this process; the returned function tells if it arrived."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    return stop.is_set


def _die_with_parent() -> None:
    """End this process when its parent has ended: a killed parent cannot end its workers."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def configure(rank: int, settings: TrainSettings) -> None:
    """Set up logging, torch's threads and its random generator, by the seed and the rank."""
    logging.basicConfig(
        format=f"[%(asctime)s][%(levelname)s][rank {rank}] %(message)s", level=logging.INFO
    )
    torch.set_num_threads(num_threads(settings))
    torch.manual_seed(settings.seed * 1_000_003 + rank)  # other dropout masks on every worker


def num_threads(cluster: ClusterSettings) -> int:
    """Return the number of threads of one worker: its share of the usable cores."""
    return cluster.threads_of(usable_cores())


def check_machine(cluster: ClusterSettings) -> None:
    """Raise InputError unless this node has the GPUs and the memory that its workers need."""
    needed, there = cluster.num_local_workers * LEAST_MEMORY, psutil.virtual_memory().total
    if needed > there:
        raise InputError(
            f"num_partitions={cluster.num_partitions}: {cluster.num_local_workers:,} workers on"
            f" this node need more than {needed >> 30:,} GiB, and it has {there >> 30:,} GiB; use"
            " fewer partitions, or more nodes (parts_per_node)"
        )
    choose_device(cluster.device, 0)


def choose_device(name: str, local_rank: int) -> torch.device:
    """Return the device of a worker. The workers of a node take its GPUs in turn.

    Raises:
        InputError: device=cuda without a GPU.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device=cuda: torch sees no GPU here; use device=auto or device=cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


# --- measuring ----------


def gather_measurements(
    comm: Communicator, clock: Clock, peaks: tuple[int, int], seconds: float, num_layers: int
) -> dict[str, Any]:
    """Return at rank 0 the seconds, memory and bytes of all workers; others get empty fields.

    Seconds of a phase are the mean over workers. All workers call it; these are the last messages
    of a run.

    Args:
        peaks: memory of this worker, resident and private, in bytes.
        seconds: of training, at this worker.
    """
    phases = torch.tensor([clock.seconds[name] for name in PHASES], dtype=torch.float64)
    by_worker = comm.gather(phases, METRICS)
    numbers = comm.gather(torch.tensor(peaks), METRICS)
    # The mean over workers, not the maximum: waiting for the slowest worker is already part of the
    # next phase.
    phase = dict(zip(PHASES, by_worker.mean(dim=0).tolist(), strict=True)) if len(by_worker) else {}
    return {
        "seconds": {"train": seconds, "phase": phase},
        "peak_memory_bytes": numbers[:, 0].tolist(),
        "peak_private_bytes": numbers[:, 1].tolist(),
        "bytes": traffic_summary(comm, num_layers),
    }


def traffic_summary(comm: Communicator, num_layers: int) -> dict[str, Any] | None:
    """Sum up, at rank 0, the bytes that all workers sent, these messages included.

    None on other ranks. All workers call it.
    """
    table = comm.gather_traffic(num_layers)
    if not len(table):
        return None
    by_layer = table.sum(dim=(0, 1, 3)).tolist()
    by_kind = table.sum(dim=(0, 2, 3)).tolist()
    return {
        "total": int(table.sum()),
        "by_kind": dict(zip(KINDS, by_kind, strict=True)),
        "by_layer": by_layer[:-1],
        "outside_layers": by_layer[-1],
        "by_layer_and_kind": [
            dict(zip(KINDS, row, strict=True)) for row in table.sum(dim=(0, 3)).T.tolist()
        ],
        "by_peer": table.sum(dim=(1, 2)).tolist(),
    }


class MemoryWatch:
    """Peak memory of this process in bytes, resident and private.

    The kernel keeps only the resident peak, so a thread samples private memory, until the process
    ends.
    """

    INTERVAL = 0.1  # seconds

    def __init__(self) -> None:
        self.private = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.sample()
            time.sleep(self.INTERVAL)

    def sample(self) -> None:
        self.private = max(self.private, status_bytes("RssAnon"))

    def peaks(self) -> tuple[int, int]:
        """Return this process's peak memory so far in bytes: resident, and private as sampled."""
        self.sample()
        return status_bytes("VmHWM"), self.private


def status_bytes(field: str) -> int:
    """Return a field of /proc/self/status, in bytes; 0 without it."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0
