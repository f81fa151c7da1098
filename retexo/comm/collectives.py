"""The only messages that workers exchange; each is counted, by what it is for.

All of them are made of one primitive, the all-to-all: what a worker sends to each of the others, and gets from each.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from retexo.comm.int8 import SCALE_BYTES, to_int8
from retexo.comm.masks import PairwiseMasks, from_words, to_words
from retexo.comm.replay_log import ReplayLog, checksum
from retexo.comm.traffic import KINDS, OF_ROUNDS, MessageTag, TrafficMeter
from retexo.comm.transport import PeerLost, Transport

BLOCK = 128
"""Values of a sum in int8 that share a scale."""


@dataclass(frozen=True, eq=False)
class ReduceInput:
    """A worker's share of a sum over all workers."""

    tensor: Tensor
    """[n], on any device; holds the sum afterwards."""
    wire: torch.dtype | None = None
    """The type that travels, if not the tensor's: bfloat16, or int8 with a scale for each BLOCK values.

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
        chunks = [[_chunk(summand, rank, self.world_size) for summand in summands] for rank in everyone]
        shares = [
            [
                0 if rank in summand.zero_ranks else size
                for summand, size in zip(summands, chunks[self.rank], strict=True)
            ]
            for rank in everyone
        ]
        outgoing = [torch.cat(pieces) for pieces in zip(*map(self._chunks_of, summands), strict=True)]
        received = self._split(outgoing, shares, tag)
        sums = [
            _add_up(summand, column, size)
            for summand, column, size in zip(summands, zip(*received, strict=True), chunks[self.rank], strict=True)
        ]
        answers = self._split([torch.cat(sums)] * self.world_size, chunks, tag)
        for rank, pieces in enumerate(answers):
            for summand, piece in zip(summands, pieces, strict=True):
                first, end = _bounds(summand, rank, self.world_size)
                summand.tensor[first:end] = _values(piece, summand.dtype)

    def _chunks_of(self, summand: ReduceInput) -> list[Tensor]:
        """This worker's share as bytes, by the rank that adds a chunk of it up."""
        if self.rank in summand.zero_ranks:
            return [torch.empty(0, dtype=torch.uint8)] * self.world_size
        bounds = [_bounds(summand, rank, self.world_size) for rank in range(self.world_size)]
        return _as_bytes(summand.tensor.detach().cpu(), summand.dtype, bounds)

    def rounded(self, summand: ReduceInput) -> Tensor:
        """The share as the others receive it, [n]."""
        if self.world_size == 1 or summand.wire is None:
            return summand.tensor
        (whole,) = _as_bytes(summand.tensor.detach().cpu(), summand.dtype, [(0, summand.tensor.numel())])
        return _values(whole, summand.dtype).to(summand.tensor)

    def _split(self, outgoing: list[Tensor], sizes: list[list[int]], tag: MessageTag) -> list[tuple[Tensor, ...]]:
        """Swap buffers of bytes, and cut what comes from each rank into pieces of these sizes."""
        received = self.all_to_all(outgoing, [sum(pieces) for pieces in sizes], tag)
        return [torch.split(buffer, pieces) for buffer, pieces in zip(received, sizes, strict=True)]

    def gather_traffic(self, num_layers: int) -> Tensor:
        """At rank 0 what every worker sent: int64 [W, K, L + 1, W] by sender, kind, layer and peer, this included."""
        tag = MessageTag("metrics")
        own = self.meter.table(num_layers)
        if self.rank != 0:
            own[KINDS.index("metrics"), -1, 0] += own.numel() * own.element_size()
        return self.gather(own, tag)


def _bounds(summand: ReduceInput, rank: int, world_size: int) -> tuple[int, int]:
    """First element, and the end, of the chunk that a rank adds up; whole blocks, where these share a scale."""
    size, step = summand.tensor.numel(), BLOCK if summand.dtype == torch.int8 else 1
    steps = -(-size // step)
    return min(size, steps * rank // world_size * step), min(size, steps * (rank + 1) // world_size * step)


def _chunk(summand: ReduceInput, rank: int, world_size: int) -> int:
    """Bytes of the chunk that a rank adds up."""
    first, end = _bounds(summand, rank, world_size)
    scales = -(-(end - first) // BLOCK) * SCALE_BYTES if summand.dtype == torch.int8 else 0
    return (end - first) * summand.dtype.itemsize + scales


def _add_up(summand: ReduceInput, shares: tuple[Tensor, ...], size: int) -> Tensor:
    """The sum of a chunk, `size` bytes, from the shares in the order of ranks; zero ranks have none."""
    shares = tuple(share for share in shares if len(share))
    if not shares:
        return torch.zeros(size, dtype=torch.uint8)
    first, *others = (_values(share, summand.dtype) for share in shares)
    total = first.to(summand.tensor.dtype, copy=True)
    for values in others:
        total += values
    return _as_bytes(total, summand.dtype, [(0, len(total))])[0]


def _as_bytes(values: Tensor, dtype: torch.dtype, bounds: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Values [n] in the type that travels, uint8, chunk by chunk (see _bounds); of int8 its scales come last."""
    if dtype != torch.int8:
        whole = values.to(dtype).contiguous()
        return [whole[first:end].view(torch.uint8) for first, end in bounds]
    blocks = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
    codes, scales = to_int8(blocks)
    codes, scales = codes.view(-1).view(torch.uint8), scales.view(-1)
    return [
        torch.cat((codes[first:end], scales[first // BLOCK : -(-end // BLOCK)].view(torch.uint8)))
        for first, end in bounds
    ]


def _values(buffer: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse; of a copy where a view of another type does not begin at a multiple of its size."""
    if dtype != torch.int8:
        aligned = buffer if buffer.storage_offset() % dtype.itemsize == 0 else buffer.clone()
        return aligned.view(dtype)
    num_blocks = -(-len(buffer) // (BLOCK + SCALE_BYTES))
    codes, scales = torch.split(buffer, [len(buffer) - num_blocks * SCALE_BYTES, num_blocks * SCALE_BYTES])
    blocks = torch.nn.functional.pad(codes.view(torch.int8), (0, -len(codes) % BLOCK)).view(-1, BLOCK)
    return (blocks * scales.clone().view(-1, SCALE_BYTES).view(torch.float32)).view(-1)[: len(codes)]
