"""Who needs what of whom: made once, before the first layer.

The boundary rows of a layer cross the network in two waves:

    ROUNDS    before the rounds: for the training and validation nodes, on which the rounds work
    EMBED     once the layer is frozen: for the other nodes that a later layer or the final test needs

Layer l of L needs its output at the labelled and test nodes, and at all nodes that these reach through the L - l - 1
layers after it; nothing is sent for other nodes. With a trained network there are no rounds: all goes in EMBED, for the
nodes with a label to compare with (evaluate) or for every node (predict).

A part holds the in-edges of its own nodes. So it tells each owner the edges that come from there, as ascending numbers
row * R + target. What a target is depends on what can be sent for it. Where an aggregator adds up, the owner may send a
partial sum for a destination: each destination is a target. Where only rows are sent (attention, pooling,
exchange=plain) all destinations with the same need are one target.

W workers, I inner nodes, H halo nodes of a worker; of one ordered pair of parts: L rows (nodes of the sender with an
edge into the receiver), R targets, E edges between them.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.directory.types import Partition
from retexo.comm.collectives import Communicator
from retexo.comm.traffic import Purpose
from retexo.exchange.coding.elias_fano import code_size, read_ascending, write_ascending

SETUP = Purpose("setup")
ROUNDS, EMBED = 0, 1
Use = Literal["train", "evaluate", "predict", "nothing"]

Ints = NDArray[np.int64]
Places = NDArray[np.int32]
"""There are several for each edge between two parts, and a part has fewer than 2^31 nodes."""
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Boundary:
    """The edges from one part into another, as both of them know them."""

    rows: Ints
    """[L] ascending; to the sender its inner nodes, to the receiver numbers of its halo nodes."""
    targets: Ints
    """[R] the receiver's inner nodes; the sender does not know them (-1), nor is a shared target a node."""
    required_layers: NDArray[np.uint8]
    """[R] see ExchangePlan.need."""
    source: Places
    """[E] in [0, L)."""
    target: Places
    """[E] in [0, R)."""

    def wanted(self, layer: int, wave: int, num_layers: int) -> Mask:
        """Whether an edge counts in a wave of a layer, bool [E]."""
        required_layers = self.required_layers[self.target]
        return (
            required_layers == num_layers + 1
            if wave == ROUNDS
            else (required_layers > layer) & (required_layers <= num_layers)
        )


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
    sums: bool
    """Whether partial sums may be sent."""
    plain: bool
    """Every row of every halo node, dense, in one wave."""
    waves: tuple[int, ...]
    """Those in which something is sent."""


@dataclass(frozen=True)
class PlanRequest:
    """What the plan depends on besides the partition; the same on every worker."""

    num_layers: int
    part_sizes: tuple[int, ...]
    """Inner nodes by rank."""
    all_nodes: bool
    """Whether every node of the graph is a training, validation or test node, so that all are needed anyway."""
    sums: bool
    """Whether the aggregator adds up."""
    plain: bool
    use: Use = "train"
    """train: two waves. evaluate: outputs of the nodes in a mask, predict: of all nodes; both in the wave EMBED.
    nothing: no row will be sent."""

    def of_targets(self, *, sums: bool) -> Self:
        """The same for some nodes only (see make_plan), with partial sums or without."""
        return replace(self, use="evaluate", all_nodes=False, sums=sums)

    @property
    def waves(self) -> tuple[int, ...]:
        if self.plain:
            return (ROUNDS,)
        return (ROUNDS, EMBED) if self.use == "train" else (EMBED,)


def make_plan(
    partition: Partition, plan_request: PlanRequest, comm: Communicator, targets: Tensor | None = None
) -> ExchangePlan:
    """Agree with every other worker on the edges between the two: how many, then which.

    targets: bool [I] the nodes whose output is wanted, in place of those that demand.use stands for (one wave, EMBED).
    """
    required_layers = _need(partition, plan_request, comm, targets)
    sums = plan_request.sums and not plan_request.plain
    incoming = [_wanted_of(peer, partition, required_layers.numpy(), sums) for peer in range(comm.world_size)]
    sizes = [torch.tensor([len(boundary.source), len(boundary.targets)]) for boundary in incoming]
    asked = [size.tolist() for size in comm.all_to_all(sizes, [2] * comm.world_size, SETUP)]
    formats = [_Request(edges, targets, partition.num_inner, plan_request.num_layers) for edges, targets in asked]
    requests = [
        _Request(len(boundary.source), len(boundary.targets), owned, plan_request.num_layers).write(
            boundary, partition.halo_index.numpy()
        )
        for boundary, owned in zip(incoming, plan_request.part_sizes, strict=True)
    ]
    received = comm.all_to_all(requests, [request.size for request in formats], SETUP)
    outgoing = [request.read(code) for request, code in zip(formats, received, strict=True)]
    return ExchangePlan(
        outgoing=tuple(outgoing),
        incoming=tuple(incoming),
        required_layers=required_layers,
        num_layers=plan_request.num_layers,
        num_halo=partition.num_halo,
        largest_part=max(plan_request.part_sizes),
        sums=sums,
        plain=plan_request.plain,
        waves=plan_request.waves,
    )


def _need(partition: Partition, plan_request: PlanRequest, comm: Communicator, targets: Tensor | None) -> Tensor:
    last = plan_request.num_layers
    if plan_request.use == "nothing":
        return torch.zeros(partition.num_inner, dtype=torch.uint8)
    if plan_request.plain:
        return torch.full((partition.num_inner,), last + 1, dtype=torch.uint8)
    if targets is not None:
        required_layers = targets.to(torch.uint8) * last
        for layer in range(last - 1, 0, -1):
            _reach(partition, plan_request, comm, required_layers, layer)
        return required_layers
    if plan_request.use == "predict":
        return torch.full((partition.num_inner,), last, dtype=torch.uint8)
    required_layers = partition.test_mask.to(torch.uint8) * last
    required_layers[partition.train_mask | partition.val_mask] = last + 1 if plan_request.use == "train" else last
    for layer in range(last - 1, 0, -1):
        if not plan_request.all_nodes:
            _reach(partition, plan_request, comm, required_layers, layer)
    return required_layers


def _reach(
    partition: Partition, plan_request: PlanRequest, comm: Communicator, required_layers: Tensor, layer: int
) -> None:
    """What `layer` aggregates, the layer before it has to embed: mark that in need, also at other owners."""
    halo = reach_here(partition, required_layers, layer)
    for nodes in tell_owners(partition, halo, plan_request.part_sizes, comm):
        required_layers[nodes[required_layers[nodes] < layer]] = layer


def reach_here(partition: Partition, required_layers: Tensor, layer: int) -> Tensor:
    """Mark what `layer` aggregates of this part in need; the halo nodes that it aggregates, bool [H]."""
    reached = torch.zeros(partition.num_inner + partition.num_halo, dtype=torch.bool)
    reached[partition.src[required_layers[partition.dst] > layer]] = True
    inner, halo = reached[: partition.num_inner], reached[partition.num_inner :]
    required_layers[inner & (required_layers < layer)] = layer
    return halo


def tell_owners(partition: Partition, halo: Tensor, part_sizes: tuple[int, ...], comm: Communicator) -> list[Tensor]:
    """Name halo nodes, bool [H], to their owners; by peer, the inner nodes int64 that it named here."""
    owner, index = partition.halo_owner[halo], partition.halo_index[halo].numpy()
    counts = torch.bincount(owner, minlength=comm.world_size)
    named = comm.all_to_all(list(torch.split(counts, 1)), [1] * comm.world_size, SETUP)
    lists = np.split(index, np.cumsum(counts.numpy())[:-1])
    codes = [torch.from_numpy(write_ascending(nodes, size)) for nodes, size in zip(lists, part_sizes, strict=True)]
    sizes = [code_size(int(count), partition.num_inner) for count in named]
    received = comm.all_to_all(codes, sizes, SETUP)
    return [
        torch.from_numpy(read_ascending(code.numpy(), int(count), partition.num_inner))
        for code, count in zip(received, named, strict=True)
    ]


def _wanted_of(peer: int, partition: Partition, required_layers: NDArray[np.uint8], per_node: bool) -> Boundary:
    """The needed edges from one peer, sorted by row, then target."""
    src, dst = partition.src.numpy(), partition.dst.numpy()
    first, end = np.searchsorted(partition.halo_owner.numpy(), (peer, peer + 1)) + partition.num_inner
    edges = np.flatnonzero((src >= first) & (src < end) & (required_layers[dst] > 0))
    rows, source = renumbered(src[edges] - partition.num_inner)
    if per_node:
        targets, target = renumbered(dst[edges])
        key = source.astype(np.int64) * len(targets) + target
        key.sort()  # sorting and dividing takes a fifth of the time of np.lexsort
        return Boundary(rows, targets, required_layers[targets], *_divided(key, len(targets)))
    needs, target = renumbered(required_layers[dst[edges]])
    key = np.unique(source.astype(np.int64) * max(len(needs), 1) + target)
    return Boundary(rows, np.full(len(needs), -1), needs.astype(np.uint8), *_divided(key, len(needs)))


def renumbered(ends: NDArray[Any]) -> tuple[Ints, Places]:
    """The distinct numbers from 0, ascending, and each end's place among them; np.unique would sort the ends."""
    occurs = np.zeros(int(ends.max()) + 1 if len(ends) else 0, bool)
    occurs[ends] = True
    place = np.cumsum(occurs, dtype=np.int32)
    place -= 1
    return np.flatnonzero(occurs), place[ends]


def _divided(key: Ints, num_targets: int) -> tuple[Places, Places]:
    """Row and target of each number row * R + target."""
    row = key // max(num_targets, 1)
    return row.astype(np.int32), (key - row * num_targets).astype(np.int32)


@dataclass(frozen=True)
class _Request:
    """How a boundary is told to the owner of its rows: the edges as ascending numbers, then the needs of the targets.

    A need takes as many bits as the largest, L + 1, has.
    """

    num_edges: int
    num_targets: int
    num_owned: int
    """Inner nodes of the owner."""
    num_layers: int

    @property
    def _universe(self) -> int:
        return self.num_owned * self.num_targets

    @property
    def _planes(self) -> int:
        return (self.num_layers + 1).bit_length()

    @property
    def size(self) -> int:
        """Bytes."""
        return code_size(self.num_edges, self._universe) + (self.num_targets * self._planes + 7) // 8

    def write(self, boundary: Boundary, halo_index: Ints) -> Tensor:
        """uint8 [size]; halo_index int64 [H] are the halo nodes' numbers at their owners."""
        key = halo_index[boundary.rows[boundary.source]] * self.num_targets + boundary.target
        bits = boundary.required_layers[:, None] >> np.arange(self._planes, dtype=np.uint8) & 1
        code = write_ascending(key, self._universe), np.packbits(bits, bitorder="little")
        return torch.from_numpy(np.concatenate(code))

    def read(self, code: Tensor) -> Boundary:
        """The boundary as the owner sees it; ValueError for what is none."""
        edges = code_size(self.num_edges, self._universe)
        key = read_ascending(code[:edges].numpy(), self.num_edges, self._universe)
        node, target = _divided(key, self.num_targets)
        rows, source = renumbered(node)
        bits = np.unpackbits(code[edges:].numpy(), count=self.num_targets * self._planes, bitorder="little")
        required_layers = (bits.reshape(-1, self._planes) << np.arange(self._planes, dtype=np.uint8)).sum(
            axis=1, dtype=np.uint8
        )
        return Boundary(rows, np.full(self.num_targets, -1), required_layers, source, target)


def global_out_degree(partition: Partition, part_sizes: tuple[int, ...], comm: Communicator) -> Tensor:
    """Out-degrees in the whole graph, int64 [I + H], for a directory that does not store them.

    An edge is held by the part of its destination. So each part counts the edges that leave its halo nodes, the owner
    adds up the counts and sends the sums back.
    """
    counted = torch.bincount(partition.src, minlength=partition.num_inner + partition.num_halo)
    inner, halo = counted[: partition.num_inner], counted[partition.num_inner :]
    everything = torch.ones(partition.num_halo, dtype=torch.bool)
    named = tell_owners(partition, everything, part_sizes, comm)
    sizes = torch.bincount(partition.halo_owner, minlength=comm.world_size).tolist()
    reports = comm.all_to_all(list(torch.split(halo.to(torch.int32), sizes)), [len(nodes) for nodes in named], SETUP)
    for nodes, report in zip(named, reports, strict=True):
        inner[nodes] += report
    answers = comm.all_to_all([inner[nodes].to(torch.int32) for nodes in named], sizes, SETUP)
    return torch.cat((inner, *answers))
