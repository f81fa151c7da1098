"""Aggregate of a linear convolution, accumulated while the rows of halo nodes arrive.

Rows are not copied, and received rows are freed once they are added, so a worker never holds the
rows of all halo nodes. It sums either input rows or projected rows, since A(HW) = (AH)W.

I inner nodes, H halo nodes, F input width, D width of a projected row; n nodes, K = D or F.
"""

import numpy as np
import torch
from torch import Tensor

from retexo.models.block import HaloRows, InEdges, Sources
from retexo.models.convolution import Inputs
from retexo.models.linear import NO_PROJECTED_ROWS, LinearConvolution
from retexo.models.matrix import as_matrix, sum_rows

MAX_SUMS_PER_STEP = 1 << 16
"""Maximum number of partial sums added at a time, because these are copied."""
NUM_IMMEDIATE_ADDS = 2
"""For graphs of one chunk: the number of messages whose rows are added at once instead of
collected. Keeps the results of small graphs bit for bit."""
MAX_WAITING_BYTES = 1 << 26
"""Maximum bytes of received rows collected before an addition, which scans all edges."""
ALL_NODES = slice(None)


class AggregateAccumulator:
    """Accumulates the inputs of a linear convolution at some inner nodes."""

    def __init__(
        self,
        conv: LinearConvolution,
        edges: InEdges,
        nodes: Tensor,
        rows: Tensor,
        projected: Tensor | None,
        device: torch.device,
    ) -> None:
        """Start with the neighbours within the partition.

        Args:
            conv: the convolution.
            edges: all in-edges of the partition.
            nodes: int64 [n] ascending and distinct.
            rows: [I, F] on the CPU.
            projected: [I, D] rows after conv.project, to sum those; None to sum `rows`.
            device: where the sums are computed.
        """
        self._conv, self._edges, self._nodes, self._device = conv, edges, nodes, device
        self._rows = rows if conv.root_weight else None
        self._projects = projected is not None
        self._scale = conv.source_scale(edges.out_degree)
        self._own = (rows if projected is None else projected).to(device)
        self._total = torch.zeros(len(nodes), self._own.shape[1], dtype=rows.dtype, device=device)
        self._chunks = edges.chunks(nodes)
        self._at_once = NUM_IMMEDIATE_ADDS if len(self._chunks) == 1 else 0
        self._waiting: list[tuple[Tensor, Tensor]] = []
        """Collected rows, [m, K], and their nodes' local ids, int64 [m]."""
        self._place = torch.full((len(edges.in_degree),), -1)
        self._place[nodes] = torch.arange(len(nodes))
        self._add_rows(
            self._own, None, None if self._scale is None else self._scale[: len(self._own)]
        )

    def add(self, sources: Sources) -> None:
        """Add received vectors. Over all calls each halo edge is covered once.

        Small ones wait until there are MAX_WAITING_BYTES of them.
        """
        for vectors, projected in ((sources.unprojected, False), (sources.projected, True)):
            if not len(vectors.values):
                continue
            assert self._projects or not projected
            values = vectors.values.to(self._device)
            if self._projects and not projected:
                values = self._conv.project(as_matrix(values))
            rows = nodes = vectors.sums[:0]
            if len(values) > len(vectors.sums):
                halo = (vectors.halo >= 0).nonzero()[:, 0]
                rows, nodes = vectors.halo[halo], halo + len(self._edges.in_degree)
            if len(rows) and (self._at_once or len(rows) * values[:1].nbytes >= MAX_WAITING_BYTES):
                self._add_received(values, rows, nodes)
                self._at_once = max(0, self._at_once - 1)
            elif len(rows):
                self._waiting.append((values.index_select(0, rows.to(self._device)), nodes))
            self._add_sums(values, vectors)
            if sum(waiting.nbytes for waiting, _ in self._waiting) >= MAX_WAITING_BYTES:
                self._add_waiting()

    def inputs(self, chosen: slice = ALL_NODES) -> Inputs:
        """Return the inputs of nodes[chosen], once everything is added; may be called again."""
        self._add_waiting()
        conv, edges, nodes = self._conv, self._edges, self._nodes[chosen]
        in_degree = edges.in_degree[nodes]
        total = self._total[chosen]
        if (scale := conv.destination_scale(in_degree)) is not None:
            total = total * scale[:, None].to(self._device)
        if (scale := conv.self_loop_scale(in_degree, edges.out_degree[nodes])) is not None:
            own_rows = self._own.index_select(0, nodes.to(self._device))
            own_rows *= scale[:, None].to(self._device)
            total = own_rows.add_(total)
        own = None if self._rows is None else self._rows[nodes].to(self._device)
        unprojected, projected = (
            (total.new_zeros(len(total), 0), total)
            if self._projects
            else (total, NO_PROJECTED_ROWS)
        )
        return conv.inputs(own, unprojected, projected)

    def _add_waiting(self) -> None:
        """Add the received rows that were collected to be added together."""
        if not self._waiting:
            return
        values, nodes = map(torch.cat, zip(*self._waiting, strict=True))
        self._waiting.clear()
        self._add_received(values, torch.arange(len(values)), nodes)

    def _add_received(self, values: Tensor, rows: Tensor, nodes: Tensor) -> None:
        """Add rows of values [n, K] along the out-edges of their nodes.

        Args:
            rows: int64 [m]
            nodes: int64 [m] local ids.
        """
        row_of = torch.full((len(self._edges.out_degree),), len(values), dtype=torch.int32)
        row_of[nodes] = rows.int()
        scale = None
        if self._scale is not None:
            scale = self._scale.new_zeros(len(values))
            scale[rows] = self._scale[nodes]
        self._add_rows(values, row_of, scale)

    def _add_rows(self, values: Tensor, row_of: Tensor | None, scale: Tensor | None) -> None:
        """Add rows of values [n, K] along the out-edges of their nodes.

        Args:
            row_of: int32 [I + H] row of each node by local id, n if it has none; None: row v is
                of node v.
            scale: [n] factor of each row; None for ones.
        """
        first = 0
        for chunk in self._chunks:
            edge, row_ptr = self._edges.in_edges(chunk)
            row = self._edges.src.index_select(0, edge)
            if row_of is not None:
                # index_select is much faster than indexing for int32
                row = row_of.index_select(0, row)
            received = row < len(values)
            kept = torch.cat(
                (torch.zeros(1, dtype=torch.int32), received.cumsum(0, dtype=torch.int32))
            )
            row = _compress(row, received)
            weight = None if scale is None else scale.index_select(0, row)
            if self._edges.weight is not None:
                edge_weight = _compress(self._edges.weight.index_select(0, edge), received)
                weight = edge_weight if weight is None else weight.mul_(edge_weight)
            weight = None if weight is None else weight.to(self._device)
            sums = sum_rows(values, row.to(self._device), kept[row_ptr].to(self._device), weight)
            self._total[first : first + len(chunk)] += sums
            first += len(chunk)

    def _add_sums(self, values: Tensor, vectors: HaloRows) -> None:
        """Add received partial sums to their destinations."""
        target, sums = self._place[vectors.sum_dst], vectors.sums
        is_wanted = target >= 0
        if not is_wanted.all():
            target, sums = target[is_wanted], sums[is_wanted]
        if not len(sums):
            return
        first, end = int(sums[0]), int(sums[-1]) + 1
        if end - first == len(sums):  # contiguous, as within one message
            self._total.index_add_(0, target.to(self._device), values[first:end])
            return
        pieces = (
            torch.split(places.to(self._device), MAX_SUMS_PER_STEP) for places in (target, sums)
        )
        for target, sums in zip(*pieces, strict=True):
            self._total.index_add_(0, target, values.index_select(0, sums))


def _compress(values: Tensor, mask: Tensor) -> Tensor:
    """Return values[mask] with np.compress, which is faster; [n] on the CPU."""
    return torch.from_numpy(np.compress(mask.numpy(), values.numpy()))
