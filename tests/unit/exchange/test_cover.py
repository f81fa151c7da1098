"""Vertex covers compared with brute force, networkx and their own bounds."""

from itertools import product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo.arrays import IntArray
from retexo.exchange import cover as cover_module
from retexo.exchange.cover import Cover, minimum_cover

Graph = tuple[IntArray, IntArray, IntArray, IntArray]


@st.composite
def graphs(draw: st.DrawFn, *, most: int = 7, heaviest: int = 9, lightest: int = 0) -> Graph:
    num_left, num_right = draw(st.integers(1, most)), draw(st.integers(1, most))
    ends = st.tuples(st.integers(0, num_left - 1), st.integers(0, num_right - 1))
    edges = np.array(draw(st.lists(ends, max_size=3 * most)), dtype=np.int64).reshape(-1, 2)
    weights = st.integers(lightest, heaviest)
    left_weight = draw(st.lists(weights, min_size=num_left, max_size=num_left))
    right_weight = draw(st.lists(weights, min_size=num_right, max_size=num_right))
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


def assert_consistent(graph: Graph, found: Cover) -> None:
    left, right, left_weight, right_weight = graph
    assert (found.left_mask[left] | found.right_mask[right]).all()
    assert found.weight == left_weight[found.left_mask].sum() + right_weight[found.right_mask].sum()
    assert found.lower_bound <= found.weight


@given(graphs(most=20, heaviest=1000, lightest=1))
def test_exact_cover_weighs_what_flows(graph: Graph) -> None:
    found = minimum_cover(*graph)
    assert_consistent(graph, found)
    assert found.weight == found.lower_bound == maximum_flow_value(graph)


@given(graphs(most=20), st.integers(1, 2000))
def test_equal_weights_are_a_matching(graph: Graph, weight: int) -> None:
    left, right, left_weight, right_weight = graph
    equal = left, right, np.full_like(left_weight, weight), np.full_like(right_weight, weight)
    found = minimum_cover(*equal)
    assert_consistent(equal, found)
    assert found.weight == found.lower_bound == maximum_flow_value(equal)


@given(graphs(), st.booleans(), st.booleans())
def test_fallback_keeps_its_bound(graph: Graph, equal: bool, ascending: bool) -> None:
    left, right, left_weight, right_weight = graph
    if ascending:
        order = np.lexsort((left, right))
        graph = left, right, *_ = left[order], right[order], left_weight, right_weight
    if equal:
        graph = left, right, left_weight, right_weight = (
            left,
            right,
            left_weight * 0 + 7,
            right_weight * 0 + 7,
        )
    found = minimum_cover(*graph, exact_limit=0, matching_limit=0)
    assert_consistent(graph, found)
    one_side = min(left_weight[np.unique(left)].sum(), right_weight[np.unique(right)].sum())
    assert found.lower_bound <= least_weight(graph) <= found.weight <= one_side


@pytest.mark.parametrize("weights", [(1024, 1025), (400, 700), (20, 1000)])
@pytest.mark.parametrize("seed", range(3))
def test_solvers_agree_on_what_pruning_leaves(weights: tuple[int, int], seed: int) -> None:
    graph = random_graph(seed, 5000, 500, weights)
    exact, near = minimum_cover(*graph), minimum_cover(*graph, exact_limit=0, matching_limit=0)
    assert_consistent(graph, exact)
    assert_consistent(graph, near)
    assert exact.weight == exact.lower_bound == maximum_flow_value(graph)
    assert near.lower_bound <= exact.weight <= near.weight <= 1.01 * exact.weight
    assert near.weight <= 1.02 * near.lower_bound


def test_long_chain_is_exact_though_pruning_stops_early() -> None:
    rng = np.random.default_rng(0)
    left, right = np.repeat(np.arange(3000), 2)[1:], np.repeat(np.arange(3000), 2)[:-1]
    graph = left, right, rng.integers(1, 100, 3000), rng.integers(1, 100, 3000)
    found = minimum_cover(*graph)
    assert_consistent(graph, found)
    assert found.weight == found.lower_bound == maximum_flow_value(graph)


def test_weights_beyond_int32_have_a_bound() -> None:
    left, right, left_weight, right_weight = random_graph(1, 2000, 200, (400, 700))
    small = minimum_cover(left, right, left_weight, right_weight)
    scaled = minimum_cover(left, right, left_weight << 40, right_weight << 40)
    assert scaled.weight == scaled.lower_bound == small.weight << 40
    odd = left, right, (left_weight << 40) + 1, (right_weight << 40) + 1
    found = minimum_cover(*odd)
    assert_consistent(odd, found)
    assert found.weight <= 1.02 * found.lower_bound


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
    rng = np.random.default_rng(0)
    left, right = rng.integers(10_000, size=110_000), rng.integers(9_900, size=110_000)
    graph = left, right, np.ones(10_000, np.int64), np.ones(9_900, np.int64)
    least = minimum_cover(*graph).weight
    monkeypatch.setattr(cover_module, "_threshold_cover", None)  # which is made after ten passes
    found = minimum_cover(*graph, exact_limit=0, matching_limit=0)
    assert found.right_mask.sum() == found.weight == len(np.unique(right))
    assert found.lower_bound <= least <= found.weight <= 1.01 * found.lower_bound
    with pytest.raises(TypeError, match="NoneType"):  # of uneven degrees a side is not enough
        minimum_cover(*random_graph(0, 90_000, 10_000, (1, 2)), exact_limit=0, matching_limit=0)
