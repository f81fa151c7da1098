"""What a trainer is given on one worker, and what it returns.

A plain graph is a graph with one node type and one relation. I inner nodes, H halo nodes, F
features, C classes.
"""

import contextlib
import ctypes
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from partitioning.directory.partition import LocalEdges
from retexo.exchange.exchange_plan import ExchangePlan
from retexo.launch.heartbeat import Progress
from retexo.models.aggregate import mean_at_destinations
from retexo.models.block import InEdges, Sources
from retexo.models.convolution import Convolution
from retexo.models.network import Schema
from retexo.results.run_log import RunLog
from retexo.rounds.objective import LayerObjective, choose_batch_size, choose_val_stride
from retexo.rounds.recovery import Recovery
from retexo.tasks.task_context import TaskContext
from retexo.trainers.out_edges import Means, OutEdges, RelationMeans

PHASES = ("load", "plan", "exchange", "aggregate", "rounds", "embed", "evaluate")
FEW_IN_NEIGHBOURS = 5
"""An aggregate of fewer rows counts as a disclosed row."""
PHASE_LABELS = {"rounds": "round", "embed": "embedding", "evaluate": "evaluation"}
"""Phases that the parent reports by another word."""


class Clock:
    """Seconds spent in each phase, counted once where phases nest.

    Reports the phase to the parent.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        """Begin at 0 seconds; progress: to the parent, None where there is none."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.progress = progress or Progress()
        self._inner_seconds = 0.0
        """Seconds of phases within the one that is open."""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase within the block, and report it to the parent; exceptions count, too.

        Phases may nest, as the exchanges of label propagation do in the evaluation: an inner
        phase's seconds are not the outer one's.
        """
        self.progress.enter(PHASE_LABELS.get(name, name))
        start, outer, self._inner_seconds = time.perf_counter(), self._inner_seconds, 0.0
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.seconds[name] += seconds - self._inner_seconds
            self._inner_seconds = outer + seconds


def return_freed_memory() -> None:
    """Return freed blocks to the system, for other workers: glibc keeps those below 32 MiB."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


@dataclass(eq=False, kw_only=True)
class NodeType:
    """Nodes of one type on this worker, and the exchange of their rows."""

    features: Tensor
    """[I, F] in the precision of the computation, on the host; [0, F] once they are released."""
    required_layers: Tensor
    """uint8 [I], see ExchangePlan.required_layers."""
    out_edges: OutEdges
    plan: ExchangePlan
    edge_means: Tensor | None = None
    """[I, K] weighted means of the in-edges' features, 0 for none; None where not read."""


@dataclass(eq=False, kw_only=True)
class Context(TaskContext):
    """Everything that a trainer works with on one worker."""

    schema: Schema
    types: dict[str, NodeType]
    """By name; one in a plain graph."""
    device: torch.device
    log: RunLog
    directory: Path = Path()
    """The partition directory."""
    save_layer: Callable[[int, nn.Module], None] = lambda layer, stage: None
    """Writes a trained stage, or a trainer's own network, to the checkpoint; only rank 0 writes."""
    recovery: Recovery | None = None
    """Where the state of rounds is saved; None for a trainer that does not resume."""
    clock: Clock = field(default_factory=Clock)
    known: Mapping[int, Sources] = field(default_factory=dict)
    """By layer of a plain graph what other workers would send, where it is known and not sent."""
    make_objective: "Callable[..., LayerObjective] | None" = None
    """Makes a layer's objective for link prediction; None for node classification."""
    endpoints: Any = None
    """retexo.trainers.link_objective.Endpoints, once they are known."""

    @property
    def target(self) -> NodeType:
        """Return the type that has labels; the only one in a plain graph."""
        return self.types[self.schema.target]

    @property
    def features(self) -> Tensor:
        return self.target.features

    @property
    def edges(self) -> InEdges:
        """Return the in-edges of a plain graph's nodes."""
        return self.target.out_edges.edges

    @property
    def plan(self) -> ExchangePlan:
        return self.target.plan

    @property
    def required_layers(self) -> dict[str, Tensor]:
        """How many layers require each node, uint8 [I] by type (ExchangePlan.required_layers)."""
        return {name: node_type.required_layers for name, node_type in self.types.items()}

    @property
    def num_nodes_disclosed(self) -> list[int]:
        """Return the number of this site's nodes of which each rank may get rows.

        Empty without sites.
        """
        asked_for = [node_type.out_edges.local.asked_for or () for node_type in self.types.values()]
        return [sum(map(len, nodes)) for nodes in zip(*asked_for, strict=True)]

    @property
    def num_aggregates_disclosed(self) -> list[tuple[int, int]]:
        """By rank: how many of this site's nodes may give it aggregates, and how many of few rows.

        The second number counts those that sum up fewer than FEW_IN_NEIGHBOURS rows. The list is
        empty without sites or look-ahead.
        """
        if not self.settings.model.lookahead:
            return []
        nodes = self.target.out_edges.local.asked_for or ()
        is_few = self.edges.row_ptr.diff() < FEW_IN_NEIGHBOURS
        return [(len(nodes_of_rank), int(is_few[nodes_of_rank].sum())) for nodes_of_rank in nodes]

    @property
    def batch_size(self) -> int | None:
        """Training nodes of this worker in one step; None for all."""
        return choose_batch_size(
            self.settings, int(self.partition.train_mask.sum()), self.graph_info.num_train
        )

    @property
    def val_stride(self) -> int:
        """Return s such that every s-th validation node scores the rounds (choose_val_stride)."""
        return choose_val_stride(self.settings, self.graph_info.num_train, self.graph_info.num_val)

    @property
    def computed(self) -> Tensor:
        """Return the labelled type's nodes whose logits are computed, bool [I]."""
        return self.target.required_layers >= self.settings.model.depth

    def nodes_in_rounds(self, mask: Tensor) -> Tensor:
        """Return the labelled type's nodes of a mask, bool [I], that all rounds use, int64 [n]."""
        in_rounds = self.target.required_layers > self.plan.options.num_layers
        return (mask & in_rounds).nonzero()[:, 0]

    def keep_edges(self, choose: Callable[[LocalEdges], Tensor], conv: Convolution) -> Self:
        """Return the context of a graph with some of the edges, with degrees counted in these.

        Exchange plans stay as they are.

        choose: returns which edges into a partition are kept, bool [E].
        """
        kept = {
            name: replace(
                node_type,
                out_edges=node_type.out_edges.keep(choose(node_type.out_edges.local), conv),
            )
            for name, node_type in self.types.items()
        }
        return replace(self, types=kept)

    def with_num_layers(self, num_layers: int) -> Self:
        """Return the context of the first `num_layers` layers, where others were not trained."""
        return replace(self, settings=replace(self.settings, num_layers=num_layers))

    def release_features(self) -> None:
        """Free the features, which later layers do not read from here."""
        for node_type in self.types.values():
            node_type.features = node_type.features[:0].clone()

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        return self.clock.phase(name)

    def source_scale(self, conv: Convolution) -> Tensor | None:
        """Return the factor of each of this worker's rows in a layer's sums, [I]; None for ones.

        Means over relations have none.
        """
        return conv.source_scale(self.edges.out_degree[: self.partition.num_inner])

    def relation_means(
        self, source: str, rows: Tensor, received: Sources, nodes: Mapping[str, Tensor]
    ) -> Means:
        """Return the means of rows over each relation from `source` to the types of `nodes`.

        At these nodes; empty without any.

        source, rows, nodes: as of RelationMeans.
        received: the rows of the type's halo nodes.
        """
        means = RelationMeans(self.types[source].out_edges, rows, nodes, self.device)
        means.add(received)
        return means.by_relation()


def edge_means(local: LocalEdges, in_degree: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Return the weighted mean of the in-edges' features of each inner node, [I, K].

    Returns None if the edges have none.
    """
    if local.edge_feat is None:
        return None
    return mean_at_destinations(local.dst, local.edge_feat.to(dtype), local.edge_weight, in_degree)


@dataclass(frozen=True, eq=False)
class TrainResult:
    """What a trainer returns."""

    rounds: list[int]
    """Rounds per layer; one number for a network that is trained end to end."""
    logits: list[Tensor]
    """[I, C] of each head that may be used, the last one's last; NaN where not needed."""
    memory: Sequence[int] = (0, 0)
    """Peaks of the processes that it started on this worker, in bytes: resident, private."""
    val_by_layer: Sequence[float] = ()
    """Validation metric of each layer that trained by itself; empty without validation nodes."""


def place_rows(rows: Tensor, mask: Tensor) -> Tensor:
    """Return the rows of the nodes in a mask, bool [I], at their places: [I, D], NaN elsewhere.

    On the CPU, as TrainResult has them.
    """
    all_rows = torch.full((len(mask), rows.shape[1]), torch.nan, dtype=rows.dtype)
    all_rows[mask] = rows.cpu()
    return all_rows
