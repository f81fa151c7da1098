"""Partitioning, training and predicting in processes that cannot import DGL; `pytest --without-dgl`
is for more.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import ROOT, dgl_directory, need_dgl, random_graph, run_main, save_npz, thirds

from partitioning import dgl_import

BLOCKED = {"PYTHONPATH": os.pathsep.join((str(ROOT / "tests" / "without_dgl"), str(ROOT)))}
DATA = ("dataset_name=file", "dataset_file=toy.npz", "num_partitions=2")
SCRIPT = """
import retexo
data = "dataset_name=file", "dataset_file=toy.npz", "num_partitions=2"
small = "model=sage", "model.aggregator=pool", "hidden_dim=8", "num_rounds=[2]"
retexo.run(["app=train", *data, *small, "hydra.run.dir=run"])
retexo.run(["app=predict", *data, "checkpoint_dir=run", "hydra.run.dir=predicted"])
"""


def test_from_the_graph_to_predictions(tmp_path: Path) -> None:
    save_npz(tmp_path / "toy.npz", random_graph(), thirds(40))
    (tmp_path / "script.py").write_text(SCRIPT)
    subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=os.environ | BLOCKED, check=True
    )
    parts = tmp_path / "data" / "partitions" / "toy-random-vol-2"
    assert (parts / "part1" / "src.npy").is_file()
    assert not [*parts.rglob("*.dgl")]
    assert (tmp_path / "predicted" / "predictions.parquet").is_file()


def test_what_needs_dgl_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_dgl()
    save_npz(tmp_path / "toy.npz", random_graph(), thirds(40))
    dgl_directory(tmp_path / "theirs", random_graph(), thirds(40), np.arange(40) % 2)
    monkeypatch.setattr(dgl_import, "has_dgl", lambda: False)
    for arguments in (
        ("app=partition_data", "partition.dgl_files=true"),
        ("app=train", "partition_dir=theirs"),
    ):
        refused = run_main(*arguments, *DATA, cwd=tmp_path)
        assert (
            refused.rc,
            "needs DGL, which is not installed; it has wheels" in refused.stderr,
        ) == (2, True)
