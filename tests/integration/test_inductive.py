"""split.inductive: training as if held-out nodes did not exist, and their scores in both views."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hetero_support import hetero_parts, random_hetero
from safetensors.torch import load_file
from support import random_graph, run_main, save_npz, thirds
from test_predictor import as_data

import retexo
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.worker.hide_held_out import hide_by_type

COMMON = (
    "app=train",
    "dataset_name=file",
    "num_partitions=2",
    "hidden_dim=8",
    "num_rounds=[5]",
    "best_val_model=false",
    "stopping=none",
    "output_heads=last",
    "smoothing.steps=0",
    "exchange.precision=[fp32]",
    "gradient.compression=none",
    "device=cpu",
    "cluster.threads=1",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hidden/ and whole/: trained inductively, and on the graph without edges of held-out nodes."""
    folder = Path(tmp_path_factory.mktemp("inductive"))
    graph, masks = random_graph(), thirds(40)
    held_out = masks["val_mask"] | masks["test_mask"]
    between = ~held_out[graph.src] & ~held_out[graph.dst]
    without = dataclasses.replace(graph, src=graph.src[between], dst=graph.dst[between])
    save_npz(folder / "graph.npz", graph, masks)
    save_npz(folder / "without.npz", without, masks)
    for model in ("gcn", "sage"):
        for name, file, inductive in (("hidden", "graph", True), ("without", "without", False)):
            ended = run_main(
                "--config-name",
                f"node_classification_{model}",
                *COMMON,
                f"dataset_file={file}.npz",
                f"split.inductive={str(inductive).lower()}",
                f"partition_dir=parts-{name}",
                f"hydra.run.dir={name}-{model}",
                cwd=folder,
            )
            assert ended.rc == 0, ended.output
            assert ("in the whole graph" in ended.stdout) == inductive
    return folder


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_the_network_is_that_of_the_graph_without_held_out_nodes(runs: Path, model: str) -> None:
    for layer in range(2):
        one, other = (
            load_file(runs / f"{name}-{model}" / "checkpoint" / f"layer{layer}.safetensors")
            for name in ("hidden", "without")
        )
        for name, values in one.items():
            np.testing.assert_allclose(values, other[name], rtol=1e-4, atol=1e-6)


def test_scores_of_nodes_that_join_and_of_the_whole_graph(runs: Path) -> None:
    """By the predictor: a test node alone, with its edges from training nodes; and all at once."""
    graph, masks = random_graph(), thirds(40)
    summary = json.loads((runs / "hidden-sage" / "summary.json").read_text())
    assert summary["test"] != summary["transductive"]["test"]
    held_out = masks["val_mask"] | masks["test_mask"]
    predictor = retexo.load(runs / "hidden-sage")
    whole = predictor.predict(as_data(graph))["class"].to_numpy()
    test = np.flatnonzero(masks["test_mask"])
    accuracy = (whole[test] == graph.labels[test]).mean()
    assert summary["transductive"]["test"]["accuracy"] == pytest.approx(accuracy)

    known = np.flatnonzero(~held_out)
    place = np.full(40, -1)
    place[known] = np.arange(len(known))
    between = ~held_out[graph.src] & ~held_out[graph.dst]
    seen = dataclasses.replace(
        graph,
        src=place[graph.src[between]],
        dst=place[graph.dst[between]],
        features=graph.features[known],
        node_ids=graph.node_ids[known],
    )
    predictor.attach(as_data(seen))
    right = []
    for node in test:
        into = (graph.dst == node) & ~held_out[graph.src]
        edges = pd.DataFrame({"src": graph.src[into] + 1000, "dst": graph.dst[into] + 1000})
        new = pd.DataFrame({"id": [node + 1000], "x": [graph.features[node]]})
        found = predictor.predict(new=(new, edges))["class"][0]
        right.append(found == graph.labels[node])
    assert summary["test"]["accuracy"] == pytest.approx(np.mean(right))


def test_no_edge_leaves_a_held_out_node_of_a_typed_graph() -> None:
    graph, count = random_hetero(), 3
    masks = thirds(len(graph.labels))
    parts = hetero_parts(graph, count, masks=masks)
    sizes = {name: tuple(len(part.nodes[name].node_ids) for part in parts) for name in graph.nodes}

    def work(comm: Communicator) -> dict[str, int]:
        kept = hide_by_type(parts[comm.rank], sizes, comm)
        return {each[1]: len(edges.src) for each, edges in kept.relations.items()}

    found = run_threads(count, work)
    held_out = masks["val_mask"] | masks["test_mask"]
    for each, relation in graph.relations.items():
        kept = ~held_out[relation.src] if each[0] == graph.target else relation.src >= 0
        kept = kept & ((relation.src != relation.dst) | (each[0] != each[2]))
        assert sum(counts[each[1]] for counts in found) == kept.sum()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("trainer=sign",), "trainer=sign has no such training"),
        (("features=degree", "partition_dir=degrees"), "features=degree"),
        (("app=plan",), "app=plan predicts runs in which no node is hidden"),
    ],
)
def test_what_cannot_hide_nodes_is_refused(
    runs: Path, tmp_path: Path, changes: tuple[str, ...], message: str
) -> None:
    ended = run_main(
        *COMMON,
        "split.inductive=true",
        f"dataset_file={runs / 'graph.npz'}",
        "partition_dir=parts",
        *changes,
        f"hydra.run.dir={tmp_path / 'out'}",
        cwd=tmp_path,
    )
    assert ended.rc == 2
    assert message in ended.stderr
