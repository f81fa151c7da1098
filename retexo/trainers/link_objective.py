"""Objectives of link prediction: a pair's endpoints are computed by its source's owner.

A source's owner receives, once per layer, the aggregated input of each endpoint that lies
elsewhere, and of a pool of random nodes that all workers have; so rounds send only gradients and
counts. I inner nodes, R endpoints of other partitions, F input width.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from partitioning.directory.partition import LocalEdges
from retexo.comm.traffic_meter import MessageTag
from retexo.exchange.boundary import TRAIN_PHASE
from retexo.exchange.differentiable_exchange import make_halo_exchange
from retexo.exchange.exchange_plan import ExchangePlan, make_plan
from retexo.exchange.layer_exchange import LayerExchange
from retexo.exchange.local_rows import LocalRows
from retexo.models.block import Sources
from retexo.models.convolution import Inputs
from retexo.models.linear import LinearConvolution
from retexo.models.matrix import RowIndex, as_matrix, scale_rows, to_dense
from retexo.models.scorer import Scorer
from retexo.models.stage import Stage
from retexo.rounds.objective import LabelledNodes, LayerObjective, Objective, Validation
from retexo.tasks.link_prediction import (
    NUM_VALIDATION_PAIRS,
    LinkSeeds,
    LinkValidation,
    sample_share,
)
from retexo.trainers import layerwise
from retexo.trainers.context import Context
from retexo.trainers.end_to_end import Forward, NetworkObjective
from retexo.trainers.layerwise import LayerInput

NEIGHBOUR_DROPOUT = 0.2
"""Rate at which a node trains without its neighbours, unless nothing is dropped (dropout=0)."""


@dataclass(frozen=True, eq=False)
class Endpoints:
    """Nodes of other partitions that this worker computes, too."""

    ids: Tensor
    """int64 [R] ascending, in the partitioned graph."""
    plan: ExchangePlan
    skip_rows: dict[str, Tensor] = field(default_factory=dict)
    """[R, F] the rows that skip connections of later layers read, too, by their name."""

    def receive(self, context: Context, layer: int, rows: Tensor) -> Tensor:
        """Exchange rows; return those of this worker's endpoints, [R, F].

        It sends, of its own `rows` [I, F], those that other workers' endpoints need. All workers
        call it.
        """
        precision = layerwise.PRECISIONS[context.settings.exchange.precision[layer]]
        local = LocalRows.unprojected(rows.to(context.features.dtype), None, precision)
        received = LayerExchange(self.plan, layer, local, context.comm).run(TRAIN_PHASE)
        halo = received.unprojected
        return halo.values[halo.halo].to(rows)


def find_endpoints(context: Context, *, linear: bool) -> Endpoints:
    """Return the endpoints, which all workers agree on in the first call and the context keeps.

    All workers call it before the first layer.

    linear: whether a layer needs only one row of an endpoint, its aggregate.
    """
    if context.endpoints is None:
        part, bounds = context.partition, context.graph_info.id_bounds
        needed_ids = torch.zeros(0, dtype=torch.int64)
        if linear and context.settings.task.cut_edges == "train" and part.num_inner:
            links, val = context.links, _validation_pairs(context)
            ends = links["train"][:, 1], val[:, 1], links["pool"][:, 0]
            needed_ids = torch.unique(torch.cat(ends))
        ids = needed_ids[(needed_ids < bounds[part.rank]) | (needed_ids >= bounds[part.rank + 1])]
        owner = torch.searchsorted(bounds, ids, right=True) - 1
        count = len(ids)
        edges = LocalEdges(
            part.num_inner + torch.arange(count),
            torch.zeros(count, dtype=torch.int64),
            num_parts=part.num_parts,
            num_inner=part.num_inner,
            halo_owner=owner,
            halo_index=ids - bounds[owner],
            asked_for=part.target_nodes.asked_for,
        )
        options = replace(context.plan.options, linear=False)
        required = torch.full((part.num_inner,), options.num_layers + 1, dtype=torch.uint8)
        plan = make_plan(edges, options, required, context.comm)
        context.endpoints = Endpoints(ids, plan)
    endpoints: Endpoints = context.endpoints
    return endpoints


def _validation_pairs(context: Context) -> Tensor:
    """Return this worker's share of the validation pairs that score the rounds."""
    num_val = context.graph_info.num_val
    return sample_share(context.links["val"], NUM_VALIDATION_PAIRS, num_val, seed=0)


def make_seeds(context: Context, endpoints: Endpoints, layer: int) -> LinkSeeds:
    """Return this worker's pairs whose endpoints are both available here.

    Their nodes are numbered anew: inner nodes, then endpoints.
    """
    links, task, part = context.links, context.settings.task, context.partition
    first, info, num_endpoints = part.first_id, context.graph_info, len(endpoints.ids)

    def number(ids: Tensor) -> Tensor:
        """-1 for a node that is not available."""
        place = torch.searchsorted(endpoints.ids, ids.contiguous()).clamp(
            max=max(0, num_endpoints - 1)
        )
        is_endpoint = torch.zeros_like(ids, dtype=torch.bool)
        if num_endpoints:
            is_endpoint = endpoints.ids[place] == ids
        inner = (ids >= first) & (ids < first + part.num_inner)
        return torch.where(inner, ids - first, torch.where(is_endpoint, place + part.num_inner, -1))

    train, val = number(links["train"]), number(_validation_pairs(context))
    pool = links["pool"]
    drawn_from, weight = number(pool[:, 0]), pool[:, 1]
    if not len(pool) or bool((drawn_from < 0).any()):
        # Without a pool: all available nodes that can be destinations.
        inner = torch.arange(part.num_inner)
        if info.num_candidates:
            inner = links["candidates"][:, 0] - first
        num_available = part.num_inner + num_endpoints
        drawn_from = torch.cat((inner, part.num_inner + torch.arange(num_endpoints)))
        weight = torch.bincount(train[:, 1].clamp(min=0), minlength=num_available)[drawn_from]
    return LinkSeeds(
        train=train[(train >= 0).all(dim=1)],
        val=val[(val >= 0).all(dim=1)],
        drawn_from=drawn_from,
        weight=weight.to(context.features.dtype),
        share=len(drawn_from) / max(1, info.num_candidates or sum(info.part_sizes)),
        num_negatives=task.negatives // 2,
        batch_size=context.batch_size,
        seed=context.settings.seed,
        layer=layer,
        metric=context.task.metric_name,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _PairObjective(Objective):
    """Loss and validation of this worker's pairs, common to both objectives."""

    seeds: LinkSeeds
    scorer: Scorer

    @property
    def num_train(self) -> int:
        return len(self.seeds.train)

    @cached_property
    def validation(self) -> LinkValidation:
        return self.seeds.draw_validation()

    def begin_round(self, number: int) -> None:
        self.seeds.begin_round(number)

    def embed(self, nodes: RowIndex) -> tuple[Tensor, Tensor | float]:
        """Return the embeddings of nodes, [n, D], and a zero that has to enter the loss."""
        raise NotImplementedError

    def losses(self) -> Iterator[Tensor]:
        self.module.train()
        batch = self.seeds.draw_batch()
        embedded, zero = self.embed(batch.nodes)
        yield batch.compute_loss(embedded, self.scorer) + zero

    @torch.no_grad()
    def validate(self) -> Validation:
        if not (len(self.seeds.val) or self.exchanges_rows):
            return Validation(torch.zeros(self.metric.num_counts, dtype=torch.int64))
        self.module.eval()
        embedded, _ = self.embed(self.validation.nodes)
        return Validation(self.validation.count(embedded, self.scorer))


# --- layer by layer ----------


@dataclass(frozen=True, eq=False, kw_only=True)
class LinkObjective(_PairObjective, LayerObjective):
    """One layer's stage; `train` are the inner nodes."""

    available: LabelledNodes
    """Inner nodes, then endpoints."""
    neighbour_dropout: float
    """Rate at which a node of a step trains as if it had no neighbours."""
    from_neighbours: tuple[bool, ...]
    """Which of Inputs.matrices and Inputs.skips are 0 for a node without neighbours."""

    def embed(self, nodes: RowIndex) -> tuple[Tensor, float]:
        if self.stage.conv.fixed_inputs:
            inputs = self.available.inputs(nodes)
            inputs = self.drop_neighbours(inputs) if self.stage.training else inputs
            return self.stage.logits(inputs), 0.0
        chunks = [
            self.stage.logits(self.available.inputs(place)) for place in self.available.chunks
        ]
        return torch.cat(chunks)[nodes], 0.0

    def drop_neighbours(self, inputs: Inputs) -> Inputs:
        """Return the inputs with some nodes as if they had no neighbours, as in DropoutNet.

        Endpoints of training pairs have at least one neighbour; those of held-out pairs may have
        none (Volkovs, Yu and Poutanen, "DropoutNet", 2017). Drawn by torch's generator in each
        call.
        """
        if not self.neighbour_dropout or not any(self.from_neighbours):
            return inputs
        device = self.stage.first_weights[0].device
        kept = torch.rand(inputs.num_rows, device=device) >= self.neighbour_dropout
        named = zip(inputs.all_matrices, self.from_neighbours, strict=True)
        dropped = [
            scale_rows(matrix, kept) if is_from_neighbours else matrix
            for matrix, is_from_neighbours in named
        ]
        return inputs.with_matrices(dropped, inputs.num_rows)


def make_link_objective(
    context: Context, layer: int, stage: Stage, layer_input: LayerInput, sources: Sources
) -> LinkObjective:
    """Return the objective of this worker's pairs; all workers call it.

    The inputs of endpoints at other workers are received here.
    """
    nodes = torch.arange(context.partition.num_inner)
    linear = stage.conv.fixed_inputs
    train = layerwise.labelled_nodes(context, stage, nodes, layer_input, sources)
    available = train
    endpoints = find_endpoints(context, linear=linear)
    if linear and context.settings.task.cut_edges == "train":
        own = train.inputs(slice(None)) if len(nodes) else None
        inputs = _append_endpoints(context, endpoints, layer, stage, own)
        numbers = torch.arange(len(nodes) + len(endpoints.ids))
        available = LabelledNodes.from_inputs(numbers, train.labels, inputs)
    return LinkObjective(
        layer=layer,
        stage=stage,
        task=context.task,
        train=train,
        val=LabelledNodes.from_inputs(nodes[:0], context.labels[:0], None),
        graph_info=context.graph_info,
        available=available,
        seeds=make_seeds(context, endpoints, layer),
        scorer=stage.scorer,
        neighbour_dropout=NEIGHBOUR_DROPOUT if context.settings.dropout else 0.0,
        from_neighbours=_find_inputs_from_neighbours(context, layer, stage),
    )


def _input_names(stage: Stage) -> list[str]:
    """Return names of Inputs.matrices, then of Inputs.skips.

    The matrices are rows and sum, or relation 0, relation 1 ..., the skips as in stage.skips.
    """
    count = len(stage.first_weights) - len(stage.skips)
    relations = [f"relation {place}" for place in range(count)]
    return [*(relations if stage.conv.reads_relations else ("rows", "sum")[-count:]), *stage.skips]


def _find_inputs_from_neighbours(context: Context, layer: int, stage: Stage) -> tuple[bool, ...]:
    """LinkObjective.from_neighbours; none where a node is in its own sum, as in GCN and GIN."""
    names, conv, none = _input_names(stage), stage.conv, torch.zeros(1)
    if isinstance(conv, LinearConvolution) and conv.self_loop_scale(none, none) is not None:
        return (False,) * len(names)
    rows_are_sums = (
        layer > 0 and context.settings.model.passes_aggregate and conv.linear_aggregation
    )
    return tuple(name != "features" and (name != "rows" or rows_are_sums) for name in names)


def _append_endpoints(
    context: Context, endpoints: Endpoints, layer: int, stage: Stage, own: Inputs | None
) -> Inputs | None:
    """Return the inputs of the inner nodes, then of the endpoints; None without own inputs.

    A worker without nodes exchanges, too. Rows that later layers read again are kept in
    `endpoints.skip_rows`, so they are received once.
    """
    widths = [weight.shape[0] for weight in stage.first_weights]
    parts = own.all_matrices if own else [torch.zeros(0, width) for width in widths]
    extended = []
    for name, matrix in zip(_input_names(stage), parts, strict=True):
        key = {"rows": "features", "sum": "aggregate"}.get(name, name) if layer == 0 else name
        rows = to_dense(matrix).cpu().to(context.features.dtype)
        received = endpoints.skip_rows.get(key)
        if received is None:
            received = endpoints.receive(context, layer, rows)
        if key in ("features", "aggregate", "edges"):  # the others are read by this layer only
            endpoints.skip_rows[key] = received
        extended.append(as_matrix(torch.cat((rows, received)).to(context.device)))
    if own is None:
        return None
    inputs = own.with_matrices(extended, extended[0].shape[0])
    return inputs.to_bf16() if own.bf16 else inputs


# --- end to end ----------


@dataclass(frozen=True, eq=False, kw_only=True)
class LinkNetworkObjective(_PairObjective, NetworkObjective):
    """A whole network; `train` and `val` embed all inner nodes and the endpoints."""

    def embed(self, nodes: RowIndex) -> tuple[Tensor, Tensor]:
        embedded, zero = self.train() if self.module.training else self.val()
        return embedded[nodes], zero


def make_link_network_objective(
    context: Context, stage: Stage, objective: NetworkObjective
) -> LinkNetworkObjective:
    """Return an objective for links in place of one for nodes.

    It sends endpoints' embeddings in each round.

    stage: the last one.
    """
    endpoints, layer = find_endpoints(context, linear=True), context.settings.model.depth - 1
    like = context.features.new_zeros(0, device=context.device)
    precision = layerwise.PRECISIONS[context.settings.exchange.precision[layer]]
    exchange = make_halo_exchange(endpoints.plan, layer, None, like, precision=precision)

    def append_endpoints(run: Forward, kind: str) -> Forward:
        def forward() -> tuple[Tensor, Tensor]:
            rows, zero = run()
            received, zero = exchange.run(rows, zero, context.comm, MessageTag(kind, layer))
            return torch.cat((rows, received)), zero

        return forward

    changed = {
        "train": append_endpoints(objective.train, "embeddings"),
        "val": append_endpoints(objective.val, "metrics"),
        "exchanges_rows": True,
        "seeds": make_seeds(context, endpoints, 0),
        "scorer": stage.scorer,
    }
    return LinkNetworkObjective(**vars(objective) | changed)
