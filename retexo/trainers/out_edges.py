"""Edges that leave the nodes of one type, and the mean of their rows over each relation.

A row serves all relations that leave its type. A destination is therefore a pair of a relation and
a node: a row crosses once to a partition, a partial sum belongs to one relation at one node, and
one vertex cover chooses over all of them. In a plain graph each node is the only destination of its
own.

I inner nodes and H halo nodes of the source type; R pairs of a relation and a destination node.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from partitioning.directory.partition import LocalEdges, Partition
from partitioning.graph.graph_data import PLAIN_RELATION, EdgeType
from retexo.comm.collectives import Communicator
from retexo.exchange.exchange_plan import (
    ExchangePlan,
    PlanOptions,
    make_plan,
    request_halo_nodes,
)
from retexo.models.block import Block, InEdges, NumberedEdges, Sources, gather_source_rows
from retexo.models.conv.sage import SAGEMean
from retexo.models.convolution import Convolution
from retexo.models.matrix import as_matrix, matmul, to_dense
from retexo.models.streaming_aggregate import AggregateAccumulator


@dataclass(frozen=True, eq=False)
class OutEdges:
    """Edges into this partition that leave nodes of one type.

    Local ids: inner nodes 0 ... I-1, pairs I ... I+R-1 relation by relation, then the halo nodes.
    In a plain graph the inner nodes are the destinations, so there are no pairs.
    """

    num_nodes: int
    """I"""
    first: dict[EdgeType, int]
    """First local id of each relation's destinations."""
    local: LocalEdges
    """The edges with these local ids."""
    edges: InEdges

    @classmethod
    def of_plain_graph(cls, local: LocalEdges, edges: InEdges) -> Self:
        """Return the only node type and relation of a plain graph."""
        return cls(local.num_inner, {PLAIN_RELATION: 0}, local, edges)

    @classmethod
    def of_type(cls, part: Partition, source: str, dtype: torch.dtype) -> Self:
        """Return the relations of a heterogeneous graph that leave `source`, as edges to pairs.

        A pair is a relation and an inner node that it leads to; pairs are numbered after inner
        nodes.
        """
        nodes, first = part.nodes[source], {}
        relations = {name: edges for name, edges in part.relations.items() if name[0] == source}
        end = nodes.num_inner
        for name in relations:
            first[name] = end
            end += part.nodes[name[2]].num_inner
        num_pairs = end - nodes.num_inner
        sources, destinations = [torch.zeros(0, dtype=torch.int32)], []
        for name, relation_edges in relations.items():
            is_inner = relation_edges.src < nodes.num_inner
            sources.append(
                torch.where(is_inner, relation_edges.src, relation_edges.src + num_pairs)
            )
            destinations.append(relation_edges.dst + first[name])
        src = torch.cat(sources)
        dst = torch.cat([torch.zeros(0, dtype=torch.int32), *destinations])
        weight = _join_weights(
            [(edges.edge_weight, len(edges.src)) for edges in relations.values()]
        )
        local = LocalEdges(
            src,
            dst,
            weight,
            num_parts=part.num_parts,
            num_inner=end,
            halo_owner=nodes.halo_owner,
            halo_index=nodes.halo_index,
            asked_for=nodes.asked_for,
        )
        in_degree, out_degree = local.sum_at(dst, end), torch.zeros(end + nodes.num_halo)
        edges = InEdges.build(src, dst, in_degree, out_degree, dtype, weight=weight)
        return cls(nodes.num_inner, first, local, edges)

    @property
    def num_pairs(self) -> int:
        """Return the number R of pairs of relation and destination, with local ids.

        0 in a plain graph.
        """
        return self.local.num_inner - self.num_nodes

    def required_destinations(
        self, required: Mapping[str, Tensor], relations: frozenset[EdgeType] | None = None
    ) -> Tensor:
        """Return required layers of the destinations, uint8 [I + R]: each pair has its node's.

        Args:
            required: uint8 [I] of each type.
            relations: if given, pairs of other relations have 0.
        """
        values = torch.zeros(self.local.num_inner, dtype=torch.uint8)
        for name, begin in self.first.items():
            if relations is None or name in relations:
                nodes = required[name[2]]
                values[begin : begin + len(nodes)] = nodes
        return values

    def destinations(self, nodes: Mapping[str, Tensor]) -> dict[EdgeType, Tensor]:
        """Return by relation the local ids of its destinations at nodes, int64 [n] by type."""
        return {
            name: nodes[name[2]] + begin for name, begin in self.first.items() if name[2] in nodes
        }

    def cut_block(self, edges: NumberedEdges, destinations: Tensor) -> Block:
        """Return the in-edges of some destinations, int64 [n].

        Pairs are not among the block's nodes.
        """
        block = edges.cut_block(destinations)
        if not self.num_pairs:
            return block
        numbers = block.nodes[block.num_dst :]
        return replace(
            block,
            nodes=numbers,
            num_unprojected=len(numbers),
            src=block.src - block.num_dst,
            out_degree=block.out_degree[block.num_dst :],
        )

    def cut_block_and_rows(
        self, rows: Tensor, edges: NumberedEdges, destinations: Tensor
    ) -> tuple[Block, Tensor]:
        """Return the block of the in-edges of destinations, int64 [n], and the rows of its nodes.

        rows: [I, F] of the inner nodes.
        """
        block = self.cut_block(edges, destinations)
        return block, gather_source_rows(block, rows, edges.sources, self.num_pairs)[0]

    def keep(self, mask: Tensor, conv: Convolution) -> Self:
        """Return the edges in a mask, bool [E], with degrees counted in these."""
        num_inner = self.local.num_inner
        kept = self.local.keep(mask)
        in_degree = kept.sum_at(kept.dst, num_inner)
        out_degree = kept.sum_at(kept.src, num_inner + kept.num_halo)
        dtype = self.edges.in_degree.dtype
        edges = build_in_edges(kept, conv, in_degree, out_degree, dtype)
        return replace(self, local=kept, edges=edges)

    def make_plan(
        self, required: Mapping[str, Tensor], options: PlanOptions, comm: Communicator
    ) -> ExchangePlan:
        """Return the exchange of the source type's rows; required: uint8 [I] of each type."""
        return make_plan(self.local, options, self.required_destinations(required), comm)


def _join_weights(of_relations: list[tuple[Tensor | None, int]]) -> Tensor | None:
    """Return the weights of all edges, ones for a relation without; None if no relation has any."""
    if all(weight is None for weight, _ in of_relations):
        return None
    return torch.cat(
        [torch.ones(count) if weight is None else weight for weight, count in of_relations]
    )


def build_in_edges(
    local: LocalEdges,
    conv: Convolution,
    in_degree: Tensor,
    out_degree: Tensor,
    dtype: torch.dtype,
    num_relations: int = 0,
) -> InEdges:
    """Return the in-edges of a partition with the edge features that the convolution reads."""
    weight, feat = local.edge_weight, local.edge_feat
    if conv.reads_relations:
        assert local.edge_relation is not None
        feat = nn.functional.one_hot(local.edge_relation, num_relations)
    feat = conv.read_edges(weight, feat)
    return InEdges.build(
        local.src, local.dst, in_degree, out_degree, dtype, weight=weight, edge_feat=feat
    )


def find_required_layers(
    part: Partition,
    target: str,
    out_edges: Mapping[str, OutEdges],
    options: Mapping[str, PlanOptions],
    comm: Communicator,
    *,
    starts_everywhere: bool = False,
) -> dict[str, Tensor]:
    """Find how many layers require the output of each node (ExchangePlan.required_layers).

    Workers exchange requests layer by layer, unless all nodes are required.

    Args:
        part: the nodes in a split.
        target: the type that has labels.
        out_edges: by source type.
        options: of the plan of each type.
        comm: to the other workers, which call it, too.
        starts_everywhere: whether the output of all nodes of the target is required.

    Returns:
        uint8 [I] of each type.
    """
    last, use = options[target].num_layers, options[target].use
    required = {
        name: torch.zeros(edges_of_type.num_nodes, dtype=torch.uint8)
        for name, edges_of_type in out_edges.items()
    }
    if use == "nothing":
        return required
    in_rounds, own = part.train_mask | part.val_mask, required[target]
    own[in_rounds | part.test_mask | (starts_everywhere or use == "predict")] = last
    own[in_rounds] = last + 1 if use == "train" else last
    if options[target].all_halo_rows:
        return {
            name: torch.full_like(layers_of_type, last + 1)
            for name, layers_of_type in required.items()
        }
    if not (options[target].all_nodes or (use == "predict" and len(required) == 1)):
        extend_required_layers(out_edges, options, required, last, comm)
    return required


def extend_required_layers(
    out_edges: Mapping[str, OutEdges],
    options: Mapping[str, PlanOptions],
    required: dict[str, Tensor],
    num_layers: int,
    comm: Communicator | None,
) -> None:
    """Extend the required layers of the target's nodes to all nodes that these aggregate.

    Args:
        out_edges: by source type.
        options: likewise, of the plan.
        required: ExchangePlan.required_layers of each type's nodes, uint8 [I]; changed in place.
        num_layers: of the network.
        comm: to the other workers, which call it, too; None to extend it to this partition's nodes
            only.
    """
    for layer in range(num_layers - 1, 0, -1):
        for name, edges_of_type in out_edges.items():
            reached, own, local = (
                edges_of_type.required_destinations(required),
                required[name],
                edges_of_type.local,
            )
            is_source = local.find_sources(reached > layer)
            own[is_source[: len(own)] & (own < layer)] = layer
            if comm is None:
                continue
            halo = is_source[local.num_inner :]
            for nodes in request_halo_nodes(local, halo, options[name].part_sizes, comm):
                own[nodes[own[nodes] < layer]] = layer


Means = dict[EdgeType, Tensor]
"""[n, F] by relation: the means over the in-edges of some nodes of its destination type."""


class RelationMeans:
    """Means of one type's rows over each relation that leaves it, at some nodes, as rows arrive."""

    def __init__(
        self,
        out_edges: OutEdges,
        rows: Tensor,
        nodes: Mapping[str, Tensor],
        device: torch.device,
        weight: Tensor | None = None,
    ) -> None:
        """Begin with the rows of this partition.

        Args:
            out_edges: the edges that leave the type.
            rows: [I, F] of the type's inner nodes.
            nodes: int64 [n] of each destination type.
            device: where the sums are.
            weight: [F, D] that the rows are multiplied with first; None: as they are.
        """
        self._destinations = out_edges.destinations(nodes)
        self._num_nodes = sum(map(len, self._destinations.values()))
        conv, projected = SAGEMean(1, 1, 0.0, root_weight=False), None
        if not self._num_nodes:
            return
        if weight is not None:
            conv.weight_neigh = nn.Parameter(weight, requires_grad=False)
            projected = matmul(as_matrix(rows), weight.cpu())
        destinations = torch.cat(list(self._destinations.values()))
        self._sums = AggregateAccumulator(
            conv, out_edges.edges, destinations, rows, projected, device
        )

    def add(self, received: Sources) -> None:
        """Add rows and sums received from other partitions; each edge is covered at most once."""
        if self._num_nodes:
            self._sums.add(received)

    def by_relation(self) -> Means:
        """Return the means of each relation, once everything is added; without nodes of any, {}."""
        if not self._num_nodes:
            return {}
        inputs = self._sums.inputs()
        means = inputs.projected if len(inputs.projected) else to_dense(inputs.matrices[-1])
        counts = [len(ids) for ids in self._destinations.values()]
        return dict(zip(self._destinations, torch.split(means, counts), strict=True))
