"""Seconds and bytes of this checkout beside those of another commit, in turn: is anything slower than it was?

    python benchmarks/regress.py COMMIT [--repeats 3]

The other commit is checked out in a temporary worktree and runs in the same environment. Each repeat runs the command
of both, one after the other, on Cora and on a synthetic graph of 20,000 nodes and 200,000 edges: `+experiment=retexo`,
4 random parts, 4 workers, 60 rounds per layer without stopping; partitions are made before. What is printed are
medians, and ratios of these: below 1 this checkout is faster.
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
RUN = ["num_partitions=4", "partition_method=random", "stopping=none", "num_rounds=[60]"]


def command(tree: Path, folder: Path, app: str, *settings: str) -> float:
    """Seconds of one command of a tree; what it says is shown where it fails."""
    program = [sys.executable, str(tree / "main.py"), "--config-name=node_classification_gcn", f"app={app}"]
    if (tree / "conf/experiment/retexo.yaml").exists():  # before that it was what one had without asking
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
            "MB": summary["bytes"]["total"] / 1e6}  # fmt: skip


def compare(trees: dict[str, Path], graph: list[str], repeats: int) -> pd.DataFrame:
    """The median of each figure, by tree, and their ratio."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as made:
        folders = {name: Path(made) / name for name in trees}
        for name, tree in trees.items():
            folders[name].mkdir()
            command(tree, folders[name], "partition_data", *graph, *RUN, "partition_dir=parts")
        for _ in range(repeats):
            for name, tree in trees.items():
                found[name].append(measure(tree, folders[name], [*graph, *RUN, "partition_dir=parts"]))
    table = pd.DataFrame({name: pd.DataFrame(runs).median() for name, runs in found.items()})
    first, second = trees
    return table.assign(ratio=table[second] / table[first])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--repeats", type=int, default=3)

    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        git = ["git", "-C", str(common.ROOT)]
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(other), arguments.commit], check=True)
        try:
            print(f"{common.machine()}; load {os.getloadavg()[0]:.1f}; medians of {arguments.repeats}")
            for graph, settings in GRAPHS.items():
                trees = {arguments.commit: other, "this checkout": common.ROOT}
                print(f"\n{graph}\n{compare(trees, settings, arguments.repeats).round(2).to_string()}", flush=True)
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(other)], check=True)


if __name__ == "__main__":
    main()
