"""Training of heterogeneous graphs on the edges within each partition, end to end, as retexo.trainers.local."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from retexo.hetero.context import HeteroContext
from retexo.hetero.network_pass import HeteroPass, make_pass, required_for
from retexo.settings.options import LocalOptions
from retexo.settings.schema import typed_options
from retexo.trainers import end_to_end, local
from retexo.trainers.context import TrainResult

USE, OWN_MODEL, RESUMES, check = local.USE, local.OWN_MODEL, local.RESUMES, local.check


def train(context: HeteroContext, stages: list[Any]) -> TrainResult:
    """One step per round, from a pass that stays within the part."""
    own_degrees = (
        typed_options("local", context.settings.trainer.options, LocalOptions).degrees == "local"
    )
    out = {name: each.within(own_degrees=own_degrees) for name, each in context.out.items()}
    part = replace(context, out=out)

    def make(targets: Tensor) -> HeteroPass:
        return make_pass(part, stages, required_for(part, targets, None), targets)

    return end_to_end.train_without_exchange(part, stages, make)
