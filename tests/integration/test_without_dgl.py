"""Partitioning, training and predicting in processes that cannot import DGL; `pytest --without-dgl`
is for more.
"""

import os
from pathlib import Path

import numpy as np
from support import ROOT, dgl_directory, need_dgl, random_graph, run_cli, save_npz, thirds

BLOCKED = {"PYTHONPATH": os.pathsep.join((str(ROOT / "tests" / "without_dgl"), str(ROOT)))}
DATA = ("dataset_name=file", "dataset_file=toy.npz", "num_partitions=2")


def test_from_the_graph_to_predictions(tmp_path: Path) -> None:
    save_npz(tmp_path / "toy.npz", random_graph(), thirds(40))
    model = (
        "model=sage",
        "model.aggregator=pool",
        "hidden_dim=8",
        "num_rounds=[2]",
        "hydra.run.dir=run",
    )
    trained = run_cli("app=train", *DATA, *model, cwd=tmp_path, env=BLOCKED)
    assert trained.rc == 0, trained.output
    parts = tmp_path / "data" / "partitions" / "toy-random-vol-2"
    assert (parts / "part1" / "src.npy").is_file()
    assert not [*parts.rglob("*.dgl")]
    predicted = run_cli("app=predict", *DATA, "checkpoint_dir=run", cwd=tmp_path, env=BLOCKED)
    assert predicted.rc == 0, predicted.output


def test_what_needs_dgl_says_so(tmp_path: Path) -> None:
    need_dgl()
    save_npz(tmp_path / "toy.npz", random_graph(), thirds(40))
    dgl_directory(tmp_path / "theirs", random_graph(), thirds(40), np.arange(40) % 2)
    for arguments in (
        ("app=partition_data", "partition.dgl_files=true"),
        ("app=train", "partition_dir=theirs"),
    ):
        refused = run_cli(*arguments, *DATA, cwd=tmp_path, env=BLOCKED)
        assert (
            refused.rc,
            "needs DGL, which is not installed; it has wheels" in refused.stderr,
        ) == (2, True)
