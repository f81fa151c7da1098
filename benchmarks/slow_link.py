"""Training seconds on slow links: the published scheme, exact rows and gradients, and the defaults.

    python benchmarks/slow_link.py [--pubmed PATH.npz] [--rates 100mbit 10mbit] [--repeats 3]

Nodes are network namespaces of this machine (tests/namespaces.py; needs root and iproute2)
limited to the given rate. They share the machine's cores, so this shows the cost of a slow link,
not the gain of more machines. GCN, random partition, stopping at convergence. Methods alternate;
ratios are of medians. `lean` are the defaults; `lean, plain rows` differs from it in its rows
only.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import common
import pandas as pd

from retexo.settings.compose import compose

sys.path.insert(0, str(common.ROOT / "tests"))
import namespaces

METHODS = {
    "plain": ["+experiment=retexo", "exchange=plain"],
    "exact": ["+experiment=exact"],
    "lean, plain rows": ["exchange=plain"],
    "lean": [],
    "lan": ["network=lan"],
}
LIMIT = 3600
"""Time limit of a run in seconds."""


def run(
    nodes: list[namespaces.Node], arguments: list[str], per_node: int, folder: Path
) -> dict[str, Any]:
    """Train on all nodes.

    Return summary.json, with the bytes that left the nodes as `wire` and its directory as `place`.
    """
    place = Path(tempfile.mkdtemp(dir=folder))
    command = [
        sys.executable,
        str(common.ROOT / "main.py"),
        "--config-name",
        "node_classification_gcn",
        "app=train",
    ]
    command += [
        *arguments,
        f"parts_per_node={per_node}",
        f"distributed.master_addr={nodes[0].address}",
    ]
    before = sum(node.sent()[0] for node in nodes)
    processes = []
    for rank, node in enumerate(nodes):
        own = [f"node_rank={rank}", f"hydra.run.dir={place}/{rank}"]
        with (place / f"{rank}.log").open("w", encoding="utf-8") as log:
            processes.append(
                subprocess.Popen(
                    [*node.prefix, *command, *own], stdout=log, stderr=subprocess.STDOUT
                )
            )
    for rank, process in enumerate(processes):
        if process.wait(LIMIT) != 0:
            sys.exit((place / f"{rank}.log").read_text(encoding="utf-8"))
    summary: dict[str, Any] = json.loads((place / "0" / "summary.json").read_text(encoding="utf-8"))
    return {**summary, "wire": sum(node.sent()[0] for node in nodes) - before, "place": place / "0"}


def measure(
    data: list[str], rate: str, options: argparse.Namespace, folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Return summaries by method; methods alternate."""
    summaries_by_method: dict[str, list[dict[str, Any]]] = {
        method: [] for method in options.methods
    }
    with namespaces.network(options.nodes, rate) as nodes:
        for _ in range(options.repeats):
            for method in options.methods:
                summaries_by_method[method].append(
                    run(
                        nodes,
                        [*data, *METHODS[method]],
                        options.parts_per_node,
                        folder,
                    )
                )
    return summaries_by_method


def table(summaries_by_method: dict[str, list[dict[str, Any]]]) -> pd.DataFrame:
    """Print medians by method, and what the last run sent."""
    rows = {}
    for method, summaries in summaries_by_method.items():
        seconds = pd.DataFrame(
            [{**summary["seconds"], **summary["seconds"]["phase"]} for summary in summaries]
        )
        last = summaries[-1]
        rows[method] = {
            **{f"{name}, s": seconds[name].median() for name in ("train", "exchange", "rounds")},
            "from, to": f"{seconds['train'].min():.1f} to {seconds['train'].max():.1f}",
            "MB sent": last["bytes"]["total"] / 1e6,
            "MB crossed": last["wire"] / 1e6,
            "rounds": "+".join(map(str, last["rounds"])),
            "test": last["test"]["accuracy"],
        }
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.insert(1, "ratio", frame["train, s"] / frame["train, s"].iloc[0])
    return frame.round(4)


def main() -> None:
    parser = common.parser(__doc__, repeats=3, pubmed=None)
    parser.add_argument("--rates", nargs="+", default=["100mbit", "10mbit"])
    parser.add_argument(
        "--methods",
        nargs="+",
        default=list(METHODS),
        choices=METHODS,
        help="methods; others are compared with the first",
    )
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--parts-per-node", type=int, default=2)
    options = parser.parse_args()
    graph, data = list(common.graphs(options.pubmed).items())[-1]
    parts = options.nodes * options.parts_per_node
    print(
        f"{common.machine()}, Python {platform.python_version()}, Linux {platform.release()};"
        f" {options.nodes} nodes, {parts} random parts, {options.repeats} repeats"
    )
    with tempfile.TemporaryDirectory() as folder:
        data = [*data, f"num_partitions={parts}", f"partition_dir={folder}/parts"]
        common.partition(compose(data))
        for rate in options.rates:
            print(
                graph,
                rate,
                table(measure(data, rate, options, Path(folder))).to_string(),
                sep="\n",
                flush=True,
            )


if __name__ == "__main__":
    main()
