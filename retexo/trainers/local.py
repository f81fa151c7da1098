"""Training within each partition, end to end: no row crosses the network, the lower bound.

Validation and the final test are on these edges, too.
"""

from torch import Tensor

from partitioning.errors import InputError
from retexo.exchange.exchange_plan import Use
from retexo.models.stage import Stage
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import checks, end_to_end, network_pass
from retexo.trainers.context import Context, TrainResult

USE: Use = "nothing"
OWN_MODEL = False
RESUMES = False
HETEROGENEOUS = True
TAKES = end_to_end.SKIPS


def check(settings: TrainSettings) -> None:
    """Raise InputError for settings that local training does not support."""
    checks.refuse_rounding(settings)
    if settings.exchange.mode != "selected":
        raise InputError(
            f"exchange={settings.exchange.mode}: trainer=local sends no rows; leave it out"
        )
    if settings.smoothing.steps:
        raise InputError(
            f"smoothing.steps={settings.smoothing.steps}: trainer=local sends no predictions; leave"
            " it out"
        )


def train(context: Context, stages: list[Stage]) -> TrainResult:
    """Take one step per round, on a pass that stays within the partition."""
    if context.settings.local.degrees == "local":
        context = context.keep_edges(lambda part: part.src < part.num_inner, stages[0].conv)
    return end_to_end.train_without_exchange(
        context, stages, lambda targets: local_pass(context, stages, targets)
    )


def local_pass(context: Context, stages: list[Stage], targets: Tensor) -> network_pass.Pass:
    """A pass for the targets, bool [I], without halo nodes."""
    required = network_pass.require_targets(context, targets, comm=None)
    return network_pass.make_pass(context, stages, required, targets)
