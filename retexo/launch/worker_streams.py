"""The streams that workers send each other rows and gradients over, with distributed.backend=sockets.

The parents make them, and hand them to the workers that they start: between workers of one node a pair of sockets,
which nothing outside these two processes can reach; between nodes a TCP connection to the port at which a node is
reached anyway. No worker listens.
"""

import resource
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations

from retexo.comm.socket_transport import Streams

SPARE_FILES = 256
"""Open files of a process besides its streams."""

StreamsByRank = dict[int, dict[int, socket.socket]]
"""The streams of each worker of this node, by its rank."""


def with_local_streams(
    ranks: Sequence[int], remote: StreamsByRank, stack: ExitStack
) -> dict[int, Streams]:
    """Those to workers of other nodes and, made here, those between the workers of this one; closed by the stack."""
    _allow_files(len(ranks) ** 2 + sum(map(len, remote.values())))
    streams: StreamsByRank = {rank: dict(remote.get(rank, {})) for rank in ranks}
    for first, second in combinations(ranks, 2):
        streams[first][second], streams[second][first] = socket.socketpair()
    for stream in (stream for own in streams.values() for stream in own.values()):
        stack.callback(stream.close)
    return {rank: dict(sorted(own.items())) for rank, own in streams.items()}


def with_doors(
    streams: dict[int, Streams], stack: ExitStack
) -> tuple[dict[int, Streams], dict[int, socket.socket]]:
    """The streams with the door of each worker at its own rank (retexo.comm.repair), and the parent's ends of these."""
    pairs = {rank: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for rank in streams}
    for _, inner in pairs.values():
        stack.callback(inner.close)
    return (
        {rank: {**own, rank: pairs[rank][1]} for rank, own in streams.items()},
        {rank: outer for rank, (outer, _) in pairs.items()},
    )


def _allow_files(count: int) -> None:
    """Raise this process's limit of open files as far as it needs and may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_FILES
    if soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE,
            (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard),
        )
