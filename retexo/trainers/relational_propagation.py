"""Label propagation along a heterogeneous graph's relations (for label_propagation.py).

The predictions V of the labelled type, the target, follow the paths target - x - target and the
relations within the target:

    U_x = mean over the relations r from the target to x of  A_r V
    V'  = mean over the relations r into the target of  A_r U

with V in place of U for a relation within the target. A mean counts the relations that reach a
node; a node that none reaches keeps its own V. One step is two exchanges of rows with C values.

I inner nodes of a type, C classes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from partitioning.graph_data import EdgeType
from retexo.comm.traffic_meter import WHOLE_RUN
from retexo.exchange.exchange_plan import ExchangePlan, make_plan_from_required_layers
from retexo.models.hetero_stage import Schema
from retexo.trainers.context import Context
from retexo.trainers.end_to_end import exchange_rows


@dataclass(frozen=True)
class PathRelations:
    """The relations of paths that begin and end at the target."""

    leaving: frozenset[EdgeType]
    """From the target, to types with a relation back or to the target itself."""
    returning: frozenset[EdgeType]
    """From these other types to the target."""

    @classmethod
    def of(cls, schema: Schema) -> "PathRelations":
        """Find the target's relations to types with a relation back, and these relations back."""
        target = schema.target
        reached = {each[2] for each in schema.relations if each[0] == target}
        returning_from = {each[0] for each in schema.relations if each[2] == target}
        between = reached & returning_from
        leaving = {each for each in schema.relations if each[0] == target and each[2] in between}
        returning = {
            each for each in schema.relations_into(target) if each[0] in between - {target}
        }
        return cls(frozenset(leaving), frozenset(returning))


@dataclass(eq=False)
class SumOverRelations:
    """The sum of the means over several relations at a type's nodes."""

    total: Tensor
    """[I, C]"""
    count: Tensor
    """[I, 1] how many of the relations reach each node."""

    @classmethod
    def zeros(cls, num_nodes: int, like: Tensor) -> "SumOverRelations":
        return cls(like.new_zeros(num_nodes, like.shape[1]), like.new_zeros(num_nodes, 1))

    def add(self, total: Tensor, count: Tensor) -> None:
        self.total = self.total + total
        self.count = self.count + count

    @property
    def mean(self) -> Tensor:
        """Return the mean over the relations that reach a node, [I, C]; 0 where none does."""
        return self.total / self.count.clamp(min=1)


def propagate_along_paths(context: Context, start: Tensor, steps: int) -> Iterator[Tensor]:
    """Yield `start` [I, C], then the result of each of `steps` averagings along relation paths.

    The paths begin and end at the target type; without paths only `start` comes. NaN where it is.
    """
    yield start
    relations, target = PathRelations.of(context.schema), context.schema.target
    if not relations.leaving:
        return
    computed = context.computed
    all_are_sources = context.settings.smoothing.hops > 0 or not context.graph_info.num_in_split
    sources = (computed if all_are_sources else context.in_a_split)[:, None]
    with context.phase("plan"):
        leaving = _make_plans(context, relations.leaving)
        returning = _make_plans(context, relations.returning)
    rows = start
    for _ in range(steps):
        sent = {target: torch.where(sources, rows, 0.0)}
        reached = _sum_by_type(context, leaving, sent, relations.leaving)
        found = [reached.pop(target)] if target in reached else []
        if reached:
            between = {name: each.mean for name, each in reached.items()}
            found += _sum_by_type(context, returning, between, relations.returning).values()
        whole = found[0]
        for each in found[1:]:
            whole.add(each.total, each.count)
        after = torch.where(whole.count > 0, whole.mean, rows)
        rows = torch.where(computed[:, None], after, torch.nan)
        yield rows


def _make_plans(context: Context, relations: frozenset[EdgeType]) -> dict[str, ExchangePlan]:
    """Make, by source type, the plan to send its rows to all nodes that the relations reach."""
    plans = {}
    for name in dict.fromkeys(each[0] for each in context.schema.relations if each in relations):
        node_type = context.types[name]
        options = replace(node_type.plan_options.for_targets(partial_sums=True), num_layers=1)
        value = 2 if options.all_halo_rows else 1
        required = {
            each: torch.full_like(of_type, value)
            for each, of_type in context.required_layers.items()
        }
        destinations = node_type.out_edges.required_destinations(required, relations)
        plans[name] = make_plan_from_required_layers(
            node_type.out_edges.partition, options, destinations, context.comm
        )
    return plans


def _sum_by_type(
    context: Context,
    plans: Mapping[str, ExchangePlan],
    rows: Mapping[str, Tensor],
    relations: frozenset[EdgeType],
) -> dict[str, SumOverRelations]:
    """Return, by destination type, the sum of the means over the relations.

    rows: [I, C] by source type.
    """
    like = next(iter(rows.values()))
    num_nodes = {name: len(each) for name, each in context.required_layers.items()}
    sums = {
        name: SumOverRelations.zeros(num_nodes[name], like)
        for name in {each[2] for each in relations}
    }
    for name, plan in plans.items():
        received = exchange_rows(context, plan, 0, rows[name], None, "predictions", WHOLE_RUN)
        types = {each[2] for each in relations if each[0] == name}
        out_edges = context.types[name].out_edges
        with context.phase("aggregate"):
            nodes = {each: torch.arange(num_nodes[each]) for each in types}
            means = context.relation_means(name, rows[name], nodes)
            means.add(received)
            for each, mean in means.by_relation().items():
                if each not in relations:
                    continue
                begin = out_edges.first[each]
                degree = out_edges.edges.in_degree[begin : begin + len(mean)]
                sums[each[2]].add(mean.cpu(), (degree > 0)[:, None].to(mean).cpu())
    return sums
