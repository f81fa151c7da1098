"""Node to partition: seeded, balanced, and files that are wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_files import write_files
from hetero_support import random_hetero
from support import make_graph, random_graph, thirds, with_arrays

from partitioning.assign.assignment import assign as assign_by_type
from partitioning.errors import InputError
from partitioning.graph.graph_data import PLAIN_TYPE, GraphData, Relation
from partitioning.partition_settings import PartitionSettings, PlacementSettings
from retexo.settings.compose import compose


def settings(
    method: str,
    num_parts: int = 3,
    seed: int = 0,
    file: Path | None = None,
    balance: bool | None = None,
    objective: str = "vol",
) -> PartitionSettings:
    asked = compose(["app=partition_data", "dataset_name=file", "dataset_file=toy.npz"])
    return replace(
        asked,
        partition_method=method,
        part_obj=objective,
        partition_file=None if file is None else str(file),
        num_partitions=num_parts,
        partition=PlacementSettings(balance_train=balance, seed=seed),
    )


def assign(graph: GraphData, train: np.ndarray, chosen: PartitionSettings) -> np.ndarray:
    return assign_by_type(graph, train, chosen)[PLAIN_TYPE]


GRAPH = random_graph(300, 900)
TRAIN = thirds(300)["train_mask"]


@pytest.mark.parametrize(
    ("library", "objective"), [("pymetis", "vol"), ("pymetis", "cut"), ("dgl", "vol")]
)
def test_metis_balances_training_nodes_too(
    library: str, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And gets each pair once: DGL's corrupts memory, or loops, where edges are repeated
    (dmlc/dgl#3224).
    """
    pytest.importorskip(library)
    monkeypatch.setattr("partitioning.assign.metis.find_library", lambda: library)
    src, dst = np.tile((GRAPH.edges.src, GRAPH.edges.dst), 20)
    graph = with_arrays(GRAPH, src=src, dst=dst)
    parts = assign(graph, TRAIN, settings("metis", objective=objective))
    assert np.bincount(parts, minlength=3).max() <= 105
    assert np.bincount(parts[TRAIN], minlength=3).max() <= 1.05 * TRAIN.sum() / 3
    if library == "pymetis":
        assert (parts == assign(GRAPH, TRAIN, settings("metis", objective=objective))).all()


def test_metis_may_leave_parts_empty() -> None:
    graph = make_graph([(0, 1), (1, 2)], np.zeros((3, 1)), np.zeros(3))
    parts = assign(graph, np.ones(3, np.bool_), settings("metis", num_parts=5))
    assert len(set(parts.tolist())) == 3


@pytest.mark.parametrize("method", ["metis", "km1"])
def test_a_type_of_few_nodes_does_not_unbalance_the_others(method: str) -> None:
    if method == "km1":
        pytest.importorskip("mtkahypar")
    cites, in_venue = ("paper", "cites", "paper"), ("paper", "in", "venue")
    sizes = {"paper": (240, 3), "venue": (2, 1)}
    graph = random_hetero(sizes, {cites: 480, in_venue: 0})
    papers = np.arange(240)
    venues = Relation(papers, papers // 120)
    graph = replace(graph, relations={**graph.relations, in_venue: venues})
    parts = assign_by_type(graph, papers % 2 == 0, settings(method, num_parts=4))
    assert np.bincount(parts["paper"], minlength=4).max() <= 63
    assert np.bincount(parts["venue"], minlength=4).max() == 1


def test_an_uneven_assignment_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here METIS leaves one node of each of 12 types in one part, and no type can be more even."""
    types = {f"t{number}": (1, 1) for number in range(12)}
    graph = random_hetero(types, {("t0", "to", "t1"): 1})
    monkeypatch.setattr("partitioning.assign.metis.partition", lambda *_: np.zeros(12, np.int64))
    assign_by_type(graph, np.ones(1, np.bool_), settings("metis"))
    assert "the largest part has 12 of 12 nodes, 3.00 times the mean" in caplog.text


CAUSES = {
    "crash": ("os.kill(os.getpid(), signal.SIGSEGV)", r"crashed on this graph \(SIGSEGV\)"),
    "memory": ("os.kill(os.getpid(), signal.SIGKILL)", r"was killed \(SIGKILL\), .* memory"),
    "error": ("raise ValueError('no such graph')", "failed: ValueError: no such graph"),
    "loop": ("while True: pass", "did not end within \\d s"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_metis_that_dies_is_named(
    cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, message = CAUSES[cause]
    (tmp_path / "pymetis.py").write_text(f"import os, signal\n{code}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("partitioning.assign.metis.find_library", lambda: "pymetis")
    if cause == "loop":
        monkeypatch.setattr("partitioning.assign.metis.START_SECONDS", 0.1)
    with pytest.raises(InputError, match=f"partition_method=metis: .*{message}.*=random"):
        assign(GRAPH, TRAIN, settings("metis"))


@pytest.mark.parametrize(("balance", "holds"), [(None, True), (False, False)])
def test_km1_balances_training_nodes_unless_told_not_to(balance: bool | None, holds: bool) -> None:
    crowded = np.arange(300) < 60  # and all of them in one clique, which km1 would rather not cut
    graph = random_graph(300, 300)
    ends = np.stack(np.nonzero(crowded[:, None] & crowded))
    src, dst = np.concatenate((np.stack((graph.edges.src, graph.edges.dst)), ends), axis=1)
    graph = with_arrays(graph, src=src, dst=dst)
    parts = assign(graph, crowded, settings("km1", balance=balance))
    assert np.bincount(parts, minlength=3).max() <= 105
    assert (np.bincount(parts[crowded], minlength=3).max() <= 21) == holds


def test_one_part() -> None:
    assert set(assign(GRAPH, TRAIN, settings("metis", num_parts=1)).tolist()) == {0}


@pytest.mark.parametrize(
    ("name", "content"), [("parts.npy", np.arange(300) % 3), ("parts.csv", "0\n1\n2\n" * 100)]
)
def test_a_file_is_taken_as_it_is(tmp_path: Path, name: str, content: Any) -> None:
    path = write_files(tmp_path, {name: content}) / name
    assert (assign(GRAPH, TRAIN, settings("file", file=path)) == np.arange(300) % 3).all()


@pytest.mark.filterwarnings("ignore:loadtxt")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("parts.npy", np.zeros(299, int), "has 299 rows; expected 300"),
        ("parts.npy", np.where(np.arange(300) == 7, 3, 0), "row 7 is 3.*num_partitions"),
        ("parts.npy", np.where(np.arange(300) == 7, -1, 0), "row 7 is -1"),
        ("parts.npy", np.full(300, 0.5), "row 0 is 0.5; expected the number"),
        ("parts.npy", np.zeros((300, 2), int), r"\(300, 2\)"),
        ("parts.npy", np.array([{}] * 300), "not a readable npy or csv"),
        *(
            (name, content, "")
            for name in ("parts.npy", "parts.csv")
            for content in (None, b"", b"\x93NUMPY broken")
        ),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, name: str, content: Any, message: str) -> None:
    path = write_files(tmp_path, {name: content}) / name
    with pytest.raises(InputError, match=rf"partition_file.*{name}.*{message}"):
        assign(GRAPH, TRAIN, settings("file", file=path))
