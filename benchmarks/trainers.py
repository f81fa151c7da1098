"""All trainers on the same partitions: accuracy, bytes, rounds and seconds; 4 random parts, the project's defaults.

    python benchmarks/trainers.py [--seeds 5] [--models gcn sage gat] [--pubmed ../shared/datasets/pubmed.npz]

A seed draws the split, the parts and the initial parameters. Trainers take turns within a seed, so that what else the
machine does hits all of them alike. Same width, dropout, optimiser, stopping rule and metric for all: the defaults,
which were chosen for the lazy trainer (choose_defaults.py). Each run looks at its test nodes once. Megabytes (1e6): of
rows (features, embeddings and their gradients), of steps, of validation (rows sent to score a round, and counts).
"""

import argparse
import contextlib
import io
import logging
import platform
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from accuracy import PUBMED_SPLIT

from partitioning.errors import InputError
from retexo.apps import partition_data, train
from retexo.config.compose import compose

TRAINERS = {
    "lazy": ["trainer=lazy"],
    "full_graph": ["trainer=full_graph"],
    "full_graph, plain": ["trainer=full_graph", "exchange=plain"],
    "bns, p=0.1": ["trainer=bns", "bns.p=0.1"],
    "fedgcn, 2 hops": ["trainer=fedgcn", "fedgcn.hops=2"],
    "sign": ["trainer=sign"],
    "local": ["trainer=local"],
}
MODELS = ("gcn", "sage", "gat")
Summaries = dict[tuple[str, str], list[dict]]


def run_all(data: list[str], models: list[str], seeds: int, options: list[str]) -> Summaries:
    """summary.json of each seed by model and trainer; what a trainer refuses is left out."""
    found: Summaries = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            common = [*data, f"seed={seed}", f"partition_dir={Path(folder) / str(seed)}", *options]
            partition_data.run(compose(common).partition)
            for model in models:
                for name, choice in TRAINERS.items():
                    settings = compose([*common, *choice, "app=train"], f"node_classification_{model}")
                    with contextlib.suppress(InputError):
                        summary = train.run(settings, Path(tempfile.mkdtemp(dir=folder)))
                        found.setdefault((model, name), []).append(summary)
    return found


def row(model: str, name: str, summaries: list[dict]) -> str:
    val, test = (np.array([summary[split]["accuracy"] for summary in summaries]) for split in ("val", "test"))
    spread = test.std(ddof=1) if len(test) > 1 else float("nan")
    rounds = np.mean([sum(summary["rounds"]) for summary in summaries])
    seconds = np.median([summary["seconds"]["train"] for summary in summaries])

    def megabytes(*kinds: str) -> float:
        return float(np.mean([sum(summary["bytes"]["by_kind"][kind] for kind in kinds) for summary in summaries])) / 1e6

    total = np.mean([summary["bytes"]["total"] for summary in summaries]) / 1e6
    parts = megabytes("features", "embeddings"), megabytes("gradients"), megabytes("metrics")
    volume = " ".join(f"{part:>8.1f}" for part in (total, *parts))
    own = f"{val.mean():>7.4f} {test.mean():>7.4f} +- {spread:.4f}"
    return f"{model:<5} {name:<18} {own} {len(test):>3} {volume} {rounds:>7.1f} {seconds:>8.2f}"


def report(graph: str, found: Summaries) -> None:
    print(graph)
    print("model trainer            val     test    +- spread   n   MB all     rows    steps   valid.  rounds  seconds")
    for (model, name), summaries in found.items():
        print(row(model, name, summaries))
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--pubmed", type=Path, help="PubMed in place of Cora: an npz of dataset_name=file")
    parser.add_argument("--options", nargs="*", default=[], help="further settings for every run")
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    data = ["dataset_name=cora"]
    if arguments.pubmed:
        data = ["dataset_name=file", f"dataset_file={arguments.pubmed.resolve()}", *PUBMED_SPLIT]
    with contextlib.redirect_stdout(io.StringIO()):
        found = run_all(data, arguments.models, arguments.seeds, arguments.options)
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} cores; 4 random parts; options:",
          *arguments.options or ["the defaults"])  # fmt: skip
    report("pubmed" if arguments.pubmed else "cora", found)


if __name__ == "__main__":
    main()
