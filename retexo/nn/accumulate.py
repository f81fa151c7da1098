"""Sums over the in-edges of nodes, added up from one table of rows after the other.

No row is copied, and a table can be released once it is added: a worker that embeds its nodes never holds the rows of
all halo nodes. For a node the rows add up as they are, or after a layer's weights, since A(HW) = (AH)W.

I inner nodes, H halo nodes, F input width, D width after the weights; n nodes, K the width that is added up.
"""

import numpy as np
import torch
from torch import Tensor

from retexo.nn.block import InEdges, Sources, Vectors
from retexo.nn.convolution import Inputs
from retexo.nn.linear import NOT_PROJECTED, SumConvolution
from retexo.nn.matrix import as_matrix, row_sums

SUMS_AT_ONCE = 1 << 16
"""Partial sums that are added at a time; they are copied on the way."""
EVERYTHING = slice(None)


class Accumulator:
    """The input of a convolution that adds up, at some inner nodes."""

    def __init__(
        self,
        conv: SumConvolution,
        edges: InEdges,
        nodes: Tensor,
        rows: Tensor,
        projected: Tensor | None,
        device: torch.device,
    ) -> None:
        """Start with the neighbours within the part.

        Args:
            nodes: int64 [n] ascending and distinct.
            rows: [I, F] on the host.
            projected: [I, D] after the weights, if rows are to be added up so, without dropout: K is D then, else F.
        """
        self._conv, self._edges, self._nodes, self._rows, self._device = conv, edges, nodes, rows, device
        self._late = projected is not None
        self._scale = conv.source_scale(edges.out_degree)
        self._own = (rows if projected is None else projected).to(device)
        self._total = torch.zeros(len(nodes), self._own.shape[1], dtype=rows.dtype, device=device)
        num_inner, num_halo = len(edges.in_degree), len(edges.out_degree) - len(edges.in_degree)
        self._elsewhere = torch.full((num_inner,), -1, dtype=torch.int32)
        own_place = torch.arange(num_inner, dtype=torch.int32)
        self._add(self._own, torch.cat((own_place, torch.full((num_halo,), -1, dtype=torch.int32))))

    def add(self, sources: Sources) -> None:
        """Add what came of other parts; of each edge from there at most once."""
        for vectors, projected in ((sources.unprojected, False), (sources.projected, True)):
            if not len(vectors.values):
                continue
            assert self._late or not projected
            values = vectors.values.to(self._device)
            if self._late and not projected:
                values = self._conv.project(as_matrix(values))
            self._add(values, torch.cat((self._elsewhere, vectors.halo.int())))
            self._add_sums(values, vectors)

    def inputs(self, place: slice = EVERYTHING) -> Inputs:
        """Of nodes[place], once everything is added."""
        conv, edges, nodes = self._conv, self._edges, self._nodes[place]
        in_degree = edges.in_degree[nodes]
        total = self._total[place]
        if (scale := conv.sum_scale(in_degree)) is not None:
            total = total * scale[:, None].to(self._device)
        if (scale := conv.own_scale(in_degree, edges.out_degree[nodes])) is not None:
            total = total + self._own[nodes.to(self._device)] * scale[:, None].to(self._device)
        own = self._rows[nodes].to(self._device) if conv.uses_own_row else None
        unprojected, projected = (total.new_zeros(len(total), 0), total) if self._late else (total, NOT_PROJECTED)
        return conv.inputs(own, unprojected, projected)

    def _add(self, values: Tensor, place: Tensor) -> None:
        """Add rows of values, [m, K], by edges; place: int32 [I + H] the row of each local id, -1 for none."""
        first = 0
        for chunk in self._edges.chunks(self._nodes):
            src, row_ptr = self._edges.in_edges_of(chunk)
            row = place.index_select(0, src)  # of int32, by far faster than []; and so is numpy's compress
            there = row >= 0
            kept = torch.cat((torch.zeros(1, dtype=torch.int32), there.cumsum(0, dtype=torch.int32)))
            row, src = (torch.from_numpy(np.compress(there.numpy(), each.numpy())) for each in (row, src))
            row, row_ptr = row.to(self._device), kept[row_ptr].to(self._device)
            weight = None if self._scale is None else self._scale.index_select(0, src).to(self._device)
            self._total[first : first + len(chunk)] += row_sums(values, row, row_ptr, weight)
            first += len(chunk)

    def _add_sums(self, values: Tensor, vectors: Vectors) -> None:
        place = torch.full((len(self._edges.in_degree),), -1)
        place[self._nodes] = torch.arange(len(self._nodes))
        target = place[vectors.sum_dst]
        wanted = target >= 0
        pieces = (torch.split(ends[wanted].to(self._device), SUMS_AT_ONCE) for ends in (target, vectors.sums))
        for target, sums in zip(*pieces, strict=True):
            self._total.index_add_(0, target, values[sums])
