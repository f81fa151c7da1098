"""Seconds, memory and bytes against the size of the graph: the shape of ogbn-products, smaller and whole.

    python benchmarks/scale.py [--shares 16 4 1] [--models gcn sage] [--rounds N] [--folder DIR]

A synthetic graph with one of so many of the 2,449,029 nodes and 61,859,140 undirected edges of ogbn-products, 100
features, 47 classes, 8 % of the nodes for training, 1.6 % for validation, the rest test, in 4 random parts. Each
command is run as a user would, in processes of its own. `CPU s` are those of all its processes, which other work on
the machine changes little; `GiB` is the most anonymous memory of all of them together, sampled. Beside the rounds and
the aggregation stands their floor: the same products at the rate of one large product, the same sums at that of one
large aggregation, on the cores that are there. The whole graph needs 8 GiB of disk.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from partitioning.dgl_import import dgl

ROOT = Path(__file__).resolve().parents[1]
NODES, EDGES, FEATURES, CLASSES, HIDDEN = 2_449_029, 61_859_140, 100, 47, 256
TRAIN, VAL = 196_615 / NODES, 39_323 / NODES


def data(share: int) -> list[str]:
    """The settings of one size of the graph."""
    return [
        "dataset_name=synthetic", f"synthetic.nodes={NODES // share}", f"synthetic.edges={EDGES // share}",
        f"synthetic.features={FEATURES}", f"synthetic.classes={CLASSES}", "split=fraction",
        f"split.train={TRAIN}", f"split.val={VAL}", f"split.test={1 - TRAIN - VAL}",
    ]  # fmt: skip


class Watched:
    """A command that ended, with what it took."""

    def __init__(self, *arguments: str) -> None:
        before, start = os.times(), time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "main.py"), *arguments], env=environment, stdout=subprocess.PIPE, text=True
        )
        self.memory = 0
        watch = threading.Thread(target=self._watch, args=(process,), daemon=True)
        watch.start()
        self.output = process.communicate()[0]
        watch.join()
        self.seconds = time.perf_counter() - start
        after = os.times()
        self.cpu = after.children_user + after.children_system - before.children_user - before.children_system
        if process.returncode:
            raise SystemExit(f"{' '.join(arguments)}: ended with {process.returncode}\n{self.output}")

    def _watch(self, process: subprocess.Popen[str]) -> None:
        while process.poll() is None:
            self.memory = max(self.memory, _anonymous(process.pid))
            time.sleep(0.2)


def _anonymous(pid: int) -> int:
    """Bytes of anonymous memory of a process and those it started."""
    total = 0
    try:
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            status = Path(f"/proc/{process.pid}/status").read_text()
            total += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:")) * 1024
    except (psutil.Error, OSError):  # one that ended meanwhile
        pass
    return total


def rates() -> tuple[float, float]:
    """Floating-point operations a second of a product, and values a second of an aggregation, on all cores."""
    left, right = torch.randn(20_000, 256), torch.randn(256, 256)
    graph = dgl.create_block(
        (torch.randint(200_000, (5_000_000,)), torch.randint(50_000, (5_000_000,)).sort().values),
        num_src_nodes=200_000, num_dst_nodes=50_000,
    )  # fmt: skip
    rows = torch.randn(200_000, 128)
    product = min(_seconds(lambda: left @ right) for _ in range(5))
    total = min(_seconds(lambda: dgl.ops.copy_u_sum(graph, rows)) for _ in range(5))
    return 2 * 20_000 * 256 * 256 / product, 5_000_000 * 128 / total


def _seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def floors(share: int, model: str, rounds: list[int]) -> tuple[float, float]:
    """Seconds of the rounds' products, and of one aggregation of every edge a layer."""
    flops, values = rates()
    widths = [(FEATURES, HIDDEN), (HIDDEN, CLASSES)]
    inputs = 2 if model == "sage" else 1
    heads = [HIDDEN * CLASSES, 0]
    # Forward and for the weights' gradient, that of the head's input besides; validation rows only forward.
    one = [
        2 * (inputs * f * d * (2 * TRAIN + VAL) + head * (3 * TRAIN + VAL)) * NODES / share
        for (f, d), head in zip(widths, heads, strict=True)
    ]
    products = sum(operations * count for operations, count in zip(one, rounds, strict=True))
    return products / flops, 2 * EDGES / share * (FEATURES + CLASSES) / values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", type=int, nargs="+", default=[16, 4, 1])
    parser.add_argument("--models", nargs="+", default=["gcn", "sage"])
    parser.add_argument("--rounds", type=int, default=200, help="the most a layer")
    parser.add_argument("--folder", type=Path, help="where partitions are kept and found again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        for share in options.shares:
            measure(share, folder, options.models, options.rounds)


def measure(share: int, folder: Path, models: list[str], rounds: int) -> None:
    print(f"\n1/{share}: {NODES // share:,} nodes, {EDGES // share:,} edges; load average {os.getloadavg()[0]:.1f}")
    made = Watched("app=partition_data", *data(share, folder), f"hydra.run.dir={folder}/{share}-partition")
    print(next(line for line in reversed(made.output.splitlines()) if line.startswith(("seconds:", "["))))
    print(f"partition_data: {made.seconds:.0f} s, CPU s {made.cpu:.0f}, {made.memory / 2**30:.2f} GiB", flush=True)
    for model in models:
        run_dir = Path(tempfile.mkdtemp(dir=folder)) / "run"
        config = ["--config-name", f"node_classification_{model}", "app=train", f"num_rounds=[{rounds}]"]
        trained = Watched(*config, *data(share, folder), f"hydra.run.dir={run_dir}")
        summary = json.loads((run_dir / "summary.json").read_text())
        phases = summary["seconds"]["phase"]
        products, sums = floors(share, model, summary["rounds"])
        print(
            f"{model}: {trained.seconds:.0f} s, CPU s {trained.cpu:.0f}, {trained.memory / 2**30:.2f} GiB, rounds "
            f"{summary['rounds']}, test {summary['test']['accuracy']:.4f}, {summary['bytes']['total'] / 1e6:,.0f} MB; "
            + ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items())
            + f"; floor of the rounds {products:.1f}, of aggregate and embed {sums:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
