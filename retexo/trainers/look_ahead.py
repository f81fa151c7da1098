"""Look-ahead training: a layer trains together with the next one (model.lookahead).

A layer that trains for its own output head alone forgets what deeper layers need. So the loss of
layer l + 1 also trains layer l, whose own head reads a copy without gradient. Then layer l is
frozen, and layer l + 1 starts the next stage from its weights; the last layer ends by training
alone. With two layers the first stage is end-to-end training.

The next layer sums the outputs h of layer l over in-edges, of which some come from halo nodes. This
worker computes their output itself, in each round, from the *aggregate* A h of the layer before,
which its owner sends once per layer, before the rounds. So a layer costs one row for each halo
node, as without look-ahead; the first one costs two, the features and their aggregate.

I inner nodes, H halo nodes of this worker; n labelled nodes, and m nodes that these read, of which
they are the first; F input width, D hidden width, C classes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Self

import torch
from torch import Tensor, nn

from partitioning.graph.graph_data import PLAIN_TYPE
from retexo.exchange.boundary import INFER_PHASE
from retexo.exchange.coding.columns import choose_exponents
from retexo.exchange.layer_exchange import LayerExchange
from retexo.exchange.local_rows import LocalRows
from retexo.models.block import Block, NumberedEdges, Sources
from retexo.models.convolution import Inputs
from retexo.models.linear import NO_PROJECTED_ROWS, LinearConvolution
from retexo.models.matrix import Matrix, RowIndex, as_matrix, take_rows, to_dense
from retexo.models.stage import Stage
from retexo.rounds.objective import LabelledNodes, LayerObjective
from retexo.trainers import layerwise
from retexo.trainers.context import Context
from retexo.trainers.end_to_end import exchange_rows
from retexo.trainers.layerwise import NODES_PER_STEP, PRECISIONS, AnyLayerInput, LayerOutput


@dataclass(frozen=True, eq=False)
class LayerPairInputs:
    """Inputs of two consecutive layers at some labelled nodes."""

    block: Block
    """In-edges of the n nodes; its sources are the m nodes."""
    inputs: Inputs
    """Inputs of the first layer, at the m nodes."""
    skips: Mapping[str, Matrix]
    """Skip connections of the second layer, at the n nodes, without those of its own rows."""

    @property
    def all_matrices(self) -> tuple[Matrix, ...]:
        """Return what LayerPairObjective.first_weights are multiplied with."""
        return *self.inputs.all_matrices, *self.skips.values()


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerPairObjective(LayerObjective):
    """A layer and the following one on this worker's labelled nodes; inputs: LayerPairInputs."""

    following: Stage

    @cached_property
    def module(self) -> nn.Module:
        return nn.ModuleList((self.stage, self.following))

    @property
    def first_weights(self) -> tuple[nn.Parameter, ...]:
        of_skips = [weight for name, weight in self.following.skips.items() if name != "rows"]
        return *self.stage.first_weights, *of_skips

    def choose_batches(self) -> list[tuple[RowIndex, float]]:
        """Return batches as LayerObjective does, ascending, as blocks are cut."""
        return [
            (place.sort().values if isinstance(place, Tensor) else place, weight)
            for place, weight in super().choose_batches()
        ]

    def logits(self, inputs: LayerPairInputs) -> tuple[Tensor, Tensor]:
        """Return the logits [n, C] of the second layer, and of the first, its rows detached."""
        hidden = self.stage.hidden(inputs.inputs)
        own = hidden[: inputs.block.num_dst]
        # A copy, because sums may scale the rows in place.
        following = self.following.conv.prepare(inputs.block, hidden.clone(), NO_PROJECTED_ROWS)
        skips = (own if name == "rows" else inputs.skips[name] for name in self.following.skips)
        following = replace(following, skips=tuple(skips))
        if inputs.inputs.bf16:
            following = following.to_bf16()
        return self.following.logits(following), self.stage.classify(own.detach())


@dataclass(eq=False)
class LookAheadInput(AnyLayerInput):
    """A layer's input at this worker's inner nodes, then its halo nodes."""

    stages: Sequence[Stage]
    rows: Tensor
    """[I + H, F]; of halo nodes 0 where no worker needs it."""
    skips: dict[str, Matrix]
    """[I + H, ...] by name, the inputs of skip connections that all layers share: features, their
    aggregate, means of edge features."""
    aggregates: Tensor | None = None
    """[I + H, F] the aggregate of the rows, once it is known."""

    @classmethod
    def first(cls, context: Context, stages: Sequence[Stage]) -> Self:
        """Receive the features of halo nodes, and edge features where skips read them.

        Return the input of the first layer. All workers call it.
        """
        plan, features = context.plan, context.features
        received = context.known.get(0) or exchange_rows(context, plan, 0, features, None)
        rows, skips = torch.cat((features, _rows_of_halo(received))), {}
        names = {name for stage in stages for name in stage.skips}
        if "features" in names:
            skips["features"] = as_matrix(rows)
        if "edges" in names:
            assert context.target.edge_means is not None
            means = context.target.edge_means
            received = exchange_rows(context, plan, 1, means, None, traffic_layer=0)
            skips["edges"] = torch.cat((means, _rows_of_halo(received)))
        return cls(stages, rows, skips)

    def open_exchanges(
        self, context: Context, layer: int, stage: Stage
    ) -> dict[str, LayerExchange]:
        """Aggregate at the nodes that the layer computes; return the exchange of these aggregates.

        There is none for the last layer.
        """
        num_inner = len(context.plan.required_layers)
        self.aggregates = torch.zeros_like(self.rows)
        inner = self.aggregates[:num_inner]
        nodes = (context.plan.required_layers > layer).nonzero()[:, 0]
        if len(nodes):
            with context.phase("aggregate"), torch.no_grad():
                own, halo = self.rows[:num_inner], self.rows[num_inner:]
                edges = NumberedEdges(context.edges, Sources.of_halo(halo))
                inputs = layerwise.aggregate(context, stage.conv, nodes, own, edges)
                inner[nodes] = to_dense(inputs.matrices[-1]).cpu()
        if stage.is_last:
            return {}
        precision = PRECISIONS[context.settings.exchange.precision[layer]]
        local = LocalRows.unprojected(inner, None, precision)
        if layer == 0 and not context.plan.options.all_halo_rows:
            local.exponents = choose_exponents(inner, precision)
        exchange = LayerExchange(
            context.plan, layer + 1, local, context.comm, "aggregates", traffic_layer=layer
        )
        return {PLAIN_TYPE: exchange}

    def _receive(self, layer: int, received: Sources) -> None:
        """Keep the aggregates of halo nodes; skip connections read those of the features."""
        assert self.aggregates is not None
        halo = _rows_of_halo(received)
        self.aggregates[len(self.aggregates) - len(halo) :] = halo
        if layer == 0 and any("aggregate" in stage.skips for stage in self.stages):
            self.skips["aggregate"] = as_matrix(self.aggregates)

    def make_objective(
        self, context: Context, layer: int, stage: Stage, received: Mapping[str, Sources]
    ) -> LayerObjective:
        """Keep what was received.

        Return the objective of two layers, or of the last layer alone.
        """
        for sources in received.values():
            self._receive(layer, sources)
        if stage.is_last:

            def with_inputs(nodes: Tensor) -> LabelledNodes:
                return layerwise.label_nodes(
                    context, nodes, partial(self.inputs_at, context, stage)
                )

            alone = layerwise.make_layer_objective(context, layer, stage, with_inputs)
            # By the stage before, so the parameters before the first round may be the best ones.
            return replace(alone, starts_trained=layer > 0)
        following = self.stages[layer + 1]

        def with_pairs(nodes: Tensor) -> LabelledNodes:
            return self._label_pairs(context, stage, following, nodes)

        kind = partial(LayerPairObjective, following=following)
        return layerwise.make_layer_objective(context, layer, stage, with_pairs, kind)

    def inputs_at(self, context: Context, stage: Stage, nodes: Tensor) -> Inputs:
        """Return the input of a stage at nodes, int64 [n] local ids (inner, then halo nodes)."""
        conv, device = stage.conv, context.device
        assert self.aggregates is not None
        assert isinstance(conv, LinearConvolution)
        own = None
        if conv.root_weight or "rows" in stage.skips:
            own = self.rows[nodes].to(device)
        aggregates = as_matrix(self.aggregates[nodes].to(device))
        inputs = conv.inputs(own if conv.root_weight else None, aggregates, NO_PROJECTED_ROWS)
        skips = tuple(
            as_matrix(own)
            if name == "rows" and own is not None
            else self._skip(name, nodes, device)
            for name in stage.skips
        )
        inputs = replace(inputs, skips=skips)
        return inputs.to_bf16() if context.settings.compute.precision == "bf16" else inputs

    def _skip(self, name: str, nodes: Tensor, device: torch.device) -> Matrix:
        """Return what one skip connection reads at nodes by local id, int64 [n]."""
        rows = take_rows(self.skips[name], nodes)
        return rows.to(device) if isinstance(rows, Tensor) else rows

    def _label_pairs(
        self, context: Context, stage: Stage, following: Stage, nodes: Tensor
    ) -> LabelledNodes:
        """Return nodes, int64 [n] ascending, with their labels and inputs of both layers.

        The inputs of all nodes, or of every val_stride-th, are made once, those of a batch anew.
        """
        device, num_inner = context.device, len(context.plan.required_layers)
        edges = NumberedEdges(context.edges, Sources.of_halo(self.rows[num_inner:, :0]))

        def gather(place: RowIndex) -> LayerPairInputs:
            chosen = nodes[place]
            block = edges.cut_block(chosen)
            names = [name for name in following.skips if name != "rows"]
            skips = {name: self._skip(name, chosen, device) for name in names}
            inputs = self.inputs_at(context, stage, block.nodes)
            return LayerPairInputs(block.to(device), inputs, skips)

        @cache
        def gather_once(*bounds: int) -> LayerPairInputs:
            return gather(slice(*bounds))

        def inputs(place: RowIndex) -> LayerPairInputs:
            if isinstance(place, Tensor):
                return gather(place)
            return gather_once(*place.indices(len(nodes)))

        chunks = (slice(0, len(nodes)),) if len(nodes) else ()
        return LabelledNodes(nodes, context.labels[nodes], inputs, chunks)

    def exchange_rest(
        self,
        context: Context,
        objective: LayerObjective,
        exchanges: Mapping[str, LayerExchange],
        *,
        logits: bool,
    ) -> tuple[LayerOutput, Iterator[tuple[Tensor, Inputs]]]:
        """Receive the other aggregates.

        Return an empty output, and inputs for it (AnyLayerInput).
        """
        layer, stage = objective.layer, objective.stage
        needed = context.plan.required_layers > layer
        halo_needed = torch.zeros(context.plan.num_halo, dtype=torch.bool)
        for exchange in exchanges.values():
            with context.phase("exchange"):
                received = exchange.run(INFER_PHASE)
            self._receive(layer, received)
            halo_needed = received.unprojected.halo >= 0
        nodes = torch.cat((needed, halo_needed)).nonzero()[:, 0]
        pieces = torch.split(nodes, NODES_PER_STEP)
        output = LayerOutput.empty(stage, needed, self.rows, logits=logits)
        return output, ((piece, self.inputs_at(context, stage, piece)) for piece in pieces)

    def next_layer(self, output: LayerOutput) -> Self:
        """Return the input of the next layer."""
        return replace(self, rows=output.rows, aggregates=None)


def _rows_of_halo(received: Sources) -> Tensor:
    """Return the received rows of all halo nodes, [H, F]; 0 where a row was not received."""
    rows = received.unprojected
    all_rows = rows.values.new_zeros(len(rows.halo), rows.values.shape[1])
    known = rows.halo >= 0
    all_rows[known] = rows.values[rows.halo[known]]
    return all_rows
