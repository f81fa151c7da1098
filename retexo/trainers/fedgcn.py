"""FedGCN: sums over neighbours' features are exchanged once, then workers train without exchange.

Yao, Jin, Ravi and Joe-Wong, "FedGCN: Convergence-Communication Tradeoffs in Federated Training of
Graph Convolutional Networks", NeurIPS 2023. After one hop a worker has the first layer's aggregates
of its own nodes, exactly; after two also those of their neighbours on other workers, so that a
network of two layers is exact. Edges that later layers would need are left out; sums are normalised
by degrees in the whole graph. Validation and the final test use the same data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from retexo.models.block import HaloRows
from retexo.models.convolution import Inputs
from retexo.models.hetero_stage import PLAIN_NODE
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.matrix import as_matrix, to_dense
from retexo.models.stage import Stage
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import end_to_end, layerwise, network_pass
from retexo.trainers.context import Context, TrainResult
from retexo.trainers.layerwise import LayerInput
from retexo.trainers.trainer import Trainer, refuse_models


class FedGCNTrainer(Trainer):
    """FedGCN."""

    EDGE_FEATURES = True

    def check(self, settings: TrainSettings) -> None:
        """Raise InputError for settings that FedGCN does not support."""
        refuse_models(
            settings,
            lambda conv: conv.linear_aggregation,
            "exchanges sums over neighbours, which attention and pooling have none of",
        )

    def train(self, context: Context, stages: list[Stage]) -> TrainResult:
        """Take one step per round, on a pass over the aggregates that were exchanged."""
        options = context.settings.fedgcn
        aggregates = exchange_aggregates(context, stages, options.hops)
        return end_to_end.train_without_exchange(
            context, stages, lambda targets: aggregate_pass(context, stages, aggregates, targets)
        )


@dataclass(frozen=True, eq=False)
class Aggregates:
    """The first layer's input at this worker's nodes, and at halo nodes with aggregates."""

    given: LayerInput
    own: Sequence[Tensor]
    """[I, F] each, at the inner nodes; K wide for means of edge features."""
    halo: Sequence[Tensor]
    """[n, F] each, likewise, at the halo nodes that were received."""
    place: Tensor
    """int64 [H] the row of each halo node in `halo`, -1 where it was not received."""


def exchange_aggregates(context: Context, stages: list[Stage], hops: int) -> Aggregates:
    """Exchange and return the aggregates of the first layer; all workers call it.

    hops: 1 exchanges sums and rows of features; 2 also the aggregates of boundary nodes.
    """
    features = end_to_end.exchange_features(context, stages)[PLAIN_NODE]
    nodes = (context.plan.required_layers > 0).nonzero()[:, 0]
    widths = [weight.shape[0] for weight in stages[0].first_weights]
    own = [context.features.new_zeros(len(context.features), width) for width in widths]
    layer_input = LayerInput.first(context, stages)
    if len(nodes):
        inputs = layerwise.layer_inputs(context, stages[0], nodes, layer_input, features)
        for rows, matrix in zip(own, (*inputs.matrices, *inputs.skips), strict=True):
            rows[nodes] = to_dense(matrix).cpu()
    if hops == 1 or len(stages) == 1:
        none = torch.full((context.plan.num_halo,), -1)
        return Aggregates(layer_input, own, [rows[:0] for rows in own], none)
    rows_only = replace(context.plan, partial_sums=False)
    received = end_to_end.exchange_rows(context, rows_only, 1, torch.cat(own, dim=1), None)
    halo = received.unprojected
    return Aggregates(layer_input, own, torch.split(halo.values, widths, dim=1), halo.halo)


def aggregate_pass(
    context: Context, stages: list[Stage], aggregates: Aggregates, targets: Tensor
) -> network_pass.Pass:
    """Return a pass for the targets, bool [I].

    Its first layer also computes the halo nodes of the second.
    """
    required = network_pass.require_targets(context, targets, comm=None)
    nodes = (required[PLAIN_NODE] > 0).nonzero()[:, 0]
    halo = _halo_of_second_layer(context, required[PLAIN_NODE])
    halo = (halo & (aggregates.place >= 0)).nonzero()[:, 0]
    rows = aggregates.place[halo]
    matrices = tuple(
        as_matrix(torch.cat((own[nodes], elsewhere[rows])).to(context.device))
        for own, elsewhere in zip(aggregates.own, aggregates.halo, strict=True)
    )
    count = len(nodes) + len(halo)
    width = len(stages[0].conv.first_weights)
    inputs = Inputs(matrices[:width], count, NO_PROJECTED_ROWS, skips=matrices[width:])
    fixed = {PLAIN_NODE: inputs} if count else {}
    steps = [network_pass.Step({PLAIN_NODE: count}, fixed)]
    for layer in range(1, len(stages)):
        received = {PLAIN_NODE: _number_halo(context, halo)} if layer == 1 else {}
        steps.append(
            network_pass.later_step(context, stages, layer, required, received, aggregates.given)
        )
    return network_pass.finish_pass(context, steps, required, targets)


def _halo_of_second_layer(context: Context, required: Tensor) -> Tensor:
    """Return the halo nodes that the second layer reads, bool [H]; required: uint8 [I]."""
    partition = context.target.out_edges.local
    halo = torch.zeros(partition.num_halo, dtype=torch.bool)
    if context.settings.model.depth > 1:
        src = partition.src[required[partition.dst] > 1]
        halo[src[src >= partition.num_inner] - partition.num_inner] = True
    return halo


def _number_halo(context: Context, nodes: Tensor) -> HaloRows:
    """Number halo nodes, int64 [n], in the order given, as HaloRows without values.

    A later layer's rows come in this order.
    """
    halo, none = torch.full((context.plan.num_halo,), -1), torch.zeros(0, dtype=torch.int64)
    halo[nodes] = torch.arange(len(nodes))
    return HaloRows(context.features.new_zeros(len(nodes), 0), halo, none, none)
