"""The process group: where workers meet, on which network interface, and for how long they wait."""

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import torch.distributed as dist
from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]

from partitioning.errors import InputError


@dataclass(frozen=True)
class Rendezvous:
    """Where the workers of a run meet."""

    world_size: int
    interface: str
    """The network interface that gloo listens on."""
    file: Path | None
    """One node: a file in a private folder, so that nothing listens for the rendezvous."""
    address: str
    port: int
    init_timeout: float
    """seconds"""
    timeout: float
    """seconds"""


@contextlib.contextmanager
def process_group(rendezvous: Rendezvous, rank: int) -> Iterator[None]:
    """Join the gloo group of a run, and leave it at the end."""
    os.environ["GLOO_SOCKET_IFNAME"] = rendezvous.interface
    dist.init_process_group(
        "gloo",
        store=_store(rendezvous, rank),
        rank=rank,
        world_size=rendezvous.world_size,
        timeout=timedelta(seconds=rendezvous.timeout),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _store(rendezvous: Rendezvous, rank: int) -> Store:
    if rendezvous.file is not None:
        store: Store = FileStore(str(rendezvous.file), rendezvous.world_size)
    else:
        store = TCPStore(
            rendezvous.address,
            rendezvous.port,
            rendezvous.world_size,
            is_master=rank == 0,
            timeout=timedelta(seconds=rendezvous.init_timeout),
        )
    store.set_timeout(timedelta(seconds=rendezvous.init_timeout))
    return store


def loopback() -> str:
    """The name of the loopback interface: lo on Linux."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    raise InputError("this machine has no network interface with the address 127.0.0.1; bring up loopback")


def route_interface(address: str, port: int) -> str:
    """The interface with the route to an address; asking for it sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port))
            own = probe.getsockname()[0]
    except OSError as error:
        raise InputError(f"distributed.master_addr={address}: no route to it: {error}") from error
    for name, addresses in psutil.net_if_addrs().items():
        if any(candidate.address == own for candidate in addresses):
            return name
    raise InputError(f"distributed.master_addr={address}: no interface has {own}; set distributed.interface")


def check_port_free(address: str, port: int) -> None:
    """Refuse a port that something listens on already."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise InputError(
                f"distributed.master_port={port}: cannot listen on {address}:{port}: {error.strerror}; "
                "choose a free port, the same on every node, and an address of node 0"
            ) from error
