"""Compare seconds and bytes of this checkout with another commit: did anything become slower?

    python benchmarks/regress.py COMMIT [--repeats 3] [--rounds 200] \\
        [--options distributed.backend=sockets]
    python benchmarks/regress.py COMMIT --converge [--pubmed FILE] [--repeats 5]
    python benchmarks/regress.py COMMIT --converge --graphs products --models gcn sage \\
        [--options batch_size=auto]

The other commit is checked out into a temporary worktree and runs in the same environment. Each
repeat runs both, one after the other: `+experiment=retexo`, 4 random partitions and workers, 60
rounds per layer without early stopping, on Cora and on a synthetic graph of 20,000 nodes and
200,000 edges; partitions are made before. With --converge each trains with its own defaults
until it stops, on Cora and PubMed, with another seed of split, partitions and training per
repeat; `products`, a synthetic graph with the sizes of ogbn-products (scale.py), is always the
same. --options: further settings for this checkout only; --both: for both. Prints medians
(memory: peak anonymous memory of all processes) and their ratios: below 1 this checkout takes
less.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import common
import pandas as pd
from scale import data as products

SYNTHETIC = [
    "dataset_name=synthetic",
    "synthetic.nodes=20000",
    "synthetic.edges=200000",
    "split=fraction",
]
PARTS = ["num_partitions=4", "partition_method=random"]
PUBLISHED = "+experiment=retexo"
PHASES = ("load", "plan", "exchange", "aggregate", "rounds", "embed")


def command(tree: Path, folder: Path, *settings: str) -> dict[str, Any]:
    """Run one command of a checkout; return seconds and memory. Shows its output if it fails."""
    supported = [
        setting
        for setting in settings
        if setting != PUBLISHED or (tree / "conf/experiment/retexo.yaml").exists()
    ]
    return common.run_main(*supported, tree=tree, cwd=folder)


def measure(tree: Path, folder: Path, settings: list[str]) -> dict[str, float]:
    """Return seconds of the command and its phases, and MB (1e6) sent and held."""
    with tempfile.TemporaryDirectory(dir=folder) as run_dir:
        usage = command(tree, folder, *settings, "app=train", f"hydra.run.dir={run_dir}")
        summary = json.loads((Path(run_dir) / "summary.json").read_text(encoding="utf-8"))
    phases, train = summary["seconds"]["phase"], summary["seconds"]["train"]
    return {
        "command": usage["seconds"],
        "start and end": usage["seconds"] - train,
        "training": train,
        **{name: phases[name] for name in PHASES},
        "CPU": usage["cpu"],
        "number of rounds": sum(summary["rounds"]),
        "MB sent": summary["bytes"]["total"] / 1e6,
        "MB of memory": usage["anonymous"] / 1e6,
        "test accuracy": summary["test"]["accuracy"],
    }


def compare(
    trees: dict[str, Path], settings: list[str], *, seeds: list[int], own: list[str]
) -> pd.DataFrame:
    """Print the median of each figure by checkout, and their ratio; one seed per repeat.

    Args:
        own: settings for this checkout only.
    """
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as temporary:
        for seed in seeds:
            overrides = [*settings, *PARTS, f"partition_dir=parts{seed}", f"seed={seed}"]
            for number, (name, tree) in enumerate(trees.items()):
                folder = Path(temporary) / str(
                    number
                )  # Hydra would read a name like HEAD~1 as more than a path
                folder.mkdir(exist_ok=True)
                if not (folder / f"parts{seed}").exists():
                    command(tree, folder, *overrides, "app=partition_data")
                figures[name].append(
                    measure(tree, folder, [*overrides, *(own if tree == common.ROOT else [])])
                )
    table = pd.DataFrame({name: pd.DataFrame(runs).median() for name, runs in figures.items()})
    first, second = trees
    return table.assign(ratio=table[second] / table[first])


def main() -> None:
    parser = common.parser(__doc__, repeats=3, pubmed=None, models=["gcn"], options=[])
    parser.add_argument("commit")
    parser.add_argument("--graphs", nargs="+", choices=["cora", "synthetic", "pubmed", "products"])
    parser.add_argument("--rounds", type=int, default=60, help="per layer")
    parser.add_argument("--converge", action="store_true")
    parser.add_argument("--both", nargs="*", default=[], help="further settings of both checkouts")
    options = parser.parse_args()
    public = common.graphs(options.pubmed)
    graphs = {**public, "synthetic": SYNTHETIC, "products": products(1)}
    graph_names = options.graphs or [*public, *([] if options.converge else ["synthetic"])]
    fixed = (
        [] if options.converge else [PUBLISHED, "stopping=none", f"num_rounds=[{options.rounds}]"]
    )
    fixed += options.both
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        git = ["git", "-C", str(common.ROOT)]
        subprocess.run(
            [*git, "worktree", "add", "--quiet", "--detach", str(other), options.commit], check=True
        )
        info = (
            other / "retexo-0.dist-info"
        )  # older commits ask for the version of what is installed
        info.mkdir()
        (info / "METADATA").write_text("Name: retexo\nVersion: 0\n", encoding="utf-8")
        try:
            print(
                f"{common.machine()}; load {os.getloadavg()[0]:.1f}; medians of {options.repeats};"
            )
            print("both", *options.both, "this checkout", *options.options)
            trees = {options.commit: other, "this checkout": common.ROOT}
            for graph in graph_names:
                for model in options.models:
                    settings = [
                        f"--config-name=node_classification_{model}",
                        *graphs[graph],
                        *fixed,
                    ]
                    fresh = options.converge and graph != "products"
                    seeds = [repeat * fresh for repeat in range(options.repeats)]
                    table = compare(trees, settings, seeds=seeds, own=options.options)
                    print(f"\n{graph}, {model}\n{table.round(2).to_string()}", flush=True)
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(other)], check=True)


if __name__ == "__main__":
    main()
