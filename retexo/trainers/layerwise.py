"""One layer of a plain graph: exchange its input, aggregate, train, exchange the rest, embed.

retexo.trainers.relational_layers has the layers of heterogeneous graphs. I inner nodes of this
worker, F input width, D hidden width, C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from partitioning.graph.graph_data import PLAIN_TYPE
from retexo.codecs import ROWS
from retexo.exchange.boundary import INFER_PHASE, TRAIN_PHASE
from retexo.exchange.coding.values import Precision
from retexo.exchange.layer_exchange import LayerExchange
from retexo.exchange.local_rows import LocalRows
from retexo.models.block import NumberedEdges, Sources, gather_source_rows
from retexo.models.convolution import Convolution, Inputs
from retexo.models.linear import LinearConvolution
from retexo.models.matrix import Matrix, as_matrix, is_sparse, to_dense
from retexo.models.stage import Stage
from retexo.models.streaming_aggregate import AggregateAccumulator
from retexo.rounds.objective import LabelledNodes, LayerObjective
from retexo.trainers.context import Context, return_freed_memory

EDGES_PER_STEP = 1 << 18
"""In-edges of nodes whose neighbours' rows are multiplied with the weights at once, every round."""
NODES_PER_STEP = 1 << 14
"""Nodes whose sums are multiplied with the weights together; their rows are smaller than what the C
library maps anew each time."""
Fit = Callable[[LayerObjective], None]
"""Trains a layer, or leaves it as it is."""
PRECISIONS: dict[str, Precision] = {
    name: name if codec.dtype else "full" for name, codec in ROWS.items()
}


class AnyLayerInput(ABC):
    """A layer's input on this worker: alone, with look-ahead, or in a heterogeneous graph."""

    @abstractmethod
    def open_exchanges(
        self, context: Context, layer: int, stage: Stage
    ) -> dict[str, LayerExchange]:
        """Return the exchange of each type's rows."""

    @abstractmethod
    def make_objective(
        self, context: Context, layer: int, stage: Stage, received: Mapping[str, Sources]
    ) -> Any:
        """Return what the rounds of the layer train on, a retexo.rounds.objective.Objective.

        received: by type, the rows of TRAIN_PHASE.
        """

    @abstractmethod
    def exchange_rest(
        self,
        context: Context,
        objective: LayerObjective,
        exchanges: Mapping[str, LayerExchange],
        *,
        logits: bool,
    ) -> tuple[Any, Iterator[tuple[Tensor, Inputs]]]:
        """Exchange the remaining rows.

        Returns:
            The output without values: `rows`, the next layer's input; `logits`, [I, C], None where
                they are not needed; `write`, which takes nodes, int64 [n], their inputs, and what
                the stage returned for them: Stage.outputs, or of it the first.
            All nodes that need the stage's output with their inputs, some at a time.
        """

    @torch.no_grad()
    def embed_nodes(
        self,
        context: Context,
        objective: LayerObjective,
        exchanges: Mapping[str, LayerExchange],
        *,
        logits: bool,
    ) -> Any:
        """Exchange the remaining rows and run the stage over all nodes that are needed.

        Return the layer's output.
        """
        stage = objective.stage.eval()
        output, pieces = self.exchange_rest(context, objective, exchanges, logits=logits)
        with context.phase("embed"):
            for nodes, inputs in pieces:
                # The last stage's output is its logits.
                both = output.logits is not None and not stage.is_last
                output.write(
                    nodes, inputs, stage.outputs(inputs) if both else (stage.embed(inputs),)
                )
        return output

    def next_layer(self, output: Any) -> Self:
        """Return the input of the next layer; output: of embed_nodes."""
        return replace(self, rows=output.rows)  # type: ignore[type-var]


def run_layer(
    context: Context,
    layer: int,
    stage: Stage,
    layer_input: AnyLayerInput,
    fit: Fit = lambda objective: None,
    *,
    logits: bool = True,
) -> Any:
    """Exchange, aggregate, `fit`, exchange, embed; return the layer's output (AnyLayerInput).

    All workers call it. The stage ends in evaluation mode; rows of `layer_input` that nothing reads
    any more may be replaced by NaN.

    Args:
        fit: Trains the objective; by default nothing.
        logits: Whether the stage's own are needed.
    """
    context.clock.progress.set_round(layer)
    exchanges = layer_input.open_exchanges(context, layer, stage)
    with context.phase("exchange"):
        received = {name: exchange.run(TRAIN_PHASE) for name, exchange in exchanges.items()}
    with context.phase("aggregate"):
        objective = layer_input.make_objective(context, layer, stage, received)
    del received
    fit(objective)
    return_freed_memory()
    return layer_input.embed_nodes(context, objective, exchanges, logits=logits)


def make_layer_objective(
    context: Context,
    layer: int,
    stage: Stage,
    with_inputs: Callable[[Tensor], LabelledNodes],
    kind: Callable[..., LayerObjective] = LayerObjective,
) -> LayerObjective:
    """Return the objective of a layer's rounds.

    with_inputs: returns nodes, int64 [n], with their inputs and labels.
    """
    return kind(
        layer=layer,
        stage=stage,
        task=context.task,
        train=with_inputs(context.nodes_in_rounds(context.partition.train_mask)),
        val=with_inputs(context.nodes_in_rounds(context.partition.val_mask)),
        graph_info=context.graph_info,
        batch_size=context.batch_size,
        val_stride=context.val_stride,
    )


def label_nodes(
    context: Context,
    nodes: Tensor,
    inputs_of: Callable[[Tensor], Inputs],
    chunks: Sequence[Tensor] | None = None,
) -> LabelledNodes:
    """Return nodes, int64 [n], with their labels and inputs, which `inputs_of` makes.

    chunks: of the nodes, whose inputs are made again in each round; None to make all inputs once.
    """
    labels = context.labels[nodes]
    if chunks is None:
        inputs = inputs_of(nodes) if len(nodes) else None
        return LabelledNodes.from_inputs(nodes, labels, inputs, context.batch_size)
    ends = np.cumsum([len(chunk) for chunk in chunks]).tolist()
    ranges = tuple(slice(first, end) for first, end in pairwise([0, *ends]))
    return LabelledNodes(nodes, labels, lambda place: inputs_of(nodes[place]), ranges)


def find_other_nodes(objective: LayerObjective, required_layers: Tensor) -> Tensor:
    """Return the nodes that need the layer's output but are not in its rounds, int64 [n].

    required_layers: [I] number of layers whose output each node needs.
    """
    others = required_layers > objective.layer
    others[torch.cat((objective.train.nodes, objective.val.nodes))] = False
    return others.nonzero()[:, 0]


@dataclass(frozen=True, eq=False)
class LayerOutput:
    """A layer's output at this worker's nodes; NaN at inner nodes where no worker needs it."""

    rows: Tensor
    """[I, D] the next layer's input; of the last layer the logits. With look-ahead [I + H, D], 0 at
    halo nodes that are not needed."""
    logits: Tensor | None
    """[I, C]; None where they are not needed."""

    @classmethod
    def empty(cls, stage: Stage, needed: Tensor, like: Tensor, *, logits: bool) -> Self:
        """Make the output of a stage at the needed nodes, bool [I], without values.

        like: the layer's input, of inner nodes or of inner and halo nodes.
        """
        rows = like.new_empty(len(like), stage.output_dim)
        rows[len(needed) :] = 0
        of_head = rows[: len(needed)]  # the last stage's output is its logits
        if logits and not stage.is_last:
            of_head = like.new_empty(len(needed), stage.output_widths[1])
        # Setting rows by index is faster than by a mask, which looks at all values.
        unneeded = (~needed).nonzero()[:, 0]
        for output in (rows, of_head):
            output[unneeded] = torch.nan
        return cls(rows, of_head if logits else None)

    def write(self, nodes: Tensor, inputs: Inputs, outputs: Sequence[Tensor]) -> None:
        """Write the outputs of inner, then of halo nodes, int64 [n] (exchange_rest), in place."""
        tables = [self.rows, self.logits][: len(outputs)]
        for table, values in zip(tables, outputs, strict=True):
            assert table is not None
            count = int((nodes < len(table)).sum())
            # NumPy takes half of torch's time.
            table.numpy()[nodes[:count].numpy()] = values[:count].cpu().numpy()


@dataclass(eq=False)
class LayerInput(AnyLayerInput):
    """A layer's input at this worker's nodes."""

    rows: Tensor
    """[I, F] the output of the layer before, or the features; NaN once they are released."""
    features: Tensor | None = None
    """[I, F], for skip connections; None where no stage reads them."""
    aggregate: Tensor | None = None
    """[I, F] the first layer's aggregate of the features, likewise; that layer fills it in."""
    edges: Tensor | None = None
    """[I, K] means of the in-edges' features, likewise."""

    @classmethod
    def first(cls, context: Context, stages: Sequence[Any]) -> Self:
        """Return the input of the first layer."""
        read, features = {name for stage in stages for name in stage.skips}, context.features
        return cls(
            features,
            features if "features" in read else None,
            torch.zeros_like(features) if "aggregate" in read else None,
            context.target.edge_means if "edges" in read else None,
        )

    def skip(self, name: str, nodes: Tensor, device: torch.device) -> Matrix:
        """Return what a skip connection, named as a field here, reads at nodes, int64 [n]."""
        return as_matrix(getattr(self, name)[nodes].to(device))

    def open_exchanges(
        self, context: Context, layer: int, stage: Stage
    ) -> dict[str, LayerExchange]:
        """Return the exchange of the layer's input rows, by the only node type."""
        conv, scale = stage.conv, context.source_scale(stage.conv)
        precision = PRECISIONS[context.settings.exchange.precision[layer]]
        # Blocks of convolutions that need their neighbours' rows are cut on the host.
        device = context.device if isinstance(conv, LinearConvolution) else torch.device("cpu")
        local = LocalRows.unprojected(self.rows, scale, precision, device)
        known = context.known.get(layer)
        keeps_aggregate = layer == 0 and self.aggregate is not None  # of rows without weights
        if known is None and not (keeps_aggregate or conv.reads_relations):

            @torch.no_grad()
            def project(rows: Matrix) -> Tensor:
                # Sparse products are supported on the CPU only.
                on_device = context.device.type == "cpu"
                return conv.project(rows if on_device else to_dense(rows).to(context.device))

            width = conv.projected_width
            local = LocalRows(self.rows, scale, project, width, precision, device=device)
        return {PLAIN_TYPE: LayerExchange(context.plan, layer, local, context.comm, known=known)}

    def make_objective(
        self, context: Context, layer: int, stage: Stage, received: Mapping[str, Sources]
    ) -> LayerObjective:
        """Return the objective that the rounds train: the stage on the labelled nodes.

        received: by type, the rows of TRAIN_PHASE.
        """
        if context.make_objective is not None:
            return context.make_objective(context, layer, stage, self, received[PLAIN_TYPE])

        def with_inputs(nodes: Tensor) -> LabelledNodes:
            return labelled_nodes(context, stage, nodes, self, received[PLAIN_TYPE])

        return make_layer_objective(context, layer, stage, with_inputs)

    def exchange_rest(
        self,
        context: Context,
        objective: LayerObjective,
        exchanges: Mapping[str, LayerExchange],
        *,
        logits: bool,
    ) -> tuple[LayerOutput, Iterator[tuple[Tensor, Inputs]]]:
        """Exchange the remaining rows.

        Return an empty output, and inputs for it (AnyLayerInput).
        """
        stage, required = objective.stage, context.plan.required_layers
        nodes = find_other_nodes(objective, required)
        is_linear = isinstance(stage.conv, LinearConvolution)
        others = (_inputs_from_sums if is_linear else _inputs_from_rows)(
            context, stage, nodes, self, exchanges[PLAIN_TYPE]
        )
        with context.phase("embed"):
            needed = required > objective.layer
            output = LayerOutput.empty(stage, needed, self.rows, logits=logits)
        return output, chain(objective.labelled_inputs(), others)


def labelled_nodes(
    context: Context, stage: Stage, nodes: Tensor, layer_input: LayerInput, sources: Sources
) -> LabelledNodes:
    """Return nodes with their labels and inputs.

    The inputs are made once where that is possible; attention and pooling over many edges, or in
    batches, make them in each round.
    """
    edges, chunks = NumberedEdges(context.edges, sources), None
    if not stage.conv.fixed_inputs:
        chunks = context.edges.chunks(nodes, EDGES_PER_STEP)
        if len(chunks) <= 1 and context.batch_size is None:
            chunks = None

    def inputs_of(some: Tensor) -> Inputs:
        return layer_inputs(context, stage, some, layer_input, edges)

    return label_nodes(context, nodes, inputs_of, chunks)


def layer_inputs(
    context: Context, stage: Stage, nodes: Tensor, layer_input: LayerInput, edges: NumberedEdges
) -> Inputs:
    """Return the input of a stage at some inner nodes, at least one.

    In the first layer it also fills in `layer_input.aggregate`, if any.
    """
    inputs = aggregate(context, stage.conv, nodes, layer_input.rows, edges)
    return _add_skips(context, stage, nodes, layer_input, inputs)


def aggregate(
    context: Context, conv: Convolution, nodes: Tensor, rows: Tensor, edges: NumberedEdges
) -> Inputs:
    """Return the input of a convolution at some inner nodes, at least one.

    Args:
        context: of this worker.
        conv: the convolution.
        nodes: int64 [n]
        rows: [I, F] of this worker's inner nodes.
        edges: with the received vectors.
    """
    sums_sparse = context.device.type == "cpu" and is_sparse(rows)
    if isinstance(conv, LinearConvolution) and not sums_sparse:
        accumulator = AggregateAccumulator(conv, context.edges, nodes, rows, None, context.device)
        accumulator.add(edges.sources)
        return accumulator.inputs()
    block = edges.cut_block(nodes)
    unprojected, projected = (
        vectors.to(context.device) for vectors in gather_source_rows(block, rows, edges.sources)
    )
    return conv.prepare(block.to(context.device), unprojected, projected)


def _add_skips(
    context: Context, stage: Stage, nodes: Tensor, layer_input: LayerInput, inputs: Inputs
) -> Inputs:
    """Return a convolution's inputs with those of the skip connections, in their precision.

    In the first layer also store the aggregate in `layer_input`.
    """
    if (
        layer_input.aggregate is not None and layer_input.rows is layer_input.features
    ):  # the first layer
        layer_input.aggregate[nodes] = to_dense(inputs.matrices[-1]).cpu()
    skips = tuple(layer_input.skip(name, nodes, context.device) for name in stage.skips)
    inputs = replace(inputs, skips=skips)
    return inputs.to_bf16() if context.settings.compute.precision == "bf16" else inputs


def _inputs_from_sums(
    context: Context, stage: Stage, nodes: Tensor, layer_input: LayerInput, exchange: LayerExchange
) -> Iterator[tuple[Tensor, Inputs]]:
    """Yield some nodes at a time with their inputs.

    Rows and sums from other workers are added to the aggregates as they arrive, before the first
    nodes are yielded. Rows of `layer_input` that nothing reads any more become NaN.
    """
    conv, local = stage.conv, exchange.local
    assert isinstance(conv, LinearConvolution)
    with context.phase("embed"):
        projected = local.projected if local.projected_width < layer_input.rows.shape[1] else None
        read = (
            projected is None
            or conv.root_weight
            or "rows" in stage.skips
            or layer_input.rows is context.features
        )
        if not read and exchange.sends_only_projected():
            local.release()
            layer_input.rows = local.rows
        accumulator = AggregateAccumulator(
            conv, context.edges, nodes, layer_input.rows, projected, context.device
        )
    add_arriving(context, exchange, [accumulator.add])
    return_freed_memory()
    places = (
        slice(first, first + NODES_PER_STEP) for first in range(0, len(nodes), NODES_PER_STEP)
    )
    return (
        (
            nodes[place],
            _add_skips(context, stage, nodes[place], layer_input, accumulator.inputs(place)),
        )
        for place in places
    )


def add_arriving(
    context: Context, exchange: LayerExchange, sums: Sequence[Callable[[Sources], None]]
) -> None:
    """Add the vectors received before and in INFER_PHASE to sums, a piece at a time.

    All workers call it.
    """
    arriving = exchange.stream()
    while True:
        with context.phase("exchange"):
            sources = next(arriving, None)
        if sources is None:
            return
        with context.phase("embed"):
            for add in sums:
                add(sources)
        del sources  # before the next ones arrive


def _inputs_from_rows(
    context: Context, stage: Stage, nodes: Tensor, layer_input: LayerInput, exchange: LayerExchange
) -> Iterator[tuple[Tensor, Inputs]]:
    """Run INFER_PHASE at once; then yield some nodes at a time, int64 [n], with their inputs.

    For convolutions that need all rows. All workers call it.
    """
    with context.phase("exchange"):
        edges = NumberedEdges(context.edges, exchange.run(INFER_PHASE))
    chunks = context.edges.chunks(nodes, EDGES_PER_STEP)
    return ((chunk, layer_inputs(context, stage, chunk, layer_input, edges)) for chunk in chunks)
