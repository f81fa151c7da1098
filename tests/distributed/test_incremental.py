"""app=predict with predict.state: random changes of a graph, each predicted from the state of the
one before, give what a prediction from scratch gives in one partition; what is computed and sent.
"""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import MASKS, make_graph, train_settings, write_partitions

from partitioning.errors import InputError
from partitioning.graph_data import GraphData
from retexo.apps import predict as predict_app
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.exchange.exchange_plan import Use
from retexo.models.conv_registry import default_model_settings
from retexo.models.stage import Architecture, OutputHeads, build_stages
from retexo.results.checkpoint import save_layer, save_model
from retexo.results.predictions import read_table
from retexo.rounds.graph_info import agree_on_graph_info
from retexo.settings.compose import compose
from retexo.trainers.context import Clock
from retexo.trainers.lazy import infer
from retexo.worker.infer_changed import infer_changed
from retexo.worker.make_context import make_context, task_of_model

WIDTH, CLASSES = 12, 3
SKIPS = ("model.self_weight=true", "model.input_skip=true", "model.output=aggregate")
SMOOTH = ("smoothing.steps=3", "smoothing.reach=hops")
CASES: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "gcn": (1, "", ("model=gcn",)),
    "gcn-skips-smoothed": (4, "sparse", ("model=gcn", *SKIPS, *SMOOTH)),
    "sage-weights-smoothed": (3, "weights", ("model=sage", *SKIPS, *SMOOTH)),
    "sage-pool": (2, "", ("model=sage", "model.aggregator=pool")),
    "gin-edge-features": (2, "edges", ("model=gin", *SKIPS)),
    "gat-edge-features": (4, "edges", ("model=gat", "heads=2", *SKIPS)),
    "gat-split-is-source": (
        3,
        "",
        ("model=gat", "heads=2", "smoothing.steps=2", "smoothing.reach=computed"),
    ),
}
"""Parts, kind of the graph, and settings."""


class World:
    """A graph that changes; its nodes keep their ids and parts, and their order."""

    def __init__(self, seed: int, num_parts: int, kind: str, num_nodes: int = 60) -> None:
        self.rng, self.kind, self.num_parts = np.random.default_rng(seed), kind, num_parts
        self.ids = np.arange(num_nodes) * 3 + 100
        self.features = self._draw_features(num_nodes)
        self.parts = self.rng.integers(min(num_parts, 3), size=num_nodes)  # the fourth is empty
        self.ends = np.zeros((0, 2), np.int64)
        self.data = np.zeros((0, 2), np.float32)
        self.add_edges(3 * num_nodes)

    def _draw_features(self, count: int) -> Any:
        values = self.rng.standard_normal((count, WIDTH))
        kept = self.rng.random(values.shape) < (0.08 if self.kind == "sparse" else 1)
        return (values * kept).astype(np.float32)

    def add_edges(self, count: int) -> None:
        self.ends = np.concatenate((self.ends, self.rng.choice(self.ids, (count, 2))))
        self.data = np.concatenate((self.data, self.rng.random((count, 2), np.float32)))

    def change(self) -> None:
        """New and deleted nodes and edges, and other features, weights and edge features."""
        rng = self.rng
        new = self.ids.max() + 1 + np.arange(rng.integers(3))
        self.ids = np.concatenate((self.ids, new))
        self.features = np.concatenate((self.features, self._draw_features(len(new))))
        self.parts = np.concatenate((self.parts, rng.integers(self.num_parts, size=len(new))))
        self.add_edges(int(rng.integers(5)))
        gone = rng.choice(self.ids, rng.integers(3))
        kept = ~np.isin(self.ids, gone)
        self.ids, self.features, self.parts = self.ids[kept], self.features[kept], self.parts[kept]
        kept = ~np.isin(self.ends, gone).any(axis=1)
        kept[rng.integers(len(kept), size=rng.integers(3))] = False
        self.ends, self.data = self.ends[kept], self.data[kept]
        self.data[rng.integers(len(self.data), size=rng.integers(3))] += 0.5
        place = rng.integers(len(self.ids), size=rng.integers(3))
        self.features[place] = self._draw_features(len(place))

    def graph(self) -> GraphData:
        graph = make_graph(
            np.searchsorted(self.ids, self.ends), self.features, self.ids % CLASSES, CLASSES
        )
        graph = dataclasses.replace(graph, node_ids=self.ids)
        if self.kind == "weights":
            return dataclasses.replace(graph, edge_weight=self.data[:, 0].copy())
        return dataclasses.replace(graph, edge_feat=self.data) if self.kind == "edges" else graph


def predict(
    folder: Path, world: World, overrides: tuple[str, ...], state: Path | None
) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray], dict[str, Any]]:
    """Logits and embeddings by node id in float64, and what was computed; state: None for a
    prediction from scratch, in one partition."""
    masks = {name: world.ids % 5 == place for place, name in enumerate(MASKS)}
    num_parts = world.num_parts if state else 1
    parts = world.parts if state else np.zeros_like(world.parts)
    directory = write_partitions(folder, world.graph(), masks, parts, num_parts)
    settings = train_settings(
        "base=published", "num_layers=3", "hidden_dim=8", "device=cpu", *overrides
    )
    smoothing = settings.smoothing
    alpha = 0.2 if smoothing.steps else 1.0
    heads = OutputHeads((1, 2), alpha=alpha, steps=smoothing.steps, reach=smoothing.reach)
    use: Use = "nothing" if state else "predict"

    with torch.random.fork_rng():
        sizes = (WIDTH, CLASSES, 2 if world.kind == "edges" else 0, world.kind == "weights")
        stages = [
            each.double().eval()
            for each in build_stages(Architecture.of(settings.model, *sizes), seed=1)
        ]

    def work(comm: Communicator) -> Any:
        partition = directory.read(comm.rank)
        info = agree_on_graph_info(comm, partition, directory, training=False)
        context = make_context(
            settings,
            partition,
            info,
            comm,
            stages[0].conv,
            clock=Clock(),
            dtype=torch.float64,
            use=use,
            trained=task_of_model(CLASSES),
        )
        if state is None:
            return partition.node_ids, infer(context, stages, heads), {}
        return partition.node_ids, *infer_changed(context, stages, heads, state)

    logits, embeddings, told = {}, {}, {}
    for ids, found, counts in run_threads(num_parts, work):
        logits |= dict(zip(ids.tolist(), found.logits.detach().numpy(), strict=True))
        embeddings |= dict(zip(ids.tolist(), found.embeddings.detach().numpy(), strict=True))
        told |= counts
    return logits, embeddings, told


def assert_equal(found: dict[int, np.ndarray], wanted: dict[int, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for node, values in wanted.items():
        np.testing.assert_allclose(found[node], values, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_random_changes_give_what_scratch_gives(name: str, tmp_path: Path) -> None:
    num_parts, kind, overrides = CASES[name]
    for seed in range(2):
        world, state = World(seed, num_parts, kind), tmp_path / f"state{seed}"
        for step in range(4):
            logits, embeddings, told = predict(tmp_path, world, overrides, state)
            wanted, wanted_embeddings, _ = predict(tmp_path, world, overrides, None)
            assert_equal(logits, wanted)
            assert_equal(embeddings, wanted_embeddings)
            assert bool(told["why_everything"]) == (step == 0)
            if step:
                assert told["nodes"][0] < len(world.ids)
            world.change()


# --- the command ----------


def run_predict(place: Path, out: str, *arguments: str) -> dict[str, Any]:
    """What predictions.json says of a new run directory."""
    settings = compose(
        [
            "app=predict",
            "dataset_name=file",
            f"dataset_file={place}/toy.npz",
            f"partition_dir={place}",
            "num_partitions=3",
            f"checkpoint_dir={place}/run",
            "device=cpu",
            "cluster.threads=1",
            *arguments,
        ]
    )
    return predict_app.run(settings, place / out)


def write_world(place: Path, world: World) -> None:
    masks = {name: world.ids % 5 == place for place, name in enumerate(MASKS)}
    write_partitions(place, world.graph(), masks, world.parts, 3)


@pytest.mark.timeout(600)  # seven commands
def test_command_with_state(tmp_path: Path) -> None:
    """Equal to a prediction without state; damage, another model and a killed command are told or
    survived; other folders and models are refused."""
    world, state = World(0, 3, "", num_nodes=300), tmp_path / "state"
    write_world(tmp_path, world)
    model = default_model_settings("sage", 2, 8)
    shape = Architecture(model, num_features=WIDTH, num_classes=CLASSES)
    for seed, name in enumerate(("run", "other")):
        for layer, stage in enumerate(build_stages(shape, seed)):
            save_layer(tmp_path / name / "checkpoint", layer, stage)
        about = {"multilabel": False, "partition_digest": "none"}
        save_model(tmp_path / name / "checkpoint", shape, about)
    kept = f"predict.state={state}"
    first = run_predict(tmp_path, "first", kept)["incremental"]
    assert first["nodes"] == [300, 300]
    assert first["rows"] == [first["boundary_rows"]] * 2
    assert first["state_bytes"] == sum(np.load(file).nbytes for file in state.rglob("*.npy"))
    same = run_predict(tmp_path, "same", kept)
    assert same["incremental"]["nodes"] == same["incremental"]["rows"] == [0, 0]
    assert same["incremental"]["last_full"]["bytes"] == first["bytes"]

    for _ in range(3):
        world.change()
    write_world(tmp_path, world)
    left = state / "part1" / ".unfinished-7"  # of a killed command
    left.mkdir()
    shutil.copytree(state, tmp_path / "former")
    third = run_predict(tmp_path, "third", kept, "predict.embeddings=true")
    assert not left.exists()
    assert 0 < third["incremental"]["nodes"][0] < third["incremental"]["nodes"][1] < 150
    exact = ("predict.precision=fp32", "predict.embeddings=true")
    scratch = run_predict(tmp_path, "scratch", *exact)
    assert third["bytes"]["total"] < scratch["bytes"]["total"]
    for name in ("predictions", "embeddings"):
        found, wanted = (
            read_table(tmp_path / out / f"{name}.parquet") for out in ("third", "scratch")
        )
        assert found["id"].tolist() == wanted["id"].tolist()
        for column in found:
            np.testing.assert_allclose(found[column], wanted[column], rtol=1e-5, atol=1e-6)

    # Killed when part 1 had not yet committed the new state, and no part had removed the former.
    shutil.rmtree(state / "part1")
    shutil.copytree(tmp_path / "former", state, dirs_exist_ok=True)
    assert len(list((state / "part0").iterdir())) == 2
    again = run_predict(tmp_path, "again", kept)["incremental"]
    assert again["why_everything"] is None
    assert again["nodes"] == third["incremental"]["nodes"]

    (number,) = (each.name for each in (state / "part2").iterdir())
    file = state / "part2" / number / "rows1.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    damaged = run_predict(tmp_path, "damaged", kept)["incremental"]
    assert damaged["why_everything"] == "rank 2: what is kept there is damaged"
    other = run_predict(tmp_path, "other", kept, f"checkpoint_dir={tmp_path}/other")
    assert "another model" in other["incremental"]["why_everything"]
    assert other["incremental"]["nodes"] == [len(world.ids)] * 2

    for arguments, message in (
        ((f"predict.state={tmp_path}/run",), "holds other files"),
        ((kept, "predict.precision=int8"), "leave predict.precision out"),
        ((kept, "compute.precision=bf16"), "compute.precision"),
    ):
        with pytest.raises(InputError, match=message):
            run_predict(tmp_path, "refused", *arguments)
