"""A trained network as a torch module over one whole graph, which app=export writes.

The layers are the trained stages; the graph is a block whose destinations are all nodes. With
`edge_gates`, an explainer of PyG masks the messages; where torch.export traces, and with a mask,
messages are scattered (Block.scale).

N nodes (N_t of a type), E edges, F features, K edge features, C classes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from partitioning.errors import InputError
from partitioning.graph.graph_data import PLAIN_RELATION, PLAIN_TYPE, SEPARATOR, EdgeType
from retexo.models.aggregate import mean_at_destinations
from retexo.models.block import Block, make_block
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.matrix import as_matrix, matmul, to_dense
from retexo.models.network import Architecture, TypedLayer, projections
from retexo.models.relational import block_mean, relation_inputs
from retexo.models.stage import OutputHeads, Stage
from retexo.tasks.output_heads import average_heads, sum_powers
from retexo.trainers.label_propagation import (
    PathRelations,
    is_reached_by,
    make_aggregator,
    take_step,
)
from retexo.trainers.network_pass import Step

ALL = slice(None)
"""All rows, in their order."""


class GraphModule(nn.Module):
    """Common to plain and typed graphs."""

    stages: Any
    """The layers, an nn.ModuleList."""
    edge_gates: Any
    """By relation, modules that give the factors of messages; see `add_edge_gates`."""

    def __init__(
        self,
        architecture: Architecture,
        stages: Sequence[Any],
        heads: OutputHeads,
        weighted: Collection[EdgeType],
    ) -> None:
        """Make a module in evaluation mode, around the stages themselves.

        weighted: the relations that it was trained on with weights.
        """
        super().__init__()
        self.architecture, self.schema = architecture, architecture.schema
        self.stages = nn.ModuleList(stages)
        self.heads, self.weighted = heads, frozenset(weighted)
        self.edge_gates = nn.ModuleDict()
        self.eval()

    def predict(self, by_head: Sequence[Tensor], blocks: Mapping[EdgeType, Block]) -> Tensor:
        """Average the logits of the chosen heads, smooth and calibrate them: [N, C].

        by_head: [N, C] of the last layers; blocks: of each relation, without edge features.
        """
        start = average_heads(by_head, self.heads, len(self.stages))
        return self.heads.calibrate(self.smooth(start, blocks))

    def smooth(self, start: Tensor, blocks: Mapping[EdgeType, Block]) -> Tensor:
        """Label propagation (retexo.trainers.label_propagation) that starts from all nodes, [N, C].

        blocks: of each relation, without edge features.
        """
        paths = PathRelations.of(self.schema)
        if self.heads.alpha == 1 or not paths.leaving:
            return start
        conv = make_aggregator(self.schema)

        def hop(
            relations: frozenset[EdgeType], rows: Mapping[str, Tensor]
        ) -> Iterator[tuple[EdgeType, Tensor, Tensor]]:
            for relation in sorted(relations):
                block, sent = blocks[relation], rows[relation[0]]
                if self.schema.is_plain:
                    inputs = conv.prepare(block, sent.clone(), NO_PROJECTED_ROWS)
                    total = to_dense(inputs.matrices[-1])
                else:
                    total = block_mean(block, sent)
                yield relation, total, is_reached_by(conv, block.in_degree)

        powers = [start]
        for _ in range(self.heads.steps):
            powers.append(take_step(paths, powers[-1], powers[-1], hop))
        return sum_powers(powers, self.heads.alpha)

    def make_blocks(
        self,
        x: Mapping[str, Tensor],
        ends: Mapping[EdgeType, Tensor],
        weights: Mapping[EdgeType, Tensor | None],
        feat: Tensor | None = None,
    ) -> dict[EdgeType, Block]:
        """Return the block of each relation; InputError for wrong or missing weights.

        Args:
            x: features [N_t, F_t] by type.
            ends: int64 [2, E] by relation, source and destination.
            weights: [E] of relations that have them; None, or left out, for ones.
            feat: [E, K] of a plain graph, or None.
        """
        blocks, like = {}, x[self.schema.target]
        for relation in self.schema.relations:
            num_edges, weight = ends[relation].shape[1], weights.get(relation)
            self.check_weight(relation, weight, num_edges)
            blocks[relation] = make_block(
                ends[relation],
                (x[relation[0]].shape[0], x[relation[2]].shape[0]),
                same_type=relation[0] == relation[2],
                weight=weight,
                feat=feat,
                scale=self.scale_of(relation, num_edges, like),
                like=like,
            )
        return blocks

    def scale_of(self, relation: EdgeType, num_edges: int, like: Tensor) -> Tensor | None:
        """Return the factors [E] that an explainer gives the messages of a relation.

        None without an explainer.
        """
        name = SEPARATOR.join(relation)
        return self.edge_gates[name](num_edges, like) if name in self.edge_gates else None

    def check_weight(self, relation: EdgeType, weight: Tensor | None, num_edges: int) -> None:
        """Raise InputError for weights of a wrong shape, or if weights of training are missing."""
        of_relation = "" if relation == PLAIN_RELATION else f"_dict: {SEPARATOR.join(relation)}"
        if weight is None and relation in self.weighted:
            raise InputError(
                f"edge_weight{of_relation}: missing, and the network was trained on weights; give"
                f" [{num_edges}] weights, ones where each edge counts the same"
            )
        if weight is not None and (weight.ndim != 1 or weight.shape[0] != num_edges):
            raise InputError(
                f"edge_weight{of_relation}: has the shape {list(weight.shape)}; expected"
                f" [{num_edges}], a weight per edge"
            )


# --- plain graphs ----------


class PlainGraphModule(GraphModule):
    """A network of a plain graph.

    Its logits give the probabilities of `retexo.load(...).predict` by a softmax, or by a sigmoid
    with several labels; a regression's are in units of the targets' deviations. Of link prediction
    they are the embeddings.
    """

    def check_edge_data(self, num_edges: int, weight: Tensor | None, feat: Tensor | None) -> None:
        """Raise InputError unless weights and features have the form of the training graph's.

        With attention, a weight counts as one of the features that the network was trained on.
        """
        self.check_weight(PLAIN_RELATION, weight, num_edges)
        reads_weight = weight is not None and self.stages[0].conv.attention_heads > 0
        num_expected = self.architecture.num_edge_features - reads_weight
        shape = [0, 0] if feat is None else list(feat.shape)
        if shape[1:] != [num_expected] or (feat is not None and feat.shape[0] != num_edges):
            problem = "missing" if feat is None else f"has the shape {shape}"
            raise InputError(
                f"edge_attr: {problem}; the network was trained on {num_expected} features of an"
                f" edge and takes [{num_edges}, {num_expected}]"
            )

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        """Return the logits, [N, C].

        Args:
            x: features [N, F].
            edge_index: int64 [2, E], source and destination.
            edge_weight: [E]; None where the network was trained without weights.
            edge_attr: edge features [E, K], where the model reads them.

        Raises:
            InputError: weights or features are missing, or have another shape.
        """
        self.check_edge_data(edge_index.shape[1], edge_weight, edge_attr)
        blocks = self.make_blocks(
            {PLAIN_TYPE: x}, {PLAIN_RELATION: edge_index}, {PLAIN_RELATION: edge_weight}, edge_attr
        )
        block, read, by_head = blocks[PLAIN_RELATION], {"rows": x, "features": x}, []
        blocks = {PLAIN_RELATION: replace(block, edge_feat=None)}
        if any("edges" in stage.skips for stage in self.stages):
            read["edges"] = mean_edge_features(block, x.dtype)
        feat = self.stages[0].conv.read_edges(block.weight, block.edge_feat)
        block = replace(block, edge_feat=feat)
        for stage in self.stages:
            inputs = stage.conv.prepare(block, read["rows"].clone(), NO_PROJECTED_ROWS)
            if "aggregate" not in read:  # of the features
                read["aggregate"] = to_dense(inputs.matrices[-1])
            skips = tuple(as_matrix(read[name]) for name in stage.skips)
            read["rows"], logits = stage.outputs(replace(inputs, skips=skips))
            by_head.append(logits)
        return self.predict(by_head, blocks)


def mean_edge_features(block: Block, dtype: torch.dtype) -> Tensor:
    """Return the weighted mean of the in-edges' features, [N, K]; 0 without in-edges."""
    weight = block.weight
    if block.scale is not None:
        weight = block.scale if weight is None else weight * block.scale
    assert block.edge_feat is not None
    return mean_at_destinations(block.dst, block.edge_feat.to(dtype), weight, block.in_degree)


# --- typed graphs ----------


class TypedGraphModule(GraphModule):
    """A network of a heterogeneous graph: of the logits see PlainGraphModule."""

    def forward(
        self,
        x_dict: dict[str, Tensor],
        edge_index_dict: dict[Any, Tensor],
        edge_weight_dict: dict[Any, Tensor] | None = None,
    ) -> Tensor:
        """Return the logits of the target type, [N_t, C].

        Args:
            x_dict: features [N_t, F_t] of each type; [N_t, 0] of a type without features.
            edge_index_dict: int64 [2, E] of each relation, a tuple or, as files of torch.export
                need it, text: SOURCE__RELATION__DESTINATION.
            edge_weight_dict: [E] of the relations that the network was trained on with weights.

        Raises:
            InputError: weights are missing, or have another shape.
        """
        ends, weights = (
            {to_relation(key): by_relation[key] for key in by_relation}
            for by_relation in (edge_index_dict, edge_weight_dict or {})
        )
        blocks = self.make_blocks(x_dict, ends, weights)
        run = self._run_typed if isinstance(self.stages[0], TypedLayer) else self._run_layerwise
        return self.predict(run(x_dict, blocks), blocks)

    def _run_typed(
        self, x_dict: Mapping[str, Tensor], blocks: Mapping[EdgeType, Block]
    ) -> list[Tensor]:
        """Return the logits of a network that was trained end to end."""
        rows = {name: x_dict[name] for name, width in self.schema.widths.items() if width}
        num_rows = {name: x_dict[name].shape[0] for name in x_dict}
        for layer in self.stages:
            edges = {name: (block, ALL) for name, block in blocks.items() if name[0] in rows}
            step = Step(num_rows, edges=edges, own_rows=dict.fromkeys(rows, ALL))
            rows = {name: step.compute(name, stage, rows, rows) for name, stage in layer.by_type()}
        return [rows[self.schema.target]]

    def _run_layerwise(
        self, x_dict: Mapping[str, Tensor], blocks: Mapping[EdgeType, Block]
    ) -> list[Tensor]:
        """Return the logits of each head of a network that was trained by layers."""
        schema, target = self.schema, self.schema.target
        rows = {name: x_dict[name] for name in schema.types_with_rows(0)}
        own = (x_dict[target],) if schema.widths[target] else ()
        raw = [
            block_mean(blocks[relation], rows[relation[0]])
            for relation in schema.target_relations(0)
        ]
        by_head = []
        for layer, stage in enumerate(self.stages):
            linear = stage.conv.linear_aggregation
            into = schema.target_relations(layer) if layer or not linear else []
            first = raw if layer or linear else []
            read = [(blocks[relation], rows[relation[0]]) for relation in into]
            inputs = relation_inputs(stage.conv, read, x_dict[target].shape[0], own, first)
            by_head.append(stage.logits(inputs))
            rows = self._pass_rows(layer, stage, rows, blocks)
        return by_head

    def _pass_rows(
        self,
        layer: int,
        stage: Stage,
        rows: Mapping[str, Tensor],
        blocks: Mapping[EdgeType, Block],
    ) -> dict[str, Tensor]:
        """Return the rows q that types pass to the next layer (retexo.models.network)."""
        schema, weights = self.schema, projections(stage, self.schema, layer)
        widths = {name: values.shape[1] for name, values in rows.items()}
        columns = schema.passed_columns(layer, widths, stage.conv.projected_width)
        passed_widths = schema.passed_widths(layer, widths, stage.conv.projected_width)
        passed = {}
        for name in schema.passing_types(layer, self.architecture.model.depth):
            into = [relation for relation in schema.relations_into(name) if relation in columns]
            like = rows[into[0][0]]
            passed[name] = like.new_zeros(blocks[into[0]].num_dst, passed_widths[name])
            for relation in into:
                sent = rows[relation[0]]
                sent = matmul(sent, weights[relation[0]]) if relation[0] in weights else sent
                passed[name][:, columns[relation]] += block_mean(blocks[relation], sent)
        return passed


# --- making a module ----------


def make_module(
    architecture: Architecture,
    stages: Sequence[Any],
    heads: OutputHeads,
    weighted: Collection[EdgeType],
) -> PlainGraphModule | TypedGraphModule:
    """Return the module of a trained network; weighted: see GraphModule."""
    kind = PlainGraphModule if architecture.schema.is_plain else TypedGraphModule
    return kind(architecture, stages, heads, weighted)


def to_relation(key: EdgeType | str) -> EdgeType:
    """Return the relation of a key of a typed module's arguments."""
    source, name, to = key.split(SEPARATOR) if isinstance(key, str) else key
    return source, name, to


def make_arguments(
    x: Mapping[str, Tensor],
    ends: Mapping[EdgeType, Tensor],
    weights: Mapping[EdgeType, Tensor],
    feat: Tensor | None = None,
) -> tuple[Any, ...]:
    """Return the arguments of a module; those at the end that the graph has not are left out.

    As in GraphModule.make_blocks; feat: [E, K] as the network reads them, None without any.
    """
    arguments: tuple[Any, ...] = (x, ends, weights)
    if PLAIN_TYPE in x:
        arguments = (x[PLAIN_TYPE], ends[PLAIN_RELATION], weights.get(PLAIN_RELATION), feat)
    return arguments[: 4 if feat is not None else 3 if weights else 2]


def add_edge_gates(module: PlainGraphModule | TypedGraphModule) -> None:
    """Add a module per relation to `edge_gates`, by which explainers of PyG mask edges.

    An explainer looks for modules of the class MessagePassing and sets `explain` and a mask [E]
    there. A gate returns the mask, by which the messages are multiplied. PyG must be installed.
    """
    from torch_geometric.nn import MessagePassing

    class EdgeGate(MessagePassing):  # type: ignore[misc]
        """Factors [E] of messages that an explainer sets; None where nothing is explained."""

        def forward(self, num_edges: int, like: Tensor) -> Tensor | None:
            if not self.explain:
                return None
            ones = like.new_ones(num_edges, 1)
            return self.explain_message(ones, num_edges)[:, 0]  # type: ignore[no-any-return]

        def message(self, x_j: Tensor) -> Tensor:
            return x_j

    for relation in module.schema.relations:
        module.edge_gates[SEPARATOR.join(relation)] = EdgeGate()
