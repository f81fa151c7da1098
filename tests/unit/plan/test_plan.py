"""app=plan: what it prints, the other ways to train, and memory.

benchmarks/estimate.py computes bytes and memory from sizes alone.
"""

import contextlib
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import (
    ROOT,
    make_graph,
    random_graph,
    run_main,
    save_npz,
    thirds,
    train_settings,
    write_partitions,
)

from partitioning.directory.read_directory import PartitionDirectory
from retexo.apps import partition_data, plan
from retexo.apps.find_partitions import find_or_make_partitions
from retexo.plan import baselines
from retexo.plan.memory import BASE, peak_memory, worker_memory
from retexo.plan.traffic import estimate_traffic, find_architecture
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

sys.path.append(str(ROOT / "benchmarks"))
import estimate as by_size

WORLD = 3
DATA = (
    "dataset_name=file",
    "dataset_file=toy.npz",
    "partition_dir=parts",
    f"num_partitions={WORLD}",
)
SMALL = ("hidden_dim=8", "num_rounds=[3]", "stopping=none", "device=cpu")


# --- by command line ----------

PLAN = ("app=plan", *DATA, *SMALL, "plan.rounds=[5,2,9]")  # its name before: num_rounds


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with toy.npz, and its partitions below parts/."""
    folder = Path(tmp_path_factory.mktemp("plan"))
    save_npz(folder / "toy.npz", random_graph(), thirds(40))
    partition_data.run(
        compose([*DATA, f"dataset_file={folder}/toy.npz", f"partition_dir={folder}/parts"])
    )
    return folder


@pytest.fixture(scope="module")
def printed(place: Path) -> str:
    ended = run_main(*PLAN, "hydra.run.dir=plan", cwd=place)
    return ended.stdout


@pytest.fixture(scope="module")
def planned(place: Path, printed: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((place / "plan" / "plan.json").read_text())
    return content


def test_what_is_printed(printed: str, planned: dict[str, Any]) -> None:
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    entries = planned["entries"]
    features = [
        entry for entry in entries if (entry["kind"], entry["phase"]) == ("features", "rounds")
    ]
    embeddings = [
        entry for entry in entries if (entry["kind"], entry["phase"]) == ("embeddings", "embed")
    ]
    assert f"layer 0 rounds features {sum(entry['num_bytes'] for entry in features):,}" in lines
    assert (
        f"layer 1 embed embeddings {sum(entry['num_bytes'] for entry in embeddings):,} at most"
        in lines
    )
    assert "all bytes, rounds per layer 5, 2 (limit)" in lines
    assert f"this configuration {planned['bytes']['limit']:,} at most" in lines
    centralized = planned["baselines"]["limit"]["centralized"]
    assert any(line.startswith(f"centralized {centralized:,}") for line in lines)
    assert "by sender (down) and receiver (limit)" in lines
    assert any(line.startswith("memory per worker, private, about:") for line in lines)


# --- in this process ----------


def test_bytes_follow_the_rounds(planned: dict[str, Any]) -> None:
    most = np.zeros((WORLD, WORLD))
    for entry in planned["entries"]:
        times = (5, 2)[entry["layer"]] if entry["kind"] == "gradients" else 1
        most[entry["sender"], entry["receiver"]] += entry["num_bytes"] * times
    assert most.sum() == planned["bytes"]["limit"]


# --- other ways to train ----------


@pytest.fixture
def small(tmp_path: Path) -> PartitionDirectory:
    """Part 0 has nodes 0, 1, 2 and part 1 nodes 3, 4.

    0 and 1 are sources of edges into part 1, 3 of one into 0.
    """
    edges = [(0, 3), (0, 4), (1, 3), (3, 2), (3, 4), (0, 1), (1, 1)]
    graph = make_graph(edges, [[1, 2, 3, 4]] * 5, [0, 1, 2, 0, 1])
    return write_partitions(tmp_path, graph, thirds(5), [0, 0, 0, 1, 1], 2)


def test_baselines_by_hand(small: PartitionDirectory, tmp_path: Path) -> None:
    layers = ("num_layers=3", "num_rounds=[10,4,3]", "hidden_dim=8", "device=cpu")
    settings = compose([f"partition_dir={small.path}", "num_partitions=2", *layers])
    limit = plan.run(settings, tmp_path / "run")["baselines"]["limit"]
    halo, epochs = 3, 10
    features, embeddings = (
        4 * halo * 4,
        2 * 4 * halo * 8 * 2,
    )  # forwards and backwards, after each layer but the last
    parameters = (4 * 8 + 8 + 16) + (8 * 8 + 8 + 16) + (8 * 3 + 3)  # weights and bias, LayerNorm
    gradients = 2 * 1 * 4 * parameters
    partitions = [small.read_part(part) for part in (0, 1)]
    assert limit == {
        "full graph, end to end": features + epochs * (embeddings + gradients),
        "centralized": baselines.part_bytes(partitions[1], partitions, 3),
    }


def test_a_part_by_hand(small: PartitionDirectory) -> None:
    """Rows of 4 floats.

    3 edges, a self loop too, in 3 + (14 >> 2) bits and 2 each of 3 x 5 places; 4 bits a node.
    """
    partitions = [small.read_part(part) for part in (0, 1)]
    assert baselines.part_bytes(partitions[0], partitions, 3) == 3 * 4 * 4 + 2 + 2
    assert baselines.part_bytes(partitions[1], partitions, 3) == 2 * 4 * 4 + 2 + 1


def test_features_of_a_part_go_without_their_zeros(tmp_path: Path) -> None:
    rows = np.zeros((40, 200))
    rows[:, 7] = 1
    graph = make_graph([(0, 39)], rows, [0, 1] * 20)
    directory = write_partitions(tmp_path, graph, thirds(40), [0] * 39 + [1], 2)
    partitions = [directory.read_part(part) for part in (0, 1)]
    assert 39 * 3 < baselines.part_bytes(partitions[0], partitions, 2) < 39 * 10


# --- memory ----------


def measure_memory(
    folder: Path, *overrides: str, nodes: int = 40, edges: int = 160, width: int = 6
) -> int:
    graph = random_graph(nodes, edges, width)
    name = f"{nodes}-{edges}-{width}"
    directory = write_partitions(folder, graph, thirds(nodes), np.arange(nodes) % 2, 2, name)
    partitions = [directory.read_part(part) for part in (0, 1)]
    settings = train_settings("num_partitions=2", "hidden_dim=8", *overrides)
    return worker_memory(
        partitions[0], find_architecture(settings, directory, partitions), settings, 26
    )


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin"])
def test_more_of_anything_takes_more_memory(tmp_path: Path, model: str) -> None:
    least = measure_memory(tmp_path, f"model={model}")
    assert BASE < least < BASE + 200_000
    for more in ({"nodes": 80}, {"edges": 320}, {"width": 60}):
        assert measure_memory(tmp_path / str(more), f"model={model}", **more) > least
    assert measure_memory(tmp_path / "wide", f"model={model}", "hidden_dim=16") > least


CASE = by_size.Case(
    nodes=1000,
    edges=8000,
    features=6,
    classes=3,
    hidden=5,
    layers=2,
    model="gcn",
    workers=4,
    train=0.05,
    val=0.05,
    test=0.9,
    rounds=(10, 20),
    cut=0.75,
    zeros=0.0,
    power_law=0.0,
)


GRAPH = (
    "+experiment=retexo",
    "dataset_name=synthetic",
    "synthetic.nodes=6000",
    "synthetic.edges=40000",
    "synthetic.features=20",
    "synthetic.classes=4",
    "hidden_dim=24",
    "num_partitions=3",
    "seed=0",
    "stopping=none",
    "num_rounds=[3]",
    "split=fraction",
    "split.train=0.05",
    "split.val=0.02",
)
SPLITS = {"all": "split.test=0.93", "few": "split.test=0.01"}


def case_of(settings: Settings, power_law: float = 2.5) -> by_size.Case:
    meta = find_or_make_partitions(settings).meta
    shares = {
        name: sum(getattr(part, name) for part in meta.parts) / 6000
        for name in ("train", "val", "test")
    }
    model = settings.model
    return replace(
        CASE,
        nodes=6000,
        edges=meta.num_edges,
        features=20,
        classes=4,
        hidden=24,
        layers=model.num_layers,
        model=model.name,
        workers=3,
        rounds=settings.num_rounds[: model.num_layers],
        cut=meta.cut_edges / meta.num_edges,
        power_law=power_law,
        **shares,
    )


@pytest.mark.parametrize(
    ("split", "layers", "model", "setup"),
    [("all", 2, "gcn", 0.02), ("few", 3, "gcn", 0.02), ("few", 2, "sage", 0.04)],
)
def test_bytes_of_a_dry_run(
    tmp_path: Path, split: str, layers: int, model: str, setup: float
) -> None:
    """setup: the tolerance of these bytes."""
    settings = compose(
        [*GRAPH, SPLITS[split], f"num_layers={layers}", f"partition_dir={tmp_path}"],
        f"node_classification_{model}",
    )
    with contextlib.redirect_stdout(io.StringIO()):
        partition_data.run(settings)
    directory = find_or_make_partitions(settings)
    parts = [directory.read_part(part) for part in range(3)]
    counted, case = estimate_traffic(settings, directory, parts), case_of(settings)
    sizes = by_size.count_sent_bytes(case)
    for kind, tolerance in (
        ("features", 0.05),
        ("embeddings", 0.05),
        ("setup", setup),
        ("gradients", 1e-9),
    ):
        assert sizes[kind] == pytest.approx(counted.total(case.rounds, [kind]), rel=tolerance), kind


# --- the command line ----------

SIZES = {"nodes": "1000", "edges": "8000", "features": "6", "classes": "3"}


def run_script(monkeypatch: pytest.MonkeyPatch, options: dict[str, str]) -> None:
    words = [word for name, value in options.items() for word in (f"--{name}", *value.split())]
    monkeypatch.setattr(sys, "argv", ["estimate.py", *words])
    by_size.main()


def test_bytes_memory_and_the_networks_least_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With four workers on two nodes, two thirds of a worker's bytes leave its node."""
    options = {"rounds": "10 20", "hidden": "5", "zeros": "0", "train": "0.05", "val": "0.05"}
    run_script(monkeypatch, SIZES | options | {"per-node": "2", "bandwidth": "0.01"})
    printed = dict(
        re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines()
    )
    sizes = by_size.count_sent_bytes(CASE)
    assert printed["bytes, gradients"] == f"{sizes['gradients']:,.0f}"
    assert printed["bytes, in all"] == f"{sum(sizes.values()):,.0f}"
    memory = peak_memory(by_size.worker_sizes(CASE), CASE.stages)
    assert printed["memory per worker, bytes"] == f"{memory:,}"
    seconds = sum(sizes.values()) / 4 * 2 * (2 / 3) / (0.01e9 / 8)
    assert printed["network, at least, seconds"] == f"{seconds:,.1f}"
