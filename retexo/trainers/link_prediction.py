"""Link prediction: what rounds train on. Both ends of a pair are computed where its source lies.

A source's owner gets the aggregated input of each end that lies elsewhere, once a layer, and of a pool of random nodes
that all workers have; so rounds send gradients and counts alone. I inner nodes, R ends of other parts, F input width.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from retexo.comm.traffic_meter import MessageTag
from retexo.exchange.boundary import TRAIN_PHASE
from retexo.exchange.differentiable_exchange import make_halo_exchange
from retexo.exchange.exchange_plan import ExchangePlan, make_plan_from_required_layers
from retexo.exchange.layer_exchange import LayerExchange
from retexo.exchange.message_selection import LocalRows
from retexo.models.block import Sources
from retexo.models.convolution import Inputs
from retexo.models.linear import LinearConvolution
from retexo.models.matrix import RowIndex, as_matrix, scale_rows, to_dense
from retexo.models.scorer import Scorer
from retexo.models.stage import Stage
from retexo.rounds.objective import LabelledNodes, LayerObjective
from retexo.tasks.link_prediction import VALIDATED, LinkSeeds, LinkValidation, share_of
from retexo.trainers import layerwise
from retexo.trainers.context import Context
from retexo.trainers.end_to_end import Forward, NetworkObjective
from retexo.trainers.layerwise import LayerInput


@dataclass(frozen=True, eq=False)
class Ends:
    """Nodes of other parts that this worker computes, too."""

    ids: Tensor
    """int64 [R] ascending, in the partitioned graph."""
    plan: ExchangePlan
    kept: dict[str, Tensor] = field(default_factory=dict)
    """[R, F] what skips of later layers read, too, by its name."""

    def receive(self, context: Context, layer: int, rows: Tensor) -> Tensor:
        """Of rows [I, F] of every worker those of the ends, [R, F]."""
        precision = layerwise.PRECISIONS[context.settings.exchange.precision[layer]]
        local = LocalRows.unprojected(rows.to(context.features.dtype), None, precision)
        held = LayerExchange(self.plan, layer, local, context.comm).run(TRAIN_PHASE).unprojected
        return held.values[held.halo].to(rows)


def ends_of(context: Context, *, linear: bool) -> Ends:
    """Agree on them once, before the first layer; linear: whether a row is all that a layer aggregates of a node."""
    if context.endpoints is None:
        part, links, bounds = context.partition, _links(context), context.graph_info.id_bounds
        wanted = torch.zeros(0, dtype=torch.int64)
        if linear and context.settings.task.cut_edges == "train" and part.num_inner:
            wanted = torch.cat(
                (links["train"][:, 1], _validated(context)[:, 1], _pool(context)[:, 0])
            )
            wanted = torch.unique(wanted)
        ids = wanted[(wanted < bounds[part.rank]) | (wanted >= bounds[part.rank + 1])]
        owner = torch.searchsorted(bounds, ids, right=True) - 1
        count = len(ids)
        edges = replace(
            part,
            src=part.num_inner + torch.arange(count),
            dst=torch.zeros(count, dtype=torch.int64),
            num_halo=count,
            halo_owner=owner,
            halo_index=ids - bounds[owner],
            edge_weight=None,
            edge_feat=None,
            edge_relation=None,
        )
        options = replace(context.plan_options, partial_sums=False)
        required = torch.full((part.num_inner,), options.num_layers + 1, dtype=torch.uint8)
        context.endpoints = Ends(
            ids, make_plan_from_required_layers(edges, options, required, context.comm)
        )
    ends: Ends = context.endpoints
    return ends


def _links(context: Context) -> dict[str, Tensor]:
    assert context.partition.links is not None
    return dict(context.partition.links)


def _pool(context: Context) -> Tensor:
    return _links(context)["pool"][: context.settings.task.pool]


def _validated(context: Context) -> Tensor:
    return share_of(_links(context)["val"], VALIDATED, context.graph_info.num_val, seed=0)


def make_seeds(context: Context, ends: Ends, layer: int) -> LinkSeeds:
    """This worker's pairs, as far as both ends are at hand."""
    links, task, part = _links(context), context.settings.task, context.partition
    first, info = part.first_id, context.graph_info

    def numbers(ids: Tensor) -> Tensor:
        """-1 for a node that is not at hand."""
        place = torch.searchsorted(ends.ids, ids.contiguous()).clamp(max=max(0, len(ends.ids) - 1))
        known = ends.ids[place] == ids if len(ends.ids) else torch.zeros_like(ids, dtype=torch.bool)
        inner = (ids >= first) & (ids < first + part.num_inner)
        return torch.where(inner, ids - first, torch.where(known, place + part.num_inner, -1))

    train, val = numbers(links["train"]), numbers(_validated(context))
    pool = _pool(context)
    drawn_from, weight = numbers(pool[:, 0]), pool[:, 1]
    if not len(pool) or bool(
        (drawn_from < 0).any()
    ):  # without a pool: all at hand that can be destinations
        inner = (
            links["candidates"][:, 0] - first
            if info.num_candidates
            else torch.arange(part.num_inner)
        )
        drawn_from = torch.cat((inner, part.num_inner + torch.arange(len(ends.ids))))
        counts = torch.bincount(train[:, 1].clamp(min=0), minlength=part.num_inner + len(ends.ids))
        weight = counts[drawn_from]
    return LinkSeeds(
        train[(train >= 0).all(dim=1)],
        val[(val >= 0).all(dim=1)],
        drawn_from,
        weight.to(context.features.dtype),
        len(drawn_from) / max(1, info.num_candidates or sum(info.part_sizes)),
        task.negatives // 2,
        context.batch_size,
        context.settings.seed,
        layer,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _OfPairs:
    """What the objectives below have in common."""

    seeds: LinkSeeds

    @property
    def num_train(self) -> int:
        return len(self.seeds.train)

    @cached_property
    def validation(self) -> LinkValidation:
        return self.seeds.validation()

    def begin_round(self, number: int) -> None:
        self.seeds.begin_round(number)


# --- layer by layer --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class LinkObjective(_OfPairs, LayerObjective):
    """One layer's stage; `train` are the inner nodes."""

    hand: LabelledNodes
    """Inner nodes, then ends."""
    neighbour_dropout: float
    """Rate at which a node of a step trains as if it had no neighbours."""
    from_neighbours: tuple[bool, ...]
    """Which of Inputs.matrices and Inputs.skips are 0 for a node without neighbours."""

    @property
    def nodes_per_round(self) -> LabelledNodes:
        return self.hand

    def losses(self) -> Iterator[Tensor]:
        self.stage.train()
        batch = self.seeds.batch()
        yield batch.loss(self._embedded(batch.nodes), self.stage.scorer)

    @torch.no_grad()
    def val_counts(self) -> Tensor:
        if not len(self.seeds.val):
            return torch.zeros(3, dtype=torch.int64)
        self.stage.eval()
        return self.validation.counts(self._embedded(self.validation.nodes), self.stage.scorer)

    def _embedded(self, nodes: RowIndex) -> Tensor:
        """[n, D]"""
        if self.stage.conv.fixed_inputs:
            inputs = self.hand.inputs(nodes)
            return self.stage.logits(
                self.without_neighbours(inputs) if self.stage.training else inputs
            )
        return torch.cat(
            [self.stage.logits(self.hand.inputs(place)) for place in self.hand.chunks]
        )[nodes]

    def without_neighbours(self, inputs: Inputs) -> Inputs:
        """The same, some nodes as if they had none: each training pair's ends have one, held-out ones' may not.

        DropoutNet (Volkovs, Yu and Poutanen, 2017) learns so what to say of users whom it has seen nothing of.
        """
        if not self.neighbour_dropout or not any(self.from_neighbours):
            return inputs
        device, count = self.stage.first_weights[0].device, len(inputs.matrices)
        kept = torch.rand(inputs.num_rows, device=device) >= self.neighbour_dropout
        each = zip((*inputs.matrices, *inputs.skips), self.from_neighbours, strict=True)
        made = tuple(
            scale_rows(matrix, kept) if of_neighbours else matrix for matrix, of_neighbours in each
        )
        return replace(inputs, matrices=made[:count], skips=made[count:])


def make_link_objective(
    context: Context, layer: int, stage: Stage, given: LayerInput, sources: Sources
) -> LinkObjective:
    """Of all inner nodes, and of the ends of this worker's pairs, whose inputs are received here."""
    part, nothing = context.partition, torch.zeros(0, dtype=torch.int64)
    nodes = torch.arange(part.num_inner)
    linear = stage.conv.fixed_inputs
    train = layerwise.labelled_nodes(context, stage, nodes, given, sources)
    hand = train
    ends = ends_of(context, linear=linear)
    if linear and context.settings.task.cut_edges == "train":
        own = train.inputs(slice(None)) if len(nodes) else None
        inputs = _with_ends(context, ends, layer, stage, own)
        hand = LabelledNodes.from_inputs(
            torch.arange(len(nodes) + len(ends.ids)), train.labels, inputs
        )
    return LinkObjective(
        layer,
        stage,
        context.task,
        train,
        LabelledNodes.from_inputs(nothing, context.labels[:0], None),
        context.graph_info,
        hand=hand,
        seeds=make_seeds(context, ends, layer),
        neighbour_dropout=context.settings.task.neighbour_dropout,
        from_neighbours=_from_neighbours(context, layer, stage),
    )


def _input_names(stage: Stage) -> list[str]:
    """Of Inputs.matrices, then of Inputs.skips."""
    count = len(stage.first_weights) - len(stage.skips)
    relations = [f"relation {place}" for place in range(count)]
    return [*(relations if stage.conv.reads_relations else ("rows", "sum")[-count:]), *stage.skips]


def _from_neighbours(context: Context, layer: int, stage: Stage) -> tuple[bool, ...]:
    """As LinkObjective has it; nothing where a node is in its own sum, as in GCN's and GIN's."""
    names, conv, none = _input_names(stage), stage.conv, torch.zeros(1)
    if isinstance(conv, LinearConvolution) and conv.self_loop_scale(none, none) is not None:
        return (False,) * len(names)
    passes_sums = (
        layer > 0 and context.settings.model.output == "aggregate" and conv.linear_aggregation
    )
    return tuple(name != "features" and (name != "rows" or passes_sums) for name in names)


def _with_ends(
    context: Context, ends: Ends, layer: int, stage: Stage, own: Inputs | None
) -> Inputs | None:
    """The inputs of the inner nodes with the ends' after them; a worker without nodes exchanges, too."""
    widths = [weight.shape[0] for weight in stage.first_weights]
    parts = [*own.matrices, *own.skips] if own else [torch.zeros(0, width) for width in widths]
    made = []
    for name, matrix in zip(_input_names(stage), parts, strict=True):
        key = {"rows": "features", "sum": "aggregate"}.get(name, name) if layer == 0 else name
        rows = to_dense(matrix).cpu().to(context.features.dtype)
        received = ends.kept.get(key)
        if received is None:
            received = ends.receive(context, layer, rows)
        if key in ("features", "aggregate", "edges"):  # the others are this layer's alone
            ends.kept[key] = received
        made.append(as_matrix(torch.cat((rows, received)).to(context.device)))
    if own is None:
        return None
    count = len(own.matrices)
    inputs = replace(
        own, matrices=tuple(made[:count]), skips=tuple(made[count:]), num_rows=made[0].shape[0]
    )
    return inputs.to_bf16() if own.bf16 else inputs


# --- end to end ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class LinkNetworkObjective(_OfPairs, NetworkObjective):
    """A whole network; `train` and `val` embed all inner nodes."""

    scorer: Scorer

    def losses(self) -> Iterator[Tensor]:
        self.module.train()
        embedded, zero = self.train()
        batch = self.seeds.batch()
        yield batch.loss(embedded[batch.nodes], self.scorer) + zero

    @torch.no_grad()
    def val_counts(self) -> Tensor:
        self.module.eval()
        return self.validation.counts(self.val()[0][self.validation.nodes], self.scorer)


def network_objective(
    context: Context, stage: Stage, objective: NetworkObjective
) -> LinkNetworkObjective:
    """An objective for links in place of one for nodes; stage: the last. Embeddings of ends are sent in each round."""
    ends, layer = ends_of(context, linear=True), context.settings.model.num_layers - 1
    swap = make_halo_exchange(
        ends.plan, layer, None, context.features.new_zeros(0, device=context.device)
    )

    def with_ends(run: Forward, kind: str) -> Forward:
        def forward() -> tuple[Tensor, Tensor]:
            rows, before = run()
            received, zero = swap.run(rows, before, context.comm, MessageTag(kind, layer))
            return torch.cat((rows, received)), zero

        return forward

    kept = {each.name: getattr(objective, each.name) for each in fields(objective)}
    kept |= {
        "train": with_ends(objective.train, "embeddings"),
        "val": with_ends(objective.val, "metrics"),
    }
    kept |= {"exchanges_rows": True, "seeds": make_seeds(context, ends, 0), "scorer": stage.scorer}
    return LinkNetworkObjective(**kept)
