"""Training on the edges within each partition, end to end: the lower bound, no row crosses the network.

Validation and the final test are on these edges, too.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from partitioning.errors import InputError
from retexo.exchange.exchange_plan import Use
from retexo.models.block import InEdges, Sources
from retexo.models.convolution import Convolution
from retexo.models.stage import Stage
from retexo.settings.options import LocalOptions
from retexo.settings.run_settings import TrainSettings
from retexo.settings.schema import typed_options
from retexo.trainers import checks, end_to_end, network_pass
from retexo.trainers.context import Context, TrainResult, in_edges

USE: Use = "nothing"
OWN_MODEL = False
RESUMES = False


def check(settings: TrainSettings) -> None:
    typed_options("local", settings.trainer.options, LocalOptions)
    checks.refuse_rounding(settings)
    if settings.exchange.mode != "exact":
        raise InputError(
            f"exchange={settings.exchange.mode}: trainer=local sends no rows; leave it out"
        )
    if settings.smoothing.steps:
        raise InputError(
            f"smoothing.steps={settings.smoothing.steps}: trainer=local sends no answers; leave it out"
        )


def train(context: Context, stages: list[Stage]) -> TrainResult:
    """One step per round, from a pass that stays within the part."""
    if typed_options("local", context.settings.trainer.options, LocalOptions).degrees == "local":
        context = replace(context, edges=inner_edges(context, stages[0].conv))
    return end_to_end.train_without_exchange(
        context, stages, lambda targets: local_pass(context, stages, targets)
    )


def inner_edges(context: Context, conv: Convolution) -> InEdges:
    """The edges within the partition, with their own degrees."""
    whole, num_inner = context.partition, context.partition.num_inner
    partition = whole.keep_edges(whole.src < num_inner)
    out_degree = partition.sum_edges_at(partition.src, num_inner + partition.num_halo)
    in_degree = partition.sum_edges_at(partition.dst, num_inner)
    return in_edges(partition, conv, in_degree, out_degree, context.features.dtype)


def local_pass(
    context: Context, stages: Sequence[Stage], targets: torch.Tensor
) -> network_pass.Pass:
    """A pass for the targets, bool [I], without halo nodes."""
    required_layers, _ = network_pass.nodes_within_partition(context, targets)
    none = network_pass.no_vectors(context)
    steps = [network_pass.first_step(context, stages[0], required_layers, Sources(none, none))]
    for layer in range(1, len(stages)):
        steps.append(network_pass.later_step(context, context.edges, required_layers, layer, none))
    return network_pass.make_pass(steps, required_layers, targets)
