"""Who needs which rows of whom: made once, before the first layer.

The boundary rows of a layer cross the network in two waves:

    TRAIN_WAVE    before the rounds: for the training and validation nodes, on which the rounds work
    INFER_WAVE    once the layer is frozen: for the other nodes that a later layer or the final test needs

Layer l of L needs its output at the labelled and test nodes, and at all nodes that these reach through the L - l - 1
layers after it; nothing is sent for other nodes. With a trained network there are no rounds: all goes in INFER_WAVE,
for the nodes with a label to compare with (evaluate) or for every node (predict).

A part holds the in-edges of its own nodes, sorted by destination; all that is made of them keeps that order. So it
tells each owner the edges that come from there, as ascending numbers target * I + node, with the owner's I. What a
target is depends on what can be sent for it. Where an aggregator adds up, the owner may send a partial sum for a
destination: each destination is a target; in a graph with weights the owner is told those of the edges that it may sum,
where that is expected to save more than it takes. Where only rows are sent (attention, pooling, exchange=plain) all
destinations that are required by as many layers are one target.

W workers, I inner nodes, H halo nodes of a worker; of one ordered pair of parts: L rows (nodes of the sender with an
edge into the receiver), R targets, E edges between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from partitioning.directory.partition import Partition
from partitioning.thread_pool import in_threads
from retexo.arrays import IntArray, Mask, ids_to_mask
from retexo.comm.collectives import Communicator
from retexo.comm.received import check_announced, reading_from
from retexo.comm.traffic_meter import SETUP
from retexo.errors import TrainingError
from retexo.exchange.boundary import (
    INFER_PHASE,
    TRAIN_PHASE,
    Boundary,
    BoundaryCode,
    find_incoming_boundaries,
)
from retexo.exchange.coding.elias_fano import decode_sorted, encode_sorted, encoded_size
from retexo.exchange.coding.weights import decode_weights, encode_weights, max_encoded_size
from retexo.exchange.cover import minimum_cover
from retexo.exchange.message_selection import VectorBound

Use = Literal["train", "evaluate", "predict", "nothing"]


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
    phases: tuple[int, ...]
    """Those in which something is sent."""
    fewest: dict[tuple[int, int], VectorBound] = field(default_factory=dict)
    """What was shown while messages were chosen, by peer and wave."""

    def merge_phases(self) -> Self:
        """What goes in both waves in INFER_WAVE alone; nothing was shown of it yet, whatever this plan served."""
        if len(self.phases) == 1:
            return replace(self, fewest={})

        def merged(boundary: Boundary) -> Boundary:
            return replace(
                boundary, required_layers=np.minimum(boundary.required_layers, self.num_layers)
            )

        outgoing, incoming = (tuple(map(merged, each)) for each in (self.outgoing, self.incoming))
        return replace(self, outgoing=outgoing, incoming=incoming, phases=(INFER_PHASE,), fewest={})


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
    def phases(self) -> tuple[int, ...]:
        if self.all_halo_rows:
            return (TRAIN_PHASE,)
        return (TRAIN_PHASE, INFER_PHASE) if self.use == "train" else (INFER_PHASE,)


def make_plan(
    partition: Partition, options: PlanOptions, comm: Communicator, targets: Tensor | None = None
) -> ExchangePlan:
    """Agree with every other worker on the edges between the two: how many, then which.

    targets: bool [I] nodes whose output is computed, in place of those of options.use (one wave, INFER_WAVE).
    """
    return make_plan_from_required_layers(
        partition, options, _find_required_layers(partition, options, comm, targets), comm
    )


def make_plan_from_required_layers(
    partition: Partition, options: PlanOptions, required_layers: Tensor, comm: Communicator
) -> ExchangePlan:
    """The same where it is known already by how many layers each node is required (see ExchangePlan)."""
    partial_sums = options.partial_sums and not options.all_halo_rows
    incoming = find_incoming_boundaries(partition, required_layers.numpy(), partial_sums)
    sizes = [torch.tensor([len(boundary.source), len(boundary.targets)]) for boundary in incoming]
    announced = [size.tolist() for size in comm.all_to_all(sizes, [2] * comm.world_size, SETUP)]

    def request(boundary: Boundary, num_inner: int) -> Tensor:
        code = BoundaryCode(
            len(boundary.source), len(boundary.targets), num_inner, options.num_layers
        )
        return code.write(boundary, partition.halo_index.numpy())

    requests = in_threads(request, incoming, options.part_sizes)
    num_rows = options.part_sizes[comm.rank]
    for peer, (edges, targets) in enumerate(announced):
        check_announced(peer, "targets of edges", targets, edges)  # each has an edge
    codes = [
        BoundaryCode(edges, targets, num_rows, options.num_layers) for edges, targets in announced
    ]
    received = comm.all_to_all(requests, [code.size for code in codes], SETUP, consume=True)

    def read_request(peer: int, code: BoundaryCode, request: Tensor) -> Boundary:
        with reading_from(peer, "list of edges"):
            return code.read(request)

    outgoing = in_threads(read_request, range(comm.world_size), codes, received)
    if partition.asked_for is not None:
        _check_requested_rows(outgoing, partition.asked_for)
    if partial_sums and partition.edge_weight is not None:
        incoming, outgoing = _share_weights(incoming, outgoing, options, comm)
    return ExchangePlan(
        outgoing=tuple(outgoing),
        incoming=tuple(incoming),
        required_layers=required_layers,
        num_layers=options.num_layers,
        num_halo=partition.num_halo,
        largest_part=max(options.part_sizes),
        partial_sums=partial_sums,
        all_halo_rows=options.all_halo_rows,
        phases=options.phases,
    )


def _check_requested_rows(outgoing: Sequence[Boundary], asked_for: Sequence[Tensor]) -> None:
    """TrainingError where another site wants rows of nodes that it has not named at the start."""
    for peer, (boundary, named) in enumerate(zip(outgoing, asked_for, strict=True)):
        if not np.isin(boundary.rows, named.numpy()).all():
            raise TrainingError(
                f"rank {peer} wants rows of nodes that it did not ask for at the start; it gets none"
            )


def _find_required_layers(
    partition: Partition, options: PlanOptions, comm: Communicator, targets: Tensor | None
) -> Tensor:
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
        required_layers[partition.train_mask | partition.val_mask] = (
            last + 1 if options.use == "train" else last
        )
    if targets is None and options.all_nodes:
        return required_layers
    for layer in range(last - 1, 0, -1):
        halo = mark_required_sources(partition, required_layers, layer)
        for nodes in request_halo_nodes(partition, halo, options.part_sizes, comm):
            required_layers[nodes[required_layers[nodes] < layer]] = layer
    return required_layers


def mark_required_sources(partition: Partition, required_layers: Tensor, layer: int) -> Tensor:
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
    num_inner = part_sizes[comm.rank]
    own = [(int(count), num_inner) for count in announced]
    for peer, (count, _) in enumerate(own):
        check_announced(peer, "nodes", count, num_inner)
    return [
        torch.from_numpy(nodes) for nodes in exchange_sorted_lists(lists, part_sizes, own, comm)
    ]


def exchange_sorted_lists(
    lists: Sequence[IntArray],
    limits: Sequence[int],
    announced: Sequence[tuple[int, int]],
    comm: Communicator,
) -> list[IntArray]:
    """Send each peer ascending int64 numbers below a limit; by peer, those that it sent: announced are how many, and
    their limit."""
    codes = [torch.from_numpy(encode_sorted(*each)) for each in zip(lists, limits, strict=True)]
    received = comm.all_to_all(codes, [encoded_size(*each) for each in announced], SETUP)
    lists_here = []
    for peer, (code, each) in enumerate(zip(received, announced, strict=True)):
        with reading_from(peer, "list of nodes"):
            lists_here.append(decode_sorted(code.numpy(), *each))
    return lists_here


def _share_weights(
    incoming: list[Boundary], outgoing: list[Boundary], options: PlanOptions, comm: Communicator
) -> tuple[list[Boundary], list[Boundary]]:
    """Send the owner of the sources the weights of the edges that it may sum; both boundaries with those that it has.

    A destination with one edge there is none to sum for.
    """
    incoming, codes = _encode_shared_weights(incoming, options)
    sizes = [
        int(size)
        for size in comm.all_to_all(
            [torch.tensor([len(code)]) for code in codes], [1] * comm.world_size, SETUP
        )
    ]
    of_peers = [_summable_edges(boundary) for boundary in outgoing]
    for peer, (size, told) in enumerate(zip(sizes, of_peers, strict=True)):
        check_announced(peer, "bytes of weights", size, max_encoded_size(int(told.sum())))
    received = comm.all_to_all(codes, sizes, SETUP)
    for peer, (boundary, told, code) in enumerate(zip(outgoing, of_peers, received, strict=True)):
        weight = np.full(len(boundary.source), np.nan, np.float32)
        if len(code):
            with reading_from(peer, "list of weights"):
                weight[told] = decode_weights(code.numpy(), int(told.sum()))
        outgoing[peer] = replace(boundary, weight=weight)
    return incoming, outgoing


def _encode_shared_weights(
    incoming: list[Boundary], options: PlanOptions
) -> tuple[list[Boundary], list[Tensor]]:
    """The boundaries with the weights that their owners are told, and those weights as bytes; none where it costs more
    than it saves."""
    told_boundaries, codes = [], []
    for peer, boundary in enumerate(incoming):
        assert boundary.weight is not None
        told = _summable_edges(boundary)
        codes.append(torch.from_numpy(encode_weights(boundary.weight[told])))
        if len(codes[peer]) >= _bytes_saved_by_sums(boundary, told, options):
            told[:], codes[peer] = False, codes[peer][:0]
        weight = np.where(told, boundary.weight, np.float32(np.nan))
        told_boundaries.append(replace(boundary, weight=weight))
    return told_boundaries, codes


def _summable_edges(boundary: Boundary) -> Mask:
    """Edges of a target with several, bool [E]."""
    return np.repeat(boundary.num_edges > 1, boundary.num_edges)


def _bytes_saved_by_sums(boundary: Boundary, told: Mask, options: PlanOptions) -> int:
    """What both waves of a layer cost without sums, less what they cost with those of the edges `told`."""
    saved, all_targets = 0, boundary.target
    rows_held, held = np.zeros((2, len(boundary.rows)), bool)
    for phase in options.phases:
        targets = boundary.targets_in_phase(0, phase, options.num_layers)
        edges = boundary.edge_range(targets)
        source, target = boundary.source[edges], all_targets[edges]
        left = ~held[source]
        forced = ids_to_mask(source[left & ~told[edges]], len(held))
        left &= ~forced[source]
        ones = np.ones(len(held), np.int64), np.ones(len(boundary.targets), np.int64)
        cover = minimum_cover(source[left], target[left], *ones)
        rows = boundary.source_mask(targets) & ~rows_held
        saved += (int(rows.sum()) - int(forced.sum()) - cover.weight) * options.vector_bytes[phase]
        held |= forced | cover.left_mask
        rows_held |= rows
    return saved


def compute_global_out_degree(
    partition: Partition, part_sizes: tuple[int, ...], comm: Communicator
) -> Tensor:
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
    reports = comm.all_to_all(
        list(torch.split(halo.to(dtype), sizes)), [len(nodes) for nodes in named], SETUP
    )
    for nodes, report in zip(named, reports, strict=True):
        inner[nodes] += report
    answers = comm.all_to_all([inner[nodes].to(dtype) for nodes in named], sizes, SETUP)
    return torch.cat((inner, *answers))
