"""The check before anything is started: all nodes of a run have connected, and are about to run the same thing.

Each node sends a `NodeInfo`, and node 0 compares it with its own (`mismatch`). A node that does not match is told why at
once. The start ends with the same message, on all nodes, unless a matching node takes the place within MISMATCH_WAIT:
without certificates and without a run key, the other one may have been a stranger.
"""

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from partitioning.file_io import check_types
from retexo import __version__
from retexo.launch.accepted_connections import Listener, PendingConnections
from retexo.launch.addresses import split
from retexo.launch.control_channel import Channel, ChannelClosed, printable
from retexo.sites.tls import Tls

PROTOCOL = 1
MISMATCH_WAIT = 5.0
"""seconds that node 0 waits after a mismatch for a matching node in the same place"""


@dataclass(frozen=True)
class NodeInfo:
    """What a node is about to run."""

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
    backend: str
    """distributed.backend; a run may be resumed with another."""
    address: str
    """ADDRESS:PORT at which the other nodes find this one."""
    credentials: str = ""
    """Credentials.numbers; empty in the clear."""

    @property
    def name(self) -> str:
        return name_of(self.node, self.ranks)


def name_of(node: int, ranks: list[int] | range) -> str:
    return f"node {node} ({'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))})"


def parse_node_info(message: Mapping[str, Any]) -> NodeInfo | None:
    """The NodeInfo of a message; None if there is none in it, or one of another form."""
    try:
        info = NodeInfo(**message["node"])
        check_types(info)
        split(info.address)
    except (KeyError, TypeError, ValueError):
        return None
    fits = all(isinstance(rank, int) for rank in info.ranks)
    return info if message.get("retexo") == PROTOCOL and fits else None


def mismatch(first: NodeInfo, other: NodeInfo) -> str | None:
    """Why a node cannot run together with node 0; None if it can."""
    if other.code != first.code:
        return f"{other.name} runs other code than node 0: {other.code}, not {first.code}; install the same everywhere"
    if other.credentials != first.credentials:
        return (
            f"{other.name} has other lists of the authority than node 0: {other.credentials}, not "
            f"{first.credentials}; give all nodes the newest"
        )
    if other.world_size != first.world_size:
        return f"{other.name} has num_partitions={other.world_size}, node 0 has num_partitions={first.world_size}"
    if other.backend != first.backend:
        return f"{other.name} has distributed.backend={other.backend}, node 0 has distributed.backend={first.backend}"
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


def has_nothing_in_common(first: NodeInfo, other: NodeInfo) -> bool:
    """Whether code, settings and partitioning all differ: the run's own nodes share one of them at least."""
    return (
        other.code != first.code
        and other.settings != first.settings
        and other.partition != first.partition
    )


def code_version() -> str:
    """The versions of this program and of torch, and a digest of the installed source."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for path in sorted([*root.glob("retexo/**/*.py"), *root.glob("partitioning/**/*.py")]):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    # A CPU build and a CUDA build, 2.6.0+cpu and 2.6.0, may work together.
    return f"retexo {__version__} (source {digest.hexdigest()[:12]}), torch {version('torch').split('+')[0]}"


class Coordinator:
    """Node 0's side: accepts connections until all other nodes have joined."""

    def __init__(
        self, listener: Listener, own: NodeInfo, num_nodes: int, tls: Tls | None = None
    ) -> None:
        self._own, self._num_nodes, self._tls = own, num_nodes, tls
        self._pending = PendingConnections(listener, tls)
        self._misfits: dict[int, tuple[float, str]] = {}
        """By node: the time at which its mismatch ends the start, and the message."""
        self.addresses: dict[str, str] = {}
        """Where each node that joined listens, by node; keys of JSON are strings."""
        self.joined: dict[int, Channel] = {}

    @property
    def problem(self) -> str | None:
        """The first mismatch; None if all nodes have joined nevertheless."""
        messages = [message for _, message in self._misfits.values()]
        return messages[0] if messages and self.missing else None

    @property
    def missing(self) -> list[int]:
        return [node for node in range(1, self._num_nodes) if node not in self.joined]

    def wait(self, timeout: float) -> None:
        """Wait until all nodes have joined, a mismatch ends the start, or `timeout` seconds have passed."""
        timeout_at = time.monotonic() + timeout
        while self.missing:
            if self._knows_its_nodes and self._misfits.keys() >= set(self.missing):
                return  # nobody else can take these places
            deadline = min([timeout_at, *(deadline for deadline, _ in self._misfits.values())])
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                return
            self._step(min(0.5, seconds))

    def send_reply(self, reply: dict[str, Any]) -> None:
        """Send the reply to all nodes, and close every other connection."""
        for channel in self.joined.values():
            with suppress(ChannelClosed):
                channel.send(reply)
        self._pending.close()

    @property
    def _knows_its_nodes(self) -> bool:
        """Whether only those with a certificate, or the run key, are compared."""
        return self._tls is not None or self._own.run_key != ""

    def _step(self, timeout: float) -> None:
        first_messages, readable = self._pending.wait(timeout, list(self.joined.values()))
        for channel in readable:
            self._check_connected(channel)
        self._pending.answer(first_messages, self._read_info)

    def _read_info(self, channel: Channel, message: dict[str, Any]) -> None:
        info = parse_node_info(message)
        if info is None:
            self._pending.reject(channel, "not a node of this program's version")
        elif not channel.speaks_for(info.node):
            whose = (
                "no certificate"
                if channel.node is None
                else f"the certificate of node {channel.node}"
            )
            self._pending.reject(channel, f"it says that it is node {info.node}, and has {whose}")
        elif info.run_key != self._own.run_key:
            other_run = printable(info.run_key) or "no launcher"
            self._pending.reject(channel, f"it belongs to another run ({other_run})")
        elif not self._knows_its_nodes and has_nothing_in_common(self._own, info):
            self._pending.reject(
                channel, "its code, settings and partitioning all differ from node 0's"
            )
        else:
            self._admit(info, channel)

    def _admit(self, info: NodeInfo, channel: Channel) -> None:
        difference = mismatch(self._own, info)
        problem = difference or self._wrong_place(info)
        if problem is None:
            self.joined[info.node] = channel
            self.addresses[str(info.node)] = info.address
            self._misfits.pop(info.node, None)
            return
        problem = printable(problem)
        if difference is None or info.node not in self.joined:
            self._misfits.setdefault(info.node, (time.monotonic() + MISMATCH_WAIT, problem))
        self._pending.reject(channel, problem, {"mistake": problem})

    def _wrong_place(self, info: NodeInfo) -> str | None:
        """Why a node cannot have the place that it asks for; None if it can."""
        if info.node == 0 or info.node in self.joined:
            return f"{info.name} is there twice; give every node its own node_rank"
        if info.node >= self._num_nodes:
            return f"node_rank={info.node}: there are {self._num_nodes} nodes"
        return None

    def _check_connected(self, channel: Channel) -> None:
        """Forget a node that disconnected while it waited: it may connect again."""
        try:
            channel.receive()
        except ChannelClosed:
            self.joined = {
                node: other for node, other in self.joined.items() if other is not channel
            }
            channel.close()
