"""A graph in memory as the only part of a run, with the rows of each layer, and new nodes of it.

A new node changes only the nodes that its edges reach: after l layers those within l hops of a new
edge, and with GCN those that share a neighbour whose out-degree grew. These are a small part whose
halo nodes' rows are known in every layer, so only they are computed again. Label propagation, a
typed graph and most nodes of a graph are computed as a whole. The result is that of the whole grown
graph, up to rounding.

N nodes, n new ones, E edges, I nodes of the small part, H of its halo, F width of rows, C classes.
"""

import logging
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partitioning.directory.partition import PartEdges, Partition, PartNodes
from partitioning.directory.read_directory import complete_edges
from partitioning.errors import InputError
from partitioning.graph.graph_data import PLAIN_RELATION, PLAIN_TYPE, EdgeType, GraphData, Relation
from partitioning.read.nodes import Nodes
from partitioning.update import graph_addition
from partitioning.update.graph_addition import Addition
from partitioning.update.prediction_graph import PredictionGraph
from retexo.arrays import repeat_interleave
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import ThreadGroup, ThreadTransport
from retexo.models.block import InEdges, Sources
from retexo.models.network import Schema, hidden_convolution
from retexo.predict.partitioned_run import NodeIds, PartitionedRun
from retexo.results.predictions import Predictions
from retexo.settings.communication_settings import ExchangeSettings
from retexo.tasks.embedded_nodes import EmbeddedNodes
from retexo.tasks.output_heads import apply_heads
from retexo.tasks.ranking import OwnDestinations
from retexo.trainers.context import Context
from retexo.trainers.graph_module import make_arguments
from retexo.trainers.label_propagation import propagate
from retexo.trainers.lazy import InferenceResult, infer, run_layers
from retexo.trainers.out_edges import OutEdges
from retexo.worker.compatibility import describe_missing_weights

logger = logging.getLogger(__name__)

MAX_CHANGED = 0.25
"""Share of the nodes from which on a grown graph is computed as a whole."""


def to_tensor(values: Any) -> Tensor:
    """Return a dense tensor: int64 of integers, float32 of other numbers."""
    array = np.asarray(values.toarray() if hasattr(values, "toarray") else values)
    return torch.from_numpy(array.astype(np.int64 if array.dtype.kind in "iu" else np.float32))


# --- a graph as one part ----------


def make_part(read: PredictionGraph, num_relations: int) -> Partition:
    """Return a graph as the only part, without split, and with labels of -1.

    Edges from a node to itself are left out.

    Args:
        num_relations: Of a union graph's edges, whose edge_feat has the relation; 0: another graph.
    """
    graph, none = read.graph, torch.zeros(0, dtype=torch.int64)
    count = graph.target_nodes.num_nodes
    no_node = torch.zeros(count, dtype=torch.bool)
    part = Partition(
        rank=0,
        num_parts=1,
        target=graph.target,
        nodes={
            name: PartNodes(to_tensor(table.features), to_tensor(table.node_ids), none, none)
            for name, table in graph.nodes.items()
        },
        relations={
            edge_type: _sort_edges(relation, has_loops=edge_type[0] == edge_type[2])
            for edge_type, relation in graph.relations.items()
        },
        labels=torch.full((count,), -1),
        train_mask=no_node,
        val_mask=no_node,
        test_mask=no_node,
        self_loops=0,
    )
    if not graph.is_plain:
        return part
    part = complete_edges(part, num_relations)
    edges, nodes = part.edges, part.target_nodes
    nodes = replace(nodes, out_degree=edges.sum_at(edges.src, nodes.num_inner))
    part = replace(part, nodes={PLAIN_TYPE: nodes})
    if read.links is not None:
        links = {name: torch.from_numpy(array) for name, array in read.links.arrays.items()}
        part = replace(part, links=links)
    return part


def _sort_edges(relation: Relation, *, has_loops: bool) -> PartEdges:
    """Return a relation's edges by destination in a stable order, int32.

    `has_loops`: there may be edges from a node to itself, which are left out.
    """
    src, dst = (torch.from_numpy(ends.astype(np.int32)) for ends in (relation.src, relation.dst))
    order = torch.argsort(dst, stable=True)
    if has_loops:
        order = order[src[order] != dst[order]]
    data = {name: torch.from_numpy(array)[order] for name, array in relation.edge_data.items()}
    return PartEdges(src[order], dst[order], **data)


def cut_context(context: Context, inner: Tensor, rows: Mapping[int, Tensor]) -> Context:
    """Return the context of some nodes of a plain graph, as a part whose halo rows are known.

    Args:
        context: of the graph, which is the only part.
        inner: bool [N], the nodes.
        rows: by layer its input [M, F] at the first M nodes; the other nodes are all in `inner`.
    """
    all_edges, nodes = context.edges, inner.nonzero()[:, 0]
    edge, row_ptr = all_edges.in_edges(nodes)
    src = all_edges.src[edge].long()
    is_halo = torch.zeros_like(inner).index_fill(0, src, True) & ~inner
    halo = is_halo.nonzero()[:, 0]
    both = torch.cat((nodes, halo))
    local = torch.full((len(inner),), -1).index_copy(0, both, torch.arange(len(both)))
    weight, feat = (
        None if array is None else array[edge] for array in (all_edges.weight, all_edges.edge_feat)
    )
    edges = InEdges(
        local[src].int(),
        row_ptr,
        all_edges.out_degree[both],
        all_edges.in_degree[nodes],
        weight,
        feat,
    )
    masks = {name: getattr(context.partition, name)[nodes] for name in ("train_mask", "val_mask")}
    own = replace(
        context.partition.target_nodes,
        node_ids=context.partition.node_ids[nodes],
        halo_owner=torch.zeros(len(halo), dtype=torch.int64),
    )
    part = replace(context.partition, nodes={PLAIN_TYPE: own}, **masks)
    required = context.plan.required_layers[nodes]
    means = None if context.target.edge_means is None else context.target.edge_means[nodes]
    only = replace(
        context.target,
        features=context.features[nodes],
        required_layers=required,
        out_edges=OutEdges.of_plain_graph(part.edges, edges),
        plan=replace(context.plan, required_layers=required, num_halo=len(halo)),
        edge_means=means,
    )
    return replace(
        context,
        partition=part,
        labels=context.labels[nodes],
        types={PLAIN_TYPE: only},
        known={
            layer: Sources.of_halo(rows_of_layer[halo]) for layer, rows_of_layer in rows.items()
        },
    )


class HeldGraph:
    """A graph with the rows of each layer, and the outputs and predictions of all nodes.

    n pairs, q nodes.
    """

    predictions: Predictions
    """Of a model for nodes."""

    def __init__(self, run: PartitionedRun, read: PredictionGraph) -> None:
        """Compute all layers in fp32, and the predictions of a model for nodes.

        InputError where the graph does not fit, and for predictions that are NaN or infinite.
        """
        self.run, self.read = run, read
        reads_relations = hidden_convolution(run.checkpoint.model).reads_relations
        num_read = run.checkpoint.architecture.num_edge_features
        self._num_relations = num_read if reads_relations else 0
        model = replace(run.checkpoint.model, lookahead=0)  # of training only
        exact = ExchangeSettings(precision=("fp32",) * model.depth)
        self._settings = replace(run.settings(1), model=model, exchange=exact)
        self.context = self._open(read)
        self.inferred = infer(self.context, run.stages, run.checkpoint.heads, keeps_rows=True)
        table = read.graph.target_nodes
        self.ids = NodeIds(table.given_ids, "the graph", read.types_of_pairs)
        self.known = {name: Nodes.of_table(nodes) for name, nodes in read.graph.nodes.items()}
        """partitioning's Nodes by type, to look up the ends of new edges."""
        self._lock = threading.Lock()
        """Messages of one call at a time pass between the only worker and itself."""
        if run.checkpoint.scorer:
            by_head, heads = self.inferred.by_head, [run.checkpoint.heads]
            embedded = EmbeddedNodes.of(self.context, run.stages, by_head, heads)
            self._destinations = OwnDestinations(embedded)
        else:
            self.predictions = run.make_predictions(self.ids.values, self.inferred)

    def _open(self, read: PredictionGraph) -> Context:
        """Return the context of a graph whose nodes are all predicted."""
        part = make_part(read, self._num_relations)
        comm = Communicator(ThreadTransport(0, ThreadGroup(1)))
        context = self.run.open_context(comm, self._settings, None, part, "predict")
        if read.links is None:
            return context
        num_candidates = len(read.links.arrays["candidates"])
        return replace(
            context, graph_info=replace(context.graph_info, num_candidates=num_candidates)
        )

    def score(self, pairs: Tensor) -> Tensor:
        """Score pairs of nodes, int64 [n, 2], as training ranks them; return float [n]."""
        with self._lock:
            return self._destinations.embedded.score_by_source(pairs)[0]

    def find_top(self, nodes: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Find the most likely new destinations of nodes, int64 [q].

        Returns:
            Scores and destinations, [q, count] each, best first; -inf where there are no more.
        """
        with self._lock:
            return self._destinations.find_top(nodes, count)

    def inputs(self) -> tuple[Any, ...]:
        """Return the arguments of the torch module (retexo.trainers.graph_module).

        Weights and edge features come last, and are left out where the graph has none; beside edge
        features missing weights are None.
        """
        graph = self.read.graph
        x_dict = {name: to_tensor(table.features) for name, table in graph.nodes.items()}
        ends, weights, feat = {}, {}, None
        for edge_type, relation in graph.relations.items():
            ends[edge_type] = torch.stack((to_tensor(relation.src), to_tensor(relation.dst)))
            if relation.edge_weight is not None:
                weights[edge_type] = to_tensor(relation.edge_weight)
            feat = None if relation.edge_feat is None else to_tensor(relation.edge_feat)
        if feat is not None and self._num_relations:
            feat = torch.nn.functional.one_hot(feat[:, 0].long(), self._num_relations).float()
        return make_arguments(x_dict, ends, weights, feat)

    @torch.no_grad()
    def predict_new(self, added: Addition) -> Predictions:
        """Return the predictions of new nodes, by the graph with them; it stays as it is.

        In the order of the table. InputError if none is of the type that is predicted, and for
        predictions that are NaN or infinite.
        """
        table = added.nodes.get(self.read.graph.target)
        if table is None:
            raise InputError(
                f"new: has no node of type {self.read.graph.target}, which is predicted"
            )
        return self.run.make_predictions(table.given_ids, self._extend(added))

    def _extend(self, added: Addition) -> InferenceResult:
        """Return the outputs at new nodes.

        Recomputes only nodes that change, unless these are many or the graph is heterogeneous.
        """
        grown = self._open(graph_addition.grow(self.read, added))
        stages, heads = self.run.stages, self.run.checkpoint.heads
        first = len(self.inferred.logits)
        num_new = len(grown.labels) - first
        changed = self._find_changed(grown) if grown.schema.is_plain else None
        if changed is None or int(changed.sum()) > MAX_CHANGED * len(changed):
            outputs = infer(grown, stages, heads)
            return InferenceResult(outputs.logits[first:], outputs.embeddings[first:])
        small = cut_context(grown, changed, dict(enumerate(self.inferred.rows)))
        rows, by_head = [grown.features[first:]], []
        for output, kept in zip(run_layers(small, stages), self.inferred.by_head, strict=True):
            rows.append(output.rows[-num_new:])
            logits = torch.cat((kept, kept.new_zeros(num_new, kept.shape[1])))
            by_head.append(logits.index_copy_(0, changed.nonzero()[:, 0], output.logits))
        logits = apply_heads(by_head, heads, partial(propagate, grown))
        return InferenceResult(logits[first:], rows[-2])

    def _find_changed(self, grown: Context) -> Tensor:
        """Return the nodes whose output changes in the last layer, or is new, bool [N + n]."""
        before, edges = self.context, grown.edges
        first = before.partition.num_inner
        dst = repeat_interleave(torch.arange(len(edges.in_degree)), edges.row_ptr.diff())

        def differ(old: Tensor, new: Tensor) -> Tensor:
            differing = torch.ones(len(new), dtype=torch.bool)
            differing[:first] = (new[:first] != old).reshape(first, -1).any(dim=1)
            return differing

        def reached(nodes: Tensor) -> Tensor:
            return torch.zeros_like(nodes).index_fill(0, dst[nodes[edges.src.long()]], True)

        base = differ(before.edges.row_ptr.diff(), edges.row_ptr.diff())
        if self.run.stages[0].conv.uses_out_degree:
            scaled = differ(before.edges.out_degree, edges.out_degree)
            base |= scaled | reached(scaled)
        changed = differ(before.features, grown.features)
        for _ in self.run.stages:
            changed = base | changed | reached(changed)
        return changed


# --- how a graph is brought into the form of training ----------


def with_weights(
    read: PredictionGraph, weighted: Collection[EdgeType], model: str
) -> PredictionGraph:
    """Return the graph with a weight of 1 for each edge of `weighted` relations that have none.

    Warns of them, naming the `model`.
    """
    missing = [
        name
        for name, relation in read.graph.relations.items()
        if name in weighted and relation.edge_weight is None
    ]
    if not missing:
        return read
    logger.warning("%s", describe_missing_weights(missing, model))

    def filled(graph: GraphData) -> GraphData:
        relations = dict(graph.relations)
        for name in missing:
            ones = np.ones(relations[name].num_edges, np.float32)
            relations[name] = replace(relations[name], edge_weight=ones)
        return replace(graph, relations=relations)

    return replace(read, graph=filled(read.graph), encoded=filled(read.encoded))


def in_order(read: PredictionGraph, schema: Schema) -> PredictionGraph:
    """Return the graph with node types and relations in the order of training, others last."""

    def ordered(graph: GraphData) -> GraphData:
        names = [name for name in schema.widths if name in graph.nodes]
        edges = [edge_type for edge_type in schema.relations if edge_type in graph.relations]
        nodes = {name: graph.nodes[name] for name in (*names, *graph.nodes)}
        relations = {
            edge_type: graph.relations[edge_type] for edge_type in (*edges, *graph.relations)
        }
        return replace(graph, nodes=nodes, relations=relations)

    return replace(read, graph=ordered(read.graph), encoded=ordered(read.encoded))


def without_relation_numbers(read: PredictionGraph) -> PredictionGraph:
    """Return a union graph without its edge features, the relation of each edge.

    `encoded` keeps them. Other graphs are returned as they are.
    """
    if read.encoded.relation is None:
        return read
    edges = replace(read.graph.edges, edge_feat=None)
    return replace(read, graph=replace(read.graph, relations={PLAIN_RELATION: edges}))
