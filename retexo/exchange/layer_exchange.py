"""Sending boundary rows and partial sums, wave by wave.

A wave goes to a batch of peers at a time, so that no worker holds all that it sends, and a message that is longer than
a batch may be in pieces; how many, all workers know from the sizes of the parts. W workers, K pieces of a message, I
inner nodes, H halo nodes of this worker, F width of a row, D width of a row after the layer's weights.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
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
from retexo.exchange.boundary import INFER_PHASE, Boundary, EdgeSubset
from retexo.exchange.coding.rows import RowFormat, decode
from retexo.exchange.coding.values import value_bytes
from retexo.exchange.exchange_plan import ExchangePlan
from retexo.exchange.message_selection import (
    DENSE,
    CutEdges,
    LocalRows,
    MessageFormat,
    MessageVectors,
    Piece,
    Selection,
    VectorBound,
    select_all_rows,
    select_vectors,
)
from retexo.models.block import HaloRows, ReceivedMessage, Sources

T = TypeVar("T")
MAX_BATCH_BYTES = 1 << 25
"""Bytes of vectors, as they are before they are written and once they are read, of a batch; at least a vector's."""


@dataclass(frozen=True, eq=False)
class OutgoingMessage:
    """What a peer is sent in a wave."""

    selection: Selection
    sizes: list[int]
    """[K] bytes of the pieces."""
    pieces: Iterator[Tensor]
    """[K] of uint8, each made when it is asked for; but the first is there."""

    @classmethod
    def build(cls, local: LocalRows, selection: Selection, edges: CutEdges, count: int) -> Self:
        """Sums whose sizes, which a header tells, are not known are made for them, but for the first piece twice."""
        vectors = MessageVectors.from_selection(local, selection, edges)
        first, *others = vectors.pieces(count)
        made = [vectors.write(first)]
        sizes = [len(made[0]), *map(vectors.size, others)]
        pieces = chain(
            (made.pop() for _ in range(1)), map(vectors.write, others) if others else ()
        )  # else all is freed
        return cls(selection, sizes, pieces)

    @classmethod
    def empty(cls, count: int) -> Self:
        """In so many pieces."""
        none = np.zeros(0, bool)
        return cls(
            Selection(DENSE, none, none),
            [0] * count,
            iter([torch.empty(0, dtype=torch.uint8)] * count),
        )


@dataclass(frozen=True, eq=False)
class _Batch:
    """What is exchanged with some peers, by rank; with the others nothing."""

    messages: list[OutgoingMessage]
    outgoing: list[EdgeSubset]
    """What the messages are chosen for; and what those that come are."""
    incoming: list[EdgeSubset]


class LayerExchange:
    """The exchange of one layer; both ends of a boundary remember which rows the receiver holds."""

    def __init__(
        self,
        plan: ExchangePlan,
        layer: int,
        local: LocalRows,
        comm: Communicator,
        kind: str | None = None,
        traffic_layer: int | None = None,
    ) -> None:
        """kind: of traffic, that the rows are counted as; None for features in layer 0, embeddings in the others.

        traffic_layer: that they are counted under; None for `layer`.
        """
        self._traffic_layer = layer if traffic_layer is None else traffic_layer
        self._plan, self._layer, self.local, self._comm = plan, layer, local, comm
        self._kind = kind or ("features" if layer == 0 else "embeddings")
        self._held_there = [np.zeros(len(boundary.rows), bool) for boundary in plan.outgoing]
        self._held_here = [np.zeros(len(boundary.rows), bool) for boundary in plan.incoming]
        self._no_sources = Sources(
            HaloRows.empty(plan.num_halo, local.rows.shape[1], local.rows.dtype),
            HaloRows.empty(plan.num_halo, local.projected_width, local.rows.dtype),
        )
        self._sources = self._no_sources

    def sends_only_projected(self) -> bool:
        """Whether all that INFER_WAVE sends is sent after the weights, whatever is chosen."""
        nodes = np.concatenate([boundary.rows for boundary in self._plan.outgoing])
        return not self._plan.all_halo_rows and self.local.is_shorter_projected(nodes)

    def run(self, phase: int) -> Sources:
        """Send what the wave needs and receive it; what this worker has of the halo nodes by then."""
        self._sources = self._sources.append(
            [arrival for piece in self._receive(phase) for arrival in piece]
        )
        return self._sources

    def stream(self, phase: int) -> Iterator[Sources]:
        """The same piece by piece: the rows that earlier waves left here, then what comes now, which is not kept.

        Sums of earlier waves are let go at once: their targets have them.
        """
        self._sources = self._sources.drop_sums()
        return self._stream(phase)

    def _stream(self, phase: int) -> Iterator[Sources]:
        yield self._sources
        for piece in self._receive(phase):
            sources = self._no_sources.append(piece)
            piece.clear()
            yield sources
            del sources

    def _receive(self, phase: int) -> Iterator[list[ReceivedMessage]]:
        """What comes in a wave, piece by piece; of several machines each while the next is on its way.

        Then a piece is made while the one before is on its way, and the messages to a batch of peers while those before
        are sent. Workers of one machine would take the cores from each other, and a tenth more time.
        """
        if not self._comm.between_nodes:
            for piece in self._start_transfers(phase, self._peer_batches(phase), _call_now):
                yield piece()  # with no name here, so that the consumer can release it
            return
        started: deque[Callable[[], list[ReceivedMessage]]] = deque()
        with ThreadPoolExecutor(1) as line:  # alone sends until all has come
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
        """Send and receive; each item waits for a piece from all peers of a batch.

        start: calls a function with arguments, sooner or later; what it returns waits for the result.
        """
        tag = MessageTag(self._kind, self._traffic_layer, phase)
        all_to_all = partial(self._comm.all_to_all, consume=True)
        for batch in batches:
            sizes, announced = start(self._exchange_headers, batch)()
            for held, edges, message in zip(
                self._held_there, batch.outgoing, batch.messages, strict=True
            ):
                held[edges.rows[message.selection.rows]] |= not message.selection.format.projected
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
                del received  # it holds what came

    def _peer_batches(self, phase: int) -> Iterator[_Batch]:
        """What goes to some peers and comes from some, a batch after the other."""
        if phase not in self._plan.phases:
            return
        rank, world_size = self._comm.rank, self._comm.world_size
        step = peers_per_batch(
            self._plan.largest_part, self.local.rows.shape[1] * self.local.rows.itemsize
        )
        for first in range(1, world_size, step):
            distances = range(first, min(first + step, world_size))
            receivers = {(rank + distance) % world_size for distance in distances}
            senders = {(rank - distance) % world_size for distance in distances}
            messages, outgoing = [], []
            for peer, boundary in enumerate(self._plan.outgoing):
                edges = (
                    self._missing_edges(boundary, peer, phase)
                    if peer in receivers
                    else EdgeSubset.empty()
                )
                messages.append(self._make_message(edges, peer, phase))
                outgoing.append(edges.without_edges())
                del edges  # while messages are sent
            incoming = [
                self._rows_and_targets(boundary, phase) if peer in senders else EdgeSubset.empty()
                for peer, boundary in enumerate(self._plan.incoming)
            ]
            yield _Batch(messages, outgoing, incoming)

    def _missing_edges(self, boundary: Boundary, peer: int, phase: int) -> EdgeSubset:
        ends = self._rows_and_targets(boundary, phase)
        targets = boundary.targets_in_phase(self._layer, phase, self._plan.num_layers)
        edges, counts = boundary.edge_range(targets), boundary.num_edges[targets]
        source, target = (
            boundary.source[edges],
            np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        )
        weight = None if boundary.weight is None else boundary.weight[edges]
        held = self._held_there[peer]
        if held.any():
            missing = ~take(held, source)
            source, target = np.compress(missing, source), np.compress(missing, target)
            weight = take_weights(weight, missing)
        if len(ends.rows) < len(boundary.rows):
            source = take(np.cumsum(boundary.source_mask(targets), dtype=np.int32) - 1, source)
        return replace(ends, source=source, target=target, weight=weight)

    def _rows_and_targets(self, boundary: Boundary, phase: int) -> EdgeSubset:
        """As _edges, but the rows and targets alone."""
        targets = boundary.targets_in_phase(self._layer, phase, self._plan.num_layers)
        none = np.zeros(0, np.int32)
        places = (
            np.flatnonzero(boundary.source_mask(targets)),
            np.arange(targets.start, targets.stop),
        )
        return EdgeSubset(*places, none, none)

    def _make_message(self, edges: EdgeSubset, peer: int, phase: int) -> OutgoingMessage:
        """What this worker sends a peer of all rows and targets of the wave."""
        if not len(edges.rows):
            return OutgoingMessage.empty(self._num_pieces)
        held, nodes = (
            self._held_there[peer][edges.rows],
            self._plan.outgoing[peer].rows[edges.rows].astype(np.int32),
        )
        cut = CutEdges(nodes, edges.source, edges.target, len(edges.targets), edges.weight, ~held)
        if self._plan.all_halo_rows:
            return OutgoingMessage.build(
                self.local, _select_missing_rows(DENSE, held, edges), cut, self._num_pieces
            )
        selection = self._select(cut, edges, peer, phase)
        message = OutgoingMessage.build(self.local, selection, cut, self._num_pieces)
        if (
            sum(message.sizes) > int(cut.has_edge.sum()) * self._row_bytes
        ):  # of whole sums values cancelled, of the rest not
            selection = select_all_rows(DENSE, cut)
            message = OutgoingMessage.build(self.local, selection, cut, self._num_pieces)
        return message

    def _select(self, cut: CutEdges, edges: EdgeSubset, peer: int, phase: int) -> Selection:
        """Of rows that are not held; what was shown of an earlier layer need not be shown again."""
        boundary, known = self._plan.outgoing[peer], self._plan.fewest
        rows, targets = np.zeros(len(boundary.rows), bool), np.zeros(len(boundary.targets), bool)
        rows[edges.rows[cut.has_edge]] = targets[edges.targets] = True
        shown = known.get((peer, phase))
        fewest = 0 if shown is None else shown.bound_for(rows, targets)
        selection = select_vectors(
            self.local,
            cut,
            partial_sums=self._plan.partial_sums,
            projected=phase == INFER_PHASE,
            fewest=fewest,
            before=None if shown is None else shown.reusable_selection(rows, targets),
        )
        if selection.fewest > fewest:
            known[peer, phase] = VectorBound(rows, targets, selection)
        return selection

    @property
    def _row_bytes(self) -> int:
        """Of a row in the dense encoding."""
        return value_bytes(self.local.rows.shape[1], self.local.rows.dtype, self.local.precision)

    @property
    def _num_pieces(self) -> int:
        """K"""
        return pieces_per_message(
            self._plan.largest_part, self.local.rows.shape[1] * self.local.rows.itemsize
        )

    def _exchange_headers(self, batch: _Batch) -> tuple[list[list[int]], list[Selection]]:
        """Tell every peer what is coming to it; the bytes [K] that come from each, and what it selected.

        A header, and where partial sums may be sent a bit for each row and each target of the wave, also for rows that
        are held: so its size does not depend on values. With exchange=plain all is known.
        """
        held = [
            mask[edges.rows] for mask, edges in zip(self._held_here, batch.incoming, strict=True)
        ]
        if self._plan.all_halo_rows:
            known = [
                _select_missing_rows(DENSE, *known)
                for known in zip(held, batch.incoming, strict=True)
            ]
            pieces = [each.pieces(self._num_pieces) for each in known]
            return [[len(rows) * self._row_bytes for rows, _ in each] for each in pieces], known
        partial_sums = self._plan.partial_sums
        header = _header_format(self._num_pieces)
        told = zip(batch.messages, batch.outgoing, strict=True)
        headers = [_pack_header(header, *each, partial_sums) for each in told]
        sizes = [_header_size(header, edges, partial_sums) for edges in batch.incoming]
        received = self._comm.all_to_all(headers, sizes, MessageTag("setup", self._traffic_layer))
        arrived = zip(received, held, batch.incoming, strict=True)
        unpacked = [_unpack_header(header, *each, partial_sums) for each in arrived]
        for peer, (there, (announced, _)) in enumerate(zip(held, unpacked, strict=True)):
            most = int((~there).sum()) * self._row_bytes  # else all rows are sent (_make_message)
            check_announced(peer, f"bytes of {self._kind}", sum(announced), most)
        return [sizes for sizes, _ in unpacked], [selection for _, selection in unpacked]

    def _wait_for_piece(
        self,
        incoming: list[EdgeSubset],
        selections: Sequence[Selection],
        pieces: Sequence[Piece],
        received: Callable[[], list[Tensor]],
    ) -> list[ReceivedMessage]:
        """Of a piece, once it is here."""
        arrivals = []
        messages = zip(incoming, selections, pieces, received(), strict=True)
        for peer, (edges, selection, (some_rows, some_sums), message) in enumerate(messages):
            boundary, projected = self._plan.incoming[peer], selection.format.projected
            count = len(some_rows) + len(some_sums)
            if not count:
                continue
            rows, targets = edges.rows[some_rows], edges.targets[some_sums]
            halo, sum_dst = (
                torch.from_numpy(ids) for ids in (boundary.rows[rows], boundary.targets[targets])
            )
            row_format = selection.format.row_format(self.local.precision)
            width = self.local.projected_width if projected else self.local.rows.shape[1]
            shape, dtype = (count, width), self.local.rows.dtype
            read = partial(_decode_from, peer, message, shape, dtype, row_format)
            arrivals.append(ReceivedMessage(halo, sum_dst, read, projected))
            self._held_here[peer][rows] |= not projected
        return arrivals


class KnownHaloExchange(LayerExchange):
    """The exchange of rows that each worker knows of its halo nodes already: nothing is sent."""

    def __init__(
        self, plan: ExchangePlan, layer: int, local: LocalRows, comm: Communicator, halo: Tensor
    ) -> None:
        """halo: [H, F]"""
        super().__init__(plan, layer, local, comm)
        known = replace(self._no_sources.unprojected, values=halo, halo=torch.arange(len(halo)))
        self._sources = replace(self._no_sources, unprojected=known)

    def _receive(self, phase: int) -> Iterator[list[ReceivedMessage]]:
        return iter(())


def _decode_from(
    peer: int,
    message: Tensor,
    shape: tuple[int, int],
    dtype: torch.dtype,
    row_format: RowFormat,
    out: Tensor | None = None,
) -> Tensor:
    """As `decode`; TrainingError, which names the peer, where the message is no block of such rows."""
    with reading_from(peer, "block of rows"):
        return decode(message, shape, dtype, row_format, out)


def prefetch(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in a thread while the one before is used."""
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(next, items, None)
        while (item := made.result()) is not None:
            made = pool.submit(next, items, None)
            yield item


def _call_now(function: Callable[..., T], *arguments: Any) -> Callable[[], T]:
    """Call a function; what is returned returns the result, once."""
    return [function(*arguments)].pop


def peers_per_batch(largest_part: int, row_bytes: int) -> int:
    """How many peers a wave goes to at a time, for parts of so many nodes."""
    return max(1, MAX_BATCH_BYTES // max(1, largest_part * row_bytes))


def pieces_per_message(largest_part: int, row_bytes: int) -> int:
    """Into how many pieces a message is cut, K, for parts of so many nodes."""
    return max(1, min(largest_part, -(-largest_part * row_bytes // MAX_BATCH_BYTES)))


def _select_missing_rows(message_format: MessageFormat, held: Mask, edges: EdgeSubset) -> Selection:
    return Selection(message_format, ~held, np.zeros(len(edges.targets), bool))


def _header_format(num_pieces: int) -> struct.Struct:
    """The code of the message's format, and the bytes of each piece of the message that follows."""
    return struct.Struct(f"<B{num_pieces}Q")


def _header_size(header: struct.Struct, edges: EdgeSubset, partial_sums: bool) -> int:
    """Bytes; none where there are no edges."""
    if not len(edges.rows):
        return 0
    return header.size + (len(edges.rows) + len(edges.targets) + 7) // 8 * partial_sums


def _pack_header(
    header: struct.Struct, message: OutgoingMessage, edges: EdgeSubset, partial_sums: bool
) -> Tensor:
    if not _header_size(header, edges, partial_sums):
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
    header: struct.Struct, received: Tensor, held: Mask, edges: EdgeSubset, partial_sums: bool
) -> tuple[list[int], Selection]:
    """The bytes of the pieces of the message that follows, and which rows and sums it has."""
    start = received[: header.size].numpy().tobytes()
    code, *sizes = header.unpack(start or bytes(header.size))  # DENSE, and no bytes
    if not (partial_sums and start):
        return sizes, _select_missing_rows(MessageFormat.from_code(code), held, edges)
    count = len(edges.rows) + len(edges.targets)
    bits = np.unpackbits(received[header.size :].numpy(), count=count).astype(bool)
    return sizes, Selection(
        MessageFormat.from_code(code), bits[: len(edges.rows)], bits[len(edges.rows) :]
    )
