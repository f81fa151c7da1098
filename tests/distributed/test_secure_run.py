"""gradient.secure=true: whole runs, beside the same without masks, and without secure sums."""

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import random_graph, thirds, write_partitions

pytest.importorskip("cryptography")

from retexo.apps import plan, train
from retexo.comm.socket_transport import Streams
from retexo.errors import TrainingError
from retexo.settings.compose import compose
from retexo.sites.masks import PairwiseMasks
from retexo.worker import train as train_worker

SECURE = ("gradient.secure=true", "gradient.precision=fp32")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    graph = random_graph(60, 240)
    graph.features[:, 2] = 0  # a column that no node has
    write_partitions(folder, graph, thirds(60), [node % 5 % 3 for node in range(60)], 3)
    masks = {
        name: mask & ((torch.arange(60) % 5 % 3).numpy() > 0) for name, mask in thirds(60).items()
    }
    write_partitions(folder / "few", graph, masks, [node % 5 % 3 for node in range(60)], 3)
    return folder


def arguments(parts: Path, *more: str) -> list[str]:
    small = (
        "hidden_dim=6",
        "num_rounds=[5,4]",
        "cluster.threads=1",
        "num_partitions=3",
        "distributed.backend=sockets",
    )
    return [*small, "dataset_name=file", "dataset_file=toy.npz", f"partition_dir={parts}", *more]


def in_the_open(rank: int, job: Any, parent: Connection, streams: Streams | None) -> None:
    """A worker whose masks are all zero."""
    PairwiseMasks.add_to = lambda self, shares: None  # type: ignore[method-assign]
    train_worker.main(rank, job, parent, streams)


def layers(run_dir: Path) -> list[dict[str, torch.Tensor]]:
    return [load_file(run_dir / "checkpoint" / f"layer{layer}.safetensors") for layer in (0, 1)]


def test_masks_change_no_bit_and_the_plan_knows_the_bytes(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is the default otherwise: low-rank factors with error feedback, smoothing."""
    given = arguments(parts, *SECURE, "stopping=none")
    secure = train.run(compose(given), tmp_path / "secure")
    with monkeypatch.context() as patched:
        patched.setattr(train, "main", in_the_open)
        open_ = train.run(compose(given), tmp_path / "open")
    for name in ("layer0.safetensors", "layer1.safetensors", "model.json"):
        assert (
            len({(tmp_path / run / "checkpoint" / name).read_bytes() for run in ("secure", "open")})
            == 1
        )
    for key in ("test", "val", "train", "bytes"):
        assert secure[key] == open_[key]
    planned = plan.run(compose([*given, "app=plan"]), tmp_path / "plan")
    smoothed = secure["chosen"]["smoothing_alpha"] < 1
    for kind in ("setup", "gradients"):
        expected = sum(
            entry["num_bytes"] * (secure["rounds"][entry["layer"]] if kind == "gradients" else 1)
            for entry in planned["entries"]
            if entry["kind"] == kind and (smoothed or not entry["if_smoothed"])
        )
        assert expected == secure["bytes"]["by_kind"][kind], kind
    assert planned["options"]["gradient.secure=false"] < planned["bytes"]["limit"]


def test_too_few_sites_are_refused(parts: Path, tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match=r"gradient.secure=true: 2 of 3 partitions have training nodes"
    ):
        train.run(compose(arguments(parts / "few", *SECURE)), tmp_path)
