"""A worker process: its start, threads and device, and the reports to its parent."""

import errno
import logging
import os
import signal
import socket
import sys
import threading
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
from retexo.comm.transport import PeerLost
from retexo.errors import Stopped, TrainingError, describe_error
from retexo.launch.channels import encode_message
from retexo.launch.cores import usable_cores
from retexo.launch.heartbeat import Progress
from retexo.settings.cluster_settings import ClusterSettings
from retexo.settings.run_settings import TrainSettings
from retexo.sites.disclosure import Disclosure

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
        """Connect a worker to the others; write disclosure.json at the end of the block.

        The Disclosure has the worker's collectives.
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
    """Set up logging, threads and random generators of a worker process."""
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
