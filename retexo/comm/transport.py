"""Interface of a transport."""

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from retexo.comm.message_format import ByteArray

Pieces = Sequence[ByteArray]
"""A message as it lies in memory, piece by piece; or the memory that receives one."""


SecureStream = Callable[[socket.socket, int, float, bool], socket.socket]
"""Encrypts a stream to a worker of a node within some seconds, as the side that accepted it or that
opened it; PeerLost if that fails. Picklable. retexo.launch.tls.Tls.secure_stream is one."""


class PeerLost(RuntimeError):
    """A collective failed because a peer died or did not send in time."""


class Transport(Protocol):
    """One worker's end. All workers call `swap` equally often and in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def swap(self, outgoing: list[Pieces], incoming: Sequence[Pieces]) -> None:
        """Send a message to each peer and receive one from each, both by rank.

        A worker's own message is empty. The two ends of a message may cut it differently, but into
        the same number of bytes. The list `outgoing` may be emptied once the messages are copied.

        Raises:
            PeerLost: a peer died or did not send in time.
        """
        ...


def join_pieces(pieces: Pieces) -> ByteArray:
    """Return a message in one array; a copy unless it has only one piece."""
    return pieces[0] if len(pieces) == 1 else np.concatenate([*pieces, np.empty(0, np.uint8)])


def fill_pieces(pieces: Pieces, content: ByteArray) -> None:
    """Copy a message from one array into pieces of the same total size; ValueError otherwise."""
    expected = sum(map(len, pieces))
    if len(content) != expected:
        raise ValueError(f"a message of {len(content)} bytes, not {expected}")
    first = 0
    for piece in pieces:
        piece[:] = content[first : first + len(piece)]
        first += len(piece)
