"""What a trainer is given on one worker, and what it returns.

I inner nodes, H halo nodes, F features, C classes.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from partitioning.directory.partition import Partition
from retexo.comm.collectives import Communicator
from retexo.exchange.exchange_plan import ExchangePlan, PlanOptions
from retexo.launch.heartbeat import Progress
from retexo.models.block import InEdges
from retexo.models.convolution import Convolution
from retexo.results.run_log import RunLog
from retexo.rounds.graph_info import GraphInfo
from retexo.rounds.objective import LayerObjective, choose_batch_size, choose_val_stride
from retexo.rounds.recovery import Recovery
from retexo.settings.run_settings import TrainSettings

PHASES = ("load", "plan", "exchange", "aggregate", "rounds", "embed", "evaluate")
TOLD_AS = {"rounds": "round", "embed": "embedding", "evaluate": "evaluation"}


class Clock:
    """Seconds spent in each phase, none of them in two; it also reports the phase to the worker's parent."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.progress = progress or Progress()
        self._inner = 0.0
        """Seconds of phases within the one that is open."""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """One phase may be part of another, as the exchanges of smoothing are of the evaluation."""
        self.progress.enter(TOLD_AS.get(name, name))
        start, before, self._inner = time.perf_counter(), self._inner, 0.0
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.seconds[name] += seconds - self._inner
            self._inner = before + seconds


@dataclass(eq=False, kw_only=True)
class RunContext:
    """What every trainer works with on one worker, of whatever kind the graph is."""

    settings: TrainSettings
    partition: Partition
    """Of the nodes that have labels."""
    labels: Tensor
    """[I] or [I, C], on the device."""
    graph_info: GraphInfo
    """Of the whole graph."""
    task: Any
    """A Task: its objective and its scores know which."""
    comm: Communicator
    device: torch.device
    log: RunLog
    directory: Path = Path()
    """The partition directory."""
    save_layer: Callable[[int, nn.Module], None]
    """Write a trained stage, or a network of the trainer's own, to the checkpoint; only rank 0 does so."""
    recovery: Recovery | None = None
    """Where the state of rounds is saved; None for a trainer that does not resume."""
    clock: Clock = field(default_factory=Clock)

    @property
    def rows_asked_for(self) -> list[int]:
        """Of a site, by rank of how many of its nodes another may get rows; else empty."""
        return [len(nodes) for nodes in self.partition.asked_for or ()]

    @property
    def batch_size(self) -> int | None:
        """Training nodes of this worker that a step is made from; None for all."""
        return choose_batch_size(
            self.settings, int(self.partition.train_mask.sum()), self.graph_info.num_train
        )

    @property
    def val_stride(self) -> int:
        """See retexo.rounds.objective.val_step_of."""
        return choose_val_stride(self.settings, self.graph_info.num_train, self.graph_info.num_val)

    @property
    def computed(self) -> Tensor:
        """The nodes whose logits are computed, bool [I]."""
        raise NotImplementedError

    def release_features(self) -> None:
        """They are of no more use."""
        raise NotImplementedError

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        return self.clock.phase(name)


@dataclass(eq=False, kw_only=True)
class Context(RunContext):
    """Everything that a trainer works with on one worker; only `features` ever changes."""

    features: Tensor
    """[I, F] in the precision of the computation, on the host; the partition no longer has them, so that a trainer can
    release them here."""
    edges: InEdges
    plan: ExchangePlan
    plan_options: PlanOptions
    """What the plan was made from."""
    halo_features: Tensor | None = None
    """[H, F] where every worker makes them itself; None: they are sent."""
    make_objective: "Callable[..., LayerObjective] | None" = None
    """What rounds train on, as layerwise.make_layer_objective; None for that."""
    ends: Any = None
    """retexo.trainers.link_prediction.Ends, once they are known."""
    edge_means: Tensor | None = None
    """[I, K] means of the in-edges' features, weighted as these are, 0 for none; None where the model reads none."""

    @property
    def computed(self) -> Tensor:
        return self.plan.required_layers >= self.settings.model.num_layers

    def release_features(self) -> None:
        self.features = self.features[:0].clone()

    def source_scale(self, conv: Convolution) -> Tensor | None:
        """The factors of this worker's own rows in a layer's sums, [I]; None for ones."""
        return conv.source_scale(self.edges.out_degree[: self.partition.num_inner])


def in_edges(
    partition: Partition,
    conv: Convolution,
    in_degree: Tensor,
    out_degree: Tensor,
    dtype: torch.dtype,
) -> InEdges:
    """The in-edges of a partition, with features for attention, which reads a weight as one more, the last."""
    weight, feat = partition.edge_weight, partition.edge_feat if conv.attention_heads else None
    if conv.reads_relations:
        assert partition.edge_relation is not None
        feat = nn.functional.one_hot(partition.edge_relation, partition.num_relations)
    if conv.attention_heads and weight is not None:
        feat = weight[:, None] if feat is None else torch.cat((feat, weight[:, None]), dim=1)
    return InEdges.build(
        partition.src, partition.dst, in_degree, out_degree, dtype, weight=weight, edge_feat=feat
    )


def edge_means(partition: Partition, dtype: torch.dtype) -> Tensor | None:
    """Context.edge_means, for a model that reads them."""
    if partition.edge_feat is None:
        return None
    weight = torch.ones(1, 1) if partition.edge_weight is None else partition.edge_weight[:, None]
    total = torch.zeros(partition.num_inner, partition.edge_feat.shape[1], dtype=dtype)
    total.index_add_(0, partition.dst, partition.edge_feat.to(dtype) * weight)
    return total / torch.where(partition.in_degree > 0, partition.in_degree, 1)[:, None].to(dtype)


@dataclass(frozen=True, eq=False)
class TrainResult:
    """What a trainer returns."""

    rounds: list[int]
    """Rounds per layer; one number for a network that is trained end to end."""
    logits: list[Tensor]
    """[I, C] of each head that may answer, the last one's last; NaN at nodes that no worker needs."""
    memory: Sequence[int] = (0, 0)
    """Peaks of the processes that it started on this worker, in bytes: resident, and without what is shared."""
