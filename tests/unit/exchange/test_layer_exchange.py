"""One layer's exchange on random graphs: its output, and which rows are sent in how many bytes.

Training on a simulated device gives the results of the host.
"""

import dataclasses
import unittest.mock
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_device import DEVICE, SimulatedDevice
from support import (
    dense_conv,
    make_plan,
    random_graph,
    thirds,
    train_settings,
    worker_context,
    write_partitions,
)
from test_exchange_plan import (
    TRAIN,
    Ints,
    Mask,
    PartitionedGraph,
    cut_edges,
    pairs,
    partitioned_graphs,
    uses,
)
from torch import Tensor

from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import SETUP, MessageTag
from retexo.exchange import cover, layer_exchange
from retexo.exchange.boundary import INFER_PHASE, TRAIN_PHASE
from retexo.exchange.coding.columns import choose_exponents
from retexo.exchange.coding.values import Precision
from retexo.exchange.exchange_plan import Use
from retexo.exchange.layer_exchange import LayerExchange
from retexo.exchange.local_rows import LocalRows
from retexo.models import streaming_aggregate
from retexo.models.block import InEdges, NumberedEdges, Sources, gather_source_rows
from retexo.models.conv.gat import GAT
from retexo.models.conv.gcn import GCN
from retexo.models.conv.gin import GIN
from retexo.models.conv.sage import SAGEMean, SAGEPool
from retexo.models.convolution import Convolution
from retexo.models.linear import LinearConvolution
from retexo.models.streaming_aggregate import AggregateAccumulator
from retexo.tasks.scores import choose_and_score
from retexo.trainers import lazy
from retexo.trainers.label_propagation import make_smoother
from retexo.worker import make_context

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse"
)  # as retexo.models.matrix does, which pytest undoes
F64 = torch.float64
quickly = settings(deadline=None)


MODELS: dict[str, Callable[[int, int], Convolution]] = {
    "gcn": lambda width, out: GCN(width, out, 0.0),
    "sage-mean": lambda width, out: SAGEMean(width, out, 0.0),
    "gin": lambda width, out: GIN(width, out, 0.0, width=out + 1),
    "gat": lambda width, out: GAT(width, out, 0.0, 2, "mean", True),
    "sage-pool": lambda width, out: SAGEPool(width, out, 0.0),
}


def convolution(name: str, width: int, out: int) -> Convolution:
    conv = MODELS[name](width, out).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in conv.parameters():
        torch.nn.init.normal_(parameter, generator=generator)  # biases, too
    return conv.requires_grad_(False)


def features(kind: str, num_nodes: int, width: int, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((num_nodes, width))
    if kind == "uneven":  # an age, a salary
        return torch.from_numpy(rows * [*[1] * (width - 2), 60, 3000])
    return torch.from_numpy(
        rows if kind == "dense" else np.ceil(rows) * (rng.random(rows.shape) < 0.06)
    )


# --- an exchange ----------


@dataclass(frozen=True)
class Layer:
    """The layer to exchange, the number of layers, and options."""

    conv: Convolution
    layer: int = 0
    num_layers: int = 1
    plain: bool = False
    precision: Precision = "full"
    use: Use = "train"


@dataclass(frozen=True, eq=False)
class Side:
    """One worker's state in a layer's exchange."""

    edges: InEdges
    own: Tensor
    """[I, F]"""
    phases: tuple[Sources, Sources]
    """Sources after TRAIN_PHASE and after INFER_PHASE."""
    pieces: list[Sources]
    """Pieces of INFER_PHASE if they are streamed instead of kept."""
    sent: dict[tuple[MessageTag, int], int]
    """Bytes by tag and peer, without those of the plan."""

    def rows_sent(self, phase: int, peer: int) -> int:
        return sum(
            size
            for (tag, to), size in self.sent.items()
            if (tag.phase, to) == (phase, peer) and tag.kind != "setup"
        )


def run_exchange(
    graph: PartitionedGraph,
    rows: Tensor,
    case: Layer,
    *,
    stream: bool = False,
    between_nodes: bool = False,
    earlier_layers: Sequence[int] = (),
) -> list[Side]:
    """Run the exchange of a layer on every worker.

    Args:
        earlier_layers: exchanged before with the same plan.
    """
    linear = case.conv.linear_aggregation
    plan_options = graph.plan_options(
        case.num_layers, linear=linear, all_halo_rows=case.plain, use=case.use
    )

    def work(comm: Communicator) -> Side:
        comm.between_nodes = between_nodes
        part = graph.partition(comm.rank, rows)
        plan = make_plan(part, plan_options, comm)
        part_edges, out_degree = part.edges, part.target_nodes.out_degree
        in_degree = part_edges.sum_at(part_edges.dst, part_edges.num_inner)
        edges = InEdges.build(part_edges.src, part_edges.dst, in_degree, out_degree, F64)
        scale = case.conv.source_scale(edges.out_degree[: part.num_inner])
        local = LocalRows(
            part.features, scale, case.conv.project, case.conv.projected_width, case.precision
        )
        for layer in earlier_layers:
            earlier = LayerExchange(plan, layer, local, comm)
            earlier.run(TRAIN_PHASE)
            earlier.run(INFER_PHASE)
        comm.meter.entries.clear()  # type: ignore[attr-defined]
        exchange = LayerExchange(plan, case.layer, local, comm)
        first = exchange.run(TRAIN_PHASE)
        pieces = list(exchange.stream()) if stream else []
        phases = first, first if stream else exchange.run(INFER_PHASE)
        sent = {key: size for key, size in comm.meter.entries.items() if key[0] != SETUP}
        return Side(edges, part.features, phases, pieces, sent)

    return run_threads(graph.num_parts, work)


def nodes_by_phase(graph: PartitionedGraph, case: Layer) -> tuple[Mask, Mask]:
    """The nodes of the rounds, and the other nodes that this layer embeds, bool [N]."""
    embedded = graph.embedded(case.num_layers)[case.layer] | case.plain | (case.use == "predict")
    rounds = graph.labelled & (case.use == "train")
    return rounds, embedded & ~rounds


modes = st.sampled_from(
    [("dense", 70, 2), ("dense", 8, 2), ("dense", 3, 6), ("sparse", 60, 8), ("sparse", 60, 1)]
)
seldom = st.sampled_from([False, False, False, True])
layers = st.sampled_from([(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)])
"""Index of the layer, and number of layers."""


@quickly
@given(
    partitioned_graphs(),
    layers,
    st.sampled_from([*MODELS]),
    modes,
    seldom,
    uses,
    st.sampled_from([1, 300, 1 << 20]),
)
def test_a_layer_equals_that_of_the_whole_graph(
    graph: PartitionedGraph,
    place: tuple[int, int],
    name: str,
    mode: tuple[str, int, int],
    plain: bool,
    use: Use,
    waiting: int,
) -> None:
    """waiting: bytes of received rows that may wait for those of other peers."""
    kind, width, out = mode
    rows, case = (
        features(kind, graph.num_nodes, width),
        Layer(convolution(name, width, out), *place, plain, use=use),
    )
    with unittest.mock.patch.object(streaming_aggregate, "MAX_WAITING_BYTES", waiting):
        assert_as_whole(graph, rows, case)


def assert_as_whole(graph: PartitionedGraph, rows: Tensor, case: Layer) -> None:
    """Each partition's layer output equals that of the whole graph, in both phases."""
    expected = dense_conv(case.conv, torch.from_numpy(graph.count()), rows)
    for rank, side in enumerate(run_exchange(graph, rows, case)):
        ids = graph.nodes_of(rank)
        for phase, sources in enumerate(side.phases):
            nodes = np.flatnonzero(nodes_by_phase(graph, case)[phase][ids])
            if len(nodes):
                got = layer_output(
                    case.conv,
                    side,
                    torch.from_numpy(nodes),
                    [sources],
                    after_rounds=phase == INFER_PHASE,
                )
                torch.testing.assert_close(got, expected[ids[nodes]], rtol=1e-10, atol=1e-10)


def layer_output(
    conv: Convolution, side: Side, nodes: Tensor, pieces: Iterable[Sources], *, after_rounds: bool
) -> Tensor:
    """Layer output as retexo.trainers.lazy computes it, [n, D]; at least one node."""
    if not isinstance(conv, LinearConvolution):
        (sources,) = pieces
        block = NumberedEdges(side.edges, sources).cut_block(nodes)
        return conv(conv.prepare(block, *gather_source_rows(block, side.own, sources)))
    projected = (
        conv.project(side.own)
        if after_rounds and conv.projected_width < side.own.shape[1]
        else None
    )
    total = AggregateAccumulator(conv, side.edges, nodes, side.own, projected, torch.device("cpu"))
    for sources in pieces:
        total.add(sources)
    return conv(total.inputs())


PIECEWISE: tuple[tuple[str, str, int, int, bool, Precision], ...] = (
    ("gcn", "dense", 8, 2, False, "full"),  # projected in the second phase
    ("gcn", "sparse", 60, 8, False, "full"),
    ("gin", "dense", 3, 6, False, "int8"),
    ("gat", "uneven", 3, 6, False, "int4"),
    ("gat", "sparse", 60, 50, False, "full"),  # rows alone
    ("sage-mean", "sparse", 60, 8, True, "full"),
)
PIECES = 4


@pytest.mark.parametrize(
    ("num_parts", "cases"),
    [(2, PIECEWISE), (7, PIECEWISE[::2])]
    + [pytest.param(parts, PIECEWISE, marks=pytest.mark.long("fewer cases")) for parts in (7, 16)],
)
def test_messages_in_pieces_are_the_whole_ones(
    num_parts: int, cases: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal bit for bit and in order, with 8 more header bytes per piece."""
    monkeypatch.setattr(layer_exchange, "peers_per_batch", lambda *sizes: 1)
    rng = np.random.default_rng(num_parts)
    src, dst = rng.integers(160, size=(2, 900))
    ends = src[src != dst], dst[src != dst]
    graph = PartitionedGraph(
        *ends, rng.integers(4, size=160), rng.integers(num_parts, size=160), num_parts
    )
    largest = int(np.bincount(graph.part).max())
    streams = (False, True) if num_parts == 2 else (False,)
    for name, kind, width, out, plain, precision in cases:
        rows = features(kind, graph.num_nodes, width)
        case = Layer(convolution(name, width, out), plain=plain, precision=precision)
        before = [run_exchange(graph, rows, case, stream=stream) for stream in streams]
        with monkeypatch.context() as patch:
            patch.setattr(layer_exchange, "MAX_BATCH_BYTES", -(-largest * 8 * width // PIECES))
            after = [
                run_exchange(graph, rows, case, stream=stream, between_nodes=True)
                for stream in streams
            ]
        for rank, (one, other) in enumerate(zip(after[0], before[0], strict=True)):
            for phase in (TRAIN_PHASE, INFER_PHASE):
                assert_same_sources(one.phases[phase], other.phases[phase])
            longer = with_longer_headers(graph, rank, other.sent, case)
            if kind == "uneven":  # each piece has the exponents
                longer = {
                    (tag, peer): size + (PIECES - 1) * width * (tag.kind == "features" and size > 0)
                    for (tag, peer), size in longer.items()
                }
            assert one.sent == longer
        for one, other in zip(*after[1:], *before[1:], strict=True):
            assert len(one.pieces) == 1 + PIECES * (num_parts - 1) * (not plain)
            for peer, unsplit in enumerate(other.pieces[1:]):
                assert_pieces_of(unsplit, one.pieces[1 + PIECES * peer :][:PIECES])


@pytest.mark.parametrize("name", ["gat", "sage-mean"])
def test_columns_of_other_scales_keep_their_values_in_four_bits(name: str) -> None:
    """Rows, and partial sums of them; it costs one byte per column and message."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(160, size=(2, 900))
    ends = src[src != dst], dst[src != dst]
    graph = PartitionedGraph(*ends, rng.integers(4, size=160), rng.integers(3, size=160), 3)
    sides = {
        (kind, precision): run_exchange(
            graph,
            features(kind, graph.num_nodes, 5),
            Layer(convolution(name, 5, 9), precision=precision),
        )
        for kind in ("uneven", "dense")
        for precision in ("int4", "full")
    }
    for rank in range(3):
        rounded, exact = sides["uneven", "int4"][rank], sides["uneven", "full"][rank]
        for phase in (TRAIN_PHASE, INFER_PHASE):
            got, unrounded = rounded.phases[phase].unprojected, exact.phases[phase].unprojected
            assert torch.equal(got.halo, unrounded.halo)
            error = (got.values - unrounded.values).norm(dim=0) / unrounded.values.norm(dim=0)
            assert error.max() < 0.15
        even = sides["dense", "int4"][rank].sent
        assert rounded.sent == {
            (tag, peer): size + 5 * (tag.kind == "features") for (tag, peer), size in even.items()
        }


def with_longer_headers(
    graph: PartitionedGraph, rank: int, sent: dict[tuple[MessageTag, int], int], case: Layer
) -> dict[tuple[MessageTag, int], int]:
    """Bytes by tag and peer, if headers listed this many more piece sizes."""
    masks = nodes_by_phase(graph, case)
    return {
        (tag, peer): size
        + 8
        * (PIECES - 1)
        * (tag.kind == "setup")
        * sum(bool(cut_edges(graph, rank, peer, mask)) for mask in masks)
        for (tag, peer), size in sent.items()
    }


def assert_pieces_of(unsplit: Sources, pieces: list[Sources]) -> None:
    """Pieces have about equal length and concatenate to the whole."""
    for kind in ("unprojected", "projected"):
        expected, cut = getattr(unsplit, kind), [getattr(piece, kind) for piece in pieces]
        assert max(len(piece.values) for piece in cut) == -(-len(expected.values) // PIECES)
        assert torch.equal(torch.cat([piece.values for piece in cut]), expected.values)
        assert torch.equal(torch.cat([piece.sum_dst for piece in cut]), expected.sum_dst)
        first = np.cumsum([0, *(len(piece.values) for piece in cut)])
        halo = [
            torch.where(piece.halo < 0, -1, piece.halo + at)
            for piece, at in zip(cut, first, strict=False)
        ]
        assert torch.equal(torch.stack(halo).amax(dim=0), expected.halo)


def assert_same_sources(got: Sources, expected: Sources) -> None:
    for one, other in (
        (got.unprojected, expected.unprojected),
        (got.projected, expected.projected),
    ):
        for field in dataclasses.fields(one):
            assert torch.equal(getattr(one, field.name), getattr(other, field.name))


# --- bytes ----------


def fewest_vectors(edges: list[tuple[int, int]], sums_neighbours: bool) -> int:
    """Minimum number of rows and sums: the size of a maximum matching (Koenig).

    Without sums every source.
    """
    if not sums_neighbours:
        return len({source for source, _ in edges})
    graph = nx.Graph((("from", source), ("to", target)) for source, target in edges)
    sources = [vertex for vertex in graph if vertex[0] == "from"]
    return len(nx.bipartite.maximum_matching(graph, sources)) // 2


def received_rows(graph: PartitionedGraph, rank: int, side: Side) -> set[int]:
    """Halo nodes whose row was received in TRAIN_PHASE."""
    return set(graph.halo(rank)[side.phases[TRAIN_PHASE].unprojected.halo.numpy() >= 0].tolist())


@quickly
@given(
    partitioned_graphs(),
    layers,
    st.sampled_from([*MODELS]),
    st.sampled_from([(8, 2), (3, 6), (4, 4), (70, 3)]),
    uses,
    st.booleans(),
)
def test_dense_rows_take_the_bytes_of_the_fewest_vectors(
    graph: PartitionedGraph,
    place: tuple[int, int],
    name: str,
    shape: tuple[int, int],
    use: Use,
    known: bool,
) -> None:
    """known: earlier layers may have proved that one side is enough."""
    case = Layer(convolution(name, *shape), *place, use=use)
    rows = features("dense", graph.num_nodes, shape[0])
    with unittest.mock.patch.object(
        cover, "ONE_SIDE_MIN_EDGES", 0 if known else cover.ONE_SIDE_MIN_EDGES
    ):
        sides = run_exchange(
            graph, rows, case, earlier_layers=range(case.layer + 1 if known else 0)
        )
    widths = shape[0], min(shape[0], case.conv.projected_width)
    for owner, asker in pairs(graph):
        received: set[int] = set()
        for phase, mask in enumerate(nodes_by_phase(graph, case)):
            edges = cut_edges(graph, owner, asker, mask)
            unserved = [edge for edge in edges if edge[0] not in received]
            count = fewest_vectors(unserved, case.conv.linear_aggregation)
            assert sides[owner].rows_sent(phase, asker) == 8 * widths[phase] * count
            received = received_rows(graph, asker, sides[asker])


def test_sums_that_cancel_make_no_phase_longer_than_its_rows() -> None:
    """Rows 0 and 1 cancel, so whole sums of both are short.

    Once row 0 is sent, row 1 remains in them.
    """
    src = np.array([0] * 30 + [1] * 10)
    dst = np.concatenate((np.arange(2, 32), np.arange(2, 12)))
    graph = PartitionedGraph(src, dst, np.full(32, TRAIN), np.minimum(np.arange(32) // 2, 1), 2)
    rows = features("dense", 32, 40)
    rows[:, ::10] = 0  # else nothing is written sparse
    rows[1] = -rows[0]
    sender, _ = run_exchange(graph, rows, Layer(convolution("gin", 40, 8)))
    assert sender.rows_sent(TRAIN_PHASE, 1) <= 2 * 40 * 8


@quickly
@given(partitioned_graphs(), layers, st.sampled_from([*MODELS]), modes)
def test_an_answer_is_nine_bytes_and_a_bit_for_each_row_and_target(
    graph: PartitionedGraph, place: tuple[int, int], name: str, mode: tuple[str, int, int]
) -> None:
    kind, width, out = mode
    case = Layer(convolution(name, width, out), *place)
    sides = run_exchange(graph, features(kind, graph.num_nodes, width), case)
    for owner, asker in pairs(graph):
        size = 0
        for mask in nodes_by_phase(graph, case):
            edges = cut_edges(graph, owner, asker, mask)
            bits = len({source for source, _ in edges}) + len({target for _, target in edges})
            size += (9 + (-(-bits // 8) if case.conv.linear_aggregation else 0)) if edges else 0
        assert sides[owner].sent.get((MessageTag("setup", place[0]), asker), 0) == size


# --- rounded rows ----------


def assert_near(got: Tensor, true: Tensor, precision: Precision) -> None:
    """Within the codec's bound: half of bfloat16's last digit, or of the maximum / 127 or 7."""
    peak = true.abs().amax(dim=1, keepdim=True)
    bound = {"bf16": true.abs() * 2**-8, "int8": peak / 254, "int4": peak / 14}[precision]
    assert ((got - true).abs() <= bound * (1 + 1e-6)).all()


def divided(
    values: Tensor, owners: Ints, graph: PartitionedGraph, rows: Tensor, case: Layer
) -> Tensor:
    """Values [R, F] in the units that they were rounded in: their owner's, of each column."""
    units = torch.zeros(graph.num_parts, values.shape[1], dtype=F64)
    for owner in np.unique(owners):
        exponents = choose_exponents(rows[graph.part == owner], case.precision)
        units[owner] = 0 if exponents is None else exponents
    return values * torch.exp2(-units[owners])


def true_sums(
    graph: PartitionedGraph, rank: int, sources: Sources, projected: bool, rows: Tensor, case: Layer
) -> list[Tensor]:
    """Possible values of each received sum: scaled rows of one owner's unsent nodes."""
    vectors = sources.projected if projected else sources.unprojected
    present = (sources.unprojected.halo >= 0) | (sources.projected.halo >= 0)
    absent = np.zeros(graph.num_nodes, bool)
    absent[graph.halo(rank)[~present.numpy()]] = True
    scale = case.conv.source_scale(torch.from_numpy(graph.count().sum(0)))
    scaled = rows if scale is None else rows * scale[:, None]
    possible = []
    for node in graph.nodes_of(rank)[vectors.sum_dst.numpy()]:
        edge_counts = [
            graph.count()[node] * (absent & (graph.part == owner))
            for owner in range(graph.num_parts)
        ]
        possible.append(torch.from_numpy(np.stack(edge_counts)) @ scaled)
    return possible


@quickly
@given(
    partitioned_graphs(),
    st.sampled_from([*MODELS]),
    modes,
    st.sampled_from(["bf16", "int8", "int4"]),
    st.integers(0, 99),
)
def test_rounded_vectors_are_rounded_once(
    graph: PartitionedGraph, name: str, mode: tuple[str, int, int], precision: Precision, seed: int
) -> None:
    kind, width, out = mode
    case = Layer(convolution(name, width, out), precision=precision)
    rows = features(kind, graph.num_nodes, width, seed)
    for rank, side in enumerate(run_exchange(graph, rows, case)):
        halo, both = (
            graph.halo(rank),
            (side.phases[INFER_PHASE].unprojected, side.phases[INFER_PHASE].projected),
        )
        for vectors, own in zip(both, (rows, case.conv.project(rows)), strict=True):
            came = vectors.halo.numpy() >= 0
            pair = [vectors.values[vectors.halo[came]], own[halo[came]]]
            if own is rows:  # columns of different scales are rounded in their own
                pair = [
                    divided(values, graph.part[halo[came]], graph, rows, case) for values in pair
                ]
            assert_near(*pair, precision)  # type: ignore[call-arg]
        assert_sums_near(graph, rank, side, rows, case)


def assert_sums_near(
    graph: PartitionedGraph, rank: int, side: Side, rows: Tensor, case: Layer
) -> None:
    """Each sum is near the sum of the rows that one owner did not send in that phase."""
    seen = {False: 0, True: 0}
    for sources in side.phases:
        for projected, vectors in ((False, sources.unprojected), (True, sources.projected)):
            possible = true_sums(graph, rank, sources, projected, rows, case)
            for place, sums in list(zip(vectors.sums.tolist(), possible, strict=True))[
                seen[projected] :
            ]:
                true = case.conv.project(sums) if projected else sums
                owner = int((true - vectors.values[place]).abs().sum(dim=1).argmin())
                pair = [vectors.values[[place]], true[[owner]]]
                if not projected:
                    pair = [
                        divided(values, np.array([owner]), graph, rows, case) for values in pair
                    ]
                assert_near(*pair, case.precision)  # type: ignore[call-arg]
            seen[projected] = len(possible)


@pytest.mark.parametrize(
    "options",
    [
        ("model=gcn", "exchange.precision=fp32", "model.input_skip=false"),
        ("model=sage", "exchange.precision=[int8,int4]", "model.self_weight=false"),
        ("model=gat", "heads=1"),
        ("model=gin",),
    ],
)
def test_training_on_a_device(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph(width=9)
    graph.features[:, 0] *= 1000  # so that columns are divided by powers of two
    if "model=gin" in options:  # sparse features, which stay on the host
        graph.features[np.arange(9) != np.arange(40)[:, None] % 9] = 0
    directory = write_partitions(tmp_path, graph, thirds(40), [0, 1] * 20, 2)
    settings = train_settings(*options, "dropout=0", "num_rounds=[2]", "hidden_dim=7")

    def train(comm: Communicator) -> tuple[list[Tensor], Any, int]:
        context, stages = worker_context(comm, directory, settings)
        trained = lazy.train(context, [stage.to(context.device) for stage in stages])
        _, scores = choose_and_score(context, stages, trained.logits, make_smoother(context))
        return trained.logits, scores.to_json(), comm.meter.total

    def train_on_device(comm: Communicator) -> tuple[Any, Counter[str]]:
        with SimulatedDevice() as device:
            return train(comm), device.moved

    on_host = run_threads(2, train)
    monkeypatch.setattr(make_context, "choose_device", lambda *which: DEVICE)
    for (logits, *rest), ((logits_there, *rest_there), moved) in zip(
        on_host, run_threads(2, train_on_device), strict=True
    ):
        torch.testing.assert_close(logits_there, logits, equal_nan=True)
        assert rest_there == rest
        assert moved["to device"]
        assert moved["to host"]
