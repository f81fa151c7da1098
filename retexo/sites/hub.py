"""One reachable port for all nodes (distributed.hub): a hub that joins TCP connections, and cannot read or change them.

A node without distributed.inbound_port opens connections only. One that waits to be reached has a link to the hub,
over TLS, with its certificate. One that wants to reach it asks the hub over such a link, too; each of the two gets a
token for one use, and opens a plain connection with it. The hub joins these two, and the nodes run their own TLS
through them (retexo.sites.tls). So the hub knows who talks to whom, and how much.
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

from retexo.launch.accepted_connections import HubLost, PendingConnections
from retexo.launch.control_channel import Channel, ChannelClosed, Disconnected, connect
from retexo.sites.tls import Tls

logger = logging.getLogger(__name__)

TOKEN_SECONDS = 20.0
"""within which both ends have to come"""
RENEW_SECONDS = 1.0
PIECE = 1 << 16


@dataclass(frozen=True)
class Hub:
    """A hub, as a node sees it."""

    address: str
    port: int
    tls: Tls
    node: int
    """The hub's place among the members: behind all nodes, or 0."""

    def reach(self, node: int, timeout: float) -> socket.socket:
        """A connection to another node; Disconnected where that does not wait at the hub."""
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
        stream.receive_one(timeout)  # that the other end is there
        return stream.detach()


class HubListener:
    """Takes the place of a listening socket: who reaches this node by the hub is accepted."""

    def __init__(self, hub: Hub, timeout: float) -> None:
        self._hub = hub
        self._link = self._wait_there(timeout)
        self._incoming: list[dict[str, Any]] = []
        """Messages of the hub, one for each connection to this node."""

    def _wait_there(self, timeout: float) -> Channel:
        link = connect(self._hub.address, self._hub.port, timeout, self._hub.tls, self._hub.node)
        link.send({"listen": True})
        return link

    def fileno(self) -> int:
        return self._link.fileno()

    def setblocking(self, flag: bool, /) -> None:
        """It never waits for somebody to come."""

    def accept(self) -> tuple[socket.socket, None]:
        """As of a socket; BlockingIOError where nobody has come, HubLost where the hub has ended."""
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

    def renew(self) -> None:
        """Once the hub was lost; OSError where it is not there yet."""
        link = self._wait_there(RENEW_SECONDS)
        self._link.close()
        self._link = link

    def close(self) -> None:
        self._link.close()


class OwnHub:
    """The hub within node 0, in a thread; in place of a listening socket: who reaches node 0 is accepted."""

    def __init__(self, listener: socket.socket, tls: Tls) -> None:
        self._arrived: SimpleQueue[socket.socket] = SimpleQueue()
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)
        self._listener, self._ended = listener, False
        self._server = HubServer(listener, tls, self._arrive)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended:
            self._server.step(0.2)

    def _arrive(self, stream: socket.socket) -> None:
        self._arrived.put(stream)
        self._ring.send(b"\0")

    def fileno(self) -> int:
        return self._bell.fileno()

    def setblocking(self, flag: bool, /) -> None:
        """It never waits for somebody to come."""

    def accept(self) -> tuple[socket.socket, None]:
        """As of a socket; BlockingIOError where nobody has come."""
        self._bell.recv(1)
        return self._arrived.get(), None

    def close(self) -> None:
        self._ended = True
        self._thread.join()
        for each in (self._listener, self._bell, self._ring):
            each.close()


# --- the hub itself --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Pair:
    """Two connections that are to be joined."""

    nodes: tuple[int, int]
    deadline: float
    ends: dict[int, Channel] = field(default_factory=dict)
    """By place in `nodes`."""


class HubServer:
    """Joins connections until it is ended."""

    def __init__(
        self,
        listener: socket.socket,
        tls: Tls,
        arrive: Callable[[socket.socket], None] | None = None,
    ) -> None:
        """arrive: of the hub within node 0, takes what is for that."""
        self._pending, self._arrive = PendingConnections(listener, tls), arrive
        self._waiting: dict[int, Channel] = {}
        """Links of the nodes that can be reached."""
        self._tokens: dict[str, tuple[Pair, int]] = {}

    def serve(self) -> NoReturn:
        while True:
            self.step(1.0)

    def step(self, timeout: float) -> None:
        """OutputHeads who comes within `timeout` seconds."""
        self._pending.answer(self._pending.wait(timeout)[0], self._answer)
        for token, (pair, _) in list(self._tokens.items()):
            if pair.deadline < time.monotonic():
                del self._tokens[token]
                for end in pair.ends.values():
                    end.close()

    def _answer(self, channel: Channel, message: dict[str, Any]) -> None:
        token = message.get("token")
        if isinstance(token, str) and token in self._tokens:
            self._join(channel, *self._tokens.pop(token))
        elif channel.node is not None and "listen" in message:
            self._waiting[channel.node] = channel
            logger.info("node %d can be reached", channel.node)
        elif channel.node is not None and type(message.get("reach")) is int:
            self._reach(channel, channel.node, message["reach"])
        else:
            self._pending.reject(channel, "not a node of this hub")

    def _reach(self, channel: Channel, node: int, other: int) -> None:
        pair, tokens = (
            Pair((node, other), time.monotonic() + TOKEN_SECONDS),
            [secrets.token_hex(16) for _ in range(2)],
        )
        try:
            if not self._is_for_own(pair):
                if other not in self._waiting:
                    raise Disconnected("it is not here")
                self._waiting[other].send({"incoming": tokens[1]})
        except ChannelClosed:
            self._waiting.pop(other, None)
            channel.send({"absent": other})
        else:
            self._tokens |= {token: (pair, place) for place, token in enumerate(tokens)}
            channel.send({"token": tokens[0]})
        channel.close()

    def _is_for_own(self, pair: Pair) -> bool:
        return self._arrive is not None and pair.nodes[1] == 0

    def _join(self, channel: Channel, pair: Pair, place: int) -> None:
        pair.ends[place] = channel
        try:
            stream = channel.detach()
            if self._arrive is not None and self._is_for_own(pair):
                channel.send({"joined": True})
                self._arrive(stream)
            elif len(pair.ends) == 2:
                pair.ends[0].send({"joined": True})
                self._start_pumps(pair)
        except ChannelClosed:
            for end in pair.ends.values():
                if end is not channel:
                    end.close()
            raise

    def _start_pumps(self, pair: Pair) -> None:
        near, far = (pair.ends[place].detach() for place in (0, 1))
        for source, target, nodes in ((near, far, pair.nodes), (far, near, pair.nodes[::-1])):
            threading.Thread(target=_pump, args=(source, target, nodes), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, nodes: tuple[int, int]) -> None:
    """Pass on what comes, until the end."""
    count = 0
    with suppress(OSError):
        for end in (source, target):
            end.settimeout(None)
            # Otherwise a node that vanished would keep its threads here.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        while content := source.recv(PIECE):
            target.sendall(content)
            count += len(content)
    for stream, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with suppress(OSError):
            stream.shutdown(how)
    logger.info("node %d sent node %d %d bytes", *nodes, count)
