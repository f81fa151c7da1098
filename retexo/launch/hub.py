"""A hub that joins TCP connections of nodes behind firewalls (distributed.hub).

It cannot read them.

A node without distributed.inbound_port only opens connections. To be reached, it keeps a TLS link
to the hub open. To reach it, another node asks the hub over such a link. The hub gives both a token
for one use, each opens a plain connection with it, and the hub joins the two. The nodes run their
own TLS through them (retexo.launch.tls), so the hub learns who talks to whom, and how much.
"""

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NoReturn

from retexo.errors import Interrupted
from retexo.launch.accepted_connections import AcceptedConnections
from retexo.launch.control_channel import Channel, ChannelClosed, Disconnected, connect
from retexo.launch.tls import Tls

logger = logging.getLogger(__name__)

TOKEN_SECONDS = 20.0
"""Seconds within which both ends have to connect."""
CHUNK = 1 << 16
"""Bytes that are forwarded at a time."""


class HubLost(Interrupted):
    """The link to the hub broke."""


@dataclass(frozen=True)
class Hub:
    """A hub, as a node sees it."""

    address: str
    port: int
    tls: Tls
    node: int
    """The hub's number: 0 where node 0 is the hub, else the number of nodes."""

    def serve(self, listener: socket.socket) -> "OwnHub":
        """Start the hub within node 0, on a listening socket."""
        return OwnHub(listener, self.tls)

    def wait(self, timeout: float) -> "HubListener":
        """Wait at the hub for connections to this node; OSError where it is not reached."""
        link = connect(self.address, self.port, timeout, self.tls, self.node)
        link.send({"listen": True})
        return HubListener(self, link)

    def reach(self, node: int, timeout: float) -> socket.socket:
        """A connection to another node; Disconnected where that node does not wait at the hub."""
        link = connect(self.address, self.port, timeout, self.tls, self.node)
        try:
            link.send({"reach": node})
            answer = link.receive_one(timeout)
        finally:
            link.close()
        if "token" not in answer:
            raise Disconnected(f"node {node} is not at the hub {self.address}:{self.port}")
        stream = connect(self.address, self.port, timeout)
        stream.send({"token": answer["token"]})
        stream.receive_one(timeout)  # the other end has connected
        return stream.detach()


class HubListener:
    """A Listener for the connections that arrive through the hub."""

    def __init__(self, hub: Hub, link: Channel) -> None:
        self._hub, self._link = hub, link
        self._incoming: list[dict[str, Any]] = []
        """Messages of the hub, one for each connection to this node."""

    def fileno(self) -> int:
        return self._link.fileno()

    def setblocking(self, flag: bool, /) -> None:
        """Do nothing: `accept` never blocks."""

    def accept(self) -> tuple[socket.socket, None]:
        """Accept a connection like a socket.

        Raises:
            BlockingIOError: no node wants to connect.
            HubLost: the hub has ended.
        """
        try:
            self._incoming += self._link.receive()
        except ChannelClosed as error:
            raise HubLost(
                f"the hub {self._hub.address}:{self._hub.port} has ended: {error}"
            ) from error
        if not self._incoming:
            raise BlockingIOError
        token = self._incoming.pop(0).get("incoming")
        stream = connect(self._hub.address, self._hub.port, TOKEN_SECONDS)
        stream.send({"token": token})
        return stream.detach(), None

    def close(self) -> None:
        self._link.close()


class OwnHub:
    """The hub within node 0, in a thread; a Listener for the connections to node 0."""

    def __init__(self, listener: socket.socket, tls: Tls) -> None:
        self._arrived: SimpleQueue[socket.socket] = SimpleQueue()
        self._wakeup, self._wake = socket.socketpair()
        self._wakeup.setblocking(False)
        self._listener, self._ended = listener, False
        self._server = HubServer(listener, tls, self._deliver)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """Join connections until the hub is closed; runs in a thread."""
        while not self._ended:
            self._server.step(0.2)

    def _deliver(self, stream: socket.socket) -> None:
        """Hand a connection to node 0, and wake its listener."""
        self._arrived.put(stream)
        self._wake.send(b"\0")

    def fileno(self) -> int:
        return self._wakeup.fileno()

    def setblocking(self, flag: bool, /) -> None:
        """Do nothing: `accept` never blocks."""

    def accept(self) -> tuple[socket.socket, None]:
        """Accept a connection like a socket; BlockingIOError if no node wants to connect."""
        self._wakeup.recv(1)
        return self._arrived.get(), None

    def close(self) -> None:
        """End the thread. Connections that were joined stay."""
        if self._ended:
            return
        self._ended = True
        self._thread.join()
        for each in (self._listener, self._wakeup, self._wake):
            each.close()


# --- the hub itself ----------


@dataclass(eq=False)
class Pair:
    """Two connections to join."""

    nodes: tuple[int, int]
    deadline: float
    ends: dict[int, Channel] = field(default_factory=dict)
    """By index in `nodes`."""


class HubServer:
    """Joins connections."""

    def __init__(
        self,
        listener: socket.socket,
        tls: Tls,
        deliver: Callable[[socket.socket], None] | None = None,
    ) -> None:
        """Args:
        deliver: of the hub within node 0; takes the connections to node 0.
        """
        self._accepted, self._deliver = AcceptedConnections(listener, tls), deliver
        self._waiting: dict[int, Channel] = {}
        """Links of the nodes that wait for connections."""
        self._tokens: dict[str, tuple[Pair, int]] = {}

    def serve(self) -> NoReturn:
        while True:
            self.step(1.0)

    def step(self, timeout: float) -> None:
        """Answer the requests that arrive within `timeout` seconds."""
        self._accepted.answer(self._accepted.wait(timeout)[0], self._answer)
        for token, (pair, _) in list(self._tokens.items()):
            if pair.deadline < time.monotonic():
                del self._tokens[token]
                for end in pair.ends.values():
                    end.close()

    def _answer(self, channel: Channel, message: dict[str, Any]) -> None:
        """Handle a message of a connection with a token, or of a node that waits or calls."""
        token = message.get("token")
        if isinstance(token, str) and token in self._tokens:
            self._join(channel, *self._tokens.pop(token))
        elif channel.node is not None and "listen" in message:
            self._waiting[channel.node] = channel
            logger.info("node %d waits for connections", channel.node)
        elif channel.node is not None and type(message.get("reach")) is int:
            self._send_tokens(channel, channel.node, message["reach"])
        else:
            self._accepted.reject(channel, "not a node of this hub")

    def _send_tokens(self, channel: Channel, node: int, other: int) -> None:
        """Send both nodes of a wanted connection a token each, with which they are joined."""
        pair, tokens = (
            Pair((node, other), time.monotonic() + TOKEN_SECONDS),
            [secrets.token_hex(16) for _ in range(2)],
        )
        try:
            if not self._is_for_own(pair):
                if other not in self._waiting:
                    raise Disconnected("it does not wait here")
                self._waiting[other].send({"incoming": tokens[1]})
        except ChannelClosed:
            self._waiting.pop(other, None)
            channel.send({"absent": other})
        else:
            self._tokens |= {token: (pair, index) for index, token in enumerate(tokens)}
            channel.send({"token": tokens[0]})
        channel.close()

    def _is_for_own(self, pair: Pair) -> bool:
        """Return whether a connection goes to node 0, which runs this hub."""
        return self._deliver is not None and pair.nodes[1] == 0

    def _join(self, channel: Channel, pair: Pair, index: int) -> None:
        """Add a connection to its pair.

        Forward bytes between the two ends once both are connected.
        """
        pair.ends[index] = channel
        try:
            stream = channel.detach()
            if self._deliver is not None and self._is_for_own(pair):
                channel.send({"joined": True})
                self._deliver(stream)
            elif len(pair.ends) == 2:
                pair.ends[0].send({"joined": True})
                self._start_forwarding(pair)
        except ChannelClosed:
            for end in pair.ends.values():
                if end is not channel:
                    end.close()
            raise

    def _start_forwarding(self, pair: Pair) -> None:
        """Start two threads that forward bytes between the ends of a pair."""
        near, far = (pair.ends[index].detach() for index in (0, 1))
        for source, target, nodes in ((near, far, pair.nodes), (far, near, pair.nodes[::-1])):
            threading.Thread(target=_forward, args=(source, target, nodes), daemon=True).start()


def _forward(source: socket.socket, target: socket.socket, nodes: tuple[int, int]) -> None:
    """Forward bytes until the connection ends."""
    count = 0
    with suppress(OSError):
        for end in (source, target):
            end.settimeout(None)
            # Otherwise the threads of a node that vanished would stay.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        while content := source.recv(CHUNK):
            target.sendall(content)
            count += len(content)
    for stream, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with suppress(OSError):
            stream.shutdown(how)
    logger.info("node %d sent node %d %d bytes", *nodes, count)
