"""The edges from one part into another: found among those of a part, and told to the owner of their sources.

I inner nodes, H halo nodes of a worker; of one ordered pair of parts: L rows (nodes of the sender with an edge into the
receiver), R targets (see retexo.exchange.plan), E edges between them.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from partitioning.directory.types import Partition
from retexo.arrays import ByteArray, IndexArray, IntArray, Mask, WeightArray, compact, counted, picked, pointers, taken
from retexo.exchange.coding.elias_fano import code_size, read_ascending, write_ascending

TRAIN_WAVE, INFER_WAVE = 0, 1
"""See retexo.exchange.plan."""


@dataclass(frozen=True, eq=False)
class Boundary:
    """The edges from one part into another, as both of them know them."""

    rows: IntArray
    """[L] ascending; to the sender its inner nodes, to the receiver its halo nodes."""
    targets: IntArray
    """[R] the receiver's inner nodes; the sender does not know them (-1), nor is a shared target a node."""
    required_layers: ByteArray
    """[R] see ExchangePlan.required_layers."""
    row_ptr: IntArray
    """[L + 1] row i has the edges row_ptr[i] ... row_ptr[i + 1] - 1, at least one."""
    target: IndexArray
    """int32 [E] in [0, R)."""
    weight: WeightArray | None = None
    """[E] NaN where the sender is not told it and sends the row; None in a graph without weights."""

    @property
    def source(self) -> IndexArray:
        """int32 [E] in [0, L); made anew."""
        return np.repeat(np.arange(len(self.rows), dtype=np.int32), np.diff(self.row_ptr))

    def in_wave(self, layer: int, wave: int, num_layers: int) -> Mask:
        """Whether an edge counts in a wave of a layer, bool [E]."""
        return taken(self.targets_in_wave(layer, wave, num_layers), self.target)

    def targets_in_wave(self, layer: int, wave: int, num_layers: int) -> Mask:
        """Whether a target, and so each of its edges, counts, bool [R]."""
        first, last = (num_layers + 1, num_layers + 1) if wave == TRAIN_WAVE else (layer + 1, num_layers)
        return (self.required_layers >= first) & (self.required_layers <= last)


def incoming_boundaries(partition: Partition, required_layers: ByteArray, partial_sums: bool) -> list[Boundary]:
    """The required edges from each peer, sorted by row, then target."""
    row_ptr, dst, weight = (_edges_by_halo if partial_sums else _layers_by_halo)(partition, required_layers)
    first_halo = np.searchsorted(partition.halo_owner.numpy(), np.arange(partition.num_parts + 1))
    boundaries = []
    for first, end in pairwise(first_halo):
        edges = slice(row_ptr[first], row_ptr[end])
        rows, own_row_ptr = _with_edge(np.diff(row_ptr[first : end + 1]))
        targets, target = compact(dst[edges])
        shared = np.full(len(targets), -1), targets.astype(np.uint8)
        ids, layers = (targets, required_layers[targets]) if partial_sums else shared
        boundaries.append(Boundary(rows + first, ids, layers, own_row_ptr, target, picked(weight, edges)))
    return boundaries


_ByHalo = tuple[IndexArray, IndexArray, WeightArray | None]
"""Where the edges of each halo node begin, [H + 1]; the targets, ascending for each node, and weights of edges, [E]."""


def _edges_by_halo(partition: Partition, required_layers: ByteArray) -> _ByHalo:
    """All required edges from halo nodes, to inner nodes."""
    src, dst = partition.src.numpy(), partition.dst.numpy()
    required = (src >= partition.num_inner) & taken(required_layers > 0, dst)
    halo, dst = np.compress(required, src) - partition.num_inner, np.compress(required, dst)
    weight = picked(None if partition.edge_weight is None else partition.edge_weight.numpy(), required)
    if (dst[1:] < dst[:-1]).any():  # in a directory they ascend
        order = np.argsort(dst, kind="stable")
        halo, dst, weight = halo[order], dst[order], picked(weight, order)
    # A transposed matrix is one sort in linear time, of all peers at once: halo nodes are in the order of their owners.
    values = np.ones(len(dst), np.int8) if weight is None else weight
    by_target = values, halo, pointers(counted(dst, partition.num_inner))
    by_halo = csr_array(by_target, shape=(partition.num_inner, partition.num_halo)).tocsc()
    return by_halo.indptr, by_halo.indices, None if weight is None else by_halo.data


def _layers_by_halo(partition: Partition, required_layers: ByteArray) -> _ByHalo:
    """For how many layers each halo node is required, as targets that destinations share."""
    src, required = partition.src.numpy(), taken(required_layers, partition.dst.numpy())
    cut = src >= partition.num_inner
    found = np.zeros((partition.num_halo, int(required_layers.max(initial=0)) + 1), bool)
    found[np.compress(cut, src) - partition.num_inner, np.compress(cut, required)] = True
    found[:, 0] = False
    halo, layers = np.nonzero(found)
    return pointers(counted(halo, partition.num_halo)), layers, None


def _with_edge(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Of rows with so many edges those that have any, [L], and where the edges of each begin, [L + 1]."""
    rows = np.flatnonzero(counts)
    return rows, pointers(counts[rows])


def _row_and_target(key: IntArray, num_targets: int) -> tuple[IndexArray, IndexArray]:
    """int32 row and target of each number row * num_targets + target."""
    number = key // max(num_targets, 1)
    row = number.astype(np.int32)
    number *= num_targets
    return row, np.subtract(key, number, out=number).astype(np.int32)


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
        key = np.repeat(halo_index[boundary.rows] * self.num_targets, np.diff(boundary.row_ptr)) + boundary.target
        bits = boundary.required_layers[:, None] >> np.arange(self._planes, dtype=np.uint8) & 1
        code = write_ascending(key, self._universe), np.packbits(bits, bitorder="little")
        return torch.from_numpy(np.concatenate(code))

    def read(self, code: Tensor) -> Boundary:
        """The boundary as the owner sees it. Raises ValueError for an invalid code."""
        edges = code_size(self.num_edges, self._universe)
        key = read_ascending(code[:edges].numpy(), self.num_edges, self._universe)
        node, target = _row_and_target(key, self.num_targets)
        rows, row_ptr = _with_edge(counted(node))
        bits = np.unpackbits(code[edges:].numpy(), count=self.num_targets * self._planes, bitorder="little")
        planes = bits.reshape(-1, self._planes) << np.arange(self._planes, dtype=np.uint8)
        required_layers = planes.sum(axis=1, dtype=np.uint8)
        return Boundary(rows, np.full(self.num_targets, -1), required_layers, row_ptr, target)
