"""One worker process: its entry, threads and device, and how its parent learns of its progress and its end."""

import errno
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from retexo.comm.collectives import Communicator
from retexo.comm.process_group import Rendezvous
from retexo.comm.transport import PeerLost, Transport
from retexo.errors import Stopped, TrainingError
from retexo.launch.cores import usable_cores
from retexo.launch.heartbeat import ParentPipe, Progress
from retexo.settings.cluster_settings import ClusterSettings
from retexo.settings.run_settings import TrainSettings


@dataclass(frozen=True)
class Job:
    """What a worker is told when it starts."""

    settings: TrainSettings
    directory: PartitionDirectory
    run_dir: Path
    rendezvous: Rendezvous
    settings_digest: str
    """sha256 (hex) of the settings that have to be the same on every node."""

    def communicator(self, transport: Transport) -> Communicator:
        """The worker's end."""
        several = self.settings.cluster.num_nodes > 1
        return Communicator(transport, self.settings.sleep_time, between_nodes=several)


def serve(
    parent: Connection, heartbeat_timeout: float, work: Callable[[Progress], dict[str, Any]]
) -> None:
    """Run `work`; send the parent heartbeats, then the result, or the error with its kind before exit status 1."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole terminal; the parent ends the workers
    threading.Thread(target=_die_with_parent, daemon=True).start()
    pipe = ParentPipe(parent)
    try:
        pipe.send({"result": work(pipe.start_heartbeat(heartbeat_timeout))})
    except Exception as error:
        kinds = {
            InputError: "input",
            TrainingError: "failure",
            PeerLost: "peer",
            Stopped: "stopped",
        }
        kind = kinds.get(type(error), "error")
        message = str(error)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            kind = "disk"
        elif (
            isinstance(error, MemoryError | torch.OutOfMemoryError)
            or "DefaultCPUAllocator" in message
        ):
            kind, message = (
                "failure",
                f"not enough memory: {message.rpartition('DefaultCPUAllocator: ')[2]}",
            )
        report = {"kind": kind, "message": message, "traceback": traceback.format_exc()}
        pipe.send({"error": report})
        sys.exit(1)


def catch_termination() -> Callable[[], bool]:
    """From now on SIGTERM does not end this process; the returned function says whether it has come."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    return stop.is_set


def _die_with_parent() -> None:
    """End this process when its parent has ended: one that was killed cannot end its workers."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def configure(rank: int, settings: TrainSettings) -> None:
    """Logging, threads and randomness of a worker process."""
    logging.basicConfig(
        format=f"[%(asctime)s][%(levelname)s][rank {rank}] %(message)s", level=logging.INFO
    )
    torch.set_num_threads(num_threads(settings.cluster))
    torch.manual_seed(settings.seed * 1_000_003 + rank)  # dropout: another mask on every worker


def num_threads(cluster: ClusterSettings) -> int:
    """Threads of one worker: its share of the cores that this machine gives us."""
    return cluster.threads_of(usable_cores())


def choose_device(name: str, local_rank: int) -> torch.device:
    """The device of a worker; the workers of a node take its GPUs in turn. InputError for a GPU that is not there."""
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device=cuda: torch sees no GPU here; use device=auto or device=cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())
