"""The cost model's seconds beside those of runs of the shape of ogbn-products (benchmarks/scale.py), in turn.

    python benchmarks/cost_model.py [--shares 1] [--parts 4] [--models gcn] [--rounds 30] [--repeats 3] [--folder DIR]
                                    [--options SETTINGS] [--keep FILE.json]

The constants are measured before, between and after the runs, because a machine is not always as fast. "estimated" is
what the mean of the constants gives, "measured" the mean over the runs, with the least and the most of each.
+experiment=retexo, so many rounds a layer. The whole graph needs 8 GiB of disk; a run and the constants take 2 minutes.
"""

import json
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path

import common
import scale
from scale import Point

sys.path.append(str(common.ROOT / "scripts"))
import estimate

from retexo.estimate.cost_model import seconds
from retexo.estimate.machine_costs import mean_of, unit_costs
from retexo.estimate.random_graph import Case
from retexo.estimate.timing import UnitCosts

GIVEN = {
    "cores": float(len(os.sched_getaffinity(0))),
    "bandwidth": math.inf,
    "latency": 1e-4,
    "zeros": 0.5,
}
"""What no run says of itself, of workers on this machine."""


def show(
    point: Point, case: Case, runs: list[dict[str, float]], costs: list[UnitCosts], mean: UnitCosts
) -> None:
    found, one_each = seconds(case, mean), [seconds(case, each) for each in costs]
    print(f"{point.model}, {case.nodes:,} nodes, {case.edges:,} edges, rounds {case.rounds}")
    print(f"{'':<12} {'estimated':>22} {'measured':>22} {'ratio':>6}")
    for phase in (*runs[0], "in all"):
        made, seen = ([total(each, phase) for each in all_of_it] for all_of_it in (one_each, runs))
        value, taken = total(found, phase), statistics.fmean(seen)
        print(
            f"{phase:<12} {shown(value, made):>22} {shown(taken, seen):>22} {value / taken:>6.2f}"
        )


def total(phases: dict[str, float], phase: str) -> float:
    return sum(phases.values()) if phase == "in all" else phases[phase]


def shown(value: float, spread: list[float]) -> str:
    return f"{value:.1f} [{min(spread):.1f}, {max(spread):.1f}]"


def main() -> None:
    parser = common.parser(__doc__, models=["gcn"], repeats=3, options=[])
    parser.add_argument(
        "--shares", nargs="+", type=int, default=[1], help="one of so many of the graph"
    )
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=30, help="per layer")
    parser.add_argument("--folder", type=Path, help="where partitions are kept and found again")
    parser.add_argument(
        "--keep", type=Path, help="JSON of the mean constants, for scripts/estimate.py --constants"
    )
    arguments = parser.parse_args()
    points = [
        Point(share=share, parts=arguments.parts, model=model, rounds=arguments.rounds)
        for share in arguments.shares
        for model in arguments.models
    ]
    runs: dict[Point, list[dict[str, float]]] = {point: [] for point in points}
    cases: dict[Point, Case] = {}
    print(f"{common.machine()}; load average {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        costs = [unit_costs(None)]
        for _ in range(arguments.repeats):
            for point in points:
                _, run_dir = scale.train(point, folder, *arguments.options)
                summary, cases[point] = estimate.read_run(run_dir, GIVEN)
                runs[point].append(summary["seconds"]["phase"])
            costs.append(unit_costs(None))
    mean = mean_of(costs)
    if arguments.keep:
        arguments.keep.write_text(json.dumps(mean, indent=1), encoding="utf-8")
    for point, found in runs.items():
        show(point, cases[point], found, costs, mean)


if __name__ == "__main__":
    main()
