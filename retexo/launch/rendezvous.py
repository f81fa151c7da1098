"""Connect the nodes of a run: one TCP connection between the parent processes of any two of them.

Node 0 listens at distributed.master_addr:master_port until all nodes have connected, compares what they are about to
run, and sends all of them the same reply. The connections stay open for heartbeats, failures and the end of the run.
Workers have a store of their own for their rendezvous (comm/process_group.py).
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
from retexo.errors import TrainingError
from retexo.launch.accepted_connections import Listener, PendingConnections
from retexo.launch.addresses import BY_HUB, master_place, open_place, split
from retexo.launch.control_channel import (
    RETRY_INTERVAL,
    Channel,
    ChannelClosed,
    Disconnected,
    connect,
    connect_by,
    decode,
    encode,
    printable,
)
from retexo.launch.handshake import PROTOCOL, Coordinator, NodeInfo, code_version, name_of
from retexo.launch.interfaces import loopback
from retexo.launch.take_up import Key, Reopening, dialled
from retexo.launch.worker_streams import StreamsByRank
from retexo.settings.cluster_settings import ClusterSettings
from retexo.settings.flatten import flatten
from retexo.sites.credentials import read_credentials
from retexo.sites.hub import Hub
from retexo.sites.tls import Tls

logger = logging.getLogger(__name__)

START_MARGIN = 10.0
"""seconds that a node waits for a reply beyond node 0's own time limit: node 0 may have started later"""
CONNECT_TIMEOUT = 20.0
"""seconds within which the nodes besides node 0 have to connect to each other"""
PROOF_LENGTH = 64
"""hexadecimal digits of a proof"""
FRESH_LENGTH = 32
"""hexadecimal digits of the number drawn for one attempt"""

Addresses = Mapping[int, tuple[str, int]]
"""Where other nodes are reached: address and port, or BY_HUB and the node."""


@dataclass
class Node:
    """This node, connected to all others."""

    cluster: ClusterSettings
    run_id: str
    rendezvous: Rendezvous
    links: dict[int, Channel] = field(default_factory=dict)
    """Connections to the other nodes, by node."""
    streams: StreamsByRank | None = None
    """To workers of other nodes; None where these connect by gloo."""
    reopening: Reopening | None = None
    """By which broken ones are taken up again; None with one node, and with gloo."""

    @property
    def rank(self) -> int:
        return self.cluster.node_rank


@contextmanager
def connect_nodes(
    cluster: ClusterSettings, settings: Mapping[str, Any], partition: str
) -> Iterator[Node]:
    """Connect to the other nodes of the run, and check that all are about to run the same.

    Raises InputError, the same on all nodes, where they do not match; TrainingError where a node does not connect.
    """
    with ExitStack() as stack:
        if cluster.num_nodes == 1:
            file = (
                Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="retexo-")))
                / "rendezvous"
            )
            run_id = secrets.token_hex(8)
            meeting = _rendezvous(cluster, loopback(), run_id, file=file)
            yield Node(cluster, run_id, meeting, streams=_no_streams(cluster))
            return
        credentials = None
        if cluster.encrypted:
            assert cluster.credentials is not None
            credentials = read_credentials(
                Path(cluster.credentials), cluster.node_rank, cluster.num_nodes
            )
        else:
            logger.warning(
                "between the nodes nothing is encrypted: use a network that you trust (SECURITY.md)"
            )
        tls = Tls(credentials) if credentials else None
        hub = None
        if tls is not None and credentials is not None and cluster.hub is not None:
            own_hub = (
                len(credentials.members) == cluster.num_nodes
            )  # nobody is listed behind the nodes
            hub = Hub(*cluster.hub_address, tls, 0 if own_hub else cluster.num_nodes)
        is_first = cluster.node_rank == 0
        place = open_place(cluster, hub)
        stack.callback(place.listener.close)
        own = NodeInfo(
            run_key=cluster.run_key,
            node=cluster.node_rank,
            ranks=list(cluster.local_ranks),
            world_size=cluster.num_partitions,
            code=code_version(),
            settings=decode(encode(flatten(settings))),
            partition=partition,
            backend=cluster.backend,
            address=place.address,
            credentials=credentials.numbers if credentials else "",
        )
        participant = Participant(cluster, place.interface, own, place.listener, tls, hub)
        node = _coordinate(participant, stack) if is_first else _join(participant)
        if node.reopening is None:
            place.listener.close()
        else:
            stack.callback(node.reopening.end)
        for channel in node.links.values():
            stack.callback(channel.close)
        per_node = cluster.parts_per_node
        node = replace(
            node,
            rendezvous=replace(node.rendezvous, credentials=credentials, parts_per_node=per_node),
        )
        logger.info(
            "%s: run %s, workers listen on interface %s alone",
            own.name,
            node.run_id,
            place.interface,
        )
        yield node


@dataclass(frozen=True, eq=False)
class Participant:
    """A node while it connects to the others."""

    cluster: ClusterSettings
    interface: str
    own: NodeInfo
    listener: Listener
    tls: Tls | None
    """None: in the clear."""
    hub: Hub | None = None
    """None: nodes are reached directly."""

    def connect(
        self, address: str, port: int, timeout: float, tls: Tls | None, node: int
    ) -> Channel:
        """As channel.connect; address BY_HUB: to the node that `port` says."""
        if self.hub is None or address != BY_HUB:
            return connect(address, port, timeout, tls, node)
        return connect_by(partial(self.hub.reach, port), timeout, tls, node)

    def node(
        self, secret: str, store: str, found: Mapping[Key, Channel], addresses: Addresses
    ) -> Node:
        """Once it has all its connections. store: ADDRESS:PORT of gloo's; else empty. addresses: of the other nodes."""
        run_id = hashlib.sha256(secret.encode()).hexdigest()[:16]
        address, port = split(store) if store else ("", 0)
        rendezvous = _rendezvous(self.cluster, self.interface, run_id, address=address, port=port)
        rendezvous = replace(rendezvous, secret=secret, link_timeout=self.cluster.heartbeat_timeout)
        links = {key[0]: channel for key, channel in found.items() if len(key) == 1}
        reopening = None if self.cluster.backend == "gloo" else self.reopening(secret, addresses)
        node = Node(self.cluster, run_id, rendezvous, links, _no_streams(self.cluster), reopening)
        for key, channel in found.items():
            if node.streams is not None and len(key) == 3:
                own, other = (key[1], key[2]) if key[1] in self.own.ranks else (key[2], key[1])
                node.streams.setdefault(own, {})[other] = channel.detach()
        return node

    def reopening(self, secret: str, addresses: Addresses) -> Reopening:
        timeout = self.cluster.heartbeat_timeout

        def dial(node: int, key: Key) -> Channel:
            channel = self.connect(
                *addresses[node], timeout, self.tls if len(key) == 1 else None, node
            )
            fresh = secrets.token_hex(FRESH_LENGTH // 2)
            return dialled(
                channel, {"proof": _proof(secret, key, fresh), "from": key, "fresh": fresh}, timeout
            )

        keys_of, key_of = (
            partial(self.keys_of, addresses=addresses),
            partial(_key_of, secret=secret),
        )
        return Reopening(
            self.listener, self.tls, dial, key_of, keys_of, self.own.node, self.cluster.node_of
        )

    def keys_of(self, other: int, addresses: Addresses) -> set[Key]:
        """The connections that another node has with this one.

        Who is reached by the hub alone opens those to who can be reached, else the one with the higher number; the
        links to node 0 are there before it is known who can be.
        """
        by_hub = {node for node, (address, _) in addresses.items() if address == BY_HUB}
        if self.own.address.startswith(BY_HUB):
            by_hub.add(self.own.node)
        if self.hub is not None and self.hub.node == 0:
            by_hub.discard(0)  # it is the hub
        pair = {self.own.node, other}
        first = max(pair, key=lambda node: (node in by_hub, node))
        link = (max(pair) if 0 in pair else first,)
        if self.cluster.backend == "gloo":
            return {link}
        ranks = product(self.cluster.ranks_of(first), self.cluster.ranks_of(*pair - {first}))
        return {link, *((first, *two) for two in ranks)}


def _coordinate(participant: Participant, stack: ExitStack) -> Node:
    """Node 0: wait for the others, reply to all, and wait until they have connected to each other."""
    cluster = participant.cluster
    coordinator = Coordinator(
        participant.listener, participant.own, cluster.num_nodes, participant.tls
    )
    coordinator.wait(cluster.init_timeout)
    if coordinator.problem is not None:
        coordinator.send_reply({"mistake": coordinator.problem})
        raise InputError(coordinator.problem)
    problem: str | None
    secret, store = secrets.token_hex(16), ""
    found: dict[Key, Channel] = {}
    addresses = {int(node): split(address) for node, address in coordinator.addresses.items()}
    if coordinator.missing:
        absent = " and ".join(name_of(node, cluster.ranks_of(node)) for node in coordinator.missing)
        problem = (
            f"{absent} did not come within distributed.init_timeout={cluster.init_timeout:g} s"
        )
    else:
        if cluster.backend == "gloo":
            address = participant.own.address.rpartition(":")[0]
            store = f"{address}:{stack.enter_context(serving_store(address))}"
        coordinator.send_reply({"run": secret, "store": store, "nodes": coordinator.addresses})
        found, problem = _connect_peers(participant, secret, addresses, coordinator.joined)
        problem = problem or _peer_problem(cluster, coordinator.joined)
    coordinator.send_reply({"problem": problem} if problem is not None else {"go": True})
    if problem is not None:
        raise TrainingError(problem)
    joined = {(node,): link for node, link in coordinator.joined.items()}
    return participant.node(secret, store, found | joined, addresses)


def _peer_problem(cluster: ClusterSettings, joined: Mapping[int, Channel]) -> str | None:
    """Wait until all nodes have connected to each other; why one of them could not."""
    for node, channel in joined.items():
        try:
            answer = channel.receive_one(CONNECT_TIMEOUT + START_MARGIN)
        except ChannelClosed as error:
            return f"{name_of(node, cluster.ranks_of(node))} ended before the run began: {error}"
        if "ready" not in answer:
            return printable(answer.get("problem"))
    return None


def _join(participant: Participant) -> Node:
    """Another node: connect to node 0, send it the NodeInfo, and do as it replies."""
    own = participant.own
    where, port = master_place(participant.cluster)
    place = f"{where}:{port}"
    logger.info("node %d: node 0 is at %s (interface %s)", own.node, place, participant.interface)
    try:
        channel, reply = _ask_to_join(participant, where, port)
        _check_reply(reply, own, place)
        secret, store, addresses = _parse_start(reply)
        addresses[0] = where, port
        found, problem = _connect_peers(participant, secret, addresses, {0})
        channel.send({"ready": True} if problem is None else {"problem": problem})
        _check_reply(channel.receive_one(CONNECT_TIMEOUT + START_MARGIN), own, place)
        return participant.node(secret, store, {(0,): channel, **found}, addresses)
    except ChannelClosed as error:
        raise TrainingError(
            f"node 0 at {place} ended before the run began, or is none: {error}"
        ) from error


def _ask_to_join(participant: Participant, where: str, port: int) -> tuple[Channel, dict[str, Any]]:
    """Connect to node 0 and wait for its reply; again, until init_timeout, if it closes the connection without one."""
    cluster = participant.cluster
    deadline = time.monotonic() + cluster.init_timeout
    while True:
        try:
            channel = participant.connect(
                where, port, deadline - time.monotonic(), participant.tls, 0
            )
        except ChannelClosed:
            raise
        except OSError as error:
            raise TrainingError(
                f"{name_of(0, cluster.ranks_of(0))} was not reached at {where}:{port} within "
                f"distributed.init_timeout={cluster.init_timeout:g} s: {error}; start it, or, if it runs, "
                "it had all its nodes already or a firewall is in between"
            ) from error
        try:
            channel.send({"retexo": PROTOCOL, "node": asdict(participant.own)})
            return channel, channel.receive_one(cluster.init_timeout + START_MARGIN)
        except Disconnected:
            channel.close()
            if time.monotonic() + RETRY_INTERVAL > deadline:
                raise
            time.sleep(RETRY_INTERVAL)


def _parse_start(reply: Mapping[str, Any]) -> tuple[str, str, dict[int, tuple[str, int]]]:
    """The run's secret, the address of its store, and those of the other nodes; ChannelClosed if they are not there."""
    try:
        addresses = {int(node): split(address) for node, address in reply["nodes"].items()}
        if reply["store"]:
            split(reply["store"])
        return str(reply["run"]), reply["store"], addresses
    except (KeyError, ValueError, AttributeError) as error:
        raise ChannelClosed(f"not a reply of node 0: {printable(reply)}") from error


def _check_reply(reply: Mapping[str, Any], own: NodeInfo, place: str) -> None:
    """Raise what node 0 found wrong: InputError for wrong input, TrainingError for a failure."""
    if "refused" in reply:
        raise InputError(
            f"distributed.master_port: what runs at {place} turned {own.name} away: {printable(reply['refused'])}; "
            "choose another port for this run"
        )
    if "mistake" in reply:
        raise InputError(printable(reply["mistake"]))
    if "problem" in reply:
        raise TrainingError(printable(reply["problem"]))


def _connect_peers(
    participant: Participant, secret: str, addresses: Addresses, linked: Collection[int]
) -> tuple[dict[Key, Channel], str | None]:
    """Connect every two nodes: only these two can notice that the network between them fails.

    linked: nodes whose links are there. Returns the connections, by the other node, and why one could not be made.
    """
    cluster, own = participant.cluster, participant.own
    found: dict[Key, Channel] = {}
    expected: set[Key] = set()
    for other in sorted({*addresses} - {own.node}):
        address, port = addresses[other]
        keys = {
            key
            for key in participant.keys_of(other, addresses)
            if len(key) > 1 or other not in linked
        }
        expected |= {key for key in keys if key[0] == other}
        try:
            for key in sorted(keys - expected):
                tls = (
                    participant.tls if len(key) == 1 else None
                )  # over a stream the workers have their own
                found[(other, *key[1:])] = channel = participant.connect(
                    address, port, CONNECT_TIMEOUT, tls, other
                )
                channel.send({"proof": _proof(secret, key), "from": key})
        except OSError as error:
            them = name_of(other, cluster.ranks_of(other))
            return found, (
                f"{own.name} cannot reach {them} at {address}:{port}: {error}; open the network between them"
            )
    accepted, problem = _accept(participant, secret, expected)
    return found | accepted, problem


def _accept(
    participant: Participant, secret: str, expected: set[Key]
) -> tuple[dict[Key, Channel], str | None]:
    """The connections that other nodes open, and what is missing of them."""
    found: dict[Key, Channel] = {}
    pending, deadline = (
        PendingConnections(participant.listener, participant.tls),
        time.monotonic() + CONNECT_TIMEOUT,
    )

    def take(channel: Channel, message: Mapping[str, Any]) -> None:
        key = _key_of(message, secret)
        if key not in expected - found.keys():
            raise ChannelClosed("not a node of this run")
        if len(key) == 3:
            channel.detach()  # raises ChannelClosed now, not later, if more bytes have come
        elif not channel.speaks_for(key[0]):
            raise ChannelClosed("not a node of this run")
        found[key] = channel

    while expected - found.keys() and time.monotonic() < deadline:
        pending.answer(pending.wait(min(0.5, deadline - time.monotonic()))[0], take)
    pending.close()
    absent = sorted({key[0] for key in expected - found.keys()})
    if not absent:
        return found, None
    names = ", ".join(name_of(node, participant.cluster.ranks_of(node)) for node in absent)
    return found, f"{participant.own.name} was not reached by {names} within {CONNECT_TIMEOUT:g} s"


def _key_of(message: Mapping[str, Any], secret: str) -> Key:
    """Of a connection's first message; () where it is none of this run."""
    key, proof, fresh = message.get("from"), message.get("proof"), message.get("fresh", "")
    if not (
        isinstance(key, list) and len(key) in (1, 3) and all(type(each) is int for each in key)
    ):
        return ()
    if not (_is_hex(proof, PROOF_LENGTH) and (fresh == "" or _is_hex(fresh, FRESH_LENGTH))):
        return ()
    return tuple(key) if hmac.compare_digest(proof, _proof(secret, tuple(key), fresh)) else ()


def _is_hex(text: object, length: int) -> TypeGuard[str]:
    """Whether it is a text of `length` hexadecimal digits."""
    return isinstance(text, str) and re.fullmatch(rf"[0-9a-f]{{{length}}}", text) is not None


def _proof(secret: str, key: Key, fresh: str = "") -> str:
    """What only nodes know that node 0 has told the run's secret; each is good for one connection.

    fresh: drawn for one that takes the place of another.
    """
    return hmac.digest(secret.encode(), (json.dumps(key) + fresh).encode(), "sha256").hex()


def _no_streams(cluster: ClusterSettings) -> StreamsByRank | None:
    """To begin with."""
    return {} if cluster.backend == "sockets" else None


def _rendezvous(
    cluster: ClusterSettings,
    interface: str,
    run_id: str,
    *,
    file: Path | None = None,
    address: str = "",
    port: int = 0,
) -> Rendezvous:
    limits: dict[str, Any] = {"init_timeout": cluster.init_timeout, "timeout": cluster.timeout}
    return Rendezvous(
        cluster.num_partitions, interface, file, address, port, **limits, run_id=run_id
    )
