"""Vertex covers compared with brute force, networkx and their own bounds.

Selections are compared with every other selection, and messages with dense sums.
"""

from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from retexo.arrays import IntArray, Mask, csr_from_counts
from retexo.exchange import cover as cover_module
from retexo.exchange import fractional_flow as flows_module
from retexo.exchange.coding.rows import decode, row_sizes
from retexo.exchange.coding.values import Precision
from retexo.exchange.cover import Cover, minimum_cover
from retexo.exchange.fractional_flow import RowBlocks, scaling_passes
from retexo.exchange.local_rows import DENSE, PROJECTED, SPARSE, LocalRows, MessageFormat
from retexo.exchange.message_selection import (
    CutEdges,
    MessageVectors,
    Selection,
    VectorBound,
    select_vectors,
)

Graph = tuple[IntArray, IntArray, IntArray, IntArray]


@st.composite
def graphs(draw: st.DrawFn, *, most: int = 7, heaviest: int = 9, lightest: int = 0) -> Graph:
    num_left, num_right = draw(st.integers(1, most)), draw(st.integers(1, most))
    ends = st.tuples(st.integers(0, num_left - 1), st.integers(0, num_right - 1))
    edges = np.array(draw(st.lists(ends, max_size=3 * most)), dtype=np.int64).reshape(-1, 2)
    weights = st.integers(lightest, heaviest)
    left_weight = draw(st.lists(weights, min_size=num_left, max_size=num_left))
    right_weight = draw(st.lists(weights, min_size=num_right, max_size=num_right))
    if draw(st.booleans()):  # equal weights, of which the cover is a matching
        weight = draw(st.integers(1, 2000))
        left_weight, right_weight = [weight] * num_left, [weight] * num_right
    return edges[:, 0], edges[:, 1], np.array(left_weight), np.array(right_weight)


def random_graph(seed: int, num_edges: int, num_rows: int, weights: tuple[int, int]) -> Graph:
    """A graph with skewed degrees, which pruning alone does not solve."""
    rng = np.random.default_rng(seed)
    share = np.arange(1, num_rows + 1) ** -0.7
    left, right = rng.choice(num_rows, (2, num_edges), p=share / share.sum())
    return left, right, rng.integers(*weights, num_rows), rng.integers(*weights, num_rows)


def least_weight(graph: Graph) -> int:
    """Minimum weight by brute force over all sets of left vertices."""
    left, right, left_weight, right_weight = graph
    best = int(left_weight.sum())
    for bits in product((False, True), repeat=len(left_weight)):
        taken = np.array(bits)
        needed = np.unique(right[~taken[left]])
        best = min(best, int(left_weight[taken].sum() + right_weight[needed].sum()))
    return best


def maximum_flow_value(graph: Graph) -> int:
    left, right, left_weight, right_weight = graph
    network = nx.DiGraph()
    network.add_nodes_from(["source", "sink"])
    network.add_edges_from((("l", int(u)), ("r", int(v))) for u, v in zip(left, right, strict=True))
    for vertex, weight in enumerate(left_weight):
        network.add_edge("source", ("l", vertex), capacity=int(weight))
    for vertex, weight in enumerate(right_weight):
        network.add_edge(("r", vertex), "sink", capacity=int(weight))
    return int(nx.maximum_flow_value(network, "source", "sink"))


def assert_consistent(graph: Graph, cover: Cover) -> None:
    left, right, left_weight, right_weight = graph
    assert (cover.left_mask[left] | cover.right_mask[right]).all()
    assert cover.weight == left_weight[cover.left_mask].sum() + right_weight[cover.right_mask].sum()
    assert cover.lower_bound <= cover.weight


@settings(max_examples=60)
@given(graphs(most=20, heaviest=1000, lightest=1))
def test_exact_cover_weighs_what_flows(graph: Graph) -> None:
    cover = minimum_cover(*graph)
    assert_consistent(graph, cover)
    assert cover.weight == cover.lower_bound == maximum_flow_value(graph)


@settings(max_examples=60)
@given(graphs(), st.booleans())
def test_fallback_keeps_its_bound(graph: Graph, ascending: bool) -> None:
    left, right, left_weight, right_weight = graph
    if ascending:
        order = np.lexsort((left, right))
        graph = left, right, *_ = left[order], right[order], left_weight, right_weight
    cover = minimum_cover(*graph, exact_limit=0, matching_limit=0)
    assert_consistent(graph, cover)
    one_side = min(left_weight[np.unique(left)].sum(), right_weight[np.unique(right)].sum())
    assert cover.lower_bound <= least_weight(graph) <= cover.weight <= one_side


@pytest.mark.parametrize(("seed", "weights"), [*enumerate([(1024, 1025), (400, 700), (20, 1000)])])
def test_solvers_agree_on_what_pruning_leaves(seed: int, weights: tuple[int, int]) -> None:
    graph = random_graph(seed, 5000, 500, weights)
    exact, near = minimum_cover(*graph), minimum_cover(*graph, exact_limit=0, matching_limit=0)
    assert_consistent(graph, exact)
    assert_consistent(graph, near)
    assert exact.weight == exact.lower_bound == maximum_flow_value(graph)
    assert near.lower_bound <= exact.weight <= near.weight <= 1.01 * exact.weight
    assert near.weight <= 1.02 * near.lower_bound


def test_weights_beyond_int32_have_a_bound() -> None:
    left, right, left_weight, right_weight = random_graph(1, 2000, 200, (400, 700))
    small = minimum_cover(left, right, left_weight, right_weight)
    scaled = minimum_cover(left, right, left_weight << 40, right_weight << 40)
    assert scaled.weight == scaled.lower_bound == small.weight << 40
    indivisible = left, right, (left_weight << 40) + 1, (right_weight << 40) + 1
    cover = minimum_cover(*indivisible)
    assert_consistent(indivisible, cover)
    assert cover.weight <= 1.02 * cover.lower_bound


@pytest.mark.parametrize(
    ("left", "right", "left_weight", "right_weight", "message"),
    [
        ([0], [0, 1], [1], [1, 1], "one length"),
        ([1], [0], [1], [1], "left names vertices 1 to 1"),
        ([0], [-1], [1], [1], "right names vertices -1"),
        ([0], [0], [1], [-2], "right_weight holds -2"),
    ],
)
def test_bad_graphs_are_refused(
    left: list[int], right: list[int], left_weight: list[int], right_weight: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        minimum_cover(*(np.array(values) for values in (left, right, left_weight, right_weight)))


def test_of_many_edges_a_side_within_a_hundredth_is_taken_after_few_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = 50_000, 50_001, 10_000_001
    assert [cover_module.acceptable_ratio(size, 10_000_000) for size in sizes] == [1, 1.002, 1.01]
    rng = np.random.default_rng(0)
    left, right = rng.integers(10_000, size=110_000), rng.integers(9_900, size=110_000)
    graph = left, right, np.ones(10_000, np.int64), np.ones(9_900, np.int64)
    least = minimum_cover(*graph).weight
    monkeypatch.setattr(cover_module, "_threshold_cover", None)  # which is made after ten passes
    cover = minimum_cover(*graph, exact_limit=0, matching_limit=0)
    assert cover.right_mask.sum() == cover.weight == len(np.unique(right))
    assert cover.lower_bound <= least <= cover.weight <= 1.01 * cover.lower_bound
    uneven = random_graph(0, 90_000, 10_000, (1, 2))
    with pytest.raises(TypeError, match="NoneType"):  # of uneven degrees a side is not enough
        minimum_cover(*uneven, exact_limit=0, matching_limit=0)
    exact = minimum_cover(*uneven)
    assert exact.weight == exact.lower_bound < min(len(np.unique(ends)) for ends in uneven[:2])


@pytest.mark.parametrize("blocks", [1, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_bound_is_one_though_sums_are_rounded(
    dtype: type[np.floating[Any]], blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several stars: rows with many targets, whose flow equals the row's weight."""
    rng, num_stars, num_targets = np.random.default_rng(0), 20, 50_000
    targets = np.arange(num_stars * num_targets)
    monkeypatch.setattr(flows_module, "EDGES_PER_BLOCK", len(targets) // blocks)
    graph = csr_from_counts(
        np.ones(len(targets), dtype), targets, np.full(num_stars, num_targets), len(targets)
    )
    weights = rng.integers(1, 1 << 40, num_stars), rng.integers(1 << 40, 1 << 41, len(targets))
    assert len(RowBlocks.from_graph(graph).rows) == blocks
    for bound, _ in islice(scaling_passes(RowBlocks.from_graph(graph), *weights), 20):
        assert 0.9 * weights[0].sum() < bound <= weights[0].sum()


F64 = torch.float64
FORMATS = {"dense": DENSE, "sparse": SPARSE, "projected": PROJECTED}
PRECISIONS: tuple[Precision, ...] = ("full", "bf16", "int8", "int4")
quickly = settings(deadline=None)


@dataclass(frozen=True, eq=False)
class Case:
    """A boundary with its rows and their dense sums."""

    local: LocalRows
    nodes: IntArray
    source: IntArray
    target: IntArray
    num_targets: int

    @property
    def edges(self) -> CutEdges:
        has_edge = np.isin(np.arange(len(self.nodes)), self.source)
        return CutEdges(self.nodes, self.source, self.target, self.num_targets, has_edge)

    @property
    def rows(self) -> Tensor:
        return self.local.rows[self.nodes]

    def sums(self, rows: Mask) -> Tensor:
        """The rest of each target's sum if these rows are sent, [R, F]."""
        count = torch.zeros(self.num_targets, len(self.nodes), dtype=F64)
        for row, target in zip(self.source, self.target, strict=True):
            count[target, row] += not rows[row]
        scale = (
            torch.ones(len(self.local.rows), dtype=F64)
            if self.local.scale is None
            else self.local.scale
        )
        return (count * scale[self.nodes]) @ self.rows

    def select_vectors(self, *, partial_sums: bool = True, projected: bool = False) -> Selection:
        return select_vectors(
            self.local, self.edges, partial_sums=partial_sums, projected=projected
        )

    def write(self, selection: Selection) -> Tensor:
        vectors = MessageVectors.from_selection(self.local, selection, self.edges)
        return vectors.write(*vectors.pieces(1))

    def targets_left(self, rows: Mask) -> Mask:
        """Targets with an edge from a row that is not sent."""
        left = np.zeros(self.num_targets, bool)
        left[self.target[~rows[self.source]]] = True
        return left

    def sizes(self, message_format: MessageFormat) -> tuple[IntArray, IntArray]:
        """Bytes of each row [L] and of each target's whole sum [R]."""
        precision, rows = self.local.precision, self.rows
        if message_format == SPARSE:
            whole_sums = self.sums(np.zeros(len(rows), bool))
            return row_sizes(rows, SPARSE.row_format(precision)), row_sizes(
                whole_sums, SPARSE.row_format(precision)
            )
        width = self.local.projected_width if message_format.projected else rows.shape[1]
        size = {
            "full": 8 * width,
            "bf16": 2 * width,
            "int8": width + 4,
            "int4": (width + 1) // 2 + 4,
        }[precision]
        return np.full(len(rows), size), np.full(self.num_targets, size)

    def weight(self, selection: Selection) -> int:
        rows, sums = self.sizes(selection.format)
        return int(rows[selection.rows].sum() + sums[selection.sums].sum())


def owner(
    rows: Tensor, projected_width: int, scale: Tensor | None = None, precision: Precision = "full"
) -> LocalRows:
    weight = torch.randn(
        rows.shape[1], projected_width, dtype=F64, generator=torch.Generator().manual_seed(1)
    )
    return LocalRows(rows, scale, lambda rows: rows @ weight, projected_width, precision)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to 5 rows and 4 targets, small counts as features, all edges among them up to twice."""
    ends = sorted(
        draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=14))
    )
    (right, target), (left, source) = (
        np.unique(side, return_inverse=True) for side in np.array(ends).T
    )
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    shape = 8, draw(st.sampled_from([1, 3, 9, 40, 200]))
    filled = rng.choice([0.03, 0.1, 0.5, 1.0] if draw(st.booleans()) else [0.02, 0.05], (8, 1))
    rows = torch.from_numpy(rng.integers(1, 4, shape) * (rng.random(shape) < filled)).double()
    # Not such that counts times scales, added up, can be exactly 1, which is a shorter value.
    scale = torch.from_numpy(rng.choice([0.7, 1.3], 8)) if draw(st.booleans()) else None
    local = owner(rows, draw(st.sampled_from([1, 4, 30])), scale, draw(st.sampled_from(PRECISIONS)))
    nodes = np.sort(rng.choice(8, len(left), replace=False))
    return Case(local, nodes, source, target, len(right))


def covers(case: Case) -> list[tuple[Mask, Mask]]:
    """Every set of rows, with the sums that remain to be sent."""
    masks = [np.array(bits) for bits in product((False, True), repeat=len(case.nodes))]
    return [(rows, case.targets_left(rows)) for rows in masks]


def least_selected(case: Case, message_format: MessageFormat) -> int:
    row_size, sum_size = case.sizes(message_format)
    return min(int(row_size[rows].sum() + sum_size[sums].sum()) for rows, sums in covers(case))


def formats(projected: bool) -> list[MessageFormat]:
    return [DENSE, SPARSE, PROJECTED] if projected else [DENSE, SPARSE]


def assert_serves_all(case: Case, selection: Selection) -> None:
    assert (selection.rows[case.source] | selection.sums[case.target]).all()


@quickly
@given(cases(), st.booleans())
def test_no_other_selection_takes_fewer_bytes(case: Case, projected: bool) -> None:
    chosen = case.select_vectors(projected=projected)
    assert_serves_all(case, chosen)
    assert case.weight(chosen) == min(
        least_selected(case, message_format) for message_format in formats(projected)
    )


@quickly
@given(cases(), st.sampled_from([1, 9, 40]), st.booleans(), st.booleans())
def test_what_was_chosen_before_is_chosen_again_only_where_it_is_the_shortest(
    case: Case, width: int, dense_first: bool, projected: bool
) -> None:
    """Same edges, rows of another layer; rows without zeros have equal sizes."""
    dense = replace(case, local=owner(torch.full((8, width), 0.7, dtype=F64), 30))
    one, other = (dense, case) if dense_first else (case, dense)
    first, every = (
        one.select_vectors(projected=projected),
        (np.ones(len(case.nodes), bool), np.ones(case.num_targets, bool)),
    )
    bound = VectorBound(*every, first)
    assert first.equal_sizes or not dense_first
    assert bound.reusable_selection(np.append(every[0][1:], False), every[1]) is None
    assert bound.reusable_selection(every[0], np.append(every[1][1:], False)) is None
    before = bound.reusable_selection(*every)
    chosen = select_vectors(
        other.local, case.edges, partial_sums=True, projected=projected, previous=before
    )
    assert_serves_all(case, chosen)
    assert other.weight(chosen) == min(
        least_selected(other, message_format) for message_format in formats(projected)
    )
    assert chosen.sum_sizes is None or (chosen.sum_sizes == other.sizes(chosen.format)[1]).all()


@quickly
@given(cases(), st.booleans())
def test_a_message_is_as_long_as_was_weighed(case: Case, projected: bool) -> None:
    """A sparse message may be shorter: a sum without the sent rows may have fewer values."""
    chosen = case.select_vectors(projected=projected)
    length = len(case.write(chosen))
    assert length == case.weight(chosen) or (
        chosen.format == SPARSE and length < case.weight(chosen)
    )


@quickly
@given(cases(), st.booleans(), st.integers(1, 4))
def test_the_size_of_a_piece_is_that_of_what_is_written(
    case: Case, projected: bool, count: int
) -> None:
    """Whole sums are not computed for their sizes."""
    vectors = MessageVectors.from_selection(
        case.local, case.select_vectors(projected=projected), case.edges
    )
    pieces = vectors.pieces(count)
    assert list(map(vectors.size, pieces)) == [len(vectors.write(piece)) for piece in pieces]
    assert (vectors.sum_sizes is None) == bool(len(vectors.nodes))


@quickly
@given(cases(), st.sampled_from(sorted(FORMATS)), st.integers(0, 31))
def test_what_is_written_reads_as_rows_and_sums(
    case: Case, message_format: str, place: int
) -> None:
    """For any selection: the rows, then the sums of the edges that no row serves."""
    local = LocalRows(
        case.local.rows, case.local.scale, case.local.project, case.local.projected_width, "full"
    )
    case = Case(local, case.nodes, case.source, case.target, case.num_targets)
    selection = Selection(FORMATS[message_format], *covers(case)[place % 2 ** len(case.nodes)])
    expected = torch.cat((case.rows[selection.rows], case.sums(selection.rows)[selection.sums]))
    expected = local.project(expected) if selection.format.projected else expected
    row_format = selection.format.row_format("full")
    back = decode(case.write(selection), (len(expected), expected.shape[1]), F64, row_format)
    torch.testing.assert_close(back, expected, rtol=1e-12, atol=1e-12)


def test_what_is_sent_after_the_weights_does_not_need_the_rows() -> None:
    rows = torch.rand(8, 40, dtype=F64, generator=torch.Generator().manual_seed(0)) + 1
    ends = np.array([0, 0, 1, 2], np.int32), np.array([0, 1, 1, 1], np.int32)
    edges = CutEdges(np.array([1, 4, 6], np.int32), *ends, 2, np.ones(3, bool))
    complete, released = (owner(rows, 4) for _ in range(2))
    released.release()
    assert released.rows.isnan().all()
    assert (released.rows.shape, released.rows.untyped_storage().nbytes()) == (rows.shape, 8)
    written = []
    for local in (complete, released):
        selection = select_vectors(local, edges, partial_sums=True, projected=True)
        assert selection.format == PROJECTED
        (piece,) = (vectors := MessageVectors.from_selection(local, selection, edges)).pieces(1)
        written.append(vectors.write(piece))
    assert torch.equal(*written)
