"""What carries messages between the workers of a run: one primitive, of which all collectives are made."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from retexo.comm.message_format import ByteArray

Pieces = Sequence[ByteArray]
"""A message where it lies in memory, one piece after the other; or the place of one that comes."""


class PeerLost(RuntimeError):
    """A collective failed, because a peer died or did not come in time."""


class Transport(Protocol):
    """One worker's end; all workers call `swap` equally often and in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def sent_again(self) -> int:
        """Bytes that went a second time because a connection broke."""
        ...

    def swap(self, outgoing: list[Pieces], incoming: Sequence[Pieces]) -> None:
        """Send a message to each peer, and write what comes from each where it belongs, both by rank.

        A worker's own message is empty. Peers may cut a message into other pieces, of as many bytes in all. The list
        outgoing may be emptied once the messages are copied. Raises PeerLost.
        """
        ...


def joined(pieces: Pieces) -> ByteArray:
    """A message in one piece; a copy, unless it is one."""
    return pieces[0] if len(pieces) == 1 else np.concatenate([*pieces, np.empty(0, np.uint8)])


def fill(pieces: Pieces, content: ByteArray) -> None:
    """Write a message where it belongs."""
    expected = sum(map(len, pieces))
    if len(content) != expected:
        raise ValueError(f"a message of {len(content)} bytes, not {expected}")
    first = 0
    for piece in pieces:
        piece[:] = content[first : first + len(piece)]
        first += len(piece)
