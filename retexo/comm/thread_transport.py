"""Workers as threads of one process, with the same messages and byte counts: predicts traffic."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from retexo.comm.collectives import Communicator
from retexo.comm.transport import PeerLost, Pieces, fill_pieces, join_pieces

T = TypeVar("T")

TIMEOUT = 3600.0
"""Seconds that a thread waits for the others."""


class ThreadGroup:
    """What the threads share: the messages that they write for each other."""

    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size, timeout=TIMEOUT)
        self.messages: list[Sequence[Pieces]] = [[] for _ in range(world_size)]


class ThreadTransport:
    """One thread's end, as a retexo.comm.transport.Transport."""

    def __init__(self, rank: int, group: ThreadGroup) -> None:
        self.rank, self.world_size = rank, len(group.messages)
        self._group = group

    def swap(self, outgoing: list[Pieces], incoming: Sequence[Pieces]) -> None:
        """Pass a message to each other thread and receive one from each; wait for all.

        PeerLost if one has failed, or comes after TIMEOUT.
        """
        self._group.messages[self.rank] = outgoing
        self._wait()
        for pieces, sent in zip(incoming, self._group.messages, strict=True):
            fill_pieces(pieces, join_pieces(sent[self.rank]))
        self._wait()

    def _wait(self) -> None:
        """Wait until all threads are here; PeerLost if one has failed, or comes after TIMEOUT."""
        try:
            self._group.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise PeerLost(f"another thread has failed, or waits for {TIMEOUT} s") from error


def run_threads(world_size: int, target: Callable[[Communicator], T]) -> list[T]:
    """Run target(communicator) in a thread for each rank; their results by rank.

    Once all have ended, raises the exception of the lowest rank, PeerLost only without another.
    """
    group = ThreadGroup(world_size)
    # A forked process replaces torch's pool of threads at its first use. Two threads at once may
    # find none ("Invalid thread pool!"), so it is done before there are any.
    torch.set_num_threads(torch.get_num_threads())

    def worker(rank: int) -> T:
        try:
            return target(Communicator(ThreadTransport(rank, group)))
        except BaseException:
            group.barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(worker, rank) for rank in range(world_size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, PeerLost)):  # the cause first
        raise error
    return [future.result() for future in futures]
