"""Control messages between the parents of a run: one JSON object per line, over TCP or TLS.

Received lines have a maximum length and are only parsed as JSON. Every wait has a time limit.
Control messages are small (docs/cluster.md) and not counted as traffic.
"""

import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from typing import Any

from partitioning.file_io import parse_json
from retexo.launch.tls import CertificateRefused, Tls

MAX_MESSAGE_BYTES = 1 << 18
"""Bytes of the longest message that is accepted."""
MAX_SHOWN = 1000
"""Characters of a received text that are shown."""
SEND_TIMEOUT = 5.0
"""Seconds after which a peer that reads nothing counts as gone."""
RETRY_INTERVAL = 0.2
"""Seconds between two attempts to connect."""
CLIENT_HELLO = b"\x16"
"""First byte of a TLS connection; no JSON object begins with it."""


class ChannelClosed(ConnectionError):
    """The other end is gone, or sent something other than a message."""


class Disconnected(ChannelClosed):
    """The other end is gone."""


class Channel:
    """One end of a connection. Methods raise ChannelClosed once the other end is gone."""

    def __init__(self, connection: socket.socket, tls: Tls | None = None) -> None:
        """Args:
        tls: for an accepted connection, which may begin with TLS.
        """
        connection.settimeout(SEND_TIMEOUT)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._tls = connection, tls
        self.peer = str(connection.getpeername()[0])
        self.node: int | None = None
        """The node that the other end's certificate belongs to; None without a certificate."""
        self._received = b""
        self._ready: list[dict[str, Any]] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def speaks_for(self, node: int) -> bool:
        """Whether the other end may act as this node. Without TLS nobody can check it."""
        return self._tls is None or self.node == node

    def start_tls(self, tls: Tls, node: int, timeout: float) -> None:
        """Do the TLS handshake of the end that connected.

        Raises ChannelClosed for another node's certificate.
        """
        self._tls, connection = tls, tls.wrap(self._socket, accepted=False)
        self._socket = connection
        try:
            connection.settimeout(timeout)
            connection.do_handshake()
            tls.check_node(connection, node)
        except (CertificateRefused, ssl.SSLCertVerificationError) as error:
            raise ChannelClosed(f"refused its certificate: {error}") from error
        except OSError as error:
            raise Disconnected(f"no TLS: {error}") from error
        self.node = node
        answer = self.receive_one(timeout)  # the other end accepts this node's certificate
        if "welcome" not in answer:
            raise ChannelClosed(
                f"it refused this node's certificate: {make_printable(answer.get('refused'))}"
            )

    def send(self, message: dict[str, Any]) -> None:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.version() is None:
            raise Disconnected("no TLS yet")  # sending would wait for the other end
        try:
            self._socket.sendall(encode(message) + b"\n")
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
        """The messages received so far, without waiting.

        Raises ChannelClosed at the end of the connection.
        """
        waiting, self._ready = self._ready, []
        try:
            content = self._read()
        except (BlockingIOError, ssl.SSLWantReadError):
            return waiting
        except (CertificateRefused, ssl.SSLError) as error:
            if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                raise Disconnected("connection closed") from error
            raise ChannelClosed(f"TLS: {error}") from error
        except OSError as error:
            raise Disconnected(str(error)) from error
        if not content:
            raise Disconnected("connection closed")
        *lines, self._received = (self._received + content).split(b"\n")
        if max(map(len, (*lines, self._received))) > MAX_MESSAGE_BYTES:
            raise ChannelClosed(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
        return [*waiting, *map(decode, lines)]

    def put_back(self, messages: list[dict[str, Any]]) -> None:
        """Have `receive` return these messages again, before all others."""
        self._ready = [*messages, *self._ready]

    def _read(self) -> bytes:
        """Received bytes, at most one TLS record.

        Raises BlockingIOError or SSLWantReadError if there are none.
        """
        self._socket.settimeout(0)
        try:
            if self._tls is not None and self.node is None:
                if not isinstance(self._socket, ssl.SSLSocket):
                    if self._socket.recv(1, socket.MSG_PEEK) != CLIENT_HELLO:
                        return self._socket.recv(1 << 16)
                    self._socket = self._tls.wrap(self._socket, accepted=True)
                self._socket.do_handshake()
                self.node = self._tls.node_of(self._socket)
                self.send({"welcome": self.node})
            return self._socket.recv(1 << 16)
        finally:
            self._socket.settimeout(SEND_TIMEOUT)

    def detach(self) -> socket.socket:
        """Give up the channel and return its socket; ChannelClosed if received bytes are unread."""
        if self._received or self._ready:
            raise ChannelClosed("it sent more before it was answered")
        return self._socket

    def close(self) -> None:
        self._socket.close()


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as JSON in UTF-8.

    Lone surrogates, as in file names of other encodings, become "?".
    """
    return json.dumps(message, ensure_ascii=False, default=str).encode(errors="replace")


def decode(line: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises ChannelClosed for anything else, and for text that UTF-8 cannot encode.
    """
    try:
        message = parse_json(line.decode())
    except (ValueError, RecursionError) as error:
        raise ChannelClosed("not a message of retexo") from error
    if not isinstance(message, dict):
        raise ChannelClosed("not a message of retexo")
    return message


def make_printable(text: object) -> str:
    """Received text, safe to show: control characters as \\x1b, at most MAX_SHOWN characters."""
    shown = str(text)
    cut = " ..." if len(shown) > MAX_SHOWN else ""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown[:MAX_SHOWN]) + cut


def listen(address: str, port: int) -> socket.socket:
    """Listen on this address only; port 0 lets the system choose.

    Raises OSError if that is not possible.
    """
    return socket.create_server((address, port), backlog=1024)


def connect(
    address: str, port: int, timeout: float, tls: Tls | None = None, node: int = 0
) -> Channel:
    """Connect, trying again for `timeout` seconds; then raise ConnectionError with the last error.

    Args:
        tls: encrypts the connection.
        node: with `tls`, the node to connect to. ChannelClosed at once for another certificate.
    """

    def open_connection(seconds: float) -> socket.socket:
        return socket.create_connection((address, port), timeout=seconds)

    return connect_with(open_connection, timeout, tls, node)


def connect_with(
    open_connection: Callable[[float], socket.socket], timeout: float, tls: Tls | None, node: int
) -> Channel:
    """Connect like `connect`, by a function that opens the connection within some seconds."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            seconds = max(0.1, deadline - time.monotonic())
            channel = Channel(open_connection(seconds))
            if tls is not None:
                channel.start_tls(tls, node, seconds)
            return channel
        except OSError as error:
            if isinstance(error, ChannelClosed) and not isinstance(error, Disconnected):
                raise
            if time.monotonic() + RETRY_INTERVAL > deadline:
                raise ConnectionError(str(error)) from error
            time.sleep(RETRY_INTERVAL)
