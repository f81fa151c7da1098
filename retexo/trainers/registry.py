"""The trainers by name.

To add one: a module here that is a `Trainer`, its line below, and conf/trainer/NAME.yaml.
"""

from operator import attrgetter
from typing import Any, Protocol

from partitioning.errors import InputError
from retexo.exchange.exchange_plan import Use
from retexo.models.conv_registry import check_model
from retexo.models.stage import Stage
from retexo.scores import OF_NODES
from retexo.settings.objective_settings import LOSSES
from retexo.settings.run_settings import TrainSettings
from retexo.tasks import node_regression
from retexo.trainers import bns, fedgcn, full_graph, lazy, local, sampled, sign
from retexo.trainers.context import Context, TrainResult


class Trainer(Protocol):
    """The contents of a trainer's module.

    Some modules also have TAKES, names of ONLY_LAZY that the trainer supports, and
    check_directory(settings, directory), which raises InputError for a PartitionDirectory that it
    cannot train on.
    """

    @property
    def USE(self) -> Use:
        """The kind of run of the exchange plan: which output is computed, in which phases."""

    @property
    def OWN_MODEL(self) -> bool:
        """Whether it trains another network than the stages, which app=predict cannot load."""

    @property
    def RESUMES(self) -> bool:
        """Whether it saves rounds in Context.recovery; rounds send only ROUND_KINDS."""

    @property
    def HETEROGENEOUS(self) -> bool:
        """Whether it also trains on heterogeneous graphs."""

    def check(self, settings: TrainSettings) -> None:
        """Raise InputError for settings that it does not support.

        Called before anything is started.
        """

    def train(self, context: Context, stages: list[Stage]) -> TrainResult:
        """Train on this worker; all workers call it."""


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
    "model.lookahead": 0,
}
"""The only values of these settings that other trainers support."""
HETEROGENEOUS_LAZY: dict[str, Any] = {
    "model.self_weight": True,
    "model.input_skip": True,
    "model.output": "aggregate",
    "model.lookahead": 0,
}
"""The only values that trainer=lazy supports on a heterogeneous graph."""


def find(name: str, *, heterogeneous: bool = False) -> Trainer:
    """The trainer of a name; InputError where there is none, or none for heterogeneous graphs."""
    if name not in TRAINERS:
        raise InputError(f"trainer={name}: no such trainer; choose one of {', '.join(TRAINERS)}")
    if heterogeneous and not TRAINERS[name].HETEROGENEOUS:
        known = [each for each, trainer in TRAINERS.items() if trainer.HETEROGENEOUS]
        raise InputError(
            f"trainer={name}: not for heterogeneous graphs; choose one of {', '.join(known)}"
        )
    return TRAINERS[name]


def check(settings: TrainSettings) -> None:
    """InputError for settings that the chosen model or trainer does not support."""
    heterogeneous = check_model(settings.model).relational
    trainer = find(settings.trainer.name, heterogeneous=heterogeneous)
    if settings.stopping.metric == "mrr" and not settings.task.links:
        raise InputError(
            "stopping.metric=mrr: only for task=link_prediction; choose one of auto,"
            f" {', '.join(OF_NODES)}, loss"
        )
    if settings.task.regression:
        node_regression.check_settings(settings)
    elif settings.task.loss in LOSSES["node_regression"]:
        raise InputError(
            f"task.loss={settings.task.loss}: only for task=node_regression; choose cross_entropy"
            " or focal"
        )
    _check_saves(settings, trainer)
    _check_growth(settings, trainer)
    if heterogeneous:
        _check_heterogeneous(settings, trainer)
    else:
        _check_plain(settings, trainer)
    trainer.check(settings)


def _check_heterogeneous(settings: TrainSettings, trainer: Trainer) -> None:
    """InputError for settings that the trainer does not support on heterogeneous graphs."""
    for name, wanted in (HETEROGENEOUS_LAZY if trainer is lazy else ONLY_LAZY).items():
        value = attrgetter(name)(settings)
        if value != wanted:
            raise InputError(
                f"{name}={value}: on a heterogeneous graph trainer={settings.trainer.name} has "
                f"{name}={wanted} alone; leave it out (+experiment=retexo is for plain graphs)"
            )


def _check_plain(settings: TrainSettings, trainer: Trainer) -> None:
    """InputError for settings of the lazy trainer that another trainer does not support."""
    for name, without in ONLY_LAZY.items():
        value = attrgetter(name)(settings)
        supported = name in getattr(trainer, "TAKES", ()) and value != "auto"
        if trainer is not lazy and value != without and not supported:
            raise InputError(
                f"{name}={value}: only trainer=lazy has it, not trainer={settings.trainer.name};"
                " leave it out"
            )
    if settings.model.lookahead:
        _check_lookahead(settings)
    if settings.task.links:
        _check_links(settings, trainer)


def _check_lookahead(settings: TrainSettings) -> None:
    """Refuse look-ahead where a halo node's output does not follow from one aggregate."""
    if not check_model(settings.model).linear_aggregation:
        raise InputError(
            f"model.lookahead=1: model={settings.model.name}"
            f"{settings.model.own} does not sum rows, so "
            "a boundary node needs the rows of all its neighbours; set model.lookahead=0, or "
            "choose model=sage, gcn or gin"
        )
    if settings.task.links:
        raise InputError(
            "model.lookahead=1: task=link_prediction trains each layer alone; leave it out"
        )


def _check_links(settings: TrainSettings, trainer: Trainer) -> None:
    """InputError for trainers and settings that link prediction does not support."""
    name, task = settings.trainer.name, settings.task
    if trainer not in (lazy, full_graph):
        raise InputError(
            f"trainer={name}: task=link_prediction needs trainer=lazy or full_graph; choose one of"
            " these"
        )
    if settings.stopping.metric not in ("auto", "mrr"):
        raise InputError(
            f"stopping.metric={settings.stopping.metric}: links are validated by mrr alone; leave"
            " it out"
        )
    if settings.gradient.secure:
        raise InputError(
            "gradient.secure=true: links are ranked by embeddings that every worker receives, which"
            " secure sums do not hide; set gradient.secure=false"
        )
    if settings.smoothing.steps:
        raise InputError(
            f"smoothing.steps={settings.smoothing.steps}: only classes are smoothed, not links;"
            " leave it out, or choose --config-name link_prediction_gcn, sage or gat"
        )
    if (
        not check_model(settings.model).fixed_inputs
        and task.cut_edges == "train"
        and trainer is lazy
    ):
        raise InputError(
            f"task.cut_edges=train: model={settings.model.name} needs the rows of all neighbours of"
            " an end, which are not sent; set task.cut_edges=skip"
        )


def _check_growth(settings: TrainSettings, trainer: Trainer) -> None:
    """Refuse num_layers=auto where layers train together or validation chooses no head."""
    if not settings.model.grows:
        return
    skips = settings.model.input_skip or settings.model.self_weight
    reason = (
        (trainer is not lazy and f"trainer={settings.trainer.name} trains all layers at once")
        or (settings.task.links and "the ends of links are sent for a given last layer")
        or (settings.classifiers == "last" and "classifiers=last does not ask validation")
        or (not settings.best_val_model and "best_val_model=false does not ask validation")
        or (
            not skips and "without model.input_skip or model.self_weight the last layer has no head"
        )
    )
    if reason:
        raise InputError(f"num_layers=auto: {reason}; give a number of layers")


def _check_saves(settings: TrainSettings, trainer: Trainer) -> None:
    """InputError for checkpoint.every with a trainer that does not resume."""
    if settings.checkpoint.every is not None and not trainer.RESUMES:
        raise InputError(
            f"checkpoint.every={settings.checkpoint.every}: trainer={settings.trainer.name} cannot"
            " resume from a saved state; leave it out"
        )
