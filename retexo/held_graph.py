"""A graph in memory with the rows of each layer, from which new nodes are computed.

The rows of known nodes are kept. A new node changes only the nodes that its edges reach: after l
layers those within l hops of a new edge, and with GCN those that share a neighbour whose out-degree
grew. Only these are computed again, and label propagation only where it reaches the new nodes.
The result is that of the whole grown graph, up to rounding.

N nodes, n new ones, E edges, F width of rows, C classes.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning import graph_addition
from partitioning.graph_addition import Addition
from partitioning.graph_data import (
    PLAIN_RELATION,
    PLAIN_TYPE,
    EdgeType,
    GraphData,
    HeteroGraphData,
    NodeTable,
)
from partitioning.prediction_graph import PredictionGraph
from retexo.models.block import Block, HaloRows, InEdges, NumberedEdges, Sources, make_block
from retexo.models.conv.gcn import GCN
from retexo.models.hetero_stage import PLAIN_EDGE, HeteroArchitecture, Schema
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.matrix import to_dense
from retexo.tasks.output_heads import average_heads, sum_powers
from retexo.trainers.graph_module import (
    Outputs,
    PlainGraphModule,
    TypedGraphModule,
    mean_edge_features,
    read_edge_features,
    run_stage,
)
from retexo.worker.compatibility import describe_missing_weights

logger = logging.getLogger(__name__)

MAX_CUT = 4
"""A block is cut for at most the MAX_CUT-th part of the nodes."""


def to_tensor(values: Any) -> Tensor:
    """Features [N, F], dense float32; edge ends as int64."""
    dense = values.toarray() if sp.issparse(values) or hasattr(values, "toarray") else values
    array = np.asarray(dense)
    return torch.from_numpy(array.astype(np.int64 if array.dtype.kind in "iu" else np.float32))


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of a plain graph without self loops, sorted by destination."""

    held: InEdges
    """With the edge features that the convolution reads."""
    dst: Tensor
    """int64 [E]"""
    feat: Tensor | None
    """[E, K] given features, where skip connections read their means."""

    @classmethod
    def of(cls, module: PlainGraphModule, graph: GraphData, num_relations: int) -> "Edges":
        """The edges of a graph; num_relations: of a union graph, whose edge_feat are numbers."""
        weight, feat = (
            None if data is None else to_tensor(data)
            for data in (graph.edge_weight, graph.edge_feat)
        )
        if num_relations and feat is not None:
            feat = torch.nn.functional.one_hot(feat[:, 0].long(), num_relations).float()
        block = make_block(
            torch.stack((to_tensor(graph.src), to_tensor(graph.dst))),
            (graph.num_nodes, graph.num_nodes),
            same_type=True,
            weight=weight,
            feat=feat,
            like=torch.zeros(0),
        )
        conv, feat = module.stages[0].conv, block.edge_feat
        held = InEdges.build(
            block.src,
            block.dst,
            block.in_degree,
            block.out_degree,
            torch.float32,
            weight=block.weight,
            edge_feat=read_edge_features(conv, block.weight, feat),
        )
        return cls(held, block.dst, None if conv.attention_heads or conv.reads_relations else feat)

    @property
    def num_nodes(self) -> int:
        return len(self.held.in_degree)

    def number(self) -> NumberedEdges:
        """Number the sources, so that blocks can be cut from the edges."""
        none = HaloRows.empty(0, 0, torch.float32)
        return self.held.number_sources(Sources(none, none))

    def whole(self) -> Block:
        """The block of all nodes."""
        held, nodes = self.held, torch.arange(self.num_nodes)
        return Block(
            nodes=nodes,
            num_dst=len(nodes),
            num_unprojected=len(nodes),
            src=held.src.long(),
            dst=self.dst,
            out_degree=held.out_degree,
            in_degree=held.in_degree,
            weight=held.weight,
            edge_feat=held.edge_feat,
        )

    def edge_means(self, block: Block) -> Tensor | None:
        """Return the means of the in-edges' features, [N, K]; block: of the whole graph."""
        return None if self.feat is None else mean_edge_features(block, self.feat)

    def insert(self, module: PlainGraphModule, added: Addition) -> "Edges":
        """The edges with new ones, of nodes that follow the known ones."""
        relation = added.relations.get(PLAIN_RELATION)
        num_new = added.nodes[PLAIN_TYPE].num_nodes
        src = torch.zeros(0, dtype=torch.int64) if relation is None else to_tensor(relation.src)
        dst = src if relation is None else to_tensor(relation.dst)
        keep = (src != dst).nonzero()[:, 0]
        order = keep[torch.argsort(dst[keep], stable=True)]
        src, dst = src[order], dst[order]
        weight, feat = (
            None if relation is None or data is None else to_tensor(data)[order]
            for data in (
                relation and relation.edge_weight,
                relation and relation.edge_feat,
            )
        )
        held, num_nodes = self.held, self.num_nodes + num_new
        row_ptr = torch.cat((held.row_ptr, held.row_ptr[-1:].expand(num_new)))
        places = row_ptr[dst + 1].numpy()
        read = read_edge_features(module.stages[0].conv, weight, feat)
        grown_dst = torch.from_numpy(np.insert(self.dst.numpy(), places, dst.numpy()))

        def joined(old: Tensor | None, new: Tensor | None) -> Tensor | None:
            if old is None:
                return None
            new = old.new_zeros(0, *old.shape[1:]) if new is None else new.to(old)
            return torch.from_numpy(np.insert(old.numpy(), places, new.numpy(), axis=0))

        ones = torch.ones(len(src)) if weight is None else weight
        in_degree, out_degree = (
            torch.cat((degree, degree.new_zeros(num_new))).index_add(0, ends, ones)
            for degree, ends in ((held.in_degree, dst), (held.out_degree, src))
        )
        grown_src, grown_weight = joined(held.src, src), joined(held.weight, weight)
        assert grown_src is not None
        counts = torch.bincount(dst, minlength=num_nodes)
        row_ptr = row_ptr + torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        grown = InEdges(
            grown_src, row_ptr, out_degree, in_degree, grown_weight, joined(held.edge_feat, read)
        )
        return Edges(grown, grown_dst, joined(self.feat, feat))


@dataclass(frozen=True, eq=False)
class Overlay:
    """A table of rows [N, F] of which some are replaced or added."""

    kept: Tensor
    place: Tensor
    """int64 [N + n] the row in `values` of each node, -1 for a kept one."""
    values: Tensor

    @classmethod
    def of(cls, kept: Tensor, num_nodes: int, nodes: Tensor, values: Tensor) -> "Overlay":
        """Return a table of num_nodes rows in which `values` stand for the rows of `nodes`."""
        place = torch.full((num_nodes,), -1)
        place[nodes] = torch.arange(len(nodes))
        return cls(kept, place, values)

    def take(self, nodes: Tensor) -> Tensor:
        """Return the rows of nodes int64 [m], [m, F]."""
        place = self.place[nodes]
        rows = self.kept.index_select(0, nodes.clamp(max=len(self.kept) - 1))
        replaced = (place >= 0).nonzero()[:, 0]
        rows[replaced] = self.values[place[replaced]]
        return rows


@dataclass(eq=False)
class HeldPlainGraph:
    """A plain graph with the rows of each layer."""

    module: PlainGraphModule
    read: PredictionGraph
    num_relations: int = 0
    """Of a union graph."""
    outputs: Outputs = field(init=False)
    """At all nodes."""

    @torch.no_grad()
    def __post_init__(self) -> None:
        assert isinstance(self.read.graph, GraphData)
        self.features = to_tensor(self.read.graph.features)
        self.edges = Edges.of(self.module, self.read.graph, self.num_relations)
        block = self.edges.whole()
        self.layers = list(self.module.layers(self.features, block, self.edges.edge_means(block)))
        self.outputs = self.module.finish(self.features, block, self.layers)
        needs_aggregate = any("aggregate" in stage.skips for stage in self.module.stages)
        empty = self.features.new_zeros(0, 0)
        self.layers = [
            (rows, logits, aggregate if needs_aggregate and not layer else empty)
            for layer, (rows, logits, aggregate) in enumerate(self.layers)
        ]

    def inputs(self) -> tuple[Any, ...]:
        """The arguments of the module."""
        edges, held = self.edges, self.edges.held
        feat = held.edge_feat if edges.feat is None else edges.feat
        if self.module.stages[0].conv.attention_heads and held.weight is not None:
            assert feat is not None
            feat = feat[:, :-1] if feat.shape[1] > 1 else None  # the last one is the weight
        ends = torch.stack((held.src.long(), edges.dst))
        given = (self.features, ends, held.weight, feat)
        return given[: 4 if feat is not None else 3 if held.weight is not None else 2]

    @torch.no_grad()
    def extend(self, added: Addition) -> Outputs:
        """The outputs at new nodes that join the graph; the graph stays as it is."""
        edges = self.edges.insert(self.module, added)
        num_nodes, first = edges.num_nodes, self.edges.num_nodes
        new = torch.arange(first, num_nodes)
        features = self._extend_features(added, num_nodes, new)
        changed = features.place >= 0
        base = self._nodes_with_new_edges(edges, added, changed)
        numbered, means = edges.number(), None
        if edges.feat is not None:
            means = edges.edge_means(edges.whole())
        rows, by_head, tables = features, [], {"features": features}
        before = features
        for stage, (kept, kept_logits, kept_aggregate) in zip(
            self.module.stages, self.layers, strict=True
        ):
            changed = base | changed | _reached(edges, changed)
            nodes = changed.nonzero()[:, 0]
            block = numbered.cut_block(nodes)
            skips = {name: table.take(nodes) for name, table in tables.items()}
            if means is not None:
                skips["edges"] = means[nodes]
            values, logits, aggregate = run_stage(stage, block, rows.take(block.nodes), skips)
            before, rows = rows, Overlay.of(kept, num_nodes, nodes, values)
            by_head.append(Overlay.of(kept_logits, num_nodes, nodes, logits))
            if len(kept_aggregate):
                tables["aggregate"] = Overlay.of(kept_aggregate, num_nodes, nodes, aggregate)
        embeddings = before.take(new)
        return Outputs(self._smooth(edges, numbered, by_head, new), embeddings)

    def _smooth(
        self, edges: Edges, numbered: NumberedEdges, by_head: Sequence[Overlay], new: Tensor
    ) -> Tensor:
        """Compute the logits of new nodes, [n, C].

        Step i of K is computed at the nodes that reach them in K - i hops.
        """
        heads = self.module.heads
        steps = heads.steps if heads.alpha < 1 else 0
        needed = torch.zeros(edges.num_nodes, dtype=torch.bool)
        needed[new] = True
        by_step = [needed]
        for _ in range(steps):
            edge, _ = edges.held.in_edges(by_step[-1].nonzero()[:, 0])
            sources = edges.held.src.index_select(0, edge).long()
            by_step.append(by_step[-1].index_fill(0, sources, True))
        nodes = by_step[-1].nonzero()[:, 0]
        start = average_heads([each.take(nodes) for each in by_head], heads, len(by_head))
        gcn = GCN(start.shape[1], start.shape[1], dropout=0.0)
        rows = start.new_zeros(edges.num_nodes, start.shape[1])
        rows[nodes] = start
        powers = [rows[new]]
        for mask in reversed(by_step[:-1]):
            nodes = mask.nonzero()[:, 0]
            if len(nodes) * MAX_CUT > edges.num_nodes:  # cutting would cost more
                inputs = gcn.prepare(edges.whole(), rows, NO_PROJECTED_ROWS)
                rows = to_dense(inputs.matrices[0])
            else:
                block = numbered.cut_block(nodes)
                inputs = gcn.prepare(block, rows[block.nodes], NO_PROJECTED_ROWS)
                rows = torch.zeros_like(rows).index_copy_(0, nodes, to_dense(inputs.matrices[0]))
            powers.append(rows[new])
        return heads.calibrate(sum_powers(powers, heads.alpha))

    def _extend_features(self, added: Addition, num_nodes: int, new: Tensor) -> Overlay:
        """The features, of which those of new nodes, and maybe of others, differ from the kept."""
        if self.read.keeps_features:
            values = to_tensor(added.nodes[PLAIN_TYPE].features)
            return Overlay.of(self.features, num_nodes, new, values)
        grown = graph_addition.grow(self.read, added).graph
        assert isinstance(grown, GraphData)
        features = to_tensor(grown.features)
        differs = torch.ones(num_nodes, dtype=torch.bool)
        differs[: len(self.features)] = (features[: len(self.features)] != self.features).any(dim=1)
        nodes = differs.nonzero()[:, 0]
        return Overlay.of(self.features, num_nodes, nodes, features[nodes])

    def _nodes_with_new_edges(self, edges: Edges, added: Addition, changed: Tensor) -> Tensor:
        """Return the nodes whose aggregate changes in each layer, bool [N + n].

        These are new nodes, the destinations of new edges and, if out-degrees scale rows, the nodes
        whose out-degree grew and the destinations of their edges.
        """
        base = torch.zeros_like(changed)
        base[self.edges.num_nodes :] = True
        relation = added.relations.get(PLAIN_RELATION)
        if relation is not None:
            base[to_tensor(relation.dst)] = True
            if self.module.stages[0].conv.uses_out_degree:
                scaled = torch.zeros_like(base)
                scaled[to_tensor(relation.src)] = True
                base |= scaled | _reached(edges, scaled)
        return base


def _reached(edges: Edges, nodes: Tensor) -> Tensor:
    """Return the destinations of edges from nodes, bool [N]; nodes: bool [N]."""
    reached = torch.zeros_like(nodes)
    reached[edges.dst[nodes[edges.held.src.long()]]] = True
    return reached


@dataclass(eq=False)
class HeldTypedGraph:
    """A heterogeneous graph with its outputs; with new nodes the whole graph is computed again."""

    module: TypedGraphModule
    read: PredictionGraph
    outputs: Outputs = field(init=False)
    """At all nodes of the target."""

    def __post_init__(self) -> None:
        self.outputs = self._run(self.read)

    @torch.no_grad()
    def _run(self, read: PredictionGraph) -> Outputs:
        return self.module.run(*_typed_inputs(read))

    def inputs(self) -> tuple[Any, ...]:
        """The arguments of the module."""
        given = _typed_inputs(self.read)
        return given if given[2] else given[:2]

    def extend(self, added: Addition) -> Outputs:
        """The outputs at new nodes of the target that join the graph; the graph stays as it is."""
        first = len(self.outputs.logits)
        found = self._run(graph_addition.grow(self.read, added))
        return Outputs(found.logits[first:], found.embeddings[first:])


def _typed_inputs(read: PredictionGraph) -> tuple[Any, ...]:
    """Features, edges and edge weights by type."""
    graph = read.graph
    assert isinstance(graph, HeteroGraphData)
    x_dict = {name: to_tensor(table.features) for name, table in graph.nodes.items()}
    ends, weights = {}, {}
    for each, relation in graph.relations.items():
        ends[each] = torch.stack((to_tensor(relation.src), to_tensor(relation.dst)))
        if relation.edge_weight is not None:
            weights[each] = to_tensor(relation.edge_weight)
    return x_dict, ends, weights


def with_weights(
    read: PredictionGraph, weighted: Collection[EdgeType], model: str
) -> PredictionGraph:
    """The graph with a weight of 1 for each edge of `weighted` relations that have none."""

    def relations_of(graph: Any) -> dict[EdgeType, Any]:
        return {PLAIN_EDGE: graph} if isinstance(graph, GraphData) else dict(graph.relations)

    relations = relations_of(read.graph)
    missing = [
        each for each in relations if each in weighted and relations[each].edge_weight is None
    ]
    if not missing:
        return read
    logger.warning("%s", describe_missing_weights(missing, model))

    def filled(graph: Any) -> Any:
        held = relations_of(graph)
        made = {
            each: replace(held[each], edge_weight=np.ones(held[each].num_edges, np.float32))
            for each in missing
        }
        if isinstance(graph, GraphData):
            return made[PLAIN_EDGE]
        return replace(graph, relations=graph.relations | made)

    return replace(read, graph=filled(read.graph), encoded=filled(read.encoded))


def in_order(read: PredictionGraph, trained: HeteroArchitecture) -> PredictionGraph:
    """The graph with node types and relations in the order of training, further ones last."""
    schema = trained.schema

    def ordered(graph: Any) -> Any:
        names = [name for name in schema.widths if name in graph.nodes]
        edges = [each for each in schema.relations if each in graph.relations]
        nodes = {name: graph.nodes[name] for name in (*names, *graph.nodes)}
        relations = {each: graph.relations[each] for each in (*edges, *graph.relations)}
        return replace(graph, nodes=nodes, relations=relations)

    return replace(read, graph=ordered(read.graph), encoded=ordered(read.encoded))


def schema_of(read: PredictionGraph) -> Schema:
    """Node types, widths and relations of a heterogeneous graph."""
    graph = read.graph
    assert isinstance(graph, HeteroGraphData)
    widths = {name: int(table.features.shape[1]) for name, table in graph.nodes.items()}
    return Schema(graph.target, widths, tuple(graph.relations))


def ids_of(read: PredictionGraph) -> NDArray[Any]:
    """The ids of the nodes that are predicted, see `ids_of_table`."""
    return ids_of_table(read.graph.nodes[read.graph.target])


def ids_of_table(table: NodeTable) -> NDArray[Any]:
    """The ids of the nodes of a type, int64 or objects of str [N]."""
    if table.node_names is None:
        return table.node_ids
    return np.array(table.node_names.tolist(), dtype=object)
