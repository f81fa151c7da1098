"""Workers as threads: the answers and bytes of each collective, and how a failure ends."""

import threading
from typing import Any

import pytest
import torch

from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import SETUP
from retexo.comm.transport import PeerLost


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


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
