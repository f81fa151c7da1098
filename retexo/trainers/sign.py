"""SIGN: the features after 0, 1, ... L hops are computed once, then an MLP on all of them trains without any edges.

Frasca, Rossi, Eynard, Chamberlain, Bronstein and Monti, "SIGN: Scalable Inception Graph Neural Networks", 2020:

    Z = relu(norm([X Theta_0, A X Theta_1, ..., A^L X Theta_L]))      Y = Z Omega        (their eqs. 4 and 5)

A is the normalised adjacency of GCN, or the mean of SAGE; L is num_layers. Boundary rows cross the network once per
hop. The norm (model.norm) and ReLU stand where they have PReLU, as in the other trainers' networks; dropout acts on
each input (model.input_dropout) and on Z.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from retexo.exchange.exchange_plan import Use
from retexo.models.convolution import make_norm, xavier
from retexo.models.linear import LinearConvolution
from retexo.models.matrix import Matrix, as_matrix, dropout, matmul, to_dense
from retexo.models.stage import Stage
from retexo.rounds.parameters import check_same_parameters
from retexo.settings.run_settings import ModelSettings, TrainSettings
from retexo.trainers import checks, end_to_end, layerwise
from retexo.trainers.context import Context, RunContext, TrainResult
from retexo.trainers.layerwise import LayerInput

USE: Use = "evaluate"
OWN_MODEL = True
RESUMES = False


def check(settings: TrainSettings) -> None:
    checks.refuse_models(
        settings,
        lambda conv: isinstance(conv, LinearConvolution) and conv.normalized,
        "aggregates hop after hop, by means or sums that are normalised",
    )


class SIGN(nn.Module):
    """[n, F] for each of L + 1 hops -> [n, C]"""

    def __init__(self, widths: Sequence[int], num_classes: int, model: ModelSettings) -> None:
        """widths: F of each hop."""
        super().__init__()
        hidden = model.hidden_dim
        self.weights = nn.ParameterList([xavier(width, hidden) for width in widths])
        self.bias = nn.Parameter(torch.zeros(len(widths) * hidden))
        self.norm = make_norm(model.norm, len(widths) * hidden)
        self.head = nn.Linear(len(widths) * hidden, num_classes)
        self.rate, self.input_rate = model.dropout, model.features_dropout

    def forward(self, hops: Sequence[Matrix]) -> Tensor:
        parts = [
            matmul(dropout(rows, self.input_rate, self.training), weight)
            for rows, weight in zip(hops, self.weights, strict=True)
        ]
        hidden = torch.relu_(self.norm(torch.cat(parts, dim=1) + self.bias))
        return matmul(dropout(hidden, self.rate, self.training), self.head.weight.T, self.head.bias)


def train(context: Context, stages: list[Stage]) -> TrainResult:
    """Exchange and aggregate hop by hop, then train; of the stages only the first one's aggregator is used."""
    return fit_hops(context, make_hops(context, stages[0], len(stages)))


def fit_hops(context: RunContext, hops: list[Tensor]) -> TrainResult:
    """Train on what was aggregated, [I, F] each."""
    network = _network(context, hops).to(context.device, hops[0].dtype)
    check_same_parameters(context.comm, [network])
    partition = context.partition
    with context.phase("aggregate"):
        inputs = [
            _matrices(context, hops, mask) for mask in (partition.train_mask, partition.val_mask)
        ]
    zero = torch.zeros((), device=context.device)
    first = list(network.weights), inputs[0] if len(context.labels[partition.train_mask]) else ()
    train, val = (lambda: (network(inputs[0]), zero)), (lambda: (network(inputs[1]), zero))
    rounds = end_to_end.fit(context, network, first, train, val, exchanges_rows=False)
    context.save_layer(0, network)
    logits = torch.full(
        (partition.num_inner, network.head.out_features), torch.nan, dtype=hops[0].dtype
    )
    used = end_to_end.nodes_in_a_split(context)
    with torch.no_grad(), context.phase("embed"):
        logits[used] = network(_matrices(context, hops, used)).cpu()
    return TrainResult(rounds, [logits])


def make_hops(context: Context, stage: Stage, num_hops: int) -> list[Tensor]:
    """[I, F] features, then the aggregate after each hop; zero at nodes that no worker needs."""
    hops = [context.features]
    scale = context.source_scale(stage.conv)
    for hop in range(num_hops):
        sources = end_to_end.exchange_rows(context, context.plan, hop, hops[-1], scale)
        nodes = (context.plan.required_layers > hop).nonzero()[:, 0]
        rows = torch.zeros_like(context.features)
        with context.phase("aggregate"):
            if len(nodes):
                inputs = layerwise.layer_inputs(
                    context, stage, nodes, LayerInput(hops[-1]), sources
                )
                rows[nodes] = to_dense(inputs.matrices[-1]).cpu()
        hops.append(rows)
    return hops


def _network(context: RunContext, hops: list[Tensor]) -> SIGN:
    """The same on every worker."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.settings.seed * 1_000)
        return SIGN(
            [rows.shape[1] for rows in hops], context.task.num_classes, context.settings.model
        )


def _matrices(context: RunContext, hops: list[Tensor], mask: Tensor) -> list[Matrix]:
    return [as_matrix(rows[mask].to(context.device)) for rows in hops]
