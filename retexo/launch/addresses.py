"""The address at which a node can be reached, the address of node 0, and network interfaces."""

import logging
import re
import socket
import time
from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from ipaddress import ip_address

import psutil

from partitioning.errors import InputError
from retexo.comm.process_group import share_by_launcher
from retexo.errors import TrainingError
from retexo.launch.channels import Listener, listen
from retexo.launch.hub import Hub, serving_hub
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


def open_endpoint(
    cluster: ClusterSettings, hub: Hub | None, timeout: float, stack: ExitStack
) -> Endpoint:
    """Listen, or wait at the hub, which node 0 may have to start.

    Args:
        timeout: seconds within which the hub has to be reached, or node 0's name to be known.
        stack: closes the listener.
    """
    node, own_port = cluster.node_rank, cluster.distributed.inbound_port or 0
    if hub is not None and not own_port:
        return _wait_at_hub(cluster, hub, timeout, stack)
    if hub is not None:
        interface = cluster.distributed.interface or route_interface(
            *cluster.distributed.hub_address, "distributed.hub"
        )
        address = interface_address(interface)
    else:
        if not cluster.one_machine:
            _wait_for_name(cluster.distributed.master_addr, timeout)
        interface = choose_interface(cluster)
        address = interface_address(
            interface, preferred=_resolve_host(cluster.distributed.master_addr)
        )
    port, setting, remedy = own_port, "distributed.inbound_port", "choose a free port"
    if node == 0 and not _has_launcher_store(cluster):
        if not cluster.one_machine and address not in _resolve_host(
            cluster.distributed.master_addr
        ):
            raise InputError(
                f"distributed.master_addr={cluster.distributed.master_addr}: node 0 has {address}"
                f" on interface {interface}; give that address to every node, or choose another"
                " distributed.interface"
            )
        port, setting = cluster.distributed.master_port, "distributed.master_port"
        remedy += ", the same on every node, and an address of node 0"
    listener = listen(address, port, f"{setting}={port}", remedy)
    stack.callback(listener.close)
    where = f"{address}:{listener.getsockname()[1]}"
    if node == 0 and _has_launcher_store(cluster):
        _share_address(cluster, where)
    logger.info("node %d listens at %s (interface %s)", node, where, interface)
    return Endpoint(listener, interface, where)


def _wait_at_hub(cluster: ClusterSettings, hub: Hub, timeout: float, stack: ExitStack) -> Endpoint:
    """Wait at the hub for the connections of other nodes; node 0 may have to start it.

    `stack` closes both. TrainingError if the hub is not reached.
    """
    if cluster.node_rank == hub.node:
        logger.info("node 0 is the hub, at %s", cluster.distributed.hub)
        remedy = (
            "members.json lists no hub after the nodes, so node 0 is the hub: give one of its"
            " addresses, or list the hub (`retexo credentials members`)"
        )
        address, port = cluster.distributed.hub_address
        listener = listen(address, port, f"distributed.hub={cluster.distributed.hub}", remedy)
        stack.enter_context(serving_hub(listener, hub.tls))
    logger.info(
        "node %d is reached through the hub at %s", cluster.node_rank, cluster.distributed.hub
    )
    try:
        at_hub = hub.wait(timeout)
    except OSError as error:
        raise TrainingError(
            f"distributed.hub={cluster.distributed.hub}: not reached: {error}"
        ) from error
    stack.callback(at_hub.close)
    return Endpoint(at_hub, "none", f"{THROUGH_HUB}:{cluster.node_rank}")


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


def choose_interface(cluster: ClusterSettings) -> str:
    """distributed.interface, or the interface with the route to master_addr.

    InputError for loopback, unless it is set or the run is on one machine.
    """
    if cluster.one_machine:
        return loopback()
    interface = cluster.distributed.interface or route_interface(
        cluster.distributed.master_addr, cluster.distributed.master_port
    )
    if interface == loopback() and cluster.distributed.interface is None:
        raise InputError(
            f"distributed.master_addr={cluster.distributed.master_addr}: set"
            f" distributed.interface={interface} on every node if all run on this machine, else"
            " give node 0's address; other machines cannot reach a loopback address"
        )
    return interface


def _resolve_host(host: str) -> set[str]:
    """Return the IPv4 addresses of a host name; none if it is unknown."""
    with suppress(OSError):
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, socket.AF_INET)}
    return set()


def master_address(cluster: ClusterSettings) -> tuple[str, int]:
    """Return host and port at which node 0 listens; THROUGH_HUB and 0 with a hub.

    Below a launcher with a store node 0 tells its address there.
    """
    if cluster.distributed.hub is not None:
        return THROUGH_HUB, 0
    if _has_launcher_store(cluster):
        return split_address(_share_address(cluster))
    host = interface_address(loopback()) if cluster.one_machine else cluster.distributed.master_addr
    return host, cluster.distributed.master_port


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of IP:PORT or THROUGH_HUB:NODE; ValueError for another form."""
    host, _, port = address.rpartition(":")
    if host != THROUGH_HUB:
        ip_address(host)
    if re.fullmatch("[0-9]{1,5}", port) is None or int(port) > MAX_PORT:
        raise ValueError(f"{address} has no port from 0 to {MAX_PORT}")
    return host, int(port)


def _has_launcher_store(cluster: ClusterSettings) -> bool:
    return cluster.launcher_env is not None and cluster.launcher_env.store


def _share_address(cluster: ClusterSettings, address: str | None = None) -> str:
    """Write node 0's address into torchrun's store, or wait for it there."""
    where, key = (
        (cluster.distributed.master_addr, cluster.distributed.master_port),
        f"retexo {cluster.run_key}",
    )
    return share_by_launcher(*where, cluster.distributed.init_timeout, key, address)


def loopback() -> str:
    """Return the name of the loopback interface: lo on Linux."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    raise InputError(
        "this machine has no network interface with the address 127.0.0.1; bring up loopback"
    )


def route_interface(address: str, port: int, setting: str = "distributed.master_addr") -> str:
    """Return the interface with the route to the address in a setting.

    Looking it up sends nothing.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port))
            own = probe.getsockname()[0]
    except OSError as error:
        raise InputError(f"{setting}={address}: no route to it: {error}") from error
    for name, addresses in psutil.net_if_addrs().items():
        if any(candidate.address == own for candidate in addresses):
            return name
    raise InputError(f"{setting}={address}: no interface has {own}; set distributed.interface")


def interface_address(interface: str, preferred: Collection[str] = ()) -> str:
    """Return an IPv4 address of an interface, a preferred one if it has one of these.

    InputError: it has none.
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
