"""Collectives, the only messages between workers. The traffic meter counts each by its purpose.

All of them are built from one primitive, an all-to-all of messages of different lengths.
"""

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from retexo.comm import message_format
from retexo.comm.masks import PairwiseMasks, from_words
from retexo.comm.message_format import WireFormat
from retexo.comm.received import check_sizes
from retexo.comm.replay_log import ReplayLog, checksum
from retexo.comm.traffic_meter import KINDS, METRICS, ROUND_KINDS, MessageTag, TrafficMeter
from retexo.comm.transport import PeerLost, Pieces, Transport, join_pieces

MAX_ROOT_BYTES = 1 << 16
"""Bytes that one worker may send to add up a whole sum; they take 5 ms at 100 Mbit/s."""


@dataclass(frozen=True, eq=False)
class ReduceInput:
    """A worker's share of a sum over all workers."""

    tensor: Tensor
    """[n], on any device; holds the sum afterwards."""
    wire: WireFormat | None = None
    """Format of the messages: torch.bfloat16, "int8", "int6" (retexo.comm.message_format), or None
    for the tensor's type. Rounded shares are summed in the tensor's type, and the sum is rounded.
    """
    zero_ranks: frozenset[int] = frozenset()
    """Ranks whose share is known to be zero. They send nothing."""

    @property
    def wire_format(self) -> WireFormat:
        return self.wire or self.tensor.dtype


class Communicator:
    """Collectives of this worker, over any transport; all workers call them in the same order.

    Each may raise PeerLost, or TrainingError, as `all_to_all`; the meter counts what it sends. Only
    `all_reduce` and `round_as_sent` take tensors on a GPU, which they copy to the host.
    """

    def __init__(
        self, transport: Transport, sleep_time: float = 0.0, *, between_nodes: bool = False
    ) -> None:
        """Begin with empty byte counts, without a replay log and without masks; nothing is sent.

        Args:
            transport: has the rank and the number of workers.
            sleep_time: seconds to wait before each message.
            between_nodes: whether some peers are on other machines, so that large messages leave
                time for other work.
        """
        self.rank, self.world_size = transport.rank, transport.world_size
        self.between_nodes = between_nodes
        self.meter = TrafficMeter(self.world_size)
        self.replay_log: ReplayLog | None = None
        """Stores the messages outside the rounds. Those it already holds are counted but not sent.
        """
        self.masks: PairwiseMasks | None = None
        """Hides the shares of every sum (gradient.secure)."""
        self._transport, self._sleep_time = transport, sleep_time

    def all_to_all(
        self,
        to_peers: list[Tensor],
        from_sizes: Sequence[int],
        tag: MessageTag,
        *,
        consume: bool = False,
    ) -> list[Tensor]:
        """Send a 1-D tensor to each peer and receive one from each.

        Worker 0 with ([], [1, 2]) and worker 1 with ([3], []) end with ([], [3]) and ([1, 2], []).

        Args:
            to_peers: by rank.
            from_sizes: elements to receive, by rank.
            consume: empty the list `to_peers` once it is copied, so that a large message is not in
                memory twice.

        Returns:
            By rank; the own message is copied.

        Raises:
            PeerLost: a peer died or did not send in time.
            TrainingError: sizes are negative or beyond this machine's memory, a peer sends another
                size, or the replay log has another message.
            ValueError: the own message has another size than `from_sizes` says.
        """
        element_size = to_peers[self.rank].element_size()
        check_sizes(from_sizes, element_size)
        if to_peers[self.rank].numel() != from_sizes[self.rank]:
            raise ValueError("this rank's own message has another size than announced")
        if self.replay_log is not None and tag.kind not in ROUND_KINDS:
            self.replay_log.check_size(sum(from_sizes) * element_size)
        outgoing: list[Pieces] = [[message_format.as_bytes(tensor)] for tensor in to_peers]
        received = list(
            torch.split(
                torch.empty(sum(from_sizes), dtype=to_peers[self.rank].dtype), list(from_sizes)
            )
        )
        received[self.rank].copy_(to_peers[self.rank].detach())
        if consume:
            to_peers.clear()
        incoming: list[Pieces] = [[message_format.as_bytes(tensor)] for tensor in received]
        self._swap(outgoing, incoming, tag)
        return received

    def _swap(self, outgoing: list[Pieces], incoming: list[Pieces], tag: MessageTag) -> None:
        """Count and send messages; receive the others', or read them from the replay log.

        This worker's own message is already in place. Both lists may be emptied.
        """
        for peer, pieces in enumerate(outgoing):
            if peer != self.rank and (size := sum(map(len, pieces))):
                self.meter.add(tag, peer, size)
        if self.replay_log is None or tag.kind in ROUND_KINDS:
            self._deliver(outgoing, incoming, tag)
            return
        sent, received = checksum([*itertools.chain(*outgoing)]), [*itertools.chain(*incoming)]
        if not self.replay_log.next(sent, received):
            self._deliver(outgoing, incoming, tag)
            self.replay_log.append(sent, received)

    @contextlib.contextmanager
    def without_replay_log(self) -> Iterator[None]:
        """Within the block, send messages that differ in a resumed run, without the replay log."""
        before, self.replay_log = self.replay_log, None
        try:
            yield
        finally:
            self.replay_log = before

    def _deliver(self, outgoing: list[Pieces], incoming: list[Pieces], tag: MessageTag) -> None:
        """Pass messages to the transport, after the simulated latency; `incoming` is filled.

        This worker's own entries of both lists are replaced by nothing. PeerLost names the kind of
        traffic.
        """
        outgoing[self.rank] = incoming[self.rank] = ()
        if self._sleep_time and self.world_size > 1:
            time.sleep(self._sleep_time)
        try:
            self._transport.swap(outgoing, incoming)
        except PeerLost as error:
            raise PeerLost(f"lost a peer while sending {tag.kind}: {error}") from error

    def all_gather(self, tensor: Tensor, tag: MessageTag) -> Tensor:
        """Return the tensors of all workers, each of shape [...], stacked by rank: [W, ...]."""
        sizes = [tensor.numel()] * self.world_size
        received = self.all_to_all([tensor.flatten()] * self.world_size, sizes, tag)
        return torch.cat(received).view(self.world_size, *tensor.shape)

    def gather(self, tensor: Tensor, tag: MessageTag) -> Tensor:
        """Return at rank 0 the tensors of all workers, [W, ...]; elsewhere [0, ...].

        The shape of `tensor` is [...], the same everywhere.
        """
        flat = tensor.flatten()
        to_peers = [flat if peer == 0 else flat[:0] for peer in range(self.world_size)]
        incoming = tensor.numel() if self.rank == 0 else 0
        received = self.all_to_all(to_peers, [incoming] * self.world_size, tag)
        return torch.cat(received).view(self.world_size if self.rank == 0 else 0, *tensor.shape)

    def all_reduce(self, summands: Sequence[ReduceInput], tag: MessageTag) -> None:
        """Sum each tensor over all workers, in place, with the same bits everywhere.

        Every worker sums one chunk of each tensor, in the order of ranks, and sends it to all
        others. That takes as many bytes as a ring in 2 sequential hops instead of 2 (W - 1). One
        worker sums small tensors, with 2 (W - 1) messages instead of 2 W (W - 1).

        4 workers with [1.], [2.], [3.], [4.] all end with [10.]. With masks, floats are rounded to
        fixed point (retexo.comm.masks), and ValueError refuses a wire format and `zero_ranks`.
        """
        if self.world_size == 1:
            return
        if self.masks is None:
            self._sum_chunks(summands, tag)
            return
        if any(summand.zero_ranks or summand.wire for summand in summands):
            raise ValueError("with masks all ranks send integers")
        masked = self.masks.hide([summand.tensor for summand in summands])
        self._sum_chunks([ReduceInput(value) for value in masked], tag)
        for summand, total in zip(summands, masked, strict=True):
            summand.tensor.copy_(from_words(total, summand.tensor.dtype))

    def _sum_chunks(self, summands: Sequence[ReduceInput], tag: MessageTag) -> None:
        """Sum each tensor over all workers in place.

        Each rank sums one chunk, or one rank all of a short message, then sends the sum to all.
        """
        everyone = range(self.world_size)
        num_bytes = sum(
            message_format.num_bytes(summand.wire_format, summand.tensor.numel())
            for summand in summands
        )
        root = None
        if num_bytes * (self.world_size - 1) <= MAX_ROOT_BYTES:
            root = min(
                set(everyone).difference(*(summand.zero_ranks for summand in summands)), default=0
            )
        sums = [
            _ChunkedSum(summand, self.rank, _chunks(summand, self.world_size, root))
            for summand in summands
        ]
        shares: list[Pieces] = [
            [piece for partial in sums for piece in partial.share(rank)] for rank in everyone
        ]
        self._swap(shares, [[partial.buffer(rank) for partial in sums] for rank in everyone], tag)
        own = [piece for partial in sums for piece in partial.add_up()]
        self._swap(
            [own] * self.world_size,
            [[partial.buffer(rank) for partial in sums] for rank in everyone],
            tag,
        )
        for partial in sums:
            partial.finish()

    def round_as_sent(self, summand: ReduceInput) -> Tensor:
        """Return the share after encoding and decoding, as the peers receive it, [n]."""
        if self.world_size == 1 or summand.wire is None:
            return summand.tensor
        encoded, count = (
            message_format.encode(summand.tensor.detach().cpu(), summand.wire_format),
            summand.tensor.numel(),
        )
        return message_format.decode(join_pieces(encoded), summand.wire_format, count).to(
            summand.tensor
        )

    def gather_traffic(self, num_layers: int) -> Tensor:
        """Return at rank 0 the bytes that every worker sent: int64 [W, K, L + 1, W].

        Elsewhere [0, K, L + 1, W]. This message is included.

        Indexed by sender, kind, layer and peer.
        """
        own = self.meter.table(num_layers)
        if self.rank != 0:
            own[KINDS.index("metrics"), -1, 0] += own.numel() * own.element_size()
        return self.gather(own, METRICS)


def _chunks(summand: ReduceInput, world_size: int, root: int | None) -> list[tuple[int, int]]:
    """First and last element (exclusive) that each rank sums: all at the root, or one chunk each.

    Chunks hold whole blocks of values that share a scale.
    """
    size, step = (
        summand.tensor.numel(),
        message_format.BLOCK if summand.wire_format in message_format.LARGEST else 1,
    )
    if root is not None:
        return [(0, size if rank == root else 0) for rank in range(world_size)]
    steps = -(-size // step)
    ends = [min(size, steps * rank // world_size * step) for rank in range(world_size + 1)]
    return list(itertools.pairwise(ends))


class _ChunkedSum:
    """A summand of an all-reduce.

    Each rank sums one chunk. Values sent as they are, are not copied.
    """

    def __init__(self, summand: ReduceInput, rank: int, chunks: Sequence[tuple[int, int]]) -> None:
        """Encode the own share; chunks: first and last element (exclusive) that each rank sums."""
        self._summand, self._rank, self._everyone = summand, rank, range(len(chunks))
        self._wire_format, self._bounds = summand.wire_format, chunks
        self._values = summand.tensor.detach().cpu().contiguous()
        self._encoded = message_format.encode(self._values, self._wire_format)
        size = self._num_bytes(rank)
        self._buffers = [
            np.empty(0 if rank in summand.zero_ranks else size, np.uint8) for rank in self._everyone
        ]
        """First the shares of all ranks in the own chunk, then the sums of all chunks."""
        if rank not in summand.zero_ranks:
            self._buffers[rank] = join_pieces(self._chunk(rank))

    def share(self, rank: int) -> Pieces:
        """Return this worker's share of the chunk that a rank sums."""
        return () if self._rank in self._summand.zero_ranks else self._chunk(rank)

    def buffer(self, rank: int) -> message_format.ByteArray:
        """Return the memory that receives a rank's message."""
        return self._buffers[rank]

    def add_up(self) -> Pieces:
        """Sum the own chunk in the order of ranks, and return the encoded sum.

        Rounds the own chunk of the tensor, and replaces the buffers of shares by those of sums.
        """
        first, end = self._bounds[self._rank]
        encoded: Pieces = ()
        if first < end:
            values = [
                message_format.decode(share, self._wire_format, end - first)
                for share in self._buffers
                if len(share)
            ]
            total = self._values[first:end]
            _add(values, total)
            encoded = message_format.encode(total, self._wire_format)
        if self._in_place:
            self._buffers = [piece for rank in self._everyone for piece in self._chunk(rank)]
        else:
            self._buffers = [np.empty(self._num_bytes(rank), np.uint8) for rank in self._everyone]
            self._buffers[self._rank] = join_pieces(encoded)
        return encoded

    def finish(self) -> None:
        """Write the sums into the tensor."""
        if not self._in_place:
            for (first, end), buffer in zip(self._bounds, self._buffers, strict=True):
                if first < end:
                    self._values[first:end] = message_format.decode(
                        buffer, self._wire_format, end - first
                    )
        if self._values.data_ptr() != self._summand.tensor.data_ptr():
            self._summand.tensor.copy_(self._values)

    @property
    def _in_place(self) -> bool:
        """Whether messages are sent from the memory of the values."""
        return self._wire_format is self._values.dtype

    def _chunk(self, rank: int) -> Pieces:
        """Return the encoded values of the chunk that a rank sums."""
        return message_format.chunk(self._encoded, self._wire_format, *self._bounds[rank])

    def _num_bytes(self, rank: int) -> int:
        first, end = self._bounds[rank]
        return message_format.num_bytes(self._wire_format, end - first)


def _add(values: Sequence[Tensor], total: Tensor) -> None:
    """Write the sum of values, in order, into `total`, which may be one of them.

    The others are changed.
    """
    if len(values) < 2:
        total.copy_(values[0]) if values else total.zero_()
        return
    sums = values[0].to(total.dtype)
    for value in values[1:-1]:
        sums += value
    torch.add(sums, values[-1], out=total)
