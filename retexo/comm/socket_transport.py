"""A transport over sockets: one stream for each pair of workers, and one loop over all of them.

A message is its length in bytes, an unsigned 64-bit integer in little-endian order, followed by
the values. An empty message is not sent. Streams to workers of other nodes may be TLS streams.
"""

import select
import socket
import ssl
import struct
import time
from collections.abc import Mapping, Sequence

from retexo.comm.received import REMEDY
from retexo.comm.transport import PeerLost, Pieces
from retexo.errors import TrainingError

HEADER = struct.Struct("<Q")
LOCAL_SEND_BUFFER = 1 << 20
"""Bytes that the kernel holds for a worker of the same node until it reads them.

The default is 200 KiB, half of what a round's gradient of 1.5 MB sends to each of three peers.
"""
TLS_RECORD = 1 << 14
"""Bytes of the largest TLS record."""
TLS_WRITE = 1 << 18
"""Bytes that one call encrypts."""
Streams = Mapping[int, socket.socket]
"""Connections of one worker to all others, by rank."""
StreamsByRank = dict[int, dict[int, socket.socket]]
"""Streams of each worker of this node, by its rank."""


class SocketTransport:
    """A worker's end, as a retexo.comm.transport.Transport."""

    def __init__(self, rank: int, streams: Streams, timeout: float) -> None:
        """Args:
        timeout: seconds without a byte after which a peer counts as lost.
        """
        self._streams, self._timeout = streams, timeout
        self.rank, self.world_size = rank, len(streams) + 1
        self._has_tls = any(isinstance(stream, ssl.SSLSocket) for stream in streams.values())
        for stream in streams.values():
            if isinstance(stream, ssl.SSLSocket):
                stream.setblocking(False)
                continue
            limit = struct.pack("ll", int(timeout), int(timeout % 1 * 1e6))
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            if stream.family == socket.AF_UNIX:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_SEND_BUFFER)
            stream.setblocking(True)

    def swap(self, outgoing: list[Pieces], incoming: Sequence[Pieces]) -> None:
        """Send a message to each peer and receive one from each, uncopied (Transport.swap)."""
        transfers = [
            _make_transfer(peer, stream, _views(outgoing[peer]), _views(incoming[peer]))
            for peer, stream in self._streams.items()
        ]
        for transfer in transfers:
            transfer.send()
        if self._has_tls or any(transfer.to_send for transfer in transfers):
            self._run(transfers)
        else:  # nothing left to send: one blocking call per message instead of `poll` and a call
            for transfer in transfers:
                transfer.receive_all(self._timeout)

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()

    def _run(self, waiting: Sequence["_Transfer"]) -> None:
        """Send and receive whatever is possible until all transfers are done.

        PeerLost if no byte moves for the timeout.
        """
        ready, last_progress = waiting, time.monotonic()
        while True:
            for transfer in ready:
                transfer.step()
            waiting = [transfer for transfer in waiting if not transfer.done]
            if not waiting:
                return
            poll = select.poll()
            by_descriptor = {transfer.descriptor: transfer for transfer in waiting}
            for descriptor, transfer in by_descriptor.items():
                poll.register(descriptor, transfer.events)
            events = poll.poll(1000 * self._timeout)
            ready, now = [by_descriptor[descriptor] for descriptor, _ in events], time.monotonic()
            last_progress = now if ready else last_progress
            if now - last_progress >= self._timeout:
                peers = ", ".join(str(transfer.peer) for transfer in waiting)
                raise PeerLost(f"no byte from rank {peers} for {self._timeout:g} s")


class _Transfer:
    """One message to a peer and one message from it."""

    def __init__(
        self,
        peer: int,
        stream: socket.socket,
        outgoing: list[memoryview],
        incoming: list[memoryview],
    ) -> None:
        """Prepare a message each way, with its length before it; an empty list: none this way."""
        self.peer, self._stream = peer, stream
        self._expected, self._header = sum(map(len, incoming)), bytearray(HEADER.size)
        self.to_send = (
            [memoryview(HEADER.pack(sum(map(len, outgoing)))), *outgoing] if outgoing else []
        )
        self._to_receive = [memoryview(self._header), *incoming] if incoming else []
        self._num_pieces = len(incoming)

    @property
    def done(self) -> bool:
        return not self.to_send and not self._to_receive

    @property
    def descriptor(self) -> int:
        return self._stream.fileno()

    @property
    def events(self) -> int:
        """Return the events that `poll` has to wait for."""
        return (select.POLLOUT if self.to_send else 0) | (select.POLLIN if self._to_receive else 0)

    def step(self) -> None:
        """Send and receive without waiting; PeerLost at the end of the stream."""
        self.send()
        if self._to_receive:
            self._receive(socket.MSG_DONTWAIT)

    def send(self) -> None:
        """Send as much as the stream takes without waiting."""
        try:
            if self.to_send:
                _advance(self.to_send, self._stream.sendmsg(self.to_send, (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._peer_lost(error) from error

    def receive_all(self, timeout: float) -> None:
        """Wait for the whole message; PeerLost after `timeout` seconds without a byte."""
        while self._to_receive:
            if not self._receive(0):
                raise PeerLost(f"no byte from rank {self.peer} for {timeout:g} s")

    def _receive(self, flags: int) -> int:
        """Receive what one system call gives; return the number of bytes. flags: of recvmsg."""
        try:
            count = self._stream.recvmsg_into(self._to_receive, 0, flags)[0]
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._peer_lost(error) from error
        return self._count_received(count)

    def _count_received(self, count: int) -> int:
        """Note received bytes; PeerLost if there are none, because the connection was closed."""
        if not count:
            raise PeerLost(f"rank {self.peer} closed its connection")
        _advance(self._to_receive, count)
        if len(self._to_receive) <= self._num_pieces:
            self._check_length()
        return count

    def _check_length(self) -> None:
        """Raise TrainingError where the message has another length than this worker expects."""
        (announced,) = HEADER.unpack(self._header)
        if announced != self._expected:
            raise TrainingError(
                f"rank {self.peer} sends {announced} bytes, not {self._expected}; {REMEDY}"
            )

    def _peer_lost(self, error: OSError) -> PeerLost:
        """Return the error for a broken connection, with the peer's rank."""
        return PeerLost(f"rank {self.peer}: {error.strerror or error}")


class _TlsTransfer(_Transfer):
    """One message to a peer and one from it over TLS, whose sockets take one buffer at a time."""

    def __init__(
        self,
        peer: int,
        stream: socket.socket,
        outgoing: list[memoryview],
        incoming: list[memoryview],
    ) -> None:
        """Join the first TLS_RECORD bytes, so that a short message goes in one record."""
        super().__init__(peer, stream, outgoing, incoming)
        if self.to_send:  # a short message goes in one record
            first = b"".join(piece[:TLS_RECORD] for piece in self.to_send)[:TLS_RECORD]
            _advance(self.to_send, len(first))
            self.to_send.insert(0, memoryview(first))

    def send(self) -> None:
        """Send as much as the stream takes without waiting, or PeerLost."""
        try:
            while self.to_send:  # after SSLWantWriteError, TLS has to get the same bytes again
                _advance(self.to_send, self._stream.send(self.to_send[0][:TLS_WRITE]))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            raise self._peer_lost(error) from error

    def _receive(self, flags: int) -> int:
        """Receive until nothing is left: `poll` does not see what TLS has already decrypted.

        flags: without effect. Returns the number of bytes.
        """
        total = 0
        try:
            while self._to_receive:
                total += self._count_received(self._stream.recv_into(self._to_receive[0]))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            raise self._peer_lost(error) from error
        return total


def _make_transfer(
    peer: int, stream: socket.socket, outgoing: list[memoryview], incoming: list[memoryview]
) -> _Transfer:
    kind = _TlsTransfer if isinstance(stream, ssl.SSLSocket) else _Transfer
    return kind(peer, stream, outgoing, incoming)


def _advance(buffers: list[memoryview], count: int) -> None:
    """Drop the first `count` bytes and every buffer that has none left."""
    while buffers and count >= len(buffers[0]):
        count -= len(buffers.pop(0))
    if count:
        buffers[0] = buffers[0][count:]


def _views(pieces: Pieces) -> list[memoryview]:
    """Return the memory of a message."""
    return [piece.data for piece in pieces if len(piece)]
