"""Rounds of one layer, or of an end-to-end network, until it converges.

A round is one optimisation step that all workers take together. Its message
(retexo.rounds.round_message) carries each worker's update, its counts on the validation nodes,
and whether it was asked to stop. The counts score the parameters before the step, so the
validation metric needs no message of its own, and all workers stop after the same round.
"""

import logging
from dataclasses import dataclass

from partitioning.errors import InputError
from retexo.comm.collectives import Communicator
from retexo.errors import Stopped, TrainingError
from retexo.results.run_log import RunLog
from retexo.rounds.best_round import EarlyStopping
from retexo.rounds.objective import Objective, choose_patience
from retexo.rounds.parameters import check_same_result, flatten_parameters
from retexo.rounds.recovery import Recovery
from retexo.rounds.round_message import build_message
from retexo.rounds.round_state import RoundState
from retexo.rounds.schedule import Schedule
from retexo.rounds.update_rules import (
    LocalOptimizer,
    build_optimizer,
    build_update_rule,
)
from retexo.settings.run_settings import TrainSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundsResult:
    """How the rounds of a layer ended."""

    num_rounds: int
    metric: float
    """Validation metric of the best round; -infinity without validation nodes."""
    loss: float
    """Validation loss of the best round; NaN or infinite where it is not used."""


def run_rounds(
    objective: Objective,
    settings: TrainSettings,
    comm: Communicator,
    log: RunLog,
    recovery: Recovery | None = None,
) -> RoundsResult:
    """Train a stage or network to convergence or its limit; all workers call it.

    The module ends with the parameters of the best validation round, equal on every worker; of the
    last round without validation nodes or with best_val_model=false. They become views of one
    vector. Rank 0 warns if the first round was the best. A resumed layer sets torch's random state.

    Args:
        recovery: saves and restores states; None to save nothing.
    Raises:
        Stopped: if any worker was asked to stop.
        PeerLost: if another worker died.
        TrainingError: if the loss or a parameter is not finite, or workers end with different
            parameters.
        InputError: if the schedule needs validation nodes, or a saved state does not fit this run.
    """
    if settings.scheduler == "plateau" and not objective.graph_info.num_val:
        raise InputError("scheduler=plateau: there are no validation nodes; choose cosine or step")
    layer, flat = objective.layer, flatten_parameters(objective, comm, settings.gradient)
    optimizer = build_optimizer(settings, settings.learning_rate[layer], objective.module)
    round_state = RoundState(
        layer,
        LocalOptimizer(flat, optimizer, objective),
        build_message(objective, settings, comm, flat),
        EarlyStopping(
            choose_patience(settings, objective),
            settings.stopping.min_delta,
            starts_trained=objective.starts_trained or settings.init is not None,
        ),
        Schedule(settings, settings.num_rounds[layer]),
        flat.values.clone(),
    )
    if recovery and recovery.load_layer(layer, round_state.load_finished_state):
        check_same_result(comm, objective)
        return _result_of(round_state)
    if recovery:
        recovery.load_round(layer, round_state.load_state_dict)
    _run_until_end(round_state, objective, settings, log, recovery)
    flat.values.copy_(round_state.best)
    if not bool(flat.values.isfinite().all()):
        raise TrainingError(
            f"layer {layer}: the trained parameters are NaN or infinite; lower learning_rate"
        )
    check_same_result(comm, objective)
    if comm.rank == 0 and round_state.stopping.best_round == 1 < round_state.number:
        logger.warning(
            "layer %d: the first of %d rounds has the best %s on validation, so that training "
            "hardly changed the layer; try a lower learning_rate or another stopping.metric",
            layer,
            round_state.number,
            objective.metric.name,
        )
    if recovery:
        recovery.save_layer(layer, round_state.finished_state())
    return _result_of(round_state)


def _result_of(round_state: RoundState) -> RoundsResult:
    stopping = round_state.stopping
    return RoundsResult(round_state.number, stopping.best_metric, stopping.best_loss)


def _run_until_end(
    round_state: RoundState,
    objective: Objective,
    settings: TrainSettings,
    log: RunLog,
    recovery: Recovery | None,
) -> None:
    """Run rounds from the current state on; leave the parameters to use in round_state.best.

    Writes a line of the log per round, and saves states unless `recovery` is None. Raises Stopped
    after a request to stop on any worker. TrainingError for a loss that is not finite.
    """
    update_rule = build_update_rule(settings, round_state.local)
    message, stopping, values = (
        round_state.message,
        round_state.stopping,
        round_state.local.flat.values,
    )
    log.metric_name = message.metric.name
    first, limit = round_state.number, settings.num_rounds[round_state.layer]
    while True:
        number = round_state.number
        if recovery and number > first and (message.any_stop_requested or recovery.is_due(number)):
            recovery.save_round(round_state.layer, number, round_state.state_dict())
        if message.any_stop_requested:
            raise Stopped(
                f"stopped on request; layer {round_state.layer} is saved after {number} rounds"
            )
        _set_learning_rate(round_state, settings)
        objective.begin_round(number)
        message.stop_requested = recovery is not None and recovery.stop_requested()
        measured = objective.validate()
        loss = None
        # If this may be the last round, send only the counts first: nobody would apply the update.
        ends = number >= limit or (
            objective.graph_info.num_val > 0 and stopping.out_of_patience(number)
        )
        counts = message.reduce_counts(measured) if ends else None
        ends = number >= limit or (
            ends and counts is not None and not stopping.improves(counts.metric, counts.loss)
        )
        if not ends:
            loss, counts = message.reduce_update(update_rule.compute(), measured)
        log.round(round_state.layer, number, loss, *(counts.logged if counts else ()))
        is_best = counts is None or stopping.record(number, counts.metric, counts.loss)
        if is_best or not settings.best_val_model:
            round_state.best.copy_(values)
        if ends:
            return
        update_rule.apply()
        round_state.number += 1


def _set_learning_rate(round_state: RoundState, settings: TrainSettings) -> None:
    """Set the learning rate of the next round by the schedule."""
    factor = round_state.schedule.rate_factor(
        round_state.number, round_state.stopping.last_improvement
    )
    for group in round_state.local.optimizer.param_groups:
        group["lr"] = settings.learning_rate[round_state.layer] * factor
