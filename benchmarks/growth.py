"""Growth of bytes, memory and work with graph size and number of partitions.

    python benchmarks/growth.py [--nodes 100000] [--parts 1 2 4 8 16 64] [--weak 20000]
        [--results benchmarks/results/growth.csv] [--figure docs/img/growth.svg] [--check 4 16]

Synthetic graphs (10 edges per node, 128 features, 8 classes, homophily 0.9; split 0.08 / 0.02 /
0.90), GCN. All figures are predicted as by `app=plan`, for 30 rounds per layer: MB of the published
scheme (plain) and of the defaults; MB that one worker sends on average, and private memory and
in-edges of the largest worker with the defaults. A worker's in-edges are what it aggregates once
per layer; with P parts its rounds have 1/P of the training nodes. `--weak N` adds graphs of N nodes
per part. A finished case is a line of the csv file; it is not repeated.

`--check` trains random parts of the first graph in these numbers and prints what was predicted for
its rounds beside what summary.json counts.
"""

import tempfile
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import NamedTuple

import common
import pandas as pd

from retexo.plan.memory import BASE, worker_memory
from retexo.plan.traffic import estimate_traffic, find_architecture
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

GRAPH = (
    "dataset_name=synthetic",
    "synthetic.features=128",
    "synthetic.classes=8",
    "synthetic.homophily=0.9",
    "seed=0",
)
ROUNDS = 30
ROWS = ("features", "embeddings", "predictions")
DRAWN = {
    "all": "MB sent by all workers",
    "worker": "MB sent per worker",
    "memory": f"MiB, largest worker ({BASE >> 20} without data)",
    "edges": "in-edges, largest worker",
}


class Case(NamedTuple):
    nodes: int
    parts: int
    method: str
    weak: bool = False

    def settings(self, folder: Path, *overrides: str) -> Settings:
        graph = (
            f"synthetic.nodes={self.nodes}",
            f"synthetic.edges={5 * self.nodes}",
            f"num_partitions={self.parts}",
            f"partition_method={self.method}",
            f"partition_dir={folder}",
        )
        return compose([*GRAPH, *graph, *overrides])


Figures = dict[str, float]


def growth(case: Case, folder: Path) -> Figures:
    """Return the figures of one graph and number of partitions; bytes in MB."""
    settings = case.settings(folder)
    meta = common.partition(settings)
    directory, partitions = common.read_partitions(settings)
    published = case.settings(folder, "+experiment=retexo", "exchange=plain")
    plain = estimate_traffic(published, directory, partitions)
    default = estimate_traffic(settings, directory, partitions)
    architecture = find_architecture(settings, directory, partitions)
    num_train = sum(int(part.train_mask.sum()) for part in partitions)
    memory = [worker_memory(part, architecture, settings, num_train) for part in partitions]
    rounds = [ROUNDS] * 2
    volumes = {
        "rows, plain": plain.total(rounds, ROWS),
        "all, plain": plain.total(rounds),
        "rows": default.total(rounds, ROWS),
        "gradients": default.total(rounds, ["gradients"]),
        "all": default.total(rounds),
        "worker": default.total(rounds) / case.parts,
        "centralized": common.centralized_bytes(settings, directory, partitions),
    }
    return {
        "cut": 100 * meta.cut_edges / meta.num_edges,
        "halo": sum(part.halo for part in meta.parts),
        "cover": common.count_cover_rows(partitions),
        **{name: num_bytes / 1e6 for name, num_bytes in volumes.items()},
        "memory": max(memory) / 2**20,
        "edges": max(len(part.edges.src) for part in partitions),
    }


def read(path: Path) -> dict[Case, Figures]:
    """The cases of the csv file, if there is one."""
    if not path.exists():
        return {}
    table = pd.read_csv(path).set_index(list(Case._fields))
    return {Case(*key): dict(table.loc[key]) for key in table.index}


def append(path: Path, case: Case, figures: Figures) -> None:
    row = pd.DataFrame([{**case._asdict(), **figures}])
    row.to_csv(path, mode="a", header=not path.exists(), index=False, float_format="%.6g")


def check(case: Case, folder: Path) -> None:
    """Train; print the predicted and the counted bytes by kind, and memory."""
    settings = case.settings(folder, f"num_rounds=[{ROUNDS}]")
    summary = common.train(settings, folder)
    directory, partitions = common.read_partitions(settings)
    estimate = estimate_traffic(settings, directory, partitions)
    counted = summary["bytes"]["by_kind"]
    print(f"\n{case}, rounds {summary['rounds']}")
    for kind in sorted({entry.kind for entry in estimate.entries}):
        entries = [entry for entry in estimate.entries if entry.kind == kind]
        exact = all(entry.exact for entry in entries)
        predicted = estimate.total(summary["rounds"], [kind])
        print(f"{kind:12}{predicted:14,}{counted[kind]:14,}  {'exact' if exact else 'at most'}")
        assert predicted == counted[kind] if exact else predicted >= counted[kind], kind


def draw(rows: dict[Case, Figures], path: Path) -> None:
    """Write an svg: bytes, memory and edges against the number of parts.

    Bytes of all and of the largest worker, memory and edges of that worker, for the largest graph
    of `--nodes` and for `--weak`.
    """
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "retexo", "svg.fonttype": "none", "font.size": 10}
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 2, figsize=(8, 6.4), sharex=True)
    lines: dict[Case, dict[int, Figures]] = defaultdict(dict)
    largest = max((case.nodes for case in rows if not case.weak), default=0)
    for case, row in rows.items():
        if case.weak:
            line = Case(case.nodes // case.parts, 0, case.method, weak=True)
        elif case.nodes == largest:
            line = case._replace(parts=0)
        else:
            continue
        lines[line][case.parts] = row
    for panel, (column, title) in zip(panels.flat, DRAWN.items(), strict=True):
        for line, by_parts in lines.items():
            points = {parts: row[column] for parts, row in sorted(by_parts.items()) if row[column]}
            panel.plot(
                list(points),
                list(points.values()),
                marker="s" if line.weak else "o",
                linestyle="--" if line.weak else "-",
                color="C0" if line.method == "random" else "C1",
                label=f"{line.nodes:,} nodes{' per part' * line.weak}, "
                f"{'METIS' if line.method == 'metis' else line.method} parts",
            )
        panel.set(xscale="log", title=title)
        if column == "memory":  # most of it is a worker without data
            panel.set_ylim(0, None)
        else:
            panel.set_yscale("log")
            panel.yaxis.set_major_formatter("{x:,.10g}")
        parts = sorted({count for by_parts in lines.values() for count in by_parts})
        panel.set_xticks(parts, [str(count) for count in parts])
        panel.xaxis.minorticks_off()
        panel.grid(alpha=0.3)
    for panel in panels[1]:
        panel.set_xlabel("parts (one worker each)")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="lower center", ncols=2)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[100_000])
    parser.add_argument("--weak", type=int, help="also graphs of this many nodes per part")
    parser.add_argument("--parts", type=int, nargs="*", default=[1, 2, 4, 8, 16, 64])
    parser.add_argument("--weak-parts", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--methods", nargs="*", default=["random", "metis"])
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/growth.csv"))
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--check", type=int, nargs="*", default=[], help="numbers of parts")
    arguments = parser.parse_args()
    print(common.machine())
    cases = [
        Case(*combination)
        for combination in product(arguments.nodes, arguments.parts, arguments.methods)
    ]
    if arguments.weak:
        cases += [
            Case(arguments.weak * parts, parts, method, weak=True)
            for parts, method in product(arguments.weak_parts, arguments.methods)
        ]
    kept = read(arguments.results)
    for case in sorted(set(cases) - set(kept), key=lambda case: (case.parts, case)):
        with tempfile.TemporaryDirectory() as folder:
            kept[case] = growth(case, Path(folder))
        append(arguments.results, case, kept[case])
    rows = {case: kept[case] for case in cases}
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index = pd.MultiIndex.from_tuples(rows, names=Case._fields)
    print(table.to_string(float_format="{:,.2f}".format))
    if arguments.figure:
        draw(rows, arguments.figure)
    for parts in arguments.check:
        with tempfile.TemporaryDirectory() as folder:
            check(Case(arguments.nodes[0], parts, "random"), Path(folder))


if __name__ == "__main__":
    main()
