"""All that the rounds of a layer change: what is saved of it, and restored."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from retexo.comm.traffic import OF_ROUNDS
from retexo.training.best_round import Convergence
from retexo.training.message import Message
from retexo.training.update import Learner


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
