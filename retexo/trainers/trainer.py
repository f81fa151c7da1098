"""Base class of trainers: its attributes say what a trainer supports, with defaults."""

from collections.abc import Callable
from typing import Any, ClassVar

from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from retexo.exchange.exchange_plan import Use
from retexo.models.convolution import Convolution
from retexo.models.network import hidden_convolution, models_that
from retexo.models.stage import Stage
from retexo.settings.run_settings import TrainSettings
from retexo.trainers.context import Context, TrainResult

ONLY_LAZY: dict[str, Any] = {
    "batch_size": None,
    "compute.precision": "fp32",
    "model.self_weight": False,
    "model.input_skip": False,
    "model.residual": False,
    "model.lookahead": 0,
}
"""The only values of these settings that trainers support which do not list them in TAKES."""


class Trainer:
    """Trains the network on one worker; the defaults are those of end-to-end trainers."""

    USE: ClassVar[Use] = "evaluate"
    """Kind of run of the exchange plan: which output is computed, in which phases."""
    BY_LAYER: ClassVar[bool] = False
    """Whether each layer trains alone."""
    OWN_MODEL: ClassVar[bool] = False
    """Whether it trains another network than the stages, which app=predict cannot load."""
    RESUMES: ClassVar[bool] = False
    """Whether it saves rounds in Context.recovery; rounds send only ROUND_KINDS."""
    HETEROGENEOUS: ClassVar[bool] = False
    """Whether it also trains on heterogeneous graphs."""
    LINKS: ClassVar[bool] = False
    """Whether it also trains for link prediction."""
    INDUCTIVE: ClassVar[bool] = False
    """Whether it can hide held-out nodes (split.inductive)."""
    EDGE_FEATURES: ClassVar[bool] = False
    """Whether networks without attention read edge features, as means over in-edges."""
    TAKES: ClassVar[tuple[str, ...]] = ("model.self_weight", "model.input_skip", "model.residual")
    """Settings of ONLY_LAZY that it supports on plain graphs, with any value but auto."""
    HETEROGENEOUS_ONLY: ClassVar[dict[str, Any]] = ONLY_LAZY
    """The only values of these settings that it supports on heterogeneous graphs."""

    def takes(self, name: str, value: Any) -> bool:
        """Return whether it supports a value of a setting of ONLY_LAZY on plain graphs."""
        return self.BY_LAYER or (name in self.TAKES and value != "auto")

    def check(self, settings: TrainSettings) -> None:
        """Raise InputError for settings that it does not support, before anything is started."""

    def check_directory(self, settings: TrainSettings, directory: PartitionDirectory) -> None:
        """Raise InputError for a directory that it cannot train on."""

    def train(self, context: Context, stages: list[Stage]) -> TrainResult:
        """Train on this worker, and save each layer by context.save_layer; all workers call it.

        Raises as retexo.rounds.training_loop.run_rounds.
        """
        raise NotImplementedError


# --- checks of several trainers ----------


def refuse_rounding(settings: TrainSettings) -> None:
    """Raise InputError if exchange.precision rounds rows: this trainer exchanges none."""
    if settings.exchange.rounded:
        raise InputError(
            f"exchange.precision={settings.exchange.rounded}: trainer={settings.trainer.name}"
            " has no exchange of rows that could round them; leave it out"
        )


def refuse_models(
    settings: TrainSettings, fits: Callable[[Convolution], bool], reason: str
) -> None:
    """Raise InputError for a model that does not fit; it names those that do with their defaults.

    reason: why others do not, as the message says after the trainer's name.
    """
    model = settings.model
    if not fits(hidden_convolution(model)):
        raise InputError(
            f"model={model.name}{model.own}: trainer={settings.trainer.name} {reason}; choose one"
            f" of {', '.join(models_that(fits))}, or another trainer"
        )
