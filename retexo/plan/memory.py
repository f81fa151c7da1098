"""Memory of a worker: the blocks that it holds at once, step by step.

The steps are those of retexo.trainers.layerwise on the CPU. Sizes come from a partition, or from a
random graph of given sizes (benchmarks/estimate.py). The largest workers of 18 runs, with all
models on 2,708 to 300,000 nodes, used from 5 % less to 18 % more than predicted from their
partition. I inner nodes, H halo nodes, E edges, F width of a row, D width of a projected row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from partitioning.directory.partition import Partition
from retexo.exchange.layer_exchange import peers_per_batch, pieces_per_message
from retexo.models.matrix import is_sparse
from retexo.models.stage import Architecture, Stage, build_stages
from retexo.rounds.objective import choose_batch_size
from retexo.settings.run_settings import TrainSettings
from retexo.trainers.layerwise import EDGES_PER_STEP, NODES_PER_STEP

Mask = NDArray[np.bool_]
BASE = 232 << 20
"""Private bytes of a worker without data: PyTorch, gloo and threads."""
KEPT = 32 << 20
"""glibc returns freed blocks of more bytes to the system and keeps smaller ones
(DEFAULT_MMAP_THRESHOLD_MAX)."""
INDEX, FLOAT = 8, 4
"""Bytes of an int64 and of a float32."""
WIRE = {"fp32": 32, "bf16": 16, "int8": 8, "int4": 4}
"""Precision -> bits of a value in a message."""


def worker_memory(
    partition: Partition, architecture: Architecture, settings: TrainSettings, num_train: int
) -> int:
    """Estimate peak private bytes of the worker of a partition. num_train: over all workers."""
    with torch.device("meta"):
        stages = build_stages(architecture, settings.seed)
    work = LayerWork.of(partition, settings, linear=stages[0].conv.linear_aggregation)
    sparse = is_sparse(partition.features)
    works = [replace(work, precision=precision) for precision in settings.exchange.precision]
    batch_size = choose_batch_size(settings, int(partition.train_mask.sum()), num_train)
    return peak_memory(works, stages, sparse=sparse, batch_size=batch_size)


def peak_memory(
    works: Sequence["LayerWork"],
    stages: Sequence[Stage],
    *,
    sparse: bool = False,
    batch_size: int | None = None,
) -> int:
    """Estimate peak private bytes of a worker with this work per layer. sparse: features are
    sparse."""
    memory = Memory()
    _load(memory, works[0], FLOAT * works[0].num_features)
    for layer, (work, stage) in enumerate(zip(works, stages, strict=True)):
        width = stage.conv.first_weights[0].shape[0]
        _Layer(memory, work, stage, width, sparse and layer == 0, batch_size).train()
    return BASE + memory.peak


class Memory:
    """Blocks held by name, and the largest sum so far."""

    def __init__(self) -> None:
        self.held: dict[str, list[int]] = {}
        self._kept = self.peak = 0

    def hold(self, name: str, *blocks: int) -> None:
        """Replace the blocks held under a name."""
        self.held[name] = list(blocks)
        self.use()

    def use(self, *blocks: int) -> None:
        """Count blocks that are needed for a moment, besides those held."""
        everything = [*blocks, *(block for held in self.held.values() for block in held)]
        large = sum(block for block in everything if block > KEPT)
        self._kept = max(self._kept, sum(everything) - large)
        self.peak = max(self.peak, self._kept + large)


# --- what there is to do ----------


@dataclass(frozen=True)
class Neighbourhood:
    """A set of inner nodes, and the rows and edges for their aggregate."""

    nodes: int
    edges: int
    inner: int
    """These nodes and their inner in-neighbours."""
    vectors: int
    """Rows of halo nodes with an edge to them, or partial sums from peers where those are fewer."""

    @classmethod
    def of(cls, partition: Partition, mask: Mask, held: Mask, *, sums: bool) -> Self:
        """Make the block of the nodes in `mask`.

        Args:
            mask: bool [I].
            held: Halo nodes whose rows are already held, bool [H].
            sums: Whether partial sums may replace rows.
        """
        num_inner, num_parts = partition.num_inner, partition.num_parts
        owner = partition.halo_owner.numpy()
        used = mask[partition.dst.numpy()]  # in-edges of these nodes
        src, dst = partition.src.numpy()[used], partition.dst.numpy()[used]
        reached = np.zeros(num_inner + partition.num_halo, dtype=np.bool_)
        reached[src] = True
        vectors = np.bincount(owner[reached[num_inner:] & ~held], minlength=num_parts)
        if sums:
            cut = src >= num_inner
            target = np.zeros((num_parts, num_inner), dtype=np.bool_)
            target[owner[src[cut] - num_inner], dst[cut]] = True
            vectors = np.minimum(vectors, target.sum(axis=1))
        inner = int(np.count_nonzero(reached[:num_inner] | mask))
        return cls(int(np.count_nonzero(mask)), len(src), inner, int(vectors.sum()))

    def limit_edges(self, edges: int) -> "Neighbourhood":
        """Return the share of this neighbourhood that has `edges` edges, with nodes and rows in
        proportion.
        """
        share = min(1.0, edges / max(1, self.edges))
        few = round(self.edges * share)
        nodes = round(self.nodes * share)
        return Neighbourhood(nodes, few, min(self.inner, nodes + few), min(self.vectors, few))

    def limit_nodes(self, nodes: int) -> "Neighbourhood":
        """Return the share of this neighbourhood that has `nodes` nodes, with edges and rows in
        proportion.
        """
        return self.limit_edges(math.ceil(self.edges * min(1.0, nodes / max(1, self.nodes))))


@dataclass(frozen=True)
class LayerWork:
    """Sizes of a partition and of the blocks of a layer."""

    peers: int
    """Number of peers, at least 1."""
    inner: int
    """I"""
    halo: int
    """H"""
    edges: int
    num_features: int
    """Stored values of the inner nodes' features."""
    precision: str
    """Precision of rows in messages."""
    train: Neighbourhood
    val: Neighbourhood
    rounds: Neighbourhood
    """Neighbourhood of training and validation nodes together."""
    others: Neighbourhood
    boundary: int
    """Bytes of an int32 per cut in-edge if rows and sums are chosen edge by edge, else 0."""
    edge_values: int = 0
    """Bytes of weights and features of all edges."""

    @property
    def boundary_of_peer(self) -> int:
        """The edges from one peer into this partition, on average; `boundary` has those from all
        peers.
        """
        return self.boundary // self.peers

    @classmethod
    def of(cls, partition: Partition, settings: TrainSettings, *, linear: bool) -> Self:
        """Return the work of any layer on a partition. linear: the convolution allows partial
        sums.
        """
        plain = settings.exchange.mode == "plain"
        sums = linear and not plain
        train, val = partition.train_mask.numpy(), partition.val_mask.numpy()
        cut = partition.src.numpy() >= partition.num_inner
        none = np.zeros(partition.num_halo, dtype=np.bool_)
        held = none.copy()
        if (
            not sums
        ):  # else it is not known which rows of the first phase serve the second, too: none
            labelled = (train | val | plain)[partition.dst.numpy()]
            held[partition.src.numpy()[labelled & cut] - partition.num_inner] = True
        return cls(
            peers=max(1, partition.num_parts - 1),
            inner=partition.num_inner,
            halo=partition.num_halo,
            edges=len(partition.src),
            num_features=partition.features.numel(),
            precision=settings.exchange.precision[0],
            train=Neighbourhood.of(partition, train, none, sums=sums),
            val=Neighbourhood.of(partition, val, none, sums=sums),
            rounds=Neighbourhood.of(partition, train | val | plain, none, sums=sums),
            others=Neighbourhood.of(partition, ~(train | val), held, sums=sums),
            boundary=INDEX // 2 * int(np.count_nonzero(cut)) * sums,
            edge_values=sum(
                data.numel()
                for data in (partition.edge_weight, partition.edge_feat)
                if data is not None
            ),
        )


# --- the steps of a worker ----------


def _load(memory: Memory, work: LayerWork, features: int) -> None:
    """Count reading the partition, with the bytes of its features, and the exchange plan."""
    edges, nodes = INDEX * work.edges, INDEX * (work.inner + work.halo)
    memory.hold("features", features)
    # What is mapped counts, too: a machine without room for it would read it again and again. Of
    # edges there are marks.
    memory.use(*[edges // 2] * 2, *[edges // INDEX] * 3, *[nodes] * 2, features // FLOAT)
    of_edges = *[edges // 2] * 2, FLOAT * work.edge_values
    memory.hold("part", *of_edges, *[nodes] * 4)  # the ends; ids, owners, degrees and labels
    memory.use(
        *[work.boundary] * 4
    )  # the ends of their edges, as blocks find them, and in the order of boundaries
    # The edges of all boundaries, both ways, and of one: as numbers, in code; twenty bits are a
    # byte each on the way.
    memory.use(*[work.boundary] * 2, *[2 * work.boundary_of_peer] * 3, 5 * work.boundary_of_peer)
    memory.hold(
        "plan", *[work.boundary] * 2, *[nodes] * 3
    )  # the sources of its edges, in both directions


@dataclass(frozen=True)
class _Layer:
    """The steps of one layer, as in retexo.trainers.layerwise.run_layer."""

    memory: Memory
    work: LayerWork
    stage: Stage
    width: int
    """F"""
    sparse: bool
    """Whether the input is sparse: then rows are not projected before they are sent."""
    batch_size: int | None

    @property
    def _row(self) -> int:
        """Bytes of a row before the weights."""
        return FLOAT * self.width

    @property
    def _projected(self) -> int:
        """Bytes of a row after the weights."""
        return FLOAT * self.stage.conv.projected_width

    @property
    def _num_pieces(self) -> int:
        """Number of pieces in which the vectors of a phase arrive."""
        sizes = self.work.inner, self._row
        return math.ceil(self.work.peers / peers_per_batch(*sizes)) * pieces_per_message(*sizes)

    def train(self) -> None:
        """Count the exchange, aggregates and rounds of a layer, then its embedding."""
        memory, work = self.memory, self.work
        first = work.rounds.vectors * self._row
        self._exchange(first, first)
        memory.hold("sources", first)
        train, val = (self._at_once(part) for part in (work.train, work.val))
        for name, part in (("train", train), ("val", val)):
            self._hold_inputs(name, part, (part.inner + part.vectors) * self._row)
        parameters = FLOAT * sum(parameter.numel() for parameter in self.stage.parameters())
        memory.hold(
            "parameters", *[parameters] * 5
        )  # with the gradient, the best ones, what the optimiser keeps
        memory.use(*[parameters] * 3)  # the message of a round, there and back
        self._compute("train", train, training=True)
        if self.stage.conv.linear_aggregation:
            self._embed_sums()
        else:
            self._embed_neighbourhoods(first)
        for name in ("sources", "train", "val", "others", "parameters", "features"):
            memory.hold(name)
        memory.hold("rows", *memory.held.pop("embedded"))

    def _at_once(self, part: Neighbourhood) -> Neighbourhood:
        """Return the part of a neighbourhood that one step of a round computes."""
        part = part if self.stage.conv.linear_aggregation else part.limit_edges(EDGES_PER_STEP)
        return part if self.batch_size is None else part.limit_nodes(self.batch_size)

    def _embed_sums(self) -> None:
        """Count embedding where received sums and rows are added piece by piece."""
        memory, others = self.memory, self.work.others
        projected = self._projected < self._row
        width = min(self._row, self._projected)
        come = others.vectors * (self._row if self.sparse else width)
        if (
            projected
            and not self.sparse
            and len(self.stage.conv.first_weights) == 1
            and "rows" not in self.stage.skips
        ):
            memory.hold("rows")
        memory.hold("others", others.nodes * width, self.work.inner * width * projected)
        self._exchange(come, come // self._num_pieces)
        memory.hold("embedded", FLOAT * self.work.inner * self.stage.output_dim)
        self._compute("others", others.limit_nodes(NODES_PER_STEP), training=False)

    def _embed_neighbourhoods(self, first: int) -> None:
        """Count embedding where each chunk of nodes needs the rows of its neighbours."""
        is_projected = self._projected < self._row and not self.sparse
        projected = self.work.others.vectors * self._projected * is_projected
        unprojected = self.work.others.vectors * self._row * (not is_projected)
        self._exchange(unprojected + projected, first + unprojected + projected)
        self.memory.hold("sources", first + unprojected, projected)
        self.memory.hold("embedded", FLOAT * self.work.inner * self.stage.output_dim)
        chunk = self.work.others.limit_edges(EDGES_PER_STEP)
        self._hold_inputs(
            "others",
            chunk,
            (chunk.inner + chunk.vectors * (not is_projected)) * self._row,
            projected,
        )
        self._compute("others", chunk, training=False)

    def _exchange(self, come: int, kept: int) -> None:
        """Count an exchange in pieces: bytes received, as many sent, and bytes of vectors kept."""
        message = come * WIRE[self.work.precision] // WIRE["fp32"] // self._num_pieces
        cover = [self.work.boundary_of_peer] * 8  # the edges of the next peer numbered, and covered
        self.memory.use(
            *[message] * 3, *cover
        )  # one is on its way, there and back, while the next is made
        self.memory.use(*[message] * 3, kept)  # or what came before is read into its place

    def _hold_inputs(self, name: str, part: Neighbourhood, rows: int, projected: int = 0) -> None:
        """Count the convolution's input as held: sums, or the graph and its rows. rows, projected:
        bytes of the rows before and after the weights."""
        conv, total = self.stage.conv, part.nodes * self._row
        edges = INDEX * (part.edges + part.nodes * bool(conv.attention_heads))  # with self loops
        graph = [edges] * 4  # its ends, and once more by destination
        if not conv.linear_aggregation:
            self.memory.use(*[edges] * 6)  # on the way to a block
            self.memory.hold(name, *graph, rows, projected)
            return
        if self.sparse:
            self.memory.use(*[edges] * 6, *graph, rows, total)
        has_own = len(conv.first_weights) > 1
        self.memory.hold(name, total, total * has_own)

    def _compute(self, name: str, part: Neighbourhood, *, training: bool) -> None:
        """Count a pass from the input to the loss and back, or to the embeddings."""
        conv, memory = self.stage.conv, self.memory
        rows, projected = (
            (part.nodes * self._row, 0) if conv.linear_aggregation else memory.held[name][-2:]
        )
        # After the weights, normalised, and what is not negative; of each its gradient. What
        # dropout keeps, and where.
        width = FLOAT * max(self.stage.output_dim, conv.projected_width)
        out = (
            [part.nodes * width] * 6 + [rows, rows // FLOAT]
            if training
            else [part.nodes * width] * 3
        )
        memory.use(*out)
        before = (
            out if training else []
        )  # the loss is known when the gradient goes back to the projected rows
        projected = rows // self._row * self._projected + projected
        if conv.attention_heads:
            # Projected rows times the attention of a source; for the gradient three shares and a
            # product, too.
            scores = [(part.edges + part.nodes) * FLOAT * conv.attention_heads] * 4
            memory.use(*[projected] * (5 if training else 2), *before)
            memory.use(projected, *scores, *out)
        elif not conv.linear_aggregation:
            largest = part.nodes * self._projected
            memory.use(*[projected] * (3 if training else 2), *before)
            memory.use(
                projected, 2 * projected, *[2 * largest] * 2, largest, *out
            )  # rows with their numbers
