"""app=plan: the prediction beside a run of the same command, other ways to train, options, memory,
and mistakes.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import (
    make_graph,
    random_graph,
    run_main,
    save_npz,
    thirds,
    train_settings,
    write_partitions,
)

from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.graph_data import GraphData
from retexo.apps import partition_data, plan
from retexo.plan import baselines
from retexo.plan.memory import BASE, KEPT, Memory, worker_memory
from retexo.plan.precision import ROWS
from retexo.plan.traffic import architecture_of, estimate_traffic
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

WORLD = 3
DATA = (
    "dataset_name=file",
    "dataset_file=toy.npz",
    "partition_dir=parts",
    f"num_partitions={WORLD}",
)
SMALL = ("hidden_dim=8", "num_rounds=[3]", "stopping=none", "device=cpu")


# --- by command line ----------

PLAN = ("app=plan", *DATA, *SMALL, "plan.rounds=[5,2,9]")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with toy.npz, and its partitions below parts/."""
    folder = Path(tmp_path_factory.mktemp("plan"))
    save_npz(folder / "toy.npz", random_graph(), thirds(40))
    partition_data.run(
        compose(
            [*DATA, f"dataset_file={folder}/toy.npz", f"partition_dir={folder}/parts"]
        ).partition
    )
    return folder


@pytest.fixture(scope="module")
def printed(place: Path) -> str:
    ended = run_main(*PLAN, "hydra.run.dir=plan", cwd=place)
    assert ended.rc == 0, ended.output
    return ended.stdout


@pytest.fixture(scope="module")
def planned(place: Path, printed: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "plan" / "plan.json").read_text())
    return found


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
    for name, number in (("limit", "3, 3"), ("given", "5, 2")):
        assert f"all bytes, rounds per layer {number} ({name})" in lines
        assert f"this configuration {planned['bytes'][name]:,} at most" in lines
        assert any(
            line.startswith(f"centralized {planned['baselines'][name]['centralized']:,}")
            for line in lines
        )
    assert "by sender (down) and receiver (given)" in lines
    assert any(line.startswith("memory per worker, private, about:") for line in lines)
    seconds = planned["network_seconds"]["given"]
    assert f"seconds to send this at 1 Gbit/s a worker, at least: {seconds:,.3g}" in lines


def test_training_sends_what_its_bandwidth_asks_for(place: Path) -> None:
    """The rows of this graph are sent within a second by any link from here on."""
    given = ("network=10Mbit", "gradient.compression=none")
    ended = run_main("app=train", *DATA, *SMALL, *given, "hydra.run.dir=slow", cwd=place)
    assert ended.rc == 0, ended.output
    summary = json.loads((place / "slow" / "summary.json").read_text())
    candidates, settings = summary["network"], summary["settings"]
    assert [each["values"]["exchange.precision"] for each in candidates["rows"]] == [*ROWS]
    assert settings["exchange"]["precision"] == ["fp32"]
    assert (
        settings["gradient"] | {"precision": "fp32", "compression": "none"} == settings["gradient"]
    )
    assert "network=10Mbit: rows in fp32; predicted for the busiest worker" in ended.output
    model = json.loads((place / "slow" / "checkpoint" / "model.json").read_text())
    assert model["exchange_precision"] == ["fp32", "fp32"]


# --- in this process ----------


def toy_settings(place: Path, *overrides: str) -> Settings:
    return compose(
        [*DATA, *SMALL, f"dataset_file={place}/toy.npz", f"partition_dir={place}/parts", *overrides]
    )


@pytest.mark.parametrize(
    ("given", "rounds"),
    [("[5,2]", (5, 2, 2)), ("[0,1,2,3]", (0, 1, 2))],
)
def test_rounds_are_one_a_layer(given: str, rounds: tuple[int, ...]) -> None:
    settings = compose(["num_layers=3", f"plan.rounds={given}", f"num_rounds={given}"])
    assert settings.plan_rounds == settings.train.num_rounds == rounds
    assert compose([]).plan_rounds is None
    with pytest.raises(InputError, match=r"plan\.rounds=-1: .*at least 0"):
        compose(["plan.rounds=[-1]"])


def test_bytes_and_seconds_follow_the_rounds(planned: dict[str, Any]) -> None:
    most = np.zeros((WORLD, WORLD))
    for entry in planned["entries"]:
        times = 3 if entry["kind"] == "gradients" else 1
        most[entry["sender"], entry["receiver"]] += entry["num_bytes"] * times
    assert most.sum() == planned["bytes"]["limit"]
    busiest = max(*most.sum(axis=0), *most.sum(axis=1))
    assert planned["network_seconds"]["limit"] == pytest.approx(8 * busiest / 1e9)
    first, second = planned["bytes_each_round"]
    assert planned["bytes"]["given"] - planned["bytes"]["limit"] == 2 * first - second > 0


def test_options_are_sorted_and_what_their_setting_sends(place: Path, tmp_path: Path) -> None:
    base = ("exchange=plain", "gradient=sync")
    options = plan.run(toy_settings(place, *base, "plan.rounds=[4,1]"), tmp_path)["options"]
    assert set(options) == {
        "exchange=exact",
        "exchange.precision=bf16",
        "exchange.precision=int8",
        "gradient.precision=bf16",
        "gradient.precision=int6",
        "gradient.compression=powersgd",
        "smoothing.reach=computed",
    }
    assert list(options.values()) == sorted(options.values())
    for name, total in options.items():
        exchange = [*base[1:], "exchange=exact"] if name.startswith("exchange") else base
        changed = toy_settings(place, *exchange, name)
        directory = plan.open_directory(changed)
        partitions = [directory.read(part) for part in range(WORLD)]
        assert estimate_traffic(changed.train, directory, partitions).total([4, 1]) == total


# --- other ways to train ----------


def small_graph() -> GraphData:
    """Part 0 has nodes 0, 1, 2 and part 1 nodes 3, 4; 0 and 1 are sources of edges into part 1, 3
    of one into 0.
    """
    edges = [(0, 3), (0, 4), (1, 3), (3, 2), (3, 4), (0, 1), (1, 1)]
    return make_graph(edges, [[1, 2, 3, 4]] * 5, [0, 1, 2, 0, 1])


@pytest.fixture
def small(tmp_path: Path) -> PartitionDirectory:
    masks = {
        name: np.arange(5) % 3 == third
        for third, name in enumerate(("train_mask", "val_mask", "test_mask"))
    }
    return write_partitions(tmp_path, small_graph(), masks, [0, 0, 0, 1, 1], 2)


def small_settings(directory: PartitionDirectory, *overrides: str) -> Settings:
    return compose(
        [
            f"partition_dir={directory.path}",
            "num_partitions=2",
            "hidden_dim=8",
            "num_rounds=[10,4,3]",
            "num_layers=3",
            "device=cpu",
            *overrides,
        ]
    )


def test_baselines_by_hand(small: PartitionDirectory, tmp_path: Path) -> None:
    settings = small_settings(small)
    found = plan.run(settings, tmp_path / "run")["baselines"]["limit"]
    halo, epochs = 3, 10
    features, embeddings = (
        4 * halo * 4,
        2 * 4 * halo * 8 * 2,
    )  # forwards and backwards, after each layer but the last
    parameters = (4 * 8 + 8 + 16) + (8 * 8 + 8 + 16) + (8 * 3 + 3)  # weights and bias, LayerNorm
    gradients = 2 * 1 * 4 * parameters
    partitions = [small.read(part) for part in (0, 1)]
    plain = replace(
        settings.train,
        exchange=replace(settings.train.exchange, mode="plain", precision=("fp32",) * 3),
    )
    assert found == {
        "plain lazy exchange": estimate_traffic(plain, small, partitions).total([10, 4, 3]),
        "full graph, end to end": features + epochs * (embeddings + gradients),
        "boundary node sampling at 0.1": features + epochs * (int(0.1 * embeddings) + gradients),
        "centralized": baselines.part_bytes(partitions[1], partitions, 3),
    }


def test_a_part_by_hand(small: PartitionDirectory) -> None:
    """Rows of 4 floats; 3 edges, a self loop too, in 3 + (14 >> 2) bits and 2 each of 3 x 5 places;
    4 bits a node.
    """
    partitions = [small.read(part) for part in (0, 1)]
    assert baselines.part_bytes(partitions[0], partitions, 3) == 3 * 4 * 4 + 2 + 2
    assert baselines.part_bytes(partitions[1], partitions, 3) == 2 * 4 * 4 + 2 + 1


def test_features_of_a_part_go_without_their_zeros(tmp_path: Path) -> None:
    rows = np.zeros((40, 200))
    rows[:, 7] = 1
    graph = make_graph([(0, 39)], rows, [0, 1] * 20)
    directory = write_partitions(tmp_path, graph, thirds(40), [0] * 39 + [1], 2)
    partitions = [directory.read(part) for part in (0, 1)]
    assert 39 * 3 < baselines.part_bytes(partitions[0], partitions, 2) < 39 * 10


# --- memory ----------


def test_what_memory_keeps() -> None:
    memory = Memory()
    memory.hold("rows", 100)
    memory.use(30, 20)
    assert memory.peak == 150
    memory.hold("rows", 10)
    memory.hold("large", KEPT + 1)
    assert memory.peak == 150 + KEPT + 1  # the room of small blocks is not given back
    memory.hold("large")
    memory.use(2 * KEPT)
    assert memory.peak == 150 + 2 * KEPT  # that of large ones is


def needed(folder: Path, *overrides: str, nodes: int = 40, edges: int = 160, width: int = 6) -> int:
    graph = random_graph(nodes, edges, width)
    name = f"{nodes}-{edges}-{width}"
    directory = write_partitions(folder, graph, thirds(nodes), np.arange(nodes) % 2, 2, name)
    partitions = [directory.read(part) for part in (0, 1)]
    settings = train_settings("num_partitions=2", "hidden_dim=8", *overrides)
    return worker_memory(
        partitions[0], architecture_of(settings, directory, partitions), settings, 26
    )


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin"])
def test_more_of_anything_takes_more_memory(tmp_path: Path, model: str) -> None:
    least = needed(tmp_path, f"model={model}")
    assert BASE < least < BASE + 200_000
    for more in ({"nodes": 80}, {"edges": 320}, {"width": 60}):
        assert needed(tmp_path / str(more), f"model={model}", **more) > least
    assert needed(tmp_path / "wide", f"model={model}", "hidden_dim=16") > least
