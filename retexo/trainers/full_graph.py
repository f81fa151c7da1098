"""Full-graph training, end to end: rows forward and their gradients backward in each layer.

It computes what one process would compute on the whole graph. The features are fixed, so they are
sent once.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from retexo.models.block import Sources
from retexo.models.matrix import Matrix
from retexo.models.stage import Stage
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import end_to_end
from retexo.trainers.context import Context, TrainResult
from retexo.trainers.lazy import compute_logits
from retexo.trainers.link_objective import make_link_network_objective
from retexo.trainers.network_pass import Pass, Plans, Required, make_pass, make_plans
from retexo.trainers.trainer import Trainer, refuse_local_steps


class FullGraphTrainer(Trainer):
    """Full-graph training, end to end."""

    HETEROGENEOUS = LINKS = INDUCTIVE = EDGE_FEATURES = True
    TRAINS_ON_SUMS = True
    """Whether partial sums may be sent in the rounds."""

    def check(self, settings: TrainSettings) -> None:
        """Raise InputError for settings that full-graph training does not support."""
        refuse_local_steps(settings)

    def train(self, context: Context, stages: list[Stage]) -> TrainResult:
        """Take one step per epoch, on all training nodes; validation has a pass of its own.

        Changes the stages; returns the rounds, and the logits of inner nodes.
        """
        mask, val_mask = context.partition.train_mask, context.partition.val_mask
        wrap: dict[str, Callable[..., Any]] = {}
        if context.settings.task.links:  # any node may be an end of a pair
            val_mask = mask
            wrap["wrap"] = partial(make_link_network_objective, context, stages[-1])
        sums = self.TRAINS_ON_SUMS
        features = end_to_end.exchange_features(context, stages, with_sums=sums)
        with context.phase("plan"):
            required, plans = make_plans(context, mask, sums=sums)
            of_validation = make_plans(context, val_mask)
        with context.phase("aggregate"):
            train, matrices = self.training_passes(context, stages, required, mask, plans, features)
            val = make_pass(context, stages, of_validation[0], val_mask, of_validation[1], features)
        several = len(stages) > 1
        rounds = end_to_end.fit_stages(
            context, stages, train, val, matrices, exchanges_rows=several, **wrap
        )
        return TrainResult(rounds, [compute_logits(context, stages, features)])

    def training_passes(
        self,
        context: Context,
        stages: Sequence[Stage],
        required: Required,
        mask: Tensor,
        plans: Plans,
        features: Mapping[str, Sources],
    ) -> tuple[Callable[[], Pass], Sequence[Matrix]]:
        """Return what makes the pass of the next epoch, and the input of the first weights.

        Arguments are those of make_pass; the matrices those of end_to_end.fit_stages.
        """
        full_pass = make_pass(context, stages, required, mask, plans, features)
        return lambda: full_pass, full_pass.first_matrices
