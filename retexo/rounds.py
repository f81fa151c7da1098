"""The rounds of one layer, to convergence.

A round is one agreed step. Its message carries each worker's share of the step and its counts on the validation nodes,
which score the parameters that the round starts from; so the validation metric costs no message of its own.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from retexo.comm.collectives import Communicator
from retexo.comm.traffic import Purpose
from retexo.config import TrainSettings
from retexo.errors import TrainingError
from retexo.gradients import Agreement, FlatParameters, Learner, build_agreement, build_optimizer
from retexo.layers.base import Inputs
from retexo.metrics import NodeClassification, from_digits, micro_f1, to_digits
from retexo.stage import Stage


@dataclass(frozen=True, eq=False)
class Labelled:
    """Nodes of this worker with their inputs and labels."""

    inputs: Inputs | None
    """None without nodes."""
    labels: Tensor
    """[n] or [n, C]"""

    @property
    def count(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class LayerTask:
    """What the rounds of one layer work on. `train` and `val` are this worker's, the totals are of all workers."""

    layer: int
    stage: Stage
    task: NodeClassification
    train: Labelled
    val: Labelled
    total_train: int
    total_val: int


class RoundLog(Protocol):
    """Where the course of training is reported."""

    def round(self, layer: int, number: int, train_loss: float | None, val_metric: float | None) -> None:
        """After `number` rounds; train_loss is the one that the next round starts from, None where there is none."""


class Convergence:
    """The best round so far, and whether it is long ago. Ties go to the earlier round."""

    def __init__(self, patience: int | None, min_delta: float) -> None:
        self.patience, self.min_delta = patience, min_delta
        self.best_round, self.best_metric = 0, -math.inf

    def improved(self, number: int, metric: float) -> bool:
        """Take note of the metric after `number` rounds; whether it is the best."""
        # The untrained parameters of round 0 are no candidate, but the first that comes is.
        if number == 0 or metric <= self.best_metric + (self.min_delta if math.isfinite(self.best_metric) else 0):
            return False
        self.best_round, self.best_metric = number, metric
        return True

    def exhausted(self, number: int) -> bool:
        return self.patience is not None and number - self.best_round >= self.patience


def run_rounds(layer_task: LayerTask, settings: TrainSettings, comm: Communicator, log: RoundLog) -> int:
    """Train a stage until it converges or reaches its limit; return the number of rounds.

    The stage ends with the parameters of the best validation round, the same on every worker.
    """
    message = Message(layer_task)
    flat = FlatParameters(layer_task.stage, message.gradient)
    agreement = _agreement(layer_task, settings, flat)
    convergence = Convergence(settings.stopping.patience, settings.stopping.min_delta)
    best = flat.values.clone()
    number, limit = 0, settings.num_rounds[layer_task.layer]
    while True:
        val_totals = _validate(layer_task)
        loss = agreement.propose() if number < limit else 0.0
        loss, metric = message.share(loss, val_totals, comm, with_step=number < limit)
        log.round(layer_task.layer, number, loss if number < limit else None, metric)
        if metric is None or convergence.improved(number, metric) or not settings.best_val_model:
            best.copy_(flat.values)
        if number == limit or (metric is not None and convergence.exhausted(number)):
            break
        agreement.apply()
        number += 1
    flat.values.copy_(best)
    return number


def _agreement(layer_task: LayerTask, settings: TrainSettings, flat: FlatParameters) -> Agreement:
    stage, train = layer_task.stage, layer_task.train

    def loss_sum() -> Tensor:
        assert train.inputs is not None
        stage.train()
        return layer_task.task.loss_sum(stage.logits(train.inputs), train.labels)

    optimizer = build_optimizer(settings.optimizer, settings.learning_rate[layer_task.layer], stage)
    learner = Learner(flat, optimizer, loss_sum, train.count, layer_task.total_train)
    return build_agreement(settings.gradient, learner)


@torch.no_grad()
def _validate(layer_task: LayerTask) -> Tensor:
    """True positives, false positives and false negatives on this worker's validation nodes; int64 [3]."""
    if layer_task.val.inputs is None:
        return torch.zeros(3, dtype=torch.int64)
    layer_task.stage.eval()
    logits = layer_task.stage.logits(layer_task.val.inputs)
    return layer_task.task.counts(logits, layer_task.val.labels).sum(dim=1)


class Message:
    """The one message of a round: gradient [P], then the loss, then the digits of three validation counts."""

    TAIL = 1 + 2 * 3

    def __init__(self, layer_task: LayerTask) -> None:
        parameters = list(layer_task.stage.parameters())
        size = sum(parameter.numel() for parameter in parameters)
        self._all = torch.zeros(size + self.TAIL, dtype=parameters[0].dtype, device=parameters[0].device)
        self.gradient, self._tail = self._all[:size], self._all[size:]
        self._layer, self._total_train, self._total_val = layer_task.layer, layer_task.total_train, layer_task.total_val

    def share(self, loss: float, val_totals: Tensor, comm: Communicator, with_step: bool) -> tuple[float, float | None]:
        """Add up the message over all workers; return the mean training loss and the validation metric."""
        self._tail[0] = loss
        self._tail[1:] = to_digits(val_totals, self._tail.dtype)
        if with_step:
            comm.all_reduce(self._all, Purpose("gradients", self._layer))
        else:
            comm.all_reduce(self._tail, Purpose("metrics", self._layer))
        mean_loss = float(self._tail[0]) / self._total_train
        if not math.isfinite(mean_loss):
            raise TrainingError(f"layer {self._layer}: the training loss is {mean_loss}; lower learning_rate")
        metric = micro_f1(from_digits(self._tail[1:])) if self._total_val else None
        return mean_loss, metric
