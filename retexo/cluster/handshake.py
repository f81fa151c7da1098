"""What the nodes of a run make sure of before anything is started: that all have come, and fit together.

Each node says what it is about to run (`Hello`), node 0 compares (`disagreement`), and all get one verdict.
"""

import hashlib
import logging
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.metadata import version
from multiprocessing import connection
from pathlib import Path
from typing import Any

from retexo.cluster.channel import Channel, ChannelClosed

logger = logging.getLogger(__name__)

PROTOCOL = 1
HELLO_TIMEOUT = 5.0
"""seconds within which who connects has to say what it is"""
LINGER = 5.0
"""seconds for which node 0 waits for the others after it found a mistake, to tell them as well"""
MAX_STRANGERS = 64
"""connections without a hello that are kept at a time"""


@dataclass(frozen=True)
class Hello:
    """What a node says of itself."""

    run_key: str
    """Tells this run from others that might use the same port by accident; empty where no launcher gave one."""
    node: int
    ranks: list[int]
    world_size: int
    code: str
    """Versions and a digest of the program."""
    settings: dict[str, Any]
    """Those that have to be the same everywhere, by dotted name."""
    partition: str
    """Digest of the partition directory."""
    address: str
    """ADDRESS:PORT at which the other nodes find this one."""

    @property
    def name(self) -> str:
        return name_of(self.node, self.ranks)


def name_of(node: int, ranks: list[int] | range) -> str:
    return f"node {node} ({'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))})"


def read_hello(message: Mapping[str, Any]) -> Hello | None:
    """None for what is none."""
    content = message.get("hello")
    if message.get("retexo") != PROTOCOL or not isinstance(content, dict):
        return None
    types = {"node": int, "world_size": int, "ranks": list, "settings": dict}
    if content.keys() != {entry.name for entry in fields(Hello)}:
        return None
    if not all(isinstance(value, types.get(name, str)) for name, value in content.items()):
        return None
    if not all(isinstance(rank, int) for rank in content["ranks"]):
        return None
    return Hello(**content)


def disagreement(first: Hello, other: Hello) -> str | None:
    """What keeps a node from running with node 0; None if nothing does."""
    if other.code != first.code:
        return f"{other.name} runs other code than node 0: {other.code}, not {first.code}; install the same everywhere"
    if other.world_size != first.world_size:
        return f"{other.name} has num_partitions={other.world_size}, node 0 has num_partitions={first.world_size}"
    differing = [
        f"{name}={other.settings.get(name)} instead of {first.settings.get(name)}"
        for name in sorted(first.settings.keys() | other.settings.keys())
        if first.settings.get(name) != other.settings.get(name)
    ]
    if differing:
        return (
            f"{other.name} has other settings than node 0: {'; '.join(differing[:5])}; "
            "start every node with the same command, node_rank apart"
        )
    if other.partition != first.partition:
        return f"{other.name} has another partitioning (its digest differs); copy it the same partition directory"
    return None


def code_version() -> str:
    """Of the program: its version and torch's, and a digest of the installed source."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for path in sorted([*root.glob("retexo/**/*.py"), *root.glob("partitioning/**/*.py")]):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    # A CPU build and a CUDA build, 2.6.0+cpu and 2.6.0, may work together.
    return f"retexo {version('retexo')} (source {digest.hexdigest()[:12]}), torch {version('torch').split('+')[0]}"


class Reception:
    """Node 0 while it waits for the others."""

    def __init__(self, listener: socket.socket, own: Hello, num_nodes: int) -> None:
        self._listener, self._own, self._num_nodes = listener, own, num_nodes
        self._strangers: dict[Channel, float] = {}
        self._surplus: list[Channel] = []
        self.addresses: dict[str, str] = {}
        """Where the nodes that came can be found, by node; JSON has no other keys than strings."""
        self.seats: dict[int, Channel] = {}
        self.problem: str | None = None
        """The first mistake that was found."""

    @property
    def missing(self) -> list[int]:
        return [node for node in range(1, self._num_nodes) if node not in self.seats]

    def wait(self, timeout: float) -> None:
        """Until all nodes have come, or for `timeout` seconds; once a mistake is found not much longer."""
        deadline = time.monotonic() + timeout
        while self.missing and time.monotonic() < deadline:
            before = self.problem
            self._step(min(0.5, deadline - time.monotonic()))
            if before is None and self.problem is not None:
                deadline = min(deadline, time.monotonic() + LINGER)

    def tell(self, verdict: dict[str, Any]) -> None:
        """The verdict to all that came; whoever else is connected is turned away."""
        for channel in (*self.seats.values(), *self._surplus):
            with suppress(ChannelClosed):
                channel.send(verdict)
        for channel in (*self._strangers, *self._surplus):
            channel.close()

    def _step(self, timeout: float) -> None:
        sources: list[Any] = [self._listener, *self._strangers, *self.seats.values()]
        ready: list[Any] = connection.wait(sources, timeout)
        for source in ready:
            if source is self._listener:
                self._accept()
            elif source in self._strangers:
                self._listen_to(source)
            else:
                self._check_still_there(source)
        for channel in [channel for channel, deadline in self._strangers.items() if deadline < time.monotonic()]:
            self._turn_away(channel, "it said nothing")

    def _accept(self) -> None:
        with suppress(OSError):
            channel = Channel(self._listener.accept()[0])
            if len(self._strangers) < MAX_STRANGERS:
                self._strangers[channel] = time.monotonic() + HELLO_TIMEOUT
            else:
                channel.close()

    def _listen_to(self, channel: Channel) -> None:
        try:
            messages = channel.receive()
        except ChannelClosed as error:
            self._turn_away(channel, str(error))
            return
        if not messages:
            return
        hello = read_hello(messages[0])
        if hello is None:
            self._turn_away(channel, "not a node of this program's version")
        elif hello.run_key != self._own.run_key:
            self._turn_away(channel, f"it belongs to another run ({hello.run_key or 'no launcher'})")
        else:
            del self._strangers[channel]
            self._seat(hello, channel)

    def _seat(self, hello: Hello, channel: Channel) -> None:
        problem = disagreement(self._own, hello)
        if problem is None and (hello.node == 0 or hello.node in self.seats):
            problem = f"{hello.name} is there twice; give every node its own node_rank"
        elif problem is None and not 0 < hello.node < self._num_nodes:
            problem = f"node_rank={hello.node}: there are {self._num_nodes} nodes"
        self.problem = self.problem or problem
        if hello.node in self.missing:
            self.seats[hello.node] = channel
            self.addresses[str(hello.node)] = hello.address
        else:
            self._surplus.append(channel)

    def _check_still_there(self, channel: Channel) -> None:
        """A node that ended while it waited may come again."""
        try:
            channel.receive()
        except ChannelClosed:
            self.seats = {node: other for node, other in self.seats.items() if other is not channel}
            channel.close()

    def _turn_away(self, channel: Channel, why: str) -> None:
        logger.warning("turned away a connection from %s: %s", channel.peer, why)
        with suppress(ChannelClosed):
            channel.send({"refused": why})
        self._strangers.pop(channel, None)
        channel.close()
