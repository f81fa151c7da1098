"""The trainers of heterogeneous graphs by name, as retexo.trainers.registry has those of plain ones."""

from operator import attrgetter
from typing import Any

from partitioning.errors import InputError
from retexo.hetero import full_graph, lazy, local, sign
from retexo.models.conv_registry import check_model
from retexo.settings.run_settings import TrainSettings
from retexo.trainers.registry import ONLY_LAZY, Trainer, check_saves

TRAINERS: dict[str, Any] = {"lazy": lazy, "full_graph": full_graph, "local": local, "sign": sign}
RECIPE: dict[str, Any] = {
    "model.self_weight": True,
    "model.input_skip": True,
    "model.output": "aggregate",
}
"""Settings that layers of a heterogeneous graph have no other value of."""
END_TO_END = {name: value for name, value in ONLY_LAZY.items() if name != "smoothing.reach"}
"""Those of the other trainers."""


def find(name: str) -> Trainer:
    if name not in TRAINERS:
        raise InputError(
            f"trainer={name}: not for heterogeneous graphs; choose one of {', '.join(TRAINERS)}"
        )
    trainer: Trainer = TRAINERS[name]
    return trainer


def check(settings: TrainSettings) -> None:
    """InputError for settings that the chosen model or the chosen trainer cannot have."""
    check_model(settings.model)
    trainer = find(settings.trainer.name)
    check_saves(settings, trainer)
    for name, value in (RECIPE if trainer is lazy else END_TO_END).items():
        if attrgetter(name)(settings) != value:
            raise InputError(
                f"{name}={attrgetter(name)(settings)}: on a heterogeneous graph trainer={settings.trainer.name} has "
                f"{name}={value} alone; leave it out (+experiment=retexo is for plain graphs)"
            )
    trainer.check(settings)
