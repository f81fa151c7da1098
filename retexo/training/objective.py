"""What rounds train: a module, its summed loss, and its counts on the validation nodes.

n nodes, F input width, C classes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from retexo.nn.convolution import Inputs
from retexo.nn.matrix import Matrix, Place
from retexo.nn.stage import Stage
from retexo.training.task import NodeClassification


@dataclass(frozen=True)
class Totals:
    """Nodes of each split over all workers."""

    train: int
    val: int
    test: int
    untrained: frozenset[int]
    """Ranks without training nodes."""


@dataclass(frozen=True, eq=False)
class LabelledNodes:
    """Nodes of this worker with their inputs and labels."""

    nodes: Tensor
    """int64 [n]"""
    labels: Tensor
    """[n] or [n, C]"""
    inputs: Callable[[Place], Inputs]
    """Of some of the nodes, by their places; at least one."""
    pieces: tuple[slice, ...]
    """Places that go through the network together, all in all everyone's; none without nodes."""

    @classmethod
    def of(cls, nodes: Tensor, labels: Tensor, inputs: Inputs | None, batch_size: int | None = None) -> Self:
        """With inputs that are there; None without nodes."""
        step = batch_size or max(1, len(nodes))
        pieces = tuple(slice(first, first + step) for first in range(0, len(nodes), step))

        def some(place: Place) -> Inputs:
            assert inputs is not None
            return inputs if isinstance(place, slice) and len(pieces) == 1 else inputs.at(place)

        return cls(nodes, labels, some, pieces)

    @property
    def count(self) -> int:
        return len(self.labels)


class Task(Protocol):
    """What rounds train."""

    @property
    def layer(self) -> int:
        """The entry of num_rounds and learning_rate that counts."""

    @property
    def traffic_layer(self) -> int:
        """The layer that the account puts the messages under."""

    @property
    def totals(self) -> Totals: ...

    @property
    def module(self) -> nn.Module:
        """Its parameters are trained, all of them."""

    @property
    def num_train(self) -> int:
        """Training nodes of this worker."""

    @property
    def joint(self) -> bool:
        """Whether workers exchange rows within losses and val_counts, so that all of them have to compute these."""

    def first_inputs(self) -> tuple[Sequence[nn.Parameter], Iterable[Sequence[Matrix]]]:
        """The first weights [F, D], and piece by piece what training multiplies each with, [n, F]."""

    def losses(self) -> Iterator[Tensor]:
        """The loss, summed over this worker's training nodes, in one share or several, one at a time."""

    def val_counts(self) -> Tensor:
        """True positives, false positives and false negatives on this worker's validation nodes; int64 [3]."""


@dataclass(frozen=True, eq=False)
class LayerTask:
    """What the rounds of one layer work on; `train` and `val` are this worker's."""

    layer: int
    stage: Stage
    task: NodeClassification
    train: LabelledNodes
    val: LabelledNodes
    totals: Totals
    batch_size: int | None = None
    """Training nodes a step; None for all."""
    joint = False

    @property
    def traffic_layer(self) -> int:
        return self.layer

    @property
    def module(self) -> nn.Module:
        return self.stage

    @property
    def num_train(self) -> int:
        return self.train.count

    def first_inputs(self) -> tuple[Sequence[nn.Parameter], Iterable[Sequence[Matrix]]]:
        return self.stage.conv.first_weights, (self.train.inputs(place).matrices for place in self.train.pieces)

    def losses(self) -> Iterator[Tensor]:
        self.stage.train()
        for place, weight in self._step():
            logits = self.stage.logits(self.train.inputs(place))
            yield self.task.loss_sum(logits, self.train.labels[place]) * weight

    def _step(self) -> list[tuple[Place, float]]:
        """Places in train that a step goes by, and the factor of their loss: a batch stands for all."""
        size, count = self.batch_size, self.train.count
        if size is None or size >= count:
            return [(place, 1.0) for place in self.train.pieces]
        return [(torch.randperm(count)[:size], count / size)]

    @torch.no_grad()
    def val_counts(self) -> Tensor:
        self.stage.eval()
        counts = torch.zeros(3, dtype=torch.int64)
        for place in self.val.pieces:
            logits = self.stage.logits(self.val.inputs(place))
            counts += self.task.counts(logits, self.val.labels[place]).sum(dim=1).cpu()
        return counts
