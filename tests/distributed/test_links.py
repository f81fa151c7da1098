"""Links between nodes: a connection that breaks, wherever and however often, is taken up again, and nothing is lost."""

import contextlib
import json
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import (
    finish,
    make_credentials,
    random_graph,
    start_cli,
    swap,
    thirds,
    write_partitions,
)
from test_rendezvous import free_port

from retexo.apps import train
from retexo.comm import connections
from retexo.comm.connections import FRAME, HEADER, Link
from retexo.comm.repair import DOOR, NONCE_BYTES, Repairs
from retexo.comm.socket_transport import SocketTransport
from retexo.comm.transport import PeerLost
from retexo.errors import TrainingError
from retexo.settings.compose import compose

ALIVE = 1 << 60
"""bytes after which a connection is not cut"""
SECRET = "of this run"
Secure = Callable[..., socket.socket]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pair = socket.create_connection(listener.getsockname()), listener.accept()[0]
    for end in pair:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return pair


@dataclass
class Wire:
    """Two workers of two nodes, what their parents do, and a proxy that cuts their connections.

    cuts: for one connection after the other, bytes in both directions until it is cut, and whether silently.
    """

    cuts: Sequence[tuple[int, bool]]
    timeout: float = 8.0
    patience: float = 20.0
    """seconds without a byte"""
    reached: bool = True
    """Whether there is a new connection after the cuts of the first."""
    secure: Secure = lambda rank, peer, stream, *_: stream
    """Of each rank, what makes a new connection secure."""
    made: int = 0
    stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> "Wire":
        first = self.connection()
        doors = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        self.doors = [outer for outer, _ in doors]
        self.ends, self.links = [], [Link(1 - rank, stream) for rank, stream in enumerate(first)]
        for rank, link in enumerate(self.links):
            own = {1 - rank: link}
            repairs = Repairs(
                rank, own, doors[rank][1], SECRET, self.timeout, partial(self.secure, rank)
            )
            self.ends.append(SocketTransport(rank, {}, self.patience, own, repairs))
        threading.Thread(target=self._parents, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self.ends, *self.doors):
            each.close()
        self.stack.close()

    def connection(self) -> tuple[socket.socket, socket.socket]:
        (near, first), (second, far) = tcp_pair(), tcp_pair()
        limit, silent = self.cuts[self.made] if self.made < len(self.cuts) else (ALIVE, False)
        self.made += 1
        left, lock = [limit], threading.Lock()
        for pair in ((first, second), (second, first)):
            threading.Thread(
                target=self._pump, args=(*pair, left, lock, silent), daemon=True
            ).start()
        for each in (first, second):
            self.stack.callback(each.close)
        return near, far

    def _pump(
        self,
        source: socket.socket,
        target: socket.socket,
        left: list[int],
        lock: threading.Lock,
        silent: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                with lock:
                    passed, left[0] = content[: max(0, left[0])], left[0] - len(content)
                target.sendall(passed)
                if left[0] < 0 and not silent:
                    for end in (source, target):  # RST
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        end.shutdown(socket.SHUT_RD)
                        end.close()
        if not silent or left[0] >= 0:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)

    def _parents(self) -> None:
        """The one of rank 1 opens connections, the other accepts them."""
        with contextlib.suppress(OSError):
            while self.doors[1].recv(DOOR.size):
                if self.reached:
                    self.hand_over(*self.connection())

    def hand_over(self, *streams: socket.socket) -> None:
        for rank, stream in enumerate(streams):
            socket.send_fds(self.doors[rank], [DOOR.pack(1 - rank, rank == 1)], [stream.fileno()])
            stream.close()

    def run(self, work: Callable[[SocketTransport], Any]) -> list[Any]:
        """What became of work(transport) at both ends: a result, or the exception."""
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(work, end) for end in self.ends]
            return [future.exception() or future.result() for future in futures]


def message(sender: int, number: int, size: int) -> torch.Tensor:
    return (torch.arange(size) * 7 + sender * 31 + number * 5).to(torch.uint8)


def swaps(sizes: Sequence[tuple[int, int]]) -> Callable[[SocketTransport], bool]:
    """Messages of these sizes, from rank 0 and from rank 1; the memory of those that were sent is used again."""

    def work(transport: SocketTransport) -> bool:
        rank = transport.rank
        for number, both in enumerate(sizes):
            own = message(rank, number, both[rank])
            received = swap(transport, [own, own], list(both))
            assert torch.equal(received[1 - rank], message(1 - rank, number, both[1 - rank]))
            own.zero_()
        transport.finish()
        return True

    return work


@pytest.fixture
def whole() -> Iterator[Wire]:
    with Wire([]) as wire:
        yield wire


def test_without_a_cut_nothing_is_sent_again(whole: Wire) -> None:
    assert whole.run(
        swaps([(0, 5), (70_000, 0), (connections.WINDOW + 4_000_000, 1_000_000), (1, 1)])
    ) == [True, True]
    assert whole.made == 1
    assert [end.sent_again for end in whole.ends] == [0, 0]


SIZES = st.tuples(st.sampled_from([0, 1, 3000, 400_000]), st.sampled_from([0, 1, 3000, 400_000]))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(SIZES, min_size=1, max_size=5),
    st.lists(st.integers(0, 600_000), min_size=1, max_size=4),
)
@example([(1, 1)], [0])  # the first byte
@example(
    [(1, 1)] * 3, [FRAME.size, 0, 2 * NONCE_BYTES, 4 * NONCE_BYTES + 5]
)  # in what is said at the taking up
@example([(400_000, 400_000)] * 3, [100_000] * 4)
def test_wherever_it_is_cut(sizes: list[tuple[int, int]], cuts: list[int]) -> None:
    with Wire([(limit, False) for limit in cuts]) as wire:
        assert wire.run(swaps(sizes)) == [True, True]


def test_a_cut_of_the_last_bytes_of_who_has_left() -> None:
    """It has all of the other's, who hears that from the new connection, and nothing else."""
    last = FRAME.size + HEADER.size
    with ThreadPoolExecutor(1) as pool, Wire([(last, False)]) as wire:
        waits = pool.submit(wire.ends[1].finish)
        arrived = select.poll()
        arrived.register(wire.links[0].descriptor, select.POLLIN)
        assert arrived.poll(10_000)
        wire.ends[0].finish()
        waits.result(timeout=10)
        assert wire.made == 2


def test_what_is_sent_again_is_what_was_sent() -> None:
    """Where the connection is taken up before the message has ended, and its memory is used again after."""
    (near, far), (new, other) = tcp_pair(), tcp_pair()
    values = bytearray(b"x" * 50_000)
    link = Link(1, near)
    link.begin([memoryview(values)], [])
    far.sendall(FRAME.pack(0, 0, HEADER.size) + HEADER.pack(0))
    while not link.done:
        link.step()
    link.lose("cut")
    link.take_up(new, 0)
    link.end()
    values[:] = bytes(len(values))
    link.step()
    link.stream.close()
    with other, far:
        received = other.makefile("rb").read()
    assert received.count(b"x") == len(values)


def test_who_takes_up_every_connection_but_sends_nothing_is_lost() -> None:
    with (
        Wire([], timeout=0.4, patience=2.0) as wire,
        pytest.raises(PeerLost, match="no byte from rank 0 for 2 s"),
    ):
        swap(wire.ends[1], [torch.ones(5)] * 2, [5] * 2)
    assert wire.made > 2


@pytest.mark.parametrize("silent", [False, True])
def test_large_messages_that_are_cut_twice(silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what had not arrived is sent again, and no more than the window."""
    window = 1 << 20
    monkeypatch.setattr(connections, "WINDOW", window)
    with Wire([(window, silent), (2 * window, silent)], timeout=2.0) as wire:
        assert wire.run(swaps([(5 * window, 4 * window), (5, 5)])) == [True, True]
        again = [end.sent_again for end in wire.ends]
    assert wire.made >= 3
    assert 0 < sum(again) <= (wire.made - 1) * 2 * window


def test_a_cut_that_is_silent_is_found_by_who_waits() -> None:
    with Wire([(40, True)], timeout=1.0) as wire:
        assert wire.run(swaps([(3000, 3000)] * 2)) == [True, True]
        assert wire.made > 1


@pytest.mark.parametrize("silent", [False, True])
def test_a_cut_for_ever_ends_both(silent: bool) -> None:
    with Wire([(1000, silent)], timeout=0.8, reached=False) as wire:
        errors = wire.run(swaps([(5000, 5000)] * 3))
    assert any(isinstance(error, PeerLost) for error in errors), errors
    said = next(str(error) for error in errors if isinstance(error, PeerLost))
    assert "the connection broke" in said
    assert "was not taken up again within distributed.heartbeat_timeout=0.8 s" in said


def test_who_does_not_know_the_run_takes_nothing_up(
    whole: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    """With the proof of another run, one that was heard before, its own echo, and garbage; the link goes on."""

    def strange(content: Callable[[bytes], bytes]) -> bytes:
        own, other = tcp_pair()
        socket.send_fds(whole.doors[0], [DOOR.pack(1, True)], [other.fileno()])
        other.close()
        with own:
            own.settimeout(20)
            said = own.recv(NONCE_BYTES, socket.MSG_WAITALL)
            with contextlib.suppress(OSError):
                own.sendall(content(said))
                while more := own.recv(1000):
                    said += more
        return said

    heard = os.urandom(2 * NONCE_BYTES)
    for content in (lambda said: heard, lambda said: said + said, lambda said: heard[:5]):
        if len(content(b"")) == 5:
            own, other = tcp_pair()
            socket.send_fds(whole.doors[0], [DOOR.pack(1, True)], [other.fileno()])
            other.close()
            own.close()
        else:
            assert len(strange(content)) == 2 * NONCE_BYTES, "it said how many bytes it has"
    assert whole.run(swaps([(3000, 3000)] * 3)) == [True, True]
    assert whole.made == 1
    assert "it does not know this run, or is not rank 1" in caplog.text


def test_a_member_does_not_take_up_the_link_of_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Though it knows the run; whose link it is takes it up with its own certificate."""
    pytest.importorskip("cryptography")
    from retexo.sites.credentials import read_credentials
    from retexo.sites.tls import Tls, secure_stream

    keys = make_credentials(tmp_path / "keys", "north", "east", "south")
    tls = [Tls(read_credentials(folder, node, 3)) for node, folder in enumerate(keys)]

    def secure(
        rank: int, peer: int, stream: socket.socket, timeout: float, accepted: bool
    ) -> socket.socket:
        return secure_stream(stream, tls[rank], peer, timeout, accepted=accepted)

    with Wire([(1000, False)], secure=secure) as wire:
        own, other = tcp_pair()
        socket.send_fds(wire.doors[0], [DOOR.pack(1, True)], [other.fileno()])
        other.close()
        with own, pytest.raises(PeerLost, match="it closed the connection"):
            secure_stream(own, tls[2], 0, 20.0, accepted=True)
        assert wire.run(swaps([(3000, 3000)] * 3)) == [True, True]
        assert wire.made > 1
    assert "it has the certificate of south, node 2, not of east, node 1" in caplog.text


def stepped(link: Link) -> None:
    while True:
        link.step()


def test_an_end_that_says_it_has_what_was_never_sent_is_refused() -> None:
    link = Link(1, tcp_pair()[0])
    link.lose("cut")
    with pytest.raises(PeerLost, match="rank 1 has 5 bytes of the 0 that were sent"):
        link.take_up(tcp_pair()[0], 5)
    near, far = tcp_pair()
    link = Link(1, near)
    link.begin([], [memoryview(bytearray(3))])
    far.sendall(FRAME.pack(7, 0, 3))
    with pytest.raises(PeerLost, match="rank 1 sends byte 7 of the link, not 0"):
        stepped(link)


@pytest.mark.parametrize("announced", [0, 2, 2**63])
def test_a_message_of_another_size_over_a_link_is_refused(announced: int) -> None:
    near, far = tcp_pair()
    link = Link(1, near)
    link.begin([], [memoryview(bytearray(3))])
    far.sendall(FRAME.pack(0, 0, HEADER.size + 2) + HEADER.pack(announced) + bytes(2))
    with pytest.raises(TrainingError, match=f"rank 1 sends {announced} bytes, not 3"):
        stepped(link)


class Proxy:
    """Takes connections for a port, and cuts all of them whenever so many more bytes have gone through."""

    def __init__(self, port: int, every: int, cuts: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port, self._to = self.listener.getsockname()[1], port
        self._every, self.cuts_left = every, cuts
        self._passed, self._lock = 0, threading.Lock()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                try:
                    far = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 14):
                with self._lock:
                    self._passed += len(content)
                    if self.cuts_left and self._passed > self._every:
                        self._passed, self.cuts_left = 0, self.cuts_left - 1
                        for end in self._ends:
                            end.setsockopt(
                                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                            )
                            end.shutdown(socket.SHUT_RDWR)
                            end.close()
                        self._ends = []
                        return
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    "secure",
    [True, pytest.param(False, marks=pytest.mark.long("what is secured has the same way"))],
)
def test_a_run_whose_connections_are_cut(secure: bool, tmp_path: Path) -> None:
    """All of them, three times: those of the parents and of the workers. Result and counted bytes are the same."""
    graph = random_graph(60, 240, width=300)
    write_partitions(tmp_path, graph, thirds(60), [node % 5 % 3 for node in range(60)], 3)
    common = [
        "app=train",
        "dataset_name=file",
        "dataset_file=toy.npz",
        "num_partitions=3",
        "num_rounds=[30]",
        "stopping=none",
        "exchange.precision=fp32",
        "gradient.compression=none",
        "gradient.precision=fp32",
        "hidden_dim=8",
        "cluster.threads=1",
        "device=cpu",
        f"partition_dir={tmp_path}",
    ]
    alone = train.run(compose([*common, "distributed.backend=sockets"]), tmp_path / "alone")
    nodes = ["parts_per_node=2", "distributed.backend=sockets", "distributed.interface=lo"]
    if secure:
        keys = make_credentials(tmp_path / "keys", "north", "east")
        own = [[*nodes, f"distributed.credentials={keys[node]}"] for node in (0, 1)]
    else:
        own = [[*nodes, "distributed.tls=false"]] * 2
    port = free_port()
    proxy = Proxy(port, 60_000, 3)
    processes = [
        start_cli(
            *common,
            *own[node],
            f"node_rank={node}",
            f"distributed.master_port={(port, proxy.port)[node]}",
            f"hydra.run.dir={tmp_path}/run{node}",
            cwd=tmp_path,
        )
        for node in (0, 1)
    ]
    ended = [finish(process) for process in processes]
    proxy.listener.close()
    assert [each.rc for each in ended] == [0, 0], ended[0].output + ended[1].output
    assert not proxy.cuts_left
    summary = json.loads((tmp_path / "run0" / "summary.json").read_text())
    assert sum(summary["sent_again_bytes"]) > 0
    assert "was taken up again" in ended[0].output
    assert summary["bytes"] == alone["bytes"]
    for layer in ("layer0.safetensors", "layer1.safetensors"):
        first, second = (
            (tmp_path / name / "checkpoint" / layer).read_bytes() for name in ("run0", "alone")
        )
        assert first == second
