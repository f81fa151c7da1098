"""Boundary node sampling: full-graph training on a fresh sample of the boundary nodes in every epoch.

Wan, Li, Kim and Lin, "BNS-GCN: Efficient Full-Graph Training of Graph Convolutional Networks with Partition-Parallelism
and Random Boundary Node Sampling", MLSys 2022. Each boundary node of an ordered pair of parts is taken with probability
p, the same ones in all layers of an epoch. Before a sum, which is normalised by degrees in the whole graph, taken rows
are multiplied by 1/p, so that the sum is unbiased; attention and pooling take them as they are. Both ends draw
the sample from the same seed, so the sample itself is not sent. Validation and the final test are on the whole graph.
"""

from dataclasses import replace

import numpy as np
import torch

from retexo.exchange.differentiable_exchange import BoundarySample
from retexo.exchange.exchange_plan import ExchangePlan, Use
from retexo.models.block import HaloRows, Sources
from retexo.models.matrix import Matrix, as_matrix
from retexo.models.stage import Stage
from retexo.settings.options import BNSOptions
from retexo.settings.run_settings import TrainSettings
from retexo.settings.schema import typed_options
from retexo.trainers import checks, end_to_end, network_pass
from retexo.trainers.context import Context, TrainResult

USE: Use = "evaluate"
OWN_MODEL = False
RESUMES = False


def check(settings: TrainSettings) -> None:
    typed_options("bns", settings.trainer.options, BNSOptions)
    checks.refuse_local_steps(settings)
    checks.refuse_rounding(settings)


def train(context: Context, stages: list[Stage]) -> TrainResult:
    """One step per epoch, from a pass over the sampled graph."""
    partition, share = (
        context.partition,
        typed_options("bns", context.settings.trainer.options, BNSOptions).p,
    )
    features = end_to_end.exchange_features(context, stages[0], rows_only(context.plan))
    with context.phase("plan"):
        plan = end_to_end.plan_for(context, partition.train_mask, sums=False)
        val_plan = end_to_end.plan_for(context, partition.val_mask, sums=context.plan.partial_sums)
    with context.phase("aggregate"):
        val_pass = network_pass.pass_with_exchange(
            context, stages, val_plan, features, partition.val_mask
        )
    scale = 1 / share if stages[0].conv.linear_aggregation and share else 1.0
    epoch = 0

    def sampled() -> network_pass.Pass:
        nonlocal epoch
        epoch += 1
        sample = draw(plan, context.comm.rank, share, context.settings.seed, epoch)
        first = sampled_features(features, plan, sample, scale)
        return network_pass.pass_with_exchange(
            context, stages, plan, first, partition.train_mask, sample, scale
        )

    matrices = _rows(context, features) * len(stages[0].conv.first_weights)
    rounds = end_to_end.fit_stages(
        context, stages, sampled, val_pass, matrices, exchanges_rows=len(stages) > 1
    )
    return TrainResult(rounds, [end_to_end.infer(context, stages, features)])


def rows_only(plan: ExchangePlan) -> ExchangePlan:
    """The plan without partial sums: nodes are sampled, so their rows are exchanged."""
    return replace(plan, partial_sums=False)


def draw(plan: ExchangePlan, rank: int, share: float, seed: int, epoch: int) -> BoundarySample:
    """The sampled boundary nodes of an epoch; sender and receiver draw the same."""

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
    """The halo nodes' features that are in the sample, multiplied by `scale`; they are rows, no sums."""
    taken = [
        boundary.rows[mask] for boundary, mask in zip(plan.incoming, sample.incoming, strict=True)
    ]
    nodes = torch.from_numpy(np.concatenate(taken))
    halo = torch.full_like(features.unprojected.halo, -1)
    halo[nodes] = torch.arange(len(nodes))
    values = features.unprojected.values[features.unprojected.halo[nodes]] * scale
    return Sources(
        HaloRows(values, halo, features.unprojected.sums, features.unprojected.sum_dst),
        features.projected,
    )


def _rows(context: Context, features: Sources) -> tuple[Matrix, ...]:
    """All rows that a first weight may be multiplied with: a sum of them is zero wherever all of them are."""
    return (as_matrix(torch.cat((context.features, features.unprojected.values))),)
