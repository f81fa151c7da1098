"""Full-graph training, end to end: rows forward and their gradients backward in each layer.

It computes what one process would compute on the whole graph. The features are fixed, so they are
sent once.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from retexo.exchange.exchange_plan import Use
from retexo.models.stage import Stage
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import checks, end_to_end, network_pass
from retexo.trainers.context import Context, TrainResult
from retexo.trainers.lazy import compute_logits
from retexo.trainers.link_objective import make_link_network_objective

USE: Use = "evaluate"
OWN_MODEL = False
RESUMES = False
HETEROGENEOUS = True
TAKES = end_to_end.SKIPS


def check(settings: TrainSettings) -> None:
    """Raise InputError for settings that full-graph training does not support."""
    checks.refuse_local_steps(settings)


def train(context: Context, stages: list[Stage]) -> TrainResult:
    """Take one step per epoch, on all training nodes; validation has a pass of its own."""
    masks = [context.partition.train_mask, context.partition.val_mask]
    wrap: dict[str, Callable[..., Any]] = {}
    if context.settings.task.links:  # any node may be an end of a pair
        masks[1], wrap = (
            masks[0],
            {"wrap": partial(make_link_network_objective, context, stages[-1])},
        )
    features, passes = end_to_end.exchange_features(context, stages), []
    with context.phase("plan"):
        plans = [network_pass.make_plans(context, mask) for mask in masks]
    with context.phase("aggregate"):
        for mask, each in zip(masks, plans, strict=True):
            required, plan = each
            passes.append(network_pass.make_pass(context, stages, required, mask, plan, features))
    rounds = end_to_end.fit_stages(
        context,
        stages,
        lambda: passes[0],
        passes[1],
        passes[0].first_matrices,
        exchanges_rows=len(stages) > 1,
        **wrap,
    )
    return TrainResult(rounds, [compute_logits(context, stages, features)])
