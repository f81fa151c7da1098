"""Depth by validation and look-ahead beside two layers that train alone.

    python benchmarks/depth.py --datasets DIR --graphs minesweeper actor --seeds 3 --models sage \\
        --methods default num_layers=auto +experiment=deep

DIR holds NAME.npz, or a folder NAME of tables, and splits/NAME/0 ... as files. A method
is a list of settings, separated by commas. Each graph has its published splits, or the only one
with several seeds, and four random partitions; the score is the one that training stops by. MB
counts the bytes of all workers.
"""

import tempfile
from pathlib import Path

import common
import numpy as np
from objectives import settings_of


def main() -> None:
    parser = common.parser(__doc__, seeds=3, models=["sage"], options=[])
    parser.add_argument("--datasets", type=Path, required=True)
    parser.add_argument("--graphs", nargs="+", required=True)
    parser.add_argument("--methods", nargs="+", default=["default", "num_layers=auto"])
    args = parser.parse_args()
    args.datasets = args.datasets.resolve()
    print(common.machine())
    print(
        "| graph | model | method | score | validation | test | macro-F1 | layers | MB | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in args.graphs:
        for model in args.models:
            for method in args.methods:
                runs = []
                for split in range(args.seeds):
                    with tempfile.TemporaryDirectory() as folder:
                        words = [] if method == "default" else method.split(",")
                        more = [*words, *args.options]
                        settings = settings_of(args, name, split, model, folder, more)
                        common.partition(settings)
                        runs.append(common.train_in_threads(settings))
                report(name, model, method, runs)


def report(name: str, model: str, method: str, runs: list[dict]) -> None:
    """Print a row: means over the splits, with the standard deviation of the test score."""
    metric = runs[0]["metric"]
    metric = metric if metric in runs[0]["test"] else "accuracy"
    val, test = ([run[part][metric] for run in runs] for part in ("val", "test"))
    layers = np.mean([len(run["rounds"]) for run in runs])
    f1 = np.mean([run["test"].get("macro_f1", np.nan) for run in runs])
    megabytes = np.mean([run["bytes"]["total"] for run in runs]) / 1e6
    seconds = np.median([run["seconds"]["train"] for run in runs])
    deviation = np.std(test, ddof=1) if len(test) > 1 else float("nan")
    print(
        f"| {name} | {model} | {method} | {metric} | {np.mean(val):.4f} | {np.mean(test):.4f} ± "
        f"{deviation:.3f} | {f1:.4f} | {layers:.1f} | {megabytes:.1f} | {seconds:.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
