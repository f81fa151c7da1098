"""Link prediction: accuracy, bytes, and memory of ranking.

Layer-by-layer and end-to-end training beside untrained baselines.

    OMP_NUM_THREADS=1 python benchmarks/links.py --data cora --seeds 5 --out /tmp/links
    OMP_NUM_THREADS=1 python benchmarks/links.py --data tastes --model sage --seeds 5
    python benchmarks/links.py --ranking 1000000

A seed draws split, partitions and parameters. Exact methods do not depend on the number of
partitions (tests/distributed/test_link_prediction.py) and are trained with one; compressed
methods with --parts. Runs that exist in --out are not repeated.
"""

import argparse
import hashlib
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

import common

ROOT = Path(__file__).resolve().parents[1]
METHODS = {
    "layer by layer, exact": ["+experiment=exact"],
    "layer by layer": [],
    "layer by layer, network alone": ["task.spectral=0"],
    "layer by layer, pairs between parts left out": ["task.cut_edges=skip"],
    "layer by layer, low rank": ["gradient.compression=powersgd"],
    "end to end": [
        "trainer=full_graph",
        "learning_rate=0.01",
        "dropout=0.4",
        "num_rounds=2000",
        "stopping.patience=80",
    ],
}
GRAPHS = {
    "blocks": [
        "dataset_name=synthetic",
        "synthetic.nodes=2000",
        "synthetic.edges=8000",
        "synthetic.classes=20",
        "synthetic.homophily=0.8",
    ],
    "tastes": [
        "task.relation=user__likes__item",
        "split.by=source",
        "split.edges=[0.85,0.05,0.1]",
        "features=[given,positional]",
    ],
    "hubs": ["features=[degree,positional]"],
    "hubs-both-ways": ["features=[degree,positional]", "symmetrize=true"],
}
"""Generated graphs by --data, with their settings: communities with informative features (a
stochastic block model), users and items by latent factors and popularity, and a power law with
triangles (Holme and Kim, 2002), with each edge from the older to the younger node, or in both
directions."""
MEASURES = ("mrr", "hits@20", "auc")


def command(*arguments: str, threads: int) -> None:
    options = (
        ["device=cpu", f"cluster.threads={threads}"]
        if "app=partition_data" not in arguments
        else []
    )
    line = [sys.executable, str(ROOT / "main.py"), *arguments, *options]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr.strip().splitlines()[-1]}")


def draw(name: str, folder: Path, seed: int) -> list[str]:
    """Write a generated graph of GRAPHS to files; return the settings that name it."""
    if GRAPHS[name][0].startswith("dataset_name"):
        return GRAPHS[name]
    import numpy as np

    rng, path = np.random.default_rng(seed), folder / f"{name}{seed}"
    for part in ("nodes", "edges") if name == "tastes" else (".",):
        (path / part).mkdir(parents=True, exist_ok=True)
    if "hubs" in name:
        import networkx

        edges = np.array(networkx.powerlaw_cluster_graph(2000, 4, 0.3, seed=seed).edges)
        path = path / "edges.csv"
    else:
        users, items = rng.standard_normal((600, 8)), rng.standard_normal((1200, 8))
        liking = (
            users @ items.T + 1.5 * rng.standard_normal(1200) + rng.gumbel(size=(600, 1200))
        )  # of a softmax
        edges = np.stack(
            [np.repeat(np.arange(600), 25), np.argsort(-liking)[:, :25].ravel()], axis=1
        )
        for kind, count in (("user", 600), ("item", 1200)):
            np.savetxt(path / f"nodes/{kind}.csv", np.arange(count), "%d", header="id", comments="")
    table = path if "hubs" in name else path / "edges/user__likes__item.csv"
    np.savetxt(table, edges, "%d", delimiter=",", header="src,dst", comments="")
    return ["dataset_name=file", f"dataset_file={path}", *GRAPHS[name]]


def run(args: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    """Return the summary of one run; run it first if it does not exist."""
    parts = 1 if "exact" in name or "end" in name else args.parts
    graph = Path(args.file).stem if args.file else args.data
    # with the split
    parted = [setting for setting in METHODS[name] if setting.startswith("task.spectral")]
    of_graph, of_run = (
        hashlib.sha256(repr([args.file, *args.settings, *more]).encode()).hexdigest()[:8]
        for more in (parted, [args.parts, *METHODS[name]])
    )
    folder = (
        args.out / f"{graph}-{args.model}-{name.replace(' ', '_').replace(',', '')}-{seed}-{of_run}"
    )
    if (
        not (folder / "summary.json").is_file()
        or json.loads((folder / "summary.json").read_text(encoding="utf-8"))["status"] != "done"
    ):
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped
        data = [
            f"seed={seed}",
            f"partition_dir={args.out / f'parts-{graph}-{seed}-{of_graph}'}",
            *parted,
        ]
        data += (
            draw(args.data, args.out, seed)
            if args.data in GRAPHS
            else [f"dataset_name={args.data}"]
        )
        data += args.settings
        if args.file:
            data += [f"dataset_file={args.file}"]
        command(
            "app=partition_data",
            "task=link_prediction",
            *data,
            f"num_partitions={parts}",
            threads=1,
        )
        model = ["--config-name", f"link_prediction_{args.model}", *data, f"num_partitions={parts}"]
        command(
            *model,
            "app=train",
            *METHODS[name],
            f"hydra.run.dir={folder}",
            "checkpoint=none",
            threads=args.threads,
        )
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def compare(args: argparse.Namespace) -> None:
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in range(args.seeds):
        for name in args.methods or METHODS:
            summary = run(args, name, seed)
            measured = {"bytes": summary["bytes"]["total"], "rounds": summary["rounds"]}
            results.setdefault(name, []).append({**summary["test"], **measured})
            print(f"seed {seed} {name}: {results[name][-1]}", flush=True)
            if name == next(iter(args.methods or METHODS)):
                for baseline, scores in summary["baselines"].items():
                    results.setdefault(baseline, []).append(scores)
    print(f"\n{args.data}, {args.model}, {args.seeds} seeds: mean and 95 % interval\n")
    print(f"| | {' | '.join(MEASURES)} | rounds | bytes |\n|---|{'---|' * len(MEASURES)}---|---|")
    for name, runs in results.items():
        cells = [common.interval([result[measure] for result in runs]) for measure in MEASURES]
        rounds = (
            f"{mean(sum(result['rounds']) for result in runs):.0f}" if "rounds" in runs[0] else ""
        )
        sent = f"{mean(result['bytes'] for result in runs):,.0f}" if runs[0].get("bytes") else ""
        print(f"| {name} | {' | '.join(cells)} | {rounds} | {sent} |")
    if "end to end" in results:
        print()
        for name in [method for method in METHODS if method in results and method != "end to end"]:
            pairs = list(zip(results[name], results["end to end"], strict=True))
            less = [
                f"{measure}"
                f" {common.interval([one[measure] - other[measure] for one, other in pairs])}"
                for measure in MEASURES
            ]
            print(f"{name}, less end to end, seed by seed: {', '.join(less)}")


def rank(num_nodes: int, threads: int) -> None:
    """Measure seconds and memory of ranking among many nodes with ten neighbours, one worker."""
    import torch

    sys.path[:0] = [str(ROOT)]
    from types import SimpleNamespace

    from retexo.comm.thread_transport import run_threads
    from retexo.models.scorer import Scorer
    from retexo.models.stage import OutputHeads
    from retexo.tasks.embedded_nodes import EmbeddedNodes
    from retexo.tasks.ranking import rank_pairs

    torch.set_num_threads(threads)
    rows, pairs = torch.randn(num_nodes, 64), torch.randint(num_nodes, (2048, 2))
    none, near = torch.zeros(0, dtype=torch.int64), torch.randint(num_nodes, (10 * num_nodes,))
    neighbours = torch.stack(
        (torch.arange(num_nodes).repeat_interleave(10), near, torch.ones_like(near)), dim=1
    )
    partition = SimpleNamespace(
        first_id=0,
        num_inner=num_nodes,
        edges=SimpleNamespace(halo_owner=none, halo_index=none, src=none, dst=none),
        links={
            "val": pairs[:0],
            "test": pairs,
            "train": pairs[:0],
            "candidates": pairs[:0],
            "neighbours": neighbours,
        },
    )
    task, exchange = SimpleNamespace(ranked=len(pairs)), SimpleNamespace(rounded="")
    settings = SimpleNamespace(seed=0, task=task, exchange=exchange)
    stage: Any = SimpleNamespace(scorer=Scorer("dot", 64))
    stage.cpu = lambda: stage
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def worker(comm: Any) -> Any:
        info = SimpleNamespace(
            id_bounds=torch.tensor([0, num_nodes]), num_val=0, num_test=len(pairs), num_candidates=0
        )
        context: Any = SimpleNamespace(
            comm=comm,
            partition=partition,
            links=partition.links,
            settings=settings,
            graph_info=info,
        )
        return rank_pairs(
            EmbeddedNodes.of(context, [stage], [rows], [OutputHeads((0,), paths=0.5)]),
            "test",
        )

    start = time.perf_counter()
    run_threads(1, worker)
    seconds, after = (
        time.perf_counter() - start,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )
    print(
        f"{len(pairs):,} pairs among {num_nodes:,} nodes, 64 wide: {seconds:.1f} s,"
        f" {after - before:.0f} MiB beside the {rows.numel() * 4 / 2**20:.0f} MiB of embeddings"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="cora")
    parser.add_argument("--file", help="data file for --data file")
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--methods", nargs="+", choices=METHODS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--settings", nargs="*", default=[], help="further settings of all runs")
    parser.add_argument("--out", type=Path, default=Path("outputs/links"))
    parser.add_argument("--ranking", type=int, help="only measure ranking among this many nodes")
    args = parser.parse_args()
    if args.ranking:
        rank(args.ranking, args.threads)
    else:
        compare(args)


if __name__ == "__main__":
    main()
