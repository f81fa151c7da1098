"""The streams between workers, with distributed.backend=sockets.

Parents open them and pass them to the workers that they start. Two workers of one node get a
socket pair, which no other process can reach. Workers of two nodes get a TCP connection to the
port of the node's parent. No worker listens.
"""

import resource
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations

from retexo.comm.socket_transport import Streams

SPARE_FILES = 256
"""Files that a process opens besides its streams."""

StreamsByRank = dict[int, dict[int, socket.socket]]
"""The streams of each worker of this node, by its rank."""


def add_local_streams(
    ranks: Sequence[int], remote: StreamsByRank, stack: ExitStack
) -> dict[int, Streams]:
    """Add the streams between the workers of this node; `stack` closes all streams.

    Args:
        remote: the streams to workers of other nodes.
    """
    _raise_file_limit(len(ranks) ** 2 + sum(map(len, remote.values())))
    streams: StreamsByRank = {rank: dict(remote.get(rank, {})) for rank in ranks}
    for first, second in combinations(ranks, 2):
        streams[first][second], streams[second][first] = socket.socketpair()
    for stream in (stream for own in streams.values() for stream in own.values()):
        stack.callback(stream.close)
    return {rank: dict(sorted(own.items())) for rank, own in streams.items()}


def _raise_file_limit(count: int) -> None:
    """Raise this process's limit of open files as far as needed and allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_FILES
    if soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE,
            (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard),
        )
