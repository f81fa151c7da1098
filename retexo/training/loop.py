"""The rounds of one layer, or of a network that is trained end to end, to convergence.

A round is one agreed step. Its message carries each worker's share of the step and its counts on the validation nodes,
which score the parameters that the round starts from; so the validation metric costs no message of its own. It also
says whether a worker was told to stop: then all of them end after the same round, which they keep.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from retexo.comm.collectives import Communicator, Summand
from retexo.comm.traffic import OF_ROUNDS, Purpose
from retexo.config.settings import TrainSettings
from retexo.errors import Stopped, TrainingError
from retexo.nn.convolution import Inputs
from retexo.nn.matrix import Matrix, Place
from retexo.nn.stage import Stage
from retexo.training.agreement import FlatParameters, Learner, build_agreement, build_optimizer
from retexo.training.recovery import Recovery
from retexo.training.reduction import GradientReduction, Wire, build_reduction, used_rows
from retexo.training.task import NodeClassification, from_digits, micro_f1, to_digits


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


class RoundLog(Protocol):
    """Where the course of training is reported."""

    def round(self, layer: int, number: int, train_loss: float | None, val_metric: float | None) -> None:
        """After `number` rounds; train_loss is the one that the next round starts from, None where there is none."""


class Convergence:
    """The best round so far, and whether it is long ago. Ties go to the earlier round."""

    def __init__(self, patience: int | None, min_delta: float) -> None:
        self.patience, self.min_delta = patience, min_delta
        self.best_round, self.best_metric = 0, -math.inf

    def is_better(self, metric: float) -> bool:
        return metric > self.best_metric + (self.min_delta if math.isfinite(self.best_metric) else 0)

    def improved(self, number: int, metric: float) -> bool:
        """Take note of the metric after `number` rounds; whether it is the best."""
        # The untrained parameters of round 0 are no candidate, but the first that comes is.
        if number == 0 or not self.is_better(metric):
            return False
        self.best_round, self.best_metric = number, metric
        return True

    def exhausted(self, number: int) -> bool:
        """Whether the layer ends after `number` rounds, unless these are better than all before."""
        return self.patience is not None and number - self.best_round >= self.patience


@dataclass(eq=False)
class RoundState:
    """All that the rounds of a layer change."""

    layer: int
    learner: Learner
    message: "Message"
    convergence: Convergence
    best: Tensor
    """[P] the parameters of the best round."""
    number: int = 0
    """Rounds so far."""

    def outcome(self) -> dict[str, Any]:
        """What is kept of a layer that has ended."""
        device = self.best.device
        return {
            "number": self.number,
            "values": self.learner.flat.values,
            "random": torch.get_rng_state(),  # dropout draws from it
            "random_cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            "sent": self.message.comm.meter.of_layer(self.layer, OF_ROUNDS),
        }

    def take_over(self, outcome: dict[str, Any]) -> None:
        self.number = outcome["number"]
        self.learner.flat.values.copy_(outcome["values"])
        torch.set_rng_state(outcome["random"])
        if outcome["random_cuda"] is not None:
            torch.cuda.set_rng_state(outcome["random_cuda"], self.best.device)
        self.message.comm.meter.restore(self.layer, outcome["sent"])

    def state(self) -> dict[str, Any]:
        """What is kept of a layer that goes on."""
        return {
            **self.outcome(),
            "best": self.best,
            "best_round": self.convergence.best_round,
            "best_metric": self.convergence.best_metric,
            "optimizer": self.learner.optimizer.state_dict()["state"],
            "memory": self.message.gradient.memory(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.take_over(state)
        self.best.copy_(state["best"])
        self.convergence.best_round, self.convergence.best_metric = state["best_round"], state["best_metric"]
        optimizer = self.learner.optimizer
        optimizer.load_state_dict({"state": state["optimizer"], "param_groups": optimizer.state_dict()["param_groups"]})
        for tensor, kept in zip(self.message.gradient.memory(), state["memory"], strict=True):
            tensor.copy_(kept)


def run_rounds(
    layer_task: Task, settings: TrainSettings, comm: Communicator, log: RoundLog, recovery: Recovery | None = None
) -> int:
    """Train a stage, or a network, until it converges or reaches its limit; return the number of rounds.

    It ends with the parameters of the best validation round, the same on every worker. Raises Stopped once any
    worker is told to end. keeper: None to keep nothing.
    """
    layer, flat = layer_task.layer, flat_parameters(layer_task, comm)
    round_state = RoundState(
        layer,
        _learner(layer_task, settings, flat),
        build_message(layer_task, settings, comm, flat),
        Convergence(settings.stopping.patience, settings.stopping.min_delta),
        flat.values.clone(),
    )
    if recovery and (outcome := recovery.finished(layer)):
        round_state.take_over(outcome)
        return round_state.number
    if recovery and (state := recovery.started(layer)):
        round_state.restore(state)
    _go_on(round_state, layer_task, settings, log, recovery)
    flat.values.copy_(round_state.best)
    if recovery:
        recovery.finish(layer, round_state.outcome())
    return round_state.number


def _go_on(
    round_state: RoundState, layer_task: Task, settings: TrainSettings, log: RoundLog, recovery: Recovery | None
) -> None:
    """Rounds until the layer ends."""
    agreement = build_agreement(settings.gradient, round_state.learner)
    message, convergence, values = round_state.message, round_state.convergence, round_state.learner.flat.values
    first, limit = round_state.number, settings.num_rounds[round_state.layer]
    while True:
        number = round_state.number
        if recovery and number > first and (message.stops or recovery.is_due(number)):
            recovery.keep(round_state.layer, number, round_state.state())
        if message.stops:
            raise Stopped(f"told to stop; layer {round_state.layer} is kept after {number} rounds")
        message.stop_asked = recovery is not None and recovery.stop_asked()
        val_counts = layer_task.val_counts()
        loss = None
        # Where this may be the end, the counts go first, alone: a step that nobody takes is not sent.
        ends = number == limit or (layer_task.totals.val > 0 and convergence.exhausted(number))
        metric = message.share_counts(val_counts) if ends else None
        ends = number == limit or (ends and metric is not None and not convergence.is_better(metric))
        if not ends:
            loss, metric = message.share_step(agreement.propose(), val_counts)
        log.round(round_state.layer, number, loss, metric)
        if metric is None or convergence.improved(number, metric) or not settings.best_val_model:
            round_state.best.copy_(values)
        if ends:
            return
        agreement.apply()
        round_state.number += 1


def flat_parameters(layer_task: Task, comm: Communicator) -> FlatParameters:
    """The parameters of the stage, with what of them can have a gradient on any worker."""
    module = layer_task.module
    used = used_rows(*layer_task.first_inputs(), comm, Purpose("setup", layer_task.traffic_layer))
    size = sum(parameter.numel() for parameter in module.parameters())
    return FlatParameters(module, next(module.parameters()).new_zeros(size), used)


def _learner(layer_task: Task, settings: TrainSettings, flat: FlatParameters) -> Learner:
    optimizer = build_optimizer(settings.optimizer, settings.learning_rate[layer_task.layer], layer_task.module)
    return Learner(
        flat, optimizer, layer_task.losses, layer_task.num_train, layer_task.totals.train, joint=layer_task.joint
    )


def build_message(layer_task: Task, settings: TrainSettings, comm: Communicator, flat: FlatParameters) -> "Message":
    dtype = torch.bfloat16 if settings.gradient.precision == "bf16" else None
    zero_ranks: frozenset[int] = frozenset() if layer_task.joint else layer_task.totals.untrained
    wire = Wire(comm, Purpose("gradients", layer_task.traffic_layer), dtype, zero_ranks)
    return Message(layer_task, comm, build_reduction(settings.gradient, flat, wire), flat)


class Message:
    """The one message of a round: the step, and its tail.

    The tail: the loss, how many workers were told to stop, then the digits of three validation counts.
    """

    TAIL = 2 + 2 * 3

    def __init__(self, layer_task: Task, comm: Communicator, gradient: GradientReduction, flat: FlatParameters) -> None:
        self._tail = flat.gradient.new_zeros(self.TAIL)
        self.gradient, self.comm = gradient, comm
        self._layer, self._traffic_layer, self._totals = layer_task.layer, layer_task.traffic_layer, layer_task.totals
        self.stop_asked = False
        """Whether this worker was told to stop."""
        self.stops = False
        """Whether any worker was, by the last message."""

    def share_step(self, loss: float, val_counts: Tensor) -> tuple[float, float | None]:
        """Add up the step over all workers; return the mean training loss and the validation metric."""
        self._fill(loss, val_counts)
        self.gradient.add_up(self._tail)
        mean_loss = float(self._tail[0]) / self._totals.train
        if not math.isfinite(mean_loss):
            raise TrainingError(f"layer {self._layer}: the training loss is {mean_loss}; lower learning_rate")
        return mean_loss, self._metric()

    def share_counts(self, val_counts: Tensor) -> float | None:
        """The validation metric alone."""
        self._fill(0.0, val_counts)
        self.comm.all_reduce([Summand(self._tail)], Purpose("metrics", self._traffic_layer))
        return self._metric()

    def _fill(self, loss: float, val_counts: Tensor) -> None:
        self._tail[0], self._tail[1] = loss, self.stop_asked
        self._tail[2:] = to_digits(val_counts, self._tail.dtype)

    def _metric(self) -> float | None:
        """The validation metric; also takes note of who was told to stop."""
        self.stops = bool(self._tail[1] > 0)
        return micro_f1(from_digits(self._tail[2:])) if self._totals.val else None
