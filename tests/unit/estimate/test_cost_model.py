"""Costs on paper: against counts by hand, random graphs, a dry run, and a run; and the command line."""

import contextlib
import importlib
import io
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import ROOT

from retexo.apps import partition_data, train
from retexo.apps.partitions import open_directory
from retexo.config.compose import compose
from retexo.config.settings import Settings
from retexo.estimate import cost_model, random_graph
from retexo.estimate.traffic import estimate_traffic
from retexo.exchange import flows
from retexo.exchange.cover import MATCHING_LIMIT, minimum_cover

sys.path.append(str(ROOT / "scripts"))
NAMES = (
    "flop copy_byte socket_byte norm_forward_value round hidden_value hidden_score last_value last_score "
    "some_edge some_value most_edge most_value bag_edge bag_value sum_value partial_edge build_edge find_edge "
    "occurring_end renumber_end scan_edge write_edge read_edge alone_edge "
    "cover_small cover_flow cover_large cover_passes size_value sparse_value put_byte page_byte log_byte "
    "waiting score_value load_edge load_value hash_byte"
)
CONSTANTS = dict.fromkeys(NAMES.split(), 1e-9)
CASE = random_graph.Case(
    nodes=1000,
    edges=8000,
    features=6,
    classes=3,
    hidden=5,
    layers=2,
    model="gcn",
    workers=4,
    per_node=1,
    cores=1.0,
    bandwidth=1.0,
    latency=0.0,
    disk=1.0,
    train=0.05,
    val=0.05,
    test=0.9,
    rounds=(10, 20),
    cut=0.75,
    zeros=0.0,
    power_law=0.0,
)


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_gradients_by_hand() -> None:
    # Layer 0: 6 x 5 weights, 5 biases, 2 x 5 of the norm, a head of 5 x 3 + 3; layer 1: 5 x 3 + 3. Each message has a
    # tail of 8, and goes 2 (W - 1) times in all.
    assert random_graph.sent(CASE)["gradients"] == 6 * 4 * (10 * (63 + 8) + 20 * (18 + 8))
    # SAGE has one weight more, for a node's own row.
    sage = replace(CASE, model="sage", rounds=(1, 0))
    assert random_graph.sent(sage)["gradients"] == 6 * 4 * (63 + 6 * 5 + 8)


def test_one_round_by_hand() -> None:
    # Of 250 nodes, 12.5 train and 12.5 validate. A product takes 2 F D a row; its weights' gradient as much; the head's
    # input has a gradient, too.
    train, score, embed = cost_model.operations(CASE, 0)
    assert train == pytest.approx(2 * 12.5 * (2 * 30 + 3 * 15))
    assert score == pytest.approx(2 * 12.5 * (30 + 15))
    assert embed == pytest.approx(2 * 30 * 250)


def test_a_batch_by_hand() -> None:
    # Of 200,000 training nodes 32,768 make a step of four workers; of 20,000 validation nodes one in two scores it. The
    # formulas of all nodes are those of a graph that has just as many, but for the rows that are picked out.
    large = replace(CASE, nodes=4_000_000, train=0.05, val=0.005, test=0.9, batches=True)
    small = replace(large, train=32_768 / 4_000_000, val=0.0025, batches=False)
    assert cost_model.operations(large, 0)[:2] == pytest.approx(cost_model.operations(small, 0)[:2])
    free = {**CONSTANTS, "copy_byte": 0.0}
    assert cost_model.seconds(large, free)["rounds"] == pytest.approx(
        cost_model.seconds(small, free)["rounds"]
    )
    few = replace(large, train=0.03)  # fewer than four times as many: all are taken
    assert cost_model.operations(few, 0) == cost_model.operations(replace(few, batches=False), 0)


def test_all_rows_cross_where_everybody_has_very_many_neighbours() -> None:
    # Every row is needed by the 3 other parts; first sums for the labelled tenth, then what is left for the rest.
    sizes = random_graph.sent(replace(CASE, edges=1_000_000))
    assert sizes["features"] == pytest.approx(12 * 250 * 4 * min(6, 5), rel=0.15)
    assert sizes["embeddings"] == pytest.approx(12 * (25 * 4 * 5 + 225 * 4 * 3), rel=0.01)


def test_what_the_labelled_nodes_reach() -> None:
    x, share = CASE.degrees()
    few = replace(CASE, train=0.01, val=0.0, test=0.0, layers=3)
    two, one, none = random_graph.needed(few, x, share)
    assert none == pytest.approx(0.01)
    assert one == pytest.approx(1 - 0.99 * math.exp(-8 * 0.01))
    assert two == pytest.approx(1 - 0.99 * math.exp(-8 * one[0]))


def test_one_worker_sends_nothing() -> None:
    alone = replace(CASE, workers=1, cut=0.0)
    assert set(random_graph.sent(alone).values()) == {0}
    assert (
        cost_model.seconds(alone, CONSTANTS)["exchange"] > 0
    )  # rows are looked at for zeros all the same


def test_the_network_takes_bytes_by_bandwidth() -> None:
    free = dict.fromkeys(CONSTANTS, 0.0)
    sizes = random_graph.sent(CASE)
    phases = cost_model.seconds(CASE, free)
    rows = sizes["features"] + sizes["embeddings"]
    assert phases["exchange"] == pytest.approx(rows / 4 / 125e6)
    assert phases["rounds"] == pytest.approx(6 * 4 * (10 * 63 + 20 * 18) / 4 / 125e6)
    together = cost_model.seconds(replace(CASE, per_node=4), free)
    assert together["exchange"] == 0
    later = cost_model.seconds(replace(CASE, latency=0.5), free)
    assert later["rounds"] - phases["rounds"] == pytest.approx(30 * 2 * 0.5)


def test_a_worker_waits_for_the_last_layers_embedding() -> None:
    """All of the embedding's time where it is the last layer's, and a share of 1; a worker alone waits for nobody."""
    waiting = {**dict.fromkeys(CONSTANTS, 0.0), "most_edge": 1e-6, "waiting": 1.0}
    one_layer = cost_model.seconds(replace(CASE, layers=1, rounds=(10,)), waiting)
    assert one_layer["evaluate"] == one_layer["embed"] > 0
    both = cost_model.seconds(CASE, waiting)
    assert 0 < both["evaluate"] < both["embed"]
    assert cost_model.seconds(replace(CASE, workers=1, cut=0.0), waiting)["evaluate"] == 0


@pytest.mark.parametrize(
    ("cores", "edges", "threads"),
    [(16, 40e6, 2.5), (16, 4e9, 8), (3, 4e9, 3), (1, 4e9, 1), (16, 3e6, 1)],
)
def test_passes_of_a_large_cover_run_in_threads(cores: int, edges: float, threads: float) -> None:
    """With blocks of 16 million edges, eight at most."""
    case = replace(CASE, cores=float(cores))
    speed = cost_model.Speed.of(case, {"cover_small": 5.0, "cover_large": 1.0, "cover_passes": 8.0})
    blocks = edges * flows.BLOCK_EDGES / 16e6
    assert cost_model._cover(blocks, speed, "cover_small", MATCHING_LIMIT) == pytest.approx(
        1 + 8 / threads
    )
    assert cost_model._cover(2e6, speed, "cover_small", MATCHING_LIMIT) == 5


@pytest.mark.parametrize(
    ("cores", "in_blocks", "alone"), [(0.5, 0.5, 0.5), (2.5, 2, 2), (16.0, 8, 3)]
)
def test_a_plan_is_made_in_blocks_but_for_what_a_thread_does_for_each_peer(
    cores: float, in_blocks: float, alone: float
) -> None:
    one = {
        **dict.fromkeys(CONSTANTS, 0.0),
        "find_edge": 4.0,
        "write_edge": 2.0,
        "read_edge": 3.0,
        "alone_edge": 1.0,
    }
    case = replace(CASE, cores=cores, bandwidth=math.inf)
    each = random_graph.needed_cut_edges(case)
    assert cost_model.seconds(case, one)["plan"] == pytest.approx(
        each * (8 / in_blocks + 1 / alone)
    )


def test_more_takes_more() -> None:
    for more in ({"nodes": 2000}, {"edges": 16000}, {"features": 60}, {"hidden": 50}):
        assert cost_model.memory(replace(CASE, **more)) > cost_model.memory(CASE)
        before, after = (
            sum(cost_model.seconds(case, CONSTANTS).values())
            for case in (CASE, replace(CASE, **more))
        )
        assert after > before


# --- against the program ---------------------------------------------------------------------------------------------


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
    wave, _ = random_graph._wave(case, 0, False, x, mass, np.full(len(x), share), np.ones(len(x)))
    rng = np.random.default_rng(0)
    ends = []
    for _ in range(2):
        weight = rng.choice(x, nodes, p=mass)
        ends.append(rng.choice(nodes, round(nodes * mean), p=weight / weight.sum()))
    kept = rng.random(nodes)[ends[1]] < share
    ones = np.ones(nodes, np.int64)
    cover = minimum_cover(ends[0][kept], ends[1][kept], ones, ones)
    assert wave.vectors == pytest.approx(cover.weight, rel=0.05)


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
    sizes = random_graph.sent(case)
    for kind, tolerance in (
        ("features", 0.05),
        ("embeddings", 0.05),
        ("setup", 0.05),
        ("gradients", 1e-9),
    ):
        assert sizes[kind] == pytest.approx(counted.total(case.rounds, [kind]), rel=tolerance), kind


# --- the command line ------------------------------------------------------------------------------------------------

SIZES = {"nodes": "1000", "edges": "8000", "features": "6", "classes": "3"}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A file of constants."""
    file = tmp_path / "constants.json"
    file.write_text(json.dumps(CONSTANTS))
    return file


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts/estimate.py"), *arguments],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_it_prints_all_that_it_promises(kept: Path) -> None:
    given = [word for name, value in SIZES.items() for word in (f"--{name}", value)]
    ended = script(*given, "--rounds", "10", "20", "--constants", str(kept))
    assert ended.returncode == 0, ended.stderr
    for name in (
        "bytes, features",
        "bytes, setup",
        "floating-point",
        "memory per worker",
        "seconds, plan",
        "in all",
    ):
        assert name in ended.stdout


WRONG = {
    "nodes": {"nodes": "0"},
    "edges": {"edges": "many"},
    "features": {"features": None},
    "cut": {"cut": "1.5"},
    "per-node": {"per-node": "3"},
    "train": {"train": "0.9", "test": "0.9"},
    "power-law": {"power-law": "1.5"},
    "rounds": {"rounds": "-1"},
    "constants": {"constants": "WRONG"},
    "check": {"check": "nowhere"},
}


@pytest.mark.parametrize("option", WRONG)
def test_a_mistake_ends_with_status_2(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.json").write_text('{"flop": "fast"}')
    given = {name: value for name, value in {**SIZES, **WRONG[option]}.items() if value is not None}
    if option == "constants":
        given["constants"] = str(tmp_path / "wrong.json")
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    monkeypatch.setattr(sys, "argv", ["estimate.py", *words])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("estimate").main()
    assert ended.value.code == 2
    assert f"--{option}" in capsys.readouterr().err.splitlines()[-1]


def test_a_run_is_checked(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = compose(
        [*GRAPH, SPLITS["all"], f"partition_dir={tmp_path}"], "node_classification_gcn"
    )
    partition_data.run(settings.partition)
    train.run(settings, tmp_path / "run")
    capsys.readouterr()
    monkeypatch.setattr(
        sys, "argv", ["estimate.py", "--constants", str(kept), "--check", str(tmp_path / "run")]
    )
    importlib.import_module("estimate").main()
    table = {line[:26].strip(): line.split() for line in capsys.readouterr().out.splitlines()}
    assert float(table["bytes, gradients"][-1]) == 1
    assert float(table["bytes, in all"][-1]) == pytest.approx(1, abs=0.05)
    assert len(table["seconds, rounds"]) == 5


@pytest.mark.parametrize("text", ['{"status": "running"}', "{"])
def test_a_run_that_is_not_done_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "summary.json").write_text(text)
    monkeypatch.setattr(sys, "argv", ["estimate.py", "--check", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("estimate").main()
    assert ended.value.code == 2
    assert f"--check {tmp_path}" in capsys.readouterr().err
