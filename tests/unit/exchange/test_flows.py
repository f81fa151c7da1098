"""Lower bounds of covers: closed forms, rounding, independence of threads."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from retexo.arrays import csr_from_counts
from retexo.exchange import fractional_flow as flows_module
from retexo.exchange.fractional_flow import RowBlocks, scaling_passes


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split small graphs into several blocks, as large ones are."""
    monkeypatch.setattr(flows_module, "EDGES_PER_BLOCK", 1000)
    monkeypatch.setattr(flows_module, "VERTICES_PER_BLOCK", 70)


def uneven_graph(dtype: type[np.floating[Any]] = np.float32) -> csr_array:
    """Empty first and last rows, one row larger than a block, and empty columns."""
    rng = np.random.default_rng(0)
    counts = np.concatenate(
        ([0, 0], rng.integers(9, size=500), [1500, 0], rng.integers(9, size=500), [0])
    )
    columns = np.concatenate([rng.choice(1990, count, replace=False) for count in counts]).astype(
        np.int32
    )
    return csr_from_counts(np.ones(len(columns), dtype), columns, counts, 2000)


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


@pytest.mark.usefixtures("_small_blocks")
def test_flows_do_not_depend_on_threads() -> None:
    graph = uneven_graph()
    weights = np.random.default_rng(0).integers(1, 1000, graph.shape[0]), np.full(2000, 300)

    def first() -> list[tuple[int, list[float]]]:
        return [
            (bound, price.tolist())
            for bound, price in islice(scaling_passes(RowBlocks.from_graph(graph), *weights), 5)
        ]

    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 7):
            torch.set_num_threads(number)
            found.append(first())
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1] == found[2]
