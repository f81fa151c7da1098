"""Workers as threads: the answers and bytes of each collective, and how a failure ends."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import SETUP
from retexo.comm.transport import PeerLost

WORLDS = (1, 2, 5)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def noted(work: Callable[[Communicator], Any]) -> Callable[[Communicator], Any]:
    """Its result, and the bytes that it sent to each peer."""
    return lambda comm: (work(comm), comm.meter.table(1).sum(dim=(0, 1)).tolist())


@pytest.mark.parametrize("world", WORLDS)
def test_all_to_all(world: int) -> None:
    def work(comm: Communicator) -> list[list[int]]:
        to_peers = [
            torch.full((peer,), 10 * comm.rank + peer, dtype=torch.int32) for peer in range(world)
        ]
        return [part.tolist() for part in comm.all_to_all(to_peers, [comm.rank] * world, SETUP)]

    for rank, (parts, sent) in enumerate(run_threads(world, noted(work))):
        assert parts == [[10 * peer + rank] * rank for peer in range(world)]
        assert sent == [4 * peer * (peer != rank) for peer in range(world)]


@pytest.mark.parametrize("world", WORLDS)
def test_all_reduce_and_gathers(world: int) -> None:
    def work(comm: Communicator) -> Any:
        tensor = torch.tensor([comm.rank + 1.0, 0.5])
        comm.all_reduce([ReduceInput(tensor)], SETUP)
        own = torch.tensor([comm.rank])
        return (
            tensor.tolist(),
            comm.all_gather(own, SETUP).tolist(),
            comm.gather(own, SETUP).tolist(),
        )

    everyone = [[rank] for rank in range(world)]
    for rank, ((total, gathered, at_first), _) in enumerate(run_threads(world, noted(work))):
        assert total == [world * (world + 1) / 2, world / 2]
        assert gathered == everyone
        assert at_first == (everyone if rank == 0 else [])


def test_what_was_received_is_a_copy() -> None:
    def work(comm: Communicator) -> list[int]:
        own = torch.tensor([comm.rank])
        for received in comm.all_to_all([own] * 3, [1] * 3, SETUP):
            received += 10
        comm.all_gather(own, SETUP)
        return own.tolist()

    assert run_threads(3, work) == [[0], [1], [2]]


# --- failures ----------


class Cause(Exception):
    pass


@pytest.mark.parametrize("failing", [0, 2])
def test_the_cause_is_raised_and_not_what_follows(failing: int) -> None:
    followed = []

    def work(comm: Communicator) -> None:
        try:
            comm.all_gather(torch.zeros(1), SETUP)
            if comm.rank == failing:
                raise Cause("the disk is full")
            comm.all_gather(torch.zeros(1), SETUP)
        except PeerLost:
            followed.append(comm.rank)
            raise

    with pytest.raises(Cause, match="the disk is full"):
        run_threads(3, work)
    assert sorted(followed) == sorted({0, 1, 2} - {failing})


def test_a_message_of_another_size_than_announced() -> None:
    def work(comm: Communicator) -> None:
        comm.all_to_all([torch.zeros(comm.rank)] * 2, [1, 1], SETUP)

    with pytest.raises(ValueError, match="another size than announced"):
        run_threads(2, work)
