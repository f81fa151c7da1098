"""Ways to train on a graph in parts: same network, same compression, same small search.

    python benchmarks/rivals.py --datasets DIR --graphs cora actor --seeds 3 \\
        --results benchmarks/results/rivals.csv

DIR holds NAME.npz and splits/NAME/0 ... Every method trains GraphSAGE of two layers, 256 wide, with
the skip connections, norm, label propagation and stopping rule of the defaults; SIGN has its own
network. For each graph and method, validation on the first split chooses among learning rates and
dropout rates (SEARCH) and, for networks trained end to end, whether they have skip connections and
label propagation (PLAIN); then it trains once per split. Rows of a `compressed` method have 4 bits,
its gradients rank 2 and 6 bits; those of others have 32 bits. `PyG` trains SAGEConv of two layers
of width 256 on the whole graph, with its own search of class weights.

Graphs NAME_planetoid have Planetoid's split (20 training nodes of each class); with --parts 10 it
is the setting in which FedGraph reports FedGCN: Cora .792 with 584 MB, PubMed .745 with 664 MB.

With --layers 6 every method has that depth, SIGN as many hops; `lazy deep, compressed` chooses its
own by validation, and networks that are trained at once are searched with and without residual
layers (RESIDUAL) in place of PLAIN.

A finished run is a line of the csv file; it is not repeated. The table is made of that file: mean
and deviation of the test score over splits; MB of rows + of all else; and the MB after which the
validation score of a round reached the least best score of the graph's methods (before the choice
of layers and label propagation). `--figure` draws score against MB.
"""

import csv
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import common
import numpy as np
from objectives import data_of, pyg, settings_of

SEARCH = [
    f"learning_rate=[{rate}] dropout={dropout}"
    for rate, dropout in product((0.01, 0.003), (0, 0.3, 0.6))
]
SAME = (
    "base=default classifiers=last smoothing.reach=computed"
    " gradient.compression=powersgd gradient.precision=int6 gradient.rank=2"
)
"""The defaults of the lazy trainer, as far as a network that is trained at once has them."""
PLAIN = " model.self_weight=false model.input_skip=false smoothing.steps=0 stopping.patience=60"
"""Without skip connections and label propagation, as PyG's network: networks that are trained at
once are searched with and without, for on some graphs they learn only without."""
RESIDUAL = " model.residual=true"
FP32 = "exchange.precision=fp32 gradient.precision=fp32 gradient.compression=none"
LOCAL = "local, compressed"
METHODS = {
    "lazy, compressed": "",
    "lazy deep, compressed": "+experiment=deep",
    "lazy": FP32,
    "lazy as published": "+experiment=retexo",
    "SIGN, compressed": "+experiment=lean trainer=sign smoothing.steps=5",
    "SIGN": "trainer=sign smoothing.steps=5",
    "full graph, compressed": f"trainer=full_graph {SAME}",
    "full graph": f"trainer=full_graph {SAME} {FP32}",
    "BNS .1, compressed": f"trainer=bns bns.p=0.1 {SAME}",
    "FedGCN, compressed": f"trainer=fedgcn {SAME}",
    "FedGCN as published": "trainer=fedgcn exchange=plain",
    LOCAL: f"trainer=local {SAME} smoothing.steps=0 exchange.precision=fp32",
}
FIELDS = ["graph", "parts", "method", "split", "search", "metric", "validation", "test"]
FIELDS += ["rows_mb", "gradients_mb", "other_mb", "rounds", "seconds", "steps"]
STEP = 0.005
"""The `steps` of a run are SCORE@MB, each a round whose score exceeds the step before by this."""
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
    parser.add_argument("--layers", type=int, help="of every method; two by default")
    parser.add_argument("--partition-method", default="random")
    parser.add_argument("--searched", help='no search, but the settings found for parts "4 random"')
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    args.datasets = args.datasets.resolve()
    kept = read(args.results)
    for name in args.graphs:
        for method in args.methods:
            with tempfile.TemporaryDirectory() as folder:
                run_method(args, kept, name, method, folder)
    print(common.machine())
    chosen = choose(kept.values())
    print_table(chosen)
    if args.figure:
        draw(chosen, args.figure)


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
    place = f"{args.parts} {args.partition_method}"
    place += f", {args.layers} layers" if args.layers else ""

    def found(split: int, search: str) -> Run:
        about: Run = dict(zip(FIELDS, (name, place, method, split, search), strict=False))
        if key(about) not in kept:
            run = about | train(args, name, method, split, search, folder)
            append(args.results, run)
            kept[key(about)] = run
        return kept[key(about)]

    if args.searched:
        best = choose(kept.values())[name, args.searched, method][0]["search"]
    else:
        searched = [""] if method == "PyG" else SEARCH
        if SAME in METHODS.get(method, ""):
            other = RESIDUAL if args.layers else PLAIN
            searched = [*SEARCH, *(f"{search}{other}" for search in SEARCH[:3])]
        runs = [found(0, search) for search in searched]
        best = max(runs, key=lambda run: float(run["validation"] or 0))["search"]
    for split in range(args.seeds):
        found(split, best)


def train(args: Any, name: str, method: str, split: int, search: str, folder: str) -> Run:
    """The rest of a line."""
    more = [*METHODS.get(method, "").split(), *search.split(), *args.options]
    more += [f"num_partitions={args.parts}", f"partition_method={args.partition_method}"]
    if args.layers and "deep" not in method:
        more.append(f"num_layers={args.layers}")
    more.append("model.input_dropout=${dropout}")  # one rate, also where columns are few
    settings = settings_of(args, name, split, "sage", f"{folder}/{split}", more)
    if method == "PyG":
        metric = METRICS.get(name, "accuracy")
        test = pyg(data_of(settings), metric, split)
        return dict.fromkeys(FIELDS[5:], "") | {"metric": metric, "test": round(test[metric], 5)}
    common.partition(settings)
    if settings.trainer.name == "sign":  # threads would draw its network from one generator
        summary = common.train(settings, folder)
        trace = sign_trace(summary, Path(folder))
    else:
        summary = common.train_in_threads(settings)
        trace = summary["trace"]
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
        "steps": steps_of(trace),
    }


def sign_trace(summary: Run, folder: Path) -> list[tuple[float, int]]:
    """As `trace` of common.train_in_threads: SIGN sends all rows before its first round."""
    newest = max(folder.rglob("metrics.jsonl"), key=lambda path: path.stat().st_mtime)
    scores = [json.loads(line)["val_metric"] for line in newest.read_text().splitlines()]
    total = summary["bytes"]["total"]
    per_round = summary["bytes"]["by_kind"]["gradients"] / max(1, len(scores) - 1)
    before = total - per_round * (len(scores) - 1)
    return [(score, int(before + per_round * number)) for number, score in enumerate(scores)]


def steps_of(trace: list[tuple[float, int]]) -> str:
    """Where the best score so far grew by STEP, as SCORE@MB."""
    steps: list[str] = []
    best = -1.0
    for score, sent in trace:
        if score >= best + STEP:
            best = score
            steps.append(f"{score:.4f}@{sent / 1e6:.4g}")
    return " ".join(steps)


def choose(runs: Iterable[Run]) -> dict[tuple[str, ...], list[Run]]:
    """The runs with the settings chosen on the first split, by graph, parts and method."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run["graph"], run["parts"], run["method"]].append(run)
    for about, every in groups.items():
        first = [run for run in every if str(run["split"]) == "0"]
        best = max(first, key=lambda run: float(run["validation"] or 0))["search"]
        groups[about] = [run for run in every if run["search"] == best]
    return groups


def mb_to_common_score(methods: dict[str, list[Run]]) -> dict[str, float]:
    """By method, the mean over splits of the MB sent when a round reached the common score.

    The common score of a split is the least of the best scores of the methods that send rows.
    Nothing for runs of before the steps were recorded.
    """
    steps = {
        name: {
            str(run["split"]): [tuple(map(float, step.split("@"))) for step in run["steps"].split()]
            for run in runs
        }
        for name, runs in methods.items()
        if name not in ("PyG", LOCAL)
    }
    if not all(split_steps for by_split in steps.values() for split_steps in by_split.values()):
        return {}
    common: dict[str, float] = {}
    for by_split in steps.values():
        for split, split_steps in by_split.items():
            common[split] = min(split_steps[-1][0], common.get(split, 1.0))
    return {
        name: float(
            np.mean(
                [
                    next(sent for score, sent in split_steps if score >= common[split])
                    for split, split_steps in by_split.items()
                ]
            )
        )
        for name, by_split in steps.items()
    }


def totals(runs: list[Run]) -> list[float]:
    """Mean MB of rows, of gradients and of the rest."""
    fields = ("rows_mb", "gradients_mb", "other_mb")
    return [float(np.mean([float(run[field] or 0) for run in runs])) for field in fields]


def print_table(chosen: dict[tuple[str, ...], list[Run]]) -> None:
    """A line for each graph and kind of parts, a column for each method."""
    columns = [name for name in (*METHODS, "PyG") if any(name == about[2] for about in chosen)]
    print(f"|graph, parts, score|{'|'.join(columns)}|")
    print("|---" * (len(columns) + 1) + "|")
    for place in dict.fromkeys(about[:2] for about in chosen):
        methods = {about[2]: runs for about, runs in chosen.items() if about[:2] == place}
        reached = mb_to_common_score(methods)
        metric = next(iter(methods.values()))[0]["metric"]
        cells = [_cell(methods.get(name, []), reached.get(name)) for name in columns]
        print(f"|{', '.join([*place, metric])}|{'|'.join(cells)}|")


def _cell(runs: list[Run], reached: float | None) -> str:
    """Test score, MB of rows + the rest, and MB to the common score."""
    if not runs:
        return ""
    tests = [float(run["test"]) for run in runs]
    cell = f"{np.mean(tests):.3f}".lstrip("0")
    if len(tests) > 1:
        cell += f"±{np.std(tests, ddof=1):.3f}".replace("±0", "±")
    rows, gradients, rest = totals(runs)
    if rows + gradients + rest > 0:
        cell += f", {_digits(rows)}+{_digits(gradients + rest)}"
    return cell if reached is None else f"{cell}, {_digits(reached)}"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def draw(chosen: dict[tuple[str, ...], list[Run]], path: Path) -> None:
    """Write an svg: for each graph, test score against the logarithm of all MB sent."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "retexo", "svg.fonttype": "none"}
    import matplotlib.pyplot as plt

    places = list(dict.fromkeys(about[:2] for about in chosen))
    columns = min(4, len(places))
    figure, axes = plt.subplots(
        -(-len(places) // columns), columns, figsize=(3 * columns, 8.4), squeeze=False
    )
    for axis, place in zip(axes.flat, places, strict=False):
        axis.set_title(f"{place[0]}, {place[1]}", fontsize=9)
        axis.set_xscale("log")
        for method in (*METHODS, "PyG"):
            runs = chosen.get((*place, method))
            if not runs:
                continue
            tests = [float(run["test"]) for run in runs]
            if method == "PyG":
                axis.axhline(np.mean(tests), color="grey", linestyle=":", label=method)
                continue
            color = "black" if method == LOCAL else f"C{list(METHODS).index(method)}"
            error = np.std(tests, ddof=1) if len(tests) > 1 else 0
            axis.errorbar(
                sum(totals(runs)),
                np.mean(tests),
                error,
                fmt="o" if "compressed" in method else "s",
                color=color,
                label=method,
                capsize=2,
            )
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(places) :]:
        axis.set_visible(False)
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=4, fontsize=8)
    figure.supxlabel("MB sent by all workers", y=0.09, fontsize=9)
    figure.supylabel("test score", fontsize=9)
    figure.tight_layout(rect=(0.01, 0.1, 1, 1))
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
