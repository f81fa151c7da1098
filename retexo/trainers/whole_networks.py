"""The trainers of whole networks, end to end, that the lazy one is compared with.

full_graph computes what one process would compute on the whole graph: rows forward and their
gradients backward in each layer. The features are fixed, so they are sent once.

bns is full-graph training on a new sample of the boundary nodes in every epoch (Wan, Li, Kim and
Lin, "BNS-GCN: Efficient Full-Graph Training of Graph Convolutional Networks with
Partition-Parallelism and Random Boundary Node Sampling", MLSys 2022). Each boundary node of an
ordered pair of partitions is drawn with probability p, the same ones in all layers of an epoch. In
sums, which are normalised by degrees in the whole graph, its row is multiplied by 1/p, so that the
sum is unbiased; attention and pooling use it as it is. Both ends draw from the same seed, so the
sample is not sent. Validation and the final test use the whole graph.

local trains within each partition: no row crosses the network, the lower bound. Validation and the
final test are on these edges, too.

fedgcn exchanges sums over neighbours' features once, then workers train without exchange (Yao, Jin,
Ravi and Joe-Wong, "FedGCN: Convergence-Communication Tradeoffs in Federated Training of Graph
Convolutional Networks", NeurIPS 2023). After one hop a worker has the first layer's aggregates of
its own nodes, exactly; after two also those of their neighbours on other workers, so that a network
of two layers is exact. Edges that later layers would need are left out; sums are normalised by
degrees in the whole graph. Validation and the final test use the same data.

sampled trains on mini-batches of sampled neighbours, with DGL's distributed engine (Hamilton, Ying
and Leskovec, "Inductive Representation Learning on Large Graphs", NeurIPS 2017; Zheng et al.,
"DistDGL", 2020). Each worker starts the DGL server of its partition. A round is a step on one batch
per worker, an epoch a pass over the training nodes. `node_split` distributes these evenly, so some
labels are sent. num_rounds and stopping.patience count epochs. Validation uses sampled neighbours,
once per epoch; the test uses the whole graph, as the other trainers do. With s sampled of d
in-edges, a mean is over the sample; in a sum each sampled edge has the weight d / s, which makes
the sum unbiased.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partitioning.dgl_import import require_dgl
from partitioning.directory.dgl_config import config_file
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.graph.graph_data import PLAIN_TYPE
from retexo.exchange.differentiable_exchange import BoundarySample
from retexo.exchange.exchange_plan import ExchangePlan
from retexo.models.block import HaloRows, NumberedEdges, Sources
from retexo.models.matrix import Matrix, as_matrix, to_dense
from retexo.models.stage import Stage
from retexo.rounds.training_loop import run_rounds
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import end_to_end, layerwise, network_pass
from retexo.trainers.context import Context, TrainResult
from retexo.trainers.layerwise import LayerInput
from retexo.trainers.lazy import compute_logits
from retexo.trainers.link_objective import make_link_network_objective
from retexo.trainers.network_pass import Pass, Plans, Required, make_pass, make_plans
from retexo.trainers.trainer import Trainer, refuse_models, refuse_rounding

SAMPLED = "trainer=sampled"


class FullGraphTrainer(Trainer):
    """Full-graph training, end to end."""

    HETEROGENEOUS = LINKS = INDUCTIVE = EDGE_FEATURES = True
    TRAINS_ON_SUMS = True
    """Whether partial sums may be sent in the rounds."""

    def check(self, settings: TrainSettings) -> None:
        """Raise InputError for settings that full-graph training does not support."""
        if settings.gradient.mode != "sync":
            raise InputError(
                f"gradient={settings.gradient.mode}: trainer={settings.trainer.name} sends"
                " gradients of rows between workers, which need the same parameters on all of"
                " them; set gradient=fp32"
            )

    def train(self, context: Context, stages: list[Stage]) -> TrainResult:
        """Take one step per epoch, on all training nodes; validation has a pass of its own.

        Saves the stages; returns the rounds, and the logits of inner nodes.
        """
        mask, val_mask = context.partition.train_mask, context.partition.val_mask
        wrap: dict[str, Callable[..., Any]] = {}
        if context.settings.task.links:  # any node may be an end of a pair
            val_mask = mask
            wrap["wrap"] = partial(make_link_network_objective, context, stages[-1])
        sums = self.TRAINS_ON_SUMS
        features = end_to_end.exchange_features(context, stages, with_sums=sums)
        with context.phase("plan"):
            required, plans = make_plans(context, mask, sums=sums)
            of_validation = make_plans(context, val_mask)
        with context.phase("aggregate"):
            train, matrices = self.training_passes(context, stages, required, mask, plans, features)
            val = make_pass(context, stages, of_validation[0], val_mask, of_validation[1], features)
        several = len(stages) > 1
        rounds = end_to_end.fit_stages(
            context, stages, train, val, matrices, exchanges_rows=several, **wrap
        )
        return TrainResult(rounds, [compute_logits(context, stages, features)])

    def training_passes(
        self,
        context: Context,
        stages: Sequence[Stage],
        required: Required,
        mask: Tensor,
        plans: Plans,
        features: Mapping[str, Sources],
    ) -> tuple[Callable[[], Pass], Sequence[Matrix]]:
        """Return what makes the pass of the next epoch, and the input of the first weights.

        Arguments are those of make_pass; the matrices those of end_to_end.fit_stages.
        """
        full_pass = make_pass(context, stages, required, mask, plans, features)
        return lambda: full_pass, full_pass.first_matrices


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


class LocalTrainer(Trainer):
    """Training within each partition."""

    USE = "nothing"
    HETEROGENEOUS = True

    def check(self, settings: TrainSettings) -> None:
        """Raise InputError for exchange modes, rounding and smoothing, as nothing is sent."""
        refuse_rounding(settings)
        if settings.exchange.mode != "selected":
            raise InputError(
                f"exchange={settings.exchange.mode}: trainer=local sends no rows; leave it out"
            )
        if settings.smoothing.steps:
            raise InputError(
                f"smoothing.steps={settings.smoothing.steps}: trainer=local sends no predictions;"
                " leave it out"
            )

    def train(self, context: Context, stages: list[Stage]) -> TrainResult:
        """Take one step per round, on a pass that stays within the partition.

        With local.degrees=local, degrees count only the edges within the partition. Saves the
        stages, and returns logits, as train_without_exchange.
        """
        if context.settings.local.degrees == "local":
            context = context.keep_edges(lambda part: part.src < part.num_inner, stages[0].conv)
        return end_to_end.train_without_exchange(
            context, stages, lambda targets: network_pass.make_local_pass(context, stages, targets)
        )


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
        """Take one step per round, on a pass over what was exchanged; save the stages."""
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
        edges = NumberedEdges(context.edges, features)
        inputs = layerwise.layer_inputs(context, stages[0], nodes, layer_input, edges)
        matrices = [to_dense(matrix).cpu() for matrix in inputs.all_matrices]
        own[nodes] = torch.cat(matrices, dim=1)
    plan = context.plan.without_sums()
    return end_to_end.exchange_rows(context, plan, 1, own, None).unprojected


def aggregate_pass(
    context: Context,
    stages: list[Stage],
    features: Mapping[str, Sources],
    aggregates: HaloRows | None,
    targets: Tensor,
) -> network_pass.Pass:
    """Return a pass for the targets, bool [I], within the partition but for these features.

    With `aggregates`, if not None, its first layer also computes the halo nodes of the second.
    """
    local = network_pass.make_local_pass(context, stages, targets, features)
    first, *later = local.steps
    if aggregates is None or not first.fixed:
        return local
    required = network_pass.require_targets(context, targets, comm=None)
    edges_of_part = context.target.out_edges.local
    read = edges_of_part.find_sources(required[PLAIN_TYPE] > 1)[edges_of_part.num_inner :]
    nodes = (read & (aggregates.halo >= 0)).nonzero()[:, 0]
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


class SampledTrainer(Trainer):
    """Mini-batches of sampled neighbours."""

    TAKES = ("batch_size",)

    def check(self, settings: TrainSettings) -> None:
        """Raise InputError for settings that DGL's engine does not support."""
        refuse_rounding(settings)
        require_dgl(SAMPLED)
        refused = {
            f"gradient={settings.gradient.mode}": (
                settings.gradient.mode != "sync",
                "supports synchronous steps only; set gradient=fp32",
            ),
            "gradient.secure=true": (
                settings.gradient.secure,
                "lets all workers read all rows and labels; remove the setting",
            ),
            "distributed.backend=sockets": (
                settings.encrypted,
                "sends unencrypted; use gloo, or distributed.tls=false, in a trusted network",
            ),
        }
        for name, (wrong, why) in refused.items():
            if wrong:
                raise InputError(f"{name}: {SAMPLED} {why}")

    def check_directory(self, settings: TrainSettings, directory: PartitionDirectory) -> None:
        """Raise InputError unless DGL's files of this node's partitions exist and are undamaged.

        Sites cannot use this trainer, either.
        """
        if directory.sites:
            raise InputError(
                f"dataset_name=parts: {SAMPLED} lets all workers read all rows and "
                "labels, which sites do not allow; choose another trainer"
            )
        if config_file(directory.dgl_folder) is None:
            raise InputError(
                f"{directory.path}: {SAMPLED} needs DGL's files; "
                "partition again with partition.dgl_files=true"
            )
        begin = tuple(f"part{part}/" for part in settings.local_ranks)
        path = directory.meta and directory.meta.first_damaged(directory.path, begin, ".dgl")
        if path is not None:
            raise InputError(
                f"{path}: missing, or its checksum is not the one in meta.json; copy it again"
            )

    def train(self, context: Context, stages: list[Stage]) -> TrainResult:
        """Train on batches until convergence, then test on the whole graph.

        Starts DGL's server of this partition, and saves the layers. InputError for edge weights or
        features, and for DGL files without degrees that the model reads.
        """
        info, settings, stopping = context.graph_info, context.settings, context.settings.stopping
        if info.weighted or info.num_edge_features:
            raise InputError(
                f"{SAMPLED}: does not support edge weights or edge features; choose another trainer"
            )
        # imported here, because only this trainer needs DGL
        from retexo.trainers.sampled_dgl.client import BatchObjective, Engine

        options, fail = (
            settings.sampled,
            context.clock.progress.fail,
        )
        with (
            context.phase("plan"),
            Engine(settings, context.directory, context.comm, fail) as engine,
        ):
            fanout = [*options.fanout, *options.fanout[-1:] * len(stages)][: len(stages)]
            objective = BatchObjective(context, stages, engine, fanout)
            with context.phase("rounds"):
                steps = objective.steps
                patience = None if stopping.patience is None else stopping.patience * steps
                limits = tuple(count * steps for count in settings.num_rounds)
                in_steps = replace(
                    settings, num_rounds=limits, stopping=replace(stopping, patience=patience)
                )
                rounds = run_rounds(objective, in_steps, context.comm, context.log).num_rounds
        for layer, stage in enumerate(stages):
            stage.eval()
            context.save_layer(layer, stage)
        features = end_to_end.exchange_features(context, stages, kind="metrics")
        return TrainResult([rounds], [compute_logits(context, stages, features)], engine.memory)
