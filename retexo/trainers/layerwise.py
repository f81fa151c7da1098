"""One layer at a time: exchange its input, aggregate, train it or not, exchange the rest, embed every node.

I inner nodes of this worker, F input width, D hidden width, C classes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import torch
from torch import Tensor

from retexo.exchange.coding.values import Precision
from retexo.exchange.layer_exchange import LayerExchange
from retexo.exchange.plan import INFER_WAVE, TRAIN_WAVE
from retexo.exchange.selection import LocalRows
from retexo.nn.accumulate import Accumulator
from retexo.nn.block import NumberedEdges, Sources, rows_of
from retexo.nn.convolution import Inputs
from retexo.nn.linear import LinearConvolution
from retexo.nn.matrix import Matrix, dense, is_sparse
from retexo.nn.stage import Stage
from retexo.trainers.context import Context
from retexo.training.objective import LabelledNodes, LayerObjective

EDGES_PER_STEP = 1 << 18
"""In-edges of nodes whose neighbours' rows go through the weights together, in each round."""
NODES_AT_ONCE = 1 << 14
"""Nodes whose sums go through the weights together; their rows take less than the C library maps anew each time."""
PRECISIONS: dict[str, Precision] = {"fp32": "full", "bf16": "bf16", "int8": "int8"}


@dataclass(frozen=True, eq=False)
class InferenceResult:
    """A trained network's output for this worker's nodes; NaN at nodes that no worker needs."""

    logits: Tensor
    """[I, C]"""
    embeddings: Tensor
    """[I, D] the input of the last layer; with one layer the features."""


def infer(context: Context, stages: list[Stage]) -> InferenceResult:
    """Run trained stages over the nodes that the plan requires.

    With the plan of a training run, and as many threads, the logits are those that it ended with, bit for bit: the same
    rows and sums are sent, and the same nodes go through a layer together. With a plan of one wave they differ by
    rounding.
    """
    rows = inputs = context.features
    for layer, stage in enumerate(stages):
        inputs = rows
        rows = run_layer(context, layer, stage, inputs, lambda objective: None)
    return InferenceResult(rows, inputs)


def run_layer(
    context: Context, layer: int, stage: Stage, rows: Tensor, fit: Callable[[LayerObjective], None]
) -> Tensor:
    """Exchange, aggregate, `fit`, exchange, embed: [I, F] -> [I, D], the logits for the last stage."""
    context.clock.progress.at(layer)
    exchange = layer_exchange(context, layer, stage, rows)
    with context.phase("exchange"):
        sources = exchange.run(TRAIN_WAVE)
    with context.phase("aggregate"):
        objective = make_layer_objective(context, layer, stage, rows, sources)
    del sources
    fit(objective)
    return _embed(context, objective, rows, exchange)


def layer_exchange(context: Context, layer: int, stage: Stage, rows: Tensor) -> LayerExchange:
    """The exchange of one layer's input, [I, F]."""

    @torch.no_grad()
    def project(rows: Matrix) -> Tensor:
        # Sparse products are supported on the CPU only.
        return stage.conv.project(rows if context.device.type == "cpu" else dense(rows).to(context.device)).cpu()

    scale = context.source_scale(stage.conv)
    owned = LocalRows(rows, scale, project, stage.conv.projected_width, PRECISIONS[context.settings.exchange.precision])
    return LayerExchange(context.plan, layer, owned, context.comm)


def make_layer_objective(context: Context, layer: int, stage: Stage, rows: Tensor, sources: Sources) -> LayerObjective:
    """What the rounds of a layer train on; rows are [I, F]."""

    def labelled(mask: Tensor) -> LabelledNodes:
        nodes = (mask & (context.plan.required_layers > context.plan.num_layers)).nonzero()[:, 0]
        return _labelled(context, stage, nodes, rows, sources)

    return LayerObjective(
        layer=layer,
        stage=stage,
        task=context.task,
        train=labelled(context.partition.train_mask),
        val=labelled(context.partition.val_mask),
        graph_info=context.graph_info,
        batch_size=context.settings.batch_size,
    )


def _labelled(context: Context, stage: Stage, nodes: Tensor, rows: Tensor, sources: Sources) -> LabelledNodes:
    """Nodes whose inputs are made once; for attention or pooling over many edges, or with batches, in each round."""
    batch_size, labels = context.settings.batch_size, context.labels[nodes]
    chunks = [nodes] if stage.conv.linear_aggregation else context.edges.chunks(nodes, EDGES_PER_STEP)
    if stage.conv.linear_aggregation or (len(chunks) <= 1 and batch_size is None):
        return LabelledNodes.of(
            nodes, labels, layer_inputs(context, stage, nodes, rows, sources) if len(nodes) else None, batch_size
        )
    ends = np.cumsum([len(chunk) for chunk in chunks]).tolist()
    ranges = tuple(slice(first, end) for first, end in pairwise([0, *ends]))
    edges = context.edges.numbered(sources)
    return LabelledNodes(nodes, labels, lambda place: _block_inputs(context, stage, nodes[place], rows, edges), ranges)


def layer_inputs(context: Context, stage: Stage, nodes: Tensor, rows: Tensor, sources: Sources) -> Inputs:
    """The input of a layer's convolution at some inner nodes, at least one; rows are [I, F]."""
    conv = stage.conv
    if isinstance(conv, LinearConvolution) and not (context.device.type == "cpu" and is_sparse(rows)):
        accumulator = Accumulator(conv, context.edges, nodes, rows, None, context.device)
        accumulator.add(sources)
        return _rounded(context, accumulator.inputs())
    return _block_inputs(context, stage, nodes, rows, context.edges.numbered(sources))


def _block_inputs(context: Context, stage: Stage, nodes: Tensor, rows: Tensor, edges: NumberedEdges) -> Inputs:
    """The same from the in-edges of the nodes, as a block."""
    block = edges.block(nodes)
    unprojected, projected = (vectors.to(context.device) for vectors in rows_of(block, rows, edges.sources))
    return _rounded(context, stage.conv.prepare(block.to(context.device), unprojected, projected))


def _rounded(context: Context, inputs: Inputs) -> Inputs:
    return inputs.in_bf16() if context.settings.compute.precision == "bf16" else inputs


@torch.no_grad()
def _embed(context: Context, objective: LayerObjective, rows: Tensor, exchange: LayerExchange) -> Tensor:
    """Exchange the remaining rows, then [I, F] -> [I, D] in evaluation mode; NaN where no worker needs it.

    For the last stage these are the logits.
    """
    stage, train, val = objective.stage, objective.train, objective.val
    stage.eval()
    others = context.plan.required_layers > objective.layer
    others[torch.cat((train.nodes, val.nodes))] = False
    nodes = others.nonzero()[:, 0]
    inputs_of = (_inputs_from_sums if isinstance(stage.conv, LinearConvolution) else _inputs_from_rows)(
        context, stage, nodes, rows, exchange
    )
    with context.phase("embed"):
        embedded = torch.full((len(rows), stage.output_dim), torch.nan, dtype=rows.dtype)
        labelled = ((part.nodes[place], part.inputs(place)) for part in (train, val) for place in part.chunks)
        for some, inputs in chain(labelled, inputs_of):
            embedded[some] = stage.embed(inputs).cpu()
    return embedded


def _inputs_from_sums(
    context: Context, stage: Stage, nodes: Tensor, rows: Tensor, exchange: LayerExchange
) -> Iterator[tuple[Tensor, Inputs]]:
    """Some nodes at a time with their inputs; what arrives from other workers is summed as it arrives."""
    conv = stage.conv
    assert isinstance(conv, LinearConvolution)
    with context.phase("embed"):
        projected = exchange.local.projected if conv.projected_width < rows.shape[1] else None
        accumulator = Accumulator(conv, context.edges, nodes, rows, projected, context.device)
    arriving = exchange.stream(INFER_WAVE)
    while True:
        with context.phase("exchange"):
            sources = next(arriving, None)
        if sources is None:
            break
        with context.phase("embed"):
            accumulator.add(sources)
        del sources  # before the next ones come
    places = (slice(first, first + NODES_AT_ONCE) for first in range(0, len(nodes), NODES_AT_ONCE))
    return ((nodes[place], _rounded(context, accumulator.inputs(place))) for place in places)


def _inputs_from_rows(
    context: Context, stage: Stage, nodes: Tensor, rows: Tensor, exchange: LayerExchange
) -> Iterator[tuple[Tensor, Inputs]]:
    """The same for a convolution that needs its neighbours' rows."""
    with context.phase("exchange"):
        edges = context.edges.numbered(exchange.run(INFER_WAVE))
    chunks = context.edges.chunks(nodes, EDGES_PER_STEP)
    return ((chunk, _block_inputs(context, stage, chunk, rows, edges)) for chunk in chunks)
