"""Seconds, memory and bytes by edges, partitions and width, on graphs like ogbn-products.

    python benchmarks/scale.py [--sweeps edges parts width] [--models gcn] [--rounds 20] \
        [--keep FILE.json] [--folder DIR] [--figure docs/img/scale.svg]
    python benchmarks/scale.py --sweeps whole --models gcn sage    # the whole graph, to convergence

A graph has 1/n (n is its "share") of the 2,449,029 nodes and 61,859,140 undirected edges of
ogbn-products, 100 features, 47 classes, 8 % training and 1.6 % validation nodes, the rest test;
random partitions; 2 layers. Defaults: a sixteenth, 4 partitions, 256 wide. Commands run as a
user's would, in their own processes. "GiB" is the peak anonymous memory of all processes,
sampled. Each phase is compared with its floor, measured in the same minute on all cores:

    rounds              the same dense products at the rate of a large product
    aggregate + embed   one sum over every edge's row at the rate of such sums, and the products
    exchange            the bytes sent, through one loopback socket

The whole graph needs 8 GiB of disk. Points that are in the --keep file are not run again.
"""

import json
import os
import socket
import tempfile
import threading
import timeit
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import common
import torch

from retexo.models.matrix import sum_rows

NODES, EDGES, FEATURES, CLASSES, HIDDEN = 2_449_029, 61_859_140, 100, 47, 256
TRAIN, VAL = 196_615 / NODES, 39_323 / NODES


def data(share: int) -> list[str]:
    """Return the settings of a graph of one size."""
    return [
        "dataset_name=synthetic",
        f"synthetic.nodes={NODES // share}",
        f"synthetic.edges={EDGES // share}",
        f"synthetic.features={FEATURES}",
        f"synthetic.classes={CLASSES}",
        "split=fraction",
        f"split.train={TRAIN}",
        f"split.val={VAL}",
        f"split.test={1 - TRAIN - VAL}",
    ]


def run_main(*arguments: str) -> dict[str, float]:
    """Run main.py; return its seconds and the peak anonymous memory of all its processes."""
    watched = common.run_main(*arguments)
    return {"seconds": watched["seconds"], "memory": watched["anonymous"]}


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    share: int = 16
    parts: int = 4
    width: int = HIDDEN
    model: str = "gcn"
    rounds: int | None = 20
    """Rounds per layer; None: until convergence."""

    @property
    def nodes(self) -> int:
        return NODES // self.share

    @property
    def edges(self) -> int:
        """Directed edges."""
        return 2 * (EDGES // self.share)

    def settings(self, folder: Path) -> list[str]:
        return [
            *data(self.share),
            f"num_partitions={self.parts}",
            f"partition_dir={folder}/{self.share}",
        ]


SWEEPS: dict[str, list[dict[str, int | None]]] = {
    "edges": [{"share": share} for share in (128, 32, 8, 1)],
    "parts": [{"parts": parts} for parts in (1, 2, 4, 8, 16)],
    "width": [{"width": width} for width in (64, 128, 256, 512)],
    "whole": [{"share": 1, "rounds": None}],
}
PHASES = ("plan", "exchange", "aggregate + embed", "rounds")


# --- floors ----------


@dataclass(frozen=True)
class Rates:
    """Throughput of all cores per second."""

    flops: float
    """Floating-point operations of a large product."""
    values: float
    """Row values gathered at random and summed."""
    loopback: float
    """Bytes through one socket between two busy processes."""

    @classmethod
    def measured(cls) -> "Rates":
        left, right = torch.randn(20_000, 256), torch.randn(256, 256)
        rows, table = (
            torch.randint(600_000, (4_000_000,), dtype=torch.int32),
            torch.randn(600_000, 100),
        )
        row_ptr = torch.arange(0, 4_000_001, 50, dtype=torch.int32)
        return cls(
            2 * 20_000 * 256 * 256 / _least(lambda: left @ right),
            4_000_000 * 100 / _least(lambda: sum_rows(table, rows, row_ptr, None)),
            (1 << 28) / _least(_through_a_socket),
        )


def _least(work: Callable[[], Any]) -> float:
    return min(timeit.repeat(work, number=1, repeat=5))


def _through_a_socket() -> None:
    data, room = bytes(1 << 28), bytearray(1 << 22)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver = server.accept()[0]
        thread = threading.Thread(target=sender.sendall, args=(data,))
        thread.start()
        left = len(data)
        while left:
            left -= receiver.recv_into(room)
        thread.join()
        sender.close()
        receiver.close()


def floors(point: Point, rounds: list[int], num_bytes: int, rates: Rates) -> dict[str, float]:
    """Return the floor of each phase in seconds."""
    widths = [(FEATURES, point.width), (point.width, CLASSES)]
    inputs = 2 if point.model == "sage" else 1
    heads = [point.width * CLASSES, 0]
    # Forward, gradients of the weights and of the head's input; validation rows forward only.
    one = [
        2 * (inputs * f * d * (2 * TRAIN + VAL) + head * (3 * TRAIN + VAL)) * point.nodes
        for (f, d), head in zip(widths, heads, strict=True)
    ]
    products = sum(operations * count for operations, count in zip(one, rounds, strict=True))
    embedding = sum(2 * inputs * f * d for f, d in widths) * point.nodes
    sums = point.edges * sum(min(pair) for pair in widths) / rates.values
    return {
        "rounds": products / rates.flops,
        "aggregate + embed": sums + embedding / rates.flops,
        "exchange": num_bytes / rates.loopback,
    }


# --- runs ----------


def train(point: Point, folder: Path, *options: str) -> tuple[dict[str, Any], Path]:
    """Partition unless partitions exist, then train.

    Return what the commands took, and the run directory.
    """
    settings, usage = [*point.settings(folder), *options], {}
    if not list((folder / str(point.share)).glob(f"*-{point.parts}")):
        usage["partition"] = run_main(
            "app=partition_data", *settings, f"hydra.run.dir={folder}/out"
        )
    run_dir = Path(tempfile.mkdtemp(dir=folder)) / "run"
    stop = [] if point.rounds is None else ["stopping=none", f"num_rounds=[{point.rounds}]"]
    model = [
        "--config-name",
        f"node_classification_{point.model}",
        "+experiment=retexo",
        f"hidden_dim={point.width}",
    ]
    return (
        usage | run_main(*model, "app=train", *settings, *stop, f"hydra.run.dir={run_dir}"),
        run_dir,
    )


def measure(point: Point, folder: Path, rates: Rates) -> dict[str, Any]:
    """Return a run's figures beside its floors."""
    usage, run_dir = train(point, folder)
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    phase, sizes = summary["seconds"]["phase"], summary["bytes"]["by_kind"]
    phase["aggregate + embed"] = phase["aggregate"] + phase["embed"]
    return usage | {
        "phase": phase,
        "floor": floors(point, summary["rounds"], sizes["features"] + sizes["embeddings"], rates),
        "bytes": sizes,
        "rounds": summary["rounds"],
        "test": summary["test"]["accuracy"],
        "load": os.getloadavg()[0],
    }


def show(point: Point, figures: dict[str, Any]) -> None:
    if "partition" in figures:
        usage = figures["partition"]
        print(
            f"  partition_data, {point.parts} parts: {usage['seconds']:.0f} s,"
            f" {usage['memory'] / 2**30:.2f} GiB"
        )
    phase, floor = figures["phase"], figures["floor"]
    beside = {
        name: f" ({floor[name]:.1f}, {phase[name] / floor[name]:.1f})"
        for name in floor
        if floor[name]
    }
    seconds = "  ".join(
        f"{name} {phase[name]:.1f}{beside.get(name, '')}" for name in ("load", *PHASES, "evaluate")
    )
    rows = figures["bytes"]["features"] + figures["bytes"]["embeddings"]
    print(
        f"{point.model:<4} {point.edges:>11,} edges {point.parts:>2} parts {point.width:>3} wide:"
        f" {figures['seconds']:6.1f} s, {figures['memory'] / 2**30:5.2f} GiB, {rows / 1e6:7,.0f} MB"
        f" of rows, rounds {'+'.join(map(str, figures['rounds']))}, test {figures['test']:.4f} |"
        f" {seconds}",
        flush=True,
    )


def points(sweep: str, models: list[str], rounds: int) -> Iterator[Point]:
    for model in models:
        for changes in SWEEPS[sweep]:
            yield replace(Point(model=model, rounds=rounds), **changes)  # type: ignore[arg-type]


def draw(runs: dict[Point, dict[str, Any]], sweeps: list[str], model: str, file: Path) -> None:
    """Plot seconds of the phases with floors, and GiB, against each sweep's axis (log-log)."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    from retexo.results.figures import COLOURS, MARKERS, STYLE

    with mpl.rc_context(STYLE):
        figure, panels = plt.subplots(1, len(sweeps), figsize=(4.2 * len(sweeps), 4), squeeze=False)
        for sweep, axes in zip(sweeps, panels[0], strict=True):
            sweep_runs = {
                point: runs[point] for point in points(sweep, [model], 20) if point in runs
            }
            across = [getattr(point, sweep) for point in sweep_runs]
            for name, colour, marker in zip(PHASES, COLOURS, MARKERS, strict=False):
                axes.plot(
                    across,
                    [max(run["phase"][name], 1e-2) for run in sweep_runs.values()],
                    color=colour,
                    marker=marker,
                    label=name,
                )
                if name != "plan":
                    axes.plot(
                        across,
                        [max(run["floor"][name], 1e-2) for run in sweep_runs.values()],
                        ":",
                        color=colour,
                    )
            axes.plot(
                across,
                [run["memory"] / 2**30 for run in sweep_runs.values()],
                "--",
                color="grey",
                label="GiB, all",
            )
            axes.set(xscale="log", yscale="log", xlabel=sweep)
            if sweep != "edges":
                axes.set_xticks(across, [str(value) for value in across])
                axes.minorticks_off()
        panels[0][0].set_ylabel("seconds; dotted: the floor")
        panels[0][0].legend()
        figure.tight_layout()
        figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--sweeps", nargs="+", choices=SWEEPS, default=["edges", "parts", "width"])
    parser.add_argument("--models", nargs="+", default=["gcn"], choices=["gcn", "sage"])
    parser.add_argument("--rounds", type=int, default=20, help="per layer")
    parser.add_argument("--folder", type=Path, help="folder in which partitions are kept")
    parser.add_argument("--keep", type=Path, help="JSON of finished runs, which are not repeated")
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    kept = (
        json.loads(options.keep.read_text(encoding="utf-8"))
        if options.keep and options.keep.exists()
        else []
    )
    runs = {Point(**point): figures for point, figures in kept}
    rates = Rates.measured()
    print(
        f"{common.machine()}, "
        f"{rates.flops / 1e9:.0f} GFLOP/s, {rates.values / 1e9:.1f} G values/s added up, loopback "
        f"{rates.loopback / 1e9:.2f} GB/s; load average {os.getloadavg()[0]:.1f}"
    )
    print("seconds by phase, in brackets the floor and the ratio to it")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for sweep in options.sweeps:
            print(sweep)
            for point in points(sweep, options.models, options.rounds):
                if point not in runs:
                    runs[point] = measure(point, folder, Rates.measured())
                    if options.keep:
                        options.keep.write_text(
                            json.dumps(
                                [[asdict(run_point), run] for run_point, run in runs.items()]
                            ),
                            encoding="utf-8",
                        )
                show(point, runs[point])
    if options.figure:
        draw(
            runs,
            [sweep for sweep in options.sweeps if sweep != "whole"],
            options.models[0],
            options.figure,
        )


if __name__ == "__main__":
    main()
