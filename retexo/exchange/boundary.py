"""The edges from one partition into another: how the receiver finds them and tells the sender.

The sender owns the rows, the receiver the destinations of the edges. In a symmetric graph the
sender holds the reverse of each edge, so it is told only a digest and the layers that require each
target.

I inner nodes, H halo nodes of a worker. For one ordered pair of partitions: L rows (nodes of the
sender with an edge into the receiver), R targets (see retexo.exchange.exchange_plan), E edges.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from partitioning.directory.partition import LocalEdges
from partitioning.thread_pool import in_blocks, in_threads
from retexo.arrays import (
    BLOCK_SIZE,
    ByteArray,
    IndexArray,
    IntArray,
    Mask,
    WeightArray,
    csr_from_counts,
    ids_to_mask,
    runs,
    take,
    unique_inverse,
)
from retexo.exchange.coding.elias_fano import decode_sorted, encode_sorted, encoded_size

TRAIN_PHASE, INFER_PHASE = 0, 1
"""The two exchange phases of a layer, see retexo.exchange.exchange_plan."""


@dataclass(frozen=True, eq=False)
class Boundary:
    """The edges from one partition (the sender) into another (the receiver)."""

    rows: IntArray
    """[L] ascending: inner nodes for the sender, halo nodes for the receiver."""
    targets: IntArray
    """[R] the receiver's inner nodes, ascending among targets that as many layers require; -1 for
    the sender, which does not know them, and where several destinations share one target."""
    required_layers: ByteArray
    """[R] see ExchangePlan.required_layers. Descending: the targets of a phase are contiguous."""
    target_ptr: IntArray
    """[R + 1] target i has the edges target_ptr[i] to target_ptr[i + 1] - 1; at least one."""
    source: IndexArray
    """int32 [E] row of each edge, in [0, L), ascending for each target."""
    weight: WeightArray | None = None
    """[E] edge weights, NaN where the sender does not know the weight and must send the row. None
    for unweighted graphs."""
    _source_masks: dict[tuple[int, int], Mask] = field(default_factory=dict)
    """Cached results of `source_mask`, reused by the next layer."""

    @property
    def num_edges(self) -> IntArray:
        """Number of edges of each target, [R]."""
        return np.diff(self.target_ptr)

    @property
    def target(self) -> IndexArray:
        """Return the target of each edge, int32 [E] in [0, R), ascending.

        Computed on every access.
        """
        return np.repeat(np.arange(len(self.targets), dtype=np.int32), self.num_edges)

    def targets_in_phase(self, layer: int, phase: int, num_layers: int) -> slice:
        """Return the targets that a phase of a layer serves, with all of their edges."""
        first, last = (
            (num_layers + 1, num_layers + 1) if phase == TRAIN_PHASE else (layer + 1, num_layers)
        )
        return slice(
            int((self.required_layers > last).sum()), int((self.required_layers >= first).sum())
        )

    def edge_range(self, targets: slice) -> slice:
        """Return the edges of some targets."""
        return slice(int(self.target_ptr[targets.start]), int(self.target_ptr[targets.stop]))

    def source_mask(self, targets: slice) -> Mask:
        """Return which rows have an edge into some targets, bool [L]; cached, so read-only."""
        key = targets.start, targets.stop
        if key not in self._source_masks:
            self._source_masks[key] = ids_to_mask(
                self.source[self.edge_range(targets)], len(self.rows)
            )
        return self._source_masks[key]


@dataclass(frozen=True, eq=False)
class BoundaryPart:
    """Some rows and targets of a boundary."""

    rows: IntArray
    """[L'] indices into the boundary's rows, ascending."""
    targets: IntArray
    """[R'] indices into the boundary's targets, ascending."""


def find_incoming_boundaries(
    partition: LocalEdges, required_layers: ByteArray, partial_sums: bool
) -> list[Boundary]:
    """Find the required edges from each peer, by rank; none from the worker itself.

    They are sorted by required layers, descending, then target, then row. Nothing is sent.

    Args:
        partition: the edges into this worker's partition.
        required_layers: uint8 [I] see ExchangePlan.required_layers.
        partial_sums: True: every destination is a target. False: all destinations that the same
            number of layers requires share one target.
    """
    first_halo = np.searchsorted(partition.halo_owner.numpy(), np.arange(partition.num_parts + 1))
    find = _find_required_edges if partial_sums else _find_shared_targets
    # A target is a destination node, or a number of layers that destinations share.
    layers = required_layers if partial_sums else np.arange(256, dtype=np.uint8)

    def of_peer(edges: _Edges, first: int) -> Boundary:
        """Make the boundary with one peer from its edges."""
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
"""Halo node (counted from the sender's first), target and weight of each edge; [E] each."""


def _find_required_edges(
    partition: LocalEdges, required_layers: ByteArray, first_halo: IntArray
) -> list[_Edges]:
    """Return the required edges from each peer, with inner nodes as targets.

    They are grouped by sender and required layers, which keeps the order within a group.
    """
    src, dst, num_inner = partition.src.numpy(), partition.dst.numpy(), partition.num_inner
    arrays = (
        [src, dst] if partition.edge_weight is None else [src, dst, partition.edge_weight.numpy()]
    )
    most = int(required_layers.max(initial=1))
    num_groups = partition.num_parts * most
    cut = (src >= num_inner) & take(required_layers > 0, dst)
    first_of_others = (num_inner + first_halo[1:-1]).astype(np.int32)
    group = np.searchsorted(first_of_others, np.compress(cut, src), "right")
    # NumPy uses radix sort for 16-bit integers.
    group = group.astype(np.min_scalar_type(num_groups)) * most
    group += most - take(required_layers, np.compress(cut, dst))
    order = np.argsort(group, kind="stable")
    order = order.astype(np.min_scalar_type(len(order)))  # in half the memory
    group_ptr = np.searchsorted(group[order], np.arange(num_groups + 1))
    edges = [np.compress(cut, array)[order] for array in arrays]
    source, target = edges[:2]
    descends = (target[1:] < target[:-1]) | (target[1:] == target[:-1]) & (source[1:] < source[:-1])
    # Edges of a partition directory are sorted already.
    in_order = bool(np.isin(np.flatnonzero(descends) + 1, group_ptr).all())

    def of_peer(first: int, end: int, first_halo: int) -> _Edges:
        """Return the edges of one peer, sorted."""
        halo, target, *weights = (array[first:end] for array in edges)
        halo -= num_inner + first_halo
        if not in_order:
            order = np.lexsort((halo, target, most - required_layers[target]))
            halo, target, *weights = (array[order] for array in (halo, target, *weights))
        return halo, target, weights[0] if weights else None

    return in_threads(of_peer, group_ptr[:-1:most], group_ptr[most::most], first_halo)


def _find_shared_targets(
    partition: LocalEdges, required_layers: ByteArray, first_halo: IntArray
) -> list[_Edges]:
    """Return for each peer which halo nodes are required by how many layers.

    The targets are numbers of layers, which all destinations with that number share.
    """
    src, required = partition.src.numpy(), take(required_layers, partition.dst.numpy())
    cut = src >= partition.num_inner
    is_needed = np.zeros((partition.num_halo, int(required_layers.max(initial=0)) + 1), bool)
    is_needed[np.compress(cut, src) - partition.num_inner, np.compress(cut, required)] = True
    is_needed[:, 0] = False

    def of_peer(first: int, end: int) -> _Edges:
        """Return pairs of halo node and number of layers for one peer."""
        below_most, halo = np.nonzero(is_needed[first:end, ::-1].T)
        return halo, is_needed.shape[1] - 1 - below_most, None

    return in_threads(of_peer, first_halo[:-1].tolist(), first_halo[1:].tolist())


def digest_of_edges(boundary: Boundary, halo_index: IntArray, *, own_first: bool) -> int:
    """Return 64 bits (int64) of the edges between two partitions, in any order.

    Both partitions get the same number if each holds the reverse of every edge of the other.

    Args:
        boundary: all edges from the peer, as their receiver sees them.
        halo_index: int64 [H] the halo nodes' indices at their owners.
        own_first: whether this worker's rank is the lower one.
    """
    own = np.repeat(boundary.targets, boundary.num_edges).view(np.uint64)
    peers = take(halo_index[boundary.rows], boundary.source).view(np.uint64)
    first, second = (own, peers) if own_first else (peers, own)

    def sum_mixed(block: slice) -> int:
        """Add up the numbers of some edges, mixed by SplitMix64, modulo 2^64."""
        mixed = (first[block] << np.uint64(32)) | second[block]
        mixed += np.uint64(0x9E3779B97F4A7C15)  # else the edge of two nodes 0 would count nothing
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(factor)
        return int((mixed ^ (mixed >> np.uint64(31))).sum())

    total = sum(in_blocks(sum_mixed, len(own), BLOCK_SIZE)) % (1 << 64)
    return total - (total >> 63 << 64)


def reverse_boundary(boundary: Boundary, required_layers: ByteArray) -> Boundary:
    """Return the boundary that the peer requests in a symmetric graph, as its sender sees it.

    Args:
        boundary: all edges from the peer, as their receiver sees them.
        required_layers: uint8 [L] how many layers require each of its rows at the peer; 0: none.
    """
    ascending = np.argsort(boundary.targets)
    edges = csr_from_counts(
        np.ones(len(boundary.source), np.int8),
        boundary.source,
        boundary.num_edges,
        len(boundary.rows),
    )
    order = np.argsort(-required_layers.astype(np.int16), kind="stable")
    order = order[: np.count_nonzero(required_layers)]
    reverse = edges[ascending].T.tocsr()[order]
    rows, source = unique_inverse(reverse.indices)
    return Boundary(
        boundary.targets[ascending][rows],
        np.full(len(order), -1),
        required_layers[order],
        reverse.indptr.astype(np.int64),
        source,
    )


@dataclass(frozen=True)
class LayerCode:
    """Encoding of the layers that require each target, in as many bits as num_layers + 1 needs."""

    num_targets: int
    num_layers: int

    @property
    def _num_bits(self) -> int:
        """Bits of one target."""
        return (self.num_layers + 1).bit_length()

    @property
    def size(self) -> int:
        """Length of the code in bytes."""
        return (self.num_targets * self._num_bits + 7) // 8

    def write(self, required_layers: ByteArray) -> Tensor:
        """Encode uint8 [num_targets] as uint8 [size]."""
        bits = required_layers[:, None] >> np.arange(self._num_bits, dtype=np.uint8) & 1
        return torch.from_numpy(np.packbits(bits, bitorder="little"))

    def read(self, code: Tensor) -> ByteArray:
        """Decode uint8 [num_targets]; ValueError for more layers than there are."""
        bits = np.unpackbits(
            code.numpy(), count=self.num_targets * self._num_bits, bitorder="little"
        )
        planes = bits.reshape(-1, self._num_bits) << np.arange(self._num_bits, dtype=np.uint8)
        required_layers: ByteArray = planes.sum(axis=1, dtype=np.uint8)
        if required_layers.max(initial=0) > self.num_layers + 1:
            raise ValueError(f"a target is required by more than {self.num_layers + 1} layers")
        return required_layers


@dataclass(frozen=True)
class BoundaryCode:
    """Encoding of a boundary for a sender that does not know its edges.

    First the edges as sorted numbers target * num_inner + node in Elias-Fano code, then the
    required layers of each target (LayerCode).
    """

    num_edges: int
    num_targets: int
    num_inner: int
    """Number of the sender's inner nodes."""
    num_layers: int

    @property
    def _universe(self) -> int:
        """Exclusive upper bound of the sorted numbers."""
        return self.num_inner * self.num_targets

    @property
    def _layers(self) -> LayerCode:
        return LayerCode(self.num_targets, self.num_layers)

    @property
    def size(self) -> int:
        """Length of the code in bytes."""
        return encoded_size(self.num_edges, self._universe) + self._layers.size

    def write(self, boundary: Boundary, halo_index: IntArray) -> Tensor:
        """Encode a boundary as uint8 [size].

        Args:
            boundary: the boundary, as its receiver sees it.
            halo_index: int64 [H] the halo nodes' indices at their owners.
        """
        key = np.repeat(np.arange(self.num_targets) * self.num_inner, boundary.num_edges)
        key += take(halo_index[boundary.rows], boundary.source)
        edges = torch.from_numpy(encode_sorted(key, self._universe))
        return torch.cat((edges, self._layers.write(boundary.required_layers)))

    def read(self, code: Tensor) -> Boundary:
        """Decode a boundary, as its sender sees it.

        Raises ValueError for an invalid code.
        """
        edges = encoded_size(self.num_edges, self._universe)
        key = decode_sorted(code[:edges].numpy(), self.num_edges, self._universe)
        target, node = (ends.astype(np.int32) for ends in np.divmod(key, max(self.num_inner, 1)))
        rows, source = unique_inverse(node)
        target_ptr = runs(target)
        if len(target_ptr) != self.num_targets + 1:
            raise ValueError("some of its targets have no edge")
        required_layers = self._layers.read(code[edges:])
        if (required_layers[1:] > required_layers[:-1]).any():
            raise ValueError("the layers that require its targets do not descend")
        return Boundary(rows, np.full(self.num_targets, -1), required_layers, target_ptr, source)
