"""Exchange plans: both ends know the same edges; requirements of the whole graph; bytes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import make_plan, torch_threads

from partitioning.directory.partition import PartEdges, Partition, PartNodes
from partitioning.graph.graph_data import PLAIN_RELATION, PLAIN_TYPE
from retexo import arrays
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import SETUP
from retexo.exchange import exchange_plan
from retexo.exchange.boundary import (
    Boundary,
    BoundaryCode,
)
from retexo.exchange.coding.elias_fano import encode_sorted, encoded_size
from retexo.exchange.exchange_plan import (
    ExchangePlan,
    PlanOptions,
    Use,
    compute_global_out_degree,
)

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
NOTHING, TRAIN, VAL, TEST = range(4)
quickly = settings(deadline=None)


@pytest.fixture(scope="module", autouse=True)
def blocks_of_few_edges() -> Iterator[None]:
    """Small blocks, so that runs of equal numbers cross block boundaries."""
    with mock.patch.object(arrays, "BLOCK", 3), torch_threads(2):
        yield


@dataclass(frozen=True, eq=False)
class PartitionedGraph:
    """A partitioned graph, seen as a whole."""

    src: Ints
    """[E], no self loops."""
    dst: Ints
    role: Ints
    """[N] NOTHING, TRAIN, VAL or TEST."""
    part: Ints
    """[N]"""
    num_parts: int

    @property
    def num_nodes(self) -> int:
        return len(self.part)

    @property
    def labelled(self) -> Mask:
        """Nodes that the rounds use."""
        return (self.role == TRAIN) | (self.role == VAL)

    def count(self) -> NDArray[np.float64]:
        """Number of edges [to, from]."""
        count = np.zeros((self.num_nodes, self.num_nodes))
        np.add.at(count, (self.dst, self.src), 1)
        return count

    def nodes_of(self, part: int) -> Ints:
        """The nodes of a partition, by local id."""
        return np.flatnonzero(self.part == part)

    def embedded(self, num_layers: int) -> list[Mask]:
        """The nodes that each layer has to embed, bool [N]."""
        layers = [self.labelled | (self.role == TEST)]
        for _ in range(num_layers - 1):
            sources = np.zeros(self.num_nodes, bool)
            sources[self.src[layers[0][self.dst]]] = True
            layers.insert(0, layers[0] | sources)
        return layers

    def required_layers(self, num_layers: int, use: Use = "train") -> Ints:
        """[N] L + 1 for nodes of the rounds, else the number of layers that embed the node."""
        if use == "predict":
            return np.full(self.num_nodes, num_layers)
        embedded = np.sum(self.embedded(num_layers), axis=0)
        return np.where(self.labelled, num_layers + 1, embedded) if use == "train" else embedded

    def halo(self, part: int) -> Ints:
        """Nodes of other partitions with an edge into this one, by owner, then by local id."""
        into = (self.part[self.dst] == part) & (self.part[self.src] != part)
        return np.array(
            sorted(set(self.src[into].tolist()), key=lambda node: (self.part[node], node)),
            dtype=np.int64,
        )

    def partition(self, rank: int, features: torch.Tensor | None = None) -> Partition:
        """The partition of worker `rank`; features are of the whole graph, [N, F]."""
        inner, halo = self.nodes_of(rank), self.halo(rank)
        local = {int(node): place for place, node in enumerate(np.concatenate((inner, halo)))}
        own = self.part[self.dst] == rank
        roles = {"train_mask": TRAIN, "val_mask": VAL, "test_mask": TEST}
        index = [int((self.nodes_of(self.part[node]) < node).sum()) for node in halo]
        out_degree = torch.from_numpy(np.bincount(self.src, minlength=self.num_nodes))
        nodes = PartNodes(
            features=torch.zeros(len(inner), 1) if features is None else features[inner],
            node_ids=torch.from_numpy(inner),
            halo_owner=torch.from_numpy(self.part[halo]),
            halo_index=torch.tensor(index, dtype=torch.int64),
            out_degree=out_degree[np.concatenate((inner, halo))],
        )
        edges = PartEdges(
            src=torch.tensor([local[int(node)] for node in self.src[own]], dtype=torch.int32),
            dst=torch.tensor([local[int(node)] for node in self.dst[own]], dtype=torch.int32),
        )
        return Partition(
            rank=rank,
            num_parts=self.num_parts,
            target=PLAIN_TYPE,
            nodes={PLAIN_TYPE: nodes},
            relations={PLAIN_RELATION: edges},
            labels=torch.from_numpy(inner % 2),
            **{name: torch.from_numpy(self.role[inner] == role) for name, role in roles.items()},
            self_loops=0,
        )

    def plan_options(self, num_layers: int, **changes: Any) -> PlanOptions:
        sizes = tuple(len(self.nodes_of(part)) for part in range(self.num_parts))
        fields = {
            "all_nodes": bool((self.role != NOTHING).all()),
            "linear": True,
            "all_halo_rows": False,
        }
        return PlanOptions(num_layers, sizes, **{**fields, **changes})


def random_partitioned_graph(seed: list[int], roles: tuple[int, ...]) -> PartitionedGraph:
    """A graph on 1 to 5 partitions, often with hubs, always with duplicate edges.

    Some partitions are empty. Half of the graphs are symmetric, the others directed.
    """
    rng = np.random.default_rng(seed)
    num_nodes, num_parts = (
        rng.choice([2, 8, 14, 20], p=[0.05, 0.2, 0.35, 0.4]),
        rng.choice([1, 2, 2, 3, 3, 4, 5]),
    )
    num_edges = num_nodes * rng.choice([0, 1, 2, 4, 8], p=[0.02, 0.18, 0.3, 0.25, 0.25])
    skew = rng.choice([1, 3, 6], (2, 1))
    ends = (num_nodes * rng.random((2, num_edges)) ** skew).astype(np.int64)
    src, dst = rng.permutation(num_nodes)[ends[0]], rng.permutation(num_nodes)[ends[1]]
    src, dst = src[src != dst], dst[src != dst]
    used = rng.permutation(num_parts)[: max(2, num_parts - rng.choice([0, 0, 1, 3]))]
    role = rng.choice(roles, num_nodes, p=rng.dirichlet([rng.choice([0.5, 3, 10])] * len(roles)))
    src, dst = np.concatenate((src, src[:2])), np.concatenate((dst, dst[:2]))
    if rng.random() < 0.5:
        src, dst = np.concatenate((src, dst)), np.concatenate((dst, src))
    return PartitionedGraph(src, dst, role, rng.choice(used, num_nodes), int(num_parts))


def partitioned_graphs(
    roles: tuple[int, ...] = (NOTHING, TRAIN, VAL, TEST),
) -> st.SearchStrategy[PartitionedGraph]:
    """Graphs drawn from a seed: hypothesis's own are too small to need sums or a second phase."""
    digits = st.integers(0, 99)  # a single large one would mostly be 0, or what it was before
    return st.lists(digits, min_size=3, max_size=3).map(
        lambda seed: random_partitioned_graph(seed, roles)
    )


def plans(
    graph: PartitionedGraph, plan_options: PlanOptions
) -> tuple[list[ExchangePlan], list[int]]:
    """Every worker's plan, and the bytes that each sent for it."""

    def plan(comm: Communicator) -> tuple[ExchangePlan, int]:
        worker_plan = make_plan(graph.partition(comm.rank), plan_options, comm)
        assert {tag for tag, _ in comm.meter.entries} <= {SETUP}
        return worker_plan, sum(comm.meter.entries.values())

    plans_by_rank, sent = zip(*run_threads(graph.num_parts, plan), strict=True)
    return list(plans_by_rank), list(sent)


def pairs(graph: PartitionedGraph) -> list[tuple[int, int]]:
    return list(permutations(range(graph.num_parts), 2))


def cut_edges(
    graph: PartitionedGraph, owner: int, asker: int, destinations: Mask
) -> list[tuple[int, int]]:
    """Edges from one partition into wanted nodes, bool [N], of another, by global ids."""
    chosen = (
        (graph.part[graph.src] == owner)
        & (graph.part[graph.dst] == asker)
        & destinations[graph.dst]
    )
    return sorted(zip(graph.src[chosen].tolist(), graph.dst[chosen].tolist(), strict=True))


uses = st.sampled_from(["train", "evaluate", "predict"])
variants = st.fixed_dictionaries(
    {"linear": st.booleans(), "all_halo_rows": st.booleans(), "use": uses}
)


def edges_size(
    graph: PartitionedGraph, owner: int, asker: int, boundary: Boundary, options: Any
) -> int:
    """Bytes of a boundary's request: two counts, a digest, the edges, each target's layers.

    An owner that holds the reverse of each edge gets no edges, but the layers of all targets.
    """
    everything = np.ones(graph.num_nodes, bool)
    edges = cut_edges(graph, owner, asker, everything)
    reverse = cut_edges(graph, asker, owner, everything)
    num_inner, num_targets = len(graph.nodes_of(owner)), len(boundary.targets)
    size = encoded_size(len(boundary.source), num_inner * num_targets)
    if (
        options.linear
        and not options.all_halo_rows
        and edges == sorted((end, start) for start, end in reverse)
    ):
        size, num_targets = 0, len({target for _, target in edges})
    bits = {1: 2, 2: 2, 3: 3}[options.num_layers]
    return 3 * 8 + size + -(-num_targets * bits // 8)


def reach_size(graph: PartitionedGraph, owner: int, asker: int, num_layers: int) -> int:
    """Bytes of requests to embed nodes: a count and the nodes, for every layer but the first."""
    layers = graph.embedded(num_layers)[1:]
    named = [
        len({source for source, _ in cut_edges(graph, owner, asker, destinations)})
        for destinations in layers
    ]
    return sum(8 + encoded_size(count, len(graph.nodes_of(owner))) for count in named)


@quickly
@given(partitioned_graphs(), st.integers(1, 3), variants)
def test_bytes_by_hand(graph: PartitionedGraph, num_layers: int, variant: dict[str, bool]) -> None:
    plan_options = graph.plan_options(num_layers, **variant)
    plans_by_rank, sent = plans(graph, plan_options)
    for asker, plan in enumerate(plans_by_rank):
        owners = [owner for owner in range(graph.num_parts) if owner != asker]
        size = sum(
            edges_size(graph, owner, asker, plan.incoming[owner], plan_options) for owner in owners
        )
        if not (
            plan_options.all_halo_rows or plan_options.all_nodes or plan_options.use == "predict"
        ):
            size += sum(reach_size(graph, owner, asker, num_layers) for owner in owners)
        assert sent[asker] == size


@quickly
@given(partitioned_graphs(), st.integers(1, 3), variants)
@example(
    PartitionedGraph(np.array([0]), np.array([1]), np.array([NOTHING, TRAIN]), np.array([0, 1]), 2),
    1,
    {"linear": True, "all_halo_rows": False, "use": "train"},
)
def test_an_owner_that_knows_the_edges_serves_the_same_request(
    graph: PartitionedGraph, num_layers: int, variant: dict[str, bool]
) -> None:
    plan_options = graph.plan_options(num_layers, **variant)
    known_edges, _ = plans(graph, plan_options)
    with mock.patch.object(
        exchange_plan, "digest_of_edges", lambda *_, own_first: int(own_first)
    ):  # never equal
        listed_edges, _ = plans(graph, plan_options)
    for owner, asker in pairs(graph):
        ends = known_edges[owner].outgoing[asker], listed_edges[owner].outgoing[asker]
        for name in ("rows", "targets", "required_layers", "target_ptr", "source"):
            one, other = (getattr(boundary, name).tolist() for boundary in ends)
            assert one == other, name


def test_a_site_is_not_told_which_nodes_of_others_have_labels() -> None:
    graph = PartitionedGraph(
        np.array([0, 1]), np.array([1, 0]), np.array([TEST, TRAIN]), np.array([0, 1]), 2
    )

    def outgoing(comm: Communicator) -> Boundary:
        part = graph.partition(comm.rank)
        nodes = replace(part.nodes[PLAIN_TYPE], asked_for=(torch.arange(1),) * 2)
        part = replace(part, nodes={PLAIN_TYPE: nodes})
        return make_plan(part, graph.plan_options(1), comm).outgoing[1 - comm.rank]

    with mock.patch.object(exchange_plan, "digest_of_edges", side_effect=AssertionError):
        assert [b.required_layers.tolist() for b in run_threads(2, outgoing)] == [[2], [1]]


@quickly
@given(partitioned_graphs())
def test_out_degrees_of_the_whole_graph(graph: PartitionedGraph) -> None:
    sizes = graph.plan_options(1).part_sizes
    out_degrees = run_threads(
        graph.num_parts,
        lambda comm: compute_global_out_degree(
            graph.partition(comm.rank).edges, sizes, comm
        ).tolist(),
    )
    assert out_degrees == [
        graph.partition(rank).target_nodes.out_degree.tolist() for rank in range(graph.num_parts)
    ]


# --- one graph by hand ----------

# Part 0 owns nodes 0 to 3, part 1 nodes 4 to 6: locally 0 to 2. 4 trains, 6 is a test node; 5 is
# neither, but 6 has an edge from it. 3 is two hops away from 6. Nobody needs 2, which has no edge
# that leaves it.
LINE = PartitionedGraph(
    src=np.array([0, 0, 1, 1, 3, 5, 4]),
    dst=np.array([4, 4, 4, 6, 5, 6, 2]),
    role=np.array([NOTHING, NOTHING, NOTHING, NOTHING, TRAIN, NOTHING, TEST]),
    part=np.array([0, 0, 0, 0, 1, 1, 1]),
    num_parts=2,
)


def test_out_degrees_where_one_part_has_no_weights() -> None:
    """A part whose weights are all 1 stores none; the others' weights are 2."""

    def degrees(comm: Any) -> list[float]:
        edges = LINE.partition(comm.rank).edges
        weight = None if comm.rank == 0 else torch.full((len(edges.src),), 2.0)
        return compute_global_out_degree(
            replace(edges, edge_weight=weight), LINE.plan_options(1).part_sizes, comm
        ).tolist()

    assert run_threads(2, degrees) == [[4, 4, 0, 2, 1], [1, 2, 0, 4, 4, 2]]


def test_targets_out_of_order_are_refused() -> None:
    plans_by_rank, _ = plans(LINE, LINE.plan_options(2))
    boundary = plans_by_rank[1].incoming[0]
    code = BoundaryCode(len(boundary.source), 3, 4, 2)
    numbers = LINE.partition(1).edges.halo_index.numpy()
    assert code.read(code.write(boundary, numbers)).required_layers.tolist() == [3, 2, 1]
    swapped = replace(boundary, required_layers=boundary.required_layers[::-1])
    with pytest.raises(ValueError, match="do not descend"):
        code.read(code.write(swapped, numbers))


def test_a_target_without_an_edge_is_refused() -> None:
    code, edges = (
        BoundaryCode(2, 3, 4, 2),
        encode_sorted(np.array([1, 9]), 12),
    )  # of targets 0 and 2
    with pytest.raises(ValueError, match="no edge"):
        code.read(torch.from_numpy(np.append(edges, np.zeros(code.size - len(edges), np.uint8))))
