"""The message of a round: the sum of the workers' updates, and a tail with loss, stop requests and
validation counts.

P parameters of a stage.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.message_format import WireFormat
from retexo.comm.traffic_meter import MessageTag
from retexo.errors import TrainingError
from retexo.rounds.objective import Objective
from retexo.rounds.parameters import FlatParameters
from retexo.rounds.reduction import AllReduce, GradientReduction, build_reduction
from retexo.settings.run_settings import TrainSettings
from retexo.sites.secure_sums import SecureSum

DIGIT_BASE = 4096
"""Counts are sent as two digits of this base, because float32 represents integers only up to
2^24."""

WIRE_FORMATS: dict[str, WireFormat | None] = {
    "fp32": None,
    "bf16": torch.bfloat16,
    "int8": "int8",
    "int6": "int6",
}
"""What gradient.precision sends; None: the gradient's own dtype."""


class RoundMessage:
    """The only message of a round.

    Its tail has TAIL floats: the loss, the number of workers asked to stop, and two digits of
    each of three validation counts.
    """

    TAIL = 2 + 2 * 3

    def __init__(
        self,
        objective: Objective,
        comm: Communicator,
        reduction: GradientReduction,
        flat: FlatParameters,
    ) -> None:
        self._tail = flat.gradient.new_zeros(self.TAIL)
        self.reduction, self.comm = reduction, comm
        self._layer, self._traffic_layer = objective.layer, objective.traffic_layer
        self._graph_info, self._metric = objective.graph_info, objective.task.metric
        self.stop_requested = False
        """Whether this worker was told to stop."""
        self.any_stop_requested = False
        """Whether any worker was, by the last message."""

    def reduce_update(self, loss: float, val_counts: Tensor) -> tuple[float, float | None]:
        """Sum flat.gradient [P] over all workers; return mean loss and validation metric.

        Args:
            loss: sum over this worker's training nodes.
            val_counts: int64 [3]
        Returns:
            the mean training loss, and the metric (None without validation nodes).
        Raises:
            TrainingError: if the mean loss is not finite.
        """
        self._fill_tail(loss, val_counts)
        self.reduction.reduce(self._tail)
        loss, metric = self._read_tail()
        mean_loss = loss / self._graph_info.num_train
        if not math.isfinite(mean_loss):
            raise TrainingError(
                f"layer {self._layer}: the training loss is {mean_loss}; lower learning_rate"
            )
        return mean_loss, metric

    def reduce_counts(self, val_counts: Tensor) -> float | None:
        """Sum the validation counts only; return the validation metric."""
        self._fill_tail(0.0, val_counts)
        self.comm.all_reduce([ReduceInput(self._tail)], MessageTag("metrics", self._traffic_layer))
        return self._read_tail()[1]

    def _fill_tail(self, loss: float, val_counts: Tensor) -> None:
        """Write the loss, the stop request and the digits of the counts into the tail."""
        self._tail.copy_(
            torch.tensor(
                [loss, self.stop_requested, *counts_to_digits(val_counts)], dtype=self._tail.dtype
            )
        )

    def _read_tail(self) -> tuple[float, float | None]:
        """Return the summed loss and the validation metric; set any_stop_requested."""
        loss, stop_requests, *digits = self._tail.tolist()
        self.any_stop_requested = stop_requests > 0
        return loss, self._metric(digits_to_counts(digits)) if self._graph_info.num_val else None


def build_message(
    objective: Objective, settings: TrainSettings, comm: Communicator, flat: FlatParameters
) -> RoundMessage:
    """Build the round message for an objective, by gradient.precision and gradient.compression."""
    tag = MessageTag("gradients", objective.traffic_layer)
    if settings.gradient.secure:
        first_limit = 2.0 ** math.ceil(math.log2(objective.graph_info.num_train))
        secure_sum = SecureSum(comm, tag, first_limit)
        return RoundMessage(
            objective, comm, build_reduction(settings.gradient, flat, secure_sum), flat
        )
    wire = WIRE_FORMATS[settings.gradient.precision]
    zero_ranks = frozenset() if objective.exchanges_rows else objective.graph_info.untrained_ranks
    all_reduce = AllReduce(comm, tag, wire, zero_ranks)
    return RoundMessage(objective, comm, build_reduction(settings.gradient, flat, all_reduce), flat)


# Lists, because creating a tensor takes longer than processing so few numbers.


def counts_to_digits(counts: Tensor) -> list[int]:
    """Split counts int64 [K] into a high and a low digit each.

    Sums of 4,096 workers are exact in float32.
    """
    return [digit for count in counts.tolist() for digit in divmod(count, DIGIT_BASE)]


def digits_to_counts(digits: Sequence[float]) -> Tensor:
    """Return the sum of counts, int64 [K], from the summed digits, 2 K."""
    return torch.tensor(
        [
            round(high) * DIGIT_BASE + round(low)
            for high, low in zip(digits[::2], digits[1::2], strict=True)
        ]
    )
