"""Bytes and memory from sizes alone: against counts by hand, random graphs and a dry run; and the
command line.
"""

import contextlib
import importlib
import io
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import ROOT

from retexo.apps import partition_data
from retexo.apps.find_partitions import open_directory
from retexo.exchange.cover import minimum_cover
from retexo.plan import random_graph
from retexo.plan.memory import peak_memory
from retexo.plan.traffic import estimate_traffic
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

sys.path.append(str(ROOT / "scripts"))
CASE = random_graph.Case(
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


# --- by hand ----------


def test_gradients_by_hand() -> None:
    # Layer 0: 6 x 5 weights, 5 biases, 2 x 5 of the norm, a head of 5 x 3 + 3; layer 1: 5 x 3 + 3.
    # Each message has a tail of 8, and goes 2 (W - 1) times in all.
    assert random_graph.count_sent_bytes(CASE)["gradients"] == 6 * 4 * (
        10 * (63 + 8) + 20 * (18 + 8)
    )
    # SAGE has one weight more, for a node's own row.
    sage = replace(CASE, model="sage", rounds=(1, 0))
    assert random_graph.count_sent_bytes(sage)["gradients"] == 6 * 4 * (63 + 6 * 5 + 8)


def memory(case: random_graph.Case) -> int:
    works = [random_graph.layer_work(case, layer) for layer in range(case.layers)]
    return peak_memory(works, case.stages)


# --- against the program ----------


@pytest.mark.parametrize(
    ("power_law", "mean", "share"), [(0.0, 0.5, 1.0), (0.0, 3.0, 0.1), (2.5, 3.0, 1.0)]
)
def test_the_cover_of_a_random_boundary(power_law: float, mean: float, share: float) -> None:
    """mean: edges of a row into the other part; share: targets that are served."""
    nodes = 20_000
    case = replace(
        CASE,
        nodes=2 * nodes,
        workers=2,
        cut=0.5,
        edges=round(4 * nodes * mean),
        power_law=power_law,
    )
    x, mass = case.degrees()
    phase, _ = random_graph._make_phase(
        case, 0, False, x, mass, np.full(len(x), share), np.ones(len(x))
    )
    rng = np.random.default_rng(0)
    ends = []
    for _ in range(2):
        weight = rng.choice(x, nodes, p=mass)
        ends.append(rng.choice(nodes, round(nodes * mean), p=weight / weight.sum()))
    kept = rng.random(nodes)[ends[1]] < share
    ones = np.ones(nodes, np.int64)
    cover = minimum_cover(ends[0][kept], ends[1][kept], ones, ones)
    assert phase.num_bytes / (4 * CASE.features) == pytest.approx(cover.weight, rel=0.05)


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


def case_of(settings: Settings, power_law: float = 2.5) -> "random_graph.Case":
    meta = open_directory(settings).meta
    assert meta is not None
    shares = {
        name: sum(getattr(part, name) for part in meta.parts) / 6000
        for name in ("train", "val", "test")
    }
    model = settings.train.model
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
        rounds=settings.train.num_rounds[: model.num_layers],
        cut=meta.cut_edges / meta.num_edges,
        power_law=power_law,
        **shares,
    )


@pytest.mark.parametrize(
    ("split", "layers", "model"), [("all", 2, "gcn"), ("few", 3, "gcn"), ("few", 2, "sage")]
)
def test_bytes_of_a_dry_run(tmp_path: Path, split: str, layers: int, model: str) -> None:
    settings = compose(
        [*GRAPH, SPLITS[split], f"num_layers={layers}", f"partition_dir={tmp_path}"],
        f"node_classification_{model}",
    )
    with contextlib.redirect_stdout(io.StringIO()):
        partition_data.run(settings.partition)
    directory = open_directory(settings)
    parts = [directory.read(part) for part in range(3)]
    counted, case = estimate_traffic(settings.train, directory, parts), case_of(settings)
    sizes = random_graph.count_sent_bytes(case)
    for kind, tolerance in (
        ("features", 0.05),
        ("embeddings", 0.05),
        ("setup", 0.05),
        ("gradients", 1e-9),
    ):
        assert sizes[kind] == pytest.approx(counted.total(case.rounds, [kind]), rel=tolerance), kind


# --- the command line ----------

SIZES = {"nodes": "1000", "edges": "8000", "features": "6", "classes": "3"}


def run_script(monkeypatch: pytest.MonkeyPatch, options: dict[str, str]) -> None:
    words = [word for name, value in options.items() for word in (f"--{name}", *value.split())]
    monkeypatch.setattr(sys, "argv", ["estimate.py", *words])
    importlib.import_module("estimate").main()


def test_bytes_memory_and_the_networks_least_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of four workers on two nodes two thirds of a worker's bytes leave its node."""
    options = {"rounds": "10 20", "hidden": "5", "zeros": "0", "train": "0.05", "val": "0.05"}
    run_script(monkeypatch, SIZES | options | {"per-node": "2", "bandwidth": "0.01"})
    printed = dict(
        re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines()
    )
    sizes = random_graph.count_sent_bytes(CASE)
    assert printed["bytes, gradients"] == f"{sizes['gradients']:,.0f}"
    assert printed["bytes, in all"] == f"{sum(sizes.values()):,.0f}"
    assert printed["memory per worker, bytes"] == f"{memory(CASE):,}"
    seconds = sum(sizes.values()) / 4 * 2 * (2 / 3) / (0.01e9 / 8)
    assert printed["network, at least, seconds"] == f"{seconds:,.1f}"


WRONG = {
    "nodes": {"nodes": "0"},
    "edges": {"edges": "many"},
    "features": {"features": None},
    "cut": {"cut": "1.5"},
    "per-node": {"per-node": "3"},
    "train": {"train": "0.9", "test": "0.9"},
    "power-law": {"power-law": "1.5"},
    "rounds": {"rounds": "-1"},
}


@pytest.mark.parametrize("option", WRONG)
def test_a_mistake_ends_with_status_2(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {name: value for name, value in {**SIZES, **WRONG[option]}.items() if value is not None}
    with pytest.raises(SystemExit) as ended:
        run_script(monkeypatch, given)
    assert ended.value.code == 2
    assert f"--{option}" in capsys.readouterr().err.splitlines()[-1]
