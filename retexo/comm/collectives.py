"""The only messages that workers exchange; each is counted, by what it is for.

All of them are made of one primitive, the all-to-all: what a worker sends to each of the others, and gets from each.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from retexo.comm import wire
from retexo.comm.masks import PairwiseMasks, from_words, to_words
from retexo.comm.replay_log import ReplayLog, checksum
from retexo.comm.traffic import KINDS, OF_ROUNDS, MessageTag, TrafficMeter
from retexo.comm.transport import PeerLost, Transport


@dataclass(frozen=True, eq=False)
class ReduceInput:
    """A worker's share of a sum over all workers."""

    tensor: Tensor
    """[n], on any device; holds the sum afterwards."""
    wire: torch.dtype | None = None
    """The type that travels, if not the tensor's: bfloat16, or int8 (see retexo.comm.wire).

    Rounded shares are added up in the tensor's own type, and the sum is rounded once more.
    """
    zero_ranks: frozenset[int] = frozenset()
    """Ranks whose share is known to be zero: they send none."""

    @property
    def dtype(self) -> torch.dtype:
        return self.wire or self.tensor.dtype


class Communicator:
    """The collectives of this worker, over any transport. Tensors on a GPU travel by way of the host."""

    def __init__(self, transport: Transport, sleep_time: float = 0.0) -> None:
        """sleep_time: seconds that every message waits before it is sent."""
        self.rank, self.world_size = transport.rank, transport.world_size
        self.meter = TrafficMeter(self.world_size)
        self.replay_log: ReplayLog | None = None
        """Keeps the messages outside the rounds; those that it holds already are counted, not sent again."""
        self.masks: PairwiseMasks | None = None
        """With them every sum hides its shares (gradient.secure)."""
        self._transport, self._sleep_time = transport, sleep_time

    @property
    def sent_again(self) -> int:
        """Bytes that this worker sent once more, because a connection between nodes broke; the meter has them once."""
        return self._transport.sent_again

    def all_to_all(
        self, to_peers: list[Tensor], from_sizes: Sequence[int], tag: MessageTag, *, consume: bool = False
    ) -> list[Tensor]:
        """Send a 1-D tensor to each peer and receive one from each; from_sizes are elements to come, by peer.

        Worker 0 with ([], [1, 2]) and worker 1 with ([3], []) end with ([], [3]) and ([1, 2], []). consume: empty the
        list to_peers once it is copied into one block, so that large messages are not there twice.
        """
        to_peers = to_peers if consume else list(to_peers)
        for peer, tensor in enumerate(to_peers):
            if peer != self.rank and tensor.numel():
                self.meter.add(tag, peer, tensor.numel() * tensor.element_size())
        if self.replay_log is None or tag.kind in OF_ROUNDS:
            return self._deliver(to_peers, from_sizes, tag)
        sent, dtype = checksum(to_peers), to_peers[0].dtype
        received = self.replay_log.next(sent, dtype, from_sizes)
        if received is None:
            received = self._deliver(to_peers, from_sizes, tag)
            self.replay_log.append(sent, received)
        return received

    @contextlib.contextmanager
    def without_replay_log(self) -> Iterator[None]:
        """For messages of a resumed run that are not those of the run before."""
        before, self.replay_log = self.replay_log, None
        try:
            yield
        finally:
            self.replay_log = before

    def _deliver(self, to_peers: list[Tensor], from_sizes: Sequence[int], tag: MessageTag) -> list[Tensor]:
        if self._sleep_time and self.world_size > 1:
            time.sleep(self._sleep_time)  # the setting sleep_time: to see how a method fares on slow links
        try:
            return self._transport.swap(to_peers, from_sizes)
        except PeerLost as error:
            raise PeerLost(f"lost a peer while sending {tag.kind}: {error}") from error

    def all_gather(self, tensor: Tensor, tag: MessageTag) -> Tensor:
        """The tensors of all workers, of equal shape [...], stacked by rank: [W, ...]."""
        sizes = [tensor.numel()] * self.world_size
        received = self.all_to_all([tensor.flatten()] * self.world_size, sizes, tag)
        return torch.cat(received).view(self.world_size, *tensor.shape)

    def gather(self, tensor: Tensor, tag: MessageTag) -> Tensor:
        """At rank 0 the tensors of all workers, of equal shape [...], stacked by rank: [W, ...]; elsewhere [0, ...]."""
        flat = tensor.flatten()
        to_peers = [flat if peer == 0 else flat[:0] for peer in range(self.world_size)]
        incoming = tensor.numel() if self.rank == 0 else 0
        received = self.all_to_all(to_peers, [incoming] * self.world_size, tag)
        return torch.cat(received).view(self.world_size if self.rank == 0 else 0, *tensor.shape)

    def all_reduce(self, summands: Sequence[ReduceInput], tag: MessageTag) -> None:
        """Add up each tensor over all workers, in place, all in one message; the same sums everywhere, bit for bit.

        Every worker adds up one chunk of each, in the order of ranks, and sends the sums to all. That is as many bytes
        as a ring sends, in 2 sequential hops instead of 2 (W - 1).

        4 workers with [1.], [2.], [3.], [4.] all end with [10.].
        """
        if self.world_size == 1:
            return
        if self.masks is None:
            self._add_up(summands, tag)
            return
        assert not any(summand.zero_ranks or summand.wire for summand in summands), "all ranks send masked integers"
        words = [to_words(summand.tensor) for summand in summands]
        self.masks.add_to(words)
        self._add_up([ReduceInput(each) for each in words], tag)
        for summand, total in zip(summands, words, strict=True):
            summand.tensor.copy_(from_words(total, summand.tensor.dtype))

    def _add_up(self, summands: Sequence[ReduceInput], tag: MessageTag) -> None:
        everyone = range(self.world_size)
        bounds = [[_bounds(summand, rank, self.world_size) for summand in summands] for rank in everyone]
        sizes = [
            [wire.num_bytes(summand.dtype, end - first) for summand, (first, end) in zip(summands, chunks, strict=True)]
            for chunks in bounds
        ]
        sent = [
            (summand.dtype, wire.encode(summand.tensor.detach().cpu(), summand.dtype), column)
            for summand, column in zip(summands, zip(*bounds, strict=True), strict=True)
            if self.rank not in summand.zero_ranks
        ]
        outgoing = [
            wire.join([piece for dtype, whole, chunks in sent for piece in wire.chunk(whole, dtype, *chunks[rank])])
            for rank in everyone
        ]
        own = list(zip(summands, sizes[self.rank], strict=True))
        shares = [[0 if rank in summand.zero_ranks else size for summand, size in own] for rank in everyone]
        received = zip(*self._swap(outgoing, shares, tag), strict=True)
        counts = [end - first for first, end in bounds[self.rank]]
        sums = [piece for each in zip(summands, received, counts, strict=True) for piece in _sum(*each)]
        for chunks, pieces in zip(bounds, self._swap([wire.join(sums)] * self.world_size, sizes, tag), strict=True):
            for summand, (first, end), piece in zip(summands, chunks, pieces, strict=True):
                summand.tensor[first:end] = wire.decode(piece, summand.dtype, end - first)

    def _swap(self, outgoing: list[Tensor], sizes: list[list[int]], tag: MessageTag) -> list[list[wire.ByteArray]]:
        """Swap buffers of bytes, and cut what comes from each rank into pieces of these sizes."""
        received = self.all_to_all(outgoing, [sum(pieces) for pieces in sizes], tag)
        return [wire.split(buffer, pieces) for buffer, pieces in zip(received, sizes, strict=True)]

    def rounded(self, summand: ReduceInput) -> Tensor:
        """The share as the others receive it, [n]."""
        if self.world_size == 1 or summand.wire is None:
            return summand.tensor
        encoded, count = wire.encode(summand.tensor.detach().cpu(), summand.dtype), summand.tensor.numel()
        return wire.decode(np.concatenate(encoded), summand.dtype, count).to(summand.tensor)

    def gather_traffic(self, num_layers: int) -> Tensor:
        """At rank 0 what every worker sent: int64 [W, K, L + 1, W] by sender, kind, layer and peer, this included."""
        tag = MessageTag("metrics")
        own = self.meter.table(num_layers)
        if self.rank != 0:
            own[KINDS.index("metrics"), -1, 0] += own.numel() * own.element_size()
        return self.gather(own, tag)


def _bounds(summand: ReduceInput, rank: int, world_size: int) -> tuple[int, int]:
    """First element, and the end, of the chunk that a rank adds up; whole blocks, where these share a scale."""
    size, step = summand.tensor.numel(), wire.BLOCK if summand.dtype == torch.int8 else 1
    steps = -(-size // step)
    return min(size, steps * rank // world_size * step), min(size, steps * (rank + 1) // world_size * step)


def _sum(summand: ReduceInput, shares: Sequence[wire.ByteArray], count: int) -> Sequence[wire.ByteArray]:
    """The sum of a chunk of so many values, from the shares in the order of ranks; zero ranks have none."""
    values = [wire.decode(share, summand.dtype, count) for share in shares if len(share)]
    if not values:
        return [np.zeros(wire.num_bytes(summand.dtype, count), np.uint8)]
    total = values[0].to(summand.tensor.dtype, copy=True)
    for each in values[1:]:
        total += each
    return wire.encode(total, summand.dtype)
