"""Boundary node sampling: full-graph training on a new sample of the boundary nodes in every epoch.

Wan, Li, Kim and Lin, "BNS-GCN: Efficient Full-Graph Training of Graph Convolutional Networks with
Partition-Parallelism and Random Boundary Node Sampling", MLSys 2022. Each boundary node of an
ordered pair of partitions is drawn with probability p, the same ones in all layers of an epoch. In
sums, which are normalised by degrees in the whole graph, its row is multiplied by 1/p, so that the
sum is unbiased; attention and pooling use it as it is. Both ends draw from the same seed, so the
sample is not sent. Validation and the final test use the whole graph.
"""

import itertools

import numpy as np
import torch

from retexo.exchange.differentiable_exchange import BoundarySample
from retexo.exchange.exchange_plan import ExchangePlan, Use
from retexo.models.block import HaloRows, Sources
from retexo.models.hetero_stage import PLAIN_NODE
from retexo.models.matrix import Matrix, as_matrix
from retexo.models.stage import Stage
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import checks, end_to_end, network_pass
from retexo.trainers.context import Context, TrainResult
from retexo.trainers.lazy import compute_logits

USE: Use = "evaluate"
OWN_MODEL = False
RESUMES = False
HETEROGENEOUS = False
TAKES = end_to_end.SKIPS


def check(settings: TrainSettings) -> None:
    """Raise InputError for settings that boundary node sampling does not support."""
    checks.refuse_local_steps(settings)


def train(context: Context, stages: list[Stage]) -> TrainResult:
    """Take one step per epoch, on a pass over the sampled graph."""
    partition, settings = context.partition, context.settings
    share = settings.bns.p
    received = end_to_end.exchange_features(context, stages, with_sums=False)
    features = received[PLAIN_NODE]
    with context.phase("plan"):
        required, plans = network_pass.make_plans(context, partition.train_mask, sums=False)
        val_required, val_plans = network_pass.make_plans(context, partition.val_mask)
    with context.phase("aggregate"):
        val_pass = network_pass.make_pass(
            context, stages, val_required, partition.val_mask, val_plans, received
        )
    scale = 1 / share if stages[0].conv.linear_aggregation and share else 1.0
    epochs = itertools.count(1)

    def sampled_pass() -> network_pass.Pass:
        sample = draw_boundary(
            plans[PLAIN_NODE], context.comm.rank, share, settings.seed, next(epochs)
        )
        first = {PLAIN_NODE: sampled_features(features, plans[PLAIN_NODE], sample, scale)}
        return network_pass.make_pass(
            context, stages, required, partition.train_mask, plans, first, sample, scale
        )

    rounds = end_to_end.fit_stages(
        context,
        stages,
        sampled_pass,
        val_pass,
        _first_matrices(context, stages[0], features),
        exchanges_rows=len(stages) > 1,
    )
    return TrainResult(rounds, [compute_logits(context, stages, received)])


def draw_boundary(
    plan: ExchangePlan, rank: int, share: float, seed: int, epoch: int
) -> BoundarySample:
    """Draw the boundary nodes that take part in an epoch.

    Sender and receiver draw the same nodes from the seed.
    """

    def of_pair(
        sender: int, receiver: int, count: int
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.random.default_rng((seed, epoch, sender, receiver)).random(count) < share

    outgoing = [
        of_pair(rank, peer, len(boundary.rows)) for peer, boundary in enumerate(plan.outgoing)
    ]
    incoming = [
        of_pair(peer, rank, len(boundary.rows)) for peer, boundary in enumerate(plan.incoming)
    ]
    return BoundarySample(outgoing, incoming)


def sampled_features(
    features: Sources, plan: ExchangePlan, sample: BoundarySample, scale: float
) -> Sources:
    """The features of the sampled halo nodes, multiplied by `scale`; they are rows without sums."""
    sampled = [
        boundary.rows[mask] for boundary, mask in zip(plan.incoming, sample.incoming, strict=True)
    ]
    nodes = torch.from_numpy(np.concatenate(sampled))
    halo = torch.full_like(features.unprojected.halo, -1)
    halo[nodes] = torch.arange(len(nodes))
    values = features.unprojected.values[features.unprojected.halo[nodes]] * scale
    return Sources(
        HaloRows(values, halo, features.unprojected.sums, features.unprojected.sum_dst),
        features.projected,
    )


def _first_matrices(context: Context, stage: Stage, features: Sources) -> list[Matrix]:
    """Return for each first weight all rows that it may be multiplied with.

    Columns without any value are then known: sums of these rows are zero there, too.
    """
    rows = as_matrix(torch.cat((context.features, features.unprojected.values)))
    edges = [] if context.edge_means is None else [as_matrix(context.edge_means)]
    of_skips = [edges[0] if name == "edges" else rows for name in stage.skips]
    return [rows] * len(stage.conv.first_weights) + of_skips
