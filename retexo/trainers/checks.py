"""Checks for settings that some trainers do not support; each raises InputError."""

from collections.abc import Callable

from partitioning.errors import InputError
from retexo.models.conv_registry import CONVOLUTIONS, check_model, default_model_settings
from retexo.models.convolution import Convolution
from retexo.rounds.graph_info import GraphInfo
from retexo.settings.run_settings import TrainSettings


def refuse_local_steps(settings: TrainSettings) -> None:
    """Raise InputError for gradient=local."""
    if settings.gradient.mode != "sync":
        raise InputError(
            f"gradient={settings.gradient.mode}: trainer={settings.trainer.name} sends gradients of"
            " rows between workers, which need the same parameters on all of them; set"
            " gradient=fp32"
        )


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
    """Refuse a model that does not fit; the message names those that fit with their defaults."""
    model = settings.model
    if not fits(check_model(model)):
        known = (
            name for name in CONVOLUTIONS if fits(check_model(default_model_settings(name, 1, 1)))
        )
        raise InputError(
            f"model={model.name}{model.own}: trainer={settings.trainer.name} {reason}; choose one"
            f" of {', '.join(known)}, or another trainer"
        )


def refuse_edge_data(settings: TrainSettings, conv: Convolution, graph_info: GraphInfo) -> None:
    """Refuse edge weights or features that the model or the trainer does not read."""
    if graph_info.weighted and not (conv.linear_aggregation or conv.attention_heads):
        raise InputError(
            "model.aggregator=pool: the edges have weights, which a maximum cannot use; use "
            "model.aggregator=mean, or partition the graph without `edge_weight`"
        )
    trainer, readers = settings.trainer.name, ("lazy", "full_graph", "bns", "fedgcn")
    if graph_info.num_edge_features and not conv.attention_heads and trainer not in readers:
        raise InputError(
            f"trainer={trainer}: the edges have features, which model={settings.model.name} reads"
            f" only with trainer={', '.join(readers)}; use one, model=gat, or partition the graph"
            " without `edge_feat` (of tables: columns.ignore=[NAME])"
        )
