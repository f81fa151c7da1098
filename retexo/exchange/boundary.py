"""The edges from one part into another: found among those of a part, and told to the owner of their sources.

I inner nodes, H halo nodes of a worker; of one ordered pair of parts: L rows (nodes of the sender with an edge into the
receiver), R targets (see retexo.exchange.plan), E edges between them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.directory.types import Partition
from partitioning.threads import in_blocks, in_threads
from retexo.arrays import (
    ByteArray,
    IndexArray,
    Int32Array,
    IntArray,
    Mask,
    WeightArray,
    counted,
    occurring,
    places,
    pointers,
    taken,
)
from retexo.exchange.coding.elias_fano import code_size, read_in_blocks, write_ascending

TRAIN_WAVE, INFER_WAVE = 0, 1
"""See retexo.exchange.plan."""
BLOCK = 1 << 17
"""Edges that are looked at together: they stay in a core's cache."""


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
    _rows_of: dict[tuple[int, int], Mask] = field(default_factory=dict)
    """What `rows_of` found, for the next layer."""

    @property
    def num_sources(self) -> IntArray:
        """Edges of each target, [R]."""
        return np.diff(self.target_ptr)

    @property
    def target(self) -> IndexArray:
        """int32 [E] in [0, R), ascending; made anew."""
        return np.repeat(np.arange(len(self.targets), dtype=np.int32), self.num_sources)

    def targets_in_wave(self, layer: int, wave: int, num_layers: int) -> slice:
        """Those that count in a wave of a layer, and so do all their edges."""
        first, last = (num_layers + 1, num_layers + 1) if wave == TRAIN_WAVE else (layer + 1, num_layers)
        return slice(int((self.required_layers > last).sum()), int((self.required_layers >= first).sum()))

    def edges_of(self, targets: slice) -> slice:
        """The edges of some targets."""
        return slice(int(self.target_ptr[targets.start]), int(self.target_ptr[targets.stop]))

    def rows_of(self, targets: slice) -> Mask:
        """Which rows have an edge into some targets, bool [L]; not to be changed."""
        key = targets.start, targets.stop
        if key not in self._rows_of:
            self._rows_of[key] = occurring(self.source[self.edges_of(targets)], len(self.rows))
        return self._rows_of[key]


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


def incoming_boundaries(partition: Partition, required_layers: ByteArray, partial_sums: bool) -> list[Boundary]:
    """The required edges from each peer, sorted by target, then row."""
    first_halo = np.searchsorted(partition.halo_owner.numpy(), np.arange(partition.num_parts + 1))
    # The targets there may be, in their order: nodes, or needs that destinations share.
    if partial_sums:
        edges_of, layers = _required_edges(partition, required_layers, first_halo), required_layers
        order = np.argsort(~required_layers, kind="stable")
    else:
        edges_of, layers = _required_layers(partition, required_layers, first_halo), np.arange(256, dtype=np.uint8)
        order = layers[::-1].astype(np.int64)

    def of_peer(peer: int) -> Boundary:
        source, target, weight = edges_of(peer)
        source -= first_halo[peer].astype(source.dtype)
        rows = _numbered(source, occurring(source, int(first_halo[peer + 1] - first_halo[peer])))
        counts = counted(target, len(order))
        targets = order[counts[order] > 0]
        ids = targets if partial_sums else np.full(len(targets), -1)
        return Boundary(rows + first_halo[peer], ids, layers[targets], pointers(counts[targets]), source, weight)

    return in_threads(of_peer, range(partition.num_parts))


def _numbered(ids: IndexArray, occurs: Mask) -> IntArray:
    """The numbers that occur, ascending; `ids` become their places among these."""
    place = places(occurs)

    def number(block: slice) -> None:
        ids[block] = taken(place, ids[block])

    in_blocks(number, len(ids), BLOCK)
    return np.flatnonzero(occurs)


_Edges = tuple[IndexArray, IndexArray, WeightArray | None]
"""Halo nodes and targets, in the order of a boundary, and weights; all [E], and nobody else's."""


def _required_edges(partition: Partition, required_layers: ByteArray, first_halo: IntArray) -> Callable[[int], _Edges]:
    """Those from the nodes of a peer to inner nodes; all peers' are found at once, some edges at a time."""
    src, dst = partition.src.numpy(), partition.dst.numpy()
    weight = None if partition.edge_weight is None else partition.edge_weight.numpy()
    needs = [need for need in np.unique(required_layers)[::-1] if need] or [1]
    # An edge's group is the owner of its source, and by that its target's need.
    num_groups = len(needs) * partition.num_parts
    rank_of_need = np.zeros(256, np.int16 if num_groups < 1 << 15 else np.int32)
    rank_of_need[needs] = range(len(needs))
    ends_of_peers = first_halo[1:-1].astype(np.int32)

    def find(block: slice) -> list[list[NDArray[Any]]]:
        """Halo nodes, targets and weights, if there are any; each by group."""
        halo, target = src[block] - partition.num_inner, dst[block]
        need = taken(required_layers, target)
        chosen = (halo >= 0) & (need > 0)
        halo, target, need = (np.compress(chosen, each) for each in (halo, target, need))
        group = rank_of_need[need]
        group += len(needs) * np.searchsorted(ends_of_peers, halo, side="right").astype(group.dtype)
        order = np.argsort(group, kind="stable")  # of 16 bits a radix sort
        edges = [taken(halo, order), taken(target, order)]
        if weight is not None:
            edges.append(weight[block][chosen][order])
        ends = np.bincount(group, minlength=num_groups).cumsum()
        return [np.split(each, ends[:-1]) for each in edges]

    found = list(zip(*in_blocks(find, max(1, len(src)), BLOCK), strict=True))

    def edges_of(peer: int) -> _Edges:
        groups = range(peer * len(needs), (peer + 1) * len(needs))
        edges = [np.concatenate([block[group] for group in groups for block in each]) for each in found]
        sizes = [sum(len(block[group]) for block in found[0]) for group in groups]
        for first, end in pairwise(accumulate(sizes, initial=0)):
            _put_in_order([each[first:end] for each in edges])
        return edges[0], edges[1], edges[2] if weight is not None else None

    return edges_of


def _put_in_order(edges: list[NDArray[Any]]) -> None:
    """Sort halo nodes, targets and weights by target, then by halo node, in place; in a directory they ascend."""
    halo, target, *_ = edges

    def ascend(block: slice) -> bool:
        rows, targets = (ends[block.start : block.stop + 1] for ends in (halo, target))
        falls = (targets[1:] == targets[:-1]) & (rows[1:] < rows[:-1])
        return not (falls.any() or (targets[1:] < targets[:-1]).any())

    if not all(in_blocks(ascend, len(halo), BLOCK)):
        order = np.lexsort((halo, target))
        for each in edges:
            each[:] = each[order]


def _required_layers(partition: Partition, required_layers: ByteArray, first_halo: IntArray) -> Callable[[int], _Edges]:
    """For how many layers a peer's halo nodes are required, as targets that destinations share."""
    src, required = partition.src.numpy(), taken(required_layers, partition.dst.numpy())
    cut = src >= partition.num_inner
    found = np.zeros((partition.num_halo, int(required_layers.max(initial=0)) + 1), bool)
    found[np.compress(cut, src) - partition.num_inner, np.compress(cut, required)] = True
    found[:, 0] = False

    def edges_of(peer: int) -> _Edges:
        first, end = first_halo[peer : peer + 2]
        below_most, halo = np.nonzero(found[first:end, ::-1].T)
        return (halo + first).astype(np.int32), found.shape[1] - 1 - below_most, None

    return edges_of


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
        return code_size(self.num_edges, self._universe) + (self.num_targets * self._planes + 7) // 8

    def write(self, boundary: Boundary, halo_index: IntArray) -> Tensor:
        """uint8 [size]; halo_index int64 [H] are the halo nodes' numbers at their owners."""
        edges = _EdgeNumbers(boundary, halo_index[boundary.rows], self.num_inner)
        bits = boundary.required_layers[:, None] >> np.arange(self._planes, dtype=np.uint8) & 1
        code = write_ascending(edges, self._universe), np.packbits(bits, bitorder="little")
        return torch.from_numpy(np.concatenate(code))

    def read(self, code: Tensor) -> Boundary:
        """The boundary as the owner sees it. Raises ValueError for an invalid code."""
        of_edges = code_size(self.num_edges, self._universe)
        source, occurs = np.empty(self.num_edges, np.int32), np.zeros(self.num_inner, np.bool_)

        def use(edges: slice, number: IntArray) -> tuple[int, IntArray]:
            """The first target, and how many edges it and those after it have."""
            target = number // self.num_inner
            number -= target * self.num_inner
            source[edges] = number
            occurs[number] = True
            return int(target[0]), np.bincount(target - target[0])

        counts = np.zeros(self.num_targets, np.int64)
        for first, found in read_in_blocks(code[:of_edges].numpy(), self.num_edges, self._universe, use):
            counts[first : first + len(found)] += found
        rows = _numbered(source, occurs)
        bits = np.unpackbits(code[of_edges:].numpy(), count=self.num_targets * self._planes, bitorder="little")
        planes = bits.reshape(-1, self._planes) << np.arange(self._planes, dtype=np.uint8)
        required_layers = planes.sum(axis=1, dtype=np.uint8)
        if (required_layers[1:] > required_layers[:-1]).any():
            raise ValueError("the layers that require its targets do not descend")
        return Boundary(rows, np.full(self.num_targets, -1), required_layers, pointers(counts), source)


@dataclass(frozen=True, eq=False)
class _EdgeNumbers:
    """target * num_inner + source of each edge of a boundary, ascending."""

    boundary: Boundary
    node: IntArray
    """[L] the rows, as their owner numbers them."""
    num_inner: int

    def __len__(self) -> int:
        return len(self.boundary.source)

    def __getitem__(self, edges: slice) -> IntArray:
        ptr = self.boundary.target_ptr
        first, end = np.searchsorted(ptr, (edges.start, edges.stop - 1), side="right") - (1, 0)
        counts = np.diff(ptr[first : end + 1].clip(edges.start, edges.stop))
        number = np.repeat(np.arange(first, end) * self.num_inner, counts)
        number += taken(self.node, self.boundary.source[edges])
        return number
