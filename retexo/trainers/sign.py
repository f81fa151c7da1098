"""SIGN: features after 0 ... L hops are computed once, then an MLP trains without edges.

Frasca, Rossi, Eynard, Chamberlain, Bronstein and Monti, "SIGN: Scalable Inception Graph Neural
Networks", 2020:

    Z = relu(norm([X Theta_0, A X Theta_1, ..., A^L X Theta_L]))        (their eq. 4)
    Y = Z Omega                                                         (their eq. 5)

A is the normalised adjacency of GCN, or the mean of SAGE; L is num_layers. Boundary rows cross the
network once per hop. The norm (model.norm) and model.activation stand in for their PReLU, as in the
other trainers' networks; dropout acts on each input (model.input_dropout) and on Z.

On a heterogeneous graph this is NARS (Yu et al., "Scalable Graph Neural Networks for Heterogeneous
Graphs", 2020) with one subset of relations, all of them. With X_u the features of type u,

    H_t,u = mean over the relations r = (s, r, t) that bring rows of u of  A_r H_s,u

hop by hop, from H_u,u = X_u; the MLP reads those of the labelled type.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from partitioning.errors import InputError
from partitioning.graph.graph_data import PLAIN_RELATION, PLAIN_TYPE
from retexo.models.block import NumberedEdges, Sources
from retexo.models.convolution import make_activation, make_norm, xavier
from retexo.models.linear import LinearConvolution
from retexo.models.matrix import Matrix, as_matrix, dropout, matmul, to_dense
from retexo.models.network import hidden_convolution
from retexo.models.stage import Stage
from retexo.rounds.parameters import check_same_parameters
from retexo.settings.options import ModelSettings
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import end_to_end, layerwise
from retexo.trainers.context import Context, TrainResult, place_rows
from retexo.trainers.layerwise import LayerInput
from retexo.trainers.out_edges import Means
from retexo.trainers.trainer import Trainer, refuse_models

Hop = Mapping[str, Mapping[str, Tensor]]
"""[I, F_u] by type, and by the type u that its features are from."""


class SIGN(nn.Module):
    """[n, F] for each of L + 1 hops -> [n, C]"""

    def __init__(self, widths: Sequence[int], num_classes: int, model: ModelSettings) -> None:
        """Build the network; widths: F of each hop."""
        super().__init__()
        hidden = model.hidden_dim
        self.weights = nn.ParameterList([xavier(width, hidden) for width in widths])
        self.bias = nn.Parameter(torch.zeros(len(widths) * hidden))
        self.norm = make_norm(model.norm, len(widths) * hidden)
        self.activation = make_activation(model.activation)
        self.head = nn.Linear(len(widths) * hidden, num_classes)
        self.rate = model.dropout
        self.input_rates = [model.features_dropout(width) for width in widths]

    def forward(self, hops: Sequence[Matrix]) -> Tensor:
        parts = [
            matmul(dropout(rows, rate, self.training), weight)
            for rows, rate, weight in zip(hops, self.input_rates, self.weights, strict=True)
        ]
        hidden = self.activation(self.norm(torch.cat(parts, dim=1) + self.bias))
        return matmul(dropout(hidden, self.rate, self.training), self.head.weight.T, self.head.bias)


class SIGNTrainer(Trainer):
    """SIGN, on heterogeneous graphs NARS; the stages give the aggregator only."""

    OWN_MODEL = HETEROGENEOUS = True
    TAKES = ()

    def check(self, settings: TrainSettings) -> None:
        """Raise InputError for settings that SIGN does not support."""
        conv = hidden_convolution(settings.model)
        if settings.edge_head != "mlp":
            raise InputError(
                f"task.scorer={settings.edge_head}: trainer=sign has an MLP of its own; leave it"
                " out"
            )
        if conv.relational and not conv.linear_aggregation:
            raise InputError(
                f"model={settings.model.name}: trainer=sign takes means of rows; choose one of"
                " rgcn, hetero_sage"
            )
        if not conv.relational:
            refuse_models(
                settings,
                lambda conv: isinstance(conv, LinearConvolution) and conv.normalized,
                "aggregates hop after hop, by means or sums that are normalised",
            )

    def train(self, context: Context, stages: list[Stage]) -> TrainResult:
        """Exchange and aggregate hop by hop, then train the MLP and save it in their place.

        The stages give the aggregator only. TrainingError if workers begin with other parameters.
        """
        hops = make_hops(context, stages[0], len(stages))
        network = _build_network(context, hops).to(context.device, hops[0].dtype)
        check_same_parameters(context.comm, [network])
        partition = context.partition
        with context.phase("aggregate"):
            masks = partition.train_mask, partition.val_mask
            train_inputs, val_inputs = (_take_nodes(context, hops, mask) for mask in masks)
        zero = torch.zeros((), device=context.device)
        first = list(network.weights), train_inputs if bool(partition.train_mask.any()) else ()
        rounds = end_to_end.fit_network(
            context,
            network,
            first,
            lambda: (network(train_inputs), zero),
            lambda: (network(val_inputs), zero),
            exchanges_rows=False,
        )
        context.save_layer(0, network)
        used = context.in_a_split | context.computed
        with torch.no_grad(), context.phase("embed"):
            logits = network(_take_nodes(context, hops, used))
        return TrainResult(rounds, [place_rows(logits, used)])


def make_hops(context: Context, stage: Stage, num_hops: int) -> list[Tensor]:
    """Compute the inputs of the labelled type's nodes, [I, F] each: features, then each hop's.

    Hops are zero at nodes that no worker needs. All workers call it.
    """
    target = context.schema.target
    hop: Hop = {
        name: {name: node_type.features}
        for name, node_type in context.types.items()
        if node_type.features.shape[1] or context.schema.is_plain
    }
    inputs = list(hop.get(target, {}).values())
    for number in range(num_hops):
        hop = _next_hop(context, stage, hop, number)
        inputs += hop.get(target, {}).values()
    return inputs


def _next_hop(context: Context, stage: Stage, hop: Hop, number: int) -> Hop:
    """Aggregate one more hop at the nodes that some worker needs; zero rows at others.

    Aggregates of one origin over several relations are averaged. All workers call it.
    """
    required = context.required_layers
    nodes = {
        name: (layers_of_type > number).nonzero()[:, 0] for name, layers_of_type in required.items()
    }
    total: dict[str, dict[str, Tensor]] = {}
    count: Counter[tuple[str, str]] = Counter()
    for name, by_origin in hop.items():
        rows, node_type = torch.cat(list(by_origin.values()), dim=1), context.types[name]
        scale = context.source_scale(stage.conv)
        received = end_to_end.exchange_rows(context, node_type.plan, number, rows, scale)
        with context.phase("aggregate"):
            means = _aggregate(context, stage, name, rows, received, nodes)
        widths = [rows.shape[1] for rows in by_origin.values()]
        for relation in node_type.out_edges.first:
            to = relation[2]
            aggregated = rows.new_zeros(len(required[to]), rows.shape[1])
            if relation in means:
                aggregated[nodes[to]] = means[relation].cpu()
            sums = total.setdefault(to, {})
            pieces = torch.split(aggregated, widths, dim=1)
            for origin, piece in zip(by_origin, pieces, strict=True):
                sums[origin] = sums[origin] + piece if origin in sums else piece
                count[to, origin] += 1
    return {
        to: {origin: total / count[to, origin] for origin, total in sums.items()}
        for to, sums in total.items()
    }


def _aggregate(
    context: Context,
    stage: Stage,
    name: str,
    rows: Tensor,
    received: Sources,
    nodes: Mapping[str, Tensor],
) -> Means:
    """Return the aggregates of a type's rows over each relation, at nodes of destination types.

    A relation without such nodes has none.
    """
    if not context.schema.is_plain:
        return context.relation_means(name, rows, received, nodes)
    if not len(nodes[PLAIN_TYPE]):
        return {}
    edges = NumberedEdges(context.edges, received)
    inputs = layerwise.layer_inputs(context, stage, nodes[PLAIN_TYPE], LayerInput(rows), edges)
    return {PLAIN_RELATION: to_dense(inputs.matrices[-1])}


def _build_network(context: Context, hops: list[Tensor]) -> SIGN:
    """Build the SIGN network with the initial parameters of the seed, equal on every worker."""
    widths = [rows.shape[1] for rows in hops]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.settings.seed * 1_000)
        return SIGN(widths, context.task.num_classes, context.settings.model)


def _take_nodes(context: Context, hops: list[Tensor], mask: Tensor) -> list[Matrix]:
    """Return the rows of the nodes in a mask, bool [I], of each hop, on the device."""
    return [as_matrix(rows[mask].to(context.device)) for rows in hops]
