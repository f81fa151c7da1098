"""Settings that some trainers do not support; each raises InputError."""

from collections.abc import Sequence

from partitioning.errors import InputError
from retexo.config.settings import TrainSettings


def refuse_local_steps(settings: TrainSettings) -> None:
    if settings.gradient.mode != "sync":
        raise InputError(
            f"gradient={settings.gradient.mode}: trainer={settings.trainer.name} sends gradients of rows between "
            "workers, which are those of one loss only while all have the same parameters; set gradient=sync"
        )


def refuse_rounding(settings: TrainSettings) -> None:
    if settings.exchange.precision != "fp32":
        raise InputError(
            f"exchange.precision={settings.exchange.precision}: trainer={settings.trainer.name} sends rows and their "
            "gradients as they are; leave it out"
        )


def refuse_models(settings: TrainSettings, known: Sequence[str], reason: str) -> None:
    """known: names of models, sage-pool apart from sage."""
    model = settings.model
    name = "sage-pool" if model.name == "sage" and model.aggregator == "pool" else model.name
    if name not in known:
        raise InputError(
            f"model={name}: trainer={settings.trainer.name} {reason}; choose one of {', '.join(known)}, "
            "or another trainer"
        )
