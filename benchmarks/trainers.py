"""All trainers on the same partitions: accuracy, bytes, rounds and seconds; 4 random parts, the project's defaults.

    python benchmarks/trainers.py [--seeds 5] [--models gcn sage gat] [--pubmed ../shared/datasets/pubmed.npz]

A seed draws the split, the parts and the initial parameters. Trainers take turns within a seed, so that what else the
machine does hits all of them alike. Same width, dropout, optimiser, stopping rule and metric for all: the defaults,
which were chosen for the lazy trainer (choose_defaults.py). Each run looks at its test nodes once. Megabytes (1e6): of
rows (features, embeddings and their gradients), of steps, of validation (rows sent to score a round, and counts).
"""

import contextlib
import sys
import tempfile
from pathlib import Path

import common

from partitioning.errors import InputError
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
Summaries = dict[tuple[str, str], list[dict]]


def run_all(data: list[str], models: list[str], seeds: int, options: list[str]) -> Summaries:
    """summary.json of each seed by model and trainer; what a trainer refuses is left out."""
    found: Summaries = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            overrides = [*data, f"seed={seed}", f"partition_dir={Path(folder) / str(seed)}", *options]
            common.partition(compose(overrides))
            for model in models:
                for name, choice in TRAINERS.items():
                    settings = compose([*overrides, *choice, "app=train"], f"node_classification_{model}")
                    with contextlib.suppress(InputError):
                        found.setdefault((model, name), []).append(common.train(settings, folder))
    return found


def row(model: str, name: str, summaries: list[dict]) -> str:
    kinds = ((), ("features", "embeddings"), ("gradients",), ("metrics",))
    volume = " ".join(f"{common.megabytes(summaries, *some):>8.1f}" for some in kinds)
    val, test = (common.accuracies(summaries, split) for split in ("val", "test"))
    return (
        f"{model:<5} {name:<18} {val.mean():>7.4f} {common.with_spread(test)} {len(test):>3} {volume} "
        f"{common.mean_rounds(summaries):>7.1f} {common.median_seconds(summaries):>8.2f}"
    )


def report(graph: str, found: Summaries) -> None:
    print(graph)
    print("model trainer            val     test    +- spread   n   MB all     rows    steps   valid.  rounds  seconds")
    for (model, name), summaries in found.items():
        print(row(model, name, summaries))
    sys.stdout.flush()


def main() -> None:
    arguments = common.parser(__doc__, seeds=5, pubmed=None, models=common.MODELS, options=[]).parse_args()
    graph, data = common.one_graph(arguments.pubmed)
    found = run_all(data, arguments.models, arguments.seeds, arguments.options)
    print(f"{common.machine()}; 4 random parts; options:", *arguments.options or ["the defaults"])
    report(graph, found)


if __name__ == "__main__":
    main()
