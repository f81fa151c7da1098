"""Ways to train on a graph in parts: same network, same compression, same small search.

    python benchmarks/rivals.py --datasets DIR --graphs cora actor --seeds 3 \\
        --results benchmarks/results/rivals.csv

DIR holds NAME.npz and splits/NAME/0 ... (docs/reproduce.md). Every method trains GraphSAGE of two
layers, 256 wide, with the skip connections, norm, label propagation and stopping rule of the
defaults (SIGN has its own network). For each graph and method, validation on the first split
chooses among learning rates and dropout rates (SEARCH); then it trains once per split. Rows of a
`compressed` method have 4 bits, its gradients rank 2 and 6 bits; those of others have 32 bits.
`PyG` trains SAGEConv of two layers of width 256 on the whole graph, with its own search of class
weights.

A finished run is a line of the csv file; it is not repeated. The table is made of that file: mean
and deviation of the test score over splits, MB of all workers, median seconds of training.
"""

import csv
import tempfile
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import common
import numpy as np
from objectives import data_of, pyg, settings_of

SEARCH = [
    f"learning_rate=[{rate}] dropout={dropout}"
    for rate, dropout in product((0.01, 0.003), (0.3, 0.6))
]
SAME = "base=default model.output=activation output_heads=last smoothing.reach=computed"
"""The defaults of the lazy trainer, as far as a network that is trained at once has them."""
FP32 = "exchange.precision=fp32 gradient.precision=fp32 gradient.compression=none"
METHODS = {
    "lazy, compressed": "",
    "lazy": FP32,
    "lazy as published": "+experiment=retexo",
    "SIGN, compressed": "+experiment=lean trainer=sign smoothing.steps=5",
    "SIGN": "trainer=sign smoothing.steps=5",
    "full graph, compressed": f"trainer=full_graph {SAME}",
    "full graph": f"trainer=full_graph {SAME} {FP32}",
    "BNS .1, compressed": f"trainer=bns bns.p=0.1 {SAME}",
    "FedGCN, compressed": f"trainer=fedgcn {SAME}",
    "local, compressed": f"trainer=local {SAME} smoothing.steps=0 exchange.precision=fp32",
}
FIELDS = ["graph", "parts", "method", "split", "search", "metric", "validation", "test"]
FIELDS += ["rows_mb", "gradients_mb", "other_mb", "rounds", "seconds"]
METRICS = dict.fromkeys(("minesweeper", "anomaly_reddit", "twitch_engb"), "roc_auc")
"""The published score of a graph, where that is not accuracy."""
ROWS = ("features", "embeddings", "predictions", "aggregates")
Run = dict[str, Any]


def main() -> None:
    parser = common.parser(__doc__, seeds=3, options=[])
    parser.add_argument("--datasets", type=Path, required=True)
    parser.add_argument("--graphs", nargs="+", required=True)
    parser.add_argument("--methods", nargs="+", default=[*METHODS, "PyG"])
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--partition-method", default="random")
    parser.add_argument("--results", type=Path, required=True)
    args = parser.parse_args()
    args.datasets = args.datasets.resolve()
    kept = read(args.results)
    for name in args.graphs:
        for method in args.methods:
            with tempfile.TemporaryDirectory() as folder:
                run_method(args, kept, name, method, folder)
    print(common.machine())
    print_table(kept.values())


def key(run: Run) -> tuple[str, ...]:
    return tuple(str(run[name]) for name in FIELDS[:5])


def read(path: Path) -> dict[tuple[str, ...], Run]:
    """The runs of the csv file, if there is one."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {key(run): run for run in csv.DictReader(file)}


def append(path: Path, run: Run) -> None:
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()
        writer.writerow(run)


def run_method(
    args: Any, kept: dict[tuple[str, ...], Run], name: str, method: str, folder: str
) -> None:
    """Search on the first split, then train on each; finished runs are taken from `kept`."""

    def found(split: int, search: str) -> Run:
        place = f"{args.parts} {args.partition_method}"
        about: Run = dict(zip(FIELDS, (name, place, method, split, search), strict=False))
        if key(about) not in kept:
            run = about | train(args, name, method, split, search, folder)
            append(args.results, run)
            kept[key(about)] = run
        return kept[key(about)]

    searched = [""] if method == "PyG" else SEARCH
    best = max((found(0, each) for each in searched), key=lambda run: float(run["validation"] or 0))
    for split in range(1, args.seeds):
        found(split, best["search"])


def train(args: Any, name: str, method: str, split: int, search: str, folder: str) -> Run:
    """The rest of a line."""
    more = [*METHODS.get(method, "").split(), *search.split(), *args.options]
    more += [f"num_partitions={args.parts}", f"partition_method={args.partition_method}"]
    settings = settings_of(args, name, split, "sage", f"{folder}/{split}", more)
    if method == "PyG":
        metric = METRICS.get(name, "accuracy")
        test = pyg(data_of(settings), metric, split)
        return dict.fromkeys(FIELDS[5:], "") | {"metric": metric, "test": round(test[metric], 5)}
    common.partition(settings)
    # Threads would draw SIGN's network from one generator.
    in_processes = settings.train.trainer.name == "sign"
    summary = common.train(settings, folder) if in_processes else common.train_in_threads(settings)
    metric = METRICS.get(name, "accuracy")
    sent = summary["bytes"]["by_kind"]
    rows, gradients = sum(sent.get(kind, 0) for kind in ROWS), sent["gradients"]
    return {
        "metric": metric,
        "validation": round(summary["val"][metric], 5),
        "test": round(summary["test"][metric], 5),
        "rows_mb": round(rows / 1e6, 4),
        "gradients_mb": round(gradients / 1e6, 4),
        "other_mb": round((summary["bytes"]["total"] - rows - gradients) / 1e6, 4),
        "rounds": sum(summary["rounds"]),
        "seconds": round(summary["seconds"]["train"], 2),
    }


def print_table(runs: Any) -> None:
    """A line for each graph and method, of the runs with the chosen settings."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run["graph"], run["parts"], run["method"]].append(run)
    print("| graph | parts | method | score | test | MB of rows | of gradients | other | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (name, parts, method), every in groups.items():
        first = [run for run in every if str(run["split"]) == "0"]
        best = max(first, key=lambda run: float(run["validation"] or 0))["search"]
        chosen = [run for run in every if run["search"] == best]
        tests = [float(run["test"]) for run in chosen]
        spread = f" ± {np.std(tests, ddof=1):.4f}" if len(tests) > 1 else ""
        means = [
            f"{np.mean([float(run[field] or 0) for run in chosen]):.2f}"
            for field in ("rows_mb", "gradients_mb", "other_mb")
        ]
        seconds = np.median([float(run["seconds"] or 0) for run in chosen])
        cells = [name, parts, method, chosen[0]["metric"], f"{np.mean(tests):.4f}{spread}"]
        print(f"| {' | '.join([*cells, *means])} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
