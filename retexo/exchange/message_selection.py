"""Selection of the rows and partial sums to send across a boundary, and of the message format.

I inner nodes, F input width, D width after the layer's weights. For one ordered pair of
partitions and the edges to serve: L rows, R targets, E edges.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from retexo.arrays import (
    Int32Array,
    IntArray,
    Mask,
    WeightArray,
    ids_to_mask,
    take,
    take_weights,
)
from retexo.exchange.coding.columns import write_exponents
from retexo.exchange.coding.rows import Rows, encode, row_sizes
from retexo.exchange.cover import acceptable_ratio, minimum_cover
from retexo.exchange.local_rows import MAX_CHUNK_VALUES, PROJECTED, SPARSE, LocalRows, MessageFormat

Piece = tuple[IntArray, IntArray]
"""Indices into the rows of a Selection, and indices into its partial sums."""


@dataclass(frozen=True, eq=False)
class CutEdges:
    """Edges from a sender's rows into a receiver's targets, without those of rows held there."""

    nodes: Int32Array
    """[L] the inner node of each row."""
    source: Int32Array
    """[E] in [0, L)."""
    target: Int32Array
    """[E] in [0, R), ascending."""
    num_targets: int
    """R"""
    has_edge: Mask
    """[L] whether each row has an edge, be it one that `keep_edges` has left out."""
    weight: WeightArray | None = None
    """[E] see Boundary.weight."""

    def keep_edges(self, kept: Mask) -> Self:
        """Return only the edges in `kept`, bool [E]. Rows and targets keep their indices."""
        # np.compress takes a quarter of the time of indexing
        source, target = (np.compress(kept, ends) for ends in (self.source, self.target))
        return replace(self, source=source, target=target, weight=take_weights(self.weight, kept))


@dataclass(frozen=True, eq=False)
class Selection:
    """The rows and partial sums to send across a boundary, and their format."""

    format: MessageFormat
    rows: Mask
    """[L] rows that are sent."""
    sums: Mask
    """[R] targets that get a partial sum."""
    sum_sizes: IntArray | None = None
    """[R] bytes of each partial sum; None if rows are sent, too, which shorten the sums."""
    lower_bound: int = 0
    """Minimum number of vectors that any selection for these edges needs."""
    equal_sizes: bool = False
    """Whether all vectors had the same length; if so, the selection holds for any length."""

    @classmethod
    def of_rows(cls, message_format: MessageFormat, rows: Mask, num_targets: int) -> Self:
        """Return a selection of some rows, bool [L], and no partial sums."""
        return cls(message_format, rows, np.zeros(num_targets, bool))

    def pieces(self, count: int) -> list[Piece]:
        """Split the vectors, rows first, into `count` pieces of about equal length."""
        rows, sums = np.flatnonzero(self.rows), np.flatnonzero(self.sums)
        bounds = _piece_bounds(len(rows) + len(sums), count)
        ends = zip(
            np.minimum(bounds, len(rows)),
            np.maximum(np.subtract(bounds, len(rows)), 0),
            strict=True,
        )
        return [(rows[a:b], sums[c:d]) for (a, c), (b, d) in pairwise(ends)]


def _piece_bounds(total: int, count: int) -> list[int]:
    """Return the first vector of each of `count` pieces, and the end of the last."""
    return [-(-total * number // count) for number in range(count + 1)]


@dataclass(frozen=True, eq=False)
class VectorBound:
    """Lower bound on the number of vectors that one layer's boundary needs.

    Later layers start from it.
    """

    rows: Mask
    """bool: rows of the boundary that have an edge to serve."""
    targets: Mask
    """bool: targets of the boundary."""
    selection: Selection
    """The selection for these edges, with its lower bound."""

    def reusable_selection(self, rows: Mask, targets: Mask) -> Selection | None:
        """Return the selection if it applies between these rows and targets, else None."""
        same = np.array_equal(rows, self.rows) and np.array_equal(targets, self.targets)
        return self.selection if same and self.selection.equal_sizes else None

    def bound_for(self, rows: Mask, targets: Mask) -> int:
        """Return a lower bound for all edges between other rows and targets.

        Each row or target that is missing there lowers the bound by at most one vector.
        """
        return (
            self.selection.lower_bound
            - int((self.rows & ~rows).sum())
            - int((self.targets & ~targets).sum())
        )


def select_vectors(
    local: LocalRows,
    edges: CutEdges,
    *,
    partial_sums: bool,
    projected: bool,
    min_vectors: int = 0,
    previous: Selection | None = None,
) -> Selection:
    """Select the format, rows and partial sums that take the fewest bytes for the given edges.

    With partial sums, rows with an edge of unknown weight (NaN) are always sent.

    Args:
        local: the sender's rows.
        edges: the edges to serve.
        partial_sums: whether partial sums may be sent.
        projected: whether the receiver accepts rows after the weights.
        min_vectors: a known lower bound on the number of vectors.
        previous: an earlier selection for the same edges, made for vectors of equal size; it is
            kept where the format still has one size. None to select anew.
    """
    forced = np.zeros(len(edges.nodes), bool)
    if partial_sums and edges.weight is not None:
        forced = ids_to_mask(edges.source[np.isnan(edges.weight)], len(edges.nodes))
        edges = edges.keep_edges(~take(forced, edges.source))
        min_vectors = min_vectors if not forced.any() else 0
    candidates = _candidate_formats(local, edges, partial_sums, projected)
    if not partial_sums:
        shortest = min(candidates, key=lambda candidate: int(candidate.row_sizes.sum()))
        return Selection.of_rows(shortest.format, edges.has_edge, edges.num_targets)
    if previous is not None and len(candidates) == 1 and candidates[0].size:
        return replace(
            previous,
            format=candidates[0].format,
            sum_sizes=_sum_sizes_without_rows(candidates[0], previous.rows),
        )
    ends = edges.source, edges.target
    covers = [
        minimum_cover(
            *ends, candidate.row_sizes, candidate.sum_sizes, at_least=min_vectors * candidate.size
        )
        for candidate in candidates
    ]
    totals = [
        cover.weight + candidate.row_sizes[forced].sum()
        for candidate, cover in zip(candidates, covers, strict=True)
    ]
    best = int(np.argmin(totals))
    bounds = [
        -(-cover.lower_bound // candidate.size)
        for candidate, cover in zip(candidates, covers, strict=True)
        if candidate.size
    ]
    chosen, rows = candidates[best], covers[best].left_mask | forced
    sum_sizes, of_one_size = (
        _sum_sizes_without_rows(chosen, rows),
        len(candidates) == 1 and bool(chosen.size),
    )
    return Selection(
        chosen.format, rows, covers[best].right_mask, sum_sizes, max(bounds, default=0), of_one_size
    )


@dataclass(frozen=True, eq=False)
class _FormatSizes:
    """Bytes of each row, int64 [L], and of each target's whole sum, int64 [R], in one format.

    0 for rows and targets without an edge.
    """

    format: MessageFormat
    row_sizes: IntArray
    sum_sizes: IntArray
    size: int = 0
    """Bytes of one vector if all have the same size, else 0."""

    def is_dominated(self, other: "_FormatSizes") -> bool:
        """Return whether the other format is never longer.

        Of equally long formats the one with the lower `MessageFormat.rank` is the better.
        """
        pairs = (self.row_sizes, other.row_sizes), (self.sum_sizes, other.sum_sizes)
        if any((own < others).any() for own, others in pairs):
            return False
        return (
            any((own > others).any() for own, others in pairs)
            or other.format.rank < self.format.rank
        )


def _sum_sizes_without_rows(chosen: _FormatSizes, rows: Mask) -> IntArray | None:
    """Return the bytes of each target's sum if no rows are sent beside the sums.

    Returns None if some are.
    """
    return None if rows.any() else chosen.sum_sizes


def _candidate_formats(
    local: LocalRows, edges: CutEdges, partial_sums: bool, projected: bool
) -> list[_FormatSizes]:
    """Return the sizes of dense, projected (if allowed) and sparse rows.

    Formats that are never the shortest are left out. See select_vectors.
    """
    targets = ids_to_mask(edges.target, edges.num_targets)

    def dense_format(message_format: MessageFormat) -> _FormatSizes:
        """Return the sizes in a dense format."""
        size = local.dense_size(projected=message_format.projected)
        return _FormatSizes(message_format, edges.has_edge * size, targets * size, size)

    candidates = [dense_format(local.unprojected_format(sparse=False))]
    if projected:
        candidates.append(dense_format(PROJECTED))
    row_sizes = local.sparse_sizes[edges.nodes] * edges.has_edge
    shortest = np.minimum(candidates[0].row_sizes, candidates[-1].row_sizes)
    saved = int(np.maximum(shortest - row_sizes, 0).sum())
    # Sums have about as few zeros as their rows: sparse sums pay off only if sparse rows do.
    if saved > (acceptable_ratio(len(edges.source)) - 1) * int(shortest.sum()):
        sum_sizes = candidates[0].sum_sizes
        if partial_sums:
            sum_sizes = _sparse_sum_sizes(local, edges) * targets
        candidates.append(_FormatSizes(local.unprojected_format(sparse=True), row_sizes, sum_sizes))
    return [
        candidate
        for candidate in candidates
        if not any(candidate.is_dominated(other) for other in candidates if other is not candidate)
    ]


def _sparse_sum_sizes(local: LocalRows, edges: CutEdges) -> IntArray:
    """Return the bytes of each target's whole sum in the sparse encoding, int64 [R], in chunks."""
    summing = local.sum_matrix(
        take(edges.nodes, edges.source), edges.target, edges.num_targets, edges.weight
    )
    step = max(1, MAX_CHUNK_VALUES // max(1, local.rows.shape[1]))
    sizes = [np.zeros(0, dtype=np.int64)]
    for first in range(0, edges.num_targets, step):
        sums = local.vectors(edges.nodes[:0], summing[first : first + step], projected=False)
        sizes.append(row_sizes(_on_host(sums), SPARSE.row_format(local.precision)))
    return np.concatenate(sizes)


@dataclass(frozen=True, eq=False)
class MessageVectors:
    """Vectors of a message: rows, then partial sums of the other rows."""

    local: LocalRows
    format: MessageFormat
    nodes: Int32Array
    """[k] inner nodes whose rows are sent."""
    sum_matrix: sp.csr_array
    """[s, I] see LocalRows.sum_matrix."""
    sum_sizes: IntArray | None
    """[s] bytes of each sum, or None if unknown."""

    @classmethod
    def from_selection(cls, local: LocalRows, selection: Selection, edges: CutEdges) -> Self:
        """Collect the selected rows and the edges of the selected sums."""
        target = edges.target
        if selection.rows.any() or not selection.sums.all():  # otherwise every edge is summed
            kept = take(selection.sums, edges.target) & ~take(selection.rows, edges.source)
            edges = edges.keep_edges(kept)
            target = take(np.cumsum(selection.sums, dtype=np.int32) - 1, edges.target)
        sources = take(edges.nodes, edges.source)
        summing = local.sum_matrix(sources, target, int(selection.sums.sum()), edges.weight)
        sizes = None if selection.sum_sizes is None else selection.sum_sizes[selection.sums]
        return cls(local, selection.format, edges.nodes[selection.rows], summing, sizes)

    def pieces(self, count: int) -> list[range]:
        """Split the vectors into `count` pieces, as Selection.pieces does."""
        return [
            range(*both)
            for both in pairwise(_piece_bounds(len(self.nodes) + self.sum_matrix.shape[0], count))
        ]

    def size(self, piece: range) -> int:
        """Return the bytes of a piece. Sparse sums of unknown size are computed for it."""
        return self._size_of_vectors(piece) + self.num_exponents * bool(piece)

    @property
    def num_exponents(self) -> int:
        """Number of exponents that a piece begins with, a byte each."""
        return self.local.rows.shape[1] if self.format.scaled else 0

    def _size_of_vectors(self, piece: range) -> int:
        """Return the bytes of the vectors of a piece, without exponents."""
        if self.sum_sizes is not None:  # then there are no rows
            return int(self.sum_sizes[piece.start : piece.stop].sum())
        if self.format.sparse:
            rows = self.nodes[piece.start : piece.stop]
            sums = self._encode(piece[len(rows) :])
            return int(self.local.sparse_sizes[rows].sum()) + len(sums)
        return len(piece) * self.local.dense_size(projected=self.format.projected)

    def write(self, piece: range) -> Tensor:
        """Encode a piece as uint8 [B]."""
        exponents = self.local.exponents if piece and self.format.scaled else None
        block = self._encode(piece)
        return block if exponents is None else write_exponents(exponents, block)

    def _encode(self, piece: range) -> Tensor:
        """Encode the vectors of a piece, without exponents, as uint8."""
        if not piece:
            return torch.empty(0, dtype=torch.uint8)
        first, end = (max(0, place - len(self.nodes)) for place in (piece.start, piece.stop))
        nodes = self.nodes[piece.start : piece.stop]
        vectors = self.local.vectors(nodes, self.sum_matrix[first:end], self.format.projected)
        vectors = _on_host(vectors) if self.format.sparse else vectors
        return encode(vectors, self.format.row_format(self.local.precision)).cpu()


def _on_host(rows: Rows) -> Rows:
    return rows.cpu() if isinstance(rows, Tensor) else rows
