"""Seconds and bytes of this checkout beside those of another commit, in turn: is anything slower than it was?

    python benchmarks/regress.py COMMIT [--repeats 3]
    python benchmarks/regress.py COMMIT --converge [--pubmed FILE] [--repeats 5]

The other commit is checked out in a temporary worktree and runs in the same environment. Each repeat runs the command
of both, one after the other, on Cora and on a synthetic graph of 20,000 nodes and 200,000 edges: `+experiment=retexo`,
4 random parts, 4 workers, 60 rounds per layer without stopping; partitions are made before. What is printed are
medians, and ratios of these: below 1 this checkout is faster. With --converge each trains GCN by its own
defaults until it stops, on Cora and PubMed, with another seed of split, parts and training in each repeat.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common
import pandas as pd

GRAPHS = {
    "cora": common.CORA,
    "synthetic": ["dataset_name=synthetic", "synthetic.nodes=20000", "synthetic.edges=200000", "split=fraction"],
}
PARTS = ["num_partitions=4", "partition_method=random"]
ROUNDS = ["stopping=none", "num_rounds=[60]"]


def command(tree: Path, folder: Path, app: str, *settings: str) -> float:
    """Seconds of one command of a tree; what it says is shown where it fails."""
    program = [sys.executable, str(tree / "main.py"), "--config-name=node_classification_gcn", f"app={app}"]
    if ROUNDS[0] in settings and (tree / "conf/experiment/retexo.yaml").exists():  # before, it was the default
        program.append("+experiment=retexo")
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    start = time.perf_counter()
    done = subprocess.run(
        [*program, *settings], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{tree}: app={app}\n{done.stdout}{done.stderr}")
    return time.perf_counter() - start


def measure(tree: Path, folder: Path, settings: list[str]) -> dict[str, float]:
    """Seconds of the whole command and of its phases, and bytes in MB (1e6)."""
    with tempfile.TemporaryDirectory(dir=folder) as run_dir:
        whole = command(tree, folder, "train", *settings, f"hydra.run.dir={run_dir}")
        summary = json.loads((Path(run_dir) / "summary.json").read_text())
    seconds = {name: summary["seconds"]["phase"][name] for name in ("load", "plan", "exchange", "rounds", "embed")}
    train = summary["seconds"]["train"]
    return {"command": whole, "start and end": whole - train, "training": train, **seconds,
            "number of rounds": sum(summary["rounds"]), "MB": summary["bytes"]["total"] / 1e6}  # fmt: skip


def compare(trees: dict[str, Path], graph: list[str], repeats: int, *, converge: bool) -> pd.DataFrame:
    """The median of each figure, by tree, and their ratio."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as made:
        for repeat in range(repeats):
            parts = f"parts{repeat * converge}"
            settings = [*graph, *PARTS, f"partition_dir={parts}", *([f"seed={repeat}"] if converge else ROUNDS)]
            for name, tree in trees.items():
                folder = Path(made) / name
                folder.mkdir(exist_ok=True)
                if not (folder / parts).exists():
                    command(tree, folder, "partition_data", *settings)
                found[name].append(measure(tree, folder, settings))
    table = pd.DataFrame({name: pd.DataFrame(runs).median() for name, runs in found.items()})
    first, second = trees
    return table.assign(ratio=table[second] / table[first])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--converge", action="store_true")
    parser.add_argument("--pubmed", type=Path, help="pubmed.npz; without it Cora alone")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        git = ["git", "-C", str(common.ROOT)]
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(other), arguments.commit], check=True)
        info = other / "retexo-0.dist-info"  # older commits ask for the version of what is installed
        info.mkdir()
        (info / "METADATA").write_text("Name: retexo\nVersion: 0\n")
        try:
            print(f"{common.machine()}; load {os.getloadavg()[0]:.1f}; medians of {arguments.repeats}")
            graphs = common.graphs(arguments.pubmed) if arguments.converge else GRAPHS
            trees = {arguments.commit: other, "this checkout": common.ROOT}
            for graph, settings in graphs.items():
                table = compare(trees, settings, arguments.repeats, converge=arguments.converge)
                print(f"\n{graph}\n{table.round(2).to_string()}", flush=True)
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(other)], check=True)


if __name__ == "__main__":
    main()
