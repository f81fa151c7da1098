"""A pass of end-to-end training over a heterogeneous graph: the features of all types through all layers to the target.

As retexo.trainers.network_pass, with rows, their exchange and required layers by type (retexo.models.hetero_stage.TypedLayer).
I inner nodes of a type, F features, C classes; of a layer n_t computed nodes of a type.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from partitioning.graph_data import EdgeType
from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import MessageTag
from retexo.exchange.differentiable_exchange import HaloExchange, make_halo_exchange
from retexo.exchange.exchange_plan import ExchangePlan
from retexo.hetero.context import HeteroContext
from retexo.hetero.edges import required_layers
from retexo.models.aggregate import edge_sum
from retexo.models.block import Block, HaloRows, Sources
from retexo.models.convolution import Convolution, Inputs
from retexo.models.hetero_stage import TypedLayer
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.matrix import Matrix, as_matrix
from retexo.trainers.end_to_end import exchange_rows, options_of_pass

Plans = Mapping[str, ExchangePlan]


@dataclass(frozen=True, eq=False)
class Step:
    """One layer of a pass."""

    fixed: Mapping[str, Inputs]
    """By type, of the first layer."""
    counts: Mapping[str, int]
    """n_t, of the others, as is what follows."""
    own: Mapping[str, Tensor]
    """int64 [n_t] where a type's nodes are among its rows of the layer before."""
    edges: Mapping[EdgeType, tuple[Block, Tensor]]
    """In-edges of the destination type's nodes, and where their sources are: among the rows of the layer before, and
    the received ones after these."""
    swaps: Mapping[str, HaloExchange]
    """By source type; none where nothing is sent."""

    def inputs(
        self, to: str, conv: Convolution, rows: Mapping[str, Tensor], tables: Mapping[str, Tensor]
    ) -> Inputs:
        """Of a type; rows: of the layer before, tables: with those received."""
        if to in self.fixed:
            return self.fixed[to]
        found = [
            (block, tables[each[0]][index])
            for each, (block, index) in self.edges.items()
            if each[2] == to
        ]
        skips = (rows[to][self.own[to]],) if to in rows else ()
        if conv.linear_aggregation:
            means = tuple(
                edge_sum(block, each, block.weight) / divisor(block.in_degree)
                for block, each in found
            )
            return Inputs(means, self.counts[to], NO_PROJECTED_ROWS, skips=skips)
        blocks, matrices = zip(*found, strict=True) if found else ((), ())
        return Inputs(matrices, self.counts[to], NO_PROJECTED_ROWS, skips=skips, blocks=blocks)


def divisor(in_degree: Tensor) -> Tensor:
    """[n, 1] of a mean."""
    return torch.where(in_degree > 0, in_degree, 1)[:, None]


@dataclass(frozen=True, eq=False)
class HeteroPass:
    """From the features to the logits of some of the target's nodes; retexo.trainers.network_pass.AnyPass."""

    steps: Sequence[Step]
    target: str
    targets: Tensor
    """int64 [n] inner nodes."""
    select: Tensor
    """int64 [n] their rows in what the last layer computes."""

    @property
    def first_matrices(self) -> Sequence[Matrix]:
        return [
            matrix
            for inputs in self.steps[0].fixed.values()
            for matrix in (*inputs.matrices, *inputs.skips)
        ]

    def run(self, layers: Sequence[Any], comm: Communicator, kind: str) -> tuple[Tensor, Tensor]:
        """Logits [n, C], and the zero of the last exchange; rows and their gradients count as traffic of `kind`."""
        *_, (rows, before) = self.layers(layers, comm, kind)
        return rows[self.target][self.select.to(before.device)], before

    def layers(
        self, layers: Sequence[TypedLayer], comm: Communicator, kind: str
    ) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """By type the rows that each layer computes, [n_t, D], and that zero."""
        like = next(layers[0].parameters())
        rows: dict[str, Tensor] = {}
        before = torch.zeros((), dtype=like.dtype, device=like.device, requires_grad=True)
        for number, (step, layer) in enumerate(zip(self.steps, layers, strict=True)):
            tables = dict(rows)
            for name, swap in step.swaps.items():
                received, before = swap.run(rows[name], before, comm, MessageTag(kind, number))
                tables[name] = torch.cat((rows[name], received))
            rows = {
                name: stage.embed(step.inputs(name, stage.conv, rows, tables))
                for name, stage in layer.by_type()
            }
            yield rows, before


def required_for(
    context: HeteroContext, targets: Tensor, comm: Communicator | None
) -> dict[str, Tensor]:
    """HeteroContext.required of a pass for some of the target's nodes, bool [I]; comm: None for one within the part."""
    num_layers, target = context.settings.model.num_layers, context.schema.target
    required = {name: torch.zeros_like(each) for name, each in context.required.items()}
    if comm and context.settings.exchange.mode == "plain":
        return {name: torch.full_like(each, num_layers + 1) for name, each in required.items()}
    required[target][targets] = num_layers
    sizes = {name: options.part_sizes for name, options in context.options.items()}
    required_layers(context.out, sizes, required, num_layers, comm)
    return required


def plans_for(context: HeteroContext, required: Mapping[str, Tensor]) -> Plans:
    """Of the rows of each type, for a pass."""
    plans = {}
    for name, out in context.out.items():
        options = context.options[name]
        options = options_of_pass(context.settings, options, sums=options.partial_sums)
        plans[name] = out.plan(out.required(required), options, context.comm)
    return plans


def exchange_features(context: HeteroContext) -> dict[str, Sources]:
    """The features that the first layer needs from other workers, in any pass."""
    return {
        name: exchange_rows(context, context.plans[name], 0, rows, None)
        for name, rows in context.features.items()
        if rows.shape[1]
    }


def make_pass(
    context: HeteroContext,
    layers: Sequence[Any],
    required: Mapping[str, Tensor],
    targets: Tensor,
    plans: Plans | None = None,
    features: Mapping[str, Sources] | None = None,
) -> HeteroPass:
    """A pass for the target's `targets`, bool [I], among those that the last layer is required for.

    features: received ones. Without plans and features one that sends nothing, over a context of a part alone.
    """
    steps = [_first_step(context, layers[0], required, features or {})]
    for number, layer in enumerate(layers[1:], start=1):
        steps.append(_later_step(context, layers[number - 1], layer, number, required, plans))
    target, nodes = context.schema.target, targets.nonzero()[:, 0]
    return HeteroPass(
        steps, target, nodes, ((required[target] >= len(layers)).cumsum(0) - 1)[nodes]
    )


def _nodes(layer: TypedLayer, number: int, required: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """int64 [n_t] of each type that a layer computes."""
    return {name: (required[name] > number).nonzero()[:, 0] for name in layer.types}


def _none(num_halo: int, like: Tensor) -> HaloRows:
    return HaloRows.empty(num_halo, like.shape[1], like.dtype)


def _first_step(
    context: HeteroContext,
    layer: TypedLayer,
    required: Mapping[str, Tensor],
    features: Mapping[str, Sources],
) -> Step:
    nodes, device = _nodes(layer, 0, required), context.device
    means: dict[EdgeType, Tensor] = {}
    blocks: dict[EdgeType, Block] = {}
    for name, rows in context.features.items():
        out = context.out[name]
        into = {each: pairs for each, pairs in out.destinations(nodes).items() if rows.shape[1]}
        none = _none(out.partition.num_halo, rows)
        received = features.get(name, Sources(none, none))
        if layer.conv.linear_aggregation:
            sums = context.means(name, rows, nodes if into else {})
            sums.add(received)
            means |= {each: rows.new_zeros(0, rows.shape[1]) for each in into} | sums.found()
        else:
            edges = out.edges.number_sources(received)
            for each, pairs in into.items():
                block, means[each] = out.block(rows, edges, pairs)
                blocks[each] = block.to(device)
    fixed = {}
    for to, places in nodes.items():
        into_type = [each for each in context.schema.into(to) if each in means]
        matrices = tuple(as_matrix(means[each].to(device)) for each in into_type)
        own = context.features[to]
        skips = (as_matrix(own[places].to(device)),) if own.shape[1] else ()
        of_edges = tuple(blocks[each] for each in into_type if each in blocks)
        fixed[to] = Inputs(matrices, len(places), NO_PROJECTED_ROWS, skips=skips, blocks=of_edges)
    return Step(fixed, {}, {}, {}, {})


def _later_step(
    context: HeteroContext,
    before: TypedLayer,
    layer: TypedLayer,
    number: int,
    required: Mapping[str, Tensor],
    plans: Plans | None,
) -> Step:
    like, nodes, device = next(layer.parameters()), _nodes(layer, number, required), context.device
    edges, swaps, places = {}, {}, {}
    for name in before.types:
        out, has_rows = context.out[name], required[name] >= number
        into, places[name] = out.destinations(nodes), has_rows.cumsum(0) - 1
        if not into:
            continue
        no_rows = HaloRows.empty(out.partition.num_halo, 0, like.dtype)
        received, num_pairs = no_rows, out.partition.num_inner - len(has_rows)
        if plans is not None:
            of_own = torch.cat((required[name], required[name].new_zeros(num_pairs)))
            swaps[name] = make_halo_exchange(
                replace(plans[name], required_layers=of_own), number, None, like
            )
            received = swaps[name].received
        arrived = int(has_rows.sum()) + torch.arange(len(received.values))
        place = torch.cat((places[name], arrived.new_zeros(num_pairs), arrived))
        sources = out.edges.number_sources(Sources(received, no_rows))
        for each, pairs in into.items():
            block = out.cut(sources, pairs)
            edges[each] = block.to(device), place[block.nodes].to(device)
    in_order = {each: edges[each] for each in context.schema.relations if each in edges}
    own = {name: places[name][each].to(device) for name, each in nodes.items() if name in places}
    return Step({}, {name: len(each) for name, each in nodes.items()}, own, in_order, swaps)


@torch.no_grad()
def infer(
    context: HeteroContext, layers: Sequence[Any], features: Mapping[str, Sources]
) -> tuple[Tensor, Tensor]:
    """The logits [I, C] of the target's computed nodes, and the rows [I, D] that the last layer reads of them."""
    with context.phase("embed"):
        targets = context.computed
        made = make_pass(context, layers, context.required, targets, context.plans, features)
        rows = [each for each, _ in made.layers(layers, context.comm, "embeddings")]
        logits, target = rows[-1][made.target].cpu(), made.target
        read = context.features[target][targets]
        if len(rows) > 1 and target in rows[-2]:
            read = rows[-2][target][made.steps[-1].own[target]].cpu()
        whole = [each.new_full((len(targets), each.shape[1]), torch.nan) for each in (logits, read)]
        return whole[0].index_copy_(0, made.targets, logits), whole[1].index_copy_(
            0, made.targets, read
        )
