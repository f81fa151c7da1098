"""What a user would pick instead, on the same machine: PyTorch Geometric and DGL beside ours with 1 and 4 workers.

    python benchmarks/alternatives.py cora --seeds 5
    python benchmarks/alternatives.py pubmed --pubmed ../shared/datasets/pubmed.npz
    python benchmarks/alternatives.py synthetic --seeds 1 [--methods "PyG GCN" "ours SAGE, 1 worker"]

Same graph, split (drawn by the seed), 2 layers, width 256, dropout rate 0.5 and stopping rule: at most 200 epochs
(ours: rounds a layer), 30 without a better validation accuracy end the training, the best validation epoch is kept,
the test nodes are looked at once. Else each has its documented settings. Full batch (the GCN examples of PyG and DGL,
DGL's train_full.py): Adam, learning rate 0.01, weight decay 5e-4. Sampled GraphSAGE: batches of 1,024, fan-out 15 and
10, learning rate 0.003, weight decay 5e-4; validation on sampled neighbours as in DGL's example, test on all. Ours: the
project's defaults.

Methods take turns within a seed; each run is a process of its own with 2 threads (4 workers: 1 thread each), every
epoch is validated. Seconds of training begin when the graph is in memory, for ours when the group is formed and the
partition read; the first iteration counts, and so does what is made from the graph on the way (sparse formats,
normalisation, plan, exchange). "command" is the whole process, imports and reading the graph included; partitioning is
not, it is said apart. "to target" is the time until the validation accuracy (ours: of the last layer) first reaches the
target: in each seed the lowest of all methods' best validation accuracies, less 0.2 points, so that all reach it.
Memory: the peak RSS of each process, added up (it counts shared libraries once a process); and the peak of the
processes' PSS together, which divides them. CPU: seconds of all processes of the command, which other work on the
machine disturbs less. All by psutil, every 0.3 s. OMP_WAIT_POLICY=passive for all: threads that spin while they wait
double the CPU time of PyG and DGL where cores are shared.
"""

import argparse
import contextlib
import copy
import io
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil

THREADS, WIDTH, DROPOUT, EPOCHS, PATIENCE, BELOW = 2, 256, 0.5, 200, 30, 0.002
BATCH, FAN_OUT = 1024, (15, 10)
FULL_RATE, SAMPLED_RATE, DECAY = 0.01, 0.003, 5e-4
METHODS = ("PyG GCN", "DGL GCN", "ours GCN, 1 worker", "ours GCN, 4 workers", "PyG SAGE", "DGL SAGE",
           "PyG SAGE sampled", "DGL SAGE sampled", "ours SAGE, 1 worker", "ours SAGE, 4 workers")  # fmt: skip
MEDIANS = ("rounds", "train", "command", "cpu", "rss", "pss")
SYNTHETIC = ["dataset_name=synthetic", "synthetic.nodes=200000", "synthetic.features=128", "synthetic.classes=16",
             "split=fraction"]  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run of a method: what its process is told."""

    method: str
    seed: int
    settings: list[str]
    folder: str
    """Where the graph and its partitions are."""


# ---- in the process of a run: heavy imports are made here, by who needs them


def fit(model: Any, epoch: Callable[[], None], right: Callable[[str], float], start: float) -> dict[str, Any]:
    """Epochs until the stopping rule ends them; `right` is the accuracy on a part, and leaves the gradients out."""
    best, best_epoch, kept, curve = -1.0, 0, None, []
    for number in range(1, EPOCHS + 1):
        model.train()
        epoch()
        model.eval()
        accuracy = right("val")
        curve.append((time.perf_counter() - start, accuracy))
        if accuracy > best:
            best, best_epoch, kept = accuracy, number, copy.deepcopy(model.state_dict())
        elif number - best_epoch >= PATIENCE:
            break
    model.load_state_dict(kept)
    test = right("test")
    return {"curve": curve, "val": best, "test": test, "rounds": number, "train": time.perf_counter() - start}


def rival(run: Run) -> dict[str, Any]:
    """Train with PyG or DGL on the graph that the parent wrote."""
    import torch
    from torch import nn
    from torch.nn import functional

    library, kind, *sampled = run.method.split()
    torch.set_num_threads(THREADS)
    torch.manual_seed(run.seed)
    data = {name: torch.from_numpy(array) for name, array in np.load(Path(run.folder) / "graph.npz").items()}
    x, labels, classes = data["x"], data["labels"], int(data["labels"].max()) + 1
    nodes = {part: data[part].nonzero()[:, 0] for part in ("train", "val", "test")}
    convs, whole, batches, call = (pyg if library == "PyG" else dgl_tools)(data, kind, (x.shape[1], WIDTH, classes))
    start = time.perf_counter()

    def forward(edges: Any, rows: Any) -> Any:
        """Dropout before each convolution for GCN (PyG's example), else between the two."""
        rows = functional.dropout(rows, DROPOUT, model.training and kind == "GCN")
        hidden = functional.dropout(functional.relu(call(model[0], edges[0], rows)), DROPOUT, model.training)
        return call(model[1], edges[1], hidden)

    def step(logits: Any, wanted: Any) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(logits, wanted).backward()
        optimizer.step()

    def epoch() -> None:
        if not sampled:
            step(forward(edges, x)[nodes["train"]], labels[nodes["train"]])
            return
        for blocks, rows, seeds in loaders["train"]():
            step(forward(blocks, rows)[: len(seeds)], labels[seeds])

    @torch.no_grad()
    def right(part: str) -> float:
        if sampled and part == "val":
            parts = [(forward(blocks, rows)[: len(seeds)], seeds) for blocks, rows, seeds in loaders["val"]()]
        else:
            parts = [(forward(edges, x)[nodes[part]], nodes[part])]
        return sum(int((logits.argmax(1) == labels[seeds]).sum()) for logits, seeds in parts) / len(nodes[part])

    edges = whole()
    loaders = {part: batches(nodes[part], part == "train") for part in ("train", "val")} if sampled else {}
    model = nn.ModuleList(convs)
    optimizer = torch.optim.Adam(model.parameters(), SAMPLED_RATE if sampled else FULL_RATE, weight_decay=DECAY)
    return fit(model, epoch, right, start)


def pyg(data: dict[str, Any], kind: str, sizes: tuple[int, int, int]) -> tuple:
    """Convolutions, the graph of each layer, batches, and how to call a convolution; CSR as its manual advises."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import GCNConv, SAGEConv
    from torch_geometric.utils import to_torch_csr_tensor

    options = [{"cached": True}] * 2 if kind == "GCN" else [{}] * 2
    conv = GCNConv if kind == "GCN" else SAGEConv
    convs = [conv(sizes[layer], sizes[layer + 1], **options[layer]) for layer in (0, 1)]
    nodes = len(data["x"])
    edge_index = torch.stack([data["src"], data["dst"]])

    def batches(seeds: Any, shuffle: bool) -> Callable[[], Any]:
        graph = Data(x=data["x"], edge_index=edge_index)
        loader = NeighborLoader(graph, list(FAN_OUT), seeds, batch_size=BATCH, shuffle=shuffle)
        return lambda: (((batch.edge_index,) * 2, batch.x, batch.n_id[: batch.batch_size]) for batch in loader)

    def whole() -> Any:
        return (to_torch_csr_tensor(edge_index.flip(0), size=(nodes, nodes)),) * 2

    return convs, whole, batches, lambda conv, edges, rows: conv(rows, edges)


def dgl_tools(data: dict[str, Any], kind: str, sizes: tuple[int, int, int]) -> tuple:
    """The same of DGL."""
    from partitioning.dgl_import import dgl

    graph = dgl.graph((data["src"], data["dst"]), num_nodes=len(data["x"]))
    if kind == "GCN":
        convs = [dgl.nn.GraphConv(sizes[layer], sizes[layer + 1]) for layer in (0, 1)]
    else:
        convs = [dgl.nn.SAGEConv(sizes[layer], sizes[layer + 1], "mean") for layer in (0, 1)]

    def batches(seeds: Any, shuffle: bool) -> Callable[[], Any]:
        sampler = dgl.dataloading.NeighborSampler(list(FAN_OUT))
        loader = dgl.dataloading.DataLoader(graph, seeds, sampler, batch_size=BATCH, shuffle=shuffle, num_workers=0)
        return lambda: ((blocks, data["x"][inputs], outputs) for inputs, outputs, blocks in loader)

    def whole() -> Any:
        return (dgl.add_self_loop(dgl.remove_self_loop(graph)) if kind == "GCN" else graph,) * 2

    return convs, whole, batches, lambda conv, edges, rows: conv(edges, rows)


def ours(run: Run) -> dict[str, Any]:
    """Train on the partitions that the parent made."""
    from retexo import config
    from retexo.apps import train

    _, model, workers, _ = run.method.replace(",", "").split()
    given = [*run.settings, f"num_partitions={workers}", f"dropout={DROPOUT}", f"hidden_dim={WIDTH}", "app=train",
             f"num_rounds=[{EPOCHS}]", f"stopping.patience={PATIENCE}"]  # fmt: skip
    run_dir = Path(tempfile.mkdtemp(dir=run.folder))
    summary = train.run(config.compose(given, f"node_classification_{model.lower()}"), run_dir)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    curve = [(line["seconds"], line["val_metric"]) for line in lines if line["layer"] == 1 and line["round"] > 0]
    best, test = max(accuracy for _, accuracy in curve), summary["test"]["accuracy"]
    return {"curve": curve, "val": best, "test": test, "rounds": sum(summary["rounds"]), "train": summary["seconds"]["train"]}


# ---- in the parent


def prepare(settings: list[str], folder: Path) -> float:
    """Write the graph for the rivals and the partitions for ours; return the seconds that partitioning in 4 took."""
    from partitioning import datasets, splits
    from retexo import config
    from retexo.apps import partition_data

    wanted = config.compose(settings).partition.dataset
    graph = datasets.load(wanted)
    split = splits.draw(graph, wanted.split, datasets.recipe(wanted.name).split)
    x = graph.features if isinstance(graph.features, np.ndarray) else graph.features.toarray()
    masks = {"train": split.train, "val": split.val, "test": split.test}
    np.savez(folder / "graph.npz", x=x, labels=graph.labels, src=graph.src, dst=graph.dst, **masks)
    for workers in (1, 4):
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            partition_data.run(config.compose([*settings, f"num_partitions={workers}"]).partition)
    return time.perf_counter() - start


def measure(run: Run) -> dict[str, Any]:
    """Start the process of a run, watch its memory, and return what it found; `error` where it failed."""
    result = Path(run.folder) / "result.json"
    result.unlink(missing_ok=True)
    start = time.perf_counter()
    command = [sys.executable, __file__, "--run", json.dumps(vars(run)), "--out", str(result)]
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    if not run.method.startswith("ours"):
        environment["OMP_NUM_THREADS"] = str(THREADS)
    with tempfile.TemporaryFile() as errors:
        process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        watched = watch(process)
        seconds = time.perf_counter() - start
        errors.seek(0)
        said = [line for line in errors.read().decode().splitlines() if line.strip()]
    if process.returncode or not result.exists():
        return {"error": said[-1] if said else f"exit status {process.returncode}"}
    return {**json.loads(result.read_text()), "command": seconds, **watched}


def watch(process: psutil.Popen) -> dict[str, float]:
    """Until it ends: the peak RSS of each process of the tree, added up; the peak of their PSS; CPU seconds."""
    peaks: dict[int, int] = {}
    busy: dict[int, float] = {}
    together = 0
    while process.poll() is None:
        pss = 0
        for each in tree(process):
            with contextlib.suppress(psutil.Error):
                memory, times = each.memory_full_info(), each.cpu_times()
                peaks[each.pid] = max(peaks.get(each.pid, 0), memory.rss)
                busy[each.pid] = times.user + times.system
                pss += memory.pss
        together = max(together, pss)
        time.sleep(0.3)
    return {"rss": sum(peaks.values()), "pss": together, "cpu": sum(busy.values())}


def tree(process: psutil.Popen) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return [process, *process.children(recursive=True)]
    return []


def report(found: dict[str, list[dict[str, Any]]]) -> None:
    """The table of one graph; found: the runs of each method, one a seed."""
    done = {method: runs for method, runs in found.items() if not any("error" in run for run in runs)}
    targets = np.min([[run["val"] for run in runs] for runs in done.values()], axis=0) - BELOW
    print(f"target (validation accuracy) of each seed: {' '.join(f'{target:.4f}' for target in targets)}")
    print(f"{'':<21} {'best':>6} {'':>17} {'':>6} {'seconds to target':>20} {'seconds':>8} {'seconds':>8} {'CPU s':>7} "
          f"{'MB, all processes':>17}")  # fmt: skip
    print(f"{'method':<21} {'val':>6} {'test +- spread':>17} {'epochs':>6} {'median [min, max]':>20} {'training':>8} {'command':>8} "
          f"{'command':>7} {'RSS':>8} {'PSS':>8}")  # fmt: skip
    for method, runs in found.items():
        if method not in done:
            print(f"{method:<21} not run: {next(run['error'] for run in runs if 'error' in run)}")
            continue
        print(row(method, runs, targets))


def row(method: str, runs: list[dict[str, Any]], targets: np.ndarray) -> str:
    reached = [
        next(seconds for seconds, accuracy in run["curve"] if accuracy >= target)
        for run, target in zip(runs, targets, strict=True)
    ]
    test = np.array([run["test"] for run in runs])
    spread = f"{test.std(ddof=1):.4f}" if len(test) > 1 else "-"
    to_target = f"{np.median(reached):.2f} [{min(reached):.2f}, {max(reached):.2f}]"
    middle = {name: np.median([run[name] for run in runs]) for name in MEDIANS}
    val = np.mean([run["val"] for run in runs])
    memory = f"{middle['rss'] / 1e6:>8.0f} {middle['pss'] / 1e6:>8.0f}"
    return (
        f"{method:<21} {val:>6.4f} {test.mean():>7.4f} +- {spread:>6} {middle['rounds']:>6.0f} {to_target:>20} "
        f"{middle['train']:>8.2f} {middle['command']:>8.2f} {middle['cpu']:>7.1f} {memory}"
    )


def settings_of(arguments: argparse.Namespace) -> list[str]:
    from accuracy import PUBMED_SPLIT

    if arguments.graph == "pubmed":
        return ["dataset_name=file", f"dataset_file={arguments.pubmed.resolve()}", *PUBMED_SPLIT]
    return ["dataset_name=cora"] if arguments.graph == "cora" else [*SYNTHETIC, f"synthetic.edges={arguments.edges}"]


def compare(arguments: argparse.Namespace) -> None:
    """All methods on one graph, interleaved, and their table."""
    names = {"torch": "torch", "PyG": "torch_geometric", "DGL": "dgl", "retexo": "retexo"}
    print(f"{arguments.graph}: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"{', '.join(f'{name} {version(package)}' for name, package in names.items())}; "
          f"seeds 0 to {arguments.seeds - 1}", flush=True)  # fmt: skip
    begin = time.monotonic()
    found: dict[str, list[dict[str, Any]]] = {method: [] for method in arguments.methods}
    loads, cutting = [], []
    for seed in range(arguments.seeds):
        if time.monotonic() - begin > 60 * arguments.minutes:
            print(f"out of time: {seed} seeds")
            break
        with tempfile.TemporaryDirectory() as folder:
            settings = [*settings_of(arguments), f"seed={seed}", f"partition_dir={folder}/partitions"]
            cutting.append(prepare(settings, Path(folder)))
            for method in arguments.methods:
                found[method].append(measure(Run(method, seed, settings, folder)))
                loads.append(os.getloadavg()[0])
                print(f"seed {seed}: {method} {str(found[method][-1].get('command'))[:6]} s", file=sys.stderr)
                if arguments.keep:
                    arguments.keep.write_text(json.dumps(found))
    print(f"load average {min(loads):.0f} to {max(loads):.0f}; partitioning in 4 parts before that: "
          f"{np.median(cutting):.1f} s (median)")  # fmt: skip
    report(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", nargs="?", choices=["cora", "pubmed", "synthetic"], default="cora")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--pubmed", type=Path, help="PubMed as an npz of the form of dataset_name=file")
    parser.add_argument("--edges", type=int, default=2_500_000, help="undirected ones, of the synthetic graph")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no further seed after so many")
    parser.add_argument("--keep", type=Path, help="write every run's figures here, as JSON")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    if arguments.run:
        run = Run(**json.loads(arguments.run))
        arguments.out.write_text(json.dumps((ours if run.method.startswith("ours") else rival)(run)))
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
