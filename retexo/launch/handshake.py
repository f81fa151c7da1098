"""Node 0's check, before anything is started, that all nodes are about to run the same.

Each node sends a `NodeInfo`, which node 0 compares with its own (`find_mismatch`). A node that
differs is told why. The start then ends with that message on all nodes, unless a matching node
takes the place within MISMATCH_WAIT: without certificates and a run key the first may have been a
stranger.
"""

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from partitioning.files.json_shape import WHOLE, check_shape
from retexo import __version__
from retexo.launch.addresses import split_address
from retexo.launch.channels import (
    AcceptedConnections,
    Channel,
    ChannelClosed,
    Listener,
    Message,
    make_printable,
)
from retexo.launch.tls import Tls
from retexo.settings.cluster_settings import ClusterSettings

MISMATCH_WAIT = 5.0
"""Seconds that node 0 waits after a mismatch for a matching node in the same place, and for the
other nodes, which it tells of the mismatch."""


SHAPE = {
    **dict.fromkeys(("run_key", "code", "address", "credentials"), str),
    "node": WHOLE,
    "run": {
        "settings": {"*": object},
        **dict.fromkeys(("partition", "partition_mismatch?"), str),
        "num_saved?": (WHOLE, None),
    },
}
"""Of a NodeInfo as JSON."""


@dataclass(frozen=True)
class RunInfo:
    """What is about to run, as far as all nodes have to agree on it."""

    settings: Mapping[str, Any]
    """Settings that have to be the same on every node."""
    partition: str
    """Digest of the partition directory."""
    partition_mismatch: str = "another partitioning; copy it the same partition directory"
    """What differs where the digest does, and the remedy."""
    num_saved: int | None = None
    """Saved states of the local worker with the fewest; None without the description of a run."""


@dataclass(frozen=True)
class NodeInfo:
    """What a node is about to run."""

    run_key: str
    """Separates runs that use the same port by accident; empty without a launcher."""
    node: int
    code: str
    """Versions and a digest of the program."""
    address: str
    """ADDRESS:PORT at which the other nodes reach this one."""
    credentials: str
    """Members and list of revoked certificates (Tls.lists); empty in the clear."""
    run: RunInfo
    """With its settings by dotted name."""


def parse_node_info(message: Message) -> NodeInfo:
    """Return the NodeInfo in a message; ChannelClosed without one, or for one of another form."""
    try:
        content = message["node"]
        check_shape(content, SHAPE, "node")
        info = NodeInfo(**{**content, "run": RunInfo(**content["run"])})
        split_address(info.address)
    except (KeyError, TypeError, ValueError) as error:
        raise ChannelClosed("not a node of this program's version") from error
    return info


def find_mismatch(first: NodeInfo, other: NodeInfo, cluster: ClusterSettings) -> str | None:
    """Return why a node cannot run together with node 0; None if it can."""
    name = cluster.describe_node(other.node)
    if other.code != first.code:
        return (
            f"{name} runs other code than node 0: {other.code}, not {first.code}; install the"
            " same version"
        )
    if other.credentials != first.credentials:
        return (
            f"{name} has other lists of the authority than node 0: {other.credentials}, not "
            f"{first.credentials}; copy the newest to all nodes"
        )
    own, theirs = first.run.settings, other.run.settings
    differing = [
        f"{key}={theirs.get(key)} instead of {own.get(key)}"
        for key in sorted(own.keys() | theirs.keys())
        if own.get(key) != theirs.get(key)
    ]
    if differing:
        return (
            f"{name} has other settings than node 0: {'; '.join(differing[:5])}; "
            "start every node with the same command, node_rank apart"
        )
    if other.run.partition != first.run.partition:
        return f"{name} has {first.run.partition_mismatch}"
    for one, peer in ((first, other), (other, first)):
        # Every node describes its run before any worker starts. So a node without a description
        # has lost it once others have saved states. While workers save their first state, one may
        # have it and another none yet.
        most_expected = 0 if one.run.num_saved is None else 1
        if not one.run.num_saved and (peer.run.num_saved or 0) > most_expected:
            return (
                f"{cluster.describe_node(one.node)} has no saved state in its run directory and"
                f" {cluster.describe_node(peer.node)} has one; restore the directory, or begin anew"
                " in another hydra.run.dir without resume"
            )
    return None


def has_nothing_in_common(first: NodeInfo, other: NodeInfo) -> bool:
    """Return whether code, settings and partitioning all differ.

    Nodes of one run share at least one.
    """
    return (
        other.code != first.code
        and other.run.settings != first.run.settings
        and other.run.partition != first.run.partition
    )


def code_version() -> str:
    """Return the versions of this program and of torch, and a digest of the installed source."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for path in sorted([*root.glob("retexo/**/*.py"), *root.glob("partitioning/**/*.py")]):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    # A CPU build and a CUDA build, 2.6.0+cpu and 2.6.0, may work together.
    return (
        f"retexo {__version__} (source {digest.hexdigest()[:12]}), torch"
        f" {version('torch').split('+')[0]}"
    )


class Coordinator:
    """Node 0's side: accepts connections until all other nodes have joined."""

    def __init__(
        self,
        listener: Listener,
        own: NodeInfo,
        cluster: ClusterSettings,
        tls: Tls | None = None,
    ) -> None:
        self._own, self._cluster, self._tls = own, cluster, tls
        self._accepted = AcceptedConnections(listener, tls)
        self._mismatches: dict[int, tuple[float, str]] = {}
        """By node: the time at which its mismatch ends the start, and the message."""
        self.addresses: dict[int, str] = {}
        """Where each joined node listens, by node."""
        self.joined: dict[int, Channel] = {}

    @property
    def problem(self) -> str | None:
        """Return the first mismatch; None if all nodes have joined nevertheless."""
        messages = [message for _, message in self._mismatches.values()]
        return messages[0] if messages and self.missing else None

    @property
    def missing(self) -> list[int]:
        """Numbers of the nodes that have not joined."""
        return [node for node in range(1, self._cluster.num_nodes) if node not in self.joined]

    def wait(self, timeout: float) -> None:
        """Wait at most `timeout` seconds until all nodes joined or a mismatch ends the start.

        `missing`, `joined` and `problem` then tell how it went.
        """
        timeout_at = time.monotonic() + timeout
        while self.missing:
            deadline = min([timeout_at, *(deadline for deadline, _ in self._mismatches.values())])
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                return
            self._accepted.step(min(0.5, seconds), self._answer)
            for channel in [*self.joined.values()]:
                self._check_connected(channel)

    def send_reply(self, reply: dict[str, Any]) -> None:
        """Send the reply to all nodes but those that are gone; close every other connection."""
        for channel in self.joined.values():
            with suppress(ChannelClosed):
                channel.send(reply)
        self._accepted.close()

    def _answer(self, channel: Channel, message: Message) -> None:
        """Let a node join, or tell it why it does not fit.

        ChannelClosed for a stranger, who is turned away and forgotten.
        """
        info = parse_node_info(message)
        if not channel.speaks_for(info.node):
            own = "no certificate"
            if channel.node is not None:
                own = f"the certificate of node {channel.node}"
            raise ChannelClosed(f"it claims to be node {info.node}, and has {own}")
        if info.run_key != self._own.run_key:
            other_run = make_printable(info.run_key) or "no launcher"
            raise ChannelClosed(f"it belongs to another run ({other_run})")
        knows_strangers = self._tls is not None or self._own.run_key != ""
        if not knows_strangers and has_nothing_in_common(self._own, info):
            raise ChannelClosed("its code, settings and partitioning all differ from node 0's")
        if info.node in self.joined:
            self._check_connected(self.joined[info.node])  # it may have ended a moment ago
        difference = find_mismatch(self._own, info, self._cluster)
        problem = make_printable(difference or self._wrong_node_rank(info) or "")
        if not problem:
            self.joined[info.node] = channel
            self.addresses[info.node] = info.address
            self._mismatches.pop(info.node, None)
            return
        if difference is None or info.node not in self.joined:
            self._mismatches.setdefault(info.node, (time.monotonic() + MISMATCH_WAIT, problem))
        self._accepted.reject(channel, problem, {"mistake": problem})

    def _wrong_node_rank(self, info: NodeInfo) -> str | None:
        """Return why a node cannot have the node_rank that it asks for; None if it can."""
        if info.node == 0 or info.node in self.joined:
            name = self._cluster.describe_node(info.node)
            return f"{name} has joined already; give every node its own node_rank"
        if info.node >= self._cluster.num_nodes:
            return f"node_rank={info.node}: there are {self._cluster.num_nodes} nodes"
        return None

    def _check_connected(self, channel: Channel) -> None:
        """Forget a node that disconnected while it waited; it may connect again."""
        try:
            channel.receive()
        except ChannelClosed:
            self.joined = {
                node: other for node, other in self.joined.items() if other is not channel
            }
            channel.close()
