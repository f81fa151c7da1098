"""One layer at a time: exchange its input, aggregate, train it or not, exchange the rest, embed every node.

I inner nodes of this worker, F input width, D hidden width, C classes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from retexo.exchange.boundary import INFER_PHASE, TRAIN_PHASE
from retexo.exchange.coding.values import Precision
from retexo.exchange.layer_exchange import KnownHaloExchange, LayerExchange
from retexo.exchange.message_selection import LocalRows
from retexo.models.block import NumberedEdges, Sources, gather_source_rows
from retexo.models.convolution import Inputs
from retexo.models.linear import LinearConvolution
from retexo.models.matrix import Matrix, as_matrix, is_sparse, to_dense
from retexo.models.stage import Stage
from retexo.models.streaming_aggregate import AggregateAccumulator
from retexo.rounds.objective import LabelledNodes, LayerObjective
from retexo.trainers.context import Context, RunContext

EDGES_PER_STEP = 1 << 18
"""In-edges of nodes whose neighbours' rows go through the weights together, in each round."""
NODES_AT_ONCE = 1 << 14
"""Nodes whose sums go through the weights together; their rows take less than the C library maps anew each time."""
Fit = Callable[[LayerObjective], None]
PRECISIONS: dict[str, Precision] = {"fp32": "full", "bf16": "bf16", "int8": "int8", "int4": "int4"}


@dataclass(eq=False)
class LayerInput:
    """What a layer reads of this worker's nodes."""

    rows: Tensor
    """[I, F] what the layer before passes on; of the first layer the features. NaN once they are of no more use."""
    features: Tensor | None = None
    """[I, F], for skips; None where no stage reads them."""
    aggregate: Tensor | None = None
    """[I, F] the first layer's aggregate of the features, likewise; it sets them for the nodes that it computes."""
    edges: Tensor | None = None
    """[I, K] means of the in-edges' features, likewise."""

    @cached_property
    def has_sparse_rows(self) -> bool:
        """As is_sparse, which looks at many of them."""
        return is_sparse(self.rows)

    @classmethod
    def first(cls, context: Context, stages: Sequence[Stage]) -> Self:
        """With the features of the context."""
        read, features = {name for stage in stages for name in stage.skips}, context.features
        return cls(
            features,
            features if "features" in read else None,
            torch.zeros_like(features) if "aggregate" in read else None,
            context.edge_means if "edges" in read else None,
        )

    def skips(self, stage: Stage, nodes: Tensor, device: torch.device) -> tuple[Matrix, ...]:
        """Inputs.skips of some nodes, int64 [n]."""
        return tuple(as_matrix(getattr(self, name)[nodes].to(device)) for name in stage.skips)


@dataclass(frozen=True, eq=False)
class LayerOutput:
    """What a layer makes of this worker's nodes; NaN where no worker needs it."""

    rows: Tensor
    """[I, D] what it passes on; of the last layer the logits."""
    logits: Tensor | None
    """[I, C]; None where nobody wants them."""


@dataclass(frozen=True)
class Layers:
    """How the layers of a graph of some kind are run."""

    first: Callable[[Any, Sequence[Stage]], Any]
    """Makes what the first one reads, as LayerInput.first; a dataclass with `rows`."""
    run: Callable[..., Any]
    """As run_layer: what it returns has `rows`, the input of the next one, and `logits`."""


def each_layer(
    context: RunContext,
    stages: Sequence[Stage],
    layers: Layers,
    fit: Fit = lambda objective: None,
    *,
    output_heads: str = "validation",
) -> Iterator[Any]:
    """The outputs of the stages, one after the other; with output_heads=last only the last one's logits are made."""
    given = layers.first(context, stages)
    for layer, stage in enumerate(stages):
        output = layers.run(
            context, layer, stage, given, fit, logits=output_heads != "last" or stage.is_last
        )
        given = replace(given, rows=output.rows)
        yield output
        del output  # its logits may be of no more use while the next one is made


def run_layer(
    context: Context, layer: int, stage: Stage, given: LayerInput, fit: Fit, *, logits: bool = True
) -> LayerOutput:
    """Exchange, aggregate, `fit`, exchange, embed; logits: whether the stage's own are wanted."""
    context.clock.progress.at(layer)
    exchange = layer_exchange(context, layer, stage, given)
    with context.phase("exchange"):
        sources = exchange.run(TRAIN_PHASE)
    with context.phase("aggregate"):
        objective = make_layer_objective(context, layer, stage, given, sources)
    del sources
    fit(objective)
    return _embed(context, objective, given, exchange, logits)


LAYERS = Layers(LayerInput.first, run_layer)
"""Of plain graphs."""


def layer_exchange(context: Context, layer: int, stage: Stage, given: LayerInput) -> LayerExchange:
    """The exchange of one layer's input."""
    rows, scale = given.rows, context.source_scale(stage.conv)
    precision = PRECISIONS[context.settings.exchange.precision[layer]]
    if layer == 0 and context.halo_features is not None:
        unprojected = LocalRows.unprojected(rows, scale, precision)
        return KnownHaloExchange(
            context.plan, layer, unprojected, context.comm, context.halo_features
        )
    if not stage.conv.takes_projected or (
        layer == 0 and given.aggregate is not None
    ):  # which such a sum does not tell
        return LayerExchange(
            context.plan, layer, LocalRows.unprojected(rows, scale, precision), context.comm
        )

    @torch.no_grad()
    def project(rows: Matrix) -> Tensor:
        # Sparse products are supported on the CPU only.
        return stage.conv.project(
            rows if context.device.type == "cpu" else to_dense(rows).to(context.device)
        ).cpu()

    owned = LocalRows(rows, scale, project, stage.conv.projected_width, precision)
    return LayerExchange(context.plan, layer, owned, context.comm)


def make_layer_objective(
    context: Context, layer: int, stage: Stage, given: LayerInput, sources: Sources
) -> LayerObjective:
    """What the rounds of a layer train on."""
    if context.make_objective is not None:
        return context.make_objective(context, layer, stage, given, sources)

    def labelled(mask: Tensor) -> LabelledNodes:
        nodes = (mask & (context.plan.required_layers > context.plan.num_layers)).nonzero()[:, 0]
        return labelled_nodes(context, stage, nodes, given, sources)

    return LayerObjective(
        layer=layer,
        stage=stage,
        task=context.task,
        train=labelled(context.partition.train_mask),
        val=labelled(context.partition.val_mask),
        graph_info=context.graph_info,
        batch_size=context.batch_size,
        val_stride=context.val_stride,
    )


def labelled_nodes(
    context: Context, stage: Stage, nodes: Tensor, given: LayerInput, sources: Sources
) -> LabelledNodes:
    """Nodes whose inputs are made once; for attention or pooling over many edges, or with batches, in each round."""
    batch_size, labels = context.batch_size, context.labels[nodes]
    chunks = [nodes] if stage.conv.fixed_inputs else context.edges.chunks(nodes, EDGES_PER_STEP)
    if stage.conv.fixed_inputs or (len(chunks) <= 1 and batch_size is None):
        inputs = layer_inputs(context, stage, nodes, given, sources) if len(nodes) else None
        return LabelledNodes.from_inputs(nodes, labels, inputs, batch_size)
    ends = np.cumsum([len(chunk) for chunk in chunks]).tolist()
    ranges = tuple(slice(first, end) for first, end in pairwise([0, *ends]))
    edges = context.edges.number_sources(sources)
    return LabelledNodes(
        nodes,
        labels,
        lambda place: _block_inputs(context, stage, nodes[place], given, edges),
        ranges,
    )


def layer_inputs(
    context: Context, stage: Stage, nodes: Tensor, given: LayerInput, sources: Sources
) -> Inputs:
    """The input of a stage at some inner nodes, at least one."""
    conv, rows = stage.conv, given.rows
    if isinstance(conv, LinearConvolution) and not (
        context.device.type == "cpu" and given.has_sparse_rows
    ):
        accumulator = AggregateAccumulator(conv, context.edges, nodes, rows, None, context.device)
        accumulator.add(sources)
        return _complete(context, stage, nodes, given, accumulator.inputs())
    return _block_inputs(context, stage, nodes, given, context.edges.number_sources(sources))


def _block_inputs(
    context: Context, stage: Stage, nodes: Tensor, given: LayerInput, edges: NumberedEdges
) -> Inputs:
    """The same from the in-edges of the nodes, as a block."""
    block = edges.cut_block(nodes)
    unprojected, projected = (
        vectors.to(context.device)
        for vectors in gather_source_rows(block, given.rows, edges.sources)
    )
    inputs = stage.conv.prepare(block.to(context.device), unprojected, projected)
    return _complete(context, stage, nodes, given, inputs)


def _complete(
    context: Context, stage: Stage, nodes: Tensor, given: LayerInput, inputs: Inputs
) -> Inputs:
    """A convolution's inputs with the stage's skips, in the precision of the products."""
    if (
        given.aggregate is not None and given.rows is given.features
    ):  # the first layer; later ones read it
        given.aggregate[nodes] = to_dense(inputs.matrices[-1]).cpu()
    inputs = replace(inputs, skips=given.skips(stage, nodes, context.device))
    return inputs.to_bf16() if context.settings.compute.precision == "bf16" else inputs


@torch.no_grad()
def _embed(
    context: Context,
    objective: LayerObjective,
    given: LayerInput,
    exchange: LayerExchange,
    logits: bool,
) -> LayerOutput:
    """Exchange the remaining rows, then run the stage over all nodes that are needed, in evaluation mode."""
    stage, train, val = objective.stage, objective.train, objective.val
    stage.eval()
    others = context.plan.required_layers > objective.layer
    others[torch.cat((train.nodes, val.nodes))] = False
    nodes = others.nonzero()[:, 0]
    inputs_of = (
        _inputs_from_sums if isinstance(stage.conv, LinearConvolution) else _inputs_from_rows
    )(context, stage, nodes, given, exchange)
    with context.phase("embed"):
        both = logits and not stage.is_last  # the last one passes on its logits
        widths = stage.output_widths if both else stage.output_widths[:1]
        outputs = [given.rows.new_empty(len(given.rows), width) for width in widths]
        without = (context.plan.required_layers <= objective.layer).nonzero()[
            :, 0
        ]  # a mask looks at all values
        for output in outputs:
            output[without] = torch.nan
        labelled = (
            (part.nodes[place], part.inputs(place))
            for part in (train, val)
            for place in part.chunks
        )
        for some, inputs in chain(labelled, inputs_of):
            found = stage.outputs(inputs) if both else (stage.embed(inputs),)
            for output, values in zip(outputs, found, strict=True):
                output.numpy()[some.numpy()] = values.cpu().numpy()  # in half the time of torch
    return LayerOutput(outputs[0], outputs[-1] if logits else None)


def _inputs_from_sums(
    context: Context, stage: Stage, nodes: Tensor, given: LayerInput, exchange: LayerExchange
) -> Iterator[tuple[Tensor, Inputs]]:
    """Some nodes at a time with their inputs; what arrives from other workers is summed as it arrives."""
    conv, local, arriving = stage.conv, exchange.local, exchange.stream(INFER_PHASE)
    assert isinstance(conv, LinearConvolution)
    with context.phase("embed"):
        projected = local.projected if local.projected_width < given.rows.shape[1] else None
        read = (
            projected is None
            or conv.root_weight
            or "rows" in stage.skips
            or given.rows is context.features
        )
        if not read and exchange.sends_only_projected():
            local.release()
            given.rows = local.rows
        accumulator = AggregateAccumulator(
            conv, context.edges, nodes, given.rows, projected, context.device
        )
    while True:
        with context.phase("exchange"):
            sources = next(arriving, None)
        if sources is None:
            break
        with context.phase("embed"):
            accumulator.add(sources)
        del sources  # before the next ones come
    places = (slice(first, first + NODES_AT_ONCE) for first in range(0, len(nodes), NODES_AT_ONCE))
    return (
        (nodes[place], _complete(context, stage, nodes[place], given, accumulator.inputs(place)))
        for place in places
    )


def _inputs_from_rows(
    context: Context, stage: Stage, nodes: Tensor, given: LayerInput, exchange: LayerExchange
) -> Iterator[tuple[Tensor, Inputs]]:
    """The same for a convolution that needs its neighbours' rows."""
    with context.phase("exchange"):
        edges = context.edges.number_sources(exchange.run(INFER_PHASE))
    chunks = context.edges.chunks(nodes, EDGES_PER_STEP)
    return ((chunk, _block_inputs(context, stage, chunk, given, edges)) for chunk in chunks)
