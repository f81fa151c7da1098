"""The interface of a transport, and what retexo.sites can add to it: encryption and hidden sums."""

import socket
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from retexo.comm.message_format import ByteArray

Pieces = Sequence[ByteArray]
"""A message as it lies in memory, piece by piece; or the memory that receives one."""


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


class StreamSecurity(Protocol):
    """Encrypts streams between workers of different nodes. Instances have to be picklable."""

    def secure(
        self, stream: socket.socket, node: int, timeout: float, *, accepted: bool
    ) -> socket.socket:
        """Encrypt a stream within `timeout` seconds, and check that the other end is `node`.

        Args:
            accepted: whether the other end opened the connection; this end is then the server.

        Raises:
            PeerLost: the handshake fails, or the certificate is another node's; the stream is
                closed.
        """
        ...


class SumMasks(Protocol):
    """Hides each worker's share of a sum. The masks cancel in the sum of all shares."""

    def hide(self, shares: Sequence[Tensor]) -> list[Tensor]:
        """Masked copies of the shares of one message, as integers."""
        ...

    def reveal(self, total: Tensor, dtype: torch.dtype) -> Tensor:
        """A sum of masked shares, in the type of the shares."""
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
