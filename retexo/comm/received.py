"""Checks of received messages. They raise TrainingError, which names the sender."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
from torch import Tensor

from retexo.errors import TrainingError

REMEDY = "check that node, then resume"
SMALL_BYTES = 1 << 26
"""Largest message, in bytes, that is received without looking up the machine's memory."""


def check_announced(peer: int, what: str, count: int, most: int) -> None:
    """Raise TrainingError unless the number announced by a peer is in [0, most]."""
    if not 0 <= count <= most:
        raise TrainingError(
            f"rank {peer} announces {count} {what}, where 0 to {most} are possible; {REMEDY}"
        )


def check_sizes(sizes: Sequence[int], element_size: int) -> None:
    """Raise TrainingError for a negative size, or messages larger than this machine's memory.

    Args:
        sizes: elements to receive, by peer.
        element_size: bytes.
    """
    total = sum(sizes) * element_size
    if min(sizes) >= 0 and total <= SMALL_BYTES:
        return
    memory = psutil.virtual_memory().total
    for peer, size in enumerate(sizes):
        check_announced(peer, "bytes", size * element_size, memory)
    if total > memory:
        raise TrainingError(
            f"all ranks together announce {total} bytes, but this machine has {memory}; use more"
            " partitions"
        )


def check_node_numbers(peer: int, numbers: Tensor, count: int) -> None:
    """Raise TrainingError if a peer names a node whose number is not in [0, count)."""
    wrong = numbers[(numbers < 0) | (numbers >= count)]
    if len(wrong):
        raise TrainingError(
            f"rank {peer} names node {int(wrong[0])}, where there are {count}; {REMEDY}"
        )


def check_places(peer: int, places: Tensor, count: int, most: int) -> None:
    """Raise TrainingError unless a peer sent `count` places in [0, most), ascending or equal."""
    check_node_numbers(peer, places, most)
    if len(places) != count or bool((places[1:] < places[:-1]).any()):
        raise TrainingError(f"rank {peer} sent no {count} places in order; {REMEDY}")


@contextmanager
def reading_from(peer: int, what: str) -> Iterator[None]:
    """Turn a decoder's ValueError into a TrainingError that names the peer and its message."""
    try:
        yield
    except ValueError as error:
        raise TrainingError(f"rank {peer} sent an invalid {what}: {error}; {REMEDY}") from error
