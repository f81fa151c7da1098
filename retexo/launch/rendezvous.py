"""Connect the nodes of a run: one TCP connection between the parents of every two nodes.

Node 0 listens at distributed.master_addr:master_port until all nodes have connected, compares what
they are about to run, and sends the same reply to all. The connections stay open for heartbeats and
failures. Workers have a rendezvous of their own (comm/process_group.py).
"""

import hashlib
import hmac
import json
import logging
import re
import secrets
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeGuard

from partitioning.errors import InputError
from retexo.comm.process_group import Rendezvous, serving_store
from retexo.errors import Interrupted, TrainingError
from retexo.launch.accepted_connections import AcceptedConnections, Listener
from retexo.launch.addresses import THROUGH_HUB, master_address, open_endpoint, split_address
from retexo.launch.control_channel import (
    RETRY_INTERVAL,
    Channel,
    ChannelClosed,
    Disconnected,
    connect,
    connect_with,
    decode,
    encode,
    make_printable,
)
from retexo.launch.handshake import (
    PROTOCOL,
    Coordinator,
    NodeInfo,
    RunInfo,
    code_version,
    describe_node,
)
from retexo.launch.hub import Hub
from retexo.launch.interfaces import loopback
from retexo.launch.security import Security
from retexo.launch.worker_streams import StreamsByRank
from retexo.settings.cluster_settings import ClusterSettings
from retexo.settings.flatten import flatten

logger = logging.getLogger(__name__)

REPLY_MARGIN = 10.0
"""Seconds that a node waits for a reply beyond its time limit: node 0 may have started later."""
CONNECT_TIMEOUT = 20.0
"""Seconds within which the nodes besides node 0 have to connect to each other."""
REDIAL_INTERVAL = 5.0
"""Seconds after which node 0's address is looked up again: node 0 may have been restarted."""
PROOF_LENGTH = 64
"""Hexadecimal digits of a proof."""

Key = tuple[int, ...]
"""A connection between two nodes: the node that opens it; of a stream, also the ranks of its ends.
"""
Addresses = Mapping[int, tuple[str, int]]
"""Host and port of other nodes, or THROUGH_HUB and the node."""


@dataclass(frozen=True)
class TimeLimit:
    """Seconds that a setting allows."""

    setting: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.setting}={round(self.seconds, 1):g} s"


@dataclass
class Node:
    """This node, connected to all others."""

    cluster: ClusterSettings
    run_id: str
    rendezvous: Rendezvous
    links: dict[int, Channel] = field(default_factory=dict)
    """Connections to the parents of the other nodes, by node."""
    streams: StreamsByRank | None = None
    """To workers of other nodes; None for gloo, whose workers connect themselves."""

    @property
    def rank(self) -> int:
        return self.cluster.node_rank


@contextmanager
def connect_nodes(
    cluster: ClusterSettings,
    run: RunInfo,
    security: Security | None = None,
    rejoin_seconds: float | None = None,
) -> Iterator[Node]:
    """Connect to the other nodes and check that all are about to run the same.

    Args:
        security: from retexo.sites; None for connections in the clear.
        rejoin_seconds: at a restart, seconds until all nodes have to be there, in place of
            distributed.init_timeout.

    Raises:
        InputError: nodes do not match; the same message on all nodes.
        Interrupted: a connection broke meanwhile; at a restart also if this node has no network.
        TrainingError: a node did not come in time.
    """
    security = security or Security()
    if rejoin_seconds is None:
        limit = TimeLimit("distributed.init_timeout", cluster.init_timeout)
    else:
        limit = TimeLimit("distributed.rejoin_timeout", rejoin_seconds)
    with ExitStack() as stack:
        if cluster.num_nodes == 1:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="retexo-")))
            run_id = secrets.token_hex(8)
            rendezvous = _make_rendezvous(cluster, loopback(), run_id, file=folder / "rendezvous")
            yield Node(cluster, run_id, rendezvous, streams=_empty_streams(cluster))
            return
        if security.tls is None:
            logger.warning(
                "traffic between the nodes is not encrypted: use a network that you trust"
                " (SECURITY.md)"
            )
        try:
            endpoint = open_endpoint(cluster, security.hub, limit.seconds)
        except InputError as error:
            if rejoin_seconds is None:
                raise
            raise Interrupted(str(error)) from error
        stack.callback(endpoint.listener.close)
        own = NodeInfo(
            run_key=cluster.run_key,
            node=cluster.node_rank,
            ranks=list(cluster.local_ranks),
            world_size=cluster.num_partitions,
            code=code_version(),
            settings=decode(encode(flatten(run.settings))),
            partition=run.partition,
            backend=cluster.backend,
            address=endpoint.address,
            credentials=security.tls.lists if security.tls is not None else "",
            resumes=run.resumes,
            num_saved=run.num_saved,
        )
        participant = Participant(
            cluster, endpoint.interface, own, endpoint.listener, security, limit
        )
        if cluster.node_rank == 0:
            node = _coordinate(participant, run.partition_mismatch, stack)
        else:
            node = _join(participant)
        endpoint.listener.close()
        for channel in node.links.values():
            stack.callback(channel.close)
        logger.info("%s: run %s, interface %s", own.name, node.run_id, endpoint.interface)
        yield node


@dataclass(frozen=True, eq=False)
class Participant:
    """A node while it connects to the others."""

    cluster: ClusterSettings
    interface: str
    own: NodeInfo
    listener: Listener
    security: Security
    limit: TimeLimit

    @property
    def hub(self) -> Hub | None:
        return self.security.hub

    def connect(
        self, address: str, port: int, timeout: float, node: int, *, encrypted: bool = True
    ) -> Channel:
        """Connect to an address (control_channel.connect), or to node `port` through the hub.

        The hub is used if the address is THROUGH_HUB.
        """
        tls = self.security.tls if encrypted else None
        if self.hub is None or address != THROUGH_HUB:
            return connect(address, port, timeout, tls, node)
        return connect_with(partial(self.hub.reach, port), timeout, tls, node)

    def make_node(self, secret: str, store: str, found: Mapping[Key, Channel]) -> Node:
        """Make the Node of this run from the connections to the other nodes.

        Args:
            secret: known to the nodes of this run only.
            store: ADDRESS:PORT of gloo's store; else empty.
        """
        run_id, tls = hashlib.sha256(secret.encode()).hexdigest()[:16], self.security.tls
        address, port = split_address(store) if store else ("", 0)
        rendezvous = replace(
            _make_rendezvous(self.cluster, self.interface, run_id, address=address, port=port),
            security=None if tls is None else tls.secure_stream,
            identity=f"{run_id} {tls.members if tls is not None else ''}",
            parts_per_node=self.cluster.parts_per_node,
        )
        links = {key[0]: channel for key, channel in found.items() if len(key) == 1}
        node = Node(self.cluster, run_id, rendezvous, links, _empty_streams(self.cluster))
        for key, channel in found.items():
            if node.streams is not None and len(key) == 3:
                own, other = (key[1], key[2]) if key[1] in self.own.ranks else (key[2], key[1])
                node.streams.setdefault(own, {})[other] = channel.detach()
        return node

    def keys_with(self, other: int, addresses: Addresses) -> set[Key]:
        """The connections between another node and this one.

        A node that is reached only through the hub opens its connections to a node that can be
        reached directly; else the node with the higher number opens them. Links to node 0 exist
        before it is known who can be reached.
        """
        through_hub = {node for node, (address, _) in addresses.items() if address == THROUGH_HUB}
        if self.own.address.startswith(THROUGH_HUB):
            through_hub.add(self.own.node)
        if self.hub is not None and self.hub.node == 0:
            through_hub.discard(0)  # it is the hub
        pair = {self.own.node, other}
        opener = max(pair, key=lambda node: (node in through_hub, node))
        link = (max(pair) if 0 in pair else opener,)
        if self.cluster.backend != "sockets":
            return {link}
        ranks = product(self.cluster.ranks_of(opener), self.cluster.ranks_of(*pair - {opener}))
        return {link, *((opener, *two) for two in ranks)}


def _coordinate(participant: Participant, partition_mismatch: str, stack: ExitStack) -> Node:
    """Node 0: wait for the others, reply to all, and wait until they have connected pairwise."""
    cluster = participant.cluster
    coordinator = Coordinator(
        participant.listener,
        participant.own,
        cluster.num_nodes,
        participant.security.tls,
        partition_mismatch,
    )
    coordinator.wait(participant.limit.seconds)
    if coordinator.problem is not None:
        coordinator.send_reply({"mistake": coordinator.problem})
        raise InputError(coordinator.problem)
    if coordinator.missing:
        absent = " and ".join(
            describe_node(node, cluster.ranks_of(node)) for node in coordinator.missing
        )
        message = f"{absent} did not come within {participant.limit}"
        coordinator.send_reply({"absent": message})
        raise TrainingError(message)
    secret, store = secrets.token_hex(16), ""
    addresses = {
        int(node): split_address(address) for node, address in coordinator.addresses.items()
    }
    if cluster.backend != "sockets":
        host = participant.own.address.rpartition(":")[0]
        store = f"{host}:{stack.enter_context(serving_store(host))}"
    coordinator.send_reply({"run": secret, "store": store, "nodes": coordinator.addresses})
    found, problem = _connect_peers(participant, secret, addresses, coordinator.joined)
    problem = problem or _peer_problem(cluster, coordinator.joined)
    coordinator.send_reply({"problem": problem} if problem is not None else {"go": True})
    if problem is not None:
        raise Interrupted(problem)
    joined = {(node,): link for node, link in coordinator.joined.items()}
    return participant.make_node(secret, store, found | joined)


def _peer_problem(cluster: ClusterSettings, joined: Mapping[int, Channel]) -> str | None:
    """Wait until all nodes have connected to each other; the reason if one could not."""
    for node, channel in joined.items():
        try:
            answer = channel.receive_one(CONNECT_TIMEOUT + REPLY_MARGIN)
        except ChannelClosed as error:
            return (
                f"{describe_node(node, cluster.ranks_of(node))} ended before the run began: {error}"
            )
        if "ready" not in answer:
            return make_printable(answer.get("problem"))
    return None


def _join(participant: Participant) -> Node:
    """Another node: connect to node 0, send it the NodeInfo, and follow its reply."""
    own = participant.own
    channel, reply, address, port = _ask_to_join(participant)
    where = f"{address}:{port}"
    try:
        _check_reply(reply, own, where)
        secret, store, addresses = _parse_start(reply)
        addresses[0] = address, port
        found, problem = _connect_peers(participant, secret, addresses, {0})
        channel.send({"ready": True} if problem is None else {"problem": problem})
        _check_reply(channel.receive_one(CONNECT_TIMEOUT + REPLY_MARGIN), own, where)
        return participant.make_node(secret, store, {(0,): channel, **found})
    except ChannelClosed as error:
        raise _early_end_error(where, error) from error


def _early_end_error(where: str, error: ChannelClosed) -> Interrupted:
    """Return the error for a connection to node 0 that was closed before the run began."""
    return Interrupted(
        f"node 0 at {where} ended before the run began, or is another program: {error}"
    )


def _ask_to_join(participant: Participant) -> tuple[Channel, dict[str, Any], str, int]:
    """Connect to node 0 and wait for its reply; again, until the time limit, if it sends none.

    Returns:
        The connection, the reply, and node 0's address and port.
    """
    cluster, limit = participant.cluster, participant.limit
    deadline = time.monotonic() + limit.seconds
    shown = ""
    while True:
        address, port = master_address(cluster)
        where = f"{address}:{port}"
        if where != shown:
            logger.info(
                "node %d: node 0 is at %s (interface %s)",
                participant.own.node,
                where,
                participant.interface,
            )
            shown = where
        seconds = min(REDIAL_INTERVAL, deadline - time.monotonic())
        try:
            channel = participant.connect(address, port, seconds, 0)
        except ChannelClosed as error:
            raise _early_end_error(where, error) from error
        except OSError as error:
            if time.monotonic() + RETRY_INTERVAL < deadline:
                continue
            raise TrainingError(
                f"{describe_node(0, cluster.ranks_of(0))} was not reached at {where} within"
                f" {limit}: {error}; start it, or, if it runs, it had all its nodes already or a"
                " firewall is in between"
            ) from error
        try:
            channel.send({"retexo": PROTOCOL, "node": asdict(participant.own)})
            return channel, channel.receive_one(limit.seconds + REPLY_MARGIN), address, port
        except ChannelClosed as error:
            channel.close()
            if not isinstance(error, Disconnected) or time.monotonic() + RETRY_INTERVAL > deadline:
                raise _early_end_error(where, error) from error
            time.sleep(RETRY_INTERVAL)


def _parse_start(reply: Mapping[str, Any]) -> tuple[str, str, dict[int, tuple[str, int]]]:
    """The run's secret, its store's address, and those of the other nodes; else ChannelClosed."""
    try:
        addresses = {int(node): split_address(address) for node, address in reply["nodes"].items()}
        if reply["store"]:
            split_address(reply["store"])
        return str(reply["run"]), reply["store"], addresses
    except (KeyError, ValueError, AttributeError) as error:
        raise ChannelClosed(f"not a reply of node 0: {make_printable(reply)}") from error


def _check_reply(reply: Mapping[str, Any], own: NodeInfo, where: str) -> None:
    """Raise the error that node 0 reports, if any."""
    if "refused" in reply:
        raise InputError(
            f"distributed.master_port: the program at {where} refused {own.name}: "
            f"{make_printable(reply['refused'])}; choose another port for this run"
        )
    if "mistake" in reply:
        raise InputError(make_printable(reply["mistake"]))
    if "absent" in reply:
        raise TrainingError(make_printable(reply["absent"]))
    if "problem" in reply:
        raise Interrupted(make_printable(reply["problem"]))


def _connect_peers(
    participant: Participant, secret: str, addresses: Addresses, linked: Collection[int]
) -> tuple[dict[Key, Channel], str | None]:
    """Connect every two nodes: only they can notice when the network between them fails.

    Args:
        linked: nodes whose parents are connected to this one already.

    Returns:
        The connections, keyed by the other node, and the reason if one could not be made.
    """
    cluster, own = participant.cluster, participant.own
    found: dict[Key, Channel] = {}
    expected: set[Key] = set()
    for other in sorted({*addresses} - {own.node}):
        address, port = addresses[other]
        keys = {
            key
            for key in participant.keys_with(other, addresses)
            if len(key) > 1 or other not in linked
        }
        expected |= {key for key in keys if key[0] == other}
        try:
            for key in sorted(keys - expected):
                # Over a stream the workers do a handshake of their own.
                channel = participant.connect(
                    address, port, CONNECT_TIMEOUT, other, encrypted=len(key) == 1
                )
                found[(other, *key[1:])] = channel
                channel.send({"proof": _proof(secret, key), "from": key})
        except OSError as error:
            them = describe_node(other, cluster.ranks_of(other))
            return (
                found,
                (
                    f"{own.name} cannot reach {them} at {address}:{port}: {error}; open the network"
                    " between them"
                ),
            )
    accepted, problem = _accept(participant, secret, expected)
    return found | accepted, problem


def _accept(
    participant: Participant, secret: str, expected: set[Key]
) -> tuple[dict[Key, Channel], str | None]:
    """The connections that other nodes open, and a message if some are missing."""
    found: dict[Key, Channel] = {}
    accepted = AcceptedConnections(participant.listener, participant.security.tls)
    deadline = time.monotonic() + CONNECT_TIMEOUT

    def admit(channel: Channel, message: Mapping[str, Any]) -> None:
        key = _key_of(message, secret)
        if key not in expected - found.keys():
            raise ChannelClosed("not a node of this run")
        if len(key) == 3:
            channel.detach()  # raises ChannelClosed now, not later, if it has sent more
        elif not channel.speaks_for(key[0]):
            raise ChannelClosed("not a node of this run")
        found[key] = channel

    while expected - found.keys() and time.monotonic() < deadline:
        accepted.answer(accepted.wait(min(0.5, deadline - time.monotonic()))[0], admit)
    accepted.close()
    absent = sorted({key[0] for key in expected - found.keys()})
    if not absent:
        return found, None
    names = ", ".join(describe_node(node, participant.cluster.ranks_of(node)) for node in absent)
    return found, f"{names} did not reach {participant.own.name} within {CONNECT_TIMEOUT:g} s"


def _key_of(message: Mapping[str, Any], secret: str) -> Key:
    """Return the key in a connection's first message; () if malformed, or its HMAC is wrong."""
    key, proof = message.get("from"), message.get("proof")
    if not (
        isinstance(key, list) and len(key) in (1, 3) and all(type(each) is int for each in key)
    ):
        return ()
    if not _is_proof(proof):
        return ()
    return tuple(key) if hmac.compare_digest(proof, _proof(secret, tuple(key))) else ()


def _is_proof(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and re.fullmatch(rf"[0-9a-f]{{{PROOF_LENGTH}}}", text) is not None


def _proof(secret: str, key: Key) -> str:
    """Shows that the sender knows the run's secret; valid for one connection."""
    return hmac.digest(secret.encode(), json.dumps(key).encode(), "sha256").hex()


def _empty_streams(cluster: ClusterSettings) -> StreamsByRank | None:
    """Return an empty table of streams for backend=sockets.

    Returns None for gloo, which opens its own connections.
    """
    return {} if cluster.backend == "sockets" else None


def _make_rendezvous(
    cluster: ClusterSettings,
    interface: str,
    run_id: str,
    *,
    file: Path | None = None,
    address: str = "",
    port: int = 0,
) -> Rendezvous:
    """Return where and how the workers connect, by the settings of the cluster."""
    return Rendezvous(
        cluster.num_partitions,
        interface,
        file,
        address,
        port,
        init_timeout=cluster.init_timeout,
        timeout=cluster.timeout,
        run_id=run_id,
    )
