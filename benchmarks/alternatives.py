"""Compare with PyTorch Geometric and DGL on one machine: what a user would otherwise choose.

    python benchmarks/alternatives.py cora --seeds 5
    python benchmarks/alternatives.py pubmed --pubmed ../shared/datasets/pubmed.npz
    python benchmarks/alternatives.py synthetic --seeds 1 --methods "PyG GCN" "ours SAGE, 1 worker"
    python benchmarks/alternatives.py products --seeds 1 --budget 1200
    python benchmarks/alternatives.py cora \\
        --options +experiment=exact distributed.backend=sockets
    python benchmarks/alternatives.py distdgl ...       # see distdgl.py

`products` is a synthetic graph with the sizes of ogbn-products, for methods that run at that
size: sampling, and ours. --options are settings of our runs.

All methods have the same graph, split (drawn by the seed), 2 layers, width 256, dropout 0.5 and
stopping rule: at most 200 epochs (ours: rounds per layer), patience 30 on validation accuracy,
best validation epoch, one look at the test nodes. Other settings are the documented ones. Full
batch (the GCN examples of PyG and DGL, DGL's train_full.py): Adam, learning rate 0.01, weight
decay 5e-4. Sampled GraphSAGE: batches of 1,024, fan-outs 15 and 10, learning rate 0.003, weight
decay 5e-4; validation on sampled neighbours as in DGL's example, test on all. Ours: the
defaults.

Methods alternate within a seed. Each run is its own process with 2 threads (4 workers: 1 thread
each) and validates every epoch. Training seconds start when the graph is in memory (ours: when
the group is formed and the partition read) and include the first iteration and everything
derived from the graph (sparse formats, plan, exchange). "command" is the whole process with
imports and reading; partitioning is listed separately. "to target" is the time until validation
accuracy first reaches the target; for ours, with the head of the layer in training
(classifiers=validation). Target: for each seed the lowest of the methods' best validation
accuracies minus 0.2 points, over all methods and over those with the same model.

Memory: the sum of the processes' peak RSS (shared libraries count once per process), and the
peak of their total PSS. CPU: seconds of all processes, less sensitive to other load. Measured
with psutil every 0.3 s. OMP_WAIT_POLICY=passive for all: spinning threads double the CPU time of
PyG and DGL on shared cores.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import alternative_runs
import common
import numpy as np
import pandas as pd
from alternative_runs import THREADS, Run
from scale import data as products

from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

BELOW = 0.002
AT_SIZE = ("PyG SAGE sampled", "DGL SAGE sampled", "ours GCN, 4 workers", "ours SAGE, 4 workers")
METHODS = (
    "PyG GCN",
    "DGL GCN",
    "ours GCN, 1 worker",
    "ours GCN, 4 workers",
    "PyG SAGE",
    "DGL SAGE",
    "PyG SAGE sampled",
    "DGL SAGE sampled",
    "ours SAGE, 1 worker",
    "ours SAGE, 4 workers",
)
MEDIANS = {
    "epochs": ("rounds", 1, 0),
    "training, s": ("train", 1, 2),
    "command, s": ("command", 1, 2),
    "CPU s": ("cpu", 1, 1),
    "MB RSS": ("rss", 1e6, 0),
    "MB PSS": ("pss", 1e6, 0),
}
"""Columns of the table: field of a run, unit and digits."""
Found = dict[str, list[dict[str, Any]]]
SYNTHETIC = [
    "dataset_name=synthetic",
    "synthetic.nodes=200000",
    "synthetic.features=128",
    "synthetic.classes=16",
    "synthetic.edges=2500000",
    "split=fraction",
]


def write_graph(settings: Settings, folder: Path) -> None:
    """Write the graph with its split for PyG and DGL."""
    graph, split = common.load_graph(settings)
    np.savez(
        folder / "graph.npz",
        x=common.dense_features(graph),
        labels=graph.labels,
        src=graph.edges.src.astype(np.int64),  # DGL's sampler wants them all alike
        dst=graph.edges.dst.astype(np.int64),
        train=split.train,
        val=split.val,
        test=split.test,
    )


def prepare(settings: list[str], folder: Path, worlds: list[int]) -> float:
    """Write the graph and the partitions; return the partitioning seconds for the most workers."""
    write_graph(compose(settings), folder)
    start = time.perf_counter()
    for workers in worlds:
        start = time.perf_counter()
        common.partition(compose([*settings, f"num_partitions={workers}"]))
    return time.perf_counter() - start


def measure(run: Run) -> dict[str, Any]:
    """Run one process, sample its memory, and return its result, or `error` if it failed."""
    result = Path(run.folder) / "result.json"
    result.unlink(missing_ok=True)
    environment = {"OMP_WAIT_POLICY": "passive"}
    if not run.method.startswith("ours"):
        environment["OMP_NUM_THREADS"] = str(THREADS)
    command = [sys.executable, alternative_runs.__file__, json.dumps(vars(run)), str(result)]
    watched = common.run_watched(command, environment)
    if watched["status"] or not result.exists():
        return {
            "error": (
                watched["errors"][-1] if watched["errors"] else f"exit status {watched['status']}"
            )
        }
    return {
        **json.loads(result.read_text(encoding="utf-8")),
        "command": watched["seconds"],
        **{name: watched[name] for name in ("rss", "pss", "cpu")},
    }


def report(seeds: dict[str, dict[str, Any]], methods: list[str]) -> None:
    """Print the table of one graph.

    Args:
        seeds: for each seed the run of each method.
    """
    by_method = {method: [runs[method] for runs in seeds.values()] for method in methods}
    done = {
        method: runs
        for method, runs in by_method.items()
        if runs and not any("error" in run for run in runs)
    }
    for method in by_method.keys() - done.keys():
        print(
            f"{method:<21} not run:"
            f" {next((run['error'] for run in by_method[method] if 'error' in run), 'no seed')}"
        )
    if done:
        loads, cutting = zip(
            *((run["load"], run["cutting"]) for runs in done.values() for run in runs), strict=True
        )
        print(
            f"seeds {', '.join(seeds)}; load average {min(loads):.0f} to {max(loads):.0f};"
            f" partitioning before that: {np.median(cutting):.1f} s (median)"
        )
        print(
            pd.DataFrame.from_dict(
                {method: row(method, done) for method in done}, orient="index"
            ).to_string()
        )
        print(
            "target of each seed, of all methods:", *(f"{target:.4f}" for target in targets(done))
        )


def row(method: str, done: Found) -> dict[str, str]:
    """Return means of accuracies and medians of the other figures; MB over all processes."""
    runs = done[method]
    of_model = {
        other: other_runs
        for other, other_runs in done.items()
        if model_of(other) == model_of(method)
    }
    val, test = (np.array([run[part] for run in runs]) for part in ("val", "test"))
    cells = {
        "best val": f"{val.mean():.4f}",
        "test": common.with_spread(test),
        "seconds to target of all": seconds_to(targets(done), runs),
        "of this model": seconds_to(targets(of_model), runs),
    }
    return cells | {
        title: f"{np.median([run[name] for run in runs]) / unit:,.{digits}f}"
        for title, (name, unit, digits) in MEDIANS.items()
    }


def model_of(method: str) -> str:
    return method.split()[1].strip(",")


def targets(done: Found) -> np.ndarray:
    """Return the validation accuracy that all of these methods reach, [seeds]."""
    return np.min([[run["val"] for run in runs] for runs in done.values()], axis=0) - BELOW


def seconds_to(seed_targets: np.ndarray, runs: list[dict[str, Any]]) -> str:
    """Return when the validation accuracy of each run first reached its seed's target."""
    pairs = zip(seed_targets, runs, strict=True)
    reached = [
        next(seconds for seconds, accuracy in run["curve"] if accuracy >= target)
        for target, run in pairs
    ]
    return f"{np.median(reached):.2f} [{min(reached):.2f}, {max(reached):.2f}]"


def settings_of(arguments: argparse.Namespace) -> list[str]:
    graphs = {"synthetic": SYNTHETIC, "products": products(1), **common.graphs(arguments.pubmed)}
    return graphs[arguments.graph]


def compare(arguments: argparse.Namespace) -> None:
    """Run all methods on one graph, alternating, and print their table."""
    names = {"torch": "torch", "PyG": "torch_geometric", "DGL": "dgl", "retexo": "retexo-gnn"}
    versions = ", ".join(f"{name} {version(package)}" for name, package in names.items())
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{arguments.graph}: {machine}, {versions}; ours:", *arguments.options, flush=True)
    runs_by_seed = (
        json.loads(arguments.keep.read_text(encoding="utf-8"))
        if arguments.keep and arguments.keep.exists()
        else {}
    )
    worlds = sorted(
        {int(method.split()[2]) for method in arguments.methods if method.startswith("ours")}
    )
    for seed in range(arguments.seeds):
        runs = runs_by_seed.setdefault(str(seed), {})
        missing = [
            method
            for method in arguments.methods
            if "error" in runs.get(method, {"error": "not run"})
        ]
        if not missing:
            continue
        with tempfile.TemporaryDirectory() as folder:
            overrides = [*settings_of(arguments), *arguments.options]
            settings = [*overrides, f"seed={seed}", f"partition_dir={folder}/partitions"]
            cutting = prepare(settings, Path(folder), worlds)
            for method in missing:
                run = measure(Run(method, seed, settings, folder, arguments.budget))
                runs[method] = {**run, "cutting": cutting, "load": os.getloadavg()[0]}
                said = {name: run.get(name) for name in ("command", "val", "error")}
                print(f"seed {seed}: {method} {said}", file=sys.stderr, flush=True)
                if arguments.keep:
                    arguments.keep.write_text(json.dumps(runs_by_seed), encoding="utf-8")
    report(
        {
            seed: runs
            for seed, runs in runs_by_seed.items()
            if runs.keys() >= set(arguments.methods)
        },
        arguments.methods,
    )


def main() -> None:
    parser = common.parser(__doc__, seeds=5, pubmed=None, options=[])
    parser.add_argument(
        "graph", nargs="?", choices=["cora", "pubmed", "synthetic", "products"], default="cora"
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS)
    parser.add_argument(
        "--budget",
        type=float,
        default=1e9,
        help="seconds of training after which a run of PyG or DGL is ended",
    )
    parser.add_argument("--keep", type=Path, help="JSON of finished runs, which are not repeated")
    arguments = parser.parse_args()
    arguments.methods = arguments.methods or list(
        AT_SIZE if arguments.graph == "products" else METHODS
    )
    compare(arguments)


if __name__ == "__main__":
    if "distdgl" in sys.argv[1:2]:
        import distdgl

        distdgl.main()
    else:
        main()
