"""Sending boundary rows and partial sums, wave by wave.

A wave goes to a batch of peers at a time, so that no worker holds all that it sends; which ones, all workers know from
the sizes of the parts. W workers, I inner nodes, H halo nodes of this worker, F width of a row, D width of a row after
the layer's weights.
"""

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from retexo.arrays import IndexArray, IntArray, Mask, compact
from retexo.comm.collectives import Communicator
from retexo.comm.traffic import MessageTag
from retexo.exchange.coding.rows import decode_into
from retexo.exchange.coding.values import value_bytes
from retexo.exchange.plan import INFER_WAVE, Boundary, ExchangePlan
from retexo.exchange.selection import (
    DENSE,
    CutEdges,
    LocalRows,
    MessageFormat,
    Selection,
    all_rows,
    select,
    write_message,
)
from retexo.nn.block import HaloRows, ReceivedMessage, Sources

HEADER = struct.Struct("<BQ")
"""The code of the message's format, and the bytes of the message that follows."""
MAX_BATCH_BYTES = 1 << 28
"""Bytes of messages that a worker makes before it sends them; at least one peer's."""


@dataclass(frozen=True, eq=False)
class EdgeSubset:
    """Some edges of a boundary, renumbered: only rows and targets that occur among them."""

    rows: IntArray
    """[L'] places among the boundary's rows, ascending; and targets likewise."""
    targets: IntArray
    """[R']"""
    source: IndexArray
    """[E'] in [0, L')."""
    target: IndexArray
    """[E'] in [0, R')."""

    @classmethod
    def of(cls, source: IndexArray, target: IndexArray) -> "EdgeSubset":
        """Of edges, int [E'] each."""
        (rows, own_source), (targets, own_target) = compact(source), compact(target)
        return cls(rows, targets, own_source, own_target)

    @classmethod
    def empty(cls) -> "EdgeSubset":
        return cls.of(np.zeros(0, np.int32), np.zeros(0, np.int32))

    def subset(self, edges: Mask) -> "EdgeSubset":
        """Of some of the edges, bool [E'], renumbered as places in this one."""
        if edges.all():
            return EdgeSubset(np.arange(len(self.rows)), np.arange(len(self.targets)), self.source, self.target)
        return EdgeSubset.of(self.source[edges], self.target[edges])

    def without_edges(self) -> "EdgeSubset":
        """Rows and targets alone, which both sides go by once it is known what is sent; edges are many more."""
        none = np.zeros(0, np.int32)
        return EdgeSubset(self.rows, self.targets, none, none)


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
            HaloRows.none(plan.num_halo, local.rows.shape[1], local.rows.dtype),
            HaloRows.none(plan.num_halo, local.projected_width, local.rows.dtype),
        )
        self._sources = self._no_sources

    def run(self, wave: int) -> Sources:
        """Send what the wave needs and receive it; what this worker has of the halo nodes by then."""
        self._sources = self._sources.extended([arrival for batch in self._batches(wave) for arrival in batch])
        return self._sources

    def stream(self, wave: int) -> Iterator[Sources]:
        """The same piece by piece: what earlier waves left here, then what comes now, which is not kept."""
        yield self._sources
        for batch in self._batches(wave):
            sources = self._no_sources.extended(batch)
            batch.clear()
            yield sources
            del sources

    def _batches(self, wave: int) -> Iterator[list[ReceivedMessage]]:
        """Send and receive, a batch of peers at a time."""
        if wave not in self._plan.waves:
            return
        rank, world_size = self._comm.rank, self._comm.world_size
        step = peers_per_batch(self._plan.largest_part, self._row_bytes)
        for first in range(1, world_size, step):
            distances = range(first, min(first + step, world_size))
            receivers = {(rank + distance) % world_size for distance in distances}
            senders = {(rank - distance) % world_size for distance in distances}
            yield self._exchange(wave, receivers, senders)

    def _exchange(self, wave: int, receivers: Collection[int], senders: Collection[int]) -> list[ReceivedMessage]:
        selections, messages, outgoing = [], [], []
        for peer, boundary in enumerate(self._plan.outgoing):
            edges = self._edges(boundary, wave) if peer in receivers else EdgeSubset.empty()
            selection, message = self._make_message(edges, peer, wave)
            selections.append(selection)
            messages.append(message)
            outgoing.append(edges.without_edges())
        incoming = [
            self._edges(boundary, wave).without_edges() if peer in senders else EdgeSubset.empty()
            for peer, boundary in enumerate(self._plan.incoming)
        ]
        sizes, announced = self._exchange_headers(selections, messages, outgoing, incoming)
        tag = MessageTag(self._kind, self._traffic_layer, wave)
        received = self._comm.all_to_all(messages, sizes, tag, consume=True)
        for held, edges, selection in zip(self._held_there, outgoing, selections, strict=True):
            held[edges.rows[selection.rows]] |= not selection.format.projected
        return self._arrivals(incoming, announced, received)

    def _edges(self, boundary: Boundary, wave: int) -> EdgeSubset:
        mask = boundary.in_wave(self._layer, wave, self._plan.num_layers)
        return EdgeSubset.of(boundary.source[mask], boundary.target[mask])

    def _make_message(self, edges: EdgeSubset, peer: int, wave: int) -> tuple[Selection, Tensor]:
        """What this worker sends a peer of all rows and targets of the wave, selected and as bytes."""
        held, all_nodes = self._held_there[peer][edges.rows], self._plan.outgoing[peer].rows[edges.rows]
        if self._plan.all_halo_rows:
            selection = _all_not_held(DENSE, held, edges)
            cut = CutEdges(all_nodes, edges.source, edges.target, len(edges.targets))
            return selection, write_message(self.local, selection, cut)
        rest = edges.subset(~held[edges.source])
        cut = CutEdges(all_nodes[rest.rows], rest.source, rest.target, len(rest.targets))
        selection = select(self.local, cut, partial_sums=self._plan.partial_sums, projected=wave == INFER_WAVE)
        message = write_message(self.local, selection, cut)
        if len(message) > len(cut.nodes) * self._row_bytes:  # of whole sums values cancelled, of the rest they do not
            selection = all_rows(DENSE, cut)
            message = write_message(self.local, selection, cut)
        rows, sums = np.zeros(len(edges.rows), bool), np.zeros(len(edges.targets), bool)
        rows[rest.rows], sums[rest.targets] = selection.rows, selection.sums
        return Selection(selection.format, rows, sums), message

    @property
    def _row_bytes(self) -> int:
        """Of a row in the dense encoding."""
        return value_bytes(self.local.rows.shape[1], self.local.rows.dtype, self.local.precision)

    def _exchange_headers(
        self,
        selections: list[Selection],
        messages: list[Tensor],
        outgoing: list[EdgeSubset],
        incoming: list[EdgeSubset],
    ) -> tuple[list[int], list[Selection]]:
        """Tell every peer what is coming to it; the bytes that come from each, and what it selected.

        A header, and where partial sums may be sent a bit for each row and each target of the wave, also for rows that
        are held: so its size does not depend on values. With exchange=plain all is known.
        """
        held = [mask[edges.rows] for mask, edges in zip(self._held_here, incoming, strict=True)]
        if self._plan.all_halo_rows:
            known = [_all_not_held(DENSE, *known) for known in zip(held, incoming, strict=True)]
            return [len(edges.rows) * self._row_bytes for edges in incoming], known
        partial_sums = self._plan.partial_sums
        headers = [_pack_header(*each, partial_sums) for each in zip(selections, messages, outgoing, strict=True)]
        sizes = [_header_size(edges, partial_sums) for edges in incoming]
        received = self._comm.all_to_all(headers, sizes, MessageTag("setup", self._traffic_layer))
        unpacked = [_unpack_header(*each, partial_sums) for each in zip(received, held, incoming, strict=True)]
        return [size for size, _ in unpacked], [selection for _, selection in unpacked]

    def _arrivals(
        self, incoming: list[EdgeSubset], selections: list[Selection], received: list[Tensor]
    ) -> list[ReceivedMessage]:
        arrivals = []
        for peer, (edges, selection, message) in enumerate(zip(incoming, selections, received, strict=True)):
            boundary, projected = self._plan.incoming[peer], selection.format.projected
            rows, targets = edges.rows[selection.rows], edges.targets[selection.sums]
            halo, sum_dst = (torch.from_numpy(ids) for ids in (boundary.rows[rows], boundary.targets[targets]))
            row_format = selection.format.row_format(self.local.precision)
            read = partial(decode_into, buffer=message, row_format=row_format)
            arrivals.append(ReceivedMessage(halo, sum_dst, read, projected))
            self._held_here[peer][rows] |= not projected
        return arrivals


def peers_per_batch(largest_part: int, row_bytes: int) -> int:
    """How many peers a wave goes to at a time, for parts of so many nodes."""
    return max(1, MAX_BATCH_BYTES // max(1, largest_part * row_bytes))


def _all_not_held(message_format: MessageFormat, held: Mask, edges: EdgeSubset) -> Selection:
    return Selection(message_format, ~held, np.zeros(len(edges.targets), bool))


def _header_size(edges: EdgeSubset, partial_sums: bool) -> int:
    """Bytes; none where there are no edges."""
    if not len(edges.rows):
        return 0
    return HEADER.size + (len(edges.rows) + len(edges.targets) + 7) // 8 * partial_sums


def _pack_header(selection: Selection, message: Tensor, edges: EdgeSubset, partial_sums: bool) -> Tensor:
    if not _header_size(edges, partial_sums):
        return torch.empty(0, dtype=torch.uint8)
    bits = np.packbits(np.concatenate((selection.rows, selection.sums))) if partial_sums else np.zeros(0, np.uint8)
    header = np.frombuffer(HEADER.pack(selection.format.code, len(message)), np.uint8)
    return torch.from_numpy(np.concatenate((header, bits)))


def _unpack_header(header: Tensor, held: Mask, edges: EdgeSubset, partial_sums: bool) -> tuple[int, Selection]:
    """The bytes of the message that follows, and which rows and sums it has."""
    if not len(header):
        return 0, _all_not_held(DENSE, held, edges)
    code, size = HEADER.unpack(header[: HEADER.size].numpy().tobytes())
    if not partial_sums:
        return size, _all_not_held(MessageFormat.of_code(code), held, edges)
    count = len(edges.rows) + len(edges.targets)
    bits = np.unpackbits(header[HEADER.size :].numpy(), count=count).astype(bool)
    return size, Selection(MessageFormat.of_code(code), bits[: len(edges.rows)], bits[len(edges.rows) :])
