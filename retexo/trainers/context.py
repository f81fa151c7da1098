"""What a trainer is given: this worker's part of the graph, the others' reach, and where to report.

I inner nodes, H halo nodes, F features, C classes.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from partitioning.directory.types import Partition
from retexo.cluster.heartbeat import Progress
from retexo.comm.collectives import Communicator
from retexo.config.settings import TrainSettings
from retexo.exchange.plan import ExchangePlan, PlanRequest
from retexo.nn.block import InEdges
from retexo.nn.convolution import Convolution
from retexo.training.loop import RoundLog
from retexo.training.objective import Totals
from retexo.training.recovery import Recovery
from retexo.training.task import NodeClassification

PHASES = ("load", "plan", "exchange", "aggregate", "rounds", "embed", "evaluate")
TOLD_AS = {"rounds": "round", "embed": "embedding", "evaluate": "evaluation"}


class Clock:
    """Seconds spent in each phase; which phase it is, the worker's parent is told."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.progress = progress or Progress()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.progress.enter(TOLD_AS.get(name, name))
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start


@dataclass(eq=False)
class Context:
    """Everything that a trainer works with on one worker; nothing but `features` ever changes."""

    settings: TrainSettings
    partition: Partition
    features: Tensor
    """[I, F] in the precision that is computed in, on the host; the partition has them no more, so that a trainer which
    is done with them can release them here."""
    labels: Tensor
    """[I] or [I, C], on the device."""
    edges: InEdges
    plan: ExchangePlan
    plan_request: PlanRequest
    """What the plan was made from."""
    totals: Totals
    num_features: int
    """F, also of a part without nodes."""
    task: NodeClassification
    comm: Communicator
    device: torch.device
    log: RoundLog
    save_layer: Callable[[int, nn.Module], None]
    """Checkpoint a trained stage, or a network of the trainer's own; does nothing on workers other than rank 0."""
    recovery: Recovery | None = None
    """Where rounds are kept, for a run that may be interrupted."""
    clock: Clock = field(default_factory=Clock)

    def source_scale(self, conv: Convolution) -> Tensor | None:
        """What a layer multiplies this worker's own rows with before it adds them up, [I]; None for nothing."""
        return conv.source_scale(self.edges.out_degree[: self.partition.num_inner])

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        return self.clock.phase(name)


@dataclass(frozen=True, eq=False)
class TrainResult:
    """What a trainer returns."""

    rounds: list[int]
    """One a layer; of a network that is trained end to end one number."""
    logits: Tensor
    """[I, C]; NaN at nodes that nobody needs."""
