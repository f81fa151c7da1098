"""The traffic meter: payload bytes that this worker passes to the transport, counted at the sender.

A collective counts the bytes that its algorithm sends. W workers, N bytes from each:
    all-to-all         the message to each peer
    all-reduce         2 (W - 1) N over all workers, in two all-to-alls of chunks (collectives.py)
    all-gather         N to each peer
    gather             N to rank 0
Headers of gloo, TLS, TCP or IP are not counted.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

KINDS = (
    "setup",
    "features",
    "embeddings",
    "gradients",
    "parameters",
    "metrics",
    "predictions",
    "structure",
    "labels",
    "aggregates",
)
"""structure, labels: neighbours and labels that trainer=sampled fetches from other partitions;
aggregates: those of boundary nodes, sent once per layer with model.lookahead."""
ROUND_KINDS = ("gradients", "metrics")
"""Kinds that the rounds of a layer send."""
WHOLE_RUN = -1
"""Layer of messages that belong to no layer."""


@dataclass(frozen=True)
class MessageTag:
    """Purpose of a message, by which the traffic meter counts."""

    kind: str
    layer: int = WHOLE_RUN
    phase: int = 0
    """Phase of exchanged rows, see retexo.exchange.exchange_plan. Not reported apart."""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind


SETUP, METRICS = MessageTag("setup"), MessageTag("metrics")
PREDICTIONS = MessageTag("predictions")


class TrafficMeter:
    """Bytes sent by one worker, by kind, layer and peer."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._sent: defaultdict[tuple[MessageTag, int], int] = defaultdict(int)
        self.total = 0
        """Bytes sent so far, which another thread may read."""

    def add(self, tag: MessageTag, peer: int, num_bytes: int) -> None:
        """Count bytes sent to a peer under a tag."""
        self._sent[tag, peer] += num_bytes
        self.total += num_bytes

    def entries_of_rounds(self, layer: int) -> list[list[Any]]:
        """Return bytes sent by the rounds of a layer, as JSON: kind, phase, peer, bytes."""
        return [
            [tag.kind, tag.phase, peer, num_bytes]
            for (tag, peer), num_bytes in self._sent.items()
            if tag.layer == layer and tag.kind in ROUND_KINDS
        ]

    def restore(self, layer: int, sent: list[list[Any]]) -> None:
        """Take over what `entries_of_rounds` returned earlier, in place of what has equal tags.

        ValueError for an unknown kind.
        """
        for kind, phase, peer, num_bytes in sent:
            KINDS.index(kind)
            key = MessageTag(kind, layer, phase), peer
            self.total += num_bytes - self._sent[key]
            self._sent[key] = num_bytes

    @property
    def entries(self) -> Mapping[tuple[MessageTag, int], int]:
        """Bytes by tag and peer."""
        return self._sent

    def table(self, num_layers: int) -> Tensor:
        """Return the bytes sent, int64 [K, L + 1, W], by kind, layer and peer.

        The last layer is the whole run.
        """
        table = torch.zeros(len(KINDS), num_layers + 1, self.world_size, dtype=torch.int64)
        for (tag, peer), num_bytes in self._sent.items():
            table[KINDS.index(tag.kind), tag.layer, peer] += num_bytes
        return table
