"""How workers meet, send, and for how long they wait: over sockets that they are given, or in gloo's process group."""

import contextlib
import os
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from retexo.comm.connections import Link
from retexo.comm.repair import Repairs
from retexo.comm.socket_transport import SocketTransport, Streams, socket_transport
from retexo.comm.transport import PeerLost, Pieces, Transport, fill, joined
from retexo.errors import TrainingError
from retexo.sites.credentials import Credentials
from retexo.sites.tls import Tls, secure_stream


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
    credentials: Credentials | None = None
    """By which streams between nodes are encrypted; None: they are not."""
    parts_per_node: int = 0
    """Several nodes: ranks of each."""
    secret: str = field(default="", repr=False)
    """Several nodes: what only those of this run know."""
    link_timeout: float = 15.0
    """seconds for which a link between nodes may be broken"""

    @property
    def identity(self) -> str:
        """What only this run, with these certificates, has; the same for all workers."""
        return f"{self.run_id} {self.credentials.members if self.credentials else ''}"


def connected(
    rendezvous: Rendezvous, rank: int, streams: Streams | None
) -> contextlib.AbstractContextManager[Transport]:
    """The transport of a worker until the end of its run; streams: None for gloo."""
    if streams is None:
        return process_group(rendezvous, rank)
    return socket_transport(_over_sockets(rendezvous, rank, dict(streams)))


def _over_sockets(
    rendezvous: Rendezvous, rank: int, streams: dict[int, socket.socket]
) -> SocketTransport:
    """Streams to other nodes become links; in the order of peers, so that no circle of workers waits for TLS."""
    door, per_node = streams.pop(rank, None), rendezvous.parts_per_node
    tls = Tls(rendezvous.credentials) if rendezvous.credentials is not None else None

    def secured(peer: int, stream: socket.socket, timeout: float, accepted: bool) -> socket.socket:
        return (
            secure_stream(stream, tls, peer // per_node, timeout, accepted=accepted)
            if tls
            else stream
        )

    remote = [peer for peer in sorted(streams) if per_node and peer // per_node != rank // per_node]
    links = {
        peer: Link(peer, secured(peer, streams.pop(peer), rendezvous.init_timeout, rank < peer))
        for peer in remote
    }
    repairs = None
    if door is not None:
        repairs = Repairs(rank, links, door, rendezvous.secret, rendezvous.link_timeout, secured)
    return SocketTransport(rank, streams, rendezvous.timeout, links, repairs)


@contextlib.contextmanager
def process_group(rendezvous: Rendezvous, rank: int) -> Iterator["GlooTransport"]:
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
        yield GlooTransport(rank, rendezvous.world_size)
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class GlooTransport:
    """A worker's end of the process group that it has joined, as a retexo.comm.transport.Transport."""

    rank: int
    world_size: int
    sent_again = 0

    def swap(self, outgoing: list[Pieces], incoming: Sequence[Pieces]) -> None:
        """See Transport.swap; what comes in one piece is not copied."""
        places = [
            pieces[0] if len(pieces) == 1 else np.empty(sum(map(len, pieces)), np.uint8)
            for pieces in incoming
        ]
        # Point to point: gloo's all-to-all sends empty messages, too, by way of another thread.
        try:
            pending = [
                dist.irecv(torch.from_numpy(place), peer)
                for peer, place in enumerate(places)
                if len(place)
            ]
            for peer, pieces in enumerate(outgoing):
                if any(map(len, pieces)):
                    pending.append(dist.isend(torch.from_numpy(joined(pieces)), peer))
            outgoing.clear()
            for work in filter(None, pending):  # None: of processes outside the group
                work.wait()
        except RuntimeError as error:
            if not _is_of_network(error):
                raise
            raise PeerLost(str(error).splitlines()[0]) from error
        for pieces, place in zip(incoming, places, strict=True):
            if len(pieces) != 1:
                fill(pieces, place)


def _is_of_network(error: RuntimeError) -> bool:
    """Whether a collective failed because of a peer, and not here, as when memory runs out."""
    # gloo's errors have no type of their own, but name its source file.
    text = re.sub(r"\[enforce fail.*", "", str(error))
    return (
        isinstance(error, dist.DistError)
        or re.search(r"/transport/|[Cc]onnection|[Tt]imed out", text) is not None
    )


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
    store = TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach()
    )
    try:
        yield port
    finally:
        del store


class LauncherStore:
    """The store of torchrun's own agent, through which the processes that it started can find each other."""

    def __init__(self, address: str, port: int, timeout: float) -> None:
        self._where = f"the store of torchrun at {address}:{port}"
        with self._naming_failure():
            self._store = TCPStore(
                address, port, is_master=False, timeout=timedelta(seconds=timeout)
            )

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
