"""Sending boundary rows and partial sums, wave by wave.

A wave goes to some peers at a time, so that no worker holds all that it sends; which ones, all workers know from the
sizes of the parts. W workers, I inner nodes, H halo nodes of this worker, F width of a row, D width of a row after the
layer's weights.
"""

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retexo.comm.collectives import Communicator
from retexo.comm.traffic import Purpose
from retexo.exchange.coding.rows import decode_into
from retexo.exchange.coding.values import value_bytes
from retexo.exchange.plan import EMBED, Boundary, ExchangePlan, Places, renumbered
from retexo.exchange.selection import DENSE, LocalRows, MessageFormat, Selection, choose, write
from retexo.nn.block import Arrival, Sources, Vectors

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
HEADER = struct.Struct("<BQ")
"""Of an answer: the code of the form, and the bytes of the message that follows."""
AT_ONCE = 1 << 28
"""Bytes of messages that a worker makes before it sends them; at least one peer's."""


@dataclass(frozen=True, eq=False)
class EdgeSubset:
    """Some edges of a boundary, renumbered: only rows and targets that occur among them."""

    rows: Ints
    """[L'] places among the boundary's rows, ascending; and targets likewise."""
    targets: Ints
    """[R']"""
    source: Places
    """[E'] in [0, L')."""
    target: Places
    """[E'] in [0, R')."""

    @classmethod
    def of(cls, source: Places, target: Places) -> "EdgeSubset":
        """Of edges, int [E'] each."""
        rows, own_source = renumbered(source)
        targets, own_target = renumbered(target)
        return cls(rows, targets, own_source, own_target)

    @classmethod
    def nothing(cls) -> "EdgeSubset":
        return cls.of(np.zeros(0, np.int32), np.zeros(0, np.int32))

    def some(self, edges: Mask) -> "EdgeSubset":
        """Of some of the edges, bool [E'], renumbered as places in this one."""
        if edges.all():
            return EdgeSubset(np.arange(len(self.rows)), np.arange(len(self.targets)), self.source, self.target)
        return EdgeSubset.of(self.source[edges], self.target[edges])

    def without_edges(self) -> "EdgeSubset":
        """What both sides go by once it is known what is sent; there are far more edges than rows and targets."""
        nothing = np.zeros(0, np.int32)
        return EdgeSubset(self.rows, self.targets, nothing, nothing)


class LayerExchange:
    """The exchange of one layer; both ends of a boundary remember which rows the receiver holds."""

    def __init__(
        self, plan: ExchangePlan, layer: int, owned: LocalRows, comm: Communicator, kind: str | None = None
    ) -> None:
        """kind: what the account calls the rows; None for features in layer 0, embeddings in the others."""
        self._plan, self._layer, self.owned, self._comm = plan, layer, owned, comm
        self._kind = kind or ("features" if layer == 0 else "embeddings")
        self._held_there = [np.zeros(len(boundary.rows), bool) for boundary in plan.outgoing]
        self._held_here = [np.zeros(len(boundary.rows), bool) for boundary in plan.incoming]
        self._nothing = Sources(
            Vectors.none(plan.num_halo, owned.rows.shape[1], owned.rows.dtype),
            Vectors.none(plan.num_halo, owned.projected_width, owned.rows.dtype),
        )
        self._sources = self._nothing

    def run(self, wave: int) -> Sources:
        """Send what the wave needs and receive it; what this worker has of the halo nodes by then."""
        self._sources = self._sources.extended([arrival for some in self._arrivals(wave) for arrival in some])
        return self._sources

    def stream(self, wave: int) -> Iterator[Sources]:
        """The same piece by piece: what earlier waves left here, then what comes now, which is not kept."""
        yield self._sources
        for some in self._arrivals(wave):
            sources = self._nothing.extended(some)
            some.clear()
            yield sources
            del sources

    def _arrivals(self, wave: int) -> Iterator[list[Arrival]]:
        """Send and receive, some peers at a time."""
        if wave not in self._plan.waves:
            return
        rank, world_size = self._comm.rank, self._comm.world_size
        step = peers_at_once(self._plan.largest_part, self._row_size)
        for first in range(1, world_size, step):
            distances = range(first, min(first + step, world_size))
            receivers = {(rank + distance) % world_size for distance in distances}
            senders = {(rank - distance) % world_size for distance in distances}
            yield self._swap(wave, receivers, senders)

    def _swap(self, wave: int, receivers: Collection[int], senders: Collection[int]) -> list[Arrival]:
        choices, messages, outgoing = [], [], []
        for peer, boundary in enumerate(self._plan.outgoing):
            served = self._wanted(boundary, wave) if peer in receivers else EdgeSubset.nothing()
            choice, message = self._offer(served, peer, wave)
            choices.append(choice)
            messages.append(message)
            outgoing.append(served.without_edges())
        incoming = [
            self._wanted(boundary, wave).without_edges() if peer in senders else EdgeSubset.nothing()
            for peer, boundary in enumerate(self._plan.incoming)
        ]
        sizes, answers = self._answer(choices, messages, outgoing, incoming)
        received = self._comm.all_to_all(messages, sizes, Purpose(self._kind, self._layer, wave), consume=True)
        for held, served, choice in zip(self._held_there, outgoing, choices, strict=True):
            held[served.rows[choice.rows]] |= not choice.form.projected
        return self._take_in(incoming, answers, received)

    def _wanted(self, boundary: Boundary, wave: int) -> EdgeSubset:
        edges = boundary.wanted(self._layer, wave, self._plan.num_layers)
        return EdgeSubset.of(boundary.source[edges], boundary.target[edges])

    def _offer(self, served: EdgeSubset, peer: int, wave: int) -> tuple[Selection, Tensor]:
        """What this worker sends a peer, chosen among all that the wave serves, and as bytes."""
        held = self._held_there[peer][served.rows]
        if self._plan.plain:
            choice = _rows_not_held(DENSE, held, served)
            return choice, write(self.owned, choice, self._nodes(served, peer), served.source, served.target)
        rest = served.some(~held[served.source])
        nodes, num_targets = self._nodes(served, peer)[rest.rows], len(rest.targets)
        ends = rest.source, rest.target
        chosen = choose(self.owned, nodes, *ends, num_targets, sums=self._plan.sums, projected=wave == EMBED)
        message = write(self.owned, chosen, nodes, *ends)
        if len(message) > len(nodes) * self._row_size:  # of whole sums values cancelled, of what is left they do not
            chosen = Selection(DENSE, np.ones(len(nodes), bool), np.zeros(num_targets, bool))
            message = write(self.owned, chosen, nodes, *ends)
        rows, sums = np.zeros(len(served.rows), bool), np.zeros(len(served.targets), bool)
        rows[rest.rows], sums[rest.targets] = chosen.rows, chosen.sums
        return Selection(chosen.form, rows, sums), message

    @property
    def _row_size(self) -> int:
        """Bytes of a row, dense."""
        return value_bytes(self.owned.rows.shape[1], self.owned.rows.dtype, self.owned.precision)

    def _nodes(self, served: EdgeSubset, peer: int) -> Ints:
        return self._plan.outgoing[peer].rows[served.rows]

    def _answer(
        self, choices: list[Selection], messages: list[Tensor], outgoing: list[EdgeSubset], incoming: list[EdgeSubset]
    ) -> tuple[list[int], list[Selection]]:
        """Tell every peer what is coming to it; the bytes that come from each, and the choice it made.

        A header, and where sums may be sent a bit for each row and each target that the wave serves, also for rows
        that are held: so its size does not depend on values. With exchange=plain all is known.
        """
        held = [mask[served.rows] for mask, served in zip(self._held_here, incoming, strict=True)]
        if self._plan.plain:
            known = [_rows_not_held(DENSE, *known) for known in zip(held, incoming, strict=True)]
            return [len(served.rows) * self._row_size for served in incoming], known
        sums = self._plan.sums
        answers = [_pack(*answer, sums) for answer in zip(choices, messages, outgoing, strict=True)]
        lengths = [_answer_size(served, sums) for served in incoming]
        received = self._comm.all_to_all(answers, lengths, Purpose("setup", self._layer))
        unpacked = [_unpack(*answer, sums) for answer in zip(received, held, incoming, strict=True)]
        return [size for size, _ in unpacked], [choice for _, choice in unpacked]

    def _take_in(self, incoming: list[EdgeSubset], choices: list[Selection], received: list[Tensor]) -> list[Arrival]:
        arrivals = []
        for peer, (served, choice, message) in enumerate(zip(incoming, choices, received, strict=True)):
            boundary, projected = self._plan.incoming[peer], choice.form.projected
            rows, targets = served.rows[choice.rows], served.targets[choice.sums]
            halo, sum_dst = (torch.from_numpy(ids) for ids in (boundary.rows[rows], boundary.targets[targets]))
            row_format = choice.form.row_format(self.owned.precision)
            read = partial(decode_into, buffer=message, row_format=row_format)
            arrivals.append(Arrival(halo, sum_dst, read, projected))
            self._held_here[peer][rows] |= not projected
        return arrivals


def peers_at_once(largest_part: int, row_size: int) -> int:
    """How many peers a wave goes to at a time, for parts of so many nodes and rows of so many bytes."""
    return max(1, AT_ONCE // max(1, largest_part * row_size))


def _rows_not_held(form: MessageFormat, held: Mask, served: EdgeSubset) -> Selection:
    return Selection(form, ~held, np.zeros(len(served.targets), bool))


def _answer_size(served: EdgeSubset, sums: bool) -> int:
    """Bytes; none where the wave serves nothing."""
    if not len(served.rows):
        return 0
    return HEADER.size + (len(served.rows) + len(served.targets) + 7) // 8 * sums


def _pack(choice: Selection, message: Tensor, served: EdgeSubset, sums: bool) -> Tensor:
    if not _answer_size(served, sums):
        return torch.empty(0, dtype=torch.uint8)
    bits = np.packbits(np.concatenate((choice.rows, choice.sums))) if sums else np.zeros(0, np.uint8)
    header = np.frombuffer(HEADER.pack(choice.form.code, len(message)), np.uint8)
    return torch.from_numpy(np.concatenate((header, bits)))


def _unpack(answer: Tensor, held: Mask, served: EdgeSubset, sums: bool) -> tuple[int, Selection]:
    """The bytes that follow, and which rows and sums they are."""
    if not len(answer):
        return 0, _rows_not_held(DENSE, held, served)
    code, size = HEADER.unpack(answer[: HEADER.size].numpy().tobytes())
    if not sums:
        return size, _rows_not_held(MessageFormat.of_code(code), held, served)
    count = len(served.rows) + len(served.targets)
    bits = np.unpackbits(answer[HEADER.size :].numpy(), count=count).astype(bool)
    return size, Selection(MessageFormat.of_code(code), bits[: len(served.rows)], bits[len(served.rows) :])
