"""Message of a round: summed updates, and a tail of losses, stop requests and counts.

P parameters of a stage.
"""

import math
from dataclasses import dataclass

import torch

from retexo.codecs import GRADIENTS
from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.message_format import WireFormat
from retexo.comm.traffic_meter import MessageTag
from retexo.errors import TrainingError
from retexo.rounds.objective import Objective, Validation
from retexo.rounds.parameters import FlatParameters
from retexo.rounds.reduction import AllReduce, GradientReduction, Summation, build_reduction
from retexo.settings.run_settings import TrainSettings
from retexo.sites.secure_sums import SecureSum

WIRE_FORMATS: dict[str, WireFormat | None] = {
    name: name if codec.largest else getattr(torch, codec.dtype) if codec.dtype else None
    for name, codec in GRADIENTS.items()
}
"""What gradient.precision sends; None: the gradient's own dtype."""


@dataclass(frozen=True)
class RoundScore:
    """Validation of a round over all workers."""

    metric: float
    loss: float
    """Mean validation loss; NaN if the metric does not use it."""

    @property
    def logged(self) -> tuple[float, float | None]:
        """Return the metric and the loss for the run's log; a loss of None if it is NaN."""
        return self.metric, None if math.isnan(self.loss) else self.loss


class RoundMessage:
    """The only message of a round.

    Its tail has the training loss, the number of workers asked to stop, the validation loss if
    the metric uses it, and the validation counts. It is float64, in which sums of counts are
    exact up to 2^53.
    """

    def __init__(
        self,
        objective: Objective,
        comm: Communicator,
        reduction: GradientReduction,
    ) -> None:
        """Begin with no request to stop; the message's tail is reused in every round."""
        self.metric, self._graph_info = objective.metric, objective.graph_info
        num_values = 2 + self.metric.with_loss + self.metric.num_counts
        self._tail = torch.zeros(num_values, dtype=torch.float64)
        self.reduction, self.comm = reduction, comm
        self._layer, self._traffic_layer = objective.layer, objective.traffic_layer
        self.stop_requested = False
        """Whether this worker was told to stop."""
        self.any_stop_requested = False
        """Whether any worker was, by the last message."""

    def reduce_update(self, loss: float, measured: Validation) -> tuple[float, RoundScore | None]:
        """Replace flat.gradient [P] by its sum over all workers; set any_stop_requested.

        Args:
            loss: sum over this worker's training nodes.
            measured: on this worker's validation nodes.
        Returns:
            the mean training loss, and the score (None without validation nodes).
        Raises:
            TrainingError: if the mean loss is not finite.
        """
        self._fill_tail(loss, measured)
        self.reduction.reduce(self._tail)
        loss, score = self._read_tail()
        mean_loss = loss / self._graph_info.num_train
        if not math.isfinite(mean_loss):
            raise TrainingError(
                f"layer {self._layer}: the training loss is {mean_loss}; lower learning_rate"
            )
        return mean_loss, score

    def reduce_counts(self, measured: Validation) -> RoundScore | None:
        """Sum the validation counts and losses only; return the score, None without nodes.

        All workers call it. Sets any_stop_requested, too.
        """
        self._fill_tail(0.0, measured)
        self.comm.all_reduce([ReduceInput(self._tail)], MessageTag("metrics", self._traffic_layer))
        return self._read_tail()[1]

    def _fill_tail(self, loss: float, measured: Validation) -> None:
        """Write the losses, the stop request and the counts into the tail."""
        val_loss = [measured.loss] if self.metric.with_loss else []
        values = [loss, self.stop_requested, *val_loss, *measured.counts.tolist()]
        self._tail.copy_(torch.tensor(values, dtype=self._tail.dtype))

    def _read_tail(self) -> tuple[float, RoundScore | None]:
        """Return the summed loss and the validation score; set any_stop_requested.

        The score is None without validation nodes; its loss is NaN if the metric does not need it.
        """
        loss, stop_requests, *rest = self._tail.tolist()
        self.any_stop_requested = stop_requests > 0
        if not self._graph_info.num_val:
            return loss, None
        val_loss = rest.pop(0) / self._graph_info.num_val if self.metric.with_loss else math.nan
        counts = torch.tensor(rest, dtype=torch.float64).round().to(torch.int64)
        return loss, RoundScore(self.metric.value(counts, val_loss), val_loss)


def build_message(
    objective: Objective, settings: TrainSettings, comm: Communicator, flat: FlatParameters
) -> RoundMessage:
    """Build the round message for an objective, by the settings gradient.*.

    With gradient.secure it hides each worker's summand, and gradient.precision is not read.
    """
    tag = MessageTag("gradients", objective.traffic_layer)
    info = objective.graph_info
    if settings.gradient.secure:
        first_limit = 2.0 ** math.ceil(math.log2(info.num_train))
        summation: Summation = SecureSum(comm, tag, first_limit)
    else:
        wire = WIRE_FORMATS[settings.gradient.precision]
        zero_ranks = frozenset() if objective.exchanges_rows else info.untrained_ranks
        summation = AllReduce(comm, tag, wire, zero_ranks)
    return RoundMessage(objective, comm, build_reduction(settings.gradient, flat, summation))
