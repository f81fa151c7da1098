"""Update rules: what each worker computes from its nodes, and how the sum is applied.

A rule writes to flat.gradient [P] what is summed over workers (`compute`), and updates the
parameters from the sum (`apply`).

P parameters of a stage.
"""

import inspect
from dataclasses import dataclass

import torch
from torch import nn

from retexo.rounds.adam import Adam
from retexo.rounds.objective import Objective
from retexo.rounds.parameters import FlatParameters
from retexo.settings.communication_settings import CommunicationSettings
from retexo.settings.optimizer import is_plain_adam, optimizer_arguments, optimizer_class
from retexo.settings.run_settings import OptimizerSettings


def build_optimizer(
    settings: OptimizerSettings, learning_rate: float, module: nn.Module
) -> torch.optim.Optimizer | Adam:
    """Build the optimiser that the settings name; fused if possible."""
    if is_plain_adam(settings):
        return Adam(module.parameters(), learning_rate, settings.weight_decay)
    cls = optimizer_class(settings)
    arguments = dict(optimizer_arguments(settings))
    if (
        "fused" in inspect.signature(cls).parameters
        and not {"foreach", "differentiable"} & arguments.keys()
    ):
        arguments.setdefault("fused", True)  # ten times as fast on a CPU
    optimizer: torch.optim.Optimizer = cls(module.parameters(), lr=learning_rate, **arguments)
    return optimizer


@dataclass(frozen=True, eq=False)
class LocalOptimizer:
    """One worker's optimiser and objective."""

    flat: FlatParameters
    optimizer: torch.optim.Optimizer | Adam
    objective: Objective

    def backward(self) -> float:
        """Write the gradient of the summed loss to flat.gradient; return the summed loss.

        A worker without training nodes computes nothing, unless it exchanges rows.
        """
        self.flat.gradient.zero_()
        if self.objective.num_train == 0 and not self.objective.exchanges_rows:
            return 0.0
        total = 0.0
        for loss in self.objective.losses():
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total


class SynchronousSGD:
    """One exact full-batch step per round: the mean gradient over all training nodes."""

    def __init__(self, local: LocalOptimizer) -> None:
        self.local = local

    def compute(self) -> float:
        """Write the gradient of the summed loss to flat.gradient; return that loss."""
        return self.local.backward()

    def apply(self) -> None:
        """Take one optimiser step with the mean gradient over all training nodes."""
        self.local.flat.gradient /= self.local.objective.graph_info.num_train
        self.local.optimizer.step()


class LocalSGD:
    """Several steps on each worker's own nodes, then the mean change, weighted by training nodes.

    Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019. Each worker keeps its
    optimiser's state. Parameters without gradient on any worker change equally everywhere (by
    weight decay), so their change is not sent.
    """

    def __init__(self, local: LocalOptimizer, num_steps: int) -> None:
        """Begin; num_steps: steps of a worker between two averages, at least 1."""
        self.local, self.num_steps = local, num_steps
        num_train, of_all = local.objective.num_train, local.objective.graph_info.num_train
        self._weight = torch.full_like(local.flat.values, num_train)
        for part in local.flat.slices:
            if part.used is not None:
                rows = self._weight[part.position].view(part.shape)
                rows.fill_(of_all).index_fill_(0, part.used, num_train)

    def compute(self) -> float:
        """Take the local steps, write the update to flat.gradient, and return the loss before.

        The update is the change of the parameters times the training nodes; the parameters are
        restored.
        """
        flat = self.local.flat
        start = flat.values.clone()
        losses = [self._step() for _ in range(self.num_steps)]
        torch.sub(flat.values, start, out=flat.gradient)
        flat.gradient *= self._weight
        flat.values.copy_(start)
        return losses[0]

    def _step(self) -> float:
        """Take one step on the mean loss of this worker's training nodes.

        Return the summed loss before it.
        """
        loss = self.local.backward()
        self.local.flat.gradient /= max(1, self.local.objective.num_train)
        self.local.optimizer.step()
        return loss

    def apply(self) -> None:
        """Add the mean change over all training nodes to the parameters."""
        flat = self.local.flat
        flat.values.add_(flat.gradient, alpha=1 / self.local.objective.graph_info.num_train)


def build_update_rule(
    settings: CommunicationSettings, local: LocalOptimizer
) -> SynchronousSGD | LocalSGD:
    """Build the update rule that gradient.mode names."""
    return (
        SynchronousSGD(local)
        if settings.gradient.mode == "sync"
        else LocalSGD(local, settings.local_epochs)
    )
