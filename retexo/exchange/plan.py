"""Who needs which rows of whom: made once, before the first layer.

The boundary rows of a layer cross the network in two waves:

    TRAIN_WAVE    before the rounds: for the training and validation nodes, on which the rounds work
    INFER_WAVE    once the layer is frozen: for the other nodes that a later layer or the final test needs

Layer l of L needs its output at the labelled and test nodes, and at all nodes that these reach through the L - l - 1
layers after it; nothing is sent for other nodes. With a trained network there are no rounds: all goes in INFER_WAVE,
for the nodes with a label to compare with (evaluate) or for every node (predict).

A part holds the in-edges of its own nodes. So it tells each owner the edges that come from there, as ascending numbers
row * R + target. What a target is depends on what can be sent for it. Where an aggregator adds up, the owner may send a
partial sum for a destination: each destination is a target; in a graph with weights the owner is told those of the
edges that it may sum, where that is expected to save more than it takes. Where only rows are sent (attention, pooling,
exchange=plain) all destinations that are required by as many layers are one target.

W workers, I inner nodes, H halo nodes of a worker; of one ordered pair of parts: L rows (nodes of the sender with an
edge into the receiver), R targets, E edges between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Self

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from partitioning.directory.types import Partition
from retexo.arrays import (
    ByteArray,
    IndexArray,
    IntArray,
    Mask,
    WeightArray,
    compact,
    counted,
    occurring,
    picked,
    pointers,
    taken,
)
from retexo.comm.collectives import Communicator
from retexo.comm.traffic import SETUP
from retexo.errors import TrainingError
from retexo.exchange.coding.elias_fano import code_size, read_ascending, write_ascending
from retexo.exchange.coding.weights import read_weights, write_weights
from retexo.exchange.cover import minimum_cover

TRAIN_WAVE, INFER_WAVE = 0, 1
Use = Literal["train", "evaluate", "predict", "nothing"]


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


@dataclass(frozen=True, eq=False)
class ExchangePlan:
    """What this worker sends to each peer and receives from it, by rank."""

    outgoing: tuple[Boundary, ...]
    incoming: tuple[Boundary, ...]
    required_layers: Tensor
    """uint8 [I]: L + 1 for what the rounds of every layer need; n in 1 ... L for what only layers 0 ... n - 1 embed; 0
    for what nobody needs."""
    num_layers: int
    num_halo: int
    largest_part: int
    """Inner nodes of the largest part: nobody sends a peer more vectors in a wave."""
    partial_sums: bool
    """Whether partial sums may be sent."""
    all_halo_rows: bool
    """exchange=plain: every row of every halo node, dense, in one wave."""
    waves: tuple[int, ...]
    """Those in which something is sent."""

    def in_one_wave(self) -> Self:
        """What goes in both waves in INFER_WAVE alone."""
        if len(self.waves) == 1:
            return self

        def merged(boundary: Boundary) -> Boundary:
            return replace(boundary, required_layers=np.minimum(boundary.required_layers, self.num_layers))

        outgoing, incoming = (tuple(map(merged, each)) for each in (self.outgoing, self.incoming))
        return replace(self, outgoing=outgoing, incoming=incoming, waves=(INFER_WAVE,))


@dataclass(frozen=True)
class PlanOptions:
    """What the plan depends on besides the partition; the same on every worker."""

    num_layers: int
    part_sizes: tuple[int, ...]
    """Inner nodes by rank, of those that have rows."""
    all_nodes: bool
    """Whether every node of the graph is a training, validation or test node, so that all are needed anyway."""
    partial_sums: bool
    """Whether the aggregator adds up."""
    all_halo_rows: bool
    use: Use = "train"
    """train: two waves. evaluate: outputs of the nodes in a mask, predict: of all nodes; both in the wave INFER_WAVE.
    nothing: no row will be sent."""
    vector_bytes: tuple[int, int] = (256, 256)
    """Of a vector by wave, in all layers together, about: whether telling weights pays goes by that."""

    def for_targets(self, *, partial_sums: bool) -> Self:
        """The same for some nodes only (see make_plan), with partial sums or without."""
        return replace(self, use="evaluate", all_nodes=False, partial_sums=partial_sums)

    @property
    def waves(self) -> tuple[int, ...]:
        if self.all_halo_rows:
            return (TRAIN_WAVE,)
        return (TRAIN_WAVE, INFER_WAVE) if self.use == "train" else (INFER_WAVE,)


def make_plan(
    partition: Partition, options: PlanOptions, comm: Communicator, targets: Tensor | None = None
) -> ExchangePlan:
    """Agree with every other worker on the edges between the two: how many, then which.

    targets: bool [I] nodes whose output is computed, in place of those of options.use (one wave, INFER_WAVE).
    """
    return plan_of(partition, options, _required_layers(partition, options, comm, targets), comm)


def plan_of(partition: Partition, options: PlanOptions, required_layers: Tensor, comm: Communicator) -> ExchangePlan:
    """The same where it is known already by how many layers each node is required (see ExchangePlan)."""
    partial_sums = options.partial_sums and not options.all_halo_rows
    incoming = _incoming(partition, required_layers.numpy(), partial_sums)
    sizes = [torch.tensor([len(boundary.target), len(boundary.targets)]) for boundary in incoming]
    announced = [size.tolist() for size in comm.all_to_all(sizes, [2] * comm.world_size, SETUP)]
    requests = [
        BoundaryCode(len(boundary.target), len(boundary.targets), num_inner, options.num_layers).write(
            boundary, partition.halo_index.numpy()
        )
        for boundary, num_inner in zip(incoming, options.part_sizes, strict=True)
    ]
    num_rows = options.part_sizes[comm.rank]
    codes = [BoundaryCode(edges, targets, num_rows, options.num_layers) for edges, targets in announced]
    received = comm.all_to_all(requests, [code.size for code in codes], SETUP)
    outgoing = [code.read(request) for code, request in zip(codes, received, strict=True)]
    if partition.asked_for is not None:
        _check_asked_for(outgoing, partition.asked_for)
    if partial_sums and partition.edge_weight is not None:
        incoming, outgoing = _tell_weights(incoming, outgoing, options, comm)
    return ExchangePlan(
        outgoing=tuple(outgoing),
        incoming=tuple(incoming),
        required_layers=required_layers,
        num_layers=options.num_layers,
        num_halo=partition.num_halo,
        largest_part=max(options.part_sizes),
        partial_sums=partial_sums,
        all_halo_rows=options.all_halo_rows,
        waves=options.waves,
    )


def _check_asked_for(outgoing: Sequence[Boundary], asked_for: Sequence[Tensor]) -> None:
    """TrainingError where another site wants rows of nodes that it has not named at the start."""
    for peer, (boundary, named) in enumerate(zip(outgoing, asked_for, strict=True)):
        if not np.isin(boundary.rows, named.numpy()).all():
            raise TrainingError(f"rank {peer} wants rows of nodes that it did not ask for at the start; it gets none")


def _required_layers(partition: Partition, options: PlanOptions, comm: Communicator, targets: Tensor | None) -> Tensor:
    """ExchangePlan.required_layers."""
    last = options.num_layers
    if options.use == "nothing":
        return torch.zeros(partition.num_inner, dtype=torch.uint8)
    if options.all_halo_rows:
        return torch.full((partition.num_inner,), last + 1, dtype=torch.uint8)
    if targets is None and options.use == "predict":
        return torch.full((partition.num_inner,), last, dtype=torch.uint8)
    required_layers = (partition.test_mask if targets is None else targets).to(torch.uint8) * last
    if targets is None:
        required_layers[partition.train_mask | partition.val_mask] = last + 1 if options.use == "train" else last
    if targets is None and options.all_nodes:
        return required_layers
    for layer in range(last - 1, 0, -1):
        halo = require_sources(partition, required_layers, layer)
        for nodes in request_halo_nodes(partition, halo, options.part_sizes, comm):
            required_layers[nodes[required_layers[nodes] < layer]] = layer
    return required_layers


def require_sources(partition: Partition, required_layers: Tensor, layer: int) -> Tensor:
    """Mark what `layer` aggregates of this part as embedded by the layers before; the halo nodes it takes, bool [H].

    required_layers: uint8 [I], changed in place.
    """
    sources = torch.zeros(partition.num_inner + partition.num_halo, dtype=torch.bool)
    sources[partition.src[required_layers[partition.dst] > layer]] = True
    inner, halo = sources[: partition.num_inner], sources[partition.num_inner :]
    required_layers[inner & (required_layers < layer)] = layer
    return halo


def request_halo_nodes(
    partition: Partition, halo: Tensor, part_sizes: tuple[int, ...], comm: Communicator
) -> list[Tensor]:
    """Name halo nodes, bool [H], to their owners; by peer, the inner nodes int64 that it named here."""
    owner, index = partition.halo_owner[halo], partition.halo_index[halo].numpy()
    counts = torch.bincount(owner, minlength=comm.world_size)
    announced = comm.all_to_all(list(torch.split(counts, 1)), [1] * comm.world_size, SETUP)
    lists = np.split(index, np.cumsum(counts.numpy())[:-1])
    own = [(int(count), part_sizes[comm.rank]) for count in announced]
    return [torch.from_numpy(nodes) for nodes in exchange_ascending(lists, part_sizes, own, comm)]


def exchange_ascending(
    lists: Sequence[IntArray], limits: Sequence[int], announced: Sequence[tuple[int, int]], comm: Communicator
) -> list[IntArray]:
    """Send each peer ascending int64 numbers below a limit; by peer, those that it sent: announced are how many, and
    their limit."""
    codes = [torch.from_numpy(write_ascending(*each)) for each in zip(lists, limits, strict=True)]
    received = comm.all_to_all(codes, [code_size(*each) for each in announced], SETUP)
    return [read_ascending(code.numpy(), *each) for code, each in zip(received, announced, strict=True)]


def _incoming(partition: Partition, required_layers: ByteArray, partial_sums: bool) -> list[Boundary]:
    """The required edges from each peer, sorted by row, then target."""
    row_ptr, dst, weight = (edges_by_halo if partial_sums else _layers_by_halo)(partition, required_layers)
    first_halo = np.searchsorted(partition.halo_owner.numpy(), np.arange(partition.num_parts + 1))
    boundaries = []
    for first, end in pairwise(first_halo):
        counts, edges = np.diff(row_ptr[first : end + 1]), slice(row_ptr[first], row_ptr[end])
        rows = np.flatnonzero(counts)
        targets, target = compact(dst[edges])
        shared = np.full(len(targets), -1), targets.astype(np.uint8)
        ids, layers = (targets, required_layers[targets]) if partial_sums else shared
        boundaries.append(Boundary(rows + first, ids, layers, pointers(counts[rows]), target, picked(weight, edges)))
    return boundaries


_ByHalo = tuple[IndexArray, IndexArray, WeightArray | None]
"""Where the edges of each halo node begin, [H + 1]; the targets, ascending for each node, and weights of edges, [E]."""


def edges_by_halo(partition: Partition, required_layers: ByteArray) -> _ByHalo:
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


def _tell_weights(
    incoming: list[Boundary], outgoing: list[Boundary], options: PlanOptions, comm: Communicator
) -> tuple[list[Boundary], list[Boundary]]:
    """Send the owner of the sources the weights of the edges that it may sum; both boundaries with those that it has.

    A destination with one edge there is none to sum for.
    """
    codes = []
    for peer, boundary in enumerate(incoming):
        assert boundary.weight is not None
        told = _may_be_summed(boundary)
        codes.append(torch.from_numpy(write_weights(boundary.weight[told])))
        if len(codes[peer]) >= _saved_bytes(boundary, told, options):
            told[:], codes[peer] = False, codes[peer][:0]
        incoming[peer] = replace(boundary, weight=np.where(told, boundary.weight, np.float32(np.nan)))
    announced = comm.all_to_all([torch.tensor([len(code)]) for code in codes], [1] * comm.world_size, SETUP)
    received = comm.all_to_all(codes, [int(size) for size in announced], SETUP)
    for peer, (boundary, code) in enumerate(zip(outgoing, received, strict=True)):
        weight = np.full(len(boundary.target), np.nan, np.float32)
        if len(code):
            told = _may_be_summed(boundary)
            weight[told] = read_weights(code.numpy(), int(told.sum()))
        outgoing[peer] = replace(boundary, weight=weight)
    return incoming, outgoing


def _may_be_summed(boundary: Boundary) -> Mask:
    """Edges of a target with several, bool [E]."""
    return taken(counted(boundary.target) > 1, boundary.target)


def _saved_bytes(boundary: Boundary, told: Mask, options: PlanOptions) -> int:
    """What both waves of a layer cost without sums, less what they cost with those of the edges `told`."""
    saved, source, target = 0, boundary.source, boundary.target
    rows_held, held = np.zeros((2, len(boundary.rows)), bool)
    for wave in options.waves:
        needed = boundary.in_wave(0, wave, options.num_layers)
        left = needed & ~held[source]
        forced = occurring(source[left & ~told], len(held))
        left &= ~forced[source]
        ones = np.ones(len(held), np.int64), np.ones(len(boundary.targets), np.int64)
        cover = minimum_cover(source[left], target[left], *ones)
        rows = occurring(source[needed], len(held)) & ~rows_held
        saved += (int(rows.sum()) - int(forced.sum()) - cover.weight) * options.vector_bytes[wave]
        held |= forced | cover.left_mask
        rows_held |= rows
    return saved


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
        counts = counted(node)
        rows = np.flatnonzero(counts)
        bits = np.unpackbits(code[edges:].numpy(), count=self.num_targets * self._planes, bitorder="little")
        planes = bits.reshape(-1, self._planes) << np.arange(self._planes, dtype=np.uint8)
        required_layers = planes.sum(axis=1, dtype=np.uint8)
        return Boundary(rows, np.full(self.num_targets, -1), required_layers, pointers(counts[rows]), target)


def global_out_degree(partition: Partition, part_sizes: tuple[int, ...], comm: Communicator) -> Tensor:
    """Out-degrees in the whole graph, [I + H] as in_degree, for a directory that does not store them.

    An edge is held by the part of its destination. So each part counts the edges that leave its halo nodes, the owner
    adds up the counts and sends the sums back.
    """
    counted = partition.sum_at(partition.src, partition.num_inner + partition.num_halo)
    dtype = torch.int32 if partition.edge_weight is None else torch.float64
    inner, halo = counted[: partition.num_inner], counted[partition.num_inner :]
    everything = torch.ones(partition.num_halo, dtype=torch.bool)
    named = request_halo_nodes(partition, everything, part_sizes, comm)
    sizes = torch.bincount(partition.halo_owner, minlength=comm.world_size).tolist()
    reports = comm.all_to_all(list(torch.split(halo.to(dtype), sizes)), [len(nodes) for nodes in named], SETUP)
    for nodes, report in zip(named, reports, strict=True):
        inner[nodes] += report
    answers = comm.all_to_all([inner[nodes].to(dtype) for nodes in named], sizes, SETUP)
    return torch.cat((inner, *answers))
