"""Mini-batches of `batch_size=auto` beside full batches, on graphs that are too small for them.

    python benchmarks/batches.py --datasets DIR --graphs pubmed coauthor_cs amazon_photo \\
        minesweeper actor --seeds 3 --models gcn

DIR holds NAME.npz and splits/NAME/0 ... as files. The rule asks for 131,072 training nodes, four
steps of 32,768. Here a step has a fifth of a graph's training nodes, so that the rule applies to
it, with its patience and validation nodes. Four random partitions and the defaults, in threads;
each seed is a split (where one is published), partitioning and initialisation. The difference is in
points of the test score, paired by seed, with its 95 % interval.
"""

import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import common
import numpy as np
from objectives import settings_of
from rivals import METRICS

from retexo.rounds import objective

STEPS = 5


def main() -> None:
    parser = common.parser(__doc__, seeds=3, models=["gcn"], options=[])
    parser.add_argument("--datasets", type=Path, required=True)
    parser.add_argument("--graphs", nargs="+", required=True)
    args = parser.parse_args()
    args.datasets = args.datasets.resolve()
    print(common.machine())
    print("|graph, model|score|full batches|mini-batches|points|rounds|\n|---|---|---|---|---|---|")
    differences = []
    for model in args.models:
        for name in args.graphs:
            metric = METRICS.get(name, "accuracy")
            runs = [pair(args, name, model, split) for split in range(args.seeds)]
            full, auto = np.array([[run["test"][metric] for run in both] for both in runs]).T
            rounds = np.array([[sum(run["rounds"]) for run in both] for both in runs]).mean(axis=0)
            differences.append(float(np.mean(auto - full)))
            print(
                f"|{name}, {model}|{metric}|{common.with_spread(full)}|{common.with_spread(auto)}|"
                f"{common.interval(list(100 * (auto - full)))}|{rounds[0]:.0f}, {rounds[1]:.0f}|",
                flush=True,
            )
    print(f"mean over graphs: {100 * np.mean(differences):+.2f} points")


def pair(args: Namespace, name: str, model: str, split: int) -> list[dict[str, Any]]:
    """summary.json of a run with full batches and of one with mini-batches."""
    with tempfile.TemporaryDirectory() as folder:
        runs: list[dict[str, Any]] = []
        for batch_size in ("null", "auto"):
            more = [f"batch_size={batch_size}", *args.options]
            settings = settings_of(args, name, split, model, folder, more)
            if not runs:
                common.partition(settings)
                _, partitions = common.read_partitions(settings)
                num_train = sum(int(part.train_mask.sum()) for part in partitions)
            objective.AUTO_BATCH_SIZE = num_train // STEPS
            runs.append(common.train_in_threads(settings))
    return runs


if __name__ == "__main__":
    main()
