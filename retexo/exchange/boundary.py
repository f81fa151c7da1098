"""The edges from one part into another: found among those of a part, and told to the owner of their sources.

I inner nodes, H halo nodes of a worker; of one ordered pair of parts: L rows (nodes of the sender with an edge into the
receiver), R targets (see retexo.exchange.exchange_plan), E edges between them.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.directory.partition import Partition
from partitioning.directory.sorted_rows import runs
from partitioning.thread_pool import AT_LOCK, in_blocks, in_threads
from retexo.arrays import (
    BLOCK_SIZE,
    ByteArray,
    IndexArray,
    Int32Array,
    IntArray,
    Mask,
    WeightArray,
    counts_to_pointers,
    ids_to_mask,
    take,
    unique_inverse,
)
from retexo.exchange.coding.elias_fano import decode_sorted, encode_sorted, encoded_size

TRAIN_PHASE, INFER_PHASE = 0, 1
"""See retexo.exchange.exchange_plan."""


@dataclass(frozen=True, eq=False)
class Boundary:
    """The edges from one part into another, as both of them know them."""

    rows: IntArray
    """[L] ascending; to the sender its inner nodes, to the receiver its halo nodes."""
    targets: IntArray
    """[R] the receiver's inner nodes, ascending where they are required by as many layers; the sender does not know
    them (-1), nor is a shared target a node."""
    required_layers: ByteArray
    """[R] see ExchangePlan.required_layers; descending, so that what counts in a wave follows each other."""
    target_ptr: IntArray
    """[R + 1] target i has the edges target_ptr[i] ... target_ptr[i + 1] - 1, at least one."""
    source: IndexArray
    """int32 [E] in [0, L), ascending for each target."""
    weight: WeightArray | None = None
    """[E] NaN where the sender is not told it and sends the row; None in a graph without weights."""
    _source_masks: dict[tuple[int, int], Mask] = field(default_factory=dict)
    """What `rows_of` found, for the next layer."""

    @property
    def num_edges(self) -> IntArray:
        """Edges of each target, [R]."""
        return np.diff(self.target_ptr)

    @property
    def target(self) -> IndexArray:
        """int32 [E] in [0, R), ascending; made anew."""
        return np.repeat(np.arange(len(self.targets), dtype=np.int32), self.num_edges)

    def targets_in_phase(self, layer: int, phase: int, num_layers: int) -> slice:
        """Those that count in a wave of a layer, and so do all their edges."""
        first, last = (
            (num_layers + 1, num_layers + 1) if phase == TRAIN_PHASE else (layer + 1, num_layers)
        )
        return slice(
            int((self.required_layers > last).sum()), int((self.required_layers >= first).sum())
        )

    def edge_range(self, targets: slice) -> slice:
        """The edges of some targets."""
        return slice(int(self.target_ptr[targets.start]), int(self.target_ptr[targets.stop]))

    def source_mask(self, targets: slice) -> Mask:
        """Which rows have an edge into some targets, bool [L]; not to be changed."""
        key = targets.start, targets.stop
        if key not in self._source_masks:
            self._source_masks[key] = ids_to_mask(
                self.source[self.edge_range(targets)], len(self.rows)
            )
        return self._source_masks[key]


@dataclass(frozen=True, eq=False)
class EdgeSubset:
    """Some edges of a boundary, renumbered: only rows and targets that occur among them."""

    rows: IntArray
    """[L'] places among the boundary's rows, ascending; and targets likewise."""
    targets: IntArray
    """[R']"""
    source: Int32Array
    """[E'] in [0, L'); without the edges of rows that the receiver holds."""
    target: Int32Array
    """[E'] in [0, R'), ascending."""
    weight: WeightArray | None = None
    """[E'] as Boundary.weight."""

    @classmethod
    def empty(cls) -> "EdgeSubset":
        no_places, no_ends = np.zeros(0, np.int64), np.zeros(0, np.int32)
        return cls(no_places, no_places, no_ends, no_ends)

    def without_edges(self) -> "EdgeSubset":
        """Rows and targets alone, which both sides go by once it is known what is sent; edges are many more."""
        none = np.zeros(0, np.int32)
        return EdgeSubset(self.rows, self.targets, none, none)


def find_incoming_boundaries(
    partition: Partition, required_layers: ByteArray, partial_sums: bool
) -> list[Boundary]:
    """The required edges from each peer, sorted by target, then row."""
    first_halo = np.searchsorted(partition.halo_owner.numpy(), np.arange(partition.num_parts + 1))
    find = _find_required_edges if partial_sums else _find_shared_targets
    # The targets there may be: nodes, or needs that destinations share.
    layers = required_layers if partial_sums else np.arange(256, dtype=np.uint8)

    def of_peer(edges: _Edges, first: int) -> Boundary:
        halo, target, weight = edges
        rows, source = unique_inverse(halo)
        target_ptr = runs(target)
        targets = target[target_ptr[:-1]].astype(np.int64)
        ids = targets if partial_sums else np.full(len(targets), -1)
        return Boundary(rows + first, ids, layers[targets], target_ptr, source, weight)

    return in_threads(
        of_peer, find(partition, required_layers, first_halo), first_halo[:-1].tolist()
    )


_Edges = tuple[IndexArray, IndexArray, WeightArray | None]
"""Halo nodes counted from the first of their owner, and targets, in the order of a boundary; weights; all [E]."""


def _find_required_edges(
    partition: Partition, required_layers: ByteArray, first_halo: IntArray
) -> list[_Edges]:
    """The required edges from each peer, to inner nodes."""
    src, dst, num_inner = partition.src.numpy(), partition.dst.numpy(), partition.num_inner
    arrays = (
        [src, dst] if partition.edge_weight is None else [src, dst, partition.edge_weight.numpy()]
    )
    required, most = required_layers > 0, int(required_layers.max(initial=1))
    first_of_others, num_groups = (
        (num_inner + first_halo[1:-1]).astype(np.int32),
        partition.num_parts * most,
    )
    of_group = np.min_scalar_type(num_groups)  # NumPy sorts those of two bytes by their digits

    def of_block(block: slice) -> tuple[list[NDArray[Any]], IntArray]:
        """What of each array belongs to them, by the owner of the source, then by how many layers require them; and how
        many there are of each group."""
        cut = src[block] >= num_inner
        cut &= take(required, dst[block])
        found = [np.compress(cut, each[block]) for each in arrays]
        group = np.searchsorted(first_of_others, found[0], "right").astype(of_group)
        group *= most
        group += most - take(required_layers, found[1])
        order = np.argsort(group, kind="stable")
        return [each[order] for each in found], np.bincount(group, minlength=num_groups)

    found = in_blocks(of_block, len(src), BLOCK_SIZE)
    counts = np.array([count for _, count in found], np.int64).reshape(len(found), num_groups)
    ends = (
        np.cumsum(counts.T).reshape(num_groups, len(found)).T
    )  # [blocks, groups]: a group's blocks follow each other
    edges = [np.empty(counts.sum(), each.dtype) for each in arrays]

    def put(pieces: list[NDArray[Any]], count: IntArray, ends: IntArray) -> None:
        for first, size, end in zip(counts_to_pointers(count), count, ends, strict=False):
            for every, piece in zip(edges, pieces, strict=True):
                every[end - size : end] = piece[first : first + size]

    in_threads(put, [pieces for pieces, _ in found], counts, ends, at_most=AT_LOCK)
    of_groups = counts_to_pointers(counts.sum(axis=0))

    def falls(block: slice) -> IntArray:
        """Edges below the one before."""
        source, target = (each[block.start : block.stop + 1] for each in edges[:2])
        fall = (target[1:] < target[:-1]) | (target[1:] == target[:-1]) & (source[1:] < source[:-1])
        place: IntArray = np.flatnonzero(fall)
        place += block.start + 1
        return place

    fallen = in_blocks(falls, len(edges[0]), BLOCK_SIZE)
    in_order = all(
        np.isin(each, of_groups).all() for each in fallen
    )  # as edges of a directory of ours are

    def of_peer(first: int, end: int, first_halo: int) -> _Edges:
        halo, target, *weights = (each[first:end] for each in edges)
        halo -= num_inner + first_halo
        if not in_order:
            order = np.lexsort((halo, target, most - required_layers[target]))
            halo, target, *weights = (each[order] for each in (halo, target, *weights))
        return halo, target, weights[0] if weights else None

    return in_threads(of_peer, of_groups[:-1:most], of_groups[most::most], first_halo)


def _find_shared_targets(
    partition: Partition, required_layers: ByteArray, first_halo: IntArray
) -> list[_Edges]:
    """For how many layers the halo nodes of each peer are required, as targets that destinations share."""
    src, required = partition.src.numpy(), take(required_layers, partition.dst.numpy())
    cut = src >= partition.num_inner
    found = np.zeros((partition.num_halo, int(required_layers.max(initial=0)) + 1), bool)
    found[np.compress(cut, src) - partition.num_inner, np.compress(cut, required)] = True
    found[:, 0] = False

    def of_peer(first: int, end: int) -> _Edges:
        below_most, halo = np.nonzero(found[first:end, ::-1].T)
        return halo, found.shape[1] - 1 - below_most, None

    return in_threads(of_peer, first_halo[:-1].tolist(), first_halo[1:].tolist())


def _split_keys(key: IntArray, num_nodes: int) -> tuple[IndexArray, IndexArray]:
    """int32 target and node of each number target * num_nodes + node."""
    target, node = np.empty((2, len(key)), np.int32)

    def split(block: slice) -> None:
        number = key[block] // max(num_nodes, 1)
        target[block], node[block] = number, key[block] - number * num_nodes

    in_blocks(split, len(key), BLOCK_SIZE)
    return target, node


@dataclass(frozen=True)
class BoundaryCode:
    """How the owner of its rows is told of a boundary: the edges as ascending numbers, then targets' required layers.

    The latter take as many bits as their largest, L + 1, has.
    """

    num_edges: int
    num_targets: int
    num_inner: int
    """Inner nodes of the owner."""
    num_layers: int

    @property
    def _universe(self) -> int:
        return self.num_inner * self.num_targets

    @property
    def _planes(self) -> int:
        return (self.num_layers + 1).bit_length()

    @property
    def size(self) -> int:
        """Bytes."""
        return (
            encoded_size(self.num_edges, self._universe)
            + (self.num_targets * self._planes + 7) // 8
        )

    def write(self, boundary: Boundary, halo_index: IntArray) -> Tensor:
        """uint8 [size]; halo_index int64 [H] are the halo nodes' numbers at their owners."""
        key = np.repeat(np.arange(self.num_targets) * self.num_inner, boundary.num_edges)
        number = halo_index[boundary.rows].astype(np.int32)

        def add(edges: slice) -> None:
            key[edges] += take(number, boundary.source[edges])

        in_blocks(add, self.num_edges, BLOCK_SIZE)
        bits = boundary.required_layers[:, None] >> np.arange(self._planes, dtype=np.uint8) & 1
        code = encode_sorted(key, self._universe), np.packbits(bits, bitorder="little")
        return torch.from_numpy(np.concatenate(code))

    def read(self, code: Tensor) -> Boundary:
        """The boundary as the owner sees it. Raises ValueError for an invalid code."""
        edges = encoded_size(self.num_edges, self._universe)
        key = decode_sorted(code[:edges].numpy(), self.num_edges, self._universe)
        target, node = _split_keys(key, self.num_inner)
        rows, source = unique_inverse(node)
        target_ptr = runs(target)
        if len(target_ptr) != self.num_targets + 1:
            raise ValueError("some of its targets have no edge")
        bits = np.unpackbits(
            code[edges:].numpy(), count=self.num_targets * self._planes, bitorder="little"
        )
        planes = bits.reshape(-1, self._planes) << np.arange(self._planes, dtype=np.uint8)
        required_layers = planes.sum(axis=1, dtype=np.uint8)
        if (required_layers[1:] > required_layers[:-1]).any():
            raise ValueError("the layers that require its targets do not descend")
        return Boundary(rows, np.full(self.num_targets, -1), required_layers, target_ptr, source)
