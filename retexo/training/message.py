"""A round's message: each worker's share of the step, and a tail that every worker needs whole."""

import math

import torch
from torch import Tensor

from retexo.comm.collectives import Communicator, Summand
from retexo.comm.traffic import Purpose
from retexo.config.settings import TrainSettings
from retexo.errors import TrainingError
from retexo.training.objective import Task
from retexo.training.parameters import FlatParameters
from retexo.training.reduction import GradientReduction, Wire, build_reduction
from retexo.training.task import from_digits, micro_f1, to_digits


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
