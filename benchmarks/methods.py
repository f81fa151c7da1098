"""Compare methods on the same graphs, splits, partitions and parameters.

Prints accuracy, bytes, rounds and seconds.

    python benchmarks/methods.py accuracy --models gcn sage gat gin [--pubmed PATH.npz]
    python benchmarks/methods.py bytes
    python benchmarks/methods.py trainers --seeds 5
    python benchmarks/methods.py choose --seeds 5 \
        --methods "dropout=0.5 stopping.patience=20" "+experiment=lean" ...

`--methods` takes names of the comparison's methods, or any settings. A seed draws the split, 4
random partitions and the parameters; methods alternate within a seed. `choose` shows validation
accuracy only; it selected the settings of the other comparisons, which look at the test nodes
once. Megabytes (1e6); difference of test accuracy to the first method in points, paired, with its
95 % interval; rounds of all layers together; median training seconds.

In `bytes`, `plain` is the public scheme: every halo row dense, 200 rounds per layer.
`centralized` sends all partitions to the worker with the largest. The bound is the size of the
smallest cover (unit weights) times the bytes of a dense row: features before the weights,
embeddings 256 or, in the last phase, C wide.
"""

import contextlib
import hashlib
import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import alternative_runs
import alternatives
import common
import numpy as np
import pandas as pd

from partitioning.errors import InputError
from retexo.comm.traffic_meter import KINDS as KINDS_SENT
from retexo.plan.traffic import estimate_traffic
from retexo.results.groups import compare_pairs
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

COMPARISONS = {
    "accuracy": {
        "lean": "",
        "exact": "+experiment=exact",
        "retexo": "+experiment=retexo",
        "sign": "trainer=sign num_partitions=1",
        "full_graph": "trainer=full_graph num_partitions=1",
        "PyG": "trainer=full_graph num_partitions=1",
    },
    "parts": {
        "all": "+experiment=exact num_partitions=1",
        "no own half": "+experiment=exact num_partitions=1 model.self_weight=false",
        "no second hop": ("+experiment=exact num_partitions=1 model.input_skip=false"),
        "no smoothing": "+experiment=exact num_partitions=1 smoothing.steps=0",
        "last layer only": "+experiment=exact num_partitions=1 classifiers=last",
        "first layer alone": "+experiment=exact num_partitions=1 num_layers=1",
        "none of it": "+experiment=retexo num_partitions=1",
    },
    "bytes": {
        "plain": "+experiment=retexo exchange=plain stopping=none",
        "exact": "+experiment=exact",
        "lean": "",
    },
    "trainers": {
        "lazy": "trainer=lazy",
        "full_graph": "trainer=full_graph",
        "full_graph, plain": "trainer=full_graph exchange=plain",
        "bns, p=0.1": "trainer=bns bns.p=0.1",
        "fedgcn, 2 hops": "trainer=fedgcn fedgcn.hops=2",
        "sign": "trainer=sign",
        "local": "trainer=local",
    },
    "choose": {},
}
KINDS = {
    "rows": ("features", "embeddings", "predictions"),
    "steps": ("gradients",),
    "valid.": ("metrics",),
    "rest": ("setup", "parameters"),
}
REFERENCE = {
    ("cora", "gcn"): (0.828, 0.823),
    ("cora", "sage"): (0.825, 0.830),
    ("cora", "gat"): (0.818, 0.820),
    ("pubmed", "gcn"): (0.850, 0.828),
    ("pubmed", "sage"): (0.861, 0.860),
    ("pubmed", "gat"): (0.830, 0.834),
}
"""Test accuracy of arXiv 2302.13053 (4 random partitions, 2 layers, 256 wide), and of its public
code run on 2 cores, mean of 3 splits."""
Summaries = dict[str, list[dict[str, Any]]]


def run_all(run_seed: Callable[[int], dict[str, Any]], seeds: range, processes: int) -> Summaries:
    """Return summary.json by seed and method, several seeds at a time."""
    summaries_by_method: Summaries = defaultdict(list)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for summaries in map(run_seed, seeds) if processes == 1 else pool.map(run_seed, seeds):
            for method, summary in summaries.items():
                summaries_by_method[method].append(summary)
    return summaries_by_method


def run_methods(
    seed: int,
    *,
    data: list[str],
    model: str,
    methods: dict[str, str],
    folder: Path,
    run: Callable[[Settings], Any],
    keep: Path,
) -> dict[str, Any]:
    """Return summary.json by method, without methods that a trainer does not support.

    Args:
        keep: folder of earlier runs.
    """
    common.be_silent()
    overrides = [*data, f"seed={seed}", f"partition_dir={folder / str(seed)}"]
    summaries: dict[str, Any] = {}
    partitioned: set[int] = set()
    for method, options in methods.items():
        job = repr((data, model, seed, method, options))
        kept = keep / f"{hashlib.sha256(job.encode()).hexdigest()[:20]}.json"
        if kept.exists():
            summaries[method] = json.loads(kept.read_text(encoding="utf-8"))
            continue
        settings = compose(
            [*overrides, *options.split(), "app=train"], f"node_classification_{model}"
        )
        if settings.num_partitions not in partitioned:
            common.partition(settings)
            partitioned.add(settings.num_partitions)
        with contextlib.suppress(InputError):
            summaries[method] = train_pyg(settings, model) if method == "PyG" else run(settings)
            kept.write_text(json.dumps(summaries[method]), encoding="utf-8")
    return summaries


def train_pyg(settings: Settings, model: str) -> dict[str, Any]:
    """Train PyTorch Geometric's layers end to end on the whole graph with the same split."""
    with tempfile.TemporaryDirectory() as folder:
        alternatives.write_graph(settings, Path(folder))
        result = alternative_runs.baseline(
            alternative_runs.Run(f"PyG {model.upper()}", settings.seed, [], folder, math.inf)
        )
    sent = {"total": 0, "by_kind": dict.fromkeys(KINDS_SENT, 0)}
    return {
        "val": {"accuracy": result["val"]},
        "test": {"accuracy": result["test"]},
        "rounds": [result["rounds"]],
        "seconds": {"train": result["train"]},
        "bytes": sent,
    }


def table(summaries_by_method: Summaries, *, with_test: bool) -> pd.DataFrame:
    """Print one row per method, compared with the first."""
    rows = {}
    for method, summaries in summaries_by_method.items():
        cells = {"n": len(summaries), "val": f"{common.accuracies(summaries, 'val').mean():.4f}"}
        if with_test:
            test = common.accuracies(summaries, "test")
            cells |= {"test": common.with_spread(test), "points": points(summaries_by_method, test)}
        cells["rounds"] = f"{np.mean([sum(summary['rounds']) for summary in summaries]):.1f}"
        cells["seconds"] = (
            f"{np.median([summary['seconds']['train'] for summary in summaries]):.2f}"
        )
        for name, kinds in {"MB": (), **KINDS}.items():
            cells[name] = f"{common.megabytes(summaries, *kinds):.3f}"
        rows[method] = cells
    return pd.DataFrame.from_dict(rows, orient="index")


def points(summaries_by_method: Summaries, test: np.ndarray) -> str:
    first = common.accuracies(next(iter(summaries_by_method.values())), "test")
    difference = compare_pairs(*(dict(enumerate(100 * accuracies)) for accuracies in (first, test)))
    return (
        "{mean:+.2f} [{low:+.2f}, {high:+.2f}]".format(**difference)
        if difference is not None
        else ""
    )


def print_bounds(model: str, data: list[str], seeds: Sequence[int], folder: Path) -> None:
    """Print means over the seeds of `centralized` and of the smallest covers in dense rows."""
    centralized, bound = [], []
    for seed in seeds:
        overrides = [*data, f"seed={seed}", f"partition_dir={folder / str(seed)}"]
        settings = compose(overrides, f"node_classification_{model}")
        directory, partitions = common.read_partitions(settings)
        meta = directory.meta
        assert meta is not None
        # Attention has no cover: a row per halo node.
        num_halo = sum(part.halo for part in meta.parts)
        rows = num_halo if model == "gat" else common.count_cover_rows(partitions)
        embeddings = estimate_traffic(settings, directory, partitions).total([0, 0], ["embeddings"])
        bound.append(4 * meta.num_features * rows + embeddings)
        centralized.append(common.centralized_bytes(settings, directory, partitions))
    print(
        f"centralized {np.mean(centralized) / 1e6:.3f} MB; "
        f"dense rows of the smallest cover {np.mean(bound) / 1e6:.3f} MB",
        flush=True,
    )


def main() -> None:
    parser = common.parser(
        __doc__, seeds=10, pubmed=None, pubmed_seeds=5, models=common.MODELS, options=[]
    )
    parser.add_argument("comparison", choices=COMPARISONS)
    parser.add_argument("--data", nargs="+", help="settings of another graph")
    parser.add_argument(
        "--methods", nargs="+", help="names of the comparison's methods, or settings"
    )
    parser.add_argument(
        "--threads",
        action="store_true",
        help="run workers as threads: a third of the time, same bytes",
    )
    parser.add_argument("--keep", type=Path, help="folder of finished runs, which are not repeated")
    parser.add_argument(
        "--processes", type=int, default=1, help="number of seeds that run in parallel"
    )
    arguments = parser.parse_args()
    known = COMPARISONS[arguments.comparison]
    methods = {method: known.get(method, method) for method in arguments.methods or known}
    print(f"{common.machine()}; 4 random parts; options:", *arguments.options or ["the defaults"])
    print(*(f"{method:<20}{options}" for method, options in known.items()), sep="\n")
    graphs = {"graph": arguments.data} if arguments.data else common.graphs(arguments.pubmed)
    for graph, settings in graphs.items():
        seeds = range(arguments.pubmed_seeds if graph == "pubmed" else arguments.seeds)
        data = [*settings, *arguments.options]
        for model in arguments.models:
            reference = (
                REFERENCE.get((graph, model)) if arguments.comparison == "accuracy" else None
            )
            print(
                f"\n{graph} {model}",
                "published {}, public code {}".format(*reference) if reference else "",
            )
            with tempfile.TemporaryDirectory() as folder:
                run = (
                    common.train_in_threads
                    if arguments.threads
                    else partial(common.train, folder=folder)
                )
                keep = arguments.keep or Path(folder)
                keep.mkdir(parents=True, exist_ok=True)
                run_seed = partial(
                    run_methods,
                    data=data,
                    model=model,
                    methods=methods,
                    folder=Path(folder),
                    run=run,
                    keep=keep,
                )
                summaries_by_method = run_all(run_seed, seeds, arguments.processes)
                print(
                    table(
                        summaries_by_method, with_test=arguments.comparison != "choose"
                    ).to_string(),
                    flush=True,
                )
                if arguments.comparison == "bytes":
                    print_bounds(model, data, seeds, Path(folder))


if __name__ == "__main__":
    main()
