"""What a prediction with predict.state computes and sends after a share of the edges changed.

    python benchmarks/predict_changes.py [--graph FILE.npz] [--nodes 1000000 --edges 5000000]
        [--model gcn] [--shares 0.0001 0.001 0.01 0.1] [--hidden-dim 64] [--steps 0 5]

The graph is FILE, or `synthetic` with this many nodes and undirected edges, in four parts. Of a
share of the edges half are removed, and as many are added between random nodes. Each change starts
from the same kept prediction of two layers with the default skip connections, which nobody trained.
Values decide only where rows come out equal, so figures are those of trained models.
"""

import argparse
import contextlib
import dataclasses
import io
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import numpy as np

from partitioning import assign, datasets
from partitioning.directory.write_directory import write
from partitioning.graph_data import PLAIN_TYPE, GraphData
from retexo.apps import predict
from retexo.models.conv_registry import default_model_settings
from retexo.models.stage import Architecture, build_stages
from retexo.results.checkpoint import save_layer, save_model
from retexo.settings.compose import compose

PARTS = 4
ALPHA = 0.1


def change_edges(graph: GraphData, share: float, seed: int = 0) -> GraphData:
    """Remove half of a share of the undirected edges, and add as many between random nodes."""
    rng = np.random.default_rng(seed)
    once = graph.src < graph.dst  # each edge is there in both directions
    ends = np.stack((graph.src[once], graph.dst[once]), axis=1)
    count = round(share * len(ends) / 2)
    kept = np.delete(ends, rng.choice(len(ends), count, replace=False), axis=0)
    ends = np.concatenate((kept, rng.integers(graph.num_nodes, size=(count, 2))))
    return dataclasses.replace(
        graph,
        src=np.concatenate((ends[:, 0], ends[:, 1])),
        dst=np.concatenate((ends[:, 1], ends[:, 0])),
    )


def save_untrained(folder: Path, graph: GraphData, name: str, hidden_dim: int, steps: int) -> None:
    """Save a checkpoint; steps: of label propagation."""
    model = dataclasses.replace(
        default_model_settings(name, 2, hidden_dim),
        self_weight=True,
        input_skip=True,
        output="aggregate",
    )
    shape = Architecture(model, graph.features.shape[1], graph.num_classes)
    for layer, stage in enumerate(build_stages(shape, seed=0)):
        save_layer(folder, layer, stage)
    heads = {"stages": [1], "alpha": ALPHA if steps else 1.0, "steps": steps, "reach": "hops"}
    about = {"multilabel": False, "partition_digest": "none", "answer": heads}
    save_model(folder, shape, about)


def write_parts(folder: Path, graph: GraphData, parts: Any) -> None:
    """Write the partitions of a graph without labels or split."""
    none = np.zeros(graph.num_nodes, bool)
    made_by = {
        "request": {
            "dataset_name": "file",
            "num_partitions": PARTS,
            "partition_method": "random",
        },
        "split": {"kind": "given"},
        "versions": {},
    }
    write(
        folder / f"graph-random-vol-{PARTS}",
        graph,
        {f"{name}_mask": none for name in ("train", "val", "test")},
        {PLAIN_TYPE: parts},
        num_parts=PARTS,
        provenance=made_by,
        overwrite=True,
    )


def run_predict(folder: Path, *arguments: str) -> dict[str, Any]:
    """Predict in a new run directory, without output; return what predictions.json says."""
    settings = compose(
        [
            "app=predict",
            "dataset_name=file",
            f"dataset_file={folder}/graph.npz",
            f"partition_dir={folder}",
            f"num_partitions={PARTS}",
            f"checkpoint_dir={folder}/checkpoint",
            "device=cpu",
            "cluster.threads=1",
            *arguments,
        ]
    )
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as run_dir:
        return predict.run(settings, Path(run_dir))


def measure(
    folder: Path, graph: GraphData, parts: Any, options: argparse.Namespace, steps: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and predictions.json of a prediction without state, of the first with it, and of one
    after each change."""
    save_untrained(folder / "checkpoint", graph, options.model, options.hidden_dim, steps)
    write_parts(folder, graph, parts)
    yield "without", run_predict(folder, "predict.precision=fp32")
    base, state = folder / "base", folder / "state"
    yield "first", run_predict(folder, f"predict.state={base}")
    for share in options.shares:
        write_parts(folder, change_edges(graph, share), parts)
        shutil.copytree(base, state)
        yield f"{share:.2%}", run_predict(folder, f"predict.state={state}")
        shutil.rmtree(state)
    shutil.rmtree(base)


def row(name: str, found: dict[str, Any]) -> str:
    """A line of the table."""
    total, seconds = found["bytes"]["total"], found["seconds"]
    cells = [name, f"{total / 1e6:.3f}", f"{seconds['inference']:.1f}", f"{seconds['total']:.1f}"]
    if "incremental" in found:
        about = found["incremental"]
        num_nodes, layers = about["nodes_of_graph"], about["num_layers"]
        shares = [f"{count / num_nodes:.2%}" for count in about["nodes"]]
        cells += [", ".join(shares[:layers]), ", ".join(shares[layers:])]
        cells += [f"{sum(about['bytes']) / 1e6:.3f}", f"{about['state_bytes'] / 1e6:.0f}"]
    return "|" + "|".join(cells) + "|"


def main() -> None:
    common.be_silent()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graph", type=Path)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--method", default="random")
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--hidden-dim", type=int, default=64)
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 5])
    parser.add_argument("--shares", type=float, nargs="+", default=[1e-4, 1e-3, 1e-2, 1e-1])
    options = parser.parse_args()
    named = ["dataset_name=file", f"dataset_file={options.graph}", "symmetrize=true"]
    if options.graph is None:
        sizes = {"nodes": options.nodes, "edges": options.edges, "features": options.features}
        named = ["dataset_name=synthetic"]
        named += [f"synthetic.{name}={value}" for name, value in sizes.items()]
    graph = datasets.load(compose(named).partition.dataset)
    assert isinstance(graph, GraphData)
    method = compose([*named, f"partition_method={options.method}", f"num_partitions={PARTS}"])
    nobody = np.zeros(graph.num_nodes, bool)
    parts = assign.assign(graph, nobody, method.partition)[PLAIN_TYPE]
    print(common.machine(), f"{graph.num_nodes:,} nodes, {len(graph.src):,} edges")
    print("|changed|MB|s|s, whole command|nodes by layer|by smoothing step|MB of rows|MB kept|")
    with tempfile.TemporaryDirectory() as folder:
        for steps in options.steps:
            print(f"smoothing.steps={steps}")
            started = time.time()
            for name, found in measure(Path(folder), graph, parts, options, steps):
                print(row(name, found), f"load {os.getloadavg()[0]:.0f}", flush=True)
            print(f"{time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
