"""What a user would pick instead, on the same machine: PyTorch Geometric and DGL beside ours with 1 and 4 workers.

    python benchmarks/alternatives.py cora --seeds 5
    python benchmarks/alternatives.py pubmed --pubmed ../shared/datasets/pubmed.npz
    python benchmarks/alternatives.py synthetic --seeds 1 [--methods "PyG GCN" "ours SAGE, 1 worker"]
    python benchmarks/alternatives.py products --seeds 1 --budget 1200

`products` is the synthetic graph of the shape of ogbn-products, for what runs at that size: sampling, and ours.

Same graph, split (drawn by the seed), 2 layers, width 256, dropout rate 0.5 and stopping rule: at most 200 epochs
(ours: rounds per layer), 30 without a better validation accuracy end the training, the best validation epoch is kept,
the test nodes are looked at once. Else each has its documented settings. Full batch (the GCN examples of PyG and DGL,
DGL's train_full.py): Adam, learning rate 0.01, weight decay 5e-4. Sampled GraphSAGE: batches of 1,024, fan-out 15 and
10, learning rate 0.003, weight decay 5e-4; validation on sampled neighbours as in DGL's example, test on all. Ours: the
project's defaults.

Methods take turns within a seed; each run is a process of its own with 2 threads (4 workers: 1 thread each), every
epoch is validated. Seconds of training begin when the graph is in memory, for ours when the group is formed and the
partition read; the first iteration counts, and so does what is made from the graph on the way (sparse formats,
normalisation, plan, exchange). "command" is the whole process, imports and reading the graph included; partitioning is
not, it is said apart. "to target" is the time until the validation accuracy (ours: of the last layer) first reaches the
target: in each seed the lowest of the methods' best validation accuracies, less 0.2 points, so that all reach it; of
all methods, and of those with the same model.
Memory: the peak RSS of each process, added up (it counts shared libraries once a process); and the peak of the
processes' PSS together, which divides them. CPU: seconds of all processes of the command, which other work on the
machine disturbs less. All by psutil, every 0.3 s. OMP_WAIT_POLICY=passive for all: threads that spin while they wait
double the CPU time of PyG and DGL where cores are shared.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import common
import numpy as np
from alternative_runs import THREADS, Run, baseline, ours
from scale import data as products

BELOW = 0.002
AT_SIZE = ("PyG SAGE sampled", "DGL SAGE sampled", "ours GCN, 4 workers", "ours SAGE, 4 workers")
METHODS = ("PyG GCN", "DGL GCN", "ours GCN, 1 worker", "ours GCN, 4 workers", "PyG SAGE", "DGL SAGE",
           "PyG SAGE sampled", "DGL SAGE sampled", "ours SAGE, 1 worker", "ours SAGE, 4 workers")  # fmt: skip
MEDIANS = ("rounds", "train", "command", "cpu", "rss", "pss")
Found = dict[str, list[dict[str, Any]]]
SYNTHETIC = ["dataset_name=synthetic", "synthetic.nodes=200000", "synthetic.features=128", "synthetic.classes=16",
             "split=fraction"]  # fmt: skip


def prepare(settings: list[str], folder: Path, worlds: list[int]) -> float:
    """Write the graph for PyG and DGL and the partitions for ours; return the seconds of partitioning for the most."""
    from retexo.config.compose import compose

    graph, split = common.load_graph(compose(settings))
    x = graph.features if isinstance(graph.features, np.ndarray) else graph.features.toarray()
    masks = {"train": split.train, "val": split.val, "test": split.test}
    edges = {"src": graph.src.astype(np.int64), "dst": graph.dst.astype(np.int64)}  # DGL's sampler wants them all alike
    np.savez(folder / "graph.npz", x=x, labels=graph.labels, **edges, **masks)
    start = time.perf_counter()
    for workers in worlds:
        start = time.perf_counter()
        common.partition(compose([*settings, f"num_partitions={workers}"]))
    return time.perf_counter() - start


def measure(run: Run) -> dict[str, Any]:
    """Start the process of a run, watch its memory, and return what it found; `error` where it failed."""
    result = Path(run.folder) / "result.json"
    result.unlink(missing_ok=True)
    environment = {"OMP_WAIT_POLICY": "passive"}
    if not run.method.startswith("ours"):
        environment["OMP_NUM_THREADS"] = str(THREADS)
    command = [sys.executable, __file__, "--run", json.dumps(vars(run)), "--out", str(result)]
    watched = common.run_watched(command, environment)
    if watched["status"] or not result.exists():
        return {"error": watched["errors"][-1] if watched["errors"] else f"exit status {watched['status']}"}
    return {**json.loads(result.read_text()), "command": watched["seconds"],
            **{name: watched[name] for name in ("rss", "pss", "cpu")}}  # fmt: skip


def report(seeds: dict[str, dict[str, Any]], methods: list[str]) -> None:
    """The table of one graph; seeds: the run of each method, by seed."""
    found = {method: [runs[method] for runs in seeds.values()] for method in methods}
    done = {method: runs for method, runs in found.items() if runs and not any("error" in run for run in runs)}
    if not done:
        print("no method ran:", *(run["error"] for runs in found.values() for run in runs), sep="\n")
        return
    loads = [run["load"] for runs in done.values() for run in runs]
    cutting = np.median([run["cutting"] for runs in done.values() for run in runs])
    print(f"seeds {', '.join(seeds)}; load average {min(loads):.0f} to {max(loads):.0f}; partitioning before "
          f"that: {cutting:.1f} s (median)")  # fmt: skip
    print(f"{'':<21} {'best':>6} {'':>17} {'':>6} {'seconds to target, median [min, max]':>41} "
          f"{'seconds':>8} {'seconds':>8} {'CPU s':>7} {'MB, all processes':>17}")  # fmt: skip
    print(f"{'method':<21} {'val':>6} {'test +- spread':>17} {'epochs':>6} {'of all':>20} {'of this model':>20} "
          f"{'training':>8} {'command':>8} {'command':>7} {'RSS':>8} {'PSS':>8}")  # fmt: skip
    for method, runs in found.items():
        if method in done:
            alike = {other: each for other, each in done.items() if model_of(other) == model_of(method)}
            print(row(method, runs, seconds_to(targets(done), runs), seconds_to(targets(alike), runs)))
        else:
            print(f"{method:<21} not run: {next(run['error'] for run in runs if 'error' in run)}")
    print("target of each seed, of all methods:", *(f"{target:.4f}" for target in targets(done)))


def model_of(method: str) -> str:
    return method.split()[1].strip(",")


def targets(done: Found) -> np.ndarray:
    """The validation accuracy that all of these methods reach, [seeds]."""
    return np.min([[run["val"] for run in runs] for runs in done.values()], axis=0) - BELOW


def seconds_to(wanted: np.ndarray, runs: list[dict[str, Any]]) -> str:
    """When the validation accuracy of each run first was what is wanted of its seed."""
    pairs = zip(wanted, runs, strict=True)
    reached = [next(seconds for seconds, accuracy in run["curve"] if accuracy >= target) for target, run in pairs]
    return f"{np.median(reached):.2f} [{min(reached):.2f}, {max(reached):.2f}]"


def row(method: str, runs: list[dict[str, Any]], of_all: str, of_model: str) -> str:
    test = np.array([run["test"] for run in runs])
    spread = f"{test.std(ddof=1):.4f}" if len(test) > 1 else "-"
    middle = {name: np.median([run[name] for run in runs]) for name in MEDIANS}
    val = np.mean([run["val"] for run in runs])
    memory = f"{middle['rss'] / 1e6:>8.0f} {middle['pss'] / 1e6:>8.0f}"
    return (
        f"{method:<21} {val:>6.4f} {test.mean():>7.4f} +- {spread:>6} {middle['rounds']:>6.0f} {of_all:>20} "
        f"{of_model:>20} {middle['train']:>8.2f} {middle['command']:>8.2f} {middle['cpu']:>7.1f} {memory}"
    )


def settings_of(arguments: argparse.Namespace) -> list[str]:
    if arguments.graph == "pubmed":
        return common.pubmed(arguments.pubmed)
    if arguments.graph == "products":
        return products(1)
    return common.CORA if arguments.graph == "cora" else [*SYNTHETIC, f"synthetic.edges={arguments.edges}"]


def compare(arguments: argparse.Namespace) -> None:
    """All methods on one graph, interleaved, and their table."""
    names = {"torch": "torch", "PyG": "torch_geometric", "DGL": "dgl", "retexo": "retexo"}
    print(f"{arguments.graph}: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"{', '.join(f'{name} {version(package)}' for name, package in names.items())}", flush=True)  # fmt: skip
    found = json.loads(arguments.keep.read_text()) if arguments.keep and arguments.keep.exists() else {}
    begin = time.monotonic()
    for seed in range(arguments.seeds):
        if time.monotonic() - begin > 60 * arguments.minutes:
            break
        for _ in run_seed(arguments, seed, found.setdefault(str(seed), {})):
            if arguments.keep:
                arguments.keep.write_text(json.dumps(found))
    report({seed: runs for seed, runs in found.items() if runs.keys() >= set(arguments.methods)}, arguments.methods)


def run_seed(arguments: argparse.Namespace, seed: int, runs: dict[str, Any]) -> Iterator[None]:
    """Add the methods that `runs` does not have, one after the other; yields after each."""
    missing = [method for method in arguments.methods if "error" in runs.get(method, {"error": "not run"})]
    if not missing:
        return
    with tempfile.TemporaryDirectory() as folder:
        settings = [*settings_of(arguments), f"seed={seed}", f"partition_dir={folder}/partitions"]
        worlds = sorted({int(method.split()[2]) for method in arguments.methods if method.startswith("ours")})
        cutting = prepare(settings, Path(folder), worlds)
        for method in missing:
            runs[method] = {**measure(Run(method, seed, settings, folder, arguments.budget)), "cutting": cutting}
            runs[method]["load"] = os.getloadavg()[0]
            said = {name: runs[method].get(name) for name in ("command", "val", "error")}
            print(f"seed {seed}: {method} {said}", file=sys.stderr, flush=True)
            yield


def main() -> None:
    parser = common.parser(__doc__, seeds=5, pubmed=None)
    parser.add_argument("graph", nargs="?", choices=["cora", "pubmed", "synthetic", "products"], default="cora")
    parser.add_argument("--methods", nargs="+", choices=METHODS)
    parser.add_argument("--edges", type=int, default=2_500_000, help="undirected ones, of the synthetic graph")
    parser.add_argument(
        "--budget", type=float, default=1e9, help="seconds of training after which a run of PyG or DGL is ended"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no further seed after so many")
    parser.add_argument("--keep", type=Path, help="JSON of all runs; those in it are not run again")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.methods = arguments.methods or list(AT_SIZE if arguments.graph == "products" else METHODS)
    if arguments.run:
        run = Run(**json.loads(arguments.run))
        arguments.out.write_text(json.dumps((ours if run.method.startswith("ours") else baseline)(run)))
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
