"""Lazy training of a heterogeneous graph: one layer at a time, its boundary rows once (retexo.models.hetero_stage).

What a relation brings to a node is fixed while a layer trains, so it is aggregated once, and the rounds touch no edge.
The labels are the target's, so its stage alone trains; others pass on means of rows through weights that it learnt.

I inner nodes of a type, I_t of the target, F width of a layer's rows, D width of what is passed on, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from retexo.exchange.boundary import INFER_PHASE, TRAIN_PHASE
from retexo.exchange.layer_exchange import LayerExchange
from retexo.exchange.message_selection import LocalRows
from retexo.hetero.context import HeteroContext
from retexo.hetero.edges import Means, RelationMeans
from retexo.hetero.network_pass import divisor, exchange_features
from retexo.hetero.network_pass import infer as infer_end_to_end
from retexo.hetero.smoothing import propagate
from retexo.models.aggregate import edge_sum
from retexo.models.block import NumberedEdges, Sources
from retexo.models.convolution import Inputs
from retexo.models.hetero_stage import TypedLayer, projected_width, projections
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.matrix import Matrix, as_matrix, matmul, to_dense
from retexo.models.stage import Answer, Stage
from retexo.rounds.objective import LabelledNodes, LayerObjective
from retexo.trainers import lazy
from retexo.trainers.answer import InferenceResult, apply_answer
from retexo.trainers.context import TrainResult
from retexo.trainers.layerwise import NODES_AT_ONCE, PRECISIONS, Fit, Layers, each_layer


@dataclass(frozen=True, eq=False)
class HeteroInput:
    """What a layer reads of this worker's nodes."""

    rows: Mapping[str, Tensor]
    """[I, F] of each type that has some: features in the first layer, q in others."""
    features: Tensor
    """[I_t, F] of the target."""
    means: Means
    """[I_t, F] what the relations bring of the features; the first layer sets them for the nodes that it computes."""

    @classmethod
    def first(cls, context: HeteroContext, stages: Sequence[Stage]) -> "HeteroInput":
        schema, features = context.schema, context.features
        own = features[schema.target]
        means = {name: own.new_zeros(len(own), schema.widths[name[0]]) for name in schema.inputs(0)}
        return cls({name: features[name] for name in schema.sources(0)}, own, means)


@dataclass(frozen=True, eq=False)
class HeteroOutput:
    """What a layer makes of this worker's nodes."""

    rows: Mapping[str, Tensor]
    """[I, D] what types pass on; zeros where no worker needs it, none of the last layer."""
    hidden: Tensor
    """[I_t, D] what the stage's head reads."""
    logits: Tensor
    """[I_t, C]; NaN where no worker needs them, as is `hidden`."""


def run_layer(
    context: HeteroContext,
    layer: int,
    stage: Stage,
    given: HeteroInput,
    fit: Fit,
    *,
    logits: bool = True,
) -> HeteroOutput:
    """Exchange, aggregate, `fit`, exchange, embed; logits are made in any case."""
    context.clock.progress.at(layer)
    exchanges = layer_exchanges(context, layer, stage, given)
    with context.phase("exchange"):
        sources = {name: each.run(TRAIN_PHASE) for name, each in exchanges.items()}
    with context.phase("aggregate"):
        objective = make_objective(context, layer, stage, given, sources)
    del sources
    fit(objective)
    return _embed(context, objective, given, exchanges)


LAYERS = Layers(HeteroInput.first, run_layer)
USE, OWN_MODEL, RESUMES, check = lazy.USE, lazy.OWN_MODEL, lazy.RESUMES, lazy.check


def train(context: HeteroContext, stages: list[Stage]) -> TrainResult:
    return lazy.train(context, stages, LAYERS)


def infer_hetero(context: HeteroContext, stages: list[Stage], answer: Answer) -> InferenceResult:
    """Run trained stages over the nodes that the plan requires; embeddings: what the last head, or layer, reads."""
    if isinstance(stages[0], TypedLayer):
        ended, read = infer_end_to_end(context, stages, exchange_features(context))
        return InferenceResult(
            apply_answer([ended], replace(answer, stages=(0,)), partial(propagate, context)), read
        )
    outputs = list(each_layer(context, stages, LAYERS))
    logits = [output.logits for output in outputs]
    return InferenceResult(
        apply_answer(logits, answer, partial(propagate, context)), outputs[-1].hidden
    )


def layer_exchanges(
    context: HeteroContext, layer: int, stage: Stage, given: HeteroInput
) -> dict[str, LayerExchange]:
    """The exchange of each type's rows; those of the first layer that the target does not read may go after weights."""
    precision = PRECISIONS[context.settings.exchange.precision[layer]]
    schema = context.schema
    unread = schema.near(layer) - {name[0] for name in schema.inputs(layer)}
    exchanges = {}
    for name, rows in given.rows.items():
        local = LocalRows.unprojected(rows, None, precision)
        if name in unread and context.settings.model.num_layers > 1:

            def project(rows: Matrix, name: str = name) -> Tensor:
                return matmul(rows, projections(stage, schema, layer)[name].cpu())

            local = LocalRows(rows, None, project, projected_width(stage), precision)
        exchanges[name] = LayerExchange(context.plans[name], layer, local, context.comm)
    return exchanges


def make_objective(
    context: HeteroContext,
    layer: int,
    stage: Stage,
    given: HeteroInput,
    sources: Mapping[str, Sources],
) -> LayerObjective:
    """What the rounds of a layer train on."""
    target, batch_size = context.schema.target, context.batch_size
    edges = _attended(context, stage, sources)

    def inputs_of(nodes: Tensor) -> Inputs:
        means: Means = {}
        for name, rows in given.rows.items():
            sums = context.means(name, rows, {target: nodes})
            sums.add(sources[name])
            means |= sums.found()
        return target_inputs(context, layer, given, nodes, means, edges)

    def labelled(mask: Tensor) -> LabelledNodes:
        nodes = (mask & (context.required[target] > context.settings.model.num_layers)).nonzero()[
            :, 0
        ]
        if edges is not None and batch_size is not None:
            chunks = tuple(
                slice(first, first + batch_size) for first in range(0, len(nodes), batch_size)
            )
            return LabelledNodes(
                nodes, context.labels[nodes], lambda place: inputs_of(nodes[place]), chunks
            )
        return LabelledNodes.from_inputs(
            nodes, context.labels[nodes], inputs_of(nodes) if len(nodes) else None, batch_size
        )

    return LayerObjective(
        layer=layer,
        stage=stage,
        task=context.task,
        train=labelled(context.partition.train_mask),
        val=labelled(context.partition.val_mask),
        graph_info=context.graph_info,
        batch_size=batch_size,
        val_stride=context.val_stride,
    )


def _attended(
    context: HeteroContext, stage: Stage, sources: Mapping[str, Sources]
) -> dict[str, NumberedEdges] | None:
    """The edges that leave each type, for attention; None for means."""
    if stage.conv.linear_aggregation:
        return None
    return {
        name: context.out[name].edges.number_sources(received) for name, received in sources.items()
    }


def target_inputs(
    context: HeteroContext,
    layer: int,
    given: HeteroInput,
    nodes: Tensor,
    means: Means,
    edges: Mapping[str, NumberedEdges] | None,
) -> Inputs:
    """The input of a stage at some of the target's nodes, int64 [n]; means: what its relations bring."""
    schema, device = context.schema, context.device
    if layer == 0:
        for name, rows in given.means.items():
            rows[nodes] = means[name].cpu()
    last, blocks = schema.inputs(layer), []
    raw = [given.means[name][nodes] for name in schema.inputs(0)] if layer or edges is None else []
    brought = [means[name] for name in last] if layer and edges is None else []
    if edges is not None:
        for name in last:
            out = context.out[name[0]]
            block, rows = out.block(given.rows[name[0]], edges[name[0]], nodes + out.first[name])
            blocks.append(block.to(device))
            brought.append(rows)
    matrices = tuple(as_matrix(rows.to(device)) for rows in (*raw, *brought))
    own = (as_matrix(given.features[nodes].to(device)),) if given.features.shape[1] else ()
    inputs = Inputs(matrices, len(nodes), NO_PROJECTED_ROWS, skips=own, blocks=tuple(blocks))
    return inputs.to_bf16() if context.settings.compute.precision == "bf16" else inputs


@torch.no_grad()
def _embed(
    context: HeteroContext,
    objective: LayerObjective,
    given: HeteroInput,
    exchanges: Mapping[str, LayerExchange],
) -> HeteroOutput:
    """Exchange the remaining rows; logits of all of the target's nodes that are needed, and what types pass on."""
    layer, stage, target = objective.layer, objective.stage, context.schema.target
    stage.eval()
    weights = projections(stage, context.schema, layer)
    hidden, logits = (
        given.features.new_full((len(given.features), each), torch.nan)
        for each in stage.output_widths
    )
    others = context.required[target] > layer
    others[torch.cat((objective.train.nodes, objective.val.nodes))] = False
    nodes = others.nonzero()[:, 0]
    means, rows, sources = _exchange_rest(context, objective, weights, given, exchanges, nodes)
    with context.phase("embed"):
        edges = _attended(context, stage, sources)
    places = (slice(first, first + NODES_AT_ONCE) for first in range(0, len(nodes), NODES_AT_ONCE))
    rest = (
        (
            nodes[place],
            target_inputs(context, layer, given, nodes[place], _some(means, place), edges),
        )
        for place in places
    )
    labelled = (
        (part.nodes[place], part.inputs(place))
        for part in (objective.train, objective.val)
        for place in (part.chunks if len(part.nodes) else ())
    )
    with context.phase("embed"):
        for some, inputs in chain(labelled, rest):
            hidden[some], logits[some] = (each.cpu() for each in stage.outputs(inputs))
            if target in rows:
                passed = _passed(context, layer, given, some, inputs, weights).to(logits).cpu()
                rows[target][some, : passed.shape[1]] = passed
    return HeteroOutput(rows, hidden, logits)


def _some(means: Means, place: slice) -> Means:
    return {name: rows[place] for name, rows in means.items()}


def _passed(
    context: HeteroContext,
    layer: int,
    given: HeteroInput,
    nodes: Tensor,
    inputs: Inputs,
    weights: Mapping[str, Tensor],
) -> Tensor:
    """[n, D] of the target's nodes, from what its relations bring."""
    raw, last = context.schema.inputs(0), context.schema.inputs(layer)
    brought = [to_dense(matrix) for matrix in inputs.matrices[len(raw) if layer else 0 :]]
    if not layer:
        brought = [given.means[name][nodes].to(context.device) for name in raw]
    elif inputs.blocks:
        pairs = zip(inputs.blocks, brought, strict=True)
        brought = [
            edge_sum(each, rows, each.weight) / divisor(each.in_degree) for each, rows in pairs
        ]
    products = [
        matmul(rows.to(weights[name[0]]), weights[name[0]])
        for name, rows in zip(last, brought, strict=True)
    ]
    return torch.stack(products).sum(dim=0)


def _exchange_rest(
    context: HeteroContext,
    objective: LayerObjective,
    weights: Mapping[str, Tensor],
    given: HeteroInput,
    exchanges: Mapping[str, LayerExchange],
    nodes: Tensor,
) -> tuple[Means, dict[str, Tensor], dict[str, Sources]]:
    """Of the target's `nodes`, int64 [n], what its relations bring; what types pass on, [I, D] each, the target's not
    filled in: its labelled nodes have what came before the rounds; and for attention all rows that came."""
    layer, target = objective.layer, context.schema.target
    types = context.schema.passing(layer, context.settings.model.num_layers)
    passing = {
        name: (context.required[name] > layer).nonzero()[:, 0] for name in types if name != target
    }
    widths, projected = (
        {name: rows.shape[1] for name, rows in given.rows.items()},
        projected_width(objective.stage),
    )
    columns = context.schema.columns(layer, widths, projected)
    passed = context.schema.passed_widths(layer, widths, projected)
    means: Means = {}
    sources: dict[str, Sources] = {}
    made = {
        name: given.features.new_zeros(len(context.required[name]), passed[name]) for name in types
    }
    for name, rows in given.rows.items():
        with context.phase("embed"):
            of_target = context.means(name, rows, {target: nodes})
            of_others = context.means(name, rows, passing, weights.get(name))
        if objective.stage.conv.linear_aggregation:
            _add_all(context, exchanges[name], [of_target, of_others])
        else:
            with context.phase("exchange"):
                sources[name] = exchanges[name].run(INFER_PHASE)
            with context.phase("embed"):
                of_target.add(sources[name])
                of_others.add(sources[name])
        means |= of_target.found()
        for each, mean in of_others.found().items():
            made[each[2]][passing[each[2]], columns[each]] += mean.cpu()
    return means, made, sources


def _add_all(context: HeteroContext, exchange: LayerExchange, sums: list[RelationMeans]) -> None:
    """What earlier waves left here and what comes now, a piece at a time."""
    arriving = exchange.stream(INFER_PHASE)
    while True:
        with context.phase("exchange"):
            sources = next(arriving, None)
        if sources is None:
            return
        with context.phase("embed"):
            for each in sums:
                each.add(sources)
        del sources  # before the next ones come
