"""The edges of a part by the type of their sources, and who needs which rows of whom.

What the nodes of a type send serves all relations that leave it: a destination is a pair of a relation and a node, so
that a row crosses once to a part, a partial sum is that of one relation at one node, and the cover chooses over all.

I inner nodes and H halo nodes of the source type; R destinations, the pairs of this part, D_r of them of a relation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from partitioning.directory.partition import HeteroPartition, Partition
from partitioning.graph_data import EdgeType
from retexo.comm.collectives import Communicator
from retexo.exchange.exchange_plan import (
    ExchangePlan,
    PlanOptions,
    make_plan_from_required_layers,
    request_halo_nodes,
)
from retexo.models.block import Block, InEdges, NumberedEdges, Sources
from retexo.models.conv.sage import SAGEMean
from retexo.models.matrix import as_matrix, matmul, to_dense
from retexo.models.streaming_aggregate import AggregateAccumulator


@dataclass(frozen=True, eq=False)
class OutRelations:
    """The edges that leave one type: of one part, as those of a plain graph.

    Local ids: inner nodes 0 ... I-1, then the destinations of each relation I ... I+R-1, then the halo nodes.
    """

    first: dict[EdgeType, int]
    """Where the destinations of each relation begin."""
    partition: Partition
    edges: InEdges

    @classmethod
    def of(cls, part: HeteroPartition, source: str, dtype: torch.dtype) -> Self:
        nodes, first, end = part.nodes[source], {}, part.nodes[source].num_inner
        relations = {name: edges for name, edges in part.relations.items() if name[0] == source}
        for name in relations:
            first[name] = end
            end += part.nodes[name[2]].num_inner
        none = torch.zeros(0, dtype=torch.int32)
        shift = end - nodes.num_inner
        src = torch.cat(
            [
                none,
                *(
                    torch.where(each.src < nodes.num_inner, each.src, each.src + shift)
                    for each in relations.values()
                ),
            ]
        )
        dst = torch.cat([none, *(each.dst + first[name] for name, each in relations.items())])
        weight = None
        if any(each.edge_weight is not None for each in relations.values()):
            weight = torch.cat(
                [
                    torch.ones(len(each.src)) if each.edge_weight is None else each.edge_weight
                    for each in relations.values()
                ]
            )
        no_mask, out_degree = torch.zeros(end, dtype=torch.bool), torch.zeros(end + nodes.num_halo)
        in_degree = torch.bincount(dst, None if weight is None else weight.double(), minlength=end)
        partition = Partition(
            rank=part.rank,
            num_parts=part.num_parts,
            num_inner=end,
            num_halo=nodes.num_halo,
            src=src,
            dst=dst,
            features=nodes.features[:0],
            labels=part.labels[:0],
            train_mask=no_mask,
            val_mask=no_mask,
            test_mask=no_mask,
            node_ids=nodes.node_ids,
            halo_owner=nodes.halo_owner,
            halo_index=nodes.halo_index,
            in_degree=in_degree,
            out_degree=out_degree,
            self_loops=0,
            edge_weight=weight,
            asked_for=nodes.asked_for,
        )
        return cls(
            first, partition, InEdges.build(src, dst, in_degree, out_degree, dtype, weight=weight)
        )

    def required(
        self, of_types: Mapping[str, Tensor], relations: frozenset[EdgeType] | None = None
    ) -> Tensor:
        """uint8 [I + R] for a plan: of each pair what its node is; zero for other relations than those given."""
        values = torch.zeros(self.partition.num_inner, dtype=torch.uint8)
        for name, begin in self.first.items():
            if relations is None or name in relations:
                values[begin : begin + len(of_types[name[2]])] = of_types[name[2]]
        return values

    def destinations(self, nodes: Mapping[str, Tensor]) -> dict[EdgeType, Tensor]:
        """Of the relations into some types the pairs of some nodes, int64 [n], which ascend over all."""
        return {
            name: nodes[name[2]] + begin for name, begin in self.first.items() if name[2] in nodes
        }

    def block(self, rows: Tensor, sources: NumberedEdges, pairs: Tensor) -> tuple[Block, Tensor]:
        """The in-edges of some pairs, int64 [n], and the rows of their sources; rows: [I, F] of inner nodes."""
        block = self.cut(sources, pairs)
        own = block.nodes < len(rows)
        received = sources.sources.unprojected.values[block.nodes[~own] - self.partition.num_inner]
        return block, torch.cat((rows[block.nodes[own]], received))

    @staticmethod
    def cut(sources: NumberedEdges, pairs: Tensor) -> Block:
        """The in-edges of some pairs, int64 [n], whose `nodes` are their sources alone, not the pairs."""
        block = sources.cut_block(pairs)
        numbers = block.nodes[block.num_dst :]
        return replace(
            block,
            nodes=numbers,
            num_unprojected=len(numbers),
            src=block.src - block.num_dst,
            out_degree=block.out_degree[block.num_dst :],
        )

    def within(self, *, own_degrees: bool) -> Self:
        """The edges from this part's own nodes, with their own degrees or those in the whole graph."""
        part, dtype = self.partition, self.edges.in_degree.dtype
        inner = part.of_edges(part.src < part.num_inner)
        in_degree = inner.sum_at(inner.dst, part.num_inner) if own_degrees else part.in_degree
        assert in_degree is not None
        assert part.out_degree is not None
        edges = InEdges.build(
            inner.src, inner.dst, in_degree, part.out_degree, dtype, weight=inner.edge_weight
        )
        return replace(self, partition=inner, edges=edges)

    def plan(self, required: Tensor, options: PlanOptions, comm: Communicator) -> ExchangePlan:
        """The exchange of the source type's rows."""
        return make_plan_from_required_layers(self.partition, options, required, comm)


def required_layers(
    out: Mapping[str, OutRelations],
    sizes: Mapping[str, tuple[int, ...]],
    required: dict[str, Tensor],
    num_layers: int,
    comm: Communicator | None,
) -> None:
    """Extend what the target's nodes are required for to what they read, layer by layer (ExchangePlan.required_layers).

    sizes: inner nodes by rank, of each type. required: uint8 [I] of each type, changed in place. comm: None for what
    they read of this part alone.
    """
    for layer in range(num_layers - 1, 0, -1):
        for name, each in out.items():
            partition, own = each.partition, required[name]
            sources = torch.zeros(partition.num_inner + partition.num_halo, dtype=torch.bool)
            sources[partition.src[each.required(required)[partition.dst] > layer]] = True
            own[sources[: len(own)] & (own < layer)] = layer
            halo = sources[partition.num_inner :]
            for nodes in request_halo_nodes(partition, halo, sizes[name], comm) if comm else ():
                own[nodes[own[nodes] < layer]] = layer


Means = dict[EdgeType, Tensor]
"""[n, F] of some nodes of a relation's destination type: the means over its in-edges."""


class RelationMeans:
    """The means of one type's rows over the relations that leave it, at some nodes, while rows arrive."""

    def __init__(
        self,
        out: OutRelations,
        rows: Tensor,
        nodes: Mapping[str, Tensor],
        device: torch.device,
        weight: Tensor | None = None,
    ) -> None:
        """rows: [I, F]. nodes: int64 [n] of each destination type. weight: [F, D] that rows go through first."""
        self._pairs = {name: pairs for name, pairs in out.destinations(nodes).items() if len(pairs)}
        conv, own = SAGEMean(1, 1, 0.0, root_weight=False), None
        if not self._pairs:
            return
        if weight is not None:
            conv.weight_neigh = nn.Parameter(weight, requires_grad=False)
            own = matmul(as_matrix(rows), weight.cpu())
        self._sums = AggregateAccumulator(
            conv, out.edges, torch.cat(list(self._pairs.values())), rows, own, device
        )

    def add(self, sources: Sources) -> None:
        """What was received of halo nodes; each edge may be served once, over all calls."""
        if self._pairs:
            self._sums.add(sources)

    def found(self) -> Means:
        """Of the relations that have any of the nodes, once everything is added."""
        if not self._pairs:
            return {}
        inputs = self._sums.inputs()
        total = inputs.projected if len(inputs.projected) else to_dense(inputs.matrices[-1])
        return dict(
            zip(self._pairs, torch.split(total, list(map(len, self._pairs.values()))), strict=True)
        )
