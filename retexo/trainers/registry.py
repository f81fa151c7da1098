"""The trainers by name.

To add one: a module here with a `Trainer`, its line below, and conf/trainer/NAME.yaml.
"""

from collections.abc import Callable
from operator import attrgetter, methodcaller

from partitioning.errors import InputError
from retexo.models.convolution import Convolution
from retexo.models.network import hidden_convolution
from retexo.rounds.graph_info import GraphInfo
from retexo.scores import check_stopping_metric
from retexo.settings.objective_settings import LOSSES
from retexo.settings.run_settings import TrainSettings
from retexo.tasks import node_regression
from retexo.trainers import lazy, sign, whole_networks
from retexo.trainers.trainer import ONLY_LAZY, Trainer

TRAINERS: dict[str, Trainer] = {
    "lazy": lazy.LazyTrainer(),
    "full_graph": whole_networks.FullGraphTrainer(),
    "bns": whole_networks.BNSTrainer(),
    "local": whole_networks.LocalTrainer(),
    "sign": sign.SIGNTrainer(),
    "fedgcn": whole_networks.FedGCNTrainer(),
    "sampled": whole_networks.SampledTrainer(),
}


def names_with(supports: Callable[[Trainer], bool]) -> str:
    """Return the names of the trainers for which a condition holds, for messages."""
    return ", ".join(name for name, trainer in TRAINERS.items() if supports(trainer))


def find_trainer(settings: TrainSettings) -> Trainer:
    """Return the settings' trainer; InputError if there is none, or none for the model's graphs."""
    name = settings.trainer.name
    if name not in TRAINERS:
        raise InputError(f"trainer={name}: no such trainer; choose one of {', '.join(TRAINERS)}")
    if hidden_convolution(settings.model).relational and not TRAINERS[name].HETEROGENEOUS:
        raise InputError(
            f"trainer={name}: not for heterogeneous graphs, nor labels of edges; choose one of "
            f"{names_with(lambda trainer: trainer.HETEROGENEOUS)}"
        )
    return TRAINERS[name]


def check_trainer_settings(settings: TrainSettings) -> None:
    """Raise InputError for settings that the chosen model or trainer does not support."""
    trainer, heterogeneous = find_trainer(settings), hidden_convolution(settings.model).relational
    check_stopping_metric(settings.stopping.metric, links=settings.task.links)
    scorer = settings.task.scorer
    if scorer not in ("auto", "mlp") and not (
        settings.task.links or (settings.task.of_edges and scorer != "distmult")
    ):
        raise InputError(
            f"task.scorer={scorer}: only for links, or mlp and dot for labels of edges; leave it"
            " out"
        )
    if settings.task.regression:
        node_regression.check_settings(settings)
    elif settings.task.loss in LOSSES["node_regression"]:
        raise InputError(
            f"task.loss={settings.task.loss}: only for task=node_regression; choose cross_entropy"
            " or focal"
        )
    if settings.checkpoint.every and not trainer.RESUMES:
        raise InputError(
            f"checkpoint.every={settings.checkpoint.every}: trainer={settings.trainer.name} cannot"
            " resume from a saved state; leave it out"
        )
    _check_growth(settings, trainer)
    if settings.task.of_edges and not heterogeneous:
        raise InputError(
            f"model={settings.model.name}: an edge with a label is learned as a node of a type of"
            " its own, by the models for heterogeneous graphs; choose --config-name"
            " edge_classification or edge_regression, or another model with them"
        )
    if heterogeneous:
        _check_heterogeneous(settings, trainer)
    else:
        _check_plain(settings, trainer)
    trainer.check(settings)


def _check_heterogeneous(settings: TrainSettings, trainer: Trainer) -> None:
    """Raise InputError for settings that the trainer does not support on heterogeneous graphs."""
    for name, only in trainer.HETEROGENEOUS_ONLY.items():
        value = attrgetter(name)(settings)
        if value != only:
            raise InputError(
                f"{name}={value}: on a heterogeneous graph trainer={settings.trainer.name} has "
                f"{name}={only} alone; leave it out (+experiment=retexo is for plain graphs)"
            )


def _check_plain(settings: TrainSettings, trainer: Trainer) -> None:
    """Raise InputError for settings that the trainer does not support on plain graphs.

    Also for residual layers, look-ahead and links where other settings rule these out.
    """
    for name, without in ONLY_LAZY.items():
        value = attrgetter(name)(settings)
        if value != without and not trainer.takes(name, value):
            others = names_with(methodcaller("takes", name, value))
            raise InputError(
                f"{name}={value}: not with trainer={settings.trainer.name}, only with {others};"
                " leave it out"
            )
    if settings.model.residual and not settings.model.self_weight:
        raise InputError(
            "model.residual=true: a residual layer reads a node's own row, which"
            " model.self_weight=false leaves out; set model.self_weight=true"
        )
    if settings.model.lookahead:
        _check_lookahead(settings)
    if settings.task.links:
        _check_links(settings, trainer)


def _check_lookahead(settings: TrainSettings) -> None:
    """Raise InputError where a halo node's output does not follow from one aggregate."""
    if not hidden_convolution(settings.model).linear_aggregation:
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
    """Raise InputError for trainers and settings that link prediction does not support."""
    name, task = settings.trainer.name, settings.task
    if not trainer.LINKS:
        others = names_with(lambda other: other.LINKS)
        raise InputError(
            f"trainer={name}: task=link_prediction needs trainer={others}; choose one of these"
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
        not hidden_convolution(settings.model).fixed_inputs
        and task.cut_edges == "train"
        and trainer.BY_LAYER
    ):
        raise InputError(
            f"task.cut_edges=train: model={settings.model.name} needs the rows of all neighbours of"
            " an end, which are not sent; set task.cut_edges=skip"
        )


def _check_growth(settings: TrainSettings, trainer: Trainer) -> None:
    """Raise InputError for num_layers=auto where it cannot be: layers train together, for instance.

    Also for links, without a head in each layer, and where validation chooses nothing.
    """
    if not settings.model.grows:
        return
    skips = settings.model.input_skip or settings.model.self_weight
    reason = (
        (not trainer.BY_LAYER and f"trainer={settings.trainer.name} trains all layers at once")
        or (settings.task.links and "the ends of links are sent for a given last layer")
        or (settings.classifiers == "last" and "classifiers=last does not ask validation")
        or (not settings.best_val_model and "best_val_model=false does not ask validation")
        or (
            not skips and "without model.input_skip or model.self_weight the last layer has no head"
        )
    )
    if reason:
        raise InputError(f"num_layers=auto: {reason}; give a number of layers")


def refuse_edge_data(settings: TrainSettings, conv: Convolution, graph_info: GraphInfo) -> None:
    """Raise InputError for edge weights or features that the model or trainer does not read."""
    if graph_info.weighted and not (conv.linear_aggregation or conv.attention_heads):
        raise InputError(
            "model.aggregator=pool: the edges have weights, which a maximum cannot use; use "
            "model.aggregator=mean, or partition the graph without `edge_weight`"
        )
    trainer = settings.trainer.name
    reads = conv.attention_heads or TRAINERS[trainer].EDGE_FEATURES
    if graph_info.num_edge_features and not reads:
        others = names_with(lambda other: other.EDGE_FEATURES)
        raise InputError(
            f"trainer={trainer}: the edges have features, which model={settings.model.name} reads"
            f" only with trainer={others}; use one, model=gat, or partition"
            " the graph without `edge_feat` (of tables: columns.ignore=[NAME])"
        )
