"""Differentiable exchange for end-to-end training: rows and sums forward, gradients backward.

The selection depends on the edges only: a minimum vertex cover for linear aggregators, otherwise
every boundary row. Both ends compute the same cover, so nothing is announced. Vectors are dense.

With a rounded precision, vectors and their gradients are rounded at random to one of the two
nearest codes, so that both are right on average, as in AdaQP (Wan, Zhao and Wu, "Adaptive Message
Quantization and Parallelization for Distributed Full-graph GNN Training", MLSys 2023) with the same
number of bits for all vectors.

I inner nodes. For one layer: n local rows, K vectors sent, M vectors received, width D.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from retexo.arrays import IndexArray, IntArray, Mask, WeightArray, ids_to_mask, take_weights
from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import MessageTag
from retexo.exchange.boundary import Boundary
from retexo.exchange.coding.rows import RowFormat, decode, encode
from retexo.exchange.coding.values import Precision, value_bytes
from retexo.exchange.cover import fewest_vectors
from retexo.exchange.exchange_plan import ExchangePlan
from retexo.models.block import HaloRows, ReceivedMessage
from retexo.models.matrix import SparseMatrix


@dataclass(frozen=True, eq=False)
class HaloExchange:
    """Exchange of one layer; the same in every forward pass."""

    message: SparseMatrix
    """[K, n] sparse matrix that maps local rows to the vectors for all peers, by rank."""
    num_sent: list[int]
    """Number of vectors sent to each peer."""
    num_received: list[int]
    """Number of vectors received from each peer."""
    received: HaloRows
    """Halo nodes and targets of the received vectors, without values, [M, 0]."""
    precision: Precision = "full"
    """Precision of the vectors and of their gradients."""

    def run(
        self, rows: Tensor, before: Tensor, comm: Communicator, tag: MessageTag
    ) -> tuple[Tensor, Tensor]:
        """Send rows [n, D] and receive vectors [M, D], with gradient.

        All workers call it; the backward pass sends gradients under the same tag. Where the
        precision rounds, it draws by torch's global generator.

        Args:
            rows: [n, D]
            before: scalar, the second result of the previous exchange. It orders the exchanges
                of the backward pass in the same way on all workers, also on those that do not
                use what they receive. Therefore it has to enter the loss.
            tag: how the traffic is counted.
        Returns:
            the received vectors, and the scalar for the next exchange.
        """
        received: Tensor = _AllToAll.apply(self.message @ rows, before, self, comm, tag)  # type: ignore[no-untyped-call]
        return received, received[:0].sum()


class _AllToAll(torch.autograd.Function):
    """[K, D] -> [M, D]; backward sends the gradient [M, D] to the senders and returns [K, D]."""

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
        counts = exchange.num_sent, exchange.num_received
        return _all_to_all(vectors, *counts, exchange.precision, comm, tag)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        exchange = ctx.exchange
        counts = exchange.num_received, exchange.num_sent
        back = _all_to_all(gradient, *counts, exchange.precision, ctx.comm, ctx.tag)
        return back, gradient.new_zeros(()), None, None, None


def _all_to_all(
    vectors: Tensor,
    to_peers: list[int],
    from_peers: list[int],
    precision: Precision,
    comm: Communicator,
    tag: MessageTag,
) -> Tensor:
    """Send vectors [K, D], sorted by peer; return the received vectors [M, D], sorted by peer.

    to_peers, from_peers: number of vectors sent to and received from each peer.
    """
    width, row_format = vectors.shape[1], RowFormat("dense", precision)
    row_bytes = value_bytes(width, vectors.dtype, precision)
    outgoing = [
        encode(part, row_format, at_random=True)
        for part in torch.split(vectors.detach().cpu(), to_peers)
    ]
    arrived = comm.all_to_all(outgoing, [count * row_bytes for count in from_peers], tag)
    decoded = [
        decode(rows, (count, width), vectors.dtype, row_format)
        for rows, count in zip(arrived, from_peers, strict=True)
    ]
    return torch.cat(decoded).to(vectors.device)


@dataclass(frozen=True, eq=False)
class BoundarySample:
    """The boundary rows exchanged in one pass, bool [L] per peer, as sender and as receiver."""

    outgoing: Sequence[Mask]
    incoming: Sequence[Mask]


def make_halo_exchange(
    plan: ExchangePlan,
    layer: int,
    scale: Tensor | None,
    like: Tensor,
    sample: BoundarySample | None = None,
    precision: Precision = "full",
) -> HaloExchange:
    """Make the exchange of a layer's input, for a plan with one phase.

    Args:
        layer: the layer whose input is exchanged.
        scale: [I] factor of each source in the aggregate (source_scale); None for ones.
        like: a tensor with the dtype and device of the rows.
        sample: the boundary rows to exchange; None for all.
        precision: of the vectors and of their gradients.
    Returns:
        an exchange of the inner nodes with plan.required_layers >= layer, in ascending order.
    """
    nodes = (plan.required_layers >= layer).numpy()
    node_rows = np.cumsum(nodes) - 1
    pieces: list[sp.csr_array] = []
    messages = []
    for peer, (outgoing, incoming) in enumerate(zip(plan.outgoing, plan.incoming, strict=True)):
        rows_sent, rows_received = (
            (None, None) if sample is None else (sample.outgoing[peer], sample.incoming[peer])
        )
        sent = _SelectedVectors.choose(outgoing, layer, plan.options.partial_sums, rows_sent)
        received = _SelectedVectors.choose(
            incoming, layer, plan.options.partial_sums, rows_received
        )
        pieces.append(sent.matrix(outgoing.rows, node_rows, int(nodes.sum()), scale))
        halo, targets = (
            torch.from_numpy(ids)
            for ids in (incoming.rows[received.rows], incoming.targets[received.sums])
        )
        messages.append(ReceivedMessage(halo, targets, read=_read_no_columns))
    message = sp.csr_array(
        sp.vstack(pieces, format="csr"), dtype=like.new_zeros(0).cpu().numpy().dtype
    )
    message.sort_indices()
    return HaloExchange(
        SparseMatrix.from_scipy(message, like.device),
        num_sent=[piece.shape[0] for piece in pieces],
        num_received=[len(part.halo) + len(part.sum_dst) for part in messages],
        received=HaloRows.empty(plan.num_halo, 0, like.dtype).append(messages),
        precision=precision,
    )


def _read_no_columns(out: Tensor) -> None:
    """ReceivedMessage.read for messages without values."""


@dataclass(frozen=True, eq=False)
class _SelectedVectors:
    """The vectors to send across a boundary: some rows, and partial sums for some targets.

    L rows, R targets, S edges.
    """

    rows: Mask
    """bool [L], rows that are sent themselves."""
    sums: Mask
    """bool [R], targets that get a partial sum."""
    source: IndexArray
    """[S], index of each edge's row."""
    target: IndexArray
    """[S], index of each edge's target."""
    weight: WeightArray | None
    """[S], the weights of these edges, known to the sender; None for ones."""

    @classmethod
    def choose(
        cls, boundary: Boundary, layer: int, partial_sums: bool, sampled_rows: Mask | None
    ) -> "_SelectedVectors":
        """Select the fewest vectors that serve all edges into targets which the layer computes.

        Args:
            boundary: of this worker and one peer.
            layer: the layer whose input is exchanged.
            partial_sums: whether sums may be sent; else all rows with such an edge are.
            sampled_rows: bool [L], the only rows whose edges count; None: all.
        """
        required = boundary.required_layers[boundary.target] > layer
        source = boundary.source
        if sampled_rows is not None:
            required &= sampled_rows[source]
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
        if weight is not None:
            rows = ids_to_mask(source[np.isnan(weight)], len(rows))
        cover = fewest_vectors(source, target, rows, len(targets))
        rest = ~cover.left_mask[source]
        return cls(
            cover.left_mask,
            cover.right_mask,
            source[rest],
            target[rest],
            take_weights(weight, rest),
        )

    def matrix(
        self, nodes: IntArray, node_rows: IntArray, num_rows: int, scale: Tensor | None
    ) -> sp.csr_array:
        """Return the matrix [k, n] that maps the sender's n rows to k vectors: rows, then sums.

        Args:
            nodes: int64 [L], the inner node of each boundary row.
            node_rows: int64 [I], the local row of each inner node.
            num_rows: n.
            scale: [I], factor of each source in a sum; None for ones.
        """
        taken = node_rows[nodes[self.rows]]
        source = nodes[self.source]
        weight = np.ones(len(source)) if scale is None else scale.numpy()[source]
        weight = weight if self.weight is None else weight * self.weight
        vector = len(taken) + (np.cumsum(self.sums) - 1)[self.target]
        values = np.concatenate((np.ones(len(taken)), weight))
        ends = (
            np.concatenate((np.arange(len(taken)), vector)),
            np.concatenate((taken, node_rows[source])),
        )
        return sp.csr_array((values, ends), shape=(len(taken) + int(self.sums.sum()), num_rows))
