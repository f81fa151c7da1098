"""Everything that the rounds of a layer change: saved to disk, and loaded by a resumed run.

P parameters.
"""

import copy
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from retexo.rounds.best_round import EarlyStopping
from retexo.rounds.round_message import RoundMessage
from retexo.rounds.schedule import Schedule
from retexo.rounds.update_rules import LocalOptimizer


@dataclass(eq=False)
class RoundState:
    """State of a layer's rounds."""

    layer: int
    local: LocalOptimizer
    message: RoundMessage
    stopping: EarlyStopping
    schedule: Schedule
    best: Tensor
    """[P] parameters of the best round."""
    number: int = 0
    """Rounds completed."""

    def finished_state(self) -> dict[str, Any]:
        """Return the state of a finished layer; its parameters are not copied.

        The keys are those of the files on disk.
        """
        device = self.best.device
        return {
            "number": self.number,
            "values": self.local.flat.values,
            "random": torch.get_rng_state(),  # used by dropout
            "random_cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            "sent": self.message.comm.meter.entries_of_rounds(self.layer),
            "stopping": self.stopping.state_dict(),
        }

    def load_finished_state(self, saved: dict[str, Any]) -> None:
        """Load the state of a finished layer: parameters, early stopping and bytes sent.

        Also sets the random state of PyTorch, which is global. Raises what Python or PyTorch raises
        for a state that does not fit, when a part of it may be loaded.
        """
        self.number = operator.index(saved["number"])
        self.local.flat.values.copy_(saved["values"])
        torch.set_rng_state(saved["random"])
        if saved["random_cuda"] is not None:
            torch.cuda.set_rng_state(saved["random_cuda"], self.best.device)
        self.stopping.load_state_dict(saved["stopping"])
        self.message.comm.meter.restore(self.layer, saved["sent"])
        self.message.comm.meter.table(self.layer + 1)  # raises for unknown peers and kinds

    def state_dict(self) -> dict[str, Any]:
        """Return the state between two rounds, not copied."""
        return {
            **self.finished_state(),
            "best": self.best,
            "schedule": self.schedule.state_dict(),
            "metric": self.message.metric.state(),
            "optimizer": self.local.optimizer.state_dict()["state"],
            "memory": self.message.reduction.buffers(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Load the state between two rounds: that of a finished layer, and all that rounds change.

        Sets torch's random state. Raises what `load_finished_state` does, and what the optimiser
        would raise in its next step with this state.
        """
        self.load_finished_state(saved)
        self.best.copy_(saved["best"])
        self.schedule.load_state_dict(saved["schedule"])
        self.message.metric.load_state(saved["metric"])
        optimizer = self.local.optimizer
        optimizer.load_state_dict(
            {"state": saved["optimizer"], "param_groups": optimizer.state_dict()["param_groups"]}
        )
        trial = copy.deepcopy(optimizer)  # a trial step raises now what a real one would raise
        for parameter in (one for group in trial.param_groups for one in group["params"]):
            parameter.grad = torch.zeros_like(parameter)
        trial.step()
        for buffer, values in zip(self.message.reduction.buffers(), saved["memory"], strict=True):
            buffer.copy_(values)
