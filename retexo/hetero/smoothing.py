"""Smoothing of the target's answers along paths between its nodes: target - x - target, and relations within it.

    u_x = mean over the relations from the target to x of A_r v
    v' = mean over the relations into the target of A_r u

with v itself for a relation within the target; of the relations those count that reach a node, and where none does it
keeps its own. A step is two exchanges of rows as wide as there are classes. The rest is retexo.trainers.answer.

I inner nodes of a type, C classes, K steps.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from partitioning.graph_data import EdgeType
from retexo.comm.traffic_meter import WHOLE_RUN
from retexo.exchange.exchange_plan import ExchangePlan
from retexo.hetero.context import HeteroContext
from retexo.models.hetero_stage import Schema
from retexo.trainers.end_to_end import exchange_rows, nodes_in_a_split


@dataclass(frozen=True)
class Paths:
    """The relations between the target and types that have some in both directions, and within the target."""

    leaving: frozenset[EdgeType]
    back: frozenset[EdgeType]

    @classmethod
    def of(cls, schema: Schema) -> "Paths":
        to, into = (
            {each[place] for each in schema.relations if each[2 - place] == schema.target}
            for place in (2, 0)
        )
        between = to & into
        leaving = {
            each for each in schema.relations if each[0] == schema.target and each[2] in between
        }
        back = {each for each in schema.into(schema.target) if each[0] in between - {schema.target}}
        return cls(frozenset(leaving), frozenset(back))


def propagate(context: HeteroContext, start: Tensor, steps: int) -> Iterator[Tensor]:
    """V_0 ... V_K, [I, C] each; V_0 alone where there are no paths. NaN where V_0 is."""
    yield start
    paths, target = Paths.of(context.schema), context.schema.target
    if not paths.leaving:
        return
    computed = context.computed
    everything = context.settings.smoothing.hops > 0 or not context.graph_info.num_in_split
    sources = (computed if everything else nodes_in_a_split(context))[:, None]
    with context.phase("plan"):
        forth, back = _plans(context, paths.leaving), _plans(context, paths.back)
    rows = start
    for _ in range(steps):
        reached = _bring(context, forth, {target: torch.where(sources, rows, 0.0)}, paths.leaving)
        found = [reached.pop(target)] if target in reached else []
        if reached:
            between = {name: mean(*each) for name, each in reached.items()}
            found += _bring(context, back, between, paths.back).values()
        total, count = (sum(each[1:], start=each[0]) for each in zip(*found, strict=True))
        rows = torch.where(
            computed[:, None], torch.where(count > 0, mean(total, count), rows), torch.nan
        )
        yield rows


def mean(total: Tensor, count: Tensor) -> Tensor:
    """[I, C] by [I, 1]"""
    return total / count.clamp(min=1)


def _plans(context: HeteroContext, relations: frozenset[EdgeType]) -> dict[str, ExchangePlan]:
    """One wave for each type that such a relation leaves, to all that it reaches."""
    plans = {}
    for name in dict.fromkeys(each[0] for each in context.schema.relations if each in relations):
        out, options = context.out[name], context.options[name].for_targets(partial_sums=True)
        value = 2 if options.all_halo_rows else 1
        needed = out.required(
            {each: torch.full_like(of, value) for each, of in context.required.items()}, relations
        )
        plans[name] = out.plan(needed, replace(options, num_layers=1), context.comm)
    return plans


def _bring(
    context: HeteroContext,
    plans: Mapping[str, ExchangePlan],
    rows: Mapping[str, Tensor],
    relations: frozenset[EdgeType],
) -> dict[str, tuple[Tensor, Tensor]]:
    """By destination type the sum [I, C] of what the relations bring, and how many reach each node, [I, 1]."""
    width, like = (next(iter(rows.values())).shape[1], next(iter(rows.values())))
    found = {
        name: (
            like.new_zeros(len(context.required[name]), width),
            like.new_zeros(len(context.required[name]), 1),
        )
        for name in {each[2] for each in relations}
    }
    for name, plan in plans.items():
        received, out = (
            exchange_rows(context, plan, 0, rows[name], None, "predictions", WHOLE_RUN),
            context.out[name],
        )
        types = {each[2] for each in relations if each[0] == name}
        with context.phase("aggregate"):
            means = context.means(
                name,
                rows[name],
                {each: torch.arange(len(context.required[each])) for each in types},
            )
            means.add(received)
            for each, brought in means.found().items():
                if each in relations:
                    begin = out.first[each]
                    reaches = (out.edges.in_degree[begin : begin + len(brought)] > 0)[:, None].to(
                        brought
                    )
                    total, count = found[each[2]]
                    found[each[2]] = total + brought.cpu(), count + reaches.cpu()
    return found
