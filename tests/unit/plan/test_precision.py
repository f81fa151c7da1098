"""The choice of precisions by bandwidth: bytes beside those of a dry run, and the choices on the
shape of ogbn-products.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import random_graph, thirds, write_partitions

from partitioning.directory.meta import Meta
from partitioning.directory.partition import PartCounts
from retexo.plan.precision import choose, gradient_candidates, row_candidates
from retexo.plan.traffic import estimate_by_gradient
from retexo.settings.communication_settings import BY_NETWORK, bandwidth_of
from retexo.settings.compose import compose

FREE = frozenset(BY_NETWORK)
PARTS = 4


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_bytes_beside_a_dry_run(tmp_path: Path, model: str) -> None:
    graph = random_graph(400, 1600, 120)
    directory = write_partitions(tmp_path, graph, thirds(400), np.arange(400) % PARTS, PARTS)
    settings = compose(
        [f"model={model}", "hidden_dim=64", "num_rounds=[3,5]", "smoothing.steps=0", "device=cpu"]
    ).train
    assert directory.meta is not None
    rows = row_candidates(settings, directory.meta, 1e9)
    gradients = gradient_candidates(settings, directory.meta, 1e9, FREE)
    encodings = [
        replace(
            settings.gradient,
            precision=each.values["gradient.precision"],
            compression=each.values["gradient.compression"],
        )
        for each in gradients
    ]
    exact = replace(settings, exchange=replace(settings.exchange, precision=("fp32", "fp32")))
    parts = [directory.read(part) for part in range(PARTS)]
    dry = estimate_by_gradient(exact, directory, parts, encodings)
    for candidate, sent in zip(gradients, dry, strict=True):
        counted = sent.total(settings.num_rounds, ["gradients"]) / PARTS
        assert candidate.num_bytes == pytest.approx(counted, rel=0.08), (
            candidate
        )  # without losses and counts
    counted = dry[0].total(settings.num_rounds, ["features", "embeddings"]) / PARTS
    assert 0.8 < counted / rows[0].num_bytes < 1.05


@pytest.mark.parametrize(
    ("network", "rows", "gradients"),
    [
        ("10Mbit", "int4", "int6 powersgd"),
        ("100Mbit", "int4", "int6 powersgd"),
        ("1Gbit", "int8", "fp32"),
        ("10Gbit", "fp32", "fp32"),
    ],
)
def test_choices_on_the_shape_of_products(network: str, rows: str, gradients: str) -> None:
    """Rows: 1,836,000 halo nodes of a worker, 100 features and 128 values of the first layer."""
    meta = Meta(
        version=2,
        name="",
        dataset="",
        task="multiclass",
        num_nodes=2_449_029,
        num_edges=123_718_280,
        num_features=100,
        num_classes=47,
        cut_edges=0,
        parts=[PartCounts(612_257, 30_929_570, 1_836_000, 1, 1, 1, "")] * PARTS,
        request={},
        split={},
        versions={},
        checksums={},
    )
    settings, bandwidth = compose().train, bandwidth_of(network)
    assert bandwidth is not None
    found = row_candidates(settings, meta, bandwidth)
    assert found[0].num_bytes == 4 * 1_836_000 * (100 + 128)
    assert choose(found).encoding == rows
    assert choose(gradient_candidates(settings, meta, bandwidth, FREE)).encoding == gradients
