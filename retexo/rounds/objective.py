"""The training objective: a module, its loss on this worker's nodes, and its validation counts.

n nodes, F input width, D hidden width, C classes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from retexo.models.convolution import Inputs
from retexo.models.matrix import Matrix, RowIndex
from retexo.models.stage import Stage
from retexo.rounds.graph_info import GraphInfo
from retexo.settings.run_settings import TrainSettings

MAX_CHUNK_ROWS = 1 << 12
"""Rows that go through a stage together on a CPU; larger chunks leave the caches."""
AUTO_BATCH_SIZE = 32_768
"""Training nodes per step over all workers with batch_size=auto, on large graphs."""
LARGE = 4 * AUTO_BATCH_SIZE
"""Training nodes from which on a graph is large."""
AUTO_NUM_VAL = 8_192
"""Approximate number of validation nodes, over all workers, of a round with batch_size=auto."""


def choose_batch_size(settings: TrainSettings, own: int, total: int) -> int | None:
    """Return this worker's batch size, or None for full-batch steps.

    Args:
        own: this worker's training nodes.
        total: training nodes of all workers.
    """
    if not isinstance(settings.batch_size, str):
        return settings.batch_size
    return (
        max(1, -(-AUTO_BATCH_SIZE * own // total)) if _uses_auto_batches(settings, total) else None
    )


def choose_precision(settings: TrainSettings, info: GraphInfo) -> str:
    """Return the precision of dense products, where auto stands for one of the others."""
    if settings.compute.precision != "auto":
        return settings.compute.precision
    return "bf16" if info.fast_bf16 and _is_large(settings, info.num_train) else "fp32"


def choose_patience(settings: TrainSettings, objective: "Objective") -> int | None:
    """Return the number of rounds without improvement after which the layer ends, or None.

    batch_size=auto needs more patience, because its steps are noisier.
    """
    patience, total = settings.stopping.patience, objective.graph_info.num_train
    if patience is None or not _uses_auto_batches(settings, total):
        return patience
    return math.ceil(math.sqrt(total / AUTO_BATCH_SIZE) * patience)


def choose_val_stride(settings: TrainSettings, total: int, num_val: int) -> int:
    """Return s such that every s-th validation node scores the rounds; 1 without batch_size=auto.

    Args:
        total: training nodes of all workers.
        num_val: validation nodes of all workers.
    """
    return max(1, num_val // AUTO_NUM_VAL) if _uses_auto_batches(settings, total) else 1


def _uses_auto_batches(settings: TrainSettings, total: int) -> bool:
    """Return whether batch_size=auto applies to a graph with this many training nodes."""
    return settings.batch_size == "auto" and _is_large(settings, total)


def _is_large(settings: TrainSettings, total: int) -> bool:
    """Return whether nodes are trained, and so many that defaults change."""
    return total >= LARGE and not settings.task.links


@dataclass(frozen=True, eq=False)
class Validation:
    """What a worker counts on its validation seeds in one round."""

    counts: Tensor
    """int64 [K], the input of RoundMetric.value."""
    loss: float = 0.0
    """Sum over the seeds; 0 without RoundMetric.with_loss."""


class Objective(ABC):
    """What rounds minimise, on one worker."""

    layer: int
    """Index of this objective in num_rounds and learning_rate."""
    graph_info: GraphInfo
    task: Any
    """A Task that has the loss and the counts of this objective."""
    exchanges_rows = False
    """Whether `losses` and `validate` communicate, so that all workers have to call them."""
    starts_trained = False
    """Whether the parameters before the first round may be the best ones."""

    @property
    @abstractmethod
    def module(self) -> nn.Module:
        """Return the module to train."""

    @property
    @abstractmethod
    def num_train(self) -> int:
        """Number of this worker's training seeds (nodes or links)."""

    @property
    def traffic_layer(self) -> int:
        """Layer under which the traffic meter counts the messages."""
        return self.layer

    @cached_property
    def metric(self) -> Any:
        """Return the validation metric of these rounds."""
        return self.task.make_round_metric()

    def begin_round(self, number: int) -> None:  # noqa: B027
        """Prepare a round; random draws may depend on its number.

        Batches that are drawn from torch's generator, whose state is saved, need nothing.
        """

    @abstractmethod
    def first_inputs(self) -> tuple[Sequence[nn.Parameter], Iterable[Sequence[Matrix]]]:
        """Return the first weights [F, D] and, in chunks, the training inputs [n, F] of each."""

    @abstractmethod
    def losses(self) -> Iterator[Tensor]:
        """Yield summands of the loss, summed over this worker's training nodes or links.

        Sets the module to training mode; `validate` sets evaluation mode if it computes anything.
        """

    @abstractmethod
    def validate(self) -> Validation:
        """Return the counts and the loss of this worker's validation seeds."""


@dataclass(frozen=True, eq=False)
class LabelledNodes:
    """Nodes of this worker with their inputs and labels."""

    nodes: Tensor
    """int64 [n]"""
    labels: Tensor
    """[n] or [n, C]"""
    inputs: Callable[[RowIndex], Any]
    """Returns the inputs of some of the nodes, given their positions in `nodes` (at least one)."""
    chunks: tuple[slice, ...]
    """Positions that go through the network together. The chunks cover all nodes."""

    @classmethod
    def from_inputs(
        cls, nodes: Tensor, labels: Tensor, inputs: Inputs | None, batch_size: int | None = None
    ) -> Self:
        """Make LabelledNodes from precomputed inputs.

        inputs: None if there are no nodes; batch_size: nodes of a chunk, None for as many as fit.
        """
        step = batch_size or max(1, len(nodes))
        if inputs is not None and inputs.dense_on_host:
            step = min(step, MAX_CHUNK_ROWS)
        chunks = tuple(slice(first, first + step) for first in range(0, len(nodes), step))

        def select_inputs(place: RowIndex) -> Inputs:
            assert inputs is not None
            is_all = isinstance(place, slice) and place.step in (None, 1) and len(chunks) == 1
            return inputs if is_all else inputs.at(place)

        return cls(nodes, labels, select_inputs, chunks)


@dataclass(frozen=True, eq=False)
class LayerObjective(Objective):
    """One layer's stage on this worker's training and validation nodes."""

    layer: int
    stage: Stage
    task: Any
    """NodeClassification or another node task."""
    train: LabelledNodes
    val: LabelledNodes
    graph_info: GraphInfo
    batch_size: int | None = None
    """Training nodes per step; None for all."""
    val_stride: int = 1
    """See choose_val_stride."""
    starts_trained: bool = False

    @property
    def module(self) -> nn.Module:
        return self.stage

    @property
    def num_train(self) -> int:
        return len(self.train.labels)

    def labelled_inputs(self) -> Iterator[tuple[Tensor, Inputs]]:
        """Yield the training and validation nodes, int64 [n], with their inputs, by chunks."""
        for part in (self.train, self.val):
            for place in part.chunks if len(part.nodes) else ():
                yield part.nodes[place], part.inputs(place)

    @property
    def first_weights(self) -> tuple[nn.Parameter, ...]:
        """Return the weights that `all_matrices` of the inputs are multiplied with."""
        return self.stage.first_weights

    def first_inputs(self) -> tuple[Sequence[nn.Parameter], Iterable[Sequence[Matrix]]]:
        inputs = (self.train.inputs(place) for place in self.train.chunks)
        return self.first_weights, (chunk_inputs.all_matrices for chunk_inputs in inputs)

    def logits(self, inputs: Any) -> Sequence[Tensor]:
        """Return the logits [n, C] of each head that trains; the first one is validated."""
        return (self.stage.logits(inputs),)

    def losses(self) -> Iterator[Tensor]:
        """Yield the loss of each chunk and head, scaled up for a batch from torch's generator.

        Sets the module to training mode.
        """
        self.module.train()
        for place, weight in self.choose_batches():
            for logits in self.logits(self.train.inputs(place)):
                yield self.task.loss_sum(logits, self.train.labels[place]) * weight

    def choose_batches(self) -> list[tuple[RowIndex, float]]:
        """Return the positions in `train` that a step uses, and the factor of their loss.

        All of them, or a random batch of `batch_size`, drawn by torch's generator.
        """
        size, count = self.batch_size, self.num_train
        if size is None or size >= count:
            return [(place, 1.0) for place in self.train.chunks]
        return [(torch.randperm(count)[:size], count / size)]

    @torch.no_grad()
    def validate(self) -> Validation:
        """Count every val_stride-th validation node; its loss is multiplied by val_stride.

        Sets the module to evaluation mode.
        """
        self.module.eval()
        places = (slice(chunk.start, chunk.stop, self.val_stride) for chunk in self.val.chunks)
        pieces = (
            (self.logits(self.val.inputs(place))[0], self.val.labels[place]) for place in places
        )
        return count_validation(self.task, self.metric, pieces, self.val_stride)


def count_validation(
    task: Any, metric: Any, pieces: Iterable[tuple[Tensor, Tensor]], factor: int = 1
) -> Validation:
    """Return the counts and the summed loss of the validation nodes of a node task.

    Starts the metric anew. The loss is 0 unless the metric asks for it.

    Args:
        task: NodeClassification or another node task.
        metric: of these rounds.
        pieces: logits [n, C] and labels [n] or [n, C] of some of the nodes each.
        factor: of the loss, where the pieces stand for more nodes.
    """
    metric.start()
    counts, loss = torch.zeros(metric.num_counts, dtype=torch.int64), 0.0
    for logits, labels in pieces:
        counts += metric.count(logits, labels)
        if metric.with_loss:
            loss += float(task.loss_sum(logits, labels)) * factor
    return Validation(counts, loss)
