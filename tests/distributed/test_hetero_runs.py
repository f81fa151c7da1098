"""Commands on a heterogeneous graph: bytes as planned, a run that died, inference, and what is
refused.
"""

import functools
import json
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hetero_support import (
    random_assignment,
    random_hetero,
    write_hetero,
    write_hetero_sites,
)
from support import random_graph, thirds, write_partitions
from test_resume import dies_at

from partitioning.directory.read_directory import find
from partitioning.errors import InputError
from retexo import load_run
from retexo.apps import evaluate, plan, predict, train
from retexo.errors import TrainingError
from retexo.results.predictions import read_table
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

pytestmark = pytest.mark.timeout(120)
GRAPH = random_hetero()
SMALL = "hidden_dim=12", "num_rounds=[5]", "cluster.threads=1", "num_partitions=3", "device=cpu"
EXACT = (
    "model=rgcn",
    "num_layers=2",
    "+experiment=exact",
    "checkpoint.every=1",
    "distributed.max_restarts=0",
)
CASES = [
    ("model=rgcn", "num_layers=2", "smoothing.reach=hops"),
    ("model=hetero_sage", "+experiment=exact", "num_layers=3", "exchange.precision=bf16"),
    ("model=rgat", "num_layers=2", "heads=2", "gradient=local", "local_epochs=2"),
    ("model=rgcn", "num_layers=2", "exchange=plain", "exchange.precision=fp32"),
]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(tmp_path_factory.mktemp("parts"))
    write_hetero(folder, GRAPH, 3)
    return folder


def settings(parts: Path, app: str, *more: str) -> Settings:
    return compose(
        [
            *SMALL,
            *more,
            f"app={app}",
            "dataset_name=file",
            "dataset_file=toy.npz",
            f"partition_dir={parts}",
        ]
    )


@pytest.fixture(scope="module")
def trained(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By settings, the folder of a run and its summary."""

    @functools.cache
    def run(*given: str) -> tuple[Path, dict[str, Any]]:
        folder = Path(tmp_path_factory.mktemp("run"))
        return folder, train.run(settings(parts, "train", *given), folder)

    return run


LONG = pytest.mark.long("other models and encodings are planned likewise")


@pytest.mark.parametrize(
    "case", [CASES[0], CASES[2], *(pytest.param(CASES[each], marks=LONG) for each in (1, 3))]
)
def test_what_was_sent_is_what_was_planned(
    case: tuple[str, ...], parts: Path, trained: Any, tmp_path: Path
) -> None:
    """By layer and kind; of what training makes, at most so much."""
    _, summary = trained(*case)
    planned: Counter[tuple[int, str]] = Counter()
    bounded = set()
    for entry in plan.run(settings(parts, "plan", *case), tmp_path / "plan")["entries"]:
        layer = -1 if entry["layer"] is None else entry["layer"]
        planned[layer, entry["kind"]] += entry["num_bytes"] * (
            summary["rounds"][layer] if entry["kind"] == "gradients" else 1
        )
        bounded |= set() if entry["exact"] else {(layer, entry["kind"])}
    table = summary["bytes"]["by_layer_and_kind"]
    sent = {
        (layer, kind): count
        for layer in (*range(len(table) - 1), -1)
        for kind, count in table[layer].items()
    }
    assert sent[0, "features"] > 0
    for place, count in sent.items():
        if place in bounded and place[1] != "gradients":
            assert count <= planned[place]
        else:
            assert count == planned[place]


def test_end_to_end(parts: Path, tmp_path: Path) -> None:
    """A run, what app=plan says of it, its scores again, and its predictions from Python and by the
    command.
    """
    given = ("model=rgcn", "trainer=full_graph", "exchange=plain", "stopping=none", "num_layers=3")
    summary = train.run(settings(parts, "train", *given), tmp_path / "run")
    trained, kinds = f"checkpoint_dir={tmp_path}/run", summary["bytes"]["by_kind"]
    again = evaluate.run(settings(parts, "evaluate", trained), tmp_path / "evaluate")
    table = load_run(tmp_path / "run").predict(next(parts.iterdir()))
    assert table.embeddings.shape == (40, 12)
    assert np.isfinite(table.probabilities).all()
    predict.run(settings(parts, "predict", trained, "predict.format=npy"), tmp_path / "predict")
    written = read_table(tmp_path / "predict" / "predictions.npy")
    np.testing.assert_array_equal(written["class"], table.classes)
    assert again["test"] == pytest.approx(summary["test"], rel=1e-5)
    assert float((table.classes == GRAPH.labels)[2::3].mean()) == pytest.approx(
        summary["test"]["accuracy"]
    )
    planned = plan.run(
        settings(parts, "plan", *given[2:], "model=rgcn", "gradient=sync"), tmp_path / "plan"
    )
    predicted = planned["baselines"]["limit"]["full graph, end to end"]
    one_pass = kinds["embeddings"] // (2 * 5 + 1)  # five epochs forth and back, and the final test
    tail = 5 * 2 * 2 * 4 * 7  # the last floats of a round's message
    assert (
        kinds["features"] + kinds["embeddings"] + kinds["gradients"] == predicted + one_pass + tail
    )


def refused(*given: Any, folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        train.run(settings(*given), folder)
    return str(caught.value)


def test_refusals(parts: Path, trained: Any, tmp_path: Path) -> None:
    """One kind of graph with the other's model, trainers and layers that there are not."""
    assert "node_classification_rgcn" in refused(parts, "train", "model=gcn", folder=tmp_path)
    write_partitions(tmp_path, random_graph(30, 90), thirds(30), np.arange(30) % 3, 3)
    assert "node_classification_gcn" in refused(tmp_path, "train", "model=rgcn", folder=tmp_path)
    assert "model=rgcn" in refused(tmp_path, "train", "model=rgcn", folder=tmp_path)
    assert "lazy" in refused(parts, "train", "model=rgcn", "trainer=bns", folder=tmp_path)
    assert "model.self_weight" in refused(
        parts, "train", "model=rgcn", "+experiment=retexo", folder=tmp_path
    )
    checkpoint, _ = trained(*CASES[0])
    with pytest.raises(InputError, match="plain graph"):
        load_run(checkpoint).predict(next(tmp_path.glob("toy-*")))
    other = random_hetero({"movie": (40, 6), "person": (25, 3), "studio": (5, 0)})
    write_hetero(tmp_path / "other", other, 3)
    with pytest.raises((InputError, TrainingError), match="person"):
        evaluate.run(
            settings(tmp_path / "other", "evaluate", f"checkpoint_dir={checkpoint}"),
            tmp_path / "evaluate",
        )
    assert (
        json.loads((checkpoint / "checkpoint" / "model.json").read_text())["architecture"]["target"]
        == "movie"
    )


def test_sites(parts: Path, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command: what the directory of the same assignment gives, rows to those who asked, and
    scores again.
    """
    write_hetero_sites(
        tmp_path / "sites",
        GRAPH,
        thirds(40),
        random_assignment(GRAPH, 3),
        ["north", "east", "south"],
    )

    def of_sites(app: str, *more: str) -> Settings:
        sites = "dataset_name=parts", f"dataset_file={tmp_path}/sites"
        return compose([*SMALL, *EXACT, *more, f"app={app}", *sites])

    summary = train.run(of_sites("train"), tmp_path / "run")
    folder, wanted = trained(*EXACT)
    assert [summary[each] for each in ("test", "rounds")] == [
        wanted[each] for each in ("test", "rounds")
    ]
    assert summary["bytes"]["by_kind"]["features"] == wanted["bytes"]["by_kind"]["features"]
    told = json.loads((tmp_path / "run" / "disclosure-1.json").read_text())["to"]
    part = find([*parts.iterdir()], 3).read_hetero(0)
    asked = sum(int((nodes.halo_owner == 1).sum()) for nodes in part.nodes.values())
    assert told["north"]["nodes_with_rows"] == asked > 0
    assert (tmp_path / "sites/east/asked-person.npz").is_file()
    again = evaluate.run(
        of_sites("evaluate", f"checkpoint_dir={tmp_path}/run"), tmp_path / "evaluate"
    )
    assert again["test"] == pytest.approx(summary["test"], rel=1e-5)
    planned = plan.run(of_sites("plan"), tmp_path / "plan")["entries"]
    assert (
        sum(entry["num_bytes"] for entry in planned if entry["kind"] == "setup")
        == (summary["bytes"]["by_kind"]["setup"])
    )
    predict.run(
        of_sites("predict", f"checkpoint_dir={tmp_path}/run", "predict.format=npy"),
        tmp_path / "predict",
    )
    table = load_run(folder).predict(next(parts.iterdir()))
    written = read_table(tmp_path / "predict" / "predictions.npy")
    np.testing.assert_array_equal(written["id"], table.ids)
    np.testing.assert_array_equal(written["class"], table.classes)
    with monkeypatch.context() as patched:
        patched.setattr(train, "main", partial(dies_at, 60))
        with pytest.raises(TrainingError, match="was killed by SIGKILL"):
            train.run(of_sites("train", "sites.max_rows_shared=100"), tmp_path / "died")
    resumed = train.run(
        of_sites("train", "sites.max_rows_shared=100", "resume=auto"), tmp_path / "died"
    )
    assert resumed["test"] == pytest.approx(summary["test"], rel=1e-5)
    for name in ("layer0.safetensors", "layer1.safetensors"):
        assert (
            len({(tmp_path / run / "checkpoint" / name).read_bytes() for run in ("died", "run")})
            == 1
        )
    with pytest.raises(TrainingError, match=r"sites\.max_rows_shared=1\S*: .* asks for"):
        train.run(of_sites("train", "sites.max_rows_shared=1"), tmp_path / "few")
    for name in ("north", "south"):
        shutil.rmtree(tmp_path / "sites" / name)
    alone = plan.run(of_sites("plan"), tmp_path / "plan")
    part = find([*parts.iterdir()], 3).read_hetero(1)
    assert alone["nodes"] == sum(nodes.num_inner for nodes in part.nodes.values())
    wanted = {"ids_asked_for": 0, "edges_told": 0}
    for (source, *_), edges in part.relations.items():  # edges from north, which has rank 0
        halo = edges.src[edges.src >= part.nodes[source].num_inner] - part.nodes[source].num_inner
        wanted["edges_told"] += int((part.nodes[source].halo_owner[halo] == 0).sum())
    for nodes in part.nodes.values():
        wanted["ids_asked_for"] += int((nodes.halo_owner == 0).sum())
    told = alone["to"]["north"]
    assert {name: told[name] for name in wanted} == wanted
    assert min(told["bytes_at_most"][kind] for kind in ("features", "embeddings")) > 0


def test_layers_are_added_by_default_but_two_without_validation(
    parts: Path, tmp_path: Path
) -> None:
    given = "train", "model=rgcn", "max_layers=5"
    grown = train.run(settings(parts, *given), tmp_path / "grown")
    assert 3 <= len(grown["rounds"]) <= 5
    assert grown["chosen"]["num_layers"] <= len(grown["rounds"])
    masks = {**thirds(40), "val_mask": np.zeros(40, bool)}
    write_hetero(tmp_path / "parts", GRAPH, 3, masks=masks)
    unguided = train.run(settings(tmp_path / "parts", *given), tmp_path / "unguided")
    assert len(unguided["rounds"]) == unguided["chosen"]["num_layers"] == 2
    assert load_run(tmp_path / "unguided").predict(next(parts.iterdir())).classes.shape == (40,)
