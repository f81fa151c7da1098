"""A graph whose edges have weights and features, from its npz to scores of the trained model."""

import json
from pathlib import Path

import numpy as np
import pytest
from support import Ended, random_graph, run_main, thirds

SMALL = ("num_partitions=2", "num_rounds=[3]", "device=cpu", "hidden_dim=16")


def save(path: Path, **edges: np.ndarray) -> tuple[str, ...]:
    graph = random_graph()
    masks = thirds(graph.num_nodes)
    np.savez(
        path,
        src=graph.src,
        dst=graph.dst,
        feat=graph.features,
        label=graph.labels,
        **masks,
        **edges,
    )  # type: ignore[arg-type]
    return "dataset_name=file", f"dataset_file={path}", "partition_method=random"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_trained_evaluated_and_refused_elsewhere(model: str, tmp_path: Path) -> None:
    rng, count = np.random.default_rng(0), random_graph().num_edges
    of_edges = {"edge_weight": rng.integers(0, 4, count), "edge_feat": rng.random((count, 3))}
    given, run = save(tmp_path / "edges.npz", **of_edges), tmp_path / "run"

    def called(*arguments: str) -> Ended:
        return run_main(*SMALL, *arguments, cwd=tmp_path)

    assert called("app=partition_data", *given).rc == 0
    ended = called("app=train", *given, f"model={model}", f"hydra.run.dir={run}")
    assert ended.rc == 0, ended.output
    ended = called(
        "app=evaluate", *given, f"checkpoint_dir={run}", f"hydra.run.dir={tmp_path / 'scores'}"
    )
    assert ended.rc == 0, ended.output
    test = [
        json.loads(file.read_text())["test"]
        for file in (run / "summary.json", tmp_path / "scores" / "evaluation.json")
    ]
    assert test[0] == test[1]
    plain = save(tmp_path / "plain.npz")
    assert called("app=partition_data", *plain).rc == 0
    ended = called(
        "app=evaluate", *plain, f"checkpoint_dir={run}", f"hydra.run.dir={tmp_path / 'other'}"
    )
    assert ended.rc != 0
    reads = {"gcn": 3, "gat": 4}[model]
    assert (
        f"reads {reads} features of an edge (for attention a weight is one), this graph has 0"
        in ended.output
    )
