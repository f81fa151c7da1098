"""How much memory a worker will need: what it holds at once, step by step, added up.

Of the host, for a run on the CPU. The largest worker of 18 runs, of all models on 2,708 to 300,000 nodes, took from 5 %
less to 18 % more. I inner nodes, H halo nodes, E edges, F width of a row, D width of a row after a layer's weights.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from partitioning.directory.types import Partition
from retexo.config.settings import TrainSettings
from retexo.exchange.layer_exchange import peers_at_once
from retexo.nn.conv.gat import GAT
from retexo.nn.matrix import is_sparse
from retexo.nn.stage import Architecture, Stage, build_stage
from retexo.trainers.layerwise import EDGES_PER_STEP, NODES_AT_ONCE

Mask = NDArray[np.bool_]
BASE = 259 << 20
"""Private bytes of a worker that trains on 40 nodes: torch, DGL, gloo and their threads."""
KEPT = 32 << 20
"""The C library gives back blocks of more bytes as soon as they are free; the room of smaller ones it keeps for others
of the kind (DEFAULT_MMAP_THRESHOLD_MAX of glibc)."""
INDEX, FLOAT = 8, 4
"""Bytes of an int64 and of a float32."""
WIRE = {"fp32": 4, "bf16": 2, "int8": 1}
"""Bytes of a value in a message."""


def worker_memory(partition: Partition, architecture: Architecture, settings: TrainSettings) -> int:
    """Private bytes at the peak, about."""
    stages = [build_stage(architecture, layer, settings.seed) for layer in range(architecture.num_layers)]
    work = Work.of(partition, settings, sums_neighbours=stages[0].conv.sums_neighbours)
    memory = Memory()
    _load(memory, work)
    for layer, stage in enumerate(stages):
        sparse = layer == 0 and is_sparse(partition.features)
        _Layer(memory, work, stage, architecture.input_dim(layer), sparse, settings.batch_size).train()
    return BASE + memory.peak


class Memory:
    """What is held, by name, and the most that was."""

    def __init__(self) -> None:
        self.held: dict[str, list[int]] = {}
        self._kept = self.peak = 0

    def hold(self, name: str, *blocks: int) -> None:
        """Hold blocks of so many bytes, instead of those that had the name."""
        self.held[name] = list(blocks)
        self.use()

    def use(self, *blocks: int) -> None:
        """Need blocks of so many bytes for a moment, besides those that are held."""
        everything = [*blocks, *(block for held in self.held.values() for block in held)]
        large = sum(block for block in everything if block > KEPT)
        self._kept = max(self._kept, sum(everything) - large)
        self.peak = max(self.peak, self._kept + large)


# --- what there is to do ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neighbourhood:
    """Some inner nodes, and what is aggregated for them."""

    nodes: int
    edges: int
    inner: int
    """These nodes, and the other inner ones with an edge to them."""
    vectors: int
    """Rows of halo nodes with an edge to them; or sums, from each peer from which these are fewer."""

    @classmethod
    def of(cls, partition: Partition, mask: Mask, held: Mask, *, sums: bool) -> Self:
        """mask: the nodes, bool [I]. held: halo nodes whose rows are there already, bool [H]."""
        num_inner, num_parts = partition.num_inner, partition.num_parts
        owner = partition.halo_owner.numpy()
        into = mask[partition.dst.numpy()]
        src, dst = partition.src.numpy()[into], partition.dst.numpy()[into]
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

    def chunk(self, edges: int) -> "Neighbourhood":
        """As many of the nodes as have so many edges."""
        share = min(1.0, edges / max(1, self.edges))
        few = round(self.edges * share)
        nodes = round(self.nodes * share)
        return Neighbourhood(nodes, few, min(self.inner, nodes + few), min(self.vectors, few))

    def some(self, nodes: int) -> "Neighbourhood":
        """So many of the nodes."""
        return self.chunk(math.ceil(self.edges * min(1.0, nodes / max(1, self.nodes))))


@dataclass(frozen=True)
class Work:
    """A part, and of its nodes those that are worked on together."""

    partition: Partition
    precision: str
    sums: bool
    """Whether partial sums may come."""
    train: Neighbourhood
    val: Neighbourhood
    rounds: Neighbourhood
    """Of both."""
    others: Neighbourhood
    boundary: int
    """Bytes of a number, an int32, for each edge from elsewhere, where these are told apart."""

    @property
    def of_a_peer(self) -> int:
        """As `boundary`, of the edges from one peer."""
        return self.boundary // self.peers

    @property
    def peers(self) -> int:
        return max(1, self.partition.num_parts - 1)

    @classmethod
    def of(cls, partition: Partition, settings: TrainSettings, *, sums_neighbours: bool) -> Self:
        plain = settings.exchange.mode == "plain"
        sums = sums_neighbours and not plain
        train, val = partition.train_mask.numpy(), partition.val_mask.numpy()
        cut = partition.src.numpy() >= partition.num_inner
        none = np.zeros(partition.num_halo, dtype=np.bool_)
        there = none.copy()
        if not sums:  # else it is not known which rows of the first wave serve the second, too: none
            labelled = (train | val | plain)[partition.dst.numpy()]
            there[partition.src.numpy()[labelled & cut] - partition.num_inner] = True
        return cls(
            partition,
            settings.exchange.precision,
            sums,
            Neighbourhood.of(partition, train, none, sums=sums),
            Neighbourhood.of(partition, val, none, sums=sums),
            Neighbourhood.of(partition, train | val | plain, none, sums=sums),
            Neighbourhood.of(partition, ~(train | val), there, sums=sums),
            INDEX // 2 * int(np.count_nonzero(cut)) * sums,
        )


# --- the steps of a worker -------------------------------------------------------------------------------------------


def _load(memory: Memory, work: Work) -> None:
    """Reading the part, and the plan."""
    part = work.partition
    edges, nodes = INDEX * len(part.src), INDEX * (part.num_inner + part.num_halo)
    features = FLOAT * part.features.numel()
    memory.hold("features", features)
    # The ends and a number as DGL reads them, and a mark; then the ends as they are kept.
    memory.use(*[edges] * 3, edges // INDEX, *[nodes] * 2)
    memory.use(*[edges] * 2, *[edges // 2] * 2, features // FLOAT, features // FLOAT)
    memory.hold("part", *[edges // 2] * 2, *[nodes] * 4)  # the ends; ids, owners, degrees and labels
    # The edges of one boundary: as numbers, sorted, in code; twenty bits are a byte each on the way.
    memory.use(*[work.boundary] * 2, *[2 * work.of_a_peer] * 3, 5 * work.of_a_peer)
    memory.hold("plan", *[work.boundary] * 4, *[nodes] * 2)  # both ends of its edges, in both directions


@dataclass(frozen=True)
class _Layer:
    """The steps of retexo.trainers.layerwise.run_layer."""

    memory: Memory
    work: Work
    stage: Stage
    width: int
    """F"""
    sparse: bool
    """Whether its input is: then rows do not come after the weights, and edges are copied."""
    batch_size: int | None

    @property
    def _row(self) -> int:
        return FLOAT * self.width

    @property
    def _projected(self) -> int:
        return FLOAT * self.stage.conv.projected_width

    @property
    def _pieces(self) -> int:
        """In how many a wave's vectors come."""
        return math.ceil(self.work.peers / peers_at_once(self.work.partition.num_inner, self._row))

    def train(self) -> None:
        memory, work = self.memory, self.work
        first = work.rounds.vectors * self._row
        self._exchange(first, first)
        memory.hold("sources", first)
        train, val = (self._at_once(part) for part in (work.train, work.val))
        for name, part in (("train", train), ("val", val)):
            self._gather(name, part, (part.inner + part.vectors) * self._row)
        parameters = FLOAT * sum(parameter.numel() for parameter in self.stage.parameters())
        memory.hold("parameters", *[parameters] * 5)  # with the gradient, the best ones, what the optimiser keeps
        memory.use(*[parameters] * 3)  # the message of a round, there and back
        self._compute("train", train, training=True)
        if self.stage.conv.sums_neighbours:
            self._embed_sums()
        else:
            self._embed_neighbourhoods(first)
        for name in ("sources", "train", "val", "others", "parameters", "features"):
            memory.hold(name)
        memory.hold("rows", *memory.held.pop("embedded"))

    def _at_once(self, part: Neighbourhood) -> Neighbourhood:
        """What of labelled nodes goes through the layer at once, in a round."""
        part = part if self.stage.conv.sums_neighbours else part.chunk(EDGES_PER_STEP)
        return part if self.batch_size is None else part.some(self.batch_size)

    def _embed_sums(self) -> None:
        """What comes is added up piece by piece."""
        memory, others = self.memory, self.work.others
        projected = self._projected < self._row
        width = min(self._row, self._projected)
        come = others.vectors * (self._row if self.sparse else width)
        memory.hold("others", others.nodes * width, self.work.partition.num_inner * width * projected)
        self._exchange(come, come // self._pieces)
        memory.hold("embedded", FLOAT * self.work.partition.num_inner * self.stage.output_dim)
        self._compute("others", others.some(NODES_AT_ONCE), training=False)

    def _embed_neighbourhoods(self, first: int) -> None:
        is_projected = self._projected < self._row and not self.sparse
        projected = self.work.others.vectors * self._projected * is_projected
        unprojected = self.work.others.vectors * self._row * (not is_projected)
        self._exchange(unprojected + projected, first + unprojected + projected)
        self.memory.hold("sources", first + unprojected, projected)
        self.memory.hold("embedded", FLOAT * self.work.partition.num_inner * self.stage.output_dim)
        chunk = self.work.others.chunk(EDGES_PER_STEP)
        self._gather("others", chunk, (chunk.inner + chunk.vectors * (not is_projected)) * self._row, projected)
        self._compute("others", chunk, training=False)

    def _exchange(self, come: int, kept: int) -> None:
        """So many bytes come, and go, in pieces; `kept` bytes of vectors are there in the end."""
        message = come * WIRE[self.work.precision] // FLOAT // self._pieces
        served = [self.work.of_a_peer] * 8  # numbered, covered
        self.memory.use(message, *served)
        self.memory.use(message, message)  # what comes meanwhile
        self.memory.use(message, kept)  # read into its place

    def _gather(self, name: str, part: Neighbourhood, rows: int, projected: int = 0) -> None:
        """Hold the input of the convolution: sums, or the graph and the rows. rows, late: bytes of the sources."""
        conv, edges, total = self.stage.conv, INDEX * part.edges, part.nodes * self._row
        graph = [edges] * 4  # its ends, and once more by destination
        if not conv.sums_neighbours:
            self.memory.use(*[edges] * 6)  # on the way to a block
            self.memory.hold(name, *graph, rows, projected)
            return
        if self.sparse:
            self.memory.use(*[edges] * 6, *graph, rows, total)
        has_own = len(conv.first_weights) > 1
        self.memory.hold(name, total, total * has_own)

    def _compute(self, name: str, part: Neighbourhood, *, training: bool) -> None:
        """From the input to the loss and back, or to the embeddings."""
        conv, memory = self.stage.conv, self.memory
        rows, projected = (part.nodes * self._row, 0) if conv.sums_neighbours else memory.held[name][-2:]
        # After the weights, normalised, and what is not negative; of each its gradient. What dropout keeps, and where.
        width = FLOAT * max(self.stage.output_dim, conv.projected_width)
        out = [part.nodes * width] * 6 + [rows, rows // FLOAT] if training else [part.nodes * width] * 3
        memory.use(*out)
        before = out if training else []  # the loss is known when the gradient goes back to the projected rows
        projected = rows // self._row * self._projected + projected
        if isinstance(conv, GAT):
            # Projected rows times the attention of a source; for the gradient three shares and a product, too.
            scores = [part.edges * FLOAT * conv.heads] * 4
            memory.use(*[projected] * (5 if training else 2), *before)
            memory.use(projected, *scores, *out)
        elif not conv.sums_neighbours:
            largest = part.nodes * self._projected
            memory.use(*[projected] * (3 if training else 2), *before)
            memory.use(projected, largest, 2 * largest, *out)  # an int64 says which it is
