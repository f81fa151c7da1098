"""The trainers by name. To add one: a module here that is a `Trainer`, its line below, and conf/trainer/NAME.yaml."""

from operator import attrgetter
from typing import Any, Protocol

from partitioning.errors import InputError
from retexo.exchange.exchange_plan import Use
from retexo.models.conv_registry import check_model
from retexo.models.stage import Stage
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import bns, fedgcn, full_graph, lazy, local, sampled, sign
from retexo.trainers.context import TrainResult


class Trainer(Protocol):
    """What a module of a trainer offers; some also have

    TAKES, names of ONLY_LAZY that it has, too, and
    check_directory(settings, directory), InputError for a PartitionDirectory that it cannot train on.
    """

    @property
    def USE(self) -> Use:
        """What Context.plan is made for."""

    @property
    def OWN_MODEL(self) -> bool:
        """Whether it trains another network than the stages, so that app=evaluate and app=predict cannot load it."""

    @property
    def RESUMES(self) -> bool:
        """Whether it saves its rounds in Context.recovery, and sends in them only kinds of comm.traffic.OF_ROUNDS."""

    def check(self, settings: TrainSettings) -> None:
        """InputError for settings that it does not support; called before anything is started."""

    def train(self, context: Any, stages: list[Stage]) -> TrainResult:
        """Train on this worker, in the context of its kind of graph; all workers call it."""


TRAINERS: dict[str, Trainer] = {
    "lazy": lazy,
    "full_graph": full_graph,
    "bns": bns,
    "local": local,
    "sign": sign,
    "fedgcn": fedgcn,
    "sampled": sampled,
}
ONLY_LAZY: dict[str, Any] = {
    "batch_size": None,
    "compute.precision": "fp32",
    "model.self_weight": False,
    "model.input_skip": False,
    "model.output": "activation",
    "smoothing.reach": "computed",
}
"""Settings that the other trainers have no more than this value of."""


def find(name: str) -> Trainer:
    if name not in TRAINERS:
        raise InputError(f"trainer={name}: no such trainer; choose one of {', '.join(TRAINERS)}")
    return TRAINERS[name]


def check(settings: TrainSettings) -> None:
    """InputError for settings that the chosen model or the chosen trainer cannot have."""
    check_model(settings.model)
    trainer = find(settings.trainer.name)
    check_saves(settings, trainer)
    for name, without in ONLY_LAZY.items():
        value = attrgetter(name)(settings)
        taken = name in getattr(trainer, "TAKES", ()) and value != "auto"
        if trainer is not lazy and value != without and not taken:
            raise InputError(
                f"{name}={value}: only trainer=lazy has it, not trainer={settings.trainer.name}; leave it out"
            )
    if settings.task.links:
        _check_links(settings, trainer)
    trainer.check(settings)


def _check_links(settings: TrainSettings, trainer: Trainer) -> None:
    name, task = settings.trainer.name, settings.task
    if trainer not in (lazy, full_graph):
        raise InputError(
            f"trainer={name}: links are learned by trainer=lazy and full_graph alone; choose one of these"
        )
    if settings.gradient.secure:
        raise InputError(
            "gradient.secure=true: links are ranked by embeddings that every worker gets, which no sum "
            "hides; set gradient.secure=false"
        )
    if settings.smoothing.steps:
        raise InputError(
            f"smoothing.steps={settings.smoothing.steps}: classes are smoothed, not links; leave it "
            "out, or choose --config-name link_prediction_gcn, sage or gat"
        )
    if (
        not check_model(settings.model).fixed_inputs
        and task.cut_edges == "train"
        and trainer is lazy
    ):
        raise InputError(
            f"task.cut_edges=train: model={settings.model.name} needs the rows of all neighbours of an "
            "end, which are not sent; set task.cut_edges=skip"
        )


def check_saves(settings: TrainSettings, trainer: Trainer) -> None:
    """InputError for states to be saved by a trainer that does not go on from any."""
    if settings.checkpoint.every is not None and not trainer.RESUMES:
        raise InputError(
            f"checkpoint.every={settings.checkpoint.every}: trainer={settings.trainer.name} keeps no state to go on "
            "from; leave it out"
        )
