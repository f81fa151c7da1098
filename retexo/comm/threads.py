"""Workers as threads of one process, with the same messages and the same account: to learn what a run will send."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from retexo.comm.collectives import Communicator, PeerLost

T = TypeVar("T")


TIMEOUT = 3600.0
"""seconds that a thread waits for the others"""


class Board:
    """Where the threads leave their messages for each other."""

    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size, timeout=TIMEOUT)
        self.messages: list[list[Tensor]] = [[] for _ in range(world_size)]


class ThreadCommunicator(Communicator):
    """One thread's end."""

    def __init__(self, rank: int, world_size: int, board: Board) -> None:
        super().__init__(rank, world_size)
        self._board = board

    def _swap(self, to_peers: Sequence[Tensor], from_sizes: Sequence[int]) -> list[Tensor]:
        self._board.messages[self.rank] = list(to_peers)
        self._board.barrier.wait()
        received = [sent[self.rank].clone() for sent in self._board.messages]
        self._board.barrier.wait()
        assert [tensor.numel() for tensor in received] == list(from_sizes), "a message of another size than announced"
        return received


def run_threads(world_size: int, target: Callable[[ThreadCommunicator], T]) -> list[T]:
    """Run target(communicator) once a rank, each in a thread of its own; their results by rank.

    The first exception of a thread is raised, once all have ended.
    """
    board = Board(world_size)

    def worker(rank: int) -> T:
        try:
            return target(ThreadCommunicator(rank, world_size, board))
        except BaseException:
            board.barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(worker, rank) for rank in range(world_size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, PeerLost)):  # the cause before what follows from it
        raise error
    return [future.result() for future in futures]
