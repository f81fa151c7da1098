"""The trainers by name. To add one: a module here that is a `Trainer`, its line below, and conf/trainer/NAME.yaml."""

from typing import Protocol

from partitioning.errors import InputError
from retexo.config.settings import TrainSettings
from retexo.exchange.plan import Use
from retexo.nn.stage import Stage
from retexo.trainers import bns, fedgcn, full_graph, lazy, local, sign
from retexo.trainers.context import Context, TrainResult


class Trainer(Protocol):
    """What a module of this package offers."""

    @property
    def USE(self) -> Use:
        """What Context.plan is made for."""

    @property
    def OWN_MODEL(self) -> bool:
        """Whether it trains another network than the stages, so that app=evaluate and app=predict cannot load it."""

    @property
    def RESUMES(self) -> bool:
        """Whether it hands Context.keeper to its rounds, and sends in them only what comm.traffic.OF_ROUNDS names."""

    def check(self, settings: TrainSettings) -> None:
        """InputError for settings that it cannot have; called before anything is started."""

    def train(self, context: Context, stages: list[Stage]) -> TrainResult:
        """Train on this worker; all workers call it."""


TRAINERS: dict[str, Trainer] = {
    "lazy": lazy,
    "full_graph": full_graph,
    "bns": bns,
    "local": local,
    "sign": sign,
    "fedgcn": fedgcn,
}


def find(name: str) -> Trainer:
    if name not in TRAINERS:
        raise InputError(f"trainer={name}: no such trainer; choose one of {', '.join(TRAINERS)}")
    return TRAINERS[name]


def check(settings: TrainSettings) -> None:
    """InputError for settings that the chosen trainer cannot have."""
    trainer = find(settings.trainer.name)
    if settings.checkpoint.every is not None and not trainer.RESUMES:
        raise InputError(
            f"checkpoint.every={settings.checkpoint.every}: trainer={settings.trainer.name} keeps no state to go on "
            "from; leave it out"
        )
    if trainer is not lazy and (settings.compute.precision != "fp32" or settings.batch_size is not None):
        name = "batch_size" if settings.batch_size is not None else "compute.precision"
        raise InputError(f"{name}: only trainer=lazy has it, not trainer={settings.trainer.name}; leave it out")
    trainer.check(settings)
