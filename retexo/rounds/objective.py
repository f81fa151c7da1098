"""What rounds train: a module, its loss summed over this worker's nodes, and its counts on the validation nodes.

n nodes, F input width, D hidden width, C classes.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from retexo.comm.traffic_meter import WHOLE_RUN
from retexo.models.convolution import Inputs
from retexo.models.matrix import Matrix, RowIndex
from retexo.models.stage import Stage
from retexo.rounds.graph_info import GraphInfo
from retexo.settings.run_settings import TrainSettings
from retexo.tasks.task import Task

MAX_CHUNK_ROWS = 1 << 12
"""Rows of a round that go through a stage together on a CPU: what is larger leaves its caches between two operations,
and takes memory that is cleared anew each time."""
AUTO_BATCH_SIZE = 32_768
"""Training nodes of all workers together that a step is made from with batch_size=auto, where there are four times as
many: of fewer all are as good."""
AUTO_NUM_VAL = 8_192
"""Validation nodes of all workers together, about, that score a round then."""


def choose_batch_size(settings: TrainSettings, own: int, total: int) -> int | None:
    """The batch size of a worker with so many of all training nodes; None: all of them, always."""
    if not isinstance(settings.batch_size, str):
        return settings.batch_size
    return (
        max(1, -(-AUTO_BATCH_SIZE * own // total)) if _uses_auto_batches(settings, total) else None
    )


def choose_patience(settings: TrainSettings, objective: "Objective") -> int | None:
    """Rounds without a better one after which it ends, of a whole network as of a last layer.

    Of batch_size=auto they are more, by how noisy its steps are.
    """
    num_layers, total = settings.model.num_layers, objective.graph_info.num_train
    layer = num_layers - 1 if objective.traffic_layer == WHOLE_RUN else objective.layer
    factor = math.sqrt(total / AUTO_BATCH_SIZE) if _uses_auto_batches(settings, total) else 1
    return settings.stopping.patience_of(layer, num_layers, factor)


def choose_val_stride(settings: TrainSettings, total: int, num_val: int) -> int:
    """Of the validation nodes one in so many scores a round, the same ones in all rounds; 1 without batch_size=auto.

    total: training nodes. Which round is the best is then chosen by fewer nodes, with as much noise as its steps have.
    """
    return max(1, num_val // AUTO_NUM_VAL) if _uses_auto_batches(settings, total) else 1


def _uses_auto_batches(settings: TrainSettings, total: int) -> bool:
    is_auto = settings.batch_size == "auto" and not settings.task.links
    return is_auto and total >= 4 * AUTO_BATCH_SIZE


class Objective(Protocol):
    """What rounds minimise, on one worker."""

    @property
    def layer(self) -> int:
        """The entry of num_rounds and learning_rate that counts."""

    @property
    def traffic_layer(self) -> int:
        """The layer that the traffic meter counts the messages under."""

    @property
    def graph_info(self) -> GraphInfo: ...

    @property
    def task(self) -> Task: ...

    @property
    def module(self) -> nn.Module:
        """All of its parameters are trained."""

    @property
    def num_train(self) -> int:
        """Seeds of this worker that train."""

    @property
    def exchanges_rows(self) -> bool:
        """Whether workers exchange rows within losses and val_counts, so that all of them have to compute these."""

    def begin_round(self, number: int) -> None:
        """A round begins, which what is drawn in it may depend on."""

    def first_inputs(self) -> tuple[Sequence[nn.Parameter], Iterable[Sequence[Matrix]]]:
        """The first weights [F, D], and chunk by chunk what training multiplies each with, [n, F]."""

    def losses(self) -> Iterator[Tensor]:
        """The loss summed over this worker's training nodes, as one summand or several, one at a time."""

    def val_counts(self) -> Tensor:
        """What Task.metric takes, of this worker's validation seeds; int64 [3]."""


@dataclass(frozen=True, eq=False)
class LabelledNodes:
    """Nodes of this worker with their inputs and labels."""

    nodes: Tensor
    """int64 [n]"""
    labels: Tensor
    """[n] or [n, C]"""
    inputs: Callable[[RowIndex], Inputs]
    """Of some of the nodes, by their positions in `nodes`; at least one."""
    chunks: tuple[slice, ...]
    """Positions that go through the network together; all chunks cover all nodes."""

    @classmethod
    def from_inputs(
        cls, nodes: Tensor, labels: Tensor, inputs: Inputs | None, batch_size: int | None = None
    ) -> Self:
        """With inputs that are made already; None without nodes."""
        step = batch_size or max(1, len(nodes))
        if inputs is not None and inputs.dense_on_host:
            step = min(step, MAX_CHUNK_ROWS)
        chunks = tuple(slice(first, first + step) for first in range(0, len(nodes), step))

        def some(place: RowIndex) -> Inputs:
            assert inputs is not None
            is_all = isinstance(place, slice) and place.step in (None, 1) and len(chunks) == 1
            return inputs if is_all else inputs.at(place)

        return cls(nodes, labels, some, chunks)


@dataclass(frozen=True, eq=False)
class LayerObjective:
    """One layer's stage on this worker's labelled nodes, `train` and `val`."""

    layer: int
    stage: Stage
    task: Any
    """Here NodeClassification."""
    train: LabelledNodes
    val: LabelledNodes
    graph_info: GraphInfo
    batch_size: int | None = None
    """Training nodes per step; None for all."""
    val_stride: int = 1
    """See val_step_of."""
    exchanges_rows = False

    @property
    def traffic_layer(self) -> int:
        return self.layer

    @property
    def module(self) -> nn.Module:
        return self.stage

    @property
    def num_train(self) -> int:
        return len(self.train.labels)

    @property
    def nodes_per_round(self) -> LabelledNodes:
        """The nodes that go through the stage in a round."""
        return self.train

    def begin_round(self, number: int) -> None:
        """Nothing depends on it: batches are drawn from torch's generator, whose state is saved with the round."""

    def first_inputs(self) -> tuple[Sequence[nn.Parameter], Iterable[Sequence[Matrix]]]:
        inputs = (self.nodes_per_round.inputs(place) for place in self.nodes_per_round.chunks)
        return self.stage.first_weights, ((*each.matrices, *each.skips) for each in inputs)

    def losses(self) -> Iterator[Tensor]:
        self.stage.train()
        for place, weight in self._batches():
            logits = self.stage.logits(self.train.inputs(place))
            yield self.task.loss_sum(logits, self.train.labels[place]) * weight

    def _batches(self) -> list[tuple[RowIndex, float]]:
        """Positions in `train` that a step uses, and the factor of their loss: a random batch stands for all nodes."""
        size, count = self.batch_size, self.num_train
        if size is None or size >= count:
            return [(place, 1.0) for place in self.train.chunks]
        return [(torch.randperm(count)[:size], count / size)]

    @torch.no_grad()
    def val_counts(self) -> Tensor:
        self.stage.eval()
        counts = torch.zeros(3, dtype=torch.int64)
        for chunk in self.val.chunks:
            place = slice(chunk.start, chunk.stop, self.val_stride)
            logits = self.stage.logits(self.val.inputs(place))
            counts += self.task.totals(logits, self.val.labels[place])
        return counts
