"""Full-graph training, end to end: in every layer of every epoch boundary rows forward, their gradients backward.

What it computes is what one process would on the whole graph. The features are fixed, so they are sent once.
"""

from functools import partial

from retexo.exchange.exchange_plan import Use
from retexo.models.stage import Stage
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import checks, end_to_end, network_pass
from retexo.trainers.context import Context, TrainResult
from retexo.trainers.link_prediction import network_objective

USE: Use = "evaluate"
OWN_MODEL = False
RESUMES = False


def check(settings: TrainSettings) -> None:
    checks.refuse_local_steps(settings)
    checks.refuse_rounding(settings)


def train(context: Context, stages: list[Stage]) -> TrainResult:
    """One step per epoch, from a pass for the training nodes; validation takes another one, without dropout."""
    partition, sums, wrap = context.partition, context.plan.partial_sums, {}
    masks = [partition.train_mask, partition.val_mask]
    if context.settings.task.links:  # any node may be an end of a pair
        masks[1], wrap = masks[0], {"wrap": partial(network_objective, context, stages[-1])}
    features = end_to_end.exchange_features(context, stages[0], context.plan)
    with context.phase("plan"):
        plans = [end_to_end.plan_for(context, mask, sums=sums) for mask in masks]
    with context.phase("aggregate"):
        train_pass = network_pass.pass_with_exchange(context, stages, plans[0], features, masks[0])
        val_pass = network_pass.pass_with_exchange(context, stages, plans[1], features, masks[1])
    matrices, several = train_pass.first_matrices, len(stages) > 1
    rounds = end_to_end.fit_stages(
        context, stages, lambda: train_pass, val_pass, matrices, exchanges_rows=several, **wrap
    )
    return TrainResult(rounds, [end_to_end.infer(context, stages, features)])
