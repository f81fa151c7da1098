"""Exchange of boundary rows and partial sums, phase by phase.

A phase sends to a batch of peers at a time, which bounds the memory for messages. A message
longer than a batch is sent in pieces; all workers compute the same number of pieces from the
partition sizes. W workers, K pieces of a message, I inner nodes, H halo nodes of this worker, F
row width, D row width after the layer's weights.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from retexo.arrays import Mask, take, take_weights
from retexo.comm.collectives import Communicator
from retexo.comm.received import check_announced, reading_from
from retexo.comm.traffic_meter import MessageTag
from retexo.exchange.boundary import INFER_PHASE, Boundary, BoundaryPart
from retexo.exchange.coding.columns import choose_exponents, decode_scaled
from retexo.exchange.coding.rows import RowFormat, decode
from retexo.exchange.exchange_plan import ExchangePlan
from retexo.exchange.local_rows import DENSE, LocalRows, MessageFormat
from retexo.exchange.message_selection import (
    CutEdges,
    MessageVectors,
    Piece,
    Selection,
    VectorBound,
    select_vectors,
)
from retexo.models.block import HaloRows, ReceivedMessage, Sources

T = TypeVar("T")
MAX_BATCH_BYTES = 1 << 25
"""Maximum bytes of decoded vectors in a batch (at least one vector)."""


@dataclass(frozen=True, eq=False)
class OutgoingMessage:
    """A message to one peer in one phase."""

    selection: Selection
    sizes: list[int]
    """[K] bytes of each piece."""
    pieces: Iterator[Tensor]
    """[K] uint8 pieces. All but the first are encoded when the iterator reaches them."""

    @classmethod
    def build(cls, local: LocalRows, selection: Selection, edges: CutEdges, count: int) -> Self:
        """Encode the first piece and compute the sizes of all pieces.

        Args:
            local: this worker's rows.
            selection: of the vectors to send.
            edges: between the two partitions.
            count: number of pieces, K.
        """
        vectors = MessageVectors.from_selection(local, selection, edges)
        first, *others = vectors.pieces(count)
        built = [vectors.write(first)]
        sizes = [len(built[0]), *map(vectors.size, others)]
        # keep no reference to the vectors when there is only one piece
        pieces = chain(
            (built.pop() for _ in range(1)), map(vectors.write, others) if others else ()
        )
        return cls(selection, sizes, pieces)

    @classmethod
    def empty(cls, count: int) -> Self:
        """Return a message of `count` empty pieces."""
        return cls(
            Selection.of_rows(DENSE, np.zeros(0, bool), 0),
            [0] * count,
            iter([torch.empty(0, dtype=torch.uint8)] * count),
        )


@dataclass(frozen=True, eq=False)
class _Batch:
    """The messages exchanged with some peers, by rank; empty for the other peers."""

    messages: list[OutgoingMessage]
    outgoing: list[BoundaryPart]
    """What the outgoing and the incoming messages serve."""
    incoming: list[BoundaryPart]


class LayerExchange:
    """Exchange of one layer. Both ends of a boundary remember which rows the receiver holds."""

    def __init__(
        self,
        plan: ExchangePlan,
        layer: int,
        local: LocalRows,
        comm: Communicator,
        kind: str | None = None,
        traffic_layer: int | None = None,
        known: Sources | None = None,
    ) -> None:
        """Set up the exchange of one layer; nothing is sent yet.

        Args:
            layer: the layer whose input is exchanged.
            local: this worker's rows; features get exponents, unless they have some.
            kind: traffic kind; None for "features" in layer 0 and "embeddings" in later layers.
            traffic_layer: layer under which traffic is counted; None for `layer`.
            known: what this worker needs of other workers, where it has that; nothing is sent then.
        """
        self._traffic_layer = layer if traffic_layer is None else traffic_layer
        self._plan, self._layer, self.local, self._comm = plan, layer, local, comm
        self._kind = kind or ("features" if layer == 0 else "embeddings")
        if self._kind == "features" and not plan.options.all_halo_rows and local.exponents is None:
            local.exponents = choose_exponents(local.rows, local.precision)
        self._held_there = [np.zeros(len(boundary.rows), bool) for boundary in plan.outgoing]
        self._held_here = [np.zeros(len(boundary.rows), bool) for boundary in plan.incoming]
        self._no_sources = Sources(
            *(
                HaloRows.empty(plan.num_halo, width, local.rows.dtype, local.device)
                for width in (local.rows.shape[1], local.projected_width)
            )
        )
        self._sources, self._is_known = known or self._no_sources, known is not None

    def sends_only_projected(self) -> bool:
        """Return whether every vector of INFER_PHASE will be sent after the weights."""
        nodes = np.concatenate([boundary.rows for boundary in self._plan.outgoing])
        return not self._plan.options.all_halo_rows and self.local.is_shorter_projected(nodes)

    def run(self, phase: int) -> Sources:
        """Run a phase; return all halo rows and partial sums received so far.

        All workers call it. A phase that the plan lacks sends nothing. TrainingError for an invalid
        message.
        """
        self._sources = self._sources.append(
            [arrival for piece in self._receive(phase) for arrival in piece]
        )
        return self._sources

    def stream(self) -> Iterator[Sources]:
        """Run INFER_PHASE; yield the rows received earlier, then its vectors piece by piece.

        All workers call it and take all pieces, which are not kept. Partial sums of earlier phases
        are dropped first: their targets are done. TrainingError for an invalid message.
        """
        if not self._is_known:
            self._sources = self._sources.drop_sums()
        yield self._sources
        for piece in self._receive(INFER_PHASE):
            sources = self._no_sources.append(piece)
            piece.clear()
            yield sources
            del sources

    def _receive(self, phase: int) -> Iterator[list[ReceivedMessage]]:
        """Yield the received messages of a phase, piece by piece.

        Between machines, the next piece is encoded while one is sent, and the messages to the
        next batch of peers are selected meanwhile. On one machine that would take cores from
        other workers (10 % slower).
        """
        if not self._comm.between_nodes:
            for piece in self._start_transfers(phase, self._peer_batches(phase), _call_now):
                yield piece()  # no variable, so that the consumer can free it
            return
        started: deque[Callable[[], list[ReceivedMessage]]] = deque()
        with ThreadPoolExecutor(1) as line:  # the only thread that sends meanwhile
            for piece in self._start_transfers(
                phase, prefetch(self._peer_batches(phase)), lambda *call: line.submit(*call).result
            ):
                started.append(piece)
                if len(started) > 1:
                    yield started.popleft()()
            while started:
                yield started.popleft()()

    def _start_transfers(
        self, phase: int, batches: Iterator[_Batch], start: Callable[..., Callable[[], Any]]
    ) -> Iterator[Callable[[], list[ReceivedMessage]]]:
        """Start the transfers of all batches; yield for each piece a function that waits for it.

        Args:
            start: calls a function now or in a thread; returns a function that waits for the
                result.
        """
        tag = MessageTag(self._kind, self._traffic_layer, phase)
        all_to_all = partial(self._comm.all_to_all, consume=True)
        for batch in batches:
            sizes, announced = start(self._exchange_headers, batch)()
            for rows_held, part, message in zip(
                self._held_there, batch.outgoing, batch.messages, strict=True
            ):
                rows_held[
                    part.rows[message.selection.rows]
                ] |= not message.selection.format.projected
            cut = (selection.pieces(self._num_pieces) for selection in announced)
            for from_sizes, pieces in zip(
                zip(*sizes, strict=True), zip(*cut, strict=True), strict=True
            ):
                received = start(
                    all_to_all,
                    [next(message.pieces) for message in batch.messages],
                    from_sizes,
                    tag,
                )
                yield partial(self._wait_for_piece, batch.incoming, announced, pieces, received)
                del received  # would keep the received messages alive

    def _peer_batches(self, phase: int) -> Iterator[_Batch]:
        """Yield batches of peers with the messages to exchange with them.

        No batch where rows are known, or the plan has no such phase. A batch is made when it is
        asked for: between machines while the one before is sent.
        """
        if self._is_known or phase not in self._plan.options.phases:
            return
        rank, world_size = self._comm.rank, self._comm.world_size
        step = peers_per_batch(
            self._plan.options.largest_part, self.local.rows.shape[1] * self.local.rows.itemsize
        )
        for first in range(1, world_size, step):
            distances = range(first, min(first + step, world_size))
            receivers = {(rank + distance) % world_size for distance in distances}
            senders = {(rank - distance) % world_size for distance in distances}
            nothing = BoundaryPart(np.zeros(0, np.int64), np.zeros(0, np.int64))
            outgoing = [
                self._rows_and_targets(boundary, phase) if peer in receivers else nothing
                for peer, boundary in enumerate(self._plan.outgoing)
            ]
            incoming = [
                self._rows_and_targets(boundary, phase) if peer in senders else nothing
                for peer, boundary in enumerate(self._plan.incoming)
            ]
            messages = [self._make_message(part, peer, phase) for peer, part in enumerate(outgoing)]
            yield _Batch(messages, outgoing, incoming)

    def _missing_edges(self, part: BoundaryPart, peer: int, phase: int) -> CutEdges:
        """Return the edges into a peer's targets of this phase whose source row it lacks so far.

        part: the rows and targets of the phase.
        """
        boundary, rows_held = self._plan.outgoing[peer], self._held_there[peer]
        targets = boundary.targets_in_phase(self._layer, phase, self._plan.options.num_layers)
        edges, counts = boundary.edge_range(targets), boundary.num_edges[targets]
        source, target = (
            boundary.source[edges],
            np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        )
        weight = None if boundary.weight is None else boundary.weight[edges]
        if rows_held.any():
            missing = ~take(rows_held, source)
            source, target = np.compress(missing, source), np.compress(missing, target)
            weight = take_weights(weight, missing)
        if len(part.rows) < len(boundary.rows):
            source = take(np.cumsum(boundary.source_mask(targets), dtype=np.int32) - 1, source)
        nodes = boundary.rows[part.rows].astype(np.int32)
        return CutEdges(nodes, source, target, len(counts), ~rows_held[part.rows], weight)

    def _rows_and_targets(self, boundary: Boundary, phase: int) -> BoundaryPart:
        """Return a phase's rows and targets."""
        targets = boundary.targets_in_phase(self._layer, phase, self._plan.options.num_layers)
        rows = np.flatnonzero(boundary.source_mask(targets))
        return BoundaryPart(rows, np.arange(targets.start, targets.stop))

    def _make_message(self, part: BoundaryPart, peer: int, phase: int) -> OutgoingMessage:
        """Select and encode the message to a peer; empty without rows.

        Plain rows where the selection turns out longer. Which rows the peer then holds is noted
        when the message is sent, not here.
        """
        if not len(part.rows):
            return OutgoingMessage.empty(self._num_pieces)
        cut = self._missing_edges(part, peer, phase)
        if self._plan.options.all_halo_rows:
            selection = Selection.of_rows(DENSE, cut.has_edge, cut.num_targets)
            return OutgoingMessage.build(self.local, selection, cut, self._num_pieces)
        selection = self._select(cut, part, peer, phase)
        message = OutgoingMessage.build(self.local, selection, cut, self._num_pieces)
        # The sizes of whole sums assumed that no values cancel; then plain rows may be shorter.
        if sum(message.sizes) > self._dense_bytes(cut.has_edge, selection):
            dense = self.local.unprojected_format(sparse=False)
            selection = Selection.of_rows(dense, cut.has_edge, cut.num_targets)
            message = OutgoingMessage.build(self.local, selection, cut, self._num_pieces)
        return message

    def _select(self, cut: CutEdges, part: BoundaryPart, peer: int, phase: int) -> Selection:
        """Select vectors for rows that the peer lacks, starting from an earlier layer's bound.

        A better bound is kept in the plan, for later layers.
        """
        boundary, known = self._plan.outgoing[peer], self._plan.known_bounds
        rows, targets = np.zeros(len(boundary.rows), bool), np.zeros(len(boundary.targets), bool)
        rows[part.rows[cut.has_edge]] = targets[part.targets] = True
        known_bound = known.get((peer, phase))
        min_vectors = 0 if known_bound is None else known_bound.bound_for(rows, targets)
        selection = select_vectors(
            self.local,
            cut,
            partial_sums=self._plan.options.partial_sums,
            projected=phase == INFER_PHASE,
            min_vectors=min_vectors,
            previous=None if known_bound is None else known_bound.reusable_selection(rows, targets),
        )
        if selection.lower_bound > min_vectors:
            known[peer, phase] = VectorBound(rows, targets, selection)
        return selection

    def _dense_bytes(self, rows: Mask, selection: Selection) -> int:
        """Return the most bytes of a message: of these rows, all dense, and of its exponents."""
        exponents = self.local.rows.shape[1] * self._num_pieces * selection.format.scaled
        return int(rows.sum()) * self.local.dense_size(projected=False) + exponents

    @property
    def _num_pieces(self) -> int:
        """Pieces of each message, K."""
        return pieces_per_message(
            self._plan.options.largest_part, self.local.rows.shape[1] * self.local.rows.itemsize
        )

    def _exchange_headers(self, batch: _Batch) -> tuple[list[list[int]], list[Selection]]:
        """Exchange headers; return each peer's piece sizes [K] and its selection.

        With partial sums a header has one bit for each row and target of the phase, including
        rows that the peer holds, so that its size does not depend on values. exchange=plain
        needs no headers.
        """
        missing = [
            ~rows_held[part.rows]
            for rows_held, part in zip(self._held_here, batch.incoming, strict=True)
        ]
        if self._plan.options.all_halo_rows:
            row_size = self.local.dense_size(projected=False)
            known = [
                Selection.of_rows(DENSE, rows, len(part.targets))
                for rows, part in zip(missing, batch.incoming, strict=True)
            ]
            pieces = [selection.pieces(self._num_pieces) for selection in known]
            return [[len(rows) * row_size for rows, _ in sizes] for sizes in pieces], known
        partial_sums = self._plan.options.partial_sums
        # The format code, and the size of each piece.
        header = struct.Struct(f"<B{self._num_pieces}Q")
        headers = [
            _pack_header(header, message, part, partial_sums)
            for message, part in zip(batch.messages, batch.outgoing, strict=True)
        ]
        sizes = [_header_size(header, part, partial_sums) for part in batch.incoming]
        received = self._comm.all_to_all(headers, sizes, MessageTag("setup", self._traffic_layer))
        unpacked = [
            _unpack_header(header, content, rows, part, partial_sums)
            for content, rows, part in zip(received, missing, batch.incoming, strict=True)
        ]
        for peer, (rows, (announced, chosen)) in enumerate(zip(missing, unpacked, strict=True)):
            most = self._dense_bytes(rows, chosen)  # otherwise _make_message sends all rows
            check_announced(peer, f"bytes of {self._kind}", sum(announced), most)
        return [sizes for sizes, _ in unpacked], [selection for _, selection in unpacked]

    def _wait_for_piece(
        self,
        incoming: list[BoundaryPart],
        selections: Sequence[Selection],
        pieces: Sequence[Piece],
        received: Callable[[], list[Tensor]],
    ) -> list[ReceivedMessage]:
        """Wait for a piece from every peer of a batch; return its messages, which decode lazily.

        Marks the rows among them as held here.
        """
        received_messages = []
        messages = zip(incoming, selections, pieces, received(), strict=True)
        for peer, (part, selection, (some_rows, some_sums), message) in enumerate(messages):
            boundary, projected = self._plan.incoming[peer], selection.format.projected
            count = len(some_rows) + len(some_sums)
            if not count:
                continue
            rows, targets = part.rows[some_rows], part.targets[some_sums]
            halo, sum_dst = (
                torch.from_numpy(ids) for ids in (boundary.rows[rows], boundary.targets[targets])
            )
            row_format = selection.format.row_format(self.local.precision)
            shape = (count, self.local.width(projected=projected))
            dtype = self.local.rows.dtype
            decode_message = decode_scaled if selection.format.scaled else decode
            if not selection.format.sparse:
                message = message.to(self.local.device)
            read = partial(_decode_from, peer, decode_message, message, shape, dtype, row_format)
            received_messages.append(ReceivedMessage(halo, sum_dst, read, projected))
            self._held_here[peer][rows] |= not projected
        return received_messages


def _decode_from(
    peer: int,
    decode_message: Callable[..., Tensor],
    message: Tensor,
    shape: tuple[int, int],
    dtype: torch.dtype,
    row_format: RowFormat,
    out: Tensor,
) -> None:
    """Decode a message into `out`. Raises TrainingError, naming the peer, for an invalid one."""
    with reading_from(peer, "block of rows"):
        decode_message(message, shape, dtype, row_format, out)


def prefetch(items: Iterator[T]) -> Iterator[T]:
    """Yield the same items up to None.

    Each is computed in a thread while the one before it is used.
    """
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(next, items, None)
        while (item := future.result()) is not None:
            future = pool.submit(next, items, None)
            yield item


def _call_now(function: Callable[..., T], *arguments: Any) -> Callable[[], T]:
    """Call `function` now and return a callable that yields its result once."""
    return [function(*arguments)].pop


def peers_per_batch(largest_part: int, row_bytes: int) -> int:
    """Return the number of peers per batch, for partitions of up to `largest_part` nodes."""
    return max(1, MAX_BATCH_BYTES // max(1, largest_part * row_bytes))


def pieces_per_message(largest_part: int, row_bytes: int) -> int:
    """Return the number of pieces K of each message, for partitions of up to this size."""
    return max(1, min(largest_part, -(-largest_part * row_bytes // MAX_BATCH_BYTES)))


def _header_size(header: struct.Struct, part: BoundaryPart, partial_sums: bool) -> int:
    """Return the header size in bytes; 0 if there are no rows."""
    if not len(part.rows):
        return 0
    return header.size + (len(part.rows) + len(part.targets) + 7) // 8 * partial_sums


def _pack_header(
    header: struct.Struct, message: OutgoingMessage, part: BoundaryPart, partial_sums: bool
) -> Tensor:
    """Return the header of a message, uint8; empty if there are no rows."""
    if not _header_size(header, part, partial_sums):
        return torch.empty(0, dtype=torch.uint8)
    selection = message.selection
    bits = (
        np.packbits(np.concatenate((selection.rows, selection.sums)))
        if partial_sums
        else np.zeros(0, np.uint8)
    )
    packed = np.frombuffer(header.pack(selection.format.code, *message.sizes), np.uint8)
    return torch.from_numpy(np.concatenate((packed, bits)))


def _unpack_header(
    header: struct.Struct, received: Tensor, missing: Mask, part: BoundaryPart, partial_sums: bool
) -> tuple[list[int], Selection]:
    """Return the sizes of the pieces that follow, and the selection of rows and sums.

    missing: bool [L'] the rows of the phase that this worker does not hold.
    """
    start = received[: header.size].numpy().tobytes()
    code, *sizes = header.unpack(start or bytes(header.size))  # no header: DENSE and empty pieces
    message_format = MessageFormat.from_code(code)
    if not (partial_sums and start):
        return sizes, Selection.of_rows(message_format, missing, len(part.targets))
    count = len(part.rows) + len(part.targets)
    bits = np.unpackbits(received[header.size :].numpy(), count=count).astype(bool)
    return sizes, Selection(message_format, bits[: len(part.rows)], bits[len(part.rows) :])
