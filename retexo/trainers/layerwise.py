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
from retexo.exchange.plan import EMBED, ROUNDS
from retexo.exchange.selection import LocalRows
from retexo.nn.accumulate import Accumulator
from retexo.nn.block import NumberedEdges, Sources, rows_of
from retexo.nn.convolution import Inputs
from retexo.nn.linear import SumConvolution
from retexo.nn.matrix import Matrix, dense, is_sparse
from retexo.nn.stage import Stage
from retexo.trainers.context import Context
from retexo.training.objective import LabelledNodes, LayerTask

EDGES_A_STEP = 1 << 18
"""In-edges of nodes whose neighbours' rows go through the weights together, in each round."""

NODES_AT_ONCE = 1 << 14
"""Nodes whose sums go through the weights together; their rows take less than the C library maps anew each time."""

PRECISIONS: dict[str, Precision] = {"fp32": "full", "bf16": "bf16", "int8": "int8"}


@dataclass(frozen=True, eq=False)
class InferenceResult:
    """What a trained network makes of this worker's nodes; NaN at nodes that nobody needs."""

    logits: Tensor
    """[I, C]"""
    embeddings: Tensor
    """[I, D] the input of the last layer; of a network of one layer the features."""


def infer(context: Context, stages: list[Stage]) -> InferenceResult:
    """Run trained stages over the graph; what is needed of it, the plan says.

    With the plan of a training run, and as many threads, the logits are those that it ended with, bit for bit: the same
    rows and sums are sent, and the same nodes go through a layer together. In one wave others are.
    """
    rows = inputs = context.features
    for layer, stage in enumerate(stages):
        inputs = rows
        rows = run_layer(context, layer, stage, inputs, lambda layer_task: None)
    return InferenceResult(rows, inputs)


def run_layer(context: Context, layer: int, stage: Stage, rows: Tensor, learn: Callable[[LayerTask], None]) -> Tensor:
    """Exchange, aggregate, `learn`, exchange, embed: [I, F] -> [I, D], of the last stage the logits."""
    context.clock.progress.at(layer)
    exchange = layer_exchange(context, layer, stage, rows)
    with context.phase("exchange"):
        sources = exchange.run(ROUNDS)
    with context.phase("aggregate"):
        layer_task = make_layer_task(context, layer, stage, rows, sources)
    del sources
    learn(layer_task)
    return _embed(context, layer_task, rows, exchange)


def layer_exchange(context: Context, layer: int, stage: Stage, rows: Tensor) -> LayerExchange:
    """The exchange of one layer's input, [I, F]."""

    @torch.no_grad()
    def project(rows: Matrix) -> Tensor:
        # Sparse products are for the CPU.
        return stage.conv.project(rows if context.device.type == "cpu" else dense(rows).to(context.device)).cpu()

    scale = context.source_scale(stage.conv)
    owned = LocalRows(rows, scale, project, stage.conv.projected_width, PRECISIONS[context.settings.exchange.precision])
    return LayerExchange(context.plan, layer, owned, context.comm)


def make_layer_task(context: Context, layer: int, stage: Stage, rows: Tensor, sources: Sources) -> LayerTask:
    """What the rounds of a layer work on, if there are rounds; rows are [I, F]."""

    def labelled(mask: Tensor) -> LabelledNodes:
        nodes = (mask & (context.plan.required_layers > context.plan.num_layers)).nonzero()[:, 0]
        return _labelled(context, stage, nodes, rows, sources)

    return LayerTask(
        layer=layer,
        stage=stage,
        task=context.task,
        train=labelled(context.partition.train_mask),
        val=labelled(context.partition.val_mask),
        totals=context.totals,
        batch_size=context.settings.batch_size,
    )


def _labelled(context: Context, stage: Stage, nodes: Tensor, rows: Tensor, sources: Sources) -> LabelledNodes:
    """Inputs are made once; but those of an attention or a pooling over many edges, or over batches, each time."""
    batch_size, labels = context.settings.batch_size, context.labels[nodes]
    chunks = [nodes] if stage.conv.sums_neighbours else context.edges.chunks(nodes, EDGES_A_STEP)
    if stage.conv.sums_neighbours or (len(chunks) <= 1 and batch_size is None):
        return LabelledNodes.of(
            nodes, labels, layer_inputs(context, stage, nodes, rows, sources) if len(nodes) else None, batch_size
        )
    ends = np.cumsum([len(chunk) for chunk in chunks]).tolist()
    pieces = tuple(slice(first, end) for first, end in pairwise([0, *ends]))
    edges = context.edges.numbered(sources)
    return LabelledNodes(nodes, labels, lambda place: _neighbourhood(context, stage, nodes[place], rows, edges), pieces)


def layer_inputs(context: Context, stage: Stage, nodes: Tensor, rows: Tensor, sources: Sources) -> Inputs:
    """The input of a layer's convolution at some inner nodes, at least one; rows are [I, F]."""
    conv = stage.conv
    if isinstance(conv, SumConvolution) and not (context.device.type == "cpu" and is_sparse(rows)):
        accumulator = Accumulator(conv, context.edges, nodes, rows, None, context.device)
        accumulator.add(sources)
        return _rounded(context, accumulator.inputs())
    return _neighbourhood(context, stage, nodes, rows, context.edges.numbered(sources))


def _neighbourhood(context: Context, stage: Stage, nodes: Tensor, rows: Tensor, edges: NumberedEdges) -> Inputs:
    """The same by way of a block."""
    block = edges.block(nodes)
    unprojected, projected = (vectors.to(context.device) for vectors in rows_of(block, rows, edges.sources))
    return _rounded(context, stage.conv.prepare(block.to(context.device), unprojected, projected))


def _rounded(context: Context, inputs: Inputs) -> Inputs:
    return inputs.in_bf16() if context.settings.compute.precision == "bf16" else inputs


@torch.no_grad()
def _embed(context: Context, layer_task: LayerTask, rows: Tensor, exchange: LayerExchange) -> Tensor:
    """Exchange what is left, then [I, F] -> [I, D] in evaluation mode, NaN where nobody needs it; of the last stage the
    logits."""
    stage, train, val = layer_task.stage, layer_task.train, layer_task.val
    stage.eval()
    others = context.plan.required_layers > layer_task.layer
    others[torch.cat((train.nodes, val.nodes))] = False
    nodes = others.nonzero()[:, 0]
    inputs_of = (_sums if isinstance(stage.conv, SumConvolution) else _neighbourhoods)(
        context, stage, nodes, rows, exchange
    )
    with context.phase("embed"):
        embedded = torch.full((len(rows), stage.output_dim), torch.nan, dtype=rows.dtype)
        labelled = ((part.nodes[place], part.inputs(place)) for part in (train, val) for place in part.pieces)
        for some, inputs in chain(labelled, inputs_of):
            embedded[some] = stage.embed(inputs).cpu()
    return embedded


def _sums(
    context: Context, stage: Stage, nodes: Tensor, rows: Tensor, exchange: LayerExchange
) -> Iterator[tuple[Tensor, Inputs]]:
    """Nodes, some at a time, with their inputs; what comes from other workers is added up as it comes."""
    conv = stage.conv
    assert isinstance(conv, SumConvolution)
    with context.phase("embed"):
        projected = exchange.owned.projected if conv.projected_width < rows.shape[1] else None
        accumulator = Accumulator(conv, context.edges, nodes, rows, projected, context.device)
    arriving = exchange.stream(EMBED)
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


def _neighbourhoods(
    context: Context, stage: Stage, nodes: Tensor, rows: Tensor, exchange: LayerExchange
) -> Iterator[tuple[Tensor, Inputs]]:
    """The same for a convolution that needs its neighbours' rows."""
    with context.phase("exchange"):
        edges = context.edges.numbered(exchange.run(EMBED))
    chunks = context.edges.chunks(nodes, EDGES_A_STEP)
    return ((chunk, _neighbourhood(context, stage, chunk, rows, edges)) for chunk in chunks)
