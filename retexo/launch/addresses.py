"""Where a node is reached, and where it reaches node 0."""

import logging
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from partitioning.errors import InputError
from retexo.comm.process_group import LauncherStore
from retexo.errors import TrainingError
from retexo.launch.accepted_connections import Listener
from retexo.launch.control_channel import listen
from retexo.launch.interfaces import interface_address, loopback, route_interface
from retexo.settings.cluster_settings import ClusterSettings
from retexo.sites.hub import Hub, HubListener, OwnHub

logger = logging.getLogger(__name__)

MAX_PORT = 65535
BY_HUB = "hub"
"""As an address: the node that the port says, by the hub."""


@dataclass(frozen=True, eq=False)
class Place:
    """Where others reach a node."""

    listener: Listener
    interface: str
    address: str
    """ADDRESS:PORT, or BY_HUB:NODE"""


def open_place(cluster: ClusterSettings, hub: Hub | None) -> Place:
    """Listen, or wait at the hub, or be the hub."""
    own_port = cluster.inbound_port or 0
    if hub is not None and cluster.node_rank == hub.node:
        logger.info("node 0 is the hub, at %s", cluster.hub)
        return Place(OwnHub(_listen_as_hub(cluster), hub.tls), "none", f"{BY_HUB}:0")
    if hub is not None and not own_port:
        logger.info("node %d is reached by the hub at %s", cluster.node_rank, cluster.hub)
        try:
            return Place(
                HubListener(hub, cluster.init_timeout), "none", f"{BY_HUB}:{cluster.node_rank}"
            )
        except OSError as error:
            raise TrainingError(f"distributed.hub={cluster.hub}: not reached: {error}") from error
    if hub is not None:
        interface = cluster.interface or route_interface(hub.address, hub.port, "distributed.hub")
        address = interface_address(interface)
    else:
        interface = choose_interface(cluster)
        address = interface_address(interface, preferred=_addresses(cluster.master_addr))
    if cluster.node_rank == 0:
        listener = _listener(cluster, interface, address)
    else:
        try:
            listener = listen(address, own_port)
        except OSError as error:
            where = f"cannot listen on {address}:{own_port}: {error.strerror}"
            raise InputError(
                f"distributed.inbound_port={own_port}: {where}; choose a free port"
            ) from error
    return Place(listener, interface, f"{address}:{listener.getsockname()[1]}")


def _listen_as_hub(cluster: ClusterSettings) -> socket.socket:
    try:
        return listen(*cluster.hub_address)
    except OSError as error:
        raise InputError(
            f"distributed.hub={cluster.hub}: cannot listen there: {error.strerror}; members.json has no hub behind the "
            "nodes, so node 0 is the hub: give an address of its own, or list the hub (`retexo credentials members`)"
        ) from error


def choose_interface(cluster: ClusterSettings) -> str:
    """distributed.interface, or the one with the route to master_addr; loopback only for a run on one machine."""
    if cluster.one_machine:
        return loopback()
    interface = cluster.interface or route_interface(cluster.master_addr, cluster.master_port)
    if interface == loopback() and cluster.interface is None:
        raise InputError(
            f"distributed.master_addr={cluster.master_addr}: set distributed.interface={interface} on every node if "
            "all run on this machine, else give node 0's address; other machines cannot reach a loopback address"
        )
    return interface


def _listener(cluster: ClusterSettings, interface: str, address: str) -> socket.socket:
    if cluster.launcher_env is not None and cluster.launcher_env.store:
        listener = listen(address, 0)
        _launcher_store(cluster).put(
            _launcher_key(cluster), f"{address}:{listener.getsockname()[1]}"
        )
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
    logger.info(
        "node 0 waits for %d other node(s) at %s (interface %s)",
        cluster.num_nodes - 1,
        where,
        interface,
    )
    return listener


def _addresses(host: str) -> set[str]:
    with suppress(OSError):
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, socket.AF_INET)}
    return set()


def master_place(cluster: ClusterSettings) -> tuple[str, int]:
    """Address and port at which node 0 listens."""
    if cluster.hub is not None:
        return BY_HUB, 0
    if cluster.launcher_env is not None and cluster.launcher_env.store:
        return split(_launcher_store(cluster).get(_launcher_key(cluster)))
    return interface_address(
        loopback()
    ) if cluster.one_machine else cluster.master_addr, cluster.master_port


def split(address: str) -> tuple[str, int]:
    """Split ADDRESS:PORT, ADDRESS an IP address or BY_HUB; ValueError for another form."""
    host, _, port = address.rpartition(":")
    if host != BY_HUB:
        ip_address(host)
    if re.fullmatch("[0-9]{1,5}", port) is None or int(port) > MAX_PORT:
        raise ValueError(f"{address} has no port from 0 to {MAX_PORT}")
    return host, int(port)


def _launcher_store(cluster: ClusterSettings) -> LauncherStore:
    return LauncherStore(cluster.master_addr, cluster.master_port, cluster.init_timeout)


def _launcher_key(cluster: ClusterSettings) -> str:
    return f"retexo {cluster.run_key}"
