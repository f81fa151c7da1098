"""The exchange plan: which rows and targets each pair of workers exchanges.

Made once, before layer 0.

The boundary rows of a layer cross the network in two phases:

    TRAIN_PHASE   before the rounds: for the training and validation nodes
    INFER_PHASE   after the rounds, with frozen weights: for the other nodes that a later layer
        or the final test needs

Layer l of L needs its output at the nodes in the split and at all nodes that these reach through
the L - l - 1 layers after it; nothing is sent for other nodes. Without training there are no
rounds: all rows go in INFER_PHASE, for the nodes in the split (evaluate) or for every node
(predict).

Of two partitions, the sender owns the rows, the receiver the destinations of the edges. Each
partition holds the in-edges of its own nodes, sorted by destination. So the receiver tells the
sender which edges leave the sender's nodes, as sorted numbers target * I + node; in a symmetric
graph the sender knows them, and is told only which targets are required. What a target is depends
on the aggregator. A linear one allows partial sums: each destination is a target, and in a weighted
graph the sender also gets edge weights, if sums save more bytes than the weights take. If only rows
can be sent (attention, pooling, exchange=plain), all destinations that the same number of layers
requires share one target.

W workers, I inner nodes, H halo nodes of a worker. For one ordered pair of partitions: L rows
(nodes of the sender with an edge into the receiver), R targets, E edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from partitioning.directory.partition import LocalEdges, PartNodes
from partitioning.thread_pool import in_threads
from retexo.arrays import ByteArray, IntArray, Mask, ids_to_mask
from retexo.comm.collectives import Communicator
from retexo.comm.received import check_announced, reading_from
from retexo.comm.traffic_meter import SETUP
from retexo.errors import TrainingError
from retexo.exchange.boundary import (
    INFER_PHASE,
    TRAIN_PHASE,
    Boundary,
    BoundaryCode,
    LayerCode,
    digest_of_edges,
    find_incoming_boundaries,
    reverse_boundary,
)
from retexo.exchange.coding.elias_fano import decode_sorted, encode_sorted, encoded_size
from retexo.exchange.coding.weights import decode_weights, encode_weights, max_encoded_size
from retexo.exchange.cover import fewest_vectors
from retexo.exchange.message_selection import VectorBound

Use = Literal["train", "evaluate", "predict", "nothing"]


@dataclass(frozen=True)
class PlanOptions:
    """What the plan depends on besides the partition. The same on every worker."""

    num_layers: int
    part_sizes: tuple[int, ...]
    """Inner nodes by rank."""
    all_nodes: bool
    """Whether every node is in the split (train, validation or test), so that all are required."""
    linear: bool
    """Whether sums of rows can stand for them: the aggregator is linear, and no other reads them.
    """
    all_halo_rows: bool
    """exchange=plain: every row of every halo node, dense, in one phase."""
    use: Use = "train"
    """train: two phases. evaluate: outputs of the nodes in the split; predict: of all nodes; both
    in INFER_PHASE only. nothing: no row is sent."""
    vector_bytes: tuple[int, int] = (256, 256)
    """Approximate bytes of one vector by phase, summed over all layers. Decides whether sending
    edge weights pays off."""

    def for_targets(self, *, linear: bool) -> Self:
        """Return options for a plan with given target nodes (see make_plan)."""
        return replace(self, use="evaluate", all_nodes=False, linear=linear)

    @property
    def partial_sums(self) -> bool:
        """Whether partial sums may be sent."""
        return self.linear and not self.all_halo_rows

    @property
    def largest_part(self) -> int:
        """Inner nodes of the largest partition: the most vectors of a peer and phase."""
        return max(self.part_sizes)

    @property
    def phases(self) -> tuple[int, ...]:
        """Return the phases in which rows are sent."""
        if self.all_halo_rows:
            return (TRAIN_PHASE,)
        return (TRAIN_PHASE, INFER_PHASE) if self.use == "train" else (INFER_PHASE,)


@dataclass(frozen=True, eq=False)
class ExchangePlan:
    """What this worker sends to each peer and receives from it, by rank."""

    options: PlanOptions
    outgoing: tuple[Boundary, ...]
    incoming: tuple[Boundary, ...]
    required_layers: Tensor
    """uint8 [I] how many layers require each node: L + 1 for nodes that the rounds of every layer
    use; n in 1 ... L for nodes that only layers 0 ... n - 1 embed; 0 for nodes that no layer
    requires."""
    num_halo: int
    known_bounds: dict[tuple[int, int], VectorBound] = field(default_factory=dict)
    """Lower bounds found while messages were selected, by peer and phase; reused by later layers.
    """

    def without_sums(self) -> Self:
        """Return a plan that sends rows only, although the aggregator is linear."""
        return replace(self, options=replace(self.options, linear=False))

    def merge_phases(self) -> Self:
        """Return a plan that sends the rows of both phases in INFER_PHASE, without known bounds."""
        if len(self.options.phases) == 1:
            return replace(self, known_bounds={})
        options = replace(self.options, use="evaluate")  # whose rows go in INFER_PHASE alone

        def merged(boundary: Boundary) -> Boundary:
            layers = np.minimum(boundary.required_layers, options.num_layers)
            return replace(boundary, required_layers=layers)

        outgoing, incoming = (
            tuple(map(merged, boundaries)) for boundaries in (self.outgoing, self.incoming)
        )
        return replace(self, options=options, outgoing=outgoing, incoming=incoming, known_bounds={})


def make_plan(
    partition: LocalEdges, options: PlanOptions, required_layers: Tensor, comm: Communicator
) -> ExchangePlan:
    """Make the exchange plan from known required layers (see ExchangePlan.required_layers).

    All workers call it: each requests its boundaries from the senders. TrainingError if a peer
    requests an invalid one.
    """
    incoming = find_incoming_boundaries(partition, required_layers.numpy(), options.partial_sums)
    outgoing = _request_boundaries(partition, incoming, options, required_layers.numpy(), comm)
    if partition.asked_for is not None:
        _check_requested_rows(outgoing, partition.asked_for)
    if options.partial_sums and partition.edge_weight is not None:
        incoming, outgoing = _share_weights(incoming, outgoing, options, comm)
    return ExchangePlan(
        options, tuple(outgoing), tuple(incoming), required_layers, partition.num_halo
    )


def _request_boundaries(
    partition: LocalEdges,
    incoming: list[Boundary],
    options: PlanOptions,
    required_layers: ByteArray,
    comm: Communicator,
) -> list[Boundary]:
    """Request the incoming boundaries of their senders; return those that the peers request here.

    Where both ends hold the reverse of each other's edges, the sender knows the edges, and is told
    only how many layers require each target. All workers call it.

    Sites always send the edges, whose targets have no ids: else the sender would learn which nodes
    of another site have labels.
    """
    halo_index, num_layers = partition.halo_index.numpy(), options.num_layers
    all_incoming, digests = incoming, [0] * comm.world_size
    may_know_targets = options.partial_sums and partition.asked_for is None
    if may_know_targets:
        if not required_layers.all():  # a peer may require edges into other nodes
            all_incoming = find_incoming_boundaries(partition, np.ones_like(required_layers), True)
        digests = in_threads(
            lambda peer, edges: digest_of_edges(edges, halo_index, own_first=comm.rank < peer),
            range(comm.world_size),
            all_incoming,
        )
    counts = [
        torch.tensor([len(boundary.source), len(boundary.targets), digest])
        for boundary, digest in zip(incoming, digests, strict=True)
    ]
    announced = [count.tolist() for count in comm.all_to_all(counts, [3] * comm.world_size, SETUP)]
    is_symmetric = [
        may_know_targets and digest == own
        for own, (*_, digest) in zip(digests, announced, strict=True)
    ]
    num_rows = options.part_sizes[comm.rank]
    for peer, (edges, targets, _) in enumerate(announced):
        if not is_symmetric[peer]:
            check_announced(peer, "targets of edges", targets, edges)  # each target has an edge
    codes = [
        LayerCode(len(boundary.rows), num_layers)
        if knows_edges
        else BoundaryCode(edges, targets, num_rows, num_layers)
        for knows_edges, boundary, (edges, targets, _) in zip(
            is_symmetric, all_incoming, announced, strict=True
        )
    ]

    def request(peer: int, boundary: Boundary) -> Tensor:
        """Encode the boundary for its sender."""
        if is_symmetric[peer]:
            targets = np.sort(all_incoming[peer].targets)
            return LayerCode(len(targets), num_layers).write(required_layers[targets])
        num_inner = options.part_sizes[peer]
        code = BoundaryCode(len(boundary.source), len(boundary.targets), num_inner, num_layers)
        return code.write(boundary, halo_index)

    requests = in_threads(request, range(comm.world_size), incoming)
    received = comm.all_to_all(requests, [code.size for code in codes], SETUP, consume=True)

    def read_request(peer: int, code: BoundaryCode | LayerCode, request: Tensor) -> Boundary:
        """Decode the boundary that a peer requests."""
        with reading_from(peer, "list of edges"):
            if isinstance(code, LayerCode):
                return reverse_boundary(all_incoming[peer], code.read(request))
            return code.read(request)

    return in_threads(read_request, range(comm.world_size), codes, received)


def _check_requested_rows(outgoing: Sequence[Boundary], asked_for: Sequence[Tensor]) -> None:
    """Raise TrainingError if a peer requests rows of nodes that it did not request at start-up."""
    for peer, (boundary, named) in enumerate(zip(outgoing, asked_for, strict=True)):
        if not np.isin(boundary.rows, named.numpy()).all():
            raise TrainingError(
                f"rank {peer} requests rows of nodes that it did not request at start-up; "
                "they are not sent"
            )


def request_halo_nodes(
    partition: LocalEdges | PartNodes,
    halo: Tensor,
    part_sizes: tuple[int, ...],
    comm: Communicator,
) -> list[Tensor]:
    """Send the given halo nodes to their owners; return the nodes that each peer requests here.

    All workers call it.

    Args:
        halo: bool [H]

    Returns:
        int64 inner nodes by peer, ascending; none for this worker.

    Raises:
        TrainingError: A peer announces more nodes than this part has, or sends an invalid list.
    """
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


def request_halo_flags(
    nodes: LocalEdges | PartNodes,
    halo: Tensor,
    flags: Tensor,
    part_sizes: tuple[int, ...],
    comm: Communicator,
) -> Tensor:
    """Ask the owners of the given halo nodes for a bit of each: bool [n], in the halo's order.

    Args:
        nodes: This worker's nodes.
        halo: bool [H]
        flags: bool [I] the bits of this worker's inner nodes.
        part_sizes: Inner nodes by rank.
        comm: To the other workers, which call it, too.

    Raises:
        TrainingError: As `request_halo_nodes`.
    """
    named = request_halo_nodes(nodes, halo, part_sizes, comm)
    counts = torch.bincount(nodes.halo_owner[halo], minlength=comm.world_size).tolist()
    bits = exchange_bits([flags[nodes].numpy() for nodes in named], counts, comm)
    return torch.from_numpy(np.concatenate(bits))


def exchange_bits(bits: Sequence[Mask], counts: Sequence[int], comm: Communicator) -> list[Mask]:
    """Send bits to each peer, packed into bytes; return the bits that each peer sends.

    All workers call it. counts: the number of bits that each peer sends here.
    """
    packed = [torch.from_numpy(np.packbits(bits_of_peer)) for bits_of_peer in bits]
    received = comm.all_to_all(packed, [(count + 7) // 8 for count in counts], SETUP)
    return [
        np.unpackbits(packed_bits.numpy(), count=count).astype(bool)
        for packed_bits, count in zip(received, counts, strict=True)
    ]


def exchange_sorted_lists(
    lists: Sequence[IntArray],
    limits: Sequence[int],
    announced: Sequence[tuple[int, int]],
    comm: Communicator,
) -> list[IntArray]:
    """Send each peer a sorted list of integers in Elias-Fano code; return the lists received.

    Args:
        lists: int64, by peer.
        limits: exclusive upper bound of each list.
        announced: length and exclusive upper bound of the list that each peer sends.

    Raises:
        TrainingError: A peer sends an invalid list.
    """
    codes = [
        torch.from_numpy(encode_sorted(*list_and_limit))
        for list_and_limit in zip(lists, limits, strict=True)
    ]
    received = comm.all_to_all(
        codes, [encoded_size(*length_and_limit) for length_and_limit in announced], SETUP
    )
    lists_here = []
    for peer, (code, length_and_limit) in enumerate(zip(received, announced, strict=True)):
        with reading_from(peer, "list of nodes"):
            lists_here.append(decode_sorted(code.numpy(), *length_and_limit))
    return lists_here


def _share_weights(
    incoming: list[Boundary], outgoing: list[Boundary], options: PlanOptions, comm: Communicator
) -> tuple[list[Boundary], list[Boundary]]:
    """Send the senders weights of edges that they may sum; return both lists with them.

    NaN is a weight that the sender does not know. An edge whose target has no other edge needs
    none, because there is nothing to sum. `outgoing` is changed in place. All workers call it.
    """
    incoming, codes = _encode_shared_weights(incoming, options)
    sizes = [
        int(size)
        for size in comm.all_to_all(
            [torch.tensor([len(code)]) for code in codes], [1] * comm.world_size, SETUP
        )
    ]
    outgoing_summable = [_summable_edges(boundary) for boundary in outgoing]
    for peer, (size, summable) in enumerate(zip(sizes, outgoing_summable, strict=True)):
        check_announced(peer, "bytes of weights", size, max_encoded_size(int(summable.sum())))
    received = comm.all_to_all(codes, sizes, SETUP)
    for peer, (boundary, summable, code) in enumerate(
        zip(outgoing, outgoing_summable, received, strict=True)
    ):
        weight = np.full(len(boundary.source), np.nan, np.float32)
        if len(code):
            with reading_from(peer, "list of weights"):
                weight[summable] = decode_weights(code.numpy(), int(summable.sum()))
        outgoing[peer] = replace(boundary, weight=weight)
    return incoming, outgoing


def _encode_shared_weights(
    incoming: list[Boundary], options: PlanOptions
) -> tuple[list[Boundary], list[Tensor]]:
    """Encode the weights to send, for each peer; none where they cost more bytes than they save.

    Returns copies of the boundaries with the weights that the senders will know (NaN: not sent),
    and the codes.
    """
    encoded, codes = [], []
    for peer, boundary in enumerate(incoming):
        assert boundary.weight is not None
        summable = _summable_edges(boundary)
        codes.append(torch.from_numpy(encode_weights(boundary.weight[summable])))
        if len(codes[peer]) >= _bytes_saved_by_sums(boundary, summable, options):
            summable[:], codes[peer] = False, codes[peer][:0]
        weight = np.where(summable, boundary.weight, np.float32(np.nan))
        encoded.append(replace(boundary, weight=weight))
    return encoded, codes


def _summable_edges(boundary: Boundary) -> Mask:
    """Return the edges whose target has several edges in this boundary, bool [E].

    Only there can one sum replace several rows.
    """
    return np.repeat(boundary.num_edges > 1, boundary.num_edges)


def _bytes_saved_by_sums(boundary: Boundary, summable: Mask, options: PlanOptions) -> int:
    """Estimate the bytes that sums over the edges `summable` save per layer, in both phases."""
    saved, all_targets = 0, boundary.target
    rows_held, is_held = np.zeros((2, len(boundary.rows)), bool)
    for phase in options.phases:
        targets = boundary.targets_in_phase(0, phase, options.num_layers)
        edges = boundary.edge_range(targets)
        source, target = boundary.source[edges], all_targets[edges]
        left = ~is_held[source]
        forced = ids_to_mask(source[left & ~summable[edges]], len(is_held))
        cover = fewest_vectors(source[left], target[left], forced, len(boundary.targets))
        rows = boundary.source_mask(targets) & ~rows_held
        saved += (int(rows.sum()) - cover.weight) * options.vector_bytes[phase]
        is_held |= cover.left_mask
        rows_held |= rows
    return saved


def compute_global_out_degree(
    partition: LocalEdges, part_sizes: tuple[int, ...], comm: Communicator
) -> Tensor:
    """Return out-degrees in the whole graph, [I + H], for a directory that does not store them.

    Each edge is stored by the partition of its destination. So each partition counts the edges
    that leave its halo nodes; the owners add up these counts and send back the sums. All workers
    call it. int64 counts of edges, or float64 sums of weights if any partition has weights.
    """
    own = torch.tensor([partition.edge_weight is not None])
    weighted = bool(comm.all_gather(own, SETUP).any())  # a part whose weights are all 1 has none
    dtype = torch.float64 if weighted else torch.int32
    counted = partition.sum_at(partition.src, partition.num_inner + partition.num_halo)
    counted = counted.double() if weighted else counted
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
