"""The address at which a node can be reached, and the address of node 0."""

import logging
import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from partitioning.errors import InputError
from retexo.comm.process_group import LauncherStore
from retexo.errors import TrainingError
from retexo.launch.accepted_connections import Listener
from retexo.launch.control_channel import listen
from retexo.launch.hub import Hub
from retexo.launch.interfaces import interface_address, loopback, route_interface
from retexo.settings.cluster_settings import ClusterSettings

logger = logging.getLogger(__name__)

MAX_PORT = 65535
LOOKUP_INTERVAL = 1.0
"""Seconds after which an unknown name of node 0 is looked up again."""
THROUGH_HUB = "hub"
"""Stands for the host in an address whose port is the number of a node behind the hub."""


@dataclass(frozen=True, eq=False)
class Endpoint:
    """Where other nodes reach a node."""

    listener: Listener
    interface: str
    address: str
    """ADDRESS:PORT, or THROUGH_HUB:NODE."""


def open_endpoint(cluster: ClusterSettings, hub: Hub | None, timeout: float) -> Endpoint:
    """Listen, or wait at the hub, or be the hub.

    Args:
        timeout: seconds within which the hub has to be reached, or node 0's name to be known.
    """
    own_port = cluster.inbound_port or 0
    if hub is not None and cluster.node_rank == hub.node:
        logger.info("node 0 is the hub, at %s", cluster.hub)
        return Endpoint(hub.serve(_listen_as_hub(cluster)), "none", f"{THROUGH_HUB}:0")
    if hub is not None and not own_port:
        logger.info("node %d is reached through the hub at %s", cluster.node_rank, cluster.hub)
        try:
            return Endpoint(hub.wait(timeout), "none", f"{THROUGH_HUB}:{cluster.node_rank}")
        except OSError as error:
            raise TrainingError(f"distributed.hub={cluster.hub}: not reached: {error}") from error
    if hub is not None:
        interface = cluster.interface or route_interface(*cluster.hub_address, "distributed.hub")
        address = interface_address(interface)
    else:
        if not cluster.one_machine:
            _wait_for_name(cluster.master_addr, timeout)
        interface = choose_interface(cluster)
        address = interface_address(interface, preferred=_resolve_host(cluster.master_addr))
    if cluster.node_rank == 0:
        listener = _open_listener(cluster, interface, address)
    else:
        try:
            listener = listen(address, own_port)
        except OSError as error:
            where = f"cannot listen on {address}:{own_port}: {error.strerror}"
            raise InputError(
                f"distributed.inbound_port={own_port}: {where}; choose a free port"
            ) from error
    return Endpoint(listener, interface, f"{address}:{listener.getsockname()[1]}")


def _wait_for_name(host: str, timeout: float) -> None:
    """Wait until a host has an address.

    Schedulers start all nodes at once, and node 0's name is known only when its container runs.
    """
    deadline = time.monotonic() + timeout
    if not _resolve_host(host):
        logger.warning(
            "distributed.master_addr=%s: no such name; waiting for it for up to %g s", host, timeout
        )
    while not _resolve_host(host) and time.monotonic() + LOOKUP_INTERVAL < deadline:
        time.sleep(LOOKUP_INTERVAL)


def _listen_as_hub(cluster: ClusterSettings) -> socket.socket:
    """Listen at distributed.hub, for node 0 as the hub."""
    try:
        return listen(*cluster.hub_address)
    except OSError as error:
        raise InputError(
            f"distributed.hub={cluster.hub}: cannot listen there: {error.strerror}; members.json"
            " lists no hub after the nodes, so node 0 is the hub: give one of its addresses, or"
            " list the hub (`retexo credentials members`)"
        ) from error


def choose_interface(cluster: ClusterSettings) -> str:
    """distributed.interface, or the interface with the route to master_addr.

    InputError for loopback, unless it is set or the run is on one machine.
    """
    if cluster.one_machine:
        return loopback()
    interface = cluster.interface or route_interface(cluster.master_addr, cluster.master_port)
    if interface == loopback() and cluster.interface is None:
        raise InputError(
            f"distributed.master_addr={cluster.master_addr}: set distributed.interface={interface}"
            " on every node if all run on this machine, else give node 0's address; other machines"
            " cannot reach a loopback address"
        )
    return interface


def _open_listener(cluster: ClusterSettings, interface: str, address: str) -> socket.socket:
    """Open the port at which other nodes reach this node.

    It is announced in torchrun's store if there is one.
    """
    if cluster.launcher_env is not None and cluster.launcher_env.store:
        listener = listen(address, 0)
        _launcher_store(cluster).put(
            _launcher_key(cluster), f"{address}:{listener.getsockname()[1]}"
        )
        return listener
    where = f"{address}:{cluster.master_port}"
    if not cluster.one_machine and address not in _resolve_host(cluster.master_addr):
        raise InputError(
            f"distributed.master_addr={cluster.master_addr}: node 0 has {address} on interface"
            f" {interface}; give that address to every node, or choose another"
            " distributed.interface"
        )
    try:
        listener = listen(address, cluster.master_port)
    except OSError as error:
        raise InputError(
            f"distributed.master_port={cluster.master_port}: cannot listen on {where}:"
            f" {error.strerror}; choose a free port, the same on every node, and an address of"
            " node 0"
        ) from error
    logger.info(
        "node 0 waits for %d other node(s) at %s (interface %s)",
        cluster.num_nodes - 1,
        where,
        interface,
    )
    return listener


def _resolve_host(host: str) -> set[str]:
    """Return the IPv4 addresses of a host name; none if it is unknown."""
    with suppress(OSError):
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, socket.AF_INET)}
    return set()


def master_address(cluster: ClusterSettings) -> tuple[str, int]:
    """Host and port at which node 0 listens."""
    if cluster.hub is not None:
        return THROUGH_HUB, 0
    if cluster.launcher_env is not None and cluster.launcher_env.store:
        return split_address(_launcher_store(cluster).get(_launcher_key(cluster)))
    host = interface_address(loopback()) if cluster.one_machine else cluster.master_addr
    return host, cluster.master_port


def split_address(address: str) -> tuple[str, int]:
    """Host and port of IP:PORT or THROUGH_HUB:NODE; ValueError for another form."""
    host, _, port = address.rpartition(":")
    if host != THROUGH_HUB:
        ip_address(host)
    if re.fullmatch("[0-9]{1,5}", port) is None or int(port) > MAX_PORT:
        raise ValueError(f"{address} has no port from 0 to {MAX_PORT}")
    return host, int(port)


def _launcher_store(cluster: ClusterSettings) -> LauncherStore:
    return LauncherStore(cluster.master_addr, cluster.master_port, cluster.init_timeout)


def _launcher_key(cluster: ClusterSettings) -> str:
    """Return the key under which node 0's address stands in torchrun's store."""
    return f"retexo {cluster.run_key}"
