"""Sending boundary rows and partial sums, wave by wave.

I inner nodes, H halo nodes of this worker, F width of a row, D width of a row after the layer's weights.
"""

import struct
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retexo.comm.collectives import Communicator
from retexo.comm.traffic import Purpose
from retexo.exchange.choice import DENSE, Choice, Form, Owned, choose, write
from retexo.exchange.codec import decode
from retexo.exchange.plan import EMBED, Boundary, ExchangePlan
from retexo.layers.block import Arrival, Sources, Vectors

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
HEADER = struct.Struct("<BQ")
"""Of an answer: the code of the form, and the bytes of the message that follows."""


@dataclass(frozen=True, eq=False)
class Served:
    """The edges of a boundary that a wave serves, renumbered: only rows and targets that occur among them."""

    rows: Ints
    """[L'] places among the boundary's rows, ascending; and targets likewise."""
    targets: Ints
    """[R']"""
    source: Ints
    """[E'] in [0, L')."""
    target: Ints
    """[E'] in [0, R')."""

    @classmethod
    def of(cls, boundary: Boundary, wanted: Mask, held: Mask) -> "Served":
        """The wanted edges, bool [E], whose row, bool [L], the receiver does not hold already."""
        edges = wanted & ~held[boundary.source]
        rows, source = np.unique(boundary.source[edges], return_inverse=True)
        targets, target = np.unique(boundary.target[edges], return_inverse=True)
        return cls(rows, targets, source, target)


class LayerExchange:
    """The exchange of one layer; both ends remember what the receiver holds."""

    def __init__(self, plan: ExchangePlan, layer: int, owned: Owned, comm: Communicator) -> None:
        self._plan, self._layer, self._owned, self._comm = plan, layer, owned, comm
        self._held_there = [np.zeros(len(boundary.rows), bool) for boundary in plan.outgoing]
        self._held_here = [np.zeros(len(boundary.rows), bool) for boundary in plan.incoming]
        self._sources = Sources(
            Vectors.none(plan.num_halo, owned.rows.shape[1], owned.rows.dtype),
            Vectors.none(plan.num_halo, owned.projected_width, owned.rows.dtype),
        )

    def run(self, wave: int) -> Sources:
        """Send what the wave needs and receive it; what this worker has of the halo nodes by then."""
        if self._plan.plain and wave == EMBED:
            return self._sources
        outgoing = self._served(self._plan.outgoing, self._held_there, wave)
        incoming = self._served(self._plan.incoming, self._held_here, wave)
        choices = [self._choose(served, peer, wave) for peer, served in enumerate(outgoing)]
        messages = [
            write(self._owned, choice, self._nodes(served, peer), served.source, served.target)
            for peer, (choice, served) in enumerate(zip(choices, outgoing, strict=True))
        ]
        sizes, answers = self._answer(choices, messages, incoming)
        kind = "features" if self._layer == 0 else "embeddings"
        received = self._comm.all_to_all(messages, sizes, Purpose(kind, self._layer, wave))
        for held, served, choice in zip(self._held_there, outgoing, choices, strict=True):
            held[served.rows[choice.rows]] |= not choice.form.after_weights
        self._take_in(incoming, answers, received)
        return self._sources

    def _served(self, boundaries: tuple[Boundary, ...], held: list[Mask], wave: int) -> list[Served]:
        return [
            Served.of(boundary, boundary.wanted(self._layer, wave, self._plan.num_layers), mask)
            for boundary, mask in zip(boundaries, held, strict=True)
        ]

    def _nodes(self, served: Served, peer: int) -> Ints:
        return self._plan.outgoing[peer].rows[served.rows]

    def _choose(self, served: Served, peer: int, wave: int) -> Choice:
        if self._plan.plain:
            return _all_rows(DENSE, served)
        return choose(
            self._owned,
            self._nodes(served, peer),
            served.source,
            served.target,
            len(served.targets),
            sums=self._plan.sums,
            late=wave == EMBED,
        )

    def _answer(
        self, choices: list[Choice], messages: list[Tensor], incoming: list[Served]
    ) -> tuple[list[int], list[Choice]]:
        """Tell every peer what is coming to it; the bytes that come from each, and the choice it made.

        A header, and where sums may be sent a bit for each row and each target. With exchange=plain all know it.
        """
        if self._plan.plain:
            width = self._owned.rows.shape[1] * self._owned.rows.element_size()
            return [len(served.rows) * width for served in incoming], [_all_rows(DENSE, served) for served in incoming]
        sums = self._plan.sums
        lengths = [
            HEADER.size + (len(served.rows) + len(served.targets) + 7) // 8 * sums if len(served.source) else 0
            for served in incoming
        ]
        answers = [_pack(*answer, sums) for answer in zip(choices, messages, strict=True)]
        received = self._comm.all_to_all(answers, lengths, Purpose("setup", self._layer))
        unpacked = [_unpack(answer, served, sums) for answer, served in zip(received, incoming, strict=True)]
        return [size for size, _ in unpacked], [choice for _, choice in unpacked]

    def _take_in(self, incoming: list[Served], choices: list[Choice], received: list[Tensor]) -> None:
        arrivals: dict[bool, list[Arrival]] = {False: [], True: []}
        for peer, (served, choice, message) in enumerate(zip(incoming, choices, received, strict=True)):
            boundary, late = self._plan.incoming[peer], choice.form.after_weights
            rows, targets = served.rows[choice.rows], served.targets[choice.sums]
            width = self._owned.projected_width if late else self._owned.rows.shape[1]
            shape = (len(rows) + len(targets), width)
            vectors = decode(message, shape, self._owned.rows.dtype, choice.form.row_format(self._owned.precision))
            halo, sum_dst = (torch.from_numpy(ids) for ids in (boundary.rows[rows], boundary.targets[targets]))
            arrivals[late].append(Arrival(vectors, halo, sum_dst))
            self._held_here[peer][rows] |= not late
        self._sources = Sources(
            self._sources.early.extended(arrivals[False]), self._sources.late.extended(arrivals[True])
        )


def _all_rows(form: Form, served: Served) -> Choice:
    return Choice(form, np.ones(len(served.rows), bool), np.zeros(len(served.targets), bool))


def _pack(choice: Choice, message: Tensor, sums: bool) -> Tensor:
    if not len(choice.rows):  # nothing is asked for, and the receiver knows
        return torch.empty(0, dtype=torch.uint8)
    bits = np.packbits(np.concatenate((choice.rows, choice.sums))) if sums else np.zeros(0, np.uint8)
    header = np.frombuffer(HEADER.pack(choice.form.code, len(message)), np.uint8)
    return torch.from_numpy(np.concatenate((header, bits)))


def _unpack(answer: Tensor, served: Served, sums: bool) -> tuple[int, Choice]:
    if not len(answer):
        return 0, _all_rows(DENSE, served)
    code, size = HEADER.unpack(answer[: HEADER.size].numpy().tobytes())
    if not sums:
        return size, _all_rows(Form.of_code(code), served)
    count = len(served.rows) + len(served.targets)
    bits = np.unpackbits(answer[HEADER.size :].numpy(), count=count).astype(bool)
    return size, Choice(Form.of_code(code), bits[: len(served.rows)], bits[len(served.rows) :])
