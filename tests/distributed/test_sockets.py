"""Plain sockets: whatever is swapped arrives, and a peer that is gone, silent or out of step is
noticed.
"""

import gc
import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import over_sockets, swap

from retexo.comm.socket_transport import HEADER, SocketTransport
from retexo.comm.transport import PeerLost
from retexo.errors import TrainingError
from retexo.launch.worker_streams import add_local_streams


def at_once(world: int, work: Callable[[SocketTransport], Any], timeout: float = 30.0) -> list[Any]:
    """What ended each rank, or None."""
    return [future.exception() for future in over_sockets(world, work, timeout)]


SIZES = st.sampled_from(
    [0, 1, 3, 1000, 70_000, 600_000]
)  # of which the last is more than a socket holds


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_what_is_swapped_arrives(data: st.DataObject) -> None:
    world = data.draw(st.integers(1, 9))
    dtype = data.draw(
        st.sampled_from([torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.int64])
    )
    rounds = data.draw(st.integers(1, 3))
    sizes = torch.tensor(
        data.draw(st.lists(SIZES, min_size=world * world, max_size=world * world))
    ).view(world, world)

    def message(sender: int, receiver: int, number: int) -> torch.Tensor:
        count = int(sizes[sender, receiver]) // (1 if world < 4 else world)
        return (
            (torch.arange(count) * 7 + sender * 31 + receiver * 5 + number)
            .to(torch.uint8)
            .to(dtype)
        )

    def work(transport: SocketTransport) -> None:
        everyone = range(world)
        for number in range(rounds):
            expected = [message(peer, transport.rank, number) for peer in everyone]
            sent = [message(transport.rank, peer, number) for peer in everyone]
            received = swap(transport, sent, [len(each) for each in expected])
            assert all(
                each.dtype == dtype and torch.equal(each, want)
                for each, want in zip(received, expected, strict=True)
            )

    assert at_once(world, work) == [None] * world


def test_a_peer_that_is_gone_is_lost_at_once() -> None:
    def work(transport: SocketTransport) -> None:
        if transport.rank == 2:
            for stream in transport._streams.values():
                stream.close()
            return
        swap(transport, [torch.ones(5)] * 3, [5] * 3)

    start = time.monotonic()
    first, second, third = at_once(3, work)
    assert time.monotonic() - start < 10
    assert third is None
    # Whoever goes first closes its own streams, which may be what the other one sees.
    assert all(isinstance(error, PeerLost) for error in (first, second))
    assert "rank 2" in str(first) + str(second)


def test_a_silent_peer_is_lost_after_the_time_limit() -> None:
    def work(transport: SocketTransport) -> None:
        if transport.rank == 0:
            swap(transport, [torch.ones(5)] * 2, [5] * 2)

    error, _ = at_once(2, work, timeout=0.2)
    assert str(error) == "no byte from rank 1 for 0.2 s"


@pytest.mark.parametrize("announced", [0, 8, 2**63])
def test_a_message_of_another_size_is_refused(announced: int) -> None:
    own, other = socket.socketpair()
    with own, other:
        other.sendall(HEADER.pack(announced) + bytes(8))
        with pytest.raises(TrainingError, match=f"rank 1 sends {announced} bytes, not 20"):
            swap(SocketTransport(0, {1: own}, 5.0), [torch.ones(5)] * 2, [5] * 2)


def test_streams_of_many_workers_are_closed_by_the_parent() -> None:
    """64 workers have 2,016 pairs, more than the usual limit of open files."""
    gc.collect()  # sockets of the tests before
    before = psutil.Process(os.getpid()).num_fds()
    with ExitStack() as stack:
        streams = add_local_streams(range(64), {}, stack)
        assert all(
            list(own) == [peer for peer in range(64) if peer != rank]
            for rank, own in streams.items()
        )
        streams[5][60].sendall(b"x")
        assert streams[60][5].recv(2) == b"x"
    assert psutil.Process(os.getpid()).num_fds() == before
