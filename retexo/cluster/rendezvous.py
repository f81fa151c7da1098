"""The nodes of a run, before they start and while it runs: connections between their parent processes.

Node 0 listens at distributed.master_addr:master_port until all nodes have come. Each says what it is about to run; node
0 compares, and tells all of them one verdict. The connections stay: over them nodes hear that the others live, of a
failure elsewhere, and that all are done. Workers meet in a store of their own (comm/group.py).
"""

import json
import logging
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from partitioning.errors import InputError
from retexo.cluster.channel import Channel, ChannelClosed, connect, listen
from retexo.cluster.handshake import HELLO_TIMEOUT, PROTOCOL, Hello, Reception, code_version, name_of
from retexo.cluster.interfaces import interface_address, loopback, route_interface
from retexo.comm.process_group import LauncherStore, Rendezvous, serving_store
from retexo.config.settings import ClusterSettings
from retexo.errors import TrainingError

logger = logging.getLogger(__name__)

MARGIN = 10.0
"""seconds that a node waits for node 0 beyond the time that this takes: it may have started later"""
FINDING = 20.0
"""seconds within which the nodes besides node 0 have to find each other"""


@dataclass
class Node:
    """This node among the others, once all agreed to start."""

    cluster: ClusterSettings
    run_id: str
    rendezvous: Rendezvous
    links: dict[int, Channel] = field(default_factory=dict)
    """To every other node."""

    @property
    def rank(self) -> int:
        return self.cluster.node_rank


@contextmanager
def meet(cluster: ClusterSettings, settings: Mapping[str, Any], partition: str) -> Iterator[Node]:
    """Find the other nodes and agree with them to start.

    InputError, the same on all nodes, where they do not fit together; TrainingError where one does not come.
    """
    with ExitStack() as stack:
        if cluster.num_nodes == 1:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="retexo-"))) / "rendezvous"
            run_id = new_run_id()
            yield Node(cluster, run_id, _rendezvous(cluster, loopback(), file=file, run_id=run_id))
            return
        interface = choose_interface(cluster)
        address = interface_address(interface, preferred=_addresses(cluster.master_addr))
        lead = cluster.node_rank == 0
        listener = stack.enter_context(_listener(cluster, interface, address) if lead else listen(address, 0))
        own = Hello(
            run_key=cluster.run_key,
            node=cluster.node_rank,
            ranks=list(cluster.local_ranks),
            world_size=cluster.num_partitions,
            code=code_version(),
            settings=json.loads(json.dumps(_flat(settings), default=str)),
            partition=partition,
            address=f"{address}:{listener.getsockname()[1]}",
        )
        seat = Seat(cluster, interface, own, listener)
        node = _lead(seat, stack) if lead else _join(seat)
        listener.close()
        stack.callback(_close, node)
        logger.info("%s: run %s, workers listen on interface %s alone", own.name, node.run_id, interface)
        yield node


def new_run_id() -> str:
    return secrets.token_hex(8)


def choose_interface(cluster: ClusterSettings) -> str:
    """distributed.interface, or the one with the route to the master; loopback only where nobody else has to come."""
    if cluster.one_machine:
        return loopback()
    interface = cluster.interface or route_interface(cluster.master_addr, cluster.master_port)
    if interface == loopback() and cluster.interface is None:
        raise InputError(
            f"distributed.master_addr={cluster.master_addr}: a loopback address cannot be reached from another "
            "node; set it to node 0's address (or distributed.interface=lo for several nodes on one machine)"
        )
    return interface


@dataclass(frozen=True, eq=False)
class Seat:
    """What a node comes to the meeting with."""

    cluster: ClusterSettings
    interface: str
    own: Hello
    listener: socket.socket

    def node(self, run_id: str, store: str, links: dict[int, Channel]) -> Node:
        address, _, port = store.rpartition(":")
        meeting = _rendezvous(self.cluster, self.interface, address=address, port=int(port), run_id=run_id)
        return Node(self.cluster, run_id, meeting, links)


def _lead(seat: Seat, stack: ExitStack) -> Node:
    """Node 0: wait for the others, compare, tell all the verdict, and wait until they have found each other."""
    cluster = seat.cluster
    reception = Reception(seat.listener, seat.own, cluster.num_nodes)
    reception.wait(cluster.init_timeout)
    if reception.problem is not None:
        reception.tell({"mistake": reception.problem})
        raise InputError(reception.problem)
    if reception.missing:
        absent = " and ".join(name_of(node, cluster.ranks_of(node)) for node in reception.missing)
        problem: str | None = f"{absent} did not come within distributed.init_timeout={cluster.init_timeout:g} s"
    else:
        address = seat.own.address.rpartition(":")[0]
        run_id, store = new_run_id(), f"{address}:{stack.enter_context(serving_store(address))}"
        reception.tell({"run": run_id, "store": store, "nodes": reception.addresses})
        problem = _first_problem(cluster, reception.seats)
    reception.tell({"problem": problem} if problem is not None else {"go": True})
    if problem is not None:
        raise TrainingError(problem)
    return seat.node(run_id, store, reception.seats)


def _first_problem(cluster: ClusterSettings, seats: Mapping[int, Channel]) -> str | None:
    """Wait until all nodes say that they have found each other; what keeps one from it."""
    for node, channel in seats.items():
        try:
            answer = channel.receive_one(FINDING + MARGIN)
        except ChannelClosed as error:
            return f"{name_of(node, cluster.ranks_of(node))} ended before the run began: {error}"
        if "ready" not in answer:
            return str(answer.get("problem"))
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


def _join(seat: Seat) -> Node:
    """Another node: say hello to node 0, and wait for its verdict."""
    cluster, own = seat.cluster, seat.own
    where, port = _master(cluster)
    place = f"{where}:{port}"
    logger.info("node %d: node 0 is at %s (interface %s)", own.node, place, seat.interface)
    try:
        channel = connect(where, port, cluster.init_timeout)
    except OSError as error:
        raise TrainingError(
            f"{name_of(0, cluster.ranks_of(0))} was not reached at {place} within "
            f"distributed.init_timeout={cluster.init_timeout:g} s: {error}; start it, or, if it runs, "
            "it had all its nodes already or a firewall is in between"
        ) from error
    try:
        channel.send({"retexo": PROTOCOL, "hello": asdict(own)})
        verdict = channel.receive_one(cluster.init_timeout + MARGIN)
        _check(verdict, own, place)
        run_id, store, addresses = _read_verdict(verdict)
        links = {0: channel, **_find_each_other(seat, run_id, addresses, channel)}
        _check(channel.receive_one(FINDING + MARGIN), own, place)
        return seat.node(run_id, store, links)
    except ChannelClosed as error:
        raise TrainingError(f"node 0 at {place} ended before the run began, or is none: {error}") from error


def _read_verdict(verdict: Mapping[str, Any]) -> tuple[str, str, dict[str, str]]:
    """The run's id, where its store is, and where the other nodes are."""
    try:
        return str(verdict["run"]), str(verdict["store"]), dict(verdict["nodes"])
    except (KeyError, ValueError, TypeError) as error:
        raise ChannelClosed(f"no verdict: {verdict}") from error


def _check(verdict: Mapping[str, Any], own: Hello, place: str) -> None:
    """Whether node 0 lets this node go on."""
    if "refused" in verdict:
        raise InputError(
            f"distributed.master_port: what runs at {place} turned {own.name} away: {verdict['refused']}; "
            "choose another port for this run"
        )
    if "mistake" in verdict:
        raise InputError(str(verdict["mistake"]))
    if "problem" in verdict:
        raise TrainingError(str(verdict["problem"]))


def _find_each_other(seat: Seat, run_id: str, addresses: Mapping[str, str], lead: Channel) -> dict[int, Channel]:
    """Connect the nodes besides node 0 pairwise: a link that fails between two of them is noticed by these alone."""
    own, cluster = seat.own.node, seat.cluster
    links: dict[int, Channel] = {}
    problem = None
    for other in range(1, own):
        address, _, port = addresses[str(other)].rpartition(":")
        try:
            links[other] = connect(address, int(port), FINDING)
            links[other].send({"run": run_id, "node": own})
        except OSError as error:
            them = name_of(other, cluster.ranks_of(other))
            problem = f"{seat.own.name} cannot reach {them} at {address}:{port}: {error}; open the network between them"
            break
    deadline = time.monotonic() + FINDING
    while problem is None and len(links) < cluster.num_nodes - 2:
        found = _accept(seat.listener, run_id, deadline - time.monotonic())
        if found is not None:
            links[found[0]] = found[1]
        elif time.monotonic() > deadline:
            absent = [name_of(node, cluster.ranks_of(node)) for node in range(own + 1, cluster.num_nodes)]
            problem = f"{seat.own.name} was not reached by all of {', '.join(absent)} within {FINDING:g} s"
    lead.send({"ready": True} if problem is None else {"problem": problem})
    return links


def _accept(listener: socket.socket, run_id: str, timeout: float) -> tuple[int, Channel] | None:
    """A node of this run that connects; None for a stranger, or for nobody."""
    listener.settimeout(max(0.1, timeout))
    try:
        channel = Channel(listener.accept()[0])
    except OSError:
        return None
    try:
        message = channel.receive_one(HELLO_TIMEOUT)
        if message.get("run") == run_id and isinstance(message.get("node"), int):
            return message["node"], channel
    except ChannelClosed:
        pass
    channel.close()
    return None


def _master(cluster: ClusterSettings) -> tuple[str, int]:
    """Where node 0 listens."""
    if cluster.launcher_env is not None and cluster.launcher_env.store:
        where, _, port = _launcher_store(cluster).get(_launcher_key(cluster)).rpartition(":")
        return where, int(port)
    return interface_address(loopback()) if cluster.one_machine else cluster.master_addr, cluster.master_port


def _launcher_store(cluster: ClusterSettings) -> LauncherStore:
    return LauncherStore(cluster.master_addr, cluster.master_port, cluster.init_timeout)


def _launcher_key(cluster: ClusterSettings) -> str:
    return f"retexo {cluster.run_key}"


def _rendezvous(
    cluster: ClusterSettings,
    interface: str,
    *,
    file: Path | None = None,
    address: str = "",
    port: int = 0,
    run_id: str = "",
) -> Rendezvous:
    return Rendezvous(
        world_size=cluster.num_partitions,
        interface=interface,
        file=file,
        address=address,
        port=port,
        init_timeout=cluster.init_timeout,
        timeout=cluster.timeout,
        run_id=run_id,
    )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, Mapping) and value
        flat |= _flat(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return flat


def _close(node: Node) -> None:
    for channel in node.links.values():
        channel.close()
