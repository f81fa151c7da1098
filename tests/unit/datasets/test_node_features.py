"""Features that nodes without any are given, by their formulas."""

from dataclasses import replace

import numpy as np
import pytest
from support import random_graph

from partitioning.errors import InputError
from partitioning.features.kinds import HOPS, WIDTH, with_features
from partitioning.random_rows import random_rows


def test_random_rows_are_of_the_id_alone() -> None:
    ids = np.array([5, -3, 2**62, 0])
    rows = random_rows(ids, 64)
    assert (random_rows(ids[[2, 0]], 64) == rows[[2, 0]]).all()
    assert (random_rows(ids, 16) == rows[:, :16]).all()
    many = random_rows(np.arange(20_000), 8).astype(np.float64)
    assert np.allclose(many.mean(axis=0), 0, atol=0.03)
    assert np.allclose(np.cov(many.T), np.eye(8), atol=0.03)
    assert np.abs(many).max() <= 3**0.5


def test_positional_is_the_sum_of_normalised_averages() -> None:
    graph = random_graph()
    between = graph.src != graph.dst
    dense = np.zeros((graph.num_nodes,) * 2)
    np.add.at(dense, (graph.dst[between], graph.src[between]), 1)
    dense += dense.T
    mean = dense / np.maximum(dense.sum(axis=1, keepdims=True), 1)
    rows, expected = random_rows(graph.node_ids, WIDTH).astype(np.float64), 0
    for _ in range(HOPS):
        rows = mean @ rows
        expected = expected + rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    assert np.allclose(with_features(graph, ("positional",)).features, expected, atol=1e-4)


def test_a_list_is_side_by_side() -> None:
    graph = random_graph()
    made = with_features(graph, ("degree", "given", "random"))
    assert made.features.shape[1] == 2 + graph.num_features + WIDTH
    assert (made.features[:, 2 : 2 + graph.num_features] == graph.features).all()
    assert not made.features_of_ids
    assert with_features(graph, ("random",)).features_of_ids
    assert with_features(graph, ("given",)) is graph


def test_nobody_to_take_features_from() -> None:
    graph = random_graph()
    nothing = replace(
        graph, features=graph.features[:, :0], featured=np.zeros(graph.num_nodes, np.bool_)
    )
    with pytest.raises(InputError, match="no node has features; set features=degree"):
        with_features(nothing, ("neighbours",))
