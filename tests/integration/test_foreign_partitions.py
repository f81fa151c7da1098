"""Directories of the public Retexo code train to the same result as ours (same assignment).

test_edges.py has those of DGL.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import MASKS, dgl, dgl_directory, random_graph, thirds, write_partitions

from retexo.apps import train
from retexo.settings.compose import compose

PARTS = np.random.default_rng(3).integers(3, size=40)
OVERRIDES = (
    "num_partitions=3",
    "hidden_dim=8",
    "num_rounds=[6]",
    "stopping=none",
    "dropout=0",
    "device=cpu",
    "cluster.threads=1",
    "optimizer._target_=torch.optim.SGD",
    "learning_rate=[0.1]",
    "+experiment=exact",
)


def trained(
    partition_dir: Path, run_dir: Path, *overrides: str
) -> tuple[dict[str, Any], list[float | None]]:
    """The summary, and the loss of every round."""
    summary = train.run(
        compose([*OVERRIDES, f"partition_dir={partition_dir}", *overrides]), run_dir
    )
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return summary, [json.loads(line)["train_loss"] for line in lines]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[float | None]]:
    folder = Path(tmp_path_factory.mktemp("ours"))
    directory = write_partitions(folder, random_graph(), thirds(40), PARTS, 3)
    return trained(directory.path, folder / "run")


def assert_same(found: Any, ours: Any) -> None:
    losses = [np.array(run[1], float) for run in (found, ours)]  # None, not computed, becomes NaN
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert found[0]["test"] == pytest.approx(ours[0]["test"], abs=1e-6)
    for kind in ("features", "embeddings", "gradients"):
        assert found[0]["bytes"]["by_kind"][kind] == ours[0]["bytes"]["by_kind"][kind]


def test_the_public_layout(ours: Any, tmp_path: Path) -> None:
    """PARTITION_DIR/NAME/NAME.json with a meta.json of counts, and degrees beside the features."""
    folder = tmp_path / "karateclub"
    dgl_directory(folder, random_graph(), thirds(40), PARTS)
    (folder / "toy.json").rename(folder / "karateclub.json")
    counts = {"n_feat": 6, "n_class": 3, **{f"n_{name.split('_')[0]}": 13 for name in MASKS}}
    (folder / "meta.json").write_text(json.dumps(counts))
    for path in folder.glob("part*/node_feat.dgl"):
        tensors = dgl.data.utils.load_tensors(str(path))
        rows = len(tensors["_N/label"])
        tensors |= {
            f"_N/{name}": torch.full((rows,), 7) for name in ("in_deg", "out_deg")
        }  # never those of the graph
        dgl.data.utils.save_tensors(str(path), tensors)
    assert_same(trained(tmp_path, tmp_path / "run", "dataset_name=karateclub"), ours)
