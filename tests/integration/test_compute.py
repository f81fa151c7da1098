"""How workers compute: in bfloat16, in batches, on a GPU, and without DGL.

Each is compared with the same run on the CPU in float32.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support import (
    MODELS,
    dgl_directory,
    need_dgl,
    random_graph,
    read_rounds,
    run_main,
    save_npz,
    thirds,
    write_partitions,
)

from partitioning import dgl_import
from partitioning.errors import InputError
from retexo.apps import train
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings
from retexo.worker import process

ON_GPU = pytest.param(
    "device=cuda",
    marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
)
SMALL = (
    "hidden_dim=8",
    "heads=2",
    "num_rounds=[4]",
    "dropout=0",
    "stopping=none",
    "cluster.threads=1",
    "+experiment=exact",
)


def test_more_workers_than_the_memory_holds_are_refused() -> None:
    """Thousands of processes would take minutes to fill it, and then the kernel ends the run."""
    here = compose(["num_partitions=90000"])
    with pytest.raises(InputError, match=r"num_partitions=90000: 90,000 workers on this node need"):
        process.check_machine(here)
    process.check_machine(compose(["num_partitions=90000", "parts_per_node=1"]))


def settings(folder: Path, parts: int, *overrides: str) -> Settings:
    data = (
        "dataset_name=file",
        "dataset_file=toy.npz",
        f"partition_dir={folder}",
        f"num_partitions={parts}",
    )
    return compose([*data, *SMALL, *overrides])


def train_losses(folder: Path, parts: int, name: str, *overrides: str) -> torch.Tensor:
    """Training losses of all rounds, in order."""
    if not list(folder.glob(f"*-{parts}")):
        write_partitions(
            folder,
            random_graph(60, 400, 24),
            thirds(60),
            [node % parts for node in range(60)],
            parts,
        )
    train.run(settings(folder, parts, *overrides), folder / name)
    values = [line["train_loss"] for line in read_rounds(folder / name)]
    return torch.tensor([loss for loss in values if loss is not None])


LONG = pytest.mark.long("other models multiply likewise")


@pytest.mark.parametrize(
    "model",
    ["gat-mean", *(pytest.param(name, marks=LONG) for name in MODELS if name != "gat-mean")],
)
def test_bfloat16_is_near_and_batches_train(tmp_path: Path, model: str) -> None:
    common = (*MODELS[model], "device=cpu")
    exact, rounded = (
        train_losses(tmp_path, 2, name, *common, f"compute.precision={name}")
        for name in ("fp32", "bf16")
    )
    batches = train_losses(tmp_path, 2, "batches", *common, "batch_size=3")
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(rounded, exact, rtol=0.03, atol=0)
    assert not torch.equal(batches, exact)
    assert batches.isfinite().all()


@pytest.mark.parametrize("device", [ON_GPU])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_a_gpu_trains_as_the_cpu_does(tmp_path: Path, model: str, parts: int, device: str) -> None:
    """A GPU is used by one worker, or shared by two."""
    expected = train_losses(tmp_path, parts, "cpu", *MODELS[model], "device=cpu")
    torch.testing.assert_close(
        train_losses(tmp_path, parts, "gpu", *MODELS[model], device), expected, rtol=1e-3, atol=1e-4
    )
    rounded = train_losses(
        tmp_path,
        parts,
        "rounded",
        *MODELS[model],
        device,
        "compute.precision=bf16",
        "batch_size=30",
    )
    assert rounded.isfinite().all()


DATA = ("dataset_name=file", "dataset_file=toy.npz", "num_partitions=2")


def test_what_needs_dgl_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_dgl()
    save_npz(tmp_path / "toy.npz", random_graph(), thirds(40))
    theirs = dgl_directory(tmp_path / "theirs", random_graph(), thirds(40), np.arange(40) % 2)
    shutil.rmtree(theirs.path)  # imported with DGL
    monkeypatch.setattr(dgl_import, "has_dgl", lambda: False)
    for arguments in (
        ("app=partition_data", "partition.dgl_files=true"),
        ("app=train", "partition_dir=theirs"),
        ("app=train", "trainer=sampled"),
    ):
        refused = run_main(*arguments, *DATA, cwd=tmp_path, rc=2)
        assert "needs DGL, which is not installed; it has wheels" in refused.stderr
    with pytest.raises(InputError, match="DGL beside ours: needs DGL"):
        dgl_import.import_dgl("DGL beside ours")  # benchmarks check nothing before
