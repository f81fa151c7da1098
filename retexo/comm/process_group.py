"""How the workers of a run connect: over sockets that their parents opened, or as a gloo group."""

import contextlib
import os
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import psutil
import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]

from partitioning.errors import first_line
from retexo.comm.socket_transport import SocketTransport, Streams
from retexo.comm.transport import (
    PeerLost,
    Pieces,
    SecureStream,
    fill_pieces,
    join_pieces,
)
from retexo.errors import TrainingError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Rendezvous:
    """Where and how the workers of a run connect."""

    world_size: int
    address: str
    """This node's address, where gloo listens."""
    store: Path | tuple[str, int] | None
    """Where gloo's workers meet. One node: a file in a private folder, so that nothing listens for
    it; several: the address and port of a store of node 0."""
    init_timeout: float
    """Seconds."""
    timeout: float
    """Seconds."""
    run_id: str = ""
    parts_per_node: int = 1
    """Ranks of each node."""
    security: SecureStream | None = None
    """Encrypts streams between nodes; None: they are in the clear."""
    identity: str = ""
    """The run id and the names of the sites; the same for all workers and for no other run."""


@contextlib.contextmanager
def connected(
    rendezvous: Rendezvous, rank: int, streams: Streams | None
) -> Iterator["SocketTransport | GlooTransport"]:
    """Yield the transport of a worker until the end of its run, then close its connections.

    For gloo it sets GLOO_SOCKET_IFNAME and the global process group.

    Args:
        streams: connections to all other workers; None for gloo, which opens its own.

    Raises:
        PeerLost: a worker cannot be reached in time, or TLS fails.
        TrainingError: for gloo, no network interface has the address.
    """
    if streams is not None:
        with contextlib.closing(_over_sockets(rendezvous, rank, dict(streams))) as transport:
            yield transport
        return
    os.environ["GLOO_SOCKET_IFNAME"] = interface_of(rendezvous.address)
    with _peer_lost():
        dist.init_process_group(
            "gloo",
            store=_open_store(rendezvous),
            rank=rank,
            world_size=rendezvous.world_size,
            timeout=timedelta(seconds=rendezvous.timeout),
        )
    try:
        yield GlooTransport(rank, rendezvous.world_size)
    finally:
        dist.destroy_process_group()


def _over_sockets(
    rendezvous: Rendezvous, rank: int, streams: dict[int, socket.socket]
) -> SocketTransport:
    """Return a transport over streams to the other workers.

    `rendezvous.security`, if any, encrypts those to other nodes, in the order of peers, so that no
    circle of workers waits. Encrypted ones replace those in `streams`. PeerLost if that fails.
    """
    per_node, security = rendezvous.parts_per_node, rendezvous.security
    for peer in sorted(streams):
        if security is not None and peer // per_node != rank // per_node:
            streams[peer] = security(
                streams[peer], peer // per_node, rendezvous.init_timeout, rank < peer
            )
    return SocketTransport(rank, streams, rendezvous.timeout)


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an address; TrainingError for none."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    raise TrainingError(f"no network interface of this machine has {address}; bring it up")


@dataclass(frozen=True)
class GlooTransport:
    """A worker's end, as a retexo.comm.transport.Transport."""

    rank: int
    world_size: int

    def swap(self, outgoing: list[Pieces], incoming: Sequence[Pieces]) -> None:
        """Send a message to each peer and receive one from each through gloo (Transport.swap).

        A message that is received in one piece is not copied.
        """
        buffers = [
            pieces[0] if len(pieces) == 1 else np.empty(sum(map(len, pieces)), np.uint8)
            for pieces in incoming
        ]
        # Point to point: gloo's all-to-all also sends empty messages, through another thread.
        with _peer_lost():
            pending = [
                dist.irecv(torch.from_numpy(buffer), peer)
                for peer, buffer in enumerate(buffers)
                if len(buffer)
            ]
            for peer, pieces in enumerate(outgoing):
                if any(map(len, pieces)):
                    pending.append(dist.isend(torch.from_numpy(join_pieces(pieces)), peer))
            outgoing.clear()
            for work in filter(None, pending):  # None: of processes outside the group
                work.wait()
        for pieces, buffer in zip(incoming, buffers, strict=True):
            if len(pieces) != 1:
                fill_pieces(pieces, buffer)


@contextlib.contextmanager
def _peer_lost() -> Iterator[None]:
    """Turn an error of the network, which has no type of its own, into PeerLost."""
    try:
        yield
    except RuntimeError as error:
        if not _is_network_error(error):
            raise
        raise PeerLost(first_line(error)) from error


def _is_network_error(error: RuntimeError) -> bool:
    """Return whether a peer is the reason, and not this process, as when memory runs out."""
    # gloo's messages name the source file that raised them.
    text = re.sub(r"\[enforce fail.*", "", str(error))
    return (
        isinstance(error, dist.DistError)
        or re.search(r"/transport/|[Cc]onnection|[Tt]imed out", text) is not None
    )


def _open_store(rendezvous: Rendezvous) -> Store:
    """Open the store in which gloo's workers find each other: by TCP, or a file on one machine."""
    limit = timedelta(seconds=rendezvous.init_timeout)
    if isinstance(rendezvous.store, tuple):
        store: Store = TCPStore(*rendezvous.store, is_master=False, timeout=limit)
    else:
        store = FileStore(str(rendezvous.store), rendezvous.world_size)
    store.set_timeout(limit)
    return store


@contextlib.contextmanager
def serving_store(address: str) -> Iterator[tuple[str, int]]:
    """Within the block, serve the store of a run over several nodes; yields address and port.

    The port is a free one, on this address only.
    """
    server = socket.create_server((address, 0))
    port = int(server.getsockname()[1])
    store = TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach()
    )
    try:
        yield address, port
    finally:
        del store
