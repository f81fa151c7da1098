"""Training within each partition, end to end: no row crosses the network, the lower bound.

Validation and the final test are on these edges, too.
"""

from partitioning.errors import InputError
from retexo.models.stage import Stage
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import end_to_end, network_pass
from retexo.trainers.context import Context, TrainResult
from retexo.trainers.trainer import Trainer, refuse_rounding


class LocalTrainer(Trainer):
    """Training within each partition."""

    USE = "nothing"
    HETEROGENEOUS = True

    def check(self, settings: TrainSettings) -> None:
        """Raise InputError for exchange modes, rounding and smoothing, as nothing is sent."""
        refuse_rounding(settings)
        if settings.exchange.mode != "selected":
            raise InputError(
                f"exchange={settings.exchange.mode}: trainer=local sends no rows; leave it out"
            )
        if settings.smoothing.steps:
            raise InputError(
                f"smoothing.steps={settings.smoothing.steps}: trainer=local sends no predictions;"
                " leave it out"
            )

    def train(self, context: Context, stages: list[Stage]) -> TrainResult:
        """Take one step per round, on a pass that stays within the partition.

        With local.degrees=local, degrees count only the edges within the partition. Saves the
        stages, and returns logits, as train_without_exchange.
        """
        if context.settings.local.degrees == "local":
            context = context.keep_edges(lambda part: part.src < part.num_inner, stages[0].conv)
        return end_to_end.train_without_exchange(
            context, stages, lambda targets: network_pass.make_local_pass(context, stages, targets)
        )
