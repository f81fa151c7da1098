"""Bytes and accuracy of each way to communicate, paired by seed and split: 4 random parts, everything counted.

    python benchmarks/bytes.py [--seeds 10] [--pubmed ../shared/datasets/pubmed.npz] [--pubmed-seeds 5]

`plain` is the public scheme: every halo row dense, 200 rounds per layer. The settings of the others were chosen by
validation (choose_defaults.py, choose_lean.py); each run looks at its test nodes once. `centralized` ships all parts to
the worker with the largest. The bound is rows of the smallest cover (unit weights) times the bytes of a dense row:
features before the weights, embeddings 256 or, in the last wave, C wide.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import common
import numpy as np
from scipy import stats

from partitioning.directory.read import PartitionDirectory
from retexo.config.compose import compose
from retexo.estimate.traffic import estimate_traffic

METHODS = {
    "plain": ["exchange=plain", "stopping=none"],
    "exact": ["learning_rate=[0.01]", "stopping.patience=20"],
    "exact bf16": [
        "learning_rate=[0.01]", "stopping.patience=20", "exchange.precision=bf16", "gradient.precision=bf16",
    ],
    "lean": ["+experiment=lean"],
}  # fmt: skip


def interval(differences: np.ndarray) -> tuple[float, float, float]:
    """Mean of paired differences with its 95 % interval (Student's t), in points."""
    mean, half = differences.mean(), stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    return 100 * mean, 100 * (mean - half), 100 * (mean + half)


def report(graph: str, model: str, found: dict[str, list[dict]]) -> None:
    """A line per method."""
    plain = found["plain"]
    base, base_rows = common.megabytes(plain), common.megabytes(plain, "features", "embeddings")
    for method, summaries in found.items():
        total, rows = common.megabytes(summaries), common.megabytes(summaries, "features", "embeddings")
        gradients = common.megabytes(summaries, "gradients")
        rest = common.megabytes(summaries, "setup", "parameters", "metrics")
        test = common.accuracies(summaries, "test")
        paired = test - common.accuracies(plain, "test")
        difference = "" if method == "plain" else "{:+.2f} [{:+.2f}, {:+.2f}]".format(*interval(paired))
        print(
            f"{graph:<7}{model:<5}{method:<11}{total:>10.3f}{f'1/{base / total:.1f}':>9}{rows:>9.3f}"
            f"{f'1/{base_rows / rows:.1f}':>8}{gradients:>10.3f}{rest:>7.3f}{common.mean_rounds(summaries):>7.1f}  "
            f"{common.with_spread(test)}  {difference}",
            flush=True,
        )


def report_bounds(graph: str, model: str, data: list[str], seeds: Sequence[int], folder: Path) -> None:
    """Means over the seeds' partitions of what `centralized` takes, and of dense rows of the smallest covers."""
    centralized, bound = [], []
    for seed in seeds:
        overrides = [*data, f"seed={seed}", f"partition_dir={folder / str(seed)}"]
        settings = compose(overrides, f"node_classification_{model}")
        directory, partitions = common.read_partitions(settings)
        centralized.append(common.centralized_bytes(settings, directory, partitions) / 1e6)
        embeddings = estimate_traffic(settings.train, directory, partitions).total([0, 0], ["embeddings"])
        bound.append((features_bound(directory, model) + embeddings) / 1e6)
    print(f"{graph:<7}{model:<5}{'centralized':<11}{np.mean(centralized):>10.3f}", flush=True)
    print(f"{graph:<7}{model:<5}{'bound':<11}{np.mean(bound):>28.3f}  dense rows of the smallest cover", flush=True)


def features_bound(directory: PartitionDirectory, model: str) -> int:
    """Bytes of one dense row a vertex of the smallest cover; attention has no cover: a row a halo node."""
    meta = directory.meta
    assert meta is not None
    assert meta.cover_rows is not None
    rows = sum(part.halo for part in meta.parts) if model == "gat" else meta.cover_rows
    return 4 * meta.num_features * rows


def main() -> None:
    parser = common.parser(__doc__, seeds=10, pubmed=None, pubmed_seeds=5, models=common.MODELS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, help="plain among them")
    arguments = parser.parse_args()
    seeds = {"cora": arguments.seeds, "pubmed": arguments.pubmed_seeds}
    graphs = {graph: data for graph, data in common.graphs(arguments.pubmed).items() if seeds[graph]}
    print(f"{common.machine()}; 4 random parts")
    for method in arguments.methods:
        options = METHODS[method]
        print(f"{method:<12}{' '.join(options)}")
    for graph in graphs:
        print(f"{graph}: seeds 0 to {seeds[graph] - 1} of split, partition and training")
    print(
        f"{'MB of all workers':<23}{'total':>10}{'of plain':>9}{'rows':>9}{'of plain':>8}{'gradients':>10}{'rest':>7}"
        f"{'rounds':>7}  {'test accuracy':<16}  points more than plain [95 % interval]"
    )
    for graph, data in graphs.items():
        for model in arguments.models:
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder)
                found = {
                    method: common.seed_runs(data, model, seeds[graph], METHODS[method], place)
                    for method in arguments.methods
                }
                report(graph, model, found)
                report_bounds(graph, model, data, range(seeds[graph]), place)


if __name__ == "__main__":
    main()
