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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from retexo.errors import Interrupted
from retexo.launch.channels import (
    AcceptedConnections,
    Channel,
    ChannelClosed,
    Disconnected,
    Message,
    connect,
)
from retexo.launch.tls import Tls

logger = logging.getLogger(__name__)

THROUGH_HUB = "hub"
"""Stands for the host in an address whose port is the number of a node behind the hub."""
TOKEN_SECONDS = 20.0
"""Seconds within which both ends have to connect."""
RELISTEN_SECONDS = 5.0
"""Seconds within which a hub that closed a node's link has to be reached again."""
CHUNK = 1 << 16
"""Bytes that are forwarded at a time."""


@dataclass(frozen=True)
class Hub:
    """A hub, as a node sees it."""

    address: tuple[str, int]
    tls: Tls
    node: int
    """The hub's number: 0 where node 0 is the hub, else the number of nodes."""

    def dial(self, address: tuple[str, int], timeout: float) -> socket.socket:
        """Connect to an address, or for (THROUGH_HUB, node) to a node as `reach` does; no TLS."""
        host, node = address
        if host == THROUGH_HUB:
            return self.reach(node, timeout)
        return socket.create_connection(address, timeout)

    def listen(self, timeout: float) -> Channel:
        """Open the link to the hub over which it says who wants to connect to this node.

        Raises ConnectionError if the hub is not reached within `timeout` seconds.
        """
        link = connect(self.address, timeout, self.tls, self.node)
        link.send({"listen": True})
        return link

    def reach(self, node: int, timeout: float) -> socket.socket:
        """Return a connection to another node, joined by the hub, without TLS of its own.

        Raises Disconnected if that node does not wait at the hub, ConnectionError if the hub is not
        reached or the other node does not come in time.
        """
        link = connect(self.address, timeout, self.tls, self.node)
        try:
            link.send({"reach": node})
            answer = link.receive_one(timeout)
        finally:
            link.close()
        if "token" not in answer:
            raise Disconnected(f"node {node} is not at the hub {self}")
        stream = connect(self.address, timeout)
        stream.send({"token": answer["token"]})
        stream.receive_one(timeout)  # the other end has connected
        return stream.detach()

    def __str__(self) -> str:
        return "{}:{}".format(*self.address)


class HubListener:
    """A Listener for the connections that arrive through the hub."""

    def __init__(self, hub: Hub, timeout: float) -> None:
        """Wait at the hub for connections to this node; OSError where it is not reached."""
        self._hub, self._link = hub, hub.listen(timeout)
        self._incoming: list[Message] = []
        """Messages of the hub, one for each connection to this node."""

    def fileno(self) -> int:
        return self._link.fileno()

    def accept(self) -> tuple[socket.socket, None]:
        """Accept a connection like a socket that does not block.

        Raises:
            BlockingIOError: no node wants to connect.
            Interrupted: the hub has ended.
            ConnectionError: the hub is not reached for this connection.
        """
        try:
            self._incoming += self._link.receive()
        except ChannelClosed as error:  # it has ended, or many strangers connect to it
            try:
                self._link = self._hub.listen(RELISTEN_SECONDS)
            except OSError:
                raise Interrupted(f"the hub {self._hub} has ended: {error}") from error
        if not self._incoming:
            raise BlockingIOError
        token = self._incoming.pop(0).get("incoming")
        stream = connect(self._hub.address, TOKEN_SECONDS)
        stream.send({"token": token})
        return stream.detach(), None

    def close(self) -> None:
        self._link.close()


# --- the hub itself ----------


@dataclass(eq=False)
class Pair:
    """Two connections to join."""

    nodes: tuple[int, int]
    deadline: float
    ends: dict[int, Channel] = field(default_factory=dict)
    """By index in `nodes`."""


class HubServer:
    """Joins the connections of two nodes that cannot reach each other, in calls of `step`."""

    def __init__(self, listener: socket.socket, tls: Tls) -> None:
        self._accepted = AcceptedConnections(listener, tls)
        self._waiting: dict[int, Channel] = {}
        """Links of the nodes that wait for connections."""
        self._tokens: dict[Any, tuple[Pair, int]] = {}

    def step(self, timeout: float) -> None:
        """Answer the requests that arrive within `timeout` seconds, and close expired pairs."""
        self._accepted.step(timeout, self._answer)
        for token, (pair, _) in [*self._tokens.items()]:
            if pair.deadline < time.monotonic():
                del self._tokens[token]
                for end in pair.ends.values():
                    end.close()

    def _answer(self, channel: Channel, message: Message) -> None:
        """Handle a message of a connection with a token, or of a node that waits or calls.

        ChannelClosed for other messages.
        """
        if message.get("token") in self._tokens:
            self._join(channel, *self._tokens.pop(message["token"]))
        elif channel.node is not None and "listen" in message:
            self._waiting[channel.node] = channel
            logger.info("node %d waits for connections", channel.node)
        elif channel.node is not None and type(message.get("reach")) is int:
            self._send_tokens(channel, channel.node, message["reach"])
        else:
            raise ChannelClosed("not a node of this hub")

    def _send_tokens(self, channel: Channel, node: int, other: int) -> None:
        """Send both nodes of a wanted connection a token each, with which they are joined.

        If the other does not wait here, the first one hears that it is absent. Closes the channel.
        """
        pair = Pair((node, other), time.monotonic() + TOKEN_SECONDS)
        tokens = [secrets.token_hex(16) for _ in range(2)]
        try:
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

    def _join(self, channel: Channel, pair: Pair, index: int) -> None:
        """Add a connection to its pair.

        Threads forward bytes between the ends once both are there.
        """
        pair.ends[index] = channel
        try:
            channel.detach()  # raises ChannelClosed if it has sent more than its token
            if len(pair.ends) == 2:
                pair.ends[0].send({"joined": True})
                near, far = (pair.ends[end].detach() for end in (0, 1))
                for arguments in ((near, far, pair.nodes), (far, near, pair.nodes[::-1])):
                    threading.Thread(target=_forward, args=arguments, daemon=True).start()
        except ChannelClosed:
            for end in pair.ends.values():
                if end is not channel:
                    end.close()
            raise


@contextmanager
def serving_hub(listener: socket.socket, tls: Tls) -> Iterator[None]:
    """Run the hub within node 0, in a thread. Connections that were joined stay.

    The listener is closed at the end of the block.
    """
    server, ended = HubServer(listener, tls), threading.Event()

    def serve() -> None:
        while not ended.is_set():
            server.step(0.2)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        listener.close()


def _forward(source: socket.socket, target: socket.socket, nodes: tuple[int, int]) -> None:
    """Forward bytes until the connection ends; log their number. Errors end it, too."""
    count = 0
    with suppress(OSError):
        for end in (source, target):
            end.settimeout(None)  # keepalive ends the threads of a node that vanished
        while content := source.recv(CHUNK):
            target.sendall(content)
            count += len(content)
    for stream, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with suppress(OSError):
            stream.shutdown(how)
    logger.info("node %d sent node %d %d bytes", *nodes, count)
