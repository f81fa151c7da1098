"""Sockets between the workers of a run, plain or with TLS: a stream for each pair, and one loop over all of them.

A message is its length in bytes, 8 of them in little-endian order, and then the values.
"""

import select
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from retexo.comm.transport import PeerLost

HEADER = struct.Struct("<Q")
RECORD = 1 << 14
"""bytes of the largest record of TLS"""
CHUNK = 16 * RECORD
"""bytes that TLS is given at once"""
Streams = Mapping[int, socket.socket]
"""The connections of one worker to all others, by rank."""


@contextmanager
def socket_transport(rank: int, streams: Streams, timeout: float) -> Iterator["SocketTransport"]:
    """The transport of a worker, whose streams are closed at the end."""
    try:
        yield SocketTransport(rank, streams, timeout)
    finally:
        for stream in streams.values():
            stream.close()


class SocketTransport:
    """A worker's end, as a retexo.comm.transport.Transport."""

    def __init__(self, rank: int, streams: Streams, timeout: float) -> None:
        """timeout: seconds without a byte after which a peer counts as lost."""
        self.rank, self.world_size = rank, len(streams) + 1
        self._streams, self._timeout = streams, timeout
        for stream in streams.values():
            stream.setblocking(False)
            if stream.family != socket.AF_UNIX:
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def swap(self, to_peers: list[Tensor], from_sizes: Sequence[int]) -> list[Tensor]:
        """See Transport.swap."""
        dtype = to_peers[self.rank].dtype
        received = [torch.empty(size, dtype=dtype) for size in from_sizes]
        received[self.rank] = to_peers[self.rank].clone()
        transfers = [
            (_TlsTransfer if isinstance(stream, ssl.SSLSocket) else _Transfer)(
                peer, stream, to_peers[peer], received[peer]
            )
            for peer, stream in self._streams.items()
        ]
        to_peers.clear()
        self._run({transfer.stream.fileno(): transfer for transfer in transfers})
        return received

    def _run(self, transfers: dict[int, "_Transfer"]) -> None:
        """Send and receive whatever can be, until all is done."""
        poll = select.poll()
        ready = [(descriptor, select.POLLOUT) for descriptor in transfers]
        while transfers:
            for descriptor, events in ready:
                transfer = transfers[descriptor]
                transfer.step(events)
                poll.register(descriptor, transfer.events)
                if not transfer.events:  # what comes next belongs to the next message
                    poll.unregister(descriptor)
                    del transfers[descriptor]
            if transfers:
                ready = poll.poll(1000 * self._timeout)
                if not ready:
                    peers = ", ".join(str(transfer.peer) for transfer in transfers.values())
                    raise PeerLost(f"no byte from rank {peers} for {self._timeout:g} s")


class _Transfer:
    """A message to a peer, and the one that comes from it."""

    def __init__(self, peer: int, stream: socket.socket, outgoing: Tensor, incoming: Tensor) -> None:
        self.peer, self.stream = peer, stream
        self._outgoing, self._incoming = _bytes_of(outgoing), _bytes_of(incoming)
        self._expected, self._header = len(self._incoming), bytearray(HEADER.size)
        self._to_send = [memoryview(HEADER.pack(len(self._outgoing))), self._outgoing]
        self._to_come = [memoryview(self._header), self._incoming]

    @property
    def events(self) -> int:
        """What `poll` has to wait for."""
        return (select.POLLOUT if self._to_send else 0) | (select.POLLIN if self._to_come else 0)

    def step(self, events: int) -> None:
        """Send and receive what can be without waiting; PeerLost at the end of the stream."""
        try:
            if events & ~select.POLLIN and self._to_send:
                self._send()
            if events & ~select.POLLOUT and self._to_come:
                self._receive()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            raise PeerLost(f"rank {self.peer}: {error.strerror}") from error

    def _send(self) -> None:
        _advance(self._to_send, self.stream.sendmsg(self._to_send))

    def _receive(self) -> None:
        self._came(self.stream.recvmsg_into(self._to_come)[0])

    def _came(self, count: int) -> None:
        if not count:
            raise PeerLost(f"rank {self.peer} closed its connection")
        _advance(self._to_come, count)
        self._check_header()

    def _check_header(self) -> None:
        if len(self._to_come) < 2:
            (announced,) = HEADER.unpack(self._header)
            assert announced == self._expected, f"rank {self.peer} sends {announced} bytes, not {self._expected}"


class _TlsTransfer(_Transfer):
    """The same where the stream has TLS, which gives out a record at a time, and sends whole chunks."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        start = RECORD - HEADER.size  # one record, and one packet, for a short message
        joined = b"".join((self._to_send[0], self._outgoing[:start]))
        self._to_send = [memoryview(joined), *([self._outgoing[start:]] if len(self._outgoing) > start else [])]

    def _send(self) -> None:
        while self._to_send:  # once it would wait, TLS wants the same chunk again
            _advance(self._to_send, self.stream.send(self._to_send[0][:CHUNK]))

    def _receive(self) -> None:
        while self._to_come:  # until it would wait: what TLS holds of a record, poll does not see
            self._came(self.stream.recv_into(self._to_come[0]))


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a 1-D tensor."""
    return tensor.detach().contiguous().view(torch.uint8).numpy().data


def _advance(buffers: list[memoryview], count: int) -> None:
    """Drop the first `count` bytes, and every buffer that has none left."""
    while buffers and count >= len(buffers[0]):
        count -= len(buffers.pop(0))
    if count:
        buffers[0] = buffers[0][count:]
