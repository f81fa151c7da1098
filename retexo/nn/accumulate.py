"""The aggregate of a linear convolution, accumulated while the rows of its in-edges arrive.

No row is copied, and received rows can be released once they are added: a worker that embeds its nodes never holds the
rows of all halo nodes. Either the layer's input is summed, or projected rows are, since A(HW) = (AH)W.

I inner nodes, H halo nodes, F input width, D width of a projected row; n nodes, K = D or F the width that is summed.
"""

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retexo.arrays import IntArray, repeated
from retexo.nn.block import HaloRows, InEdges, Sources
from retexo.nn.convolution import Inputs
from retexo.nn.linear import NOT_PROJECTED, LinearConvolution
from retexo.nn.matrix import as_matrix, row_sums

SUMS_AT_ONCE = 1 << 16
"""Partial sums that are added at a time; these are copied."""
SCANS = 2
"""Received tables for which all edges are looked at; for the others those from halo nodes are indexed."""
EVERYTHING = slice(None)


class Accumulator:
    """The inputs of a linear convolution at some inner nodes."""

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
            edges: all in-edges of the partition.
            nodes: int64 [n] ascending and distinct.
            rows: [I, F] on the host.
            projected: [I, D] the rows after conv.project, to sum those; None to sum the rows.
            device: where the sums are.
        """
        self._conv, self._edges, self._nodes, self._rows, self._device = conv, edges, nodes, rows, device
        self._projects = projected is not None
        self._scale = conv.source_scale(edges.out_degree)
        self._own = (rows if projected is None else projected).to(device)
        self._total = torch.zeros(len(nodes), self._own.shape[1], dtype=rows.dtype, device=device)
        num_inner, num_halo = len(edges.in_degree), len(edges.out_degree) - len(edges.in_degree)
        self._no_inner = torch.full((num_inner,), -1, dtype=torch.int32)
        no_halo = torch.full((num_halo,), -1, dtype=torch.int32)
        self._chunks, self._scans_left = edges.chunks(nodes), SCANS
        self._scan(self._own, torch.cat((torch.arange(num_inner, dtype=torch.int32), no_halo)))

    def add(self, sources: Sources) -> None:
        """Add what was received; an edge of a halo node may be covered once, over all calls."""
        for vectors, projected in ((sources.unprojected, False), (sources.projected, True)):
            if not len(vectors.values):
                continue
            assert self._projects or not projected
            values = vectors.values.to(self._device)
            if self._projects and not projected:
                values = self._conv.project(as_matrix(values))
            if len(vectors.sums) == len(values):
                pass  # no row goes along edges
            elif self._scans_left:
                self._scan(values, torch.cat((self._no_inner, vectors.halo.int())))
                self._scans_left -= 1
            else:
                self._add_rows(values, vectors.halo)
            self._add_sums(values, vectors)

    def inputs(self, chosen: slice = EVERYTHING) -> Inputs:
        """The inputs of nodes[chosen], once everything is added."""
        conv, edges, nodes = self._conv, self._edges, self._nodes[chosen]
        in_degree = edges.in_degree[nodes]
        total = self._total[chosen]
        if (scale := conv.destination_scale(in_degree)) is not None:
            total = total * scale[:, None].to(self._device)
        if (scale := conv.self_loop_scale(in_degree, edges.out_degree[nodes])) is not None:
            total = total + self._own[nodes.to(self._device)] * scale[:, None].to(self._device)
        own = self._rows[nodes].to(self._device) if conv.root_weight else None
        unprojected, projected = (total.new_zeros(len(total), 0), total) if self._projects else (total, NOT_PROJECTED)
        return conv.inputs(own, unprojected, projected)

    def _scan(self, values: Tensor, row_of: Tensor) -> None:
        """Add rows of values, [m, K], along edges; row_of: int32 [I + H] the row of each local id, -1 for none."""
        first = 0
        for chunk in self._chunks:
            edge, row_ptr = self._edges.in_edges(chunk)
            src = self._edges.src.index_select(0, edge)
            row = row_of.index_select(0, src)  # of int32, by far faster than []; and so is numpy's compress
            received = row >= 0
            kept = torch.cat((torch.zeros(1, dtype=torch.int32), received.cumsum(0, dtype=torch.int32)))
            numbers = (row, src) if self._edges.weight is None else (row, src, edge)
            row, *of_edge = (torch.from_numpy(np.compress(received.numpy(), each.numpy())) for each in numbers)
            self._total[first : first + len(chunk)] += self._row_sums(values, row, kept[row_ptr], *of_edge)
            first += len(chunk)

    def _add_rows(self, values: Tensor, halo: Tensor) -> None:
        """The same of halo nodes, by the index; halo: as HaloRows.halo. Edges keep their order, so sums their bits."""
        edges, row_ptr = self._edges, self._edges.row_ptr.numpy()
        index, begin = self._edges_by_halo
        chosen = np.flatnonzero(halo.numpy() >= 0)
        count = begin[chosen + 1] - begin[chosen]
        places = np.repeat(begin[chosen] - np.cumsum(count) + count, count) + np.arange(count.sum())
        edge = np.sort(index[places])
        ends = np.searchsorted(edge, [row_ptr[int(chunk[-1]) + 1] for chunk in self._chunks[:-1]])
        for part in filter(len, np.split(edge, ends)):
            place_of_edge = torch.from_numpy(part.astype(np.int64))
            src = edges.src.index_select(0, place_of_edge)
            target = torch.from_numpy(np.searchsorted(row_ptr, part, side="right") - 1)
            target, counts = torch.unique_consecutive(target, return_counts=True)
            ptr = torch.cat((torch.zeros(1, dtype=torch.int32), counts.cumsum(0, dtype=torch.int32)))
            row = halo.index_select(0, src - len(edges.in_degree)).int()
            place = torch.searchsorted(self._nodes, target).to(self._device)
            self._total.index_add_(0, place, self._row_sums(values, row, ptr, src, place_of_edge))

    @cached_property
    def _edges_by_halo(self) -> tuple[NDArray[np.uint32], IntArray]:
        """The numbers of the nodes' in-edges from halo nodes, a halo node's ascending, and where each begins."""
        edges, num_inner = self._edges, len(self._edges.in_degree)
        assert len(edges.src) < 1 << 32
        wanted = torch.zeros(num_inner, dtype=torch.bool)
        wanted[self._nodes] = True
        key = (repeated(wanted, edges.row_ptr.diff()) & (edges.src >= num_inner)).nonzero()[:, 0]
        halo = edges.src.index_select(0, key) - num_inner
        begin = np.cumsum(np.bincount(halo.numpy(), minlength=len(edges.out_degree) - num_inner))
        both = key.add_(halo, alpha=1 << 32).numpy()
        both.sort()  # by halo node, then edge; of their numbers in one the second is the lower half
        return both.view(np.uint32)[::2].copy(), np.concatenate(([0], begin))

    def _row_sums(
        self, values: Tensor, row: Tensor, row_ptr: Tensor, src: Tensor, edge: Tensor | None = None
    ) -> Tensor:
        """Sums of rows of values; row, src: int32 [E'] the row and the local id of each edge's source; edge: [E'] its
        place, which a graph with weights needs."""
        weight = None if self._scale is None else self._scale.index_select(0, src)
        if self._edges.weight is not None:
            assert edge is not None
            own = self._edges.weight.index_select(0, edge)
            weight = own if weight is None else weight * own
        weight = None if weight is None else weight.to(self._device)
        return row_sums(values, row.to(self._device), row_ptr.to(self._device), weight)

    def _add_sums(self, values: Tensor, vectors: HaloRows) -> None:
        place = torch.full((len(self._edges.in_degree),), -1)
        place[self._nodes] = torch.arange(len(self._nodes))
        target = place[vectors.sum_dst]
        wanted = target >= 0
        pieces = (torch.split(ends[wanted].to(self._device), SUMS_AT_ONCE) for ends in (target, vectors.sums))
        for target, sums in zip(*pieces, strict=True):
            self._total.index_add_(0, target, values[sums])
