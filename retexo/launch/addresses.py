"""Where the nodes of a run reach each other: addresses, ports, name look-ups, and the hub."""

import logging
import re
import socket
from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from ipaddress import ip_address

import psutil

from partitioning.errors import InputError
from retexo.comm.process_group import LOOPBACK, interface_of
from retexo.errors import TrainingError
from retexo.launch.channels import Channel, Dial, Listener, connect, listen, retry
from retexo.launch.hub import THROUGH_HUB, Hub, HubListener, serving_hub
from retexo.launch.tls import Tls
from retexo.settings.cluster_settings import ClusterSettings

logger = logging.getLogger(__name__)

MAX_PORT = 65535


@dataclass(frozen=True, eq=False)
class Endpoint:
    """Where other nodes reach a node, and how it reaches them."""

    cluster: ClusterSettings
    listener: Listener
    address: str
    """ADDRESS:PORT, or THROUGH_HUB:NODE."""
    tls: Tls | None = None
    dial: Dial = socket.create_connection

    @property
    def name(self) -> str:
        return self.cluster.describe_node(self.cluster.node_rank)

    def connect(
        self, address: tuple[str, int], timeout: float, node: int, *, encrypted: bool = True
    ) -> Channel:
        """Connect to a node, which may be behind the hub (channels.connect)."""
        return connect(address, timeout, self.tls if encrypted else None, node, self.dial)


def open_endpoint(
    cluster: ClusterSettings, tls: Tls | None, timeout: float, stack: ExitStack
) -> Endpoint:
    """Listen, or wait at the hub, which node 0 may have to start; log where.

    Args:
        timeout: seconds within which the hub has to be reached, or to wait for node 0's name.
        stack: closes the listener, and a hub that was started.

    Raises:
        InputError: the port cannot be used, there is no own address (`own_address`), or
            master_addr is not node 0's, at node 0.
        TrainingError: the hub is not reached.
    """
    own, hub = cluster.distributed, _make_hub(cluster, tls)
    if hub is not None and own.inbound_port is None:
        listener = _wait_at_hub(cluster, hub, timeout, stack)
        return Endpoint(cluster, listener, f"{THROUGH_HUB}:{cluster.node_rank}", tls, hub.dial)
    if hub is None and not cluster.one_machine:
        _wait_for_name(own.master_addr, timeout)
    address = own_address(cluster)
    port, setting, remedy = own.inbound_port or 0, "distributed.inbound_port", "choose a free port"
    if cluster.node_rank == 0:
        if not cluster.one_machine and address not in _resolve_host(own.master_addr):
            raise InputError(
                f"distributed.master_addr={own.master_addr}: node 0 has {address}; give that"
                " address to every node, or choose another distributed.interface"
            )
        port, setting = own.master_port, "distributed.master_port"
        remedy += ", the same on every node, and an address of node 0"
    socket_ = listen(address, port, f"{setting}={port}", remedy)
    stack.callback(socket_.close)
    where = f"{address}:{socket_.getsockname()[1]}"
    logger.info("node %d listens at %s", cluster.node_rank, where)
    dial = socket.create_connection if hub is None else hub.dial
    return Endpoint(cluster, socket_, where, tls, dial)


def _make_hub(cluster: ClusterSettings, tls: Tls | None) -> Hub | None:
    """Return the hub of a run, which is node 0 if the members list no other; None without one."""
    if tls is None or cluster.distributed.hub is None:
        return None
    is_node_0 = len(tls.members) == cluster.num_nodes
    return Hub(cluster.distributed.hub_address, tls, 0 if is_node_0 else cluster.num_nodes)


def _wait_at_hub(
    cluster: ClusterSettings, hub: Hub, timeout: float, stack: ExitStack
) -> HubListener:
    """Wait at the hub for the connections of other nodes.

    If this node is the hub, it is started first, in a thread. `stack` ends both. InputError if it
    cannot listen, TrainingError if the hub is not reached.
    """
    where = f"distributed.hub={cluster.distributed.hub}"
    if cluster.node_rank == hub.node:
        logger.info("node 0 is the hub, at %s", cluster.distributed.hub)
        remedy = (
            "members.json lists no hub after the nodes, so node 0 is the hub: give one of its"
            " addresses, or list the hub (`retexo credentials members`)"
        )
        stack.enter_context(serving_hub(listen(*hub.address, where, remedy), hub.tls))
    logger.info(
        "node %d is reached through the hub at %s", cluster.node_rank, cluster.distributed.hub
    )
    try:
        at_hub = HubListener(hub, timeout)
    except OSError as error:
        raise TrainingError(f"{where}: not reached: {error}") from error
    stack.callback(at_hub.close)
    return at_hub


def _wait_for_name(host: str, timeout: float) -> None:
    """Wait until a host has an address, at most `timeout` seconds, and warn of it.

    Schedulers start all nodes at once, and node 0's name is known only when its container runs.
    """
    if not _resolve_host(host):
        logger.warning(
            "distributed.master_addr=%s: no such name; waiting for it for up to %g s", host, timeout
        )
        with suppress(OSError):
            retry(lambda seconds: socket.getaddrinfo(host, None, socket.AF_INET), timeout)


def _resolve_host(host: str) -> set[str]:
    """Return the IPv4 addresses of a host name; none if it is unknown."""
    with suppress(OSError):
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, socket.AF_INET)}
    return set()


def own_address(cluster: ClusterSettings) -> str:
    """Return the IPv4 address at which other nodes reach this one.

    It is the one with the route to the hub or to node 0, or one of distributed.interface.

    Raises:
        InputError: there is none; or it is loopback, unless the run is on one machine, uses a hub,
            or the interface is set.
    """
    own = cluster.distributed
    if cluster.one_machine:
        return LOOPBACK
    if own.interface is not None:
        return _interface_address(own.interface, _resolve_host(own.master_addr))
    if own.hub is not None:
        return _route_address(*own.hub_address, "distributed.hub")
    address = _route_address(own.master_addr, own.master_port, "distributed.master_addr")
    if ip_address(address).is_loopback:
        raise InputError(
            f"distributed.master_addr={own.master_addr}: set"
            f" distributed.interface={interface_of(address)} on every node if all run on this"
            " machine, else give node 0's address; other machines cannot reach a loopback address"
        )
    return address


def _route_address(host: str, port: int, setting: str) -> str:
    """Return this machine's address on the route to another; InputError without a route.

    Nothing is sent but the look-up of the name.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise InputError(f"{setting}={host}: no route to it: {error}") from error


def _interface_address(interface: str, preferred: Collection[str]) -> str:
    """Return an IPv4 address of an interface, a preferred one if it has one of these.

    InputError without the interface or an address.
    """
    interfaces = psutil.net_if_addrs()
    if interface not in interfaces:
        raise InputError(
            f"distributed.interface={interface}: not here; there are"
            f" {', '.join(sorted(interfaces))}"
        )
    own = [str(entry.address) for entry in interfaces[interface] if entry.family == socket.AF_INET]
    if not own:
        raise InputError(
            f"distributed.interface={interface}: has no IPv4 address; choose another, or give"
            " it one"
        )
    return next((address for address in own if address in preferred), own[0])


def master_address(cluster: ClusterSettings) -> tuple[str, int]:
    """Return host and port at which node 0 listens; THROUGH_HUB and 0 with a hub."""
    if cluster.distributed.hub is not None:
        return THROUGH_HUB, 0
    host = LOOPBACK if cluster.one_machine else cluster.distributed.master_addr
    return host, cluster.distributed.master_port


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of IP:PORT or THROUGH_HUB:NODE; ValueError for another form."""
    host, _, port = address.rpartition(":")
    if host != THROUGH_HUB:
        ip_address(host)
    if re.fullmatch("[0-9]{1,5}", port) is None or int(port) > MAX_PORT:
        raise ValueError(f"{address} has no port from 0 to {MAX_PORT}")
    return host, int(port)
