"""Compare DGL's distributed engine, and one DGL process, with our trainers on the same parts.

    python benchmarks/alternatives.py distdgl --graphs cora pubmed synthetic \
        --pubmed PATH.npz --keep FILE.json
    python benchmarks/alternatives.py distdgl --graphs pubmed --rates 1gbit 100mbit --seeds 1 \
        --keep FILE.json
    python benchmarks/alternatives.py distdgl --graphs products --share 8 --parts 2 \
        --methods lean sampled --seeds 1 --keep FILE.json
    python benchmarks/alternatives.py distdgl --keep FILE.json --figure docs/img/distdgl.svg

--share 8: an eighth of the sizes of ogbn-products (scale.py). GraphSAGE, 2 layers, width 256,
random partitions; a seed draws split, partitions and parameters, the same for all methods. Methods
stop at convergence. `lean` are the defaults, `exact` and `plain` lazy training with exact and with
plain rows; the other trainers have the published settings. `sampled` and DGL in one process use
fan-outs 15 and 10, 1,024 nodes per batch over all trainers, dropout 0.5, learning rate 0.003 and
weight decay 5e-4. `sampled, no norm` has neither LayerNorm nor input dropout, like DGL's network.
Loopback: one node. A rate: two nodes with two partitions each, in network namespaces limited to
that rate (tests/namespaces.py; needs root).

Accuracies are means with 95 % intervals over a method's seeds; the difference to DGL is over the
seeds that both have; other figures are medians. "to target": training seconds until validation
accuracy (lazy training: of the last layer) reaches what all methods reach in that seed, minus
0.2 points; in CPU seconds, the same share of the command's CPU seconds. Memory is the peak total
PSS. Seconds are meaningful on an idle machine only; CPU seconds, bytes and accuracies always.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import alternatives
import common
import numpy as np
import pandas as pd
import scale
import slow_link
from alternative_runs import BATCH, Run

from retexo.settings.compose import compose

ALONE = "DGL, one process"
SAMPLED = ["trainer=sampled", "batch_size=BATCH", "dropout=0.5", "learning_rate=[0.003]"]
METHODS = {
    "plain": ["+experiment=retexo", "exchange=plain"],
    "exact": ["+experiment=exact"],
    "lean": [],
    "sampled": SAMPLED,
    "sampled, no norm": [*SAMPLED, "model.norm=none", "model.input_dropout=0"],
    "full_graph": ["trainer=full_graph"],
    "bns": ["trainer=bns"],
    "sign": ["trainer=sign"],
    "fedgcn": ["trainer=fedgcn"],
    ALONE: [],
}
SYNTHETIC = [
    "dataset_name=synthetic",
    "synthetic.nodes=50000",
    "synthetic.edges=500000",
    "synthetic.features=64",
    "synthetic.classes=10",
    "synthetic.homophily=0.5",
    "split=fraction",
]
UNITS = {
    "train": ("training, s", 1),
    "command": ("command, s", 1),
    "cpu": ("CPU s", 1),
    "bytes": ("MB", 1e6),
    "wire": ("MB crossed", 1e6),
    "pss": ("MB of memory", 1e6),
    "rounds": ("rounds", 1),
}
"""Columns: field of a run, and its unit."""
Found = dict[str, dict[str, dict[str, Any]]]
"""Runs by seed and method."""


def prepare(settings: list[str], folder: Path, *, alone: bool) -> None:
    """Make partitions and the graph for DGL in a process, whose memory is freed before training."""
    common.run_main("app=partition_data", *settings, f"hydra.run.dir={folder}/partitioned")
    if alone:
        alternatives.write_graph(compose(settings), folder)


def train(arguments: list[str], folder: Path) -> dict[str, Any]:
    """Run one node's command; return its summary.json, memory and CPU seconds."""
    place = Path(tempfile.mkdtemp(dir=folder))
    command = [
        sys.executable,
        str(common.ROOT / "main.py"),
        "--config-name",
        "node_classification_sage",
        "app=train",
    ]
    watched = common.run_watched(
        [*command, *arguments, f"hydra.run.dir={place}"], {"PYTHONPATH": str(common.ROOT)}
    )
    if watched["status"]:
        return {"error": watched["errors"][-1]}
    summary = json.loads((place / "summary.json").read_text(encoding="utf-8"))
    return {
        "bytes": summary["bytes"]["total"],
        "wire": 0,
        "pss": watched["pss"],
        "cpu": watched["cpu"],
        "command": watched["seconds"],
        **outcome(summary, place),
    }


def outcome(summary: dict[str, Any], place: Path) -> dict[str, Any]:
    lines = [
        json.loads(line)
        for line in (place / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    last = max(line["layer"] for line in lines)
    curve = [(line["seconds"], line["val_metric"]) for line in lines if line["layer"] == last]
    return {
        "curve": curve,
        "val": max(accuracy for _, accuracy in curve),
        "test": summary["test"]["accuracy"],
        "train": summary["seconds"]["train"],
        "rounds": sum(summary["rounds"]),
    }


def run(
    method: str, data: list[str], seed: int, rate: str, folder: Path, parts: int
) -> dict[str, Any]:
    """Run a method on loopback or between two nodes."""
    arguments = [*data, *METHODS[method]]
    arguments = [argument.replace("BATCH", str(BATCH // parts)) for argument in arguments]
    if method == ALONE:
        result = alternatives.measure(Run("DGL SAGE sampled", seed, data, str(folder), 1e9))
        return {"bytes": 0, "wire": 0, **result}
    if rate == "loopback":
        return train(arguments, folder)
    import namespaces  # of tests/, where slow_link has made Python look

    with namespaces.network(2, rate) as nodes:
        summary = slow_link.run(nodes, ["model=sage", *arguments], parts // 2, folder)
    return {
        "bytes": summary["bytes"]["total"],
        "wire": summary["wire"],
        "pss": 0,
        "cpu": 0,
        "command": 0,
        **outcome(summary, summary["place"]),
    }


def table(by_seed: Found) -> pd.DataFrame:
    """Print one row per method."""
    of = {
        method: {
            seed: runs[method] for seed, runs in by_seed.items() if "test" in runs.get(method, {})
        }
        for method in METHODS
    }
    of = {method: runs for method, runs in of.items() if runs}
    common_seeds = [
        seed for seed in by_seed if all(runs.get(seed, {}).get("curve") for runs in of.values())
    ]
    rows = {}
    for method, runs in of.items():
        row = {
            "n": str(len(runs)),
            "val": f"{np.mean([result['val'] for result in runs.values()]):.4f}",
        }
        row["test"] = common.interval([result["test"] for result in runs.values()])
        if ALONE in of:
            row["less DGL's"] = common.interval(
                [
                    result["test"] - of[ALONE][seed]["test"]
                    for seed, result in runs.items()
                    if seed in of[ALONE]
                ]
            )
        if common_seeds:
            targets = alternatives.targets(
                {other: [of[other][seed] for seed in common_seeds] for other in of}
            )
            row["to target, s"] = alternatives.seconds_to(
                targets, [runs[seed] for seed in common_seeds]
            )
            row["to target, CPU s"] = alternatives.seconds_to(
                targets, [in_cpu(runs[seed]) for seed in common_seeds]
            )
        for name, (title, unit) in UNITS.items():
            row[title] = f"{np.median([result[name] for result in runs.values()]) / unit:,.1f}"
        rows[method] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def in_cpu(result: dict[str, Any]) -> dict[str, Any]:
    """Scale a run's seconds to its CPU seconds, which depend less on other load."""
    scale = result["cpu"] / result["train"]
    return {
        **result,
        "curve": [(seconds * scale, accuracy) for seconds, accuracy in result["curve"]],
    }


def draw(results: dict[str, Found], file: Path) -> None:
    """Plot test accuracy against bytes and against CPU seconds.

    One row of panels per graph, loopback only.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "retexo"
    from matplotlib import pyplot

    graphs = {key.split()[0]: runs for key, runs in results.items() if " loopback" in key}
    figure, axes = pyplot.subplots(
        len(graphs), 2, figsize=(9, 3 * len(graphs)), squeeze=False, sharey="row"
    )
    for row, (graph, seeds) in zip(axes, graphs.items(), strict=True):
        for panel, name, label in zip(
            row, ("bytes", "cpu"), ("bytes sent", "CPU seconds of all processes"), strict=True
        ):
            for number, method in enumerate(METHODS):
                runs = [
                    by_method[method]
                    for by_method in seeds.values()
                    if "test" in by_method.get(method, {})
                ]
                if runs and (method != ALONE or name == "cpu"):
                    points = [
                        np.mean([result[measure] for result in runs]) for measure in (name, "test")
                    ]
                    panel.scatter(
                        *points, marker="osD^v<>P*X"[number], color=f"C{number}", label=method
                    )
            panel.set(xscale="log", xlabel=label, title=graph)
        row[0].set_ylabel("test accuracy")
        row[1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = common.parser(__doc__, seeds=5, pubmed=None, options=[])
    parser.add_argument("what", choices=["distdgl"])
    parser.add_argument(
        "--graphs", nargs="+", default=[], choices=["cora", "pubmed", "synthetic", "products"]
    )
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument(
        "--rates", nargs="+", default=["loopback"], help="loopback, or rates of tc such as 100mbit"
    )
    parser.add_argument("--parts", type=int, default=4, help="random partitions (default 4)")
    parser.add_argument("--share", type=int, default=1, help="products: divide its size by this")
    parser.add_argument(
        "--keep", type=Path, required=True, help="JSON of finished runs, which are not repeated"
    )
    parser.add_argument("--figure", type=Path, help="write an SVG of all runs in --keep")
    options = parser.parse_args()
    results: dict[str, Found] = (
        json.loads(options.keep.read_text(encoding="utf-8")) if options.keep.exists() else {}
    )
    graphs = {
        "synthetic": SYNTHETIC,
        "products": scale.data(options.share),
        **common.graphs(options.pubmed),
    }
    for graph in options.graphs:
        for seed in range(options.seeds):
            compare(graph, [*graphs[graph], *options.options], seed, options, results)
    for key, seeds in results.items():
        print(key, table(seeds).to_string(), sep="\n", flush=True)
    if options.figure:
        draw(results, options.figure)


def compare(
    graph: str, data: list[str], seed: int, options: argparse.Namespace, results: dict[str, Found]
) -> None:
    """Run the missing methods of one seed on the same partitions."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            *data,
            f"seed={seed}",
            f"partition_dir={folder}/partitions",
            f"num_partitions={options.parts}",
        ]
        is_partitioned = False
        for rate in options.rates:
            size = f"/{options.share}" * (graph == "products")
            runs = results.setdefault(
                f"{graph}{size} {rate}, {options.parts} parts", {}
            ).setdefault(str(seed), {})
            for method in options.methods:
                if "test" in runs.get(method, {}) or (method == ALONE and rate != "loopback"):
                    continue
                if not is_partitioned:
                    prepare(overrides, Path(folder), alone=ALONE in options.methods)
                    is_partitioned = True
                runs[method] = run(method, overrides, seed, rate, Path(folder), options.parts)
                said = {name: runs[method].get(name) for name in ("test", "train", "error")}
                print(
                    f"{graph} {rate}, seed {seed}: {method} {said}, load {os.getloadavg()[0]:.0f}",
                    file=sys.stderr,
                )
                options.keep.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
