"""partition_method=km1: its objective, the number of halo rows, its tolerances, its seed."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, make_graph

from partitioning.assign import hypergraph
from partitioning.graph.graph_data import GraphData


def graph_of(edges: list[tuple[int, int]], num_nodes: int) -> GraphData:
    return make_graph(edges, np.zeros((num_nodes, 1)), np.zeros(num_nodes))


def halo_rows(graph: GraphData, parts: np.ndarray) -> int:
    """Counted one by one: a part needs the row of each source that it does not own."""
    needed = {
        (u, parts[v])
        for u, v in zip(graph.edges.src.tolist(), graph.edges.dst.tolist(), strict=True)
    }
    return sum(part != parts[u] for u, part in needed)


def within(counted: np.ndarray, parts: np.ndarray, num_parts: int) -> bool:
    """No part has more than 5 % over its even share, or more than that share rounded up."""
    share = counted.sum() / num_parts
    return bool(
        np.bincount(parts[counted], minlength=num_parts).max()
        <= max(math.ceil(share), 1.05 * share + 1e-9)
    )


def everyone(parts: np.ndarray) -> np.ndarray:
    return np.ones(len(parts), dtype=bool)


@st.composite
def problems(draw: st.DrawFn) -> tuple[GraphData, np.ndarray, int]:
    """A directed graph with self loops, repeated edges, training nodes, and a number of parts."""
    num_nodes = draw(st.integers(1, 40))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=80))
    training = draw(st.lists(st.booleans(), min_size=num_nodes, max_size=num_nodes))
    return graph_of(edges, num_nodes), np.array(training), draw(st.integers(2, 7))


# --- halo rows ----------


def test_the_attempt_with_the_fewest_halo_rows_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([5, 3, 9, *[7] * 7])

    def attempt(*arguments: object) -> tuple[int, np.ndarray]:
        count = next(counts)
        return count, np.full(4, count)

    monkeypatch.setattr(hypergraph, "_attempt", attempt)
    rng, types = np.random.default_rng(0), np.zeros(4, int)
    parts = hypergraph.partition(graph_of([(0, 1)], 4), types == 1, 2, rng, types)
    assert parts.tolist() == [3] * 4


@given(problems(), st.randoms(use_true_random=False))
def test_a_move_costs_what_it_is_said_to_cost(
    problem: tuple[GraphData, np.ndarray, int], random: object
) -> None:
    graph, _, num_parts = problem
    parts = np.array([random.randrange(num_parts) for _ in range(graph.num_nodes)])  # type: ignore[attr-defined]
    nets = hypergraph.make_nets(graph.edges.src, graph.edges.dst, graph.num_nodes)
    assert hypergraph.halo_rows(nets, parts, num_parts) == halo_rows(graph, parts)
    nodes = np.flatnonzero(parts == parts[0])
    pins = hypergraph.count_pins(nets, parts, num_parts)
    is_absent, of_source = (pins == 0).astype(np.int32), pins[:, parts[0]]
    cost = hypergraph.count_added_rows(is_absent, of_source, nets.T.tocsr()[nodes])
    for row, node in enumerate(nodes):
        for part in set(range(num_parts)) - {int(parts[0])}:
            moved = parts.copy()
            moved[node] = part
            assert cost[row, part] == halo_rows(graph, moved) - halo_rows(graph, parts)


# --- the balance ----------


@given(problems(), st.integers(0, 2**32 - 1), st.booleans())
def test_any_assignment_is_brought_within_the_tolerance(
    problem: tuple[GraphData, np.ndarray, int], seed: int, crowded: bool
) -> None:
    graph, training, num_parts = problem
    rng = np.random.default_rng(seed)
    parts = (
        np.zeros(graph.num_nodes, np.int64)
        if crowded
        else rng.integers(num_parts, size=graph.num_nodes)
    )
    before = parts.copy()
    nets = hypergraph.make_nets(graph.edges.src, graph.edges.dst, graph.num_nodes)
    hypergraph.balance(parts, nets, training, num_parts, np.zeros(graph.num_nodes, int))
    assert ((parts >= 0) & (parts < num_parts)).all()
    assert within(everyone(parts), parts, num_parts)
    assert within(training, parts, num_parts)
    if within(everyone(before), before, num_parts) and within(training, before, num_parts):
        assert (parts == before).all()


# --- the library ----------


def test_it_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    star = graph_of([(0, leaf) for leaf in range(60)], 60)
    nobody, one_type = np.zeros(60, np.bool_), np.zeros(60, np.int64)
    for num_parts in (3, 2):
        hypergraph.partition(star, nobody, num_parts, np.random.default_rng(0), one_type)
    assert capfd.readouterr() == ("", "")


PROGRAM = """
import os, sys
from types import SimpleNamespace
import numpy as np
from partitioning.assign import hypergraph
if sys.argv[1] == "one core":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
src, dst = np.random.default_rng(7).integers(400, size=(2, 1200))
edges = SimpleNamespace(src=src, dst=dst)
graph = SimpleNamespace(edges=edges, num_nodes=400, num_edges=1200)
rng = np.random.default_rng(int(sys.argv[2]))
print(hypergraph.partition(graph, np.arange(400) % 3 == 0, 3, rng, src[:400] * 0).tolist())
"""


def assigned(*arguments: str) -> str:
    """What another process makes of one graph."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_a_seed_decides_on_any_number_of_cores() -> None:
    assert assigned("one core", "1") == assigned("all cores", "1")
