"""Sockets between the workers of a run: a stream for each pair, and one loop over all of them.

Between workers of one node, which nothing can come between, a message is its length in bytes, 8 of them in
little-endian order, and then the values; an empty one is not sent. Between nodes see retexo.comm.connections.
"""

import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from retexo.comm.connections import HEADER, Link, advance, check_length
from retexo.comm.repair import Repairs
from retexo.comm.transport import PeerLost, Pieces

WAITING_BYTES = 1 << 20
"""Of a message to a worker of this node, that the kernel may hold until it is read, while its sender goes on; by
itself it holds 200 KiB, half of what a round's gradient of 1.5 MB sends each of three others."""
Streams = Mapping[int, socket.socket]
"""The connections of one worker to all others, by rank; at its own, where there are other nodes, the door to its parent
(retexo.comm.repair)."""


@contextmanager
def socket_transport(transport: "SocketTransport") -> Iterator["SocketTransport"]:
    """A worker's transport, whose connections are closed at the end."""
    try:
        yield transport
        transport.finish()
    finally:
        transport.close()


class SocketTransport:
    """A worker's end, as a retexo.comm.transport.Transport."""

    def __init__(
        self,
        rank: int,
        streams: Streams,
        timeout: float,
        links: Mapping[int, Link] | None = None,
        repairs: Repairs | None = None,
    ) -> None:
        """streams: to workers of this node. timeout: seconds without a byte after which a peer counts as lost."""
        self._links, self._repairs, self._streams, self._timeout = (
            links or {},
            repairs,
            streams,
            timeout,
        )
        self.rank, self.world_size = rank, len(streams) + len(self._links) + 1
        for stream in streams.values():
            limit = struct.pack("ll", int(timeout), int(timeout % 1 * 1e6))
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WAITING_BYTES)
            stream.setblocking(True)

    @property
    def sent_again(self) -> int:
        """Bytes that went a second time because a connection broke."""
        return sum(link.sent_again for link in self._links.values())

    def swap(self, outgoing: list[Pieces], incoming: Sequence[Pieces]) -> None:
        """See Transport.swap; nothing is copied."""
        transfers = [
            _Transfer(peer, stream, _views(outgoing[peer]), _views(incoming[peer]))
            for peer, stream in self._streams.items()
        ]
        for peer, link in self._links.items():
            link.begin(_views(outgoing[peer]), _views(incoming[peer]))
        for transfer in transfers:
            transfer.send()
        if self._links or any(transfer.to_send for transfer in transfers):
            self._run([*transfers, *self._links.values()])
        else:  # nobody waits for this worker: a call for each message, instead of `poll` and a call
            for transfer in transfers:
                transfer.receive(self._timeout)
        for link in self._links.values():
            link.end()

    def finish(self) -> None:
        """Stay until the workers of other nodes have all that this one sent."""
        if self._repairs is None:
            return
        self._repairs.closing = True
        for link in self._links.values():
            link.begin_last()
        self._run(list(self._links.values()))

    def close(self) -> None:
        if self._repairs is not None:
            self._repairs.end()
        for stream in (*self._streams.values(), *(link.stream for link in self._links.values())):
            stream.close()

    def _run(self, waiting: Sequence["_Transfer | Link"]) -> None:
        """Send and receive whatever can be, until all is done."""
        ready, moved = waiting, time.monotonic()
        looked = moved
        while True:
            for transfer in ready:
                transfer.step()
            waiting = [transfer for transfer in waiting if not transfer.done]
            if not waiting:
                return
            for link in self._links.values():
                if link.broken_since is not None:
                    if self._repairs is None:
                        raise PeerLost(f"rank {link.peer}: {link.why}")
                    self._repairs.ask(link)
            (ready, taken_up), now = self._wait(waiting), time.monotonic()
            moved = now if ready else moved  # a link that was taken up has not moved a byte yet
            ready = waiting if taken_up else ready
            if now - moved >= self._timeout:
                peers = ", ".join(str(transfer.peer) for transfer in waiting)
                raise PeerLost(f"no byte from rank {peers} for {self._timeout:g} s")
            if self._repairs is not None and now - looked >= self._repairs.interval:
                self._repairs.check(
                    [transfer for transfer in waiting if isinstance(transfer, Link)]
                )
                looked = now

    def _wait(
        self, waiting: Sequence["_Transfer | Link"]
    ) -> tuple[Sequence["_Transfer | Link"], bool]:
        """Those that can go on, none after a while; and whether a link was taken up again."""
        poll, seconds, repairs = select.poll(), self._timeout, self._repairs
        at = {transfer.descriptor: transfer for transfer in waiting}
        for descriptor, transfer in at.items():
            if descriptor >= 0:
                poll.register(descriptor, transfer.events)
        if repairs is not None:
            poll.register(repairs.bell, select.POLLIN)
            seconds = min(seconds, repairs.interval)
        ready = [descriptor for descriptor, _ in poll.poll(1000 * seconds)]
        taken_up = False
        if repairs is not None and repairs.bell.fileno() in ready:
            taken_up = bool(repairs.bell.recv(64))
        return [at[descriptor] for descriptor in ready if descriptor in at], taken_up


class _Transfer:
    """A message to a worker of this node, and the one that comes from it."""

    def __init__(
        self,
        peer: int,
        stream: socket.socket,
        outgoing: list[memoryview],
        incoming: list[memoryview],
    ) -> None:
        self.peer, self._stream = peer, stream
        self._expected, self._header = sum(map(len, incoming)), bytearray(HEADER.size)
        self.to_send = (
            [memoryview(HEADER.pack(sum(map(len, outgoing)))), *outgoing] if outgoing else []
        )
        self._to_come = [memoryview(self._header), *incoming] if incoming else []
        self._pieces = len(incoming)

    @property
    def done(self) -> bool:
        return not self.to_send and not self._to_come

    @property
    def descriptor(self) -> int:
        return self._stream.fileno()

    @property
    def events(self) -> int:
        """What `poll` has to wait for."""
        return (select.POLLOUT if self.to_send else 0) | (select.POLLIN if self._to_come else 0)

    def step(self) -> None:
        """Send and receive what can be without waiting; PeerLost at the end of the stream."""
        self.send()
        if self._to_come:
            self._receive(socket.MSG_DONTWAIT)

    def send(self) -> None:
        """As much as the stream takes."""
        try:
            if self.to_send:
                advance(self.to_send, self._stream.sendmsg(self.to_send, (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            pass
        except OSError as error:
            raise PeerLost(f"rank {self.peer}: {error.strerror}") from error

    def receive(self, timeout: float) -> None:
        """All of it."""
        while self._to_come:
            if not self._receive(0):
                raise PeerLost(f"no byte from rank {self.peer} for {timeout:g} s")

    def _receive(self, flags: int) -> int:
        """How many bytes came."""
        try:
            count = self._stream.recvmsg_into(self._to_come, 0, flags)[0]
        except BlockingIOError:
            return 0
        except OSError as error:
            raise PeerLost(f"rank {self.peer}: {error.strerror}") from error
        if not count:
            raise PeerLost(f"rank {self.peer} closed its connection")
        advance(self._to_come, count)
        if len(self._to_come) <= self._pieces:
            check_length(self.peer, self._header, self._expected)
        return count


def _views(pieces: Pieces) -> list[memoryview]:
    """The memory of a message."""
    return [piece.data for piece in pieces if len(piece)]
