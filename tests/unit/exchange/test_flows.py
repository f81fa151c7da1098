"""Lower bounds of covers: closed forms, rounding, independence of threads."""

from itertools import islice
from typing import Any

import numpy as np
import pytest

from retexo.arrays import csr_from_counts
from retexo.exchange import fractional_flow as flows_module
from retexo.exchange.fractional_flow import RowBlocks, scaling_passes


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
