"""The stream between workers of two nodes: numbered frames, so that a connection that breaks is taken up again.

A frame is the place of its first byte in all that was ever sent over the link, the bytes that have come from the other
end so far, and its length, in little-endian order; then its bytes. What the other end has not acknowledged is kept, at
most WINDOW bytes, and sent again over the next connection.
"""

import select
import socket
import ssl
import struct
import threading
import time
from collections import deque

from retexo.comm.received import REMEDY
from retexo.comm.transport import PeerLost
from retexo.errors import TrainingError

FRAME = struct.Struct("<QQI")
HEADER = struct.Struct("<Q")
"""A message begins with its length in bytes."""
WINDOW = 1 << 24
"""bytes that are not acknowledged"""
PIECE = 1 << 18
"""bytes of the longest frame"""
RECORD = 1 << 14
"""bytes of the largest record of TLS"""


class Link:
    """One end; `step` is called by one thread, and others may put a new connection in."""

    def __init__(self, peer: int, stream: socket.socket) -> None:
        self.peer, self.stream = peer, stream
        self.broken_since: float | None = None
        """On the clock of time.monotonic; None: the connection stands."""
        self.why = ""
        self.heard = time.monotonic()
        """When the last byte came, or the message began."""
        self.sent_again = 0
        """bytes"""
        self._lock = threading.Lock()
        self._pending: deque[memoryview] = deque()
        self._kept: deque[memoryview] = deque()
        """What was sent, but not acknowledged."""
        self._sent = self._acknowledged = self._received = self._told = 0
        """Bytes since the link was made; of those that came, `_told` were acknowledged."""
        self._hasten = self._last = False
        self._out: list[memoryview] = []
        """Frames on their way into the connection."""
        self._to_come: list[memoryview] = []
        self._head = memoryview(b"")
        """What is yet to come of the head of a frame."""
        self._use(stream)

    # --- a message each way ---

    def begin(self, outgoing: list[memoryview], incoming: list[memoryview]) -> None:
        """Send this message, and receive one of this length, both in pieces that are not empty."""
        with self._lock:
            first = (
                RECORD - FRAME.size - HEADER.size
            )  # one record of TLS, and one packet, for a short message
            start, rest = b"".join(piece[:first] for piece in outgoing)[:first], list(outgoing)
            advance(rest, len(start))
            self._pending.extend([memoryview(HEADER.pack(sum(map(len, outgoing))) + start), *rest])
            self._expected, self._announced = sum(map(len, incoming)), bytearray(HEADER.size)
            self._to_come = [memoryview(self._announced), *incoming]
            self.heard = time.monotonic()

    def begin_last(self) -> None:
        """An empty message, with which the other end shows that it has all the others.

        Done as soon as either has come from the other end, that message or word that it has all of this end's: it may
        have left by then, and not know that its own was lost.
        """
        self.begin([], [])
        self._last = True

    def end(self) -> None:
        """What may be sent again is copied: whoever gave messages may change them now."""
        with self._lock:  # where the link was just taken up, all of it is pending
            self._pending, self._kept = (
                deque(memoryview(bytes(piece)) for piece in pieces)
                for pieces in (self._pending, self._kept)
            )

    @property
    def done(self) -> bool:
        if self._last and not (self._pending or self._kept):
            return True
        return not (self._pending or self._out or self._to_come)

    @property
    def descriptor(self) -> int:
        """-1: the connection is broken."""
        return -1 if self.broken_since is not None else self.stream.fileno()

    @property
    def events(self) -> int:
        """What `poll` has to wait for."""
        return select.POLLIN | (select.POLLOUT if self._out else 0)

    def acknowledge(self) -> None:
        """Let the other end know that bytes arrive, however few."""
        self._hasten = True
        self.step()

    def step(self) -> None:
        """Send and receive what can be without waiting; at an error the link is broken."""
        with self._lock:
            for move in (self._receive, self._send):  # what comes may allow more to be sent
                try:
                    if self.broken_since is None:
                        move()
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    pass
                except OSError as error:
                    self._break(error.strerror or str(error))

    def _send(self) -> None:
        while self._out or self._next_frame():
            piece = self._out[0]  # once it would wait, TLS wants the same bytes again
            count = self.stream.send(piece[:PIECE])
            if count == len(piece):
                self._out.pop(0)
            else:
                self._out[0] = piece[count:]

    def _next_frame(self) -> bool:
        """Whether there is one that may be sent."""
        size = min(PIECE, WINDOW - self._sent + self._acknowledged)
        due = self._received - self._told >= (1 if self._hasten else WINDOW // 4)
        if not (self._pending and size) and not due:
            return False
        piece = self._pending.popleft() if self._pending and size else memoryview(b"")
        if len(piece) > size:
            self._pending.appendleft(piece[size:])
            piece = piece[:size]
        header = FRAME.pack(self._sent, self._received, len(piece))
        self._told, self._hasten, first = self._received, False, RECORD - FRAME.size
        self._out = [memoryview(b"".join((header, piece[:first])))]
        if len(piece) > first:
            self._out.append(piece[first:])
        if len(piece):
            self._sent += len(piece)
            self._kept.append(piece)
        return True

    def _receive(self) -> None:
        while not self.done:
            if self._head or not self._left:
                self._read_head()
            elif self._to_come:
                self._read_values()
            else:
                return  # this belongs to the next message

    def _read(self, place: memoryview) -> int:
        count = self.stream.recv_into(place)
        if not count:
            raise ConnectionError("it closed the connection")
        self.heard = time.monotonic()
        return count

    def _read_head(self) -> None:
        self._head = self._head or memoryview(self._frame)
        self._head = self._head[self._read(self._head) :]
        if not self._head:
            place, acknowledged, self._left = FRAME.unpack(self._frame)
            if place != self._received:
                raise PeerLost(
                    f"rank {self.peer} sends byte {place} of the link, not {self._received}"
                )
            self._forget(acknowledged)

    def _read_values(self) -> None:
        place = self._to_come[0]
        count = self._read(place[: self._left])
        self._received += count
        self._left -= count
        if count < len(place):
            self._to_come[0] = place[count:]
            return
        del self._to_come[0]
        check_length(self.peer, self._announced, self._expected)

    def _forget(self, acknowledged: int) -> None:
        """Drop what has arrived at the other end."""
        if not self._acknowledged <= acknowledged <= self._sent:
            raise PeerLost(
                f"rank {self.peer} has {acknowledged} bytes of the {self._sent} that were sent"
            )
        count, self._acknowledged = acknowledged - self._acknowledged, acknowledged
        while count:
            piece = self._kept.popleft()
            if len(piece) > count:
                self._kept.appendleft(piece[count:])
            count -= min(count, len(piece))

    # --- one connection after the other ---

    def lose(self, why: str) -> int:
        """Give the connection up; how many bytes have come over it and those before."""
        with self._lock:
            self._break(why)
            return self._received

    def take_up(self, stream: socket.socket, received: int) -> int:
        """Go on over a new connection, to an end that has so many bytes; how many are sent again.

        PeerLost where that cannot be.
        """
        with self._lock:
            self._forget(received)
            again, self._sent = self._sent - received, received
            self._pending = self._kept + self._pending
            self._kept = deque()
            self.sent_again += again
            self._use(stream)
            return again

    def _use(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        if stream.family != socket.AF_UNIX:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream, self.broken_since, self.heard = stream, None, time.monotonic()
        self._frame, self._head, self._left = bytearray(FRAME.size), memoryview(b""), 0
        self._told = self._received

    def _break(self, why: str) -> None:
        if self.broken_since is None:
            self.stream.close()
            self.broken_since, self.why = time.monotonic(), why
            self._out = []


def advance(buffers: list[memoryview], count: int) -> None:
    """Drop the first `count` bytes, and every buffer that has none left."""
    while buffers and count >= len(buffers[0]):
        count -= len(buffers.pop(0))
    if count:
        buffers[0] = buffers[0][count:]


def check_length(peer: int, header: bytearray, expected: int) -> None:
    """Raise TrainingError where a peer's message has another length than this worker expects."""
    (announced,) = HEADER.unpack(header)
    if announced != expected:
        raise TrainingError(f"rank {peer} sends {announced} bytes, not {expected}; {REMEDY}")
