"""The process group: where workers meet, and for how long they wait."""

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from retexo.errors import TrainingError


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
    run_id: str = ""
    """Several nodes: the keys of the store begin with it, so that no worker of another run is ever found there."""


@contextlib.contextmanager
def process_group(rendezvous: Rendezvous, rank: int) -> Iterator[None]:
    """Join the gloo group of a run, and leave it at the end."""
    os.environ["GLOO_SOCKET_IFNAME"] = rendezvous.interface
    dist.init_process_group(
        "gloo",
        store=_store(rendezvous),
        rank=rank,
        world_size=rendezvous.world_size,
        timeout=timedelta(seconds=rendezvous.timeout),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _store(rendezvous: Rendezvous) -> Store:
    if rendezvous.file is not None:
        store: Store = FileStore(str(rendezvous.file), rendezvous.world_size)
    else:
        store = TCPStore(
            rendezvous.address,
            rendezvous.port,
            is_master=False,
            timeout=timedelta(seconds=rendezvous.init_timeout),
        )
        store = PrefixStore(rendezvous.run_id, store)
    store.set_timeout(timedelta(seconds=rendezvous.init_timeout))
    return store


@contextlib.contextmanager
def serving_store(address: str) -> Iterator[int]:
    """Serve the store of a run over several nodes, on this address alone; yields its port, which the system chose."""
    server = socket.create_server((address, 0))
    port = int(server.getsockname()[1])
    store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())
    try:
        yield port
    finally:
        del store


class LauncherStore:
    """The store of torchrun's own agent, through which the processes that it started can find each other."""

    def __init__(self, address: str, port: int, timeout: float) -> None:
        self._where = f"the store of torchrun at {address}:{port}"
        with self._naming_failure():
            self._store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout))

    def put(self, key: str, value: str) -> None:
        with self._naming_failure():
            self._store.set(key, value)

    def get(self, key: str) -> str:
        """Waits until it is there."""
        with self._naming_failure():
            return str(self._store.get(key).decode())

    @contextlib.contextmanager
    def _naming_failure(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch.distributed's errors are of this type
            raise TrainingError(f"{self._where}: {str(error).splitlines()[0]}") from error
