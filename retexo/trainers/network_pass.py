"""A pass of end-to-end training: the features of some nodes through all layers to the logits.

The first layer's input is fixed. A later layer reads the rows that the layer before it has just
computed, here and, by an exchange, on other workers. Everything is kept by node type; a plain graph
has one. I inner nodes and H halo nodes of a type; a layer computes n nodes of it; C classes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from partitioning.graph.graph_data import PLAIN_TYPE, EdgeType
from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import MessageTag
from retexo.exchange.differentiable_exchange import BoundarySample, HaloExchange, make_halo_exchange
from retexo.exchange.exchange_plan import ExchangePlan
from retexo.models.block import Block, HaloRows, NumberedEdges, Sources
from retexo.models.convolution import Inputs
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.matrix import Matrix, RowIndex, as_matrix
from retexo.models.network import TypedLayer
from retexo.models.relational import relation_inputs
from retexo.models.stage import Stage
from retexo.trainers import layerwise
from retexo.trainers.context import Context, place_rows
from retexo.trainers.layerwise import LayerInput
from retexo.trainers.out_edges import Means, extend_required_layers

Layer = Stage | TypedLayer
"""A layer of a plain graph, or of a heterogeneous one."""
Required = Mapping[str, Tensor]
"""uint8 [I] by type: layer l computes the nodes with a value above l."""
Plans = Mapping[str, ExchangePlan]


@dataclass(frozen=True, eq=False)
class Step:
    """One layer of a pass, by node type."""

    num_rows: Mapping[str, int]
    """n of each type that the layer computes."""
    fixed: Mapping[str, Inputs] = field(default_factory=dict)
    """Inputs of the first layer."""
    edges: Mapping[EdgeType, tuple[Block, RowIndex]] = field(default_factory=dict)
    """In a later layer, each relation's block, and [N_src] the places of its sources: among the
    rows of the layer before, then the received ones."""
    own_rows: Mapping[str, RowIndex] = field(default_factory=dict)
    """[n] the places of a type's nodes among its rows of the layer before."""
    skips: Mapping[str, Matrix] = field(default_factory=dict)
    """In a later layer of a plain graph, by name, inputs of skip connections except own rows."""
    exchanges: Mapping[str, HaloExchange] = field(default_factory=dict)
    """By source type; empty where nothing is sent."""
    scale: float = 1.0
    """Factor of received vectors."""

    def compute(
        self, name: str, stage: Stage, rows: Mapping[str, Tensor], tables: Mapping[str, Tensor]
    ) -> Tensor:
        """Run a stage; return its output [n, D] for one type.

        Args:
            name: the type.
            stage: its part of this layer.
            rows: by type, the output of the layer before; empty in the first layer.
            tables: `rows` followed by the rows received from other workers.
        """
        if not self.num_rows[name]:
            return next(stage.parameters()).new_zeros(0, stage.output_dim)
        if name in self.fixed:
            return stage.embed(self.fixed[name])
        into = [
            (block, tables[source][places])
            for (source, _, to), (block, places) in self.edges.items()
            if to == name
        ]
        own: tuple[Tensor, ...] = (rows[name][self.own_rows[name]],) if name in rows else ()
        if stage.conv.relational:
            return stage.embed(relation_inputs(stage.conv, into, self.num_rows[name], own))
        ((block, values),) = into
        inputs = stage.conv.prepare(block, values, NO_PROJECTED_ROWS)
        read = {"rows": own[0], **self.skips}
        return stage.embed(replace(inputs, skips=tuple(read[skip] for skip in stage.skips)))


@dataclass(frozen=True, eq=False)
class Pass:
    """From the features to the logits of some of the labelled type's nodes, `targets`."""

    steps: Sequence[Step]
    target: str
    """The type that has labels."""
    targets: Tensor
    """int64 [n] inner nodes."""
    select: Tensor
    """int64 [n] their rows in the output of the last step."""

    @property
    def first_matrices(self) -> Sequence[Matrix]:
        """Return the input matrices of the first layer.

        A column that is zero everywhere gives a row of its weights no gradient, so that none is
        sent.
        """
        return [matrix for inputs in self.steps[0].fixed.values() for matrix in inputs.all_matrices]

    def run(self, layers: Sequence[Layer], comm: Communicator, kind: str) -> tuple[Tensor, Tensor]:
        """Compute the logits [n, C], and a zero that has to enter the loss, see each_layer.

        Rows and their gradients count as traffic of `kind`.
        """
        *_, (rows, zero) = self.each_layer(layers, comm, kind)
        return rows[self.target][self.select.to(zero.device)], zero

    def each_layer(
        self, layers: Sequence[Layer], comm: Communicator, kind: str
    ) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Yield the rows that each layer computes, [n, D] by type, and a zero, [], for the loss.

        All workers take all of it: a pass with exchanges sends rows before a layer computes. With
        the zero every worker takes part in each exchange of the backward pass.
        """
        like = next(layers[0].parameters())
        rows: dict[str, Tensor] = {}
        zero = torch.zeros((), dtype=like.dtype, device=like.device, requires_grad=True)
        for number, (step, layer) in enumerate(zip(self.steps, layers, strict=True)):
            tables = dict(rows)
            for name, exchange in step.exchanges.items():
                received, zero = exchange.run(rows[name], zero, comm, MessageTag(kind, number))
                received = received if step.scale == 1 else received * step.scale
                tables[name] = torch.cat((rows[name], received))
            rows = {
                name: step.compute(name, stage, rows, tables) for name, stage in layer.by_type()
            }
            yield rows, zero


# --- which nodes, and what is sent ----------


def require_targets(context: Context, targets: Tensor, comm: Communicator | None) -> Required:
    """Return the nodes that each layer of a pass computes: uint8 [I] by type, as required layers.

    All of them with exchange=plain between workers. With `comm` all workers call it.

    Args:
        context: of this worker.
        targets: bool [I], the nodes of the labelled type whose logits are wanted.
        comm: None for a pass within the partition.
    """
    num_layers = context.settings.model.depth
    required = {
        name: torch.zeros_like(layers_of_type)
        for name, layers_of_type in context.required_layers.items()
    }
    if comm and context.settings.exchange.mode == "plain":
        return {
            name: torch.full_like(layers_of_type, num_layers + 1)
            for name, layers_of_type in required.items()
        }
    required[context.schema.target][targets] = num_layers
    out_edges = {name: node_type.out_edges for name, node_type in context.types.items()}
    options = {name: node_type.plan.options for name, node_type in context.types.items()}
    extend_required_layers(out_edges, options, required, num_layers, comm)
    return required


def make_plans(context: Context, targets: Tensor, *, sums: bool = True) -> tuple[Required, Plans]:
    """Return the nodes that each layer of a pass computes, and the exchange plan of each type.

    All workers call it.

    Args:
        context: of this worker.
        targets: bool [I], the nodes of the labelled type whose logits are wanted.
        sums: whether partial sums may be sent, where the aggregator adds up.
    """
    plans, required = {}, require_targets(context, targets, context.comm)
    num_layers = context.settings.model.depth
    num_sends = 2 * context.settings.num_rounds[0]  # rows forward, and their gradients backward
    for name, node_type in context.types.items():
        # The context's plan sends each row once, and goes on to label propagation.
        options = node_type.plan.options
        vector_bytes = (num_sends * options.vector_bytes[0], num_sends * options.vector_bytes[1])
        options = replace(options, num_layers=num_layers, vector_bytes=vector_bytes)
        options = options.for_targets(linear=sums and options.linear)
        plans[name] = node_type.out_edges.make_plan(required, options, context.comm)
    return required, plans


# --- making a pass ----------


def make_pass(
    context: Context,
    layers: Sequence[Layer],
    required: Required,
    targets: Tensor,
    plans: Plans | None = None,
    features: Mapping[str, Sources] | None = None,
    sample: BoundarySample | None = None,
    scale: float = 1.0,
) -> Pass:
    """Build a pass; nothing is sent yet.

    Args:
        context: of this worker.
        layers: of the network.
        required: the nodes that each layer computes.
        targets: bool [I], nodes of the labelled type that the last layer computes.
        plans: None for a pass that sends nothing.
        features: by type, with received halo rows, sampled and scaled like the rows of later
            layers. None: no halo node has features. A pass itself exchanges rows of later layers
            only.
        sample: if given, only these rows are exchanged, multiplied by `scale`; of a plain graph.
        scale: the factor of received vectors.
    """
    layer_input = LayerInput.first(context, layers) if context.schema.is_plain else None
    features = features or {
        name: Sources.none(node_type.out_edges.local.num_halo, node_type.features)
        for name, node_type in context.types.items()
    }
    computed = _nodes(layers[0], 0, required)
    fixed = _first_inputs(context, layers[0], computed, features, layer_input)
    steps = [Step({name: len(ids) for name, ids in computed.items()}, fixed)]
    for number, layer in enumerate(layers[1:], start=1):
        exchanges: dict[str, HaloExchange] = {}
        for name, _ in layers[number - 1].by_type():
            if plans is not None and context.types[name].out_edges.destinations(
                _nodes(layer, number, required)
            ):
                exchanges[name] = _make_exchange(
                    context, layer, number, name, required, plans[name], sample
                )
        received = {name: exchange.received for name, exchange in exchanges.items()}
        step = later_step(context, layers, number, required, received, layer_input)
        steps.append(replace(step, exchanges=exchanges, scale=scale))
    target, nodes = context.schema.target, targets.nonzero()[:, 0]
    places = (required[target] >= len(steps)).cumsum(0) - 1
    return Pass(steps, target, nodes, places[nodes])


def make_local_pass(
    context: Context,
    layers: Sequence[Layer],
    targets: Tensor,
    features: Mapping[str, Sources] | None = None,
) -> Pass:
    """Build a pass for the targets, bool [I], that sends nothing; features: see make_pass."""
    required = require_targets(context, targets, comm=None)
    return make_pass(context, layers, required, targets, features=features)


def _nodes(layer: Layer, number: int, required: Required) -> dict[str, Tensor]:
    """Return the nodes that a layer computes, int64 [n] of each type."""
    return {name: (required[name] > number).nonzero()[:, 0] for name, _ in layer.by_type()}


def _make_exchange(
    context: Context,
    layer: Layer,
    number: int,
    name: str,
    required: Required,
    plan: ExchangePlan,
    sample: BoundarySample | None,
) -> HaloExchange:
    """Build the exchange of a type's rows before layer `number`; `sample`: of its boundary."""
    out_edges = context.types[name].out_edges
    no_rows = required[name].new_zeros(out_edges.num_pairs)  # a pair has no row of its own
    plan = replace(plan, required_layers=torch.cat((required[name], no_rows)))
    scale = context.source_scale(layer.conv)
    precision = layerwise.PRECISIONS[context.settings.exchange.precision[number]]
    like = context.features.new_zeros(0, device=context.device)
    return make_halo_exchange(plan, number, scale, like, sample, precision)


def _first_inputs(
    context: Context,
    layer: Any,
    nodes: Mapping[str, Tensor],
    features: Mapping[str, Sources],
    layer_input: LayerInput | None,
) -> dict[str, Inputs]:
    """Return the inputs of the first layer by type; in a plain graph none without nodes.

    Args:
        context: of this worker.
        layer: the first one.
        nodes: int64 [n] of each type that the layer computes.
        features: by type, those received from other workers.
        layer_input: the layer's input in a plain graph; None in a heterogeneous one.
    """
    if layer_input is None:
        return _first_inputs_by_type(context, layer, nodes, features)
    if not len(nodes[PLAIN_TYPE]):
        return {}
    edges = NumberedEdges(context.edges, features[PLAIN_TYPE])
    inputs = layerwise.layer_inputs(context, layer, nodes[PLAIN_TYPE], layer_input, edges)
    return {PLAIN_TYPE: inputs}


def _first_inputs_by_type(
    context: Context,
    layer: TypedLayer,
    nodes: Mapping[str, Tensor],
    features: Mapping[str, Sources],
) -> dict[str, Inputs]:
    """Return the first layer's inputs of each type, from the features that each relation brings."""
    device, widths = context.device, context.schema.widths
    rows_of_relation: Means = {}
    blocks: dict[EdgeType, Block] = {}
    for name, node_type in context.types.items():
        rows, out_edges = node_type.features, node_type.out_edges
        if not rows.shape[1]:
            continue
        if layer.conv.linear_aggregation:
            rows_of_relation |= context.relation_means(name, rows, features[name], nodes)
            continue
        edges = NumberedEdges(out_edges.edges, features[name])
        for relation, ids in out_edges.destinations(nodes).items():
            block, rows_of_relation[relation] = out_edges.cut_block_and_rows(rows, edges, ids)
            blocks[relation] = block.to(device)
    fixed = {}
    for to, ids in nodes.items():
        into = [name for name in context.schema.relations_into(to) if widths[name[0]]]
        own = context.types[to].features
        read = [rows_of_relation.get(name, own.new_zeros(0, widths[name[0]])) for name in into]
        fixed[to] = Inputs(
            tuple(as_matrix(rows.to(device)) for rows in read),
            len(ids),
            NO_PROJECTED_ROWS,
            skips=(as_matrix(own[ids].to(device)),) if own.shape[1] else (),
            blocks=tuple(blocks[relation] for relation in into if relation in blocks),
        )
    return fixed


def later_step(
    context: Context,
    layers: Sequence[Layer],
    number: int,
    required: Required,
    received: Mapping[str, HaloRows],
    layer_input: LayerInput | None = None,
) -> Step:
    """Build the step of a later layer, without edges of halo nodes whose rows are not received.

    It has no exchange yet.

    Args:
        context: of this worker.
        layers: of the network.
        number: of the layer.
        required: the nodes that each layer computes.
        received: by source type, which halo nodes' rows are received; the values come later. The
            layer reads them after its own rows.
        layer_input: in a plain graph the input of the first layer, which skip connections read.
    """
    nodes, device = _nodes(layers[number], number, required), context.device
    edges, places = {}, {}
    for name, _ in layers[number - 1].by_type():
        out_edges, has_row = context.types[name].out_edges, required[name] >= number
        places[name] = has_row.cumsum(0) - 1
        no_rows = HaloRows.empty(out_edges.local.num_halo, 0, context.features.dtype)
        vectors = received.get(name, no_rows)
        arrived = int(has_row.sum()) + torch.arange(len(vectors.values))
        no_pair_rows = arrived.new_zeros(out_edges.num_pairs)
        place = torch.cat((places[name], no_pair_rows, arrived))
        numbered = NumberedEdges(out_edges.edges, Sources(vectors, no_rows))
        for relation, ids in out_edges.destinations(nodes).items():
            block = out_edges.cut_block(numbered, ids)
            edges[relation] = block.to(device), place[block.nodes].to(device)
    skips: dict[str, Matrix] = {}
    if layer_input is not None and isinstance(stage := layers[number], Stage):
        names = [name for name in stage.skips if name != "rows"]
        skips = {name: layer_input.skip(name, nodes[PLAIN_TYPE], device) for name in names}
    return Step(
        {name: len(ids) for name, ids in nodes.items()},
        skips=skips,
        edges={
            relation: edges[relation] for relation in context.schema.relations if relation in edges
        },
        own_rows={
            name: places[name][ids].to(device) for name, ids in nodes.items() if name in places
        },
    )


@torch.no_grad()
def infer_by_type(
    context: Context, layers: Sequence[Any], features: Mapping[str, Sources]
) -> tuple[Tensor, Tensor]:
    """Return logits [I, C] of a typed graph's labelled type, and the rows [I, D] behind them.

    These are what the last layer reads of the nodes themselves. NaN at nodes that are not computed.
    All workers call it.
    """
    with context.phase("embed"):
        target, computed = context.schema.target, context.computed
        plans = {name: node_type.plan for name, node_type in context.types.items()}
        full_pass = make_pass(context, layers, context.required_layers, computed, plans, features)
        rows = [
            rows_of_layer
            for rows_of_layer, _ in full_pass.each_layer(layers, context.comm, "embeddings")
        ]
        read = context.features[computed]
        if len(rows) > 1 and target in rows[-2]:
            read = rows[-2][target][full_pass.steps[-1].own_rows[target]]
        return place_rows(rows[-1][target], computed), place_rows(read, computed)
