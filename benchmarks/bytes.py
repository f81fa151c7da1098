"""Bytes and accuracy of each way to communicate, paired by seed and split: 4 random parts, everything counted.

    python benchmarks/bytes.py [--seeds 10] [--pubmed ../shared/datasets/pubmed.npz] [--pubmed-seeds 5]

`plain` is the public scheme: every halo row dense, 200 rounds a layer. The settings of the others were chosen by
validation (choose_defaults.py, choose_lean.py); each run looks at its test nodes once. `gather` ships all parts to the
worker with the largest. The bound is rows of the smallest cover (unit weights) times the bytes of a dense row: features
before the weights, embeddings 256 or, in the last wave, C wide.
"""

import argparse
import logging
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from accuracy import PUBMED_SPLIT, runs
from scipy import stats

from partitioning.storage import PartitionDirectory
from retexo.apps.plan import Sizes
from retexo.apps.train import open_directory
from retexo.config.compose import compose
from retexo.estimate.traffic import architecture_of, forecast

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


def kinds(summary: dict, *names: str) -> float:
    return sum(summary["bytes"]["by_kind"][name] for name in names) / 1e6


def report(graph: str, model: str, found: dict[str, list[dict]]) -> None:
    """A line a method."""
    plain = found["plain"]
    base = np.mean([summary["bytes"]["total"] for summary in plain]) / 1e6
    base_rows = np.mean([kinds(summary, "features", "embeddings") for summary in plain])
    for method, summaries in found.items():
        total = np.mean([summary["bytes"]["total"] for summary in summaries]) / 1e6
        rows = np.mean([kinds(summary, "features", "embeddings") for summary in summaries])
        gradients = np.mean([kinds(summary, "gradients") for summary in summaries])
        rest = np.mean([kinds(summary, "setup", "parameters", "metrics") for summary in summaries])
        rounds = np.mean([sum(summary["rounds"]) for summary in summaries])
        test = np.array([summary["test"]["accuracy"] for summary in summaries])
        paired = test - np.array([summary["test"]["accuracy"] for summary in plain])
        difference = "" if method == "plain" else "{:+.2f} [{:+.2f}, {:+.2f}]".format(*interval(paired))
        print(
            f"{graph:<7}{model:<5}{method:<11}{total:>10.3f}{f'1/{base / total:.1f}':>9}{rows:>9.3f}"
            f"{f'1/{base_rows / rows:.1f}':>8}{gradients:>10.3f}{rest:>7.3f}{rounds:>7.1f}  {test.mean():.4f} +- "
            f"{test.std(ddof=1):.4f}  {difference}",
            flush=True,
        )


def report_bounds(graph: str, model: str, data: list[str], seeds: Sequence[int], folder: Path) -> None:
    """Means over the seeds' partitions of what `gather` takes, and of dense rows of the smallest covers."""
    gather, bound = [], []
    for seed in seeds:
        common = [*data, f"seed={seed}", f"partition_dir={folder / str(seed)}"]
        settings = compose(common, f"node_classification_{model}")
        directory = open_directory(settings)
        partitions = [directory.read(part) for part in range(directory.num_parts)]
        architecture = architecture_of(settings.train, directory, partitions)
        gather.append(Sizes.of(settings.train, partitions, architecture).gather / 1e6)
        embeddings = forecast(settings.train, directory, partitions).total([0, 0], ["embeddings"])
        bound.append((features_bound(directory, model) + embeddings) / 1e6)
    print(f"{graph:<7}{model:<5}{'gather':<11}{np.mean(gather):>10.3f}", flush=True)
    print(f"{graph:<7}{model:<5}{'bound':<11}{np.mean(bound):>28.3f}  dense rows of the smallest cover", flush=True)


def features_bound(directory: PartitionDirectory, model: str) -> int:
    """Bytes of one dense row a vertex of the smallest cover; attention has no cover: a row a halo node."""
    meta = directory.meta
    assert meta is not None
    assert meta.cover_rows is not None
    rows = sum(part.halo for part in meta.parts) if model == "gat" else meta.cover_rows
    return 4 * meta.num_features * rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="of Cora; 0: without it")
    parser.add_argument("--pubmed", type=Path, help="PubMed as an npz of the form of dataset_name=file")
    parser.add_argument("--pubmed-seeds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, help="plain among them")
    parser.add_argument("--models", nargs="+", default=("gcn", "sage", "gat"))
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    graphs = {"cora": (["dataset_name=cora"], arguments.seeds)} if arguments.seeds else {}
    if arguments.pubmed:
        file = f"dataset_file={arguments.pubmed.resolve()}"
        graphs["pubmed"] = (["dataset_name=file", file, *PUBMED_SPLIT], arguments.pubmed_seeds)
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} cores; 4 random parts")
    for method in arguments.methods:
        options = METHODS[method]
        print(f"{method:<12}{' '.join(options)}")
    for graph, (_, seeds) in graphs.items():
        print(f"{graph}: seeds 0 to {seeds - 1} of split, partition and training")
    print(
        f"{'MB of all workers':<23}{'total':>10}{'of plain':>9}{'rows':>9}{'of plain':>8}{'gradients':>10}{'rest':>7}"
        f"{'rounds':>7}  {'test accuracy':<16}  points more than plain [95 % interval]"
    )
    for graph, (data, seeds) in graphs.items():
        for model in arguments.models:
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder)
                found = {method: runs(data, model, seeds, METHODS[method], place) for method in arguments.methods}
                report(graph, model, found)
                report_bounds(graph, model, data, range(seeds), place)


if __name__ == "__main__":
    main()
