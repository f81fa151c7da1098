"""The exchange of one layer within end-to-end training: rows and partial sums forward, their gradients backward.

What is sent for a boundary follows from its edges alone: a minimum vertex cover of them where the aggregator adds up,
else each row once. Both ends compute the same cover, so nothing has to be announced. HaloRows are dense.

I inner nodes; of one layer n rows that this worker has, K vectors that it sends, M that it receives, D wide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from retexo.arrays import IndexArray, IntArray, Mask, WeightArray, ids_to_mask, take_weights
from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import MessageTag
from retexo.exchange.boundary import Boundary
from retexo.exchange.cover import minimum_cover
from retexo.exchange.exchange_plan import ExchangePlan
from retexo.models.block import HaloRows, ReceivedMessage
from retexo.models.matrix import SparseMatrix


@dataclass(frozen=True, eq=False)
class HaloExchange:
    """What this worker sends and receives in one layer, the same in every pass."""

    message: SparseMatrix
    """[K, n] makes the vectors for all peers, by rank, of this worker's rows."""
    num_sent: list[int]
    """HaloRows for each peer, and from each."""
    num_received: list[int]
    received: HaloRows
    """Where the vectors that arrive belong; they have no values, [M, 0]."""

    def run(
        self, rows: Tensor, before: Tensor, comm: Communicator, tag: MessageTag
    ) -> tuple[Tensor, Tensor]:
        """Send rows [n, D] and receive [M, D], which has a gradient.

        before: a scalar, the second result of the exchange before this one. It makes all workers go through the
        exchanges in the same order in the backward pass, also those that make nothing of what they receive; so it has
        to enter the loss.
        """
        received: Tensor = _AllToAll.apply(self.message @ rows, before, self, comm, tag)  # type: ignore[no-untyped-call]
        return received, received[:0].sum()


class _AllToAll(torch.autograd.Function):
    """[K, D] -> [M, D]; the gradient [M, D] -> [K, D] goes back to where the vectors came from."""

    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        before: Tensor,
        exchange: HaloExchange,
        comm: Communicator,
        tag: MessageTag,
    ) -> Tensor:
        ctx.exchange, ctx.comm, ctx.tag = exchange, comm, tag
        return _all_to_all(vectors, exchange.num_sent, exchange.num_received, comm, tag)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        exchange = ctx.exchange
        back = _all_to_all(gradient, exchange.num_received, exchange.num_sent, ctx.comm, ctx.tag)
        return back, gradient.new_zeros(()), None, None, None


def _all_to_all(
    vectors: Tensor, to_peers: list[int], from_peers: list[int], comm: Communicator, tag: MessageTag
) -> Tensor:
    """HaloRows [K, D], for the peers by rank -> [M, D], from the peers by rank."""
    width = vectors.shape[1]
    outgoing = [part.flatten() for part in torch.split(vectors.detach().cpu(), to_peers)]
    received = comm.all_to_all(outgoing, [count * width for count in from_peers], tag)
    return torch.cat(received).view(-1, width).to(vectors.device)


@dataclass(frozen=True, eq=False)
class BoundarySample:
    """Which rows of each boundary are exchanged in a pass, bool [L] per peer: as the sender, and as the receiver."""

    outgoing: Sequence[Mask]
    incoming: Sequence[Mask]


def make_halo_exchange(
    plan: ExchangePlan,
    layer: int,
    scale: Tensor | None,
    like: Tensor,
    sample: BoundarySample | None = None,
) -> HaloExchange:
    """The exchange of a layer's input for all that a plan of one wave needs; without a sample of all boundary rows.

    scale: [I] what the aggregator multiplies a source with; None for ones. The message takes the rows of the inner
    nodes with plan.required_layers >= layer, in their order; of the type and on the device of `like`.
    """
    nodes = (plan.required_layers >= layer).numpy()
    place = np.cumsum(nodes) - 1
    pieces: list[sp.csr_array] = []
    arrivals = []
    for peer, (outgoing, incoming) in enumerate(zip(plan.outgoing, plan.incoming, strict=True)):
        rows_sent, rows_received = (
            (None, None) if sample is None else (sample.outgoing[peer], sample.incoming[peer])
        )
        sent = _SelectedVectors.choose(outgoing, layer, plan.partial_sums, rows_sent)
        received = _SelectedVectors.choose(incoming, layer, plan.partial_sums, rows_received)
        pieces.append(sent.matrix(outgoing.rows, place, int(nodes.sum()), scale))
        halo, targets = (
            torch.from_numpy(ids)
            for ids in (incoming.rows[received.rows], incoming.targets[received.sums])
        )
        nothing = like.new_empty(len(halo) + len(targets), 0)
        arrivals.append(ReceivedMessage(halo, targets, read=partial(_read_empty, nothing)))
    message = sp.csr_array(
        sp.vstack(pieces, format="csr"), dtype=like.new_zeros(0).cpu().numpy().dtype
    )
    message.sort_indices()
    return HaloExchange(
        SparseMatrix.from_scipy(message, like.device),
        num_sent=[piece.shape[0] for piece in pieces],
        num_received=[len(part.halo) + len(part.sum_dst) for part in arrivals],
        received=HaloRows.empty(plan.num_halo, 0, like.dtype).append(arrivals),
    )


def _read_empty(vectors: Tensor, out: Tensor | None = None) -> Tensor:
    """ReceivedMessage.read of vectors that hold no values."""
    return vectors if out is None else out


@dataclass(frozen=True, eq=False)
class _SelectedVectors:
    """Of a boundary the rows [L] and targets [R] that something is sent for, bool, and the edges that sums cover."""

    rows: Mask
    sums: Mask
    source: IndexArray
    target: IndexArray
    weight: WeightArray | None
    """Of these edges, known to the sender."""

    @classmethod
    def choose(
        cls, boundary: Boundary, layer: int, partial_sums: bool, sampled: Mask | None
    ) -> "_SelectedVectors":
        required = boundary.required_layers[boundary.target] > layer
        source = boundary.source
        if sampled is not None:
            required &= sampled[source]
        source, target, weight = (
            source[required],
            boundary.target[required],
            take_weights(boundary.weight, required),
        )
        rows, targets = (
            np.zeros(len(boundary.rows), bool),
            np.zeros(len(boundary.required_layers), bool),
        )
        if not partial_sums:
            rows[source] = True
            return cls(rows, targets, source[:0], target[:0], None)
        left, right = source, target
        if weight is not None:
            rows = ids_to_mask(source[np.isnan(weight)], len(rows))
            left, right = source[~rows[source]], target[~rows[source]]
        cover = minimum_cover(
            left, right, np.ones(len(rows), np.int64), np.ones(len(targets), np.int64)
        )
        rows = cover.left_mask | rows
        rest = ~rows[source]
        return cls(rows, cover.right_mask, source[rest], target[rest], take_weights(weight, rest))

    def matrix(
        self, nodes: IntArray, place: IntArray, num_rows: int, scale: Tensor | None
    ) -> sp.csr_array:
        """[k, num_rows] rows, then sums; nodes int64 [L] are the sender's, place int64 [I] their rows."""
        taken = place[nodes[self.rows]]
        source = nodes[self.source]
        weight = np.ones(len(source)) if scale is None else scale.numpy()[source]
        weight = weight if self.weight is None else weight * self.weight
        vector = len(taken) + (np.cumsum(self.sums) - 1)[self.target]
        values = np.concatenate((np.ones(len(taken)), weight))
        ends = (
            np.concatenate((np.arange(len(taken)), vector)),
            np.concatenate((taken, place[source])),
        )
        return sp.csr_array((values, ends), shape=(len(taken) + int(self.sums.sum()), num_rows))
