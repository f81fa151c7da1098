"""Label propagation: predictions V are smoothed along the edges, V_i = A V_(i-1).

On a plain graph A is the normalised adjacency of GCN with self loops (Gasteiger, Bojchevski and
Günnemann, "Predict then Propagate", ICLR 2019). On a heterogeneous graph the predictions of the
labelled type, the target, follow the paths target - x - target and the relations within the target:

    U_x = mean over the relations r from the target to x of  A_r V
    V'  = mean over the relations r into the target of  A_r U

with V in place of U for a relation within the target. A mean counts the relations that reach a
node; a node that none reaches keeps its own V. A plain graph has one relation within the target,
and its self loops reach every node: one step is one exchange of rows with C values, or two.

With smoothing.reach=computed only nodes in a split are sources, so that predictions do not
depend on which others a run computes; in a graph without a split all nodes are. With reach=hops the
network's plan has L + K layers: V_0 is computed at all nodes within K hops of a split and V_i at
those within K - i hops, so V_K is exact at the nodes in a split.

One step at the validation nodes decides first whether all steps are taken, unless most nodes
validate. In 13 of 14 runs on 7 graphs it decided as all steps did; in the other one (PubMed, 4
partitions) the test accuracy was .8803 without smoothing, .8799 with it.

I inner nodes of a type, H halo nodes, C classes, L layers, K steps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from partitioning.directory.partition import LocalEdges
from partitioning.graph.graph_data import EdgeType
from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import WHOLE_RUN
from retexo.exchange.exchange_plan import (
    ExchangePlan,
    PlanOptions,
    make_plan,
    request_halo_flags,
)
from retexo.models.conv.gcn import GCN
from retexo.models.conv.sage import SAGEMean
from retexo.models.linear import LinearConvolution
from retexo.models.matrix import to_dense
from retexo.models.network import Schema
from retexo.models.streaming_aggregate import AggregateAccumulator
from retexo.tasks.output_heads import Smoother
from retexo.trainers.context import Context
from retexo.trainers.end_to_end import exchange_rows

MAX_VALIDATING = 0.5
"""Largest share of validation nodes at which the first step is tried; it takes up to that share of
one of the K steps.
"""
Relations = frozenset[EdgeType]
Plans = Mapping[str, ExchangePlan]


# --- one step ----------


@dataclass(frozen=True)
class PathRelations:
    """Relations of paths that begin and end at the target."""

    target: str
    leaving: Relations
    """From the target, to types with a relation back or to the target itself."""
    returning: Relations
    """From these other types to the target."""

    @classmethod
    def of(cls, schema: Schema) -> "PathRelations":
        """Find the target's relations to types with a relation back, and these relations back."""
        target = schema.target
        reached = {relation[2] for relation in schema.relations if relation[0] == target}
        returning_from = {relation[0] for relation in schema.relations if relation[2] == target}
        between = reached & returning_from
        leaving = {
            relation
            for relation in schema.relations
            if relation[0] == target and relation[2] in between
        }
        returning = {
            relation
            for relation in schema.relations_into(target)
            if relation[0] in between - {target}
        }
        return cls(target, frozenset(leaving), frozenset(returning))


Hop = Callable[[Relations, Mapping[str, Tensor]], Iterable[tuple[EdgeType, Tensor, Tensor]]]
"""Aggregates rows [I, C] of source types over relations; yields for each the aggregates [I, C] at
its destinations, and whether it reaches them, bool [I, 1]."""


def take_step(paths: PathRelations, rows: Tensor, sent: Tensor, hop: Hop) -> Tensor:
    """Return A V, [I, C], at the nodes that `hop` reaches.

    Args:
        paths: of the graph, at least one.
        rows: V, [I, C].
        sent: the same with 0 at nodes that are no source.
        hop: along the edges.
    """
    reached = _add_up(hop(paths.leaving, {paths.target: sent}))
    sums_of_steps = [reached.pop(paths.target)] if paths.target in reached else []
    if reached:
        between = {name: _mean(*sums) for name, sums in reached.items()}
        sums_of_steps.append(_add_up(hop(paths.returning, between))[paths.target])
    total, count = (sum(parts[1:], start=parts[0]) for parts in zip(*sums_of_steps, strict=True))
    return torch.where(count > 0, _mean(total, count), rows)


def _add_up(
    aggregates: Iterable[tuple[EdgeType, Tensor, Tensor]],
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return by type the sums over relations, [I, C], and how many relations there are, [I, 1]."""
    sums: dict[str, tuple[Tensor, Tensor]] = {}
    for (_, _, to), total, is_reached in aggregates:
        count = is_reached.to(total)
        if to in sums:
            total, count = sums[to][0] + total, sums[to][1] + count
        sums[to] = total, count
    return sums


def _mean(total: Tensor, count: Tensor) -> Tensor:
    """Return the mean over the relations that reach a node, [I, C]; 0 where none does."""
    return total / count.clamp(min=1)


def make_aggregator(schema: Schema) -> LinearConvolution:
    """Return what aggregates over a relation: GCN's sums, or with types means.

    Its parameters are not used.
    """
    return GCN(1, 1, 0.0) if schema.is_plain else SAGEMean(1, 1, 0.0, root_weight=False)


def is_reached_by(conv: LinearConvolution, in_degree: Tensor) -> Tensor:
    """Return whether a relation or a self loop of `make_aggregator` reaches nodes, [n, 1]."""
    has_loops = conv.self_loop_scale(in_degree[:1], in_degree[:1]) is not None
    return (torch.ones_like(in_degree) if has_loops else in_degree > 0)[:, None]


# --- on a worker ----------


def make_smoother(
    context: Context, count_apart: Callable[[], AbstractContextManager[None]] | None = None
) -> Smoother:
    """Return the label propagation of this worker; count_apart: see Smoother.

    One step is tried first where it costs less than it may save.
    """
    info, smoothing = context.graph_info, context.settings.smoothing
    tries_first = (
        context.schema.is_plain
        and not context.plan.options.all_halo_rows
        and info.num_val <= MAX_VALIDATING * sum(info.part_sizes)
        and smoothing.steps > 1
        and 1 in smoothing.alphas
    )
    return Smoother(partial(propagate, context), tries_first, count_apart)


def propagate(
    context: Context, start: Tensor, steps: int, targets: Tensor | None = None
) -> Iterator[Tensor]:
    """Yield the predictions `start` = V_0, then V_1 ... V_steps, [I, C] each; all workers call it.

    The module defines a step and its sources; no step adds `start` again. NaN where `start` is, and
    where no later step needs the value. A heterogeneous graph without paths yields only `start`.
    After `start` the exchange plans are made, then each step sends rows.

    targets: bool [I] the nodes of a plain graph that a single step computes; None: all computed.
    """
    yield start
    paths, edges = PathRelations.of(context.schema), context.target.out_edges.edges
    if not paths.leaving:
        return
    all_are_sources = context.settings.smoothing.hops > 0 or not context.graph_info.num_in_split
    sources = context.computed if all_are_sources else context.in_a_split
    with context.phase("plan"):
        if context.schema.is_plain:
            plan = _choose_plain_plan(context, sources, targets, all_are_sources=all_are_sources)
            plans: dict[Relations, Plans] = {paths.leaving: {paths.target: plan}}
        else:
            plans = {
                relations: _plan_relations(context, relations)
                for relations in (paths.leaving, paths.returning)
            }
    conv = make_aggregator(context.schema)
    rows = start
    for step in range(steps):
        plan = plans[paths.leaving][paths.target]
        layer = max(0, plan.options.num_layers - steps + step)  # 0 in a plan for one layer
        needed = context.computed
        if context.schema.is_plain:
            needed = plan.required_layers > layer
        hop = partial(_hop, context, conv, plans, layer)
        sent = rows if sources.all() else torch.where(sources[:, None], rows, 0.0)
        after = take_step(paths, rows, sent, hop)
        alone = (needed & ~sources).nonzero()[:, 0]  # not in their own sums
        loops = conv.self_loop_scale(edges.in_degree[alone], edges.out_degree[alone])
        if loops is not None:
            after[alone] += loops[:, None] * rows[alone]
        after[~needed] = torch.nan
        rows = after
        yield rows


def _hop(
    context: Context,
    conv: LinearConvolution,
    plans: Mapping[Relations, Plans],
    layer: int,
    relations: Relations,
    rows: Mapping[str, Tensor],
) -> Iterator[tuple[EdgeType, Tensor, Tensor]]:
    """Exchange rows [I, C] of source types, and aggregate them over relations (see Hop).

    What a plan of a plain graph does not need in this layer stays 0. What was received is freed
    before the next step.
    """
    like = next(iter(rows.values()))
    for name, plan in plans[relations].items():
        out_edges = context.types[name].out_edges
        edges, nodes = out_edges.edges, (plan.required_layers > layer).nonzero()[:, 0]
        scale = conv.source_scale(edges.out_degree[: len(rows[name])])
        received = exchange_rows(
            context, plan, layer, rows[name], scale, "predictions", WHOLE_RUN, context.device
        )
        with context.phase("aggregate"):
            sum_of = AggregateAccumulator(conv, edges, nodes, rows[name], None, context.device)
            sum_of.add(received)
            total = like.new_zeros(len(plan.required_layers), like.shape[1])
            total[nodes] = to_dense(sum_of.inputs().matrices[-1]).cpu()
        is_reached = is_reached_by(conv, edges.in_degree)
        for relation, first in out_edges.first.items():
            if relation in relations:
                end = first + len(context.types[relation[2]].required_layers)
                yield relation, total[first:end], is_reached[first:end]


# --- plans ----------


def _plan_relations(context: Context, relations: Relations) -> Plans:
    """Make, by source type, the plan to send its rows to all nodes that the relations reach.

    All workers call it.
    """
    plans = {}
    required = {name: torch.ones_like(of_type) for name, of_type in context.required_layers.items()}
    for name in dict.fromkeys(
        relation[0] for relation in context.schema.relations if relation in relations
    ):
        node_type = context.types[name]
        options = replace(node_type.plan.options.for_targets(linear=True), num_layers=1)
        destinations = node_type.out_edges.required_destinations(required, relations)
        local = node_type.out_edges.local
        plans[name] = _make_one_layer_plan(local, options, context.comm, destinations)
    return plans


def _choose_plain_plan(
    context: Context, sources: Tensor, targets: Tensor | None, *, all_are_sources: bool
) -> ExchangePlan:
    """Return the plan of a plain graph's steps: the network's where it has the edges and sums.

    All workers call it: another plan is made by messages.

    sources: bool [I]; targets: bool [I] of a single step, None for all steps.
    """
    plan, local = context.plan, context.target.out_edges.local
    options = plan.options
    one_layer = replace(options.for_targets(linear=True), num_layers=1)
    if targets is not None:
        return _plan_one_layer(context, one_layer, None if all_are_sources else sources, targets)
    if context.settings.smoothing.hops > 0:
        if options.partial_sums or options.all_halo_rows:
            return plan.merge_phases()
        first = context.settings.model.depth
        required = plan.required_layers.clamp(first, options.num_layers) - first
        all_steps = replace(one_layer, num_layers=options.num_layers - first)
        return make_plan(local, all_steps, required, context.comm)
    if options.all_nodes and options.use != "nothing" and options.partial_sums:
        return plan.merge_phases()
    return _plan_one_layer(context, one_layer, sources, context.computed)


def _plan_one_layer(
    context: Context, options: PlanOptions, sources: Tensor | None, computed: Tensor
) -> ExchangePlan:
    """Make a plan for the edges from sources to computed nodes, bool [I] each; None: from all.

    All workers call it: the owners of halo nodes say which of them are sources.
    """
    local, comm = context.target.out_edges.local, context.comm
    if sources is not None and not context.plan.options.all_nodes:
        halo = local.find_sources(computed)[local.num_inner :]
        halo[halo.clone()] = request_halo_flags(local, halo, sources, options.part_sizes, comm)
        local = local.keep(computed[local.dst] & torch.cat((sources, halo))[local.src])
    return _make_one_layer_plan(local, options, comm, computed)


def _make_one_layer_plan(
    local: LocalEdges, options: PlanOptions, comm: Communicator, computed: Tensor
) -> ExchangePlan:
    """Make the plan of one step at nodes, bool or uint8 [I]; all workers call it."""
    required = computed.to(torch.uint8) * (2 if options.all_halo_rows else 1)
    return make_plan(local, options, required, comm)
