"""Connect the nodes of a run: one TCP connection between the parents of every two nodes.

Node 0 listens at distributed.master_addr:master_port until all nodes have connected, compares what
they are about to run, and sends the same reply to all. Every two other nodes then connect, and with
distributed.backend=sockets every two workers of different nodes. The connections between parents
stay open for heartbeats and failures.
"""

import hashlib
import logging
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path

from partitioning.errors import InputError
from retexo.comm.process_group import LOOPBACK, Rendezvous, serving_store
from retexo.comm.socket_transport import StreamsByRank
from retexo.errors import Interrupted, TrainingError
from retexo.launch import fork_server
from retexo.launch.addresses import Endpoint, master_address, open_endpoint, split_address
from retexo.launch.channels import (
    AcceptedConnections,
    Channel,
    ChannelClosed,
    Message,
    decode,
    encode_message,
    make_printable,
    retry,
)
from retexo.launch.handshake import (
    Coordinator,
    NodeInfo,
    RunInfo,
    code_version,
)
from retexo.launch.hub import THROUGH_HUB
from retexo.launch.tls import Tls, read_tls
from retexo.settings.cluster_settings import ClusterSettings
from retexo.settings.flatten import flatten

logger = logging.getLogger(__name__)

REPLY_MARGIN = 10.0
"""Seconds that a node waits for a reply beyond its time limit: node 0 may have started later."""
CONNECT_TIMEOUT = 20.0
"""Seconds within which the nodes besides node 0 have to connect to each other."""
DIAL_TIMEOUT = 5.0
"""Seconds of one attempt to connect to node 0, which may not run yet: the kernel waits ever longer
between its own attempts."""
REASONS = {"mistake": InputError, "absent": TrainingError, "problem": Interrupted}
"""What node 0 answers where the run cannot begin, and the error on all nodes."""

Key = tuple[int, ...]
"""A connection between two nodes: the node that opens it; of a stream, also the ranks of its ends.
"""
Addresses = Mapping[int, tuple[str, int]]
"""Host and port of other nodes, or THROUGH_HUB and the node."""


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
    cluster: ClusterSettings, run: RunInfo, seconds_left: float | None = None
) -> Iterator[Node]:
    """Connect to the other nodes and check that all are about to run the same.

    Links are closed at the end of the block; on one node there are none. Warns if not encrypted.

    Args:
        seconds_left: at a restart, what is left of distributed.init_timeout.

    Raises:
        InputError: nodes do not match, the same message on all nodes; or credentials, address or
            port cannot be used.
        Interrupted: a connection broke meanwhile; at a restart also if this node has no network.
        TrainingError: a node did not come in time, or node 0 or the hub was not reached.
    """
    tls = read_tls(cluster)
    seconds = cluster.distributed.init_timeout if seconds_left is None else seconds_left
    with ExitStack() as stack:
        if cluster.num_nodes == 1:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="retexo-")))
            yield _make_node(cluster, None, LOOPBACK, secrets.token_hex(), folder / "store", {})
            return
        fork_server.wait_until_warm(cluster.distributed.init_timeout)
        if tls is None:
            logger.warning(
                "traffic between the nodes is not encrypted: use a network that you trust"
                " (SECURITY.md)"
            )
        with ExitStack() as listening:
            try:
                endpoint = open_endpoint(cluster, tls, seconds, listening)
            except InputError as error:
                if seconds_left is None:
                    raise
                raise Interrupted(str(error)) from error
            compared = {
                **flatten(run.settings),
                "num_partitions": cluster.num_partitions,
                "distributed.backend": cluster.distributed.backend,
            }
            own = NodeInfo(
                run_key=cluster.run_key,
                node=cluster.node_rank,
                code=code_version(),
                address=endpoint.address,
                credentials="" if tls is None else tls.lists,
                run=replace(run, settings=decode(encode_message(compared))),
            )
            limit = f"distributed.init_timeout={cluster.distributed.init_timeout:g} s"
            if cluster.node_rank == 0:
                secret, store, channels = _coordinate(endpoint, own, seconds, limit, stack)
            else:
                secret, store, channels = _join(endpoint, own, seconds, limit)
        address, _ = split_address(endpoint.address)
        node = _make_node(cluster, tls, address, secret, store, channels)
        for channel in node.links.values():
            stack.callback(channel.close)
        logger.info("%s: run %s, address %s", endpoint.name, node.run_id, address)
        yield node


def _make_node(
    cluster: ClusterSettings,
    tls: Tls | None,
    address: str,
    secret: str,
    store: Path | tuple[str, int] | None,
    channels: Mapping[Key, Channel],
) -> Node:
    """Make the Node of this run from the connections to the other nodes.

    Args:
        secret: known to the nodes of this run only.
        store: see Rendezvous.
        channels: by key, with the other node first. Those between workers are detached.
    """
    run_id = hashlib.sha256(secret.encode()).hexdigest()[:16]
    rendezvous = Rendezvous(
        cluster.num_partitions,
        address,
        store,
        cluster.distributed.init_timeout,
        cluster.distributed.timeout,
        run_id,
        cluster.workers_per_node,
        None if tls is None else tls.secure_stream,
        f"{run_id} {tls and tls.members}",
    )
    node = Node(cluster, run_id, rendezvous)
    if cluster.distributed.backend == "sockets":
        node.streams = {rank: {} for rank in cluster.local_ranks}
    for (other, *ends), channel in channels.items():
        if not ends:
            node.links[other] = channel
        elif node.streams is not None:
            own, peer = ends if ends[0] in node.streams else ends[::-1]
            node.streams[own][peer] = channel.detach()
    return node


def keys_with(endpoint: Endpoint, other: int, addresses: Addresses) -> set[Key]:
    """Return the connections between another node and this one, besides the link to node 0.

    (opener,) is one of the parents; with the backend `sockets` there is (opener, rank, other
    rank) for each two workers. A node that is reached only through the hub opens its
    connections to a node that can be reached directly; else the node with the higher number
    opens them.
    """
    cluster = endpoint.cluster
    through_hub = {node for node, (address, _) in addresses.items() if address == THROUGH_HUB}
    if endpoint.address.startswith(THROUGH_HUB):
        through_hub.add(cluster.node_rank)
    pair = {cluster.node_rank, other}
    opener = max(pair, key=lambda node: (node in through_hub, node))
    streams: set[Key] = set()
    if cluster.distributed.backend == "sockets":
        ranks = product(cluster.ranks_of(opener), cluster.ranks_of(*pair - {opener}))
        streams = {(opener, *two) for two in ranks}
    return streams if 0 in pair else {(opener,), *streams}


Connected = tuple[str, tuple[str, int] | None, Mapping[Key, Channel]]
"""The run's secret, where gloo's store is, and the connections by key, the other node first."""


def _coordinate(
    endpoint: Endpoint, own: NodeInfo, seconds: float, limit: str, stack: ExitStack
) -> Connected:
    """Node 0: wait for the others, reply to all, and wait until they have connected pairwise.

    Args:
        own: what this node is about to run.
        seconds: until all nodes have to be there.
        limit: the setting that limits them, for messages.
        stack: closes gloo's store.

    Raises:
        InputError: a node does not fit.
        TrainingError: a node did not come.
        Interrupted: two nodes cannot connect.
    """
    cluster, store = endpoint.cluster, None
    coordinator = Coordinator(endpoint.listener, own, cluster, endpoint.tls)
    coordinator.wait(seconds)
    if coordinator.problem is not None:
        coordinator.send_reply({"mistake": coordinator.problem})
        raise InputError(coordinator.problem)
    if coordinator.missing:
        absent = " and ".join(map(cluster.describe_node, coordinator.missing))
        message = f"{absent} did not come within {limit}"
        coordinator.send_reply({"absent": message})
        raise TrainingError(message)
    secret = secrets.token_hex(16)
    if cluster.distributed.backend != "sockets":
        store = stack.enter_context(serving_store(split_address(endpoint.address)[0]))
    where = "" if store is None else f"{store[0]}:{store[1]}"
    coordinator.send_reply({"run": secret, "store": where, "nodes": coordinator.addresses})
    addresses = {node: split_address(address) for node, address in coordinator.addresses.items()}
    channels, problem = _connect_peers(endpoint, secret, addresses)
    for node, channel in coordinator.joined.items():
        channels[node,] = channel
        problem = problem or _peer_problem(channel, cluster.describe_node(node))
    coordinator.send_reply({"problem": problem} if problem is not None else {"go": True})
    if problem is not None:
        raise Interrupted(problem)
    return secret, store, channels


def _peer_problem(channel: Channel, name: str) -> str | None:
    """Wait until a node has connected to the others; return why it could not, None if it could."""
    try:
        reply = channel.receive_one(CONNECT_TIMEOUT + REPLY_MARGIN)
    except ChannelClosed as error:
        return f"{name} ended before the run began: {error}"
    return None if "ready" in reply else make_printable(reply.get("problem"))


def _join(endpoint: Endpoint, own: NodeInfo, seconds: float, limit: str) -> Connected:
    """Another node: connect to node 0 and send it the NodeInfo, then connect to the others.

    Returns when node 0 says that all nodes are connected. Arguments as of `_coordinate`.

    Raises:
        InputError, TrainingError, Interrupted: node 0 says so (`_check_reply`).
        TrainingError: node 0 is not reached.
        Interrupted: it ends.
    """
    address = master_address(endpoint.cluster)
    where = "{}:{}".format(*address)
    logger.info("node %d: node 0 is at %s", own.node, where)

    def say_hello(seconds_left: float) -> tuple[Channel, Message]:
        channel = endpoint.connect(address, min(DIAL_TIMEOUT, seconds_left), 0)
        channel.send({"node": asdict(own)})
        return channel, channel.receive_one(seconds + REPLY_MARGIN)

    try:
        channel, reply = retry(say_hello, seconds)
        _check_reply(reply, endpoint.name, where)
        secret, store, addresses = _parse_start(reply)
        channels, problem = _connect_peers(endpoint, secret, {0: address, **addresses})
        channel.send({"ready": True} if problem is None else {"problem": problem})
        go = channel.receive_one(CONNECT_TIMEOUT + REPLY_MARGIN)
        _check_reply(go, endpoint.name, where)
    except ChannelClosed as error:
        raise Interrupted(
            f"node 0 at {where} ended before the run began, or is another program: {error}"
        ) from error
    except ConnectionError as error:
        raise TrainingError(
            f"{endpoint.cluster.describe_node(0)} was not reached at {where} within"
            f" {limit}: {error}; start it, or, if it runs, it had all its nodes already"
            " or a firewall is in between"
        ) from error
    return secret, store, {(0,): channel, **channels}


def _parse_start(
    reply: Message,
) -> tuple[str, tuple[str, int] | None, dict[int, tuple[str, int]]]:
    """Return the run's secret, its store's address, None without, and those of the other nodes.

    Raises ChannelClosed if the message is another.
    """
    try:
        addresses = {int(node): split_address(address) for node, address in reply["nodes"].items()}
        store = split_address(reply["store"]) if reply["store"] else None
        return str(reply["run"]), store, addresses
    except (KeyError, ValueError, AttributeError) as error:
        raise ChannelClosed(f"not a reply of node 0: {make_printable(reply)}") from error


def _check_reply(reply: Message, name: str, where: str) -> None:
    """Raise the error that node 0 reports, one of REASONS; InputError where it refuses the node."""
    if "refused" in reply:
        raise InputError(
            f"distributed.master_port: the program at {where} refused {name}: "
            f"{make_printable(reply['refused'])}; choose another port for this run"
        )
    for reason, error in REASONS.items():
        if reason in reply:
            raise error(make_printable(reply[reason]))


def _connect_peers(
    endpoint: Endpoint, secret: str, addresses: Addresses
) -> tuple[dict[Key, Channel], str | None]:
    """Connect every two nodes: only they can notice when the network between them fails.

    Returns:
        The connections by key, with the other node first, and the reason if one could not be made,
        else None.
    """
    channels: dict[Key, Channel] = {}
    expected: dict[str, Key] = {}
    for other in sorted({*addresses} - {endpoint.cluster.node_rank}):
        for key in sorted(keys_with(endpoint, other, addresses)):
            if key[0] == other:
                expected[_make_token(secret, key)] = key
                continue
            try:
                # Over a stream the workers do a handshake of their own.
                channel = endpoint.connect(
                    addresses[other], CONNECT_TIMEOUT, other, encrypted=len(key) == 1
                )
                channel.send({"token": _make_token(secret, key)})
            except OSError as error:
                where = "{}:{}".format(*addresses[other])
                return channels, (
                    f"{endpoint.name} cannot reach {endpoint.cluster.describe_node(other)} at"
                    f" {where}: {error}; open the network between them"
                )
            channels[other, *key[1:]] = channel
    accepted, problem = _accept(endpoint, expected)
    return channels | accepted, problem


def _accept(endpoint: Endpoint, expected: dict[str, Key]) -> tuple[dict[Key, Channel], str | None]:
    """Wait at most CONNECT_TIMEOUT seconds for the connections that other nodes open.

    Args:
        expected: their keys by token; those that come are taken out.

    Returns:
        The connections by key, and a message if some are missing, else None.
    """
    channels: dict[Key, Channel] = {}
    accepted = AcceptedConnections(endpoint.listener, endpoint.tls)
    deadline = time.monotonic() + CONNECT_TIMEOUT

    def admit(channel: Channel, message: Message) -> None:
        key = expected.get(message.get("token", ""))
        if key is None or (len(key) == 1 and not channel.speaks_for(key[0])):
            raise ChannelClosed("not a node of this run")
        if len(key) > 1:
            channel.detach()  # raises ChannelClosed now, not later, if it has sent more
        channels[key] = channel
        del expected[message["token"]]

    while expected and (seconds := deadline - time.monotonic()) > 0:
        accepted.step(min(0.5, seconds), admit)
    accepted.close()
    if not expected:
        return channels, None
    absent = sorted({key[0] for key in expected.values()})
    names = ", ".join(map(endpoint.cluster.describe_node, absent))
    return channels, f"{names} did not reach {endpoint.name} within {CONNECT_TIMEOUT:g} s"


def _make_token(secret: str, key: Key) -> str:
    """Shows that the sender knows the run's secret; valid for one connection."""
    return hashlib.sha256(f"{secret} {key}".encode()).hexdigest()
