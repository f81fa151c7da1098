"""A transport over sockets: one stream for each pair of workers, and one loop over all of them.

A message is its length in bytes, an unsigned 64-bit integer in little-endian order, followed by
the values. An empty message is not sent. Streams to workers of other nodes may be TLS streams.
"""

import select
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence

from retexo.comm.received import REMEDY
from retexo.comm.transport import PeerLost, Pieces
from retexo.errors import TrainingError

HEADER = struct.Struct("<Q")
LOCAL_SEND_BUFFER = 1 << 20
"""Bytes that the kernel holds for a worker of the same node until it reads them.

The default is 200 KiB, half of what a round's gradient of 1.5 MB sends to each of three peers.
"""
FIRST_BYTES = 1 << 14
"""Bytes of a message that are sent at once with its length: the largest TLS record."""
MAX_WRITE = 1 << 18
"""Bytes that one call sends, and TLS encrypts."""
NOT_READY = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
Streams = Mapping[int, socket.socket]
"""Connections of one worker to all others, by rank."""
StreamsByRank = dict[int, dict[int, socket.socket]]
"""Streams of each worker of this node, by its rank."""


class SocketTransport:
    """A worker's end, as a retexo.comm.transport.Transport."""

    def __init__(self, rank: int, streams: Streams, timeout: float) -> None:
        """Make the streams non-blocking; those within the node get a larger send buffer.

        timeout: seconds without a byte after which a peer counts as lost.
        """
        self._streams, self._timeout = streams, timeout
        self.rank, self.world_size = rank, len(streams) + 1
        for stream in streams.values():
            stream.setblocking(False)
            if stream.family == socket.AF_UNIX:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_SEND_BUFFER)

    def swap(self, outgoing: list[Pieces], incoming: Sequence[Pieces]) -> None:
        """Send a message to each peer and receive one from each, uncopied (Transport.swap).

        PeerLost if no byte moves for the timeout or a stream fails, TrainingError for a message of
        another length.
        """
        waiting = [
            _Transfer(peer, stream, _views(outgoing[peer]), _views(incoming[peer]))
            for peer, stream in self._streams.items()
        ]
        while True:
            for transfer in waiting:
                transfer.step()
            waiting = [transfer for transfer in waiting if transfer.events]
            if not waiting:
                return
            # Once all is sent, one peer after the other: every arrival would wake this process.
            sending = any(transfer.events & select.POLLOUT for transfer in waiting)
            watched, poll = waiting if sending else waiting[:1], select.poll()
            for transfer in watched:
                poll.register(transfer.stream, transfer.events)
            if not poll.poll(1000 * self._timeout):
                peers = ", ".join(str(transfer.peer) for transfer in watched)
                raise PeerLost(f"no byte from rank {peers} for {self._timeout:g} s")

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()


class _Transfer:
    """One message to a peer and one message from it, over TCP, a socket pair or TLS."""

    def __init__(
        self,
        peer: int,
        stream: socket.socket,
        outgoing: list[memoryview],
        incoming: list[memoryview],
    ) -> None:
        """Prepare a message each way, with its length before it; an empty list: none this way."""
        self.peer, self.stream = peer, stream
        self._expected, self._header = sum(map(len, incoming)), bytearray(HEADER.size)
        self._to_send, self._to_receive = list(outgoing), list(incoming)
        if outgoing:  # a short message goes in one packet
            header = memoryview(HEADER.pack(sum(map(len, outgoing))))
            first = b"".join(piece[:FIRST_BYTES] for piece in (header, *outgoing))[:FIRST_BYTES]
            _advance(self._to_send, len(first) - HEADER.size)
            self._to_send.insert(0, memoryview(first))
        if incoming:
            self._to_receive.insert(0, memoryview(self._header))
        self._num_pieces = len(incoming)

    @property
    def events(self) -> int:
        """Return the events that `poll` has to wait for; 0 once both messages are complete."""
        return (select.POLLOUT if self._to_send else 0) | (select.POLLIN if self._to_receive else 0)

    def step(self) -> None:
        """Send and receive without waiting.

        PeerLost if the stream fails or has ended, TrainingError for a message of another length.
        """
        for transfer in (self._send, self._receive):
            try:
                transfer()
            except NOT_READY:
                pass
            except OSError as error:
                raise PeerLost(f"rank {self.peer}: {error.strerror or error}") from error

    def _send(self) -> None:
        """Send as much as the stream takes without waiting."""
        while self._to_send:  # after SSLWantWriteError, TLS has to get the same bytes again
            _advance(self._to_send, self.stream.send(self._to_send[0][:MAX_WRITE]))

    def _receive(self) -> None:
        """Receive until nothing is left: `poll` does not see what TLS has already decrypted.

        PeerLost at the end of the stream, TrainingError for a message of another length.
        """
        while self._to_receive:
            count = self.stream.recv_into(self._to_receive[0])
            if not count:
                raise PeerLost(f"rank {self.peer} closed its connection")
            _advance(self._to_receive, count)
            if len(self._to_receive) <= self._num_pieces:
                self._check_length()

    def _check_length(self) -> None:
        """Raise TrainingError where the message has another length than this worker expects."""
        (announced,) = HEADER.unpack(self._header)
        if announced != self._expected:
            raise TrainingError(
                f"rank {self.peer} sends {announced} bytes, not {self._expected}; {REMEDY}"
            )


def _advance(buffers: list[memoryview], count: int) -> None:
    """Drop the first `count` bytes and every buffer that has none left."""
    while buffers and count >= len(buffers[0]):
        count -= len(buffers.pop(0))
    if count:
        buffers[0] = buffers[0][count:]


def _views(pieces: Pieces) -> list[memoryview]:
    """Return the memory of a message."""
    return [piece.data for piece in pieces if len(piece)]
