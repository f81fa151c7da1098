"""Connect the nodes of a run: one TCP connection between the parent processes of any two of them.

Node 0 listens at distributed.master_addr:master_port until all nodes have connected, compares what they are about to
run, and sends all of them the same reply. The connections stay open for heartbeats, failures and the end of the run.
Workers have a store of their own for their rendezvous (comm/process_group.py).
"""

import hashlib
import hmac
import json
import logging
import secrets
import socket
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from partitioning.errors import InputError
from retexo.cluster.channel import RETRY_INTERVAL, Channel, ChannelClosed, Disconnected, connect, listen, printable
from retexo.cluster.handshake import PROTOCOL, Coordinator, NodeInfo, code_version, name_of
from retexo.cluster.interfaces import interface_address, loopback, route_interface
from retexo.cluster.pending import PendingConnections
from retexo.cluster.streams import StreamsByRank
from retexo.comm.credentials import read_credentials
from retexo.comm.process_group import LauncherStore, Rendezvous, serving_store
from retexo.comm.tls import Tls
from retexo.config.cluster_settings import ClusterSettings
from retexo.config.flatten import flatten
from retexo.errors import TrainingError

logger = logging.getLogger(__name__)

START_MARGIN = 10.0
"""seconds that a node waits for a reply beyond node 0's own time limit: node 0 may have started later"""
CONNECT_TIMEOUT = 20.0
"""seconds within which the nodes besides node 0 have to connect to each other"""


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

    @property
    def rank(self) -> int:
        return self.cluster.node_rank


@contextmanager
def connect_nodes(cluster: ClusterSettings, settings: Mapping[str, Any], partition: str) -> Iterator[Node]:
    """Connect to the other nodes of the run, and check that all are about to run the same.

    Raises InputError, the same on all nodes, where they do not match; TrainingError where a node does not connect.
    """
    with ExitStack() as stack:
        if cluster.num_nodes == 1:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="retexo-"))) / "rendezvous"
            run_id = secrets.token_hex(8)
            meeting = _rendezvous(cluster, loopback(), run_id, file=file)
            yield Node(cluster, run_id, meeting, streams=_no_streams(cluster))
            return
        credentials = None
        if cluster.encrypted:
            assert cluster.credentials is not None
            credentials = read_credentials(Path(cluster.credentials), cluster.node_rank, cluster.num_nodes)
        else:
            logger.warning("between the nodes nothing is encrypted: use a network that you trust (SECURITY.md)")
        interface = choose_interface(cluster)
        address = interface_address(interface, preferred=_addresses(cluster.master_addr))
        is_first = cluster.node_rank == 0
        listener = stack.enter_context(_listener(cluster, interface, address) if is_first else listen(address, 0))
        own = NodeInfo(
            run_key=cluster.run_key,
            node=cluster.node_rank,
            ranks=list(cluster.local_ranks),
            world_size=cluster.num_partitions,
            code=code_version(),
            settings=json.loads(json.dumps(flatten(settings), default=str)),
            partition=partition,
            backend=cluster.backend,
            address=f"{address}:{listener.getsockname()[1]}",
            credentials=credentials.numbers if credentials else "",
        )
        participant = Participant(cluster, interface, own, listener, Tls(credentials) if credentials else None)
        node = _coordinate(participant, stack) if is_first else _join(participant)
        listener.close()
        for channel in node.links.values():
            stack.callback(channel.close)
        per_node = cluster.parts_per_node
        node = replace(node, rendezvous=replace(node.rendezvous, credentials=credentials, parts_per_node=per_node))
        logger.info("%s: run %s, workers listen on interface %s alone", own.name, node.run_id, interface)
        yield node


def choose_interface(cluster: ClusterSettings) -> str:
    """distributed.interface, or the one with the route to master_addr; loopback only for a run on one machine."""
    if cluster.one_machine:
        return loopback()
    interface = cluster.interface or route_interface(cluster.master_addr, cluster.master_port)
    if interface == loopback() and cluster.interface is None:
        raise InputError(
            f"distributed.master_addr={cluster.master_addr}: a loopback address cannot be reached from another "
            "node; set it to node 0's address (or distributed.interface=lo for several nodes on one machine)"
        )
    return interface


Key = tuple[int, ...]
"""A connection between two nodes: the number of the one that opens it; of a stream, the ranks of its ends, too."""


@dataclass(frozen=True, eq=False)
class Participant:
    """A node while it connects to the others."""

    cluster: ClusterSettings
    interface: str
    own: NodeInfo
    listener: socket.socket
    tls: Tls | None
    """None: in the clear."""

    def node(self, secret: str, store: str, found: Mapping[Key, Channel]) -> Node:
        """Once it has all its connections. store: ADDRESS:PORT of gloo's; else empty."""
        run_id = hashlib.sha256(secret.encode()).hexdigest()[:16]
        address, port = _split(store) if store else ("", 0)
        rendezvous = _rendezvous(self.cluster, self.interface, run_id, address=address, port=port)
        links = {key[0]: channel for key, channel in found.items() if len(key) == 1}
        node = Node(self.cluster, run_id, rendezvous, links, _no_streams(self.cluster))
        for key, channel in found.items():
            if node.streams is not None and len(key) == 3:
                own, other = (key[1], key[2]) if key[1] in self.own.ranks else (key[2], key[1])
                node.streams.setdefault(own, {})[other] = channel.detach()
        return node

    def keys_of(self, other: int) -> set[Key]:
        """The connections that another node has with this one; the one with the higher number opens them."""
        first, second = max(other, self.own.node), min(other, self.own.node)
        if self.cluster.backend == "gloo":
            return {(first,)}
        ranks = product(self.cluster.ranks_of(first), self.cluster.ranks_of(second))
        return {(first,), *((first, *pair) for pair in ranks)}


def _coordinate(participant: Participant, stack: ExitStack) -> Node:
    """Node 0: wait for the others, reply to all, and wait until they have connected to each other."""
    cluster = participant.cluster
    coordinator = Coordinator(participant.listener, participant.own, cluster.num_nodes, participant.tls)
    coordinator.wait(cluster.init_timeout)
    if coordinator.problem is not None:
        coordinator.send_reply({"mistake": coordinator.problem})
        raise InputError(coordinator.problem)
    problem: str | None
    secret, store = secrets.token_hex(16), ""
    accepted: dict[Key, Channel] = {}
    if coordinator.missing:
        absent = " and ".join(name_of(node, cluster.ranks_of(node)) for node in coordinator.missing)
        problem = f"{absent} did not come within distributed.init_timeout={cluster.init_timeout:g} s"
    else:
        if cluster.backend == "gloo":
            address = participant.own.address.rpartition(":")[0]
            store = f"{address}:{stack.enter_context(serving_store(address))}"
        coordinator.send_reply({"run": secret, "store": store, "nodes": coordinator.addresses})
        accepted, problem = _accept(participant, secret, range(1, cluster.num_nodes), links=coordinator.joined)
        problem = problem or _peer_problem(cluster, coordinator.joined)
    coordinator.send_reply({"problem": problem} if problem is not None else {"go": True})
    if problem is not None:
        raise TrainingError(problem)
    return participant.node(secret, store, accepted | {(node,): link for node, link in coordinator.joined.items()})


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


def _listener(cluster: ClusterSettings, interface: str, address: str) -> socket.socket:
    if cluster.launcher_env is not None and cluster.launcher_env.store:
        listener = listen(address, 0)
        _launcher_store(cluster).put(_launcher_key(cluster), f"{address}:{listener.getsockname()[1]}")
        return listener
    where = f"{address}:{cluster.master_port}"
    if not cluster.one_machine and address not in _addresses(cluster.master_addr):
        raise InputError(
            f"distributed.master_addr={cluster.master_addr}: node 0 has {address} on interface {interface}; "
            "give that address to every node, or choose another distributed.interface"
        )
    try:
        listener = listen(address, cluster.master_port)
    except OSError as error:
        raise InputError(
            f"distributed.master_port={cluster.master_port}: cannot listen on {where}: {error.strerror}; "
            "choose a free port, the same on every node, and an address of node 0"
        ) from error
    logger.info("node 0 waits for %d other node(s) at %s (interface %s)", cluster.num_nodes - 1, where, interface)
    return listener


def _addresses(host: str) -> set[str]:
    with suppress(OSError):
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, socket.AF_INET)}
    return set()


def _join(participant: Participant) -> Node:
    """Another node: connect to node 0, send it the NodeInfo, and do as it replies."""
    own = participant.own
    where, port = _master(participant.cluster)
    place = f"{where}:{port}"
    logger.info("node %d: node 0 is at %s (interface %s)", own.node, place, participant.interface)
    try:
        channel, reply = _ask_to_join(participant, where, port)
        _check_reply(reply, own, place)
        secret, store, addresses = _parse_start(reply)
        found = _connect_peers(participant, secret, {0: (where, port), **addresses}, channel)
        _check_reply(channel.receive_one(CONNECT_TIMEOUT + START_MARGIN), own, place)
        return participant.node(secret, store, found)
    except ChannelClosed as error:
        raise TrainingError(f"node 0 at {place} ended before the run began, or is none: {error}") from error


def _ask_to_join(participant: Participant, where: str, port: int) -> tuple[Channel, dict[str, Any]]:
    """Connect to node 0 and wait for its reply; again, until init_timeout, if it closes the connection without one."""
    cluster = participant.cluster
    deadline = time.monotonic() + cluster.init_timeout
    while True:
        try:
            channel = connect(where, port, deadline - time.monotonic(), participant.tls)
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
        addresses = {int(node): _split(address) for node, address in reply["nodes"].items()}
        if reply["store"]:
            _split(reply["store"])
        return str(reply["run"]), reply["store"], addresses
    except (KeyError, ValueError, AttributeError) as error:
        raise ChannelClosed(f"not a reply of node 0: {printable(reply)}") from error


def _split(address: str) -> tuple[str, int]:
    """ADDRESS:PORT"""
    host, _, port = address.rpartition(":")
    return host, int(port)


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
    participant: Participant, secret: str, addresses: Mapping[int, tuple[str, int]], first: Channel
) -> dict[Key, Channel]:
    """Connect every two nodes: only these two can notice that the network between them fails."""
    cluster, own = participant.cluster, participant.own
    found: dict[Key, Channel] = {(0,): first}
    problem = None
    for other in range(own.node):
        address, port = addresses.get(other, ("", 0))
        try:
            for key in sorted(participant.keys_of(other)):
                if other or len(key) > 1:  # the link to node 0 is there
                    tls = participant.tls if len(key) == 1 else None  # over a stream the workers have their own
                    found[(other, *key[1:])] = channel = connect(address, port, CONNECT_TIMEOUT, tls, other)
                    channel.send({"proof": _proof(secret, key), "from": key})
        except OSError as error:
            them = name_of(other, cluster.ranks_of(other))
            problem = f"{own.name} cannot reach {them} at {address}:{port}: {error}; open the network between them"
            break
    if problem is None:
        accepted, problem = _accept(participant, secret, range(own.node + 1, cluster.num_nodes))
        found |= accepted
    first.send({"ready": True} if problem is None else {"problem": problem})
    return found


def _accept(
    participant: Participant, secret: str, nodes: range, links: Collection[int] = ()
) -> tuple[dict[Key, Channel], str | None]:
    """The connections from these nodes of the run, and what is missing of them. links: nodes whose links are there."""
    expected = {key for node in nodes for key in participant.keys_of(node)} - {(node,) for node in links}
    found: dict[Key, Channel] = {}
    pending, deadline = PendingConnections(participant.listener, participant.tls), time.monotonic() + CONNECT_TIMEOUT
    while expected - found.keys() and time.monotonic() < deadline:
        for channel, message in pending.wait(min(0.5, deadline - time.monotonic()))[0]:
            key = _key_of(message, secret)
            if key in expected - found.keys() and (len(key) == 3 or channel.speaks_for(key[0])):
                found[key] = channel
            else:
                pending.reject(channel, "not a node of this run")
    pending.close()
    absent = sorted({key[0] for key in expected - found.keys()})
    if not absent:
        return found, None
    names = ", ".join(name_of(node, participant.cluster.ranks_of(node)) for node in absent)
    return found, f"{participant.own.name} was not reached by {names} within {CONNECT_TIMEOUT:g} s"


def _key_of(message: Mapping[str, Any], secret: str) -> Key:
    """Of a connection's first message; () where it is none of this run."""
    key, proof = message.get("from"), message.get("proof")
    if not (isinstance(key, list) and all(type(each) is int for each in key) and isinstance(proof, str)):
        return ()
    return tuple(key) if hmac.compare_digest(proof.encode(), _proof(secret, tuple(key)).encode()) else ()


def _proof(secret: str, key: Key) -> str:
    """What only nodes know that node 0 has told the run's secret; each is good for one connection."""
    return hmac.digest(secret.encode(), json.dumps(key).encode(), "sha256").hex()


def _no_streams(cluster: ClusterSettings) -> StreamsByRank | None:
    """To begin with."""
    return {} if cluster.backend == "sockets" else None


def _master(cluster: ClusterSettings) -> tuple[str, int]:
    """Address and port at which node 0 listens."""
    if cluster.launcher_env is not None and cluster.launcher_env.store:
        return _split(_launcher_store(cluster).get(_launcher_key(cluster)))
    return interface_address(loopback()) if cluster.one_machine else cluster.master_addr, cluster.master_port


def _launcher_store(cluster: ClusterSettings) -> LauncherStore:
    return LauncherStore(cluster.master_addr, cluster.master_port, cluster.init_timeout)


def _launcher_key(cluster: ClusterSettings) -> str:
    return f"retexo {cluster.run_key}"


def _rendezvous(
    cluster: ClusterSettings, interface: str, run_id: str, *, file: Path | None = None, address: str = "", port: int = 0
) -> Rendezvous:
    limits: dict[str, Any] = {"init_timeout": cluster.init_timeout, "timeout": cluster.timeout}
    return Rendezvous(cluster.num_partitions, interface, file, address, port, **limits, run_id=run_id)
