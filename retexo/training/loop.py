"""The rounds of one layer, or of a network that is trained end to end, to convergence.

A round is one agreed step. Its message carries each worker's share of the step and its counts on the validation nodes,
which score the parameters that the round starts from; so the validation metric costs no message of its own. It also
says whether a worker was told to stop: then all of them end after the same round, which they keep.
"""

from typing import Protocol

from retexo.comm.collectives import Communicator
from retexo.config.settings import TrainSettings
from retexo.errors import Stopped
from retexo.training.best_round import Convergence
from retexo.training.message import build_message
from retexo.training.objective import Task
from retexo.training.parameters import FlatParameters, flat_parameters
from retexo.training.recovery import Recovery
from retexo.training.round_state import RoundState
from retexo.training.update import Learner, build_agreement, build_optimizer


class RoundLog(Protocol):
    """Where the course of training is reported."""

    def round(self, layer: int, number: int, train_loss: float | None, val_metric: float | None) -> None:
        """After `number` rounds; train_loss is the one that the next round starts from, None where there is none."""


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


def _learner(layer_task: Task, settings: TrainSettings, flat: FlatParameters) -> Learner:
    optimizer = build_optimizer(settings.optimizer, settings.learning_rate[layer_task.layer], layer_task.module)
    return Learner(
        flat, optimizer, layer_task.losses, layer_task.num_train, layer_task.totals.train, joint=layer_task.joint
    )
