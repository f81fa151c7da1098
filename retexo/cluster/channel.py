"""Messages between the nodes of a run, beside the training: JSON objects, one a line, over TCP.

Nothing is executed or unpickled of what comes in, a line has a limit, and no call waits for longer than it is told.
These messages are small (docs/cluster.md) and are not counted as data volume.
"""

import json
import socket
import time
from multiprocessing.connection import wait
from typing import Any

MAX_MESSAGE_BYTES = 1 << 18
"""bytes of the longest message that is accepted"""
MAX_SHOWN = 1000
"""characters of a text from the network that are shown"""
SEND_TIMEOUT = 5.0
"""seconds after which a peer that reads nothing counts as gone"""
RETRY_INTERVAL = 0.2
"""seconds between two attempts to connect"""


class ChannelClosed(ConnectionError):
    """The other end is gone, or sent something that is no message."""


class Disconnected(ChannelClosed):
    """The other end is gone."""


class Channel:
    """One end of a connection; methods raise ChannelClosed once the other end is gone."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SEND_TIMEOUT)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self.peer = str(connection.getpeername()[0])
        self._received = b""
        self._ready: list[dict[str, Any]] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Disconnected(str(error)) from error

    def receive_one(self, timeout: float) -> dict[str, Any]:
        """The next message, within `timeout` seconds; ChannelClosed if none comes."""
        deadline = time.monotonic() + timeout
        while not self._ready:
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise ChannelClosed(f"no answer within {timeout:g} s")
            wait([self._socket], seconds)
            self._ready = self.receive()
        return self._ready.pop(0)

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have come, without waiting for more; ChannelClosed at the end of the connection."""
        waiting, self._ready = self._ready, []
        try:
            content = self._socket.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return waiting
        except OSError as error:
            raise Disconnected(str(error)) from error
        if not content:
            raise Disconnected("connection closed")
        *lines, self._received = (self._received + content).split(b"\n")
        if max(map(len, (*lines, self._received))) > MAX_MESSAGE_BYTES:
            raise ChannelClosed(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
        return [*waiting, *map(_message, lines)]

    def detach(self) -> socket.socket:
        """The connection itself, for something else than messages."""
        assert not self._received
        return self._socket

    def close(self) -> None:
        self._socket.close()


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ChannelClosed("not a message of retexo") from error
    if not isinstance(message, dict):
        raise ChannelClosed("not a message of retexo")
    return message


def printable(text: object) -> str:
    """Text from the network as it may be shown: control characters, terminal escapes among them, as \\x1b; cut."""
    shown = str(text)
    cut = " ..." if len(shown) > MAX_SHOWN else ""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown[:MAX_SHOWN]) + cut


def listen(address: str, port: int) -> socket.socket:
    """Listen on this address alone; port 0 lets the system choose. OSError where that is not possible."""
    return socket.create_server((address, port), backlog=1024)


def connect(address: str, port: int, timeout: float) -> Channel:
    """Connect, trying again for `timeout` seconds; then raise ConnectionError with the last error."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return Channel(socket.create_connection((address, port), timeout=max(0.1, deadline - time.monotonic())))
        except OSError as error:
            if time.monotonic() + RETRY_INTERVAL > deadline:
                raise ConnectionError(str(error)) from error
            time.sleep(RETRY_INTERVAL)
