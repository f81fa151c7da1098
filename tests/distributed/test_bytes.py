"""The bytes of a whole run, by hand: from the graph, the shapes and the number of rounds."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import random_graph, save_npz, thirds

from partitioning.directory.read_directory import PartitionDirectory, find
from retexo.apps import partition_data, train
from retexo.models.conv_registry import default_model_settings
from retexo.models.stage import Architecture, build_stages
from retexo.settings.compose import compose

WORLD, ROUNDS, HIDDEN, WIDTH, CLASSES = 3, 5, 8, 6, 3
TAIL = 3 + 2 * 2
"""Losses, stop requests, and two digits of correct and of all validation nodes."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[PartitionDirectory, dict[str, Any]]:
    folder = Path(tmp_path_factory.mktemp("bytes"))
    file = save_npz(folder / "toy.npz", random_graph(), thirds(40))
    settings = compose(
        [
            f"partition_dir={folder}",
            "dataset_name=file",
            f"dataset_file={file}",
            f"num_partitions={WORLD}",
            "device=cpu",
            f"num_rounds=[{ROUNDS}]",
            f"hidden_dim={HIDDEN}",
            "stopping=none",
            "cluster.threads=1",
            "sleep_time=0.001",
            "base=published",
            "exchange=plain",
        ]
    )
    partition_data.run(settings.partition)
    directory = find([folder / f"toy-random-vol-{WORLD}"], WORLD)
    summary = train.run(settings, folder / "run")
    assert json.loads((folder / "run" / "summary.json").read_text())["bytes"] == summary["bytes"]
    return directory, summary


def parameters(layer: int) -> int:
    architecture = Architecture(default_model_settings("gcn", 2, HIDDEN), WIDTH, CLASSES)
    return sum(parameter.numel() for parameter in build_stages(architecture, 0)[layer].parameters())


def test_rows_and_gradients(trained: Any) -> None:
    directory, summary = trained
    halo = sum(part.halo for part in directory.meta.parts)
    by_kind = summary["bytes"]["by_kind"]
    assert halo > 0
    assert by_kind["features"] == halo * WIDTH * 4
    assert by_kind["embeddings"] == halo * HIDDEN * 4
    assert by_kind["gradients"] == sum(
        (parameters(layer) + TAIL) * 4 * 2 * (WORLD - 1) * ROUNDS for layer in (0, 1)
    )
    assert by_kind["parameters"] == 0


def test_layers(trained: Any) -> None:
    directory, summary = trained
    halo = sum(part.halo for part in directory.meta.parts)
    last_metrics = (
        TAIL * 4 * 2 * (WORLD - 1)
    )  # loss and counts, without a gradient, once the last round is over
    rows = (halo * WIDTH * 4, halo * HIDDEN * 4)
    columns = [
        WORLD * (WORLD - 1) * -(-width // 8) for width in (WIDTH, HIDDEN)
    ]  # which of them are used, in bits
    gradients = [(parameters(layer) + TAIL) * 4 * 2 * (WORLD - 1) * ROUNDS for layer in (0, 1)]
    digest = WORLD * (WORLD - 1) * 8  # of the parameters in the end
    assert summary["bytes"]["by_layer"] == [
        rows[layer] + gradients[layer] + last_metrics + columns[layer] + digest for layer in (0, 1)
    ]
