"""Depth by validation and look-ahead beside two layers that train alone.

    python benchmarks/depth.py --datasets DIR --graphs minesweeper actor --seeds 3 --models sage \\
        --methods default num_layers=auto +experiment=deep [--layers 1 2 4] [--figure FILE.svg]

DIR holds NAME.npz, or a folder NAME of tables, and splits/NAME/0 ... as files. A method
is a list of settings, separated by commas. Each graph has its published splits, or the only one
with several seeds, and four random partitions; the score is the one that training stops by. MB
counts the bytes of all workers. With --layers each method runs with these numbers of layers; the
figure shows test scores against them, one panel per graph.
"""

import itertools
import tempfile
from pathlib import Path

import common
import numpy as np
from objectives import settings_of

Scores = dict[str, dict[str, dict[int, float]]]
"""Mean test score by graph, method and number of layers."""


def main() -> None:
    parser = common.parser(__doc__, seeds=3, models=["sage"], options=[])
    parser.add_argument("--datasets", type=Path, required=True)
    parser.add_argument("--graphs", nargs="+", required=True)
    parser.add_argument("--methods", nargs="+", default=["default", "num_layers=auto"])
    parser.add_argument("--layers", type=int, nargs="+", default=[0], help="0: those of the method")
    parser.add_argument("--figure", type=Path, help="svg to write")
    args = parser.parse_args()
    args.datasets = args.datasets.resolve()
    print(common.machine())
    print(
        "| graph | model | method | score | validation | test | macro-F1 | layers | MB | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    scores: Scores = {}
    for name, model, method in itertools.product(args.graphs, args.models, args.methods):
        line = scores.setdefault(name, {}).setdefault(f"{model} {method}", {})
        for layers in args.layers:
            words = [] if method == "default" else method.split(",")
            words += [f"num_layers={layers}"] if layers else []
            runs = []
            for split in range(args.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    more = [*words, *args.options]
                    settings = settings_of(args, name, split, model, folder, more)
                    common.partition(settings)
                    runs.append(common.train_in_threads(settings))
            line[layers] = report(name, model, method, runs, layers)
    if args.figure:
        draw(scores, args.figure)


def report(name: str, model: str, method: str, runs: list[dict], num_layers: int) -> float:
    """Print a row: means over the splits, with the standard deviation of the test score.

    Return the mean test score.
    """
    metric = runs[0]["metric"]
    metric = metric if metric in runs[0]["test"] else "accuracy"
    val, test = ([run[part][metric] for run in runs] for part in ("val", "test"))
    layers = num_layers or np.mean([len(run["rounds"]) for run in runs])
    f1 = np.mean([run["test"].get("macro_f1", np.nan) for run in runs])
    megabytes = np.mean([run["bytes"]["total"] for run in runs]) / 1e6
    seconds = np.median([run["seconds"]["train"] for run in runs])
    deviation = np.std(test, ddof=1) if len(test) > 1 else float("nan")
    print(
        f"| {name} | {model} | {method} | {metric} | {np.mean(val):.4f} | {np.mean(test):.4f} ± "
        f"{deviation:.3f} | {f1:.4f} | {layers:.1f} | {megabytes:.1f} | {seconds:.0f} |",
        flush=True,
    )
    return float(np.mean(test))


def draw(scores: Scores, path: Path) -> None:
    """Write an svg: test score against layers, one panel per graph and one line per method."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    from retexo.results.figures import COLOURS, MARKERS, STYLE

    with mpl.rc_context({**STYLE, "svg.fonttype": "none"}):
        size = (4.6 * len(scores), 4)
        figure, panels = plt.subplots(
            1, len(scores), figsize=size, squeeze=False, layout="constrained"
        )
        for axes, (name, methods) in zip(panels[0], scores.items(), strict=True):
            lines = zip(methods.items(), COLOURS, MARKERS, strict=False)
            for (method, by_layers), colour, marker in lines:
                axes.plot(
                    *zip(*by_layers.items(), strict=True), color=colour, marker=marker, label=method
                )
            axes.set(title=name, xlabel="layers", ylabel="test score")
        figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center")
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
