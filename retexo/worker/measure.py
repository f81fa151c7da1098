"""Measure a run: seconds, memory and bytes sent, of all workers."""

import threading
import time
from pathlib import Path
from typing import Any

import torch

from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import KINDS, METRICS
from retexo.trainers.context import PHASES, Clock


def gather_measurements(
    comm: Communicator, clock: Clock, peaks: tuple[int, int], seconds: float, num_layers: int
) -> dict[str, Any]:
    """Return at rank 0 the seconds, memory and bytes of all workers; others get empty fields.

    Seconds of a phase are the mean over workers. These are the last messages of a run.

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

    None on other ranks.
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

    The kernel keeps only the resident peak, so private memory is sampled.
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
    """Return a field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0
