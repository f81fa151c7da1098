"""This machine's network interfaces: the one with the route to an address, and its address."""

import socket
from collections.abc import Collection

import psutil

from partitioning.errors import InputError


def loopback() -> str:
    """The name of the loopback interface: lo on Linux."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    raise InputError(
        "this machine has no network interface with the address 127.0.0.1; bring up loopback"
    )


def route_interface(address: str, port: int, setting: str = "distributed.master_addr") -> str:
    """The interface with the route to the address in a setting. Looking it up sends nothing."""
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
    """An IPv4 address of an interface, a preferred one if it has one of these."""
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
