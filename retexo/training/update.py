"""None"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from retexo.config.optimizer import optimizer_arguments, optimizer_class
from retexo.config.settings import GradientSettings, OptimizerSettings
from retexo.training.parameters import FlatParameters


def build_optimizer(settings: OptimizerSettings, learning_rate: float, module: nn.Module) -> torch.optim.Optimizer:
    cls = optimizer_class(settings.target)
    arguments = dict(optimizer_arguments(settings))
    if "fused" in inspect.signature(cls).parameters and not {"foreach", "differentiable"} & arguments.keys():
        arguments.setdefault("fused", True)  # ten times as fast on a CPU as the default
    optimizer: torch.optim.Optimizer = cls(module.parameters(), lr=learning_rate, **arguments)
    return optimizer


@dataclass(frozen=True, eq=False)
class Learner:
    """What a worker trains with between two agreements."""

    flat: FlatParameters
    optimizer: torch.optim.Optimizer
    losses: Callable[[], Iterable[Tensor]]
    """Computes the sum of the loss over this worker's training nodes, as one share or several."""
    num_train: int
    """Training nodes of this worker, and of all workers."""
    total_train: int
    joint: bool = False
    """Whether workers exchange rows within a loss, forward and backward, so that all have to compute it."""

    def backward(self) -> float:
        """Put the gradient of the summed loss into flat.gradient; return the sum."""
        self.flat.gradient.zero_()
        if self.num_train == 0 and not self.joint:
            return 0.0
        total = 0.0
        for loss in self.losses():
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total


class Agreement(Protocol):
    """One way to agree on a round's step."""

    def propose(self) -> float:
        """Fill flat.gradient [P] with this worker's share; return the sum of the loss over its training nodes."""

    def apply(self) -> None:
        """Take the step that flat.gradient, by now the sum over all workers, stands for."""


class Synchronous:
    """Every round one exact full-batch step: the mean gradient over all training nodes."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def propose(self) -> float:
        return self.learner.backward()

    def apply(self) -> None:
        self.learner.flat.gradient /= self.learner.total_train
        self.learner.optimizer.step()


class LocalSteps:
    """Several optimiser steps on each worker's own nodes, then the mean change, weighted by training nodes.

    Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019. Each worker keeps its optimiser's state. What
    has no gradient anywhere changes alike on every worker (by weight decay), so it is not sent: each takes its own.
    """

    def __init__(self, learner: Learner, num_steps: int) -> None:
        self.learner, self.num_steps = learner, num_steps
        self._weight = torch.full_like(learner.flat.values, learner.num_train)
        used = learner.flat.used()
        if used is not None:
            unused = torch.ones_like(learner.flat.values, dtype=torch.bool)
            unused[used] = False
            self._weight[unused] = learner.total_train

    def propose(self) -> float:
        flat = self.learner.flat
        start = flat.values.clone()
        losses = [self._step() for _ in range(self.num_steps)]
        torch.sub(flat.values, start, out=flat.gradient)
        flat.gradient *= self._weight
        flat.values.copy_(start)
        return losses[0]

    def _step(self) -> float:
        loss = self.learner.backward()
        self.learner.flat.gradient /= max(1, self.learner.num_train)
        self.learner.optimizer.step()
        return loss

    def apply(self) -> None:
        flat = self.learner.flat
        flat.values.add_(flat.gradient, alpha=1 / self.learner.total_train)


def build_agreement(settings: GradientSettings, learner: Learner) -> Agreement:
    return Synchronous(learner) if settings.mode == "sync" else LocalSteps(learner, settings.local_epochs)
