"""What carries messages between the workers of a run: one primitive, of which all collectives are made."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


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

    def swap(self, to_peers: list[Tensor], from_sizes: Sequence[int]) -> list[Tensor]:
        """Send a 1-D tensor to each peer and receive one from each, by rank.

        to_peers: on the host, of one type, one for each rank; the list may be emptied once the tensors are copied.
        from_sizes: elements to come from each peer, which has to send as many of the same type.
        Raises PeerLost.
        """
        ...
