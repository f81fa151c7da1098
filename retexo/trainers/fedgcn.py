"""FedGCN: sums over neighbours' features are exchanged once; then workers train end to end on what they have.

Yao, Jin, Ravi and Joe-Wong, "FedGCN: Convergence-Communication Tradeoffs in Federated Training of Graph Convolutional
Networks", NeurIPS 2023. After one hop a worker has the first layer's aggregates of its own nodes, exactly; after two
also those of their neighbours on other workers, so that a network of two layers is exact. Edges that later layers would
need are left out; sums are normalised by degrees in the whole graph. Validation and the final test are on the same
data. Needs an aggregator that sums its neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from retexo.exchange.exchange_plan import Use
from retexo.models.block import HaloRows
from retexo.models.convolution import Inputs
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.matrix import as_matrix, to_dense
from retexo.models.stage import Stage
from retexo.settings.options import FedGCNOptions
from retexo.settings.run_settings import TrainSettings
from retexo.settings.schema import typed_options
from retexo.trainers import checks, end_to_end, layerwise, network_pass
from retexo.trainers.context import Context, TrainResult
from retexo.trainers.layerwise import LayerInput

USE: Use = "evaluate"
OWN_MODEL = False
RESUMES = False


def check(settings: TrainSettings) -> None:
    typed_options("fedgcn", settings.trainer.options, FedGCNOptions)
    checks.refuse_models(
        settings,
        lambda conv: conv.linear_aggregation,
        "exchanges sums over neighbours, which attention and pooling have none of",
    )


def train(context: Context, stages: list[Stage]) -> TrainResult:
    """One step per round, from a pass over the aggregates that were exchanged."""
    options = typed_options("fedgcn", context.settings.trainer.options, FedGCNOptions)
    aggregates = exchange_aggregates(context, stages, options.hops)
    return end_to_end.train_without_exchange(
        context, stages, lambda targets: aggregate_pass(context, stages, aggregates, targets)
    )


@dataclass(frozen=True, eq=False)
class Aggregates:
    """The first layer's input at the inner nodes, [I, F] each, and at halo nodes that were received, [n, F] each."""

    own: Sequence[Tensor]
    halo: Sequence[Tensor]
    place: Tensor
    """int64 [H] row of each halo node, -1 where it was not received."""


def exchange_aggregates(context: Context, stages: list[Stage], hops: int) -> Aggregates:
    """First hop: sums and rows of features; second hop: the rows of these aggregates at boundary nodes."""
    features = end_to_end.exchange_features(context, stages[0], context.plan)
    nodes = (context.plan.required_layers > 0).nonzero()[:, 0]
    given = LayerInput(context.features)
    made = (
        layerwise.layer_inputs(context, stages[0], nodes, given, features).matrices
        if len(nodes)
        else ()
    )
    own = [torch.zeros_like(context.features) for _ in stages[0].conv.first_weights]
    for rows, matrix in zip(own, made, strict=False):
        rows[nodes] = to_dense(matrix).cpu()
    if hops == 1 or len(stages) == 1:
        return Aggregates(
            own, [rows[:0] for rows in own], torch.full((context.partition.num_halo,), -1)
        )
    rows_only = replace(context.plan, partial_sums=False)
    there = end_to_end.exchange_rows(context, rows_only, 1, torch.cat(own, dim=1), None).unprojected
    return Aggregates(own, torch.split(there.values, context.features.shape[1], dim=1), there.halo)


def aggregate_pass(
    context: Context, stages: list[Stage], aggregates: Aggregates, targets: Tensor
) -> network_pass.Pass:
    """A pass for the targets, bool [I]. Its first layer also computes the halo nodes that the second one needs."""
    required_layers, reached = network_pass.nodes_within_partition(context, targets)
    nodes, halo = (
        (required_layers > 0).nonzero()[:, 0],
        (reached & (aggregates.place >= 0)).nonzero()[:, 0],
    )
    places = aggregates.place[halo]
    matrices = [
        as_matrix(torch.cat((own[nodes], elsewhere[places])).to(context.device))
        for own, elsewhere in zip(aggregates.own, aggregates.halo, strict=True)
    ]
    count = len(nodes) + len(halo)
    steps = [
        network_pass.Step(
            count, Inputs(tuple(matrices), count, NO_PROJECTED_ROWS) if count else None
        )
    ]
    none = network_pass.no_vectors(context)
    second = HaloRows(
        none.values.new_zeros(len(halo), 0),
        _numbered(halo, len(none.halo)),
        none.sums,
        none.sum_dst,
    )
    for layer in range(1, len(stages)):
        steps.append(
            network_pass.later_step(
                context, context.edges, required_layers, layer, second if layer == 1 else none
            )
        )
    return network_pass.make_pass(steps, required_layers, targets)


def _numbered(nodes: Tensor, size: int) -> Tensor:
    place = torch.full((size,), -1)
    place[nodes] = torch.arange(len(nodes))
    return place
