"""Connections between the parents of a run, over TCP or TLS, and to their own workers: one JSON
object per line.

Anybody can connect to a node's port. So a line that another node sends has a maximum length and is
only parsed as JSON, every wait has a time limit, and the connections that have sent no message are
limited in time, in all, and per address. Above a limit the oldest is closed; a node whose
connection is closed tries again. Control messages are small (docs/cluster.md) and not counted as
traffic.
"""

import json
import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, Protocol, TypeVar

from partitioning.errors import InputError
from partitioning.files.file_io import parse_json
from retexo.launch.tls import Tls

logger = logging.getLogger(__name__)

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
FIRST_MESSAGE_TIMEOUT = 5.0
"""Seconds within which a connection has to send its first message."""
MAX_CONNECTIONS = 64
MAX_CONNECTIONS_PER_ADDRESS = 16
MAX_ACCEPTED_AT_ONCE = 8
"""Less than the limits, so that a connection's first packet is read before it can be closed."""
MAX_WARNINGS = 20
"""Refused connections that are logged one by one."""

TCP_OPTIONS = {
    socket.TCP_NODELAY: 1,
    socket.TCP_KEEPIDLE: 15,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
}
"""Send at once. Keepalive: seconds until the first probe, seconds between two, and their number.
Firewalls drop connections that carry nothing for minutes, as one does while workers compute."""

Message = dict[str, Any]
T = TypeVar("T")
Dial = Callable[[tuple[str, int], float], socket.socket]
"""Opens a connection to an address within some seconds."""


class ChannelClosed(ConnectionError):
    """The other end is gone, or sent something other than a message."""


class Disconnected(ChannelClosed):
    """The other end is gone."""


class Channel:
    """One end of a connection. Methods raise ChannelClosed once the other end is gone."""

    def __init__(
        self,
        connection: socket.socket,
        tls: Tls | None = None,
        limit: int | None = MAX_MESSAGE_BYTES,
    ) -> None:
        """Take over a connection, and set its timeout.

        Args:
            connection: over TCP, or to a process of this machine.
            tls: for an accepted connection, which may begin with TLS.
            limit: bytes of the longest message that is accepted; None for this run's own workers.
        """
        connection.settimeout(SEND_TIMEOUT)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in TCP_OPTIONS.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self._socket, self._tls, self._limit = connection, tls, limit
        self.peer = str((connection.getpeername() or ["this machine"])[0])
        self.node: int | None = None
        """The node that the other end's certificate belongs to; None without a certificate."""
        self._received = b""
        self.unread: list[Message] = []
        """Received messages that `receive` has not returned."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def speaks_for(self, node: int) -> bool:
        """Return whether the other end may act as this node. Without TLS nobody can check it."""
        return self._tls is None or self.node == node

    def start_tls(self, tls: Tls, node: int, timeout: float) -> None:
        """Do the TLS handshake of the end that connected.

        Raises ChannelClosed for another node's certificate, or if the other end refuses this one's,
        Disconnected if the handshake fails.
        """
        self._tls, self._socket = tls, tls.wrap(self._socket, accepted=False)
        try:
            tls.shake_hands(self._socket, node, timeout)
        except ssl.SSLCertVerificationError as error:
            raise ChannelClosed(f"refused its certificate: {error}") from error
        except OSError as error:
            raise Disconnected(f"no TLS: {error}") from error
        self.node = node
        reply = self.receive_one(timeout)  # the other end accepts this node's certificate
        if "welcome" not in reply:
            raise ChannelClosed(
                f"it refused this node's certificate: {make_printable(reply.get('refused'))}"
            )

    def send(self, message: Message) -> None:
        """Send a message; Disconnected if that fails, or before the TLS handshake is done."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.version() is None:
            raise Disconnected("no TLS yet")  # sending would wait for the other end
        try:
            self._socket.sendall(encode_message(message) + b"\n")
        except OSError as error:
            raise Disconnected(str(error)) from error

    def receive_one(self, timeout: float) -> Message:
        """Return the next message, within `timeout` seconds; ChannelClosed if none comes.

        Others that arrived are kept for the next call. Otherwise as `receive`.
        """
        deadline = time.monotonic() + timeout
        while not (messages := self.receive()):
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise ChannelClosed(f"no answer within {timeout:g} s")
            wait([self._socket], seconds)
        self.unread = messages[1:]
        return messages[0]

    def receive(self) -> list[Message]:
        """Return the messages that one read completes, without waiting; [] if there are none.

        An accepted connection does its TLS handshake first, which sets `node`.

        Raises Disconnected at the end of the connection, ChannelClosed for a line that is no
        message, one above the limit, or a refused certificate.
        """
        if self.unread:
            messages, self.unread = self.unread, []
            return messages
        try:
            content = self._read()
        except (BlockingIOError, ssl.SSLWantReadError):
            return []
        except OSError as error:
            refused = isinstance(error, ssl.SSLError)
            if refused and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                raise ChannelClosed(f"TLS: {error}") from error
            raise Disconnected("connection closed" if refused else str(error)) from error
        if not content:
            raise Disconnected("connection closed")
        *lines, self._received = (self._received + content).split(b"\n")
        if self._limit and max(map(len, (*lines, self._received))) > self._limit:
            raise ChannelClosed(f"a message of more than {self._limit} bytes")
        return [*map(decode, lines)]

    def _read(self) -> bytes:
        """Return received bytes, at most one TLS record; b"" at the end.

        An accepted connection that begins with TLS does its handshake first, which sets `node`, and
        is welcomed. Raises BlockingIOError or SSLWantReadError if there are no bytes.
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
        if self._received or self.unread:
            raise ChannelClosed("it sent more before it was answered")
        return self._socket

    def close(self) -> None:
        self._socket.close()


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Return a message as JSON in UTF-8.

    Lone surrogates, as in file names of other encodings, become "?".
    """
    return json.dumps(message, ensure_ascii=False, default=str).encode(errors="replace")


def decode(line: bytes) -> Message:
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
    printable = str(text)
    cut = " ..." if len(printable) > MAX_SHOWN else ""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in printable[:MAX_SHOWN]) + cut


def listen(address: str, port: int, setting: str, remedy: str) -> socket.socket:
    """Listen on this address only; port 0 lets the system choose.

    Raises InputError with the setting and the remedy if that is not possible.
    """
    try:
        is_ipv6 = ":" in address
        return socket.create_server(
            (address, port),
            family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
            backlog=1024,
            dualstack_ipv6=is_ipv6,  # :: is every address, of IPv4 too
        )
    except OSError as error:
        where = f"cannot listen on {address}:{port}: {error.strerror}"
        raise InputError(f"{setting}: {where}; {remedy}") from error


def connect(
    address: tuple[str, int],
    timeout: float,
    tls: Tls | None = None,
    node: int = 0,
    dial: Dial = socket.create_connection,
) -> Channel:
    """Connect, trying again for `timeout` seconds; then ConnectionError.

    Args:
        tls: encrypts the connection.
        node: with `tls`, the node to connect to. ChannelClosed at once for another certificate, or
            where it refuses this node's.
        dial: opens the connection.
    """

    def attempt(seconds: float) -> Channel:
        channel = Channel(dial(address, seconds))
        if tls is not None:
            channel.start_tls(tls, node, seconds)
        return channel

    return retry(attempt, timeout)


def retry(attempt: Callable[[float], T], timeout: float) -> T:
    """Call attempt(seconds) until it succeeds, for `timeout` seconds.

    Raises:
        ConnectionError: with the last error; or ChannelClosed at once for another program.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return attempt(max(0.1, deadline - time.monotonic()))
        except OSError as error:
            if isinstance(error, ChannelClosed) and not isinstance(error, Disconnected):
                raise
            if time.monotonic() + RETRY_INTERVAL > deadline:
                raise ConnectionError(str(error)) from error
            time.sleep(RETRY_INTERVAL)


# --- accepting connections of anybody ----------


class Listener(Protocol):
    """A listening socket, or a connection to a hub that announces who wants to connect."""

    def fileno(self) -> int: ...

    def accept(self) -> tuple[socket.socket, Any]: ...

    def close(self) -> None: ...


class AcceptedConnections:
    """Connections of a listener until their first message. Its socket no longer blocks."""

    def __init__(self, listener: Listener, tls: Tls | None = None) -> None:
        if isinstance(listener, socket.socket):
            listener.setblocking(False)
        self._listener, self._tls = listener, tls
        self._deadlines: dict[Channel, float] = {}
        """By channel, the oldest first."""
        self._num_rejected = 0

    def step(
        self,
        timeout: float,
        handle: Callable[[Channel, Message], None],
    ) -> None:
        """Wait at most `timeout` seconds; call handle(channel, message) for each first message.

        `handle` owns the channel from then on. Whatever it raises is logged and closes the
        connection. A HubListener raises Interrupted if the hub has ended.
        """
        sources: list[Any] = [self._listener, *self._deadlines]
        ready: list[Any] = wait(sources, max(0.0, timeout))
        for channel in [channel for channel in self._deadlines if channel in ready]:
            self._answer(channel, handle)
        for channel, deadline in [*self._deadlines.items()]:
            if deadline < time.monotonic():
                self.reject(channel, "it sent nothing")
        if self._listener in ready:
            self._accept()

    def _answer(self, channel: Channel, handle: Callable[[Channel, Message], None]) -> None:
        """Pass the first message of a connection to `handle`, once all of it is there.

        Reject the connection where that raises anything.
        """
        try:
            messages = channel.receive()
            if messages:
                del self._deadlines[channel]
                channel.unread = messages[1:]
                handle(channel, messages[0])
        except ChannelClosed as error:
            self.reject(channel, str(error))
        except Exception as error:
            logger.debug("unexpected error in a server loop", exc_info=error)
            why = f"it caused {type(error).__name__}: {error}"
            self.reject(channel, why, {"refused": "not a message of retexo"})

    def reject(self, channel: Channel, why: str, reply: Message | None = None) -> None:
        """Log why, send the reply, by default {"refused": why}, and close the connection."""
        self._num_rejected += 1
        if self._num_rejected <= MAX_WARNINGS:
            last = "; further refusals are not logged" if self._num_rejected == MAX_WARNINGS else ""
            logger.warning(
                "refused a connection from %s: %s%s", channel.peer, make_printable(why), last
            )
        with suppress(ChannelClosed):
            channel.send({"refused": why} if reply is None else reply)
        self._forget(channel)

    def close(self) -> None:
        """Close the connections that have sent no message."""
        for channel in [*self._deadlines]:
            self._forget(channel)

    def _accept(self) -> None:
        """Accept waiting connections; above a limit close the oldest for each. Errors end it."""
        with suppress(OSError):
            for _ in range(MAX_ACCEPTED_AT_ONCE):
                channel = Channel(self._listener.accept()[0], self._tls)
                same = [other for other in self._deadlines if other.peer == channel.peer]
                if len(same) >= MAX_CONNECTIONS_PER_ADDRESS:
                    self._forget(same[0])
                elif len(self._deadlines) >= MAX_CONNECTIONS:
                    self._forget(next(iter(self._deadlines)))
                self._deadlines[channel] = time.monotonic() + FIRST_MESSAGE_TIMEOUT

    def _forget(self, channel: Channel) -> None:
        """Close a connection and drop its time limit."""
        self._deadlines.pop(channel, None)
        channel.close()
