"""Boundary node sampling: full-graph training on a new sample of the boundary nodes in every epoch.

Wan, Li, Kim and Lin, "BNS-GCN: Efficient Full-Graph Training of Graph Convolutional Networks with
Partition-Parallelism and Random Boundary Node Sampling", MLSys 2022. Each boundary node of an
ordered pair of partitions is drawn with probability p, the same ones in all layers of an epoch. In
sums, which are normalised by degrees in the whole graph, its row is multiplied by 1/p, so that the
sum is unbiased; attention and pooling use it as it is. Both ends draw from the same seed, so the
sample is not sent. Validation and the final test use the whole graph.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from partitioning.graph_data import PLAIN_TYPE
from retexo.exchange.differentiable_exchange import BoundarySample
from retexo.exchange.exchange_plan import ExchangePlan
from retexo.models.block import HaloRows, Sources
from retexo.models.matrix import Matrix, as_matrix
from retexo.models.stage import Stage
from retexo.trainers.context import Context
from retexo.trainers.full_graph import FullGraphTrainer
from retexo.trainers.network_pass import Pass, Plans, Required, make_pass


class BNSTrainer(FullGraphTrainer):
    """Full-graph training, with some of the boundary nodes in each epoch."""

    HETEROGENEOUS = LINKS = INDUCTIVE = TRAINS_ON_SUMS = False

    def training_passes(
        self,
        context: Context,
        stages: Sequence[Stage],
        required: Required,
        mask: Tensor,
        plans: Plans,
        features: Mapping[str, Sources],
    ) -> tuple[Callable[[], Pass], Sequence[Matrix]]:
        """Return what samples the graph of the next epoch (FullGraphTrainer)."""
        share, seed = context.settings.bns.p, context.settings.seed
        scale = 1 / share if stages[0].conv.linear_aggregation and share else 1.0
        plan, received, epochs = plans[PLAIN_TYPE], features[PLAIN_TYPE], itertools.count(1)

        def sampled_pass() -> Pass:
            sample = draw_boundary(plan, context.comm.rank, share, seed, next(epochs))
            first = {PLAIN_TYPE: sampled_features(received, plan, sample, scale)}
            return make_pass(context, stages, required, mask, plans, first, sample, scale)

        return sampled_pass, _first_matrices(context, stages[0], received)


def draw_boundary(
    plan: ExchangePlan, rank: int, share: float, seed: int, epoch: int
) -> BoundarySample:
    """Draw the boundary nodes that take part in an epoch, each with probability `share`.

    Nothing is sent. Sender and receiver draw the same nodes from the seed.
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
    """Return the features of the sampled halo nodes, multiplied by `scale`.

    They are rows without sums.
    """
    sampled = [
        boundary.rows[mask] for boundary, mask in zip(plan.incoming, sample.incoming, strict=True)
    ]
    nodes = torch.from_numpy(np.concatenate(sampled))
    values = features.unprojected.values[features.unprojected.halo[nodes]] * scale
    return Sources(HaloRows.of_nodes(values, nodes, plan.num_halo), features.projected)


def _first_matrices(context: Context, stage: Stage, features: Sources) -> list[Matrix]:
    """Return for each first weight all rows that it may be multiplied with.

    Columns without any value are then known: sums of these rows are zero there, too.
    """
    rows = as_matrix(torch.cat((context.features, features.unprojected.values)))
    edges = [] if context.target.edge_means is None else [as_matrix(context.target.edge_means)]
    of_skips = [edges[0] if name == "edges" else rows for name in stage.skips]
    return [rows] * len(stage.conv.first_weights) + of_skips
