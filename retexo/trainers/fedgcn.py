"""FedGCN: sums over neighbours' features are exchanged once, then workers train without exchange.

Yao, Jin, Ravi and Joe-Wong, "FedGCN: Convergence-Communication Tradeoffs in Federated Training of
Graph Convolutional Networks", NeurIPS 2023. After one hop a worker has the first layer's aggregates
of its own nodes, exactly; after two also those of their neighbours on other workers, so that a
network of two layers is exact. Edges that later layers would need are left out; sums are normalised
by degrees in the whole graph. Validation and the final test use the same data.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from partitioning.graph_data import PLAIN_TYPE
from retexo.models.block import HaloRows, Sources
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
        """Take one step per round, on a pass over what was exchanged."""
        features, aggregates = end_to_end.exchange_features(context, stages), None
        if context.settings.fedgcn.hops > 1 and len(stages) > 1:
            aggregates = exchange_aggregates(context, stages, features[PLAIN_TYPE])
        return end_to_end.train_without_exchange(
            context,
            stages,
            lambda targets: aggregate_pass(context, stages, features, aggregates, targets),
        )


def exchange_aggregates(context: Context, stages: list[Stage], features: Sources) -> HaloRows:
    """Return the first layer's inputs of halo nodes, side by side; all workers call it.

    features: those received from other workers.
    """
    nodes = (context.plan.required_layers > 0).nonzero()[:, 0]
    width = sum(weight.shape[0] for weight in stages[0].first_weights)
    own = context.features.new_zeros(len(context.features), width)
    if len(nodes):
        layer_input = LayerInput.first(context, stages)
        inputs = layerwise.layer_inputs(context, stages[0], nodes, layer_input, features)
        matrices = [to_dense(matrix).cpu() for matrix in inputs.all_matrices]
        own[nodes] = torch.cat(matrices, dim=1)
    rows_only = replace(context.plan, partial_sums=False)
    return end_to_end.exchange_rows(context, rows_only, 1, own, None).unprojected


def aggregate_pass(
    context: Context,
    stages: list[Stage],
    features: Mapping[str, Sources],
    aggregates: HaloRows | None,
    targets: Tensor,
) -> network_pass.Pass:
    """Return a pass for the targets, bool [I], within the partition but for these features.

    With `aggregates` its first layer also computes the halo nodes of the second.
    """
    local = network_pass.make_local_pass(context, stages, targets, features)
    first, *later = local.steps
    if aggregates is None or not first.fixed:
        return local
    required = network_pass.require_targets(context, targets, comm=None)
    nodes = _halo_of_second_layer(context, required[PLAIN_TYPE], aggregates).nonzero()[:, 0]
    inputs, count = first.fixed[PLAIN_TYPE], first.num_rows[PLAIN_TYPE] + len(nodes)
    matrices = inputs.all_matrices
    rows = aggregates.values[aggregates.halo[nodes]].to(context.device)
    pieces = torch.split(rows, [matrix.shape[1] for matrix in matrices], dim=1)
    joined = [
        as_matrix(torch.cat((to_dense(matrix), piece)))
        for matrix, piece in zip(matrices, pieces, strict=True)
    ]
    inputs = inputs.with_matrices(joined, count)
    # A later layer's rows come in the order of `nodes`.
    no_values = context.features.new_zeros(len(nodes), 0)
    received = {PLAIN_TYPE: HaloRows.of_nodes(no_values, nodes, context.plan.num_halo)}
    edges = network_pass.later_step(context, stages, 1, required, received).edges
    first = network_pass.Step({PLAIN_TYPE: count}, {PLAIN_TYPE: inputs})
    return replace(local, steps=[first, replace(later[0], edges=edges), *later[1:]])


def _halo_of_second_layer(context: Context, required: Tensor, aggregates: HaloRows) -> Tensor:
    """Return the halo nodes that the second layer reads and that have aggregates, bool [H].

    required: uint8 [I].
    """
    local = context.target.out_edges.local
    halo = torch.zeros(local.num_halo, dtype=torch.bool)
    src = local.src[required[local.dst] > 1]
    halo[src[src >= local.num_inner] - local.num_inner] = True
    return halo & (aggregates.halo >= 0)
