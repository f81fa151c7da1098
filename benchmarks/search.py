"""Optuna's search for settings beside the defaults: validation metric by trial, and test score.

    python benchmarks/search.py --folder DIR --trials 10 --figure docs/img/search.svg

runs `+hparams_search=optuna` on Cora and on the table of benchmarks/accounts.py below DIR; the same
command again draws the figure from what is there, or adds trials. Trial 0 has the defaults. The
score of the search is that of its best trial by validation; every trial has the same split.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import accounts
import common

CASES = {
    "Cora": ["dataset_name=cora"],
    "accounts": [
        *accounts.OURS,
        "dataset_file=accounts",
        "model=sage",
        *("split=fraction", "split.train=0.5", "split.val=0.25", "split.test=0.25"),
    ],
}
"""Settings by data set."""


def search(folder: Path, settings: list[str], trials: int, seed: int) -> None:
    """Train with the defaults, and search."""
    command = [sys.executable, str(common.ROOT / "main.py"), *settings, f"seed={seed}"]
    command += ["progress=none"]
    default = [f"hydra.run.dir={folder}/default", "resume=auto"]
    subprocess.run([*command, *default], check=True, stdout=subprocess.DEVNULL)
    search = ["+hparams_search=optuna", f"hydra.sweep.dir={folder}/search"]
    search += [f"hydra.sweeper.n_trials={trials}"]
    subprocess.run([*command, *search], check=True, stdout=subprocess.DEVNULL)


def read(folder: Path) -> list[dict[str, Any]]:
    """The summaries of the default and of the trials, in the order in which they ended."""
    files = sorted(folder.glob("search/*/summary.json"), key=lambda path: path.stat().st_mtime)
    return [json.loads(path.read_text()) for path in (folder / "default" / "summary.json", *files)]


def scores_of(runs: list[dict[str, Any]], split: str) -> list[float]:
    return [run[split][run["chosen"]["metric"]] for run in runs]


def draw(trials: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """One panel per data set: validation and test score of each trial, and the best so far."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "svg.hashsalt": "retexo", "axes.grid": True}):
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        for axes, (name, runs) in zip(figure.subplots(1, len(trials)), trials.items(), strict=True):
            val, test = scores_of(runs, "val"), scores_of(runs, "test")
            best = [max(val[: trial + 1]) for trial in range(len(val))]
            axes.step(range(len(val)), best, where="post", color="0.5", label="best so far")
            axes.plot(val, "o", color="#D55E00", label="validation")
            axes.plot(test, "s", color="#0072B2", markersize=4, label="test")
            metric = runs[0]["chosen"]["metric"].replace("_", " ")
            axes.set(
                title=f"{name}: {metric}", xlabel="trial (0: defaults)", xticks=range(len(val))
            )
            axes.grid(alpha=0.3)
            axes.legend(fontsize=8)
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="of the runs")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the split and the runs")
    parser.add_argument("--figure", type=Path, help="file to draw into")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.resolve()
    accounts.write(folder / "accounts", *accounts.draw(0)[:2])
    print(common.machine())
    trials = {}
    for name, settings in CASES.items():
        settings = [setting.replace("=accounts", f"={folder}/accounts") for setting in settings]
        settings += [f"partition_dir={folder}/partitions"]
        search(folder / name, settings, options.trials, options.seed)
        trials[name] = read(folder / name)
        val, test = scores_of(trials[name], "val"), scores_of(trials[name], "test")
        best = max(range(len(val)), key=val.__getitem__)
        seconds = sum(run["seconds"]["total"] for run in trials[name])
        print(
            f"{name}: validation {val[0]:.4f} -> {val[best]:.4f}, test {test[0]:.4f} ->"
            f" {test[best]:.4f} (trial {best} of {len(val) - 1}), {seconds:.0f} s"
        )
    if options.figure:
        draw(trials, options.figure)


if __name__ == "__main__":
    main()
