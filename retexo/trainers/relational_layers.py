"""One layer of a heterogeneous graph, trained by itself (formulas: models/network.py).

It is apart from retexo.trainers.layerwise because another network is trained: the labels are the
target's, so only its stage trains, on means over relations that are computed once; other types pass
on means of rows after the weights that this stage has learnt for them.

I inner nodes of a type, I_t of the target, F width of a layer's rows, D width of passed rows, C
classes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import torch
from torch import Tensor

from retexo.exchange.boundary import INFER_PHASE
from retexo.exchange.layer_exchange import LayerExchange
from retexo.exchange.local_rows import LocalRows
from retexo.models.block import NumberedEdges, Sources
from retexo.models.convolution import Inputs
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.matrix import Matrix, as_matrix, matmul, to_dense
from retexo.models.network import projections
from retexo.models.relational import block_mean
from retexo.models.stage import Stage
from retexo.rounds.objective import LabelledNodes, LayerObjective
from retexo.trainers.context import Context
from retexo.trainers.layerwise import (
    NODES_PER_STEP,
    PRECISIONS,
    AnyLayerInput,
    add_arriving,
    find_other_nodes,
    label_nodes,
    make_layer_objective,
)
from retexo.trainers.out_edges import Means, RelationMeans


@dataclass(frozen=True, eq=False)
class RelationalOutput:
    """A layer's output at this worker's nodes."""

    rows: Mapping[str, Tensor]
    """[I, D] the rows that types pass on; 0 where not needed, none after the last layer."""
    hidden: Tensor
    """[I_t, D] the input of the stage's head."""
    logits: Tensor
    """[I_t, C]; like `hidden` NaN where no worker needs them."""
    passed: Callable[[Tensor, Inputs], Tensor] | None = None
    """Returns the rows that some of the target's nodes pass on; None if it passes none."""
    target: str = ""

    def write(self, nodes: Tensor, inputs: Inputs, outputs: Sequence[Tensor]) -> None:
        """Write the outputs of the target's nodes, int64 [n] (exchange_rest), in place.

        Also the rows that these pass on.
        """
        self.hidden[nodes], self.logits[nodes] = (output.cpu() for output in outputs)
        if self.passed is not None:
            rows = self.passed(nodes, inputs).to(self.logits).cpu()
            self.rows[self.target][nodes, : rows.shape[1]] = rows


@dataclass(frozen=True, eq=False)
class RelationalInput(AnyLayerInput):
    """A layer's input at this worker's nodes."""

    rows: Mapping[str, Tensor]
    """[I, F] of each type that has rows: features in the first layer, passed rows in later ones."""
    features: Tensor
    """[I_t, F] of the target."""
    means: Means
    """[I_t, F] the features that the relations bring; the first layer fills them in."""

    @classmethod
    def first(cls, context: Context, stages: Sequence[Stage]) -> Self:
        """Return the input of the first layer."""
        schema, own = context.schema, context.features
        means = {
            name: own.new_zeros(len(own), schema.widths[name[0]])
            for name in schema.target_relations(0)
        }
        rows = {name: context.types[name].features for name in schema.types_with_rows(0)}
        return cls(rows, own, means)

    def open_exchanges(
        self, context: Context, layer: int, stage: Stage
    ) -> dict[str, LayerExchange]:
        """Open the exchange of each type's rows (layerwise.AnyLayerInput).

        Rows of the first layer that the target does not read may be sent after their weights.
        """
        precision = PRECISIONS[context.settings.exchange.precision[layer]]
        schema = context.schema
        unread = schema.weighted_types(layer) - {name[0] for name in schema.target_relations(layer)}
        exchanges = {}
        for name, rows in self.rows.items():
            local = LocalRows.unprojected(rows, None, precision)
            if name in unread and context.settings.model.depth > 1:

                def project(rows: Matrix, name: str = name) -> Tensor:
                    return matmul(rows, projections(stage, schema, layer)[name].cpu())

                local = LocalRows(rows, None, project, stage.conv.projected_width, precision)
            exchanges[name] = LayerExchange(context.types[name].plan, layer, local, context.comm)
        return exchanges

    def make_objective(
        self, context: Context, layer: int, stage: Stage, received: Mapping[str, Sources]
    ) -> LayerObjective:
        """Return what the rounds of the layer train on (layerwise.AnyLayerInput).

        received: by type, the rows of halo nodes that TRAIN_PHASE has brought.
        """
        target, batch_size = context.schema.target, context.batch_size
        edges = _number_edges(context, stage, received)

        def inputs_of(nodes: Tensor) -> Inputs:
            means: Means = {}
            for name, rows in self.rows.items():
                means |= context.relation_means(name, rows, received[name], {target: nodes})
            return _target_inputs(context, layer, self, nodes, means, edges)

        def with_inputs(nodes: Tensor) -> LabelledNodes:
            if edges is None or batch_size is None or not len(nodes):
                return label_nodes(context, nodes, inputs_of)
            return label_nodes(context, nodes, inputs_of, torch.split(nodes, batch_size))

        return make_layer_objective(context, layer, stage, with_inputs)

    def exchange_rest(
        self,
        context: Context,
        objective: LayerObjective,
        exchanges: Mapping[str, LayerExchange],
        *,
        logits: bool,
    ) -> tuple[RelationalOutput, Iterator[tuple[Tensor, Inputs]]]:
        """Exchange the remaining rows (AnyLayerInput); logits: they are computed in any case."""
        layer, stage, target = objective.layer, objective.stage, context.schema.target
        weights = projections(stage, context.schema, layer)
        hidden, of_head = (
            self.features.new_full((len(self.features), width), torch.nan)
            for width in stage.output_widths
        )
        nodes = find_other_nodes(objective, context.target.required_layers)
        means, rows, received = _exchange_rest(context, objective, weights, self, exchanges, nodes)
        with context.phase("embed"):
            edges = _number_edges(context, stage, received)

        def others() -> Iterator[tuple[Tensor, Inputs]]:
            for start in range(0, len(nodes), NODES_PER_STEP):
                place = slice(start, start + NODES_PER_STEP)
                some = {name: rows_of_relation[place] for name, rows_of_relation in means.items()}
                inputs = _target_inputs(context, layer, self, nodes[place], some, edges)
                yield nodes[place], inputs

        def passed(some: Tensor, inputs: Inputs) -> Tensor:
            return _passed_by_target(context, layer, self, some, inputs, weights)

        output = RelationalOutput(rows, hidden, of_head, passed if target in rows else None, target)
        return output, chain(objective.labelled_inputs(), others())


def _number_edges(
    context: Context, stage: Stage, received: Mapping[str, Sources]
) -> dict[str, NumberedEdges] | None:
    """Number, by source type, the edges that attention reads; None for convolutions of means."""
    if stage.conv.linear_aggregation:
        return None
    return {
        name: NumberedEdges(context.types[name].out_edges.edges, sources)
        for name, sources in received.items()
    }


def _target_inputs(
    context: Context,
    layer: int,
    layer_input: RelationalInput,
    nodes: Tensor,
    means: Means,
    edges: Mapping[str, NumberedEdges] | None,
) -> Inputs:
    """Return the inputs of a layer's stage for nodes of the target type, int64 [n].

    Args:
        means: [n, width] by relation, the means over the in-edges of these nodes; layer 0 also
            stores them in `layer_input.means`.
        edges: in-edges by relation for attention, which then replace the means; else None.
    """
    schema, device = context.schema, context.device
    if layer == 0:
        for name, rows in layer_input.means.items():
            rows[nodes] = means[name].cpu()
    raw: list[Tensor] = []
    if layer or edges is None:
        raw = [layer_input.means[name][nodes] for name in schema.target_relations(0)]
    relations, passed, blocks = schema.target_relations(layer), [], []
    if edges is not None:
        for name in relations:
            out_edges, rows = context.types[name[0]].out_edges, layer_input.rows[name[0]]
            ids = nodes + out_edges.first[name]
            block, rows = out_edges.cut_block_and_rows(rows, edges[name[0]], ids)
            blocks.append(block.to(device))
            passed.append(rows)
    elif layer:
        passed = [means[name] for name in relations]
    matrices = tuple(as_matrix(rows.to(device)) for rows in (*raw, *passed))
    own = (
        (as_matrix(layer_input.features[nodes].to(device)),)
        if layer_input.features.shape[1]
        else ()
    )
    inputs = Inputs(matrices, len(nodes), NO_PROJECTED_ROWS, skips=own, blocks=tuple(blocks))
    return inputs.to_bf16() if context.settings.compute.precision == "bf16" else inputs


def _passed_by_target(
    context: Context,
    layer: int,
    layer_input: RelationalInput,
    nodes: Tensor,
    inputs: Inputs,
    weights: Mapping[str, Tensor],
) -> Tensor:
    """Return the rows [n, D] that the target's nodes pass on, from the means over its relations.

    Args:
        nodes: int64 [n] of the target.
        inputs: of these nodes, see _target_inputs.
        weights: [F, D] by source type.
    """
    raw, relations = context.schema.target_relations(0), context.schema.target_relations(layer)
    if layer == 0:
        means = [layer_input.means[name][nodes].to(context.device) for name in raw]
    else:
        means = [to_dense(matrix) for matrix in inputs.matrices[len(raw) :]]
    if layer and inputs.blocks:
        means = [
            block_mean(*block_and_rows) for block_and_rows in zip(inputs.blocks, means, strict=True)
        ]
    products = [
        matmul(rows.to(weights[name[0]]), weights[name[0]])
        for name, rows in zip(relations, means, strict=True)
    ]
    return torch.stack(products).sum(dim=0)


def _exchange_rest(
    context: Context,
    objective: LayerObjective,
    weights: Mapping[str, Tensor],
    layer_input: RelationalInput,
    exchanges: Mapping[str, LayerExchange],
    nodes: Tensor,
) -> tuple[Means, dict[str, Tensor], dict[str, Sources]]:
    """Exchange the remaining rows.

    Returns:
        The means over the relations into the target at `nodes`, int64 [n].
        The rows [I, D] that types pass on; the target's are not filled in, because its labelled
            nodes were aggregated before the rounds.
        For attention, by type all rows that were received.
    """
    layer, target, schema = objective.layer, context.schema.target, context.schema
    types = schema.passing_types(layer, context.settings.model.depth)
    required = context.required_layers
    passing = {name: (required[name] > layer).nonzero()[:, 0] for name in types if name != target}
    widths = {name: rows.shape[1] for name, rows in layer_input.rows.items()}
    projected = objective.stage.conv.projected_width
    columns = schema.passed_columns(layer, widths, projected)
    passed_widths = schema.passed_widths(layer, widths, projected)
    means: Means = {}
    received: dict[str, Sources] = {}
    passed = {
        name: layer_input.features.new_zeros(len(required[name]), passed_widths[name])
        for name in types
    }
    for name, rows in layer_input.rows.items():
        with context.phase("embed"):
            edges, device = context.types[name].out_edges, context.device
            of_target = RelationMeans(edges, rows, {target: nodes}, device)
            of_others = RelationMeans(edges, rows, passing, device, weights.get(name))
        if objective.stage.conv.linear_aggregation:
            add_arriving(context, exchanges[name], [of_target.add, of_others.add])
        else:
            with context.phase("exchange"):
                received[name] = exchanges[name].run(INFER_PHASE)
            with context.phase("embed"):
                of_target.add(received[name])
                of_others.add(received[name])
        means |= of_target.by_relation()
        for relation, mean in of_others.by_relation().items():
            passed[relation[2]][passing[relation[2]], columns[relation]] += mean.cpu()
    return means, passed, received
