#!/usr/bin/env python3
"""Bytes, operations, memory and seconds of training a graph that nobody has to have.

    python scripts/estimate.py --nodes N --edges E --features F --classes C [...] [--constants FILE.json]
    python scripts/estimate.py --check RUN_DIR [RUN_DIR ...] [--constants FILE.json]
    python scripts/estimate.py --one-node-a-client dataset_name=cora [--offline 0 0.3]

The formulas are in retexo/estimate/random_graph.py and cost_model.py; they know the published algorithm,
+experiment=retexo, with exact rows. Their constants are measured first, on this machine, which takes one to two
minutes; FILE.json keeps them. `--check` puts finished runs beside the model; seconds only mean something for runs of
this machine, with nothing else on it.
"""

import argparse
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import one_node_a_client

from partitioning.datasets.synthetic import POWER_LAW
from partitioning.directory.meta import Meta
from partitioning.errors import InputError
from retexo.estimate.cost_model import checksums, memory, operations, seconds
from retexo.estimate.machine_costs import unit_costs
from retexo.estimate.random_graph import Case, sent
from retexo.estimate.timing import UnitCosts


def estimate(case: Case, one: UnitCosts) -> dict[str, float]:
    """All that is printed, by its name."""
    flops = sum(
        rounds * (train + score) + embed
        for layer, rounds in enumerate(case.rounds)
        for train, score, embed in [operations(case, layer)]
    )
    kinds, phases, before = sent(case), seconds(case, one), checksums(case, one)
    return {
        **{f"bytes, {kind}": count for kind, count in kinds.items()},
        "bytes, in all": sum(kinds.values()),
        "floating-point operations": case.workers * flops,
        "memory per worker, bytes": memory(case),
        "seconds, checksums": before,
        **{f"seconds, {phase}": taken for phase, taken in phases.items()},
        "seconds, in all": before + sum(phases.values()),
        "seconds, of these network": sum(
            seconds(replace(case, disk=math.inf), dict.fromkeys(one, 0.0)).values()
        ),
    }


def read_run(run_dir: Path, given: dict[str, Any]) -> tuple[dict[str, Any], Case]:
    """A finished run's summary, and its sizes, the given ones but for its own.

    ValueError where it is no run that the model covers.
    """
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    settings = summary.get("settings", {})
    chosen = settings.get("model", {})
    model = chosen.get("name")
    if summary.get("status") != "done" or model not in ("gcn", "sage") or chosen.get("own_half"):
        raise ValueError(
            f"is {summary.get('status')}, of {model}; needs a run of gcn or sage with +experiment=retexo that is done"
        )
    if settings.get("batch_size") not in (None, "auto"):
        raise ValueError(
            f"has batch_size={settings['batch_size']}, of which there is no formula; needs null or auto"
        )
    workers = len(summary["bytes"]["by_peer"])
    names = (
        settings["dataset_name"],
        settings["partition_method"],
        settings["part_obj"],
        str(workers),
    )
    directory = Path(settings["partition_dir"]) / "-".join(names)
    meta = Meta.read(directory)
    if meta is None:
        raise ValueError(
            f"its partition directory {directory} has no meta.json; start in the folder where it ran"
        )
    own = {
        "nodes": meta.num_nodes,
        "edges": meta.num_edges,
        "features": meta.num_features,
        "classes": meta.num_classes,
        "hidden": settings["hidden_dim"],
        "layers": settings["num_layers"],
        "workers": workers,
        "per_node": settings["parts_per_node"] or workers,
        "disk": math.inf,
        "cut": meta.cut_edges / meta.num_edges,
        "power_law": POWER_LAW if meta.dataset == "synthetic" else 0.0,
        "batches": settings.get("batch_size") == "auto",
    }
    own |= {
        name: sum(getattr(part, name) for part in meta.parts) / meta.num_nodes
        for name in ("train", "val", "test")
    }
    return summary, Case(**{**given, **own}, model=model, rounds=tuple(summary["rounds"]))


def check(run_dir: Path, summary: dict[str, Any], case: Case, one: UnitCosts) -> None:
    """Print a finished run's figures beside those of its sizes."""
    found, sizes, phases = (
        estimate(case, one),
        summary["bytes"]["by_kind"],
        summary["seconds"]["phase"],
    )
    found["seconds, in all"] -= found["seconds, checksums"]  # no phase of a run
    seen = {f"bytes, {kind}": count for kind, count in sizes.items()}
    seen |= {"memory per worker, bytes": max(summary["peak_private_bytes"])}
    seen |= {f"seconds, {phase}": taken for phase, taken in phases.items()}
    seen |= {"bytes, in all": sum(sizes.values()), "seconds, in all": sum(phases.values())}
    print(
        f"{run_dir}: {case.nodes:,} nodes, {case.edges:,} edges, {case.model}, rounds {summary['rounds']}"
    )
    print(f"{'':<26} {'estimated':>20} {'measured':>20} {'ratio':>6}")
    for name, value in found.items():
        if name in seen:
            ratio = f"{value / seen[name]:.2f}" if seen[name] else ""
            print(f"{name:<26} {shown(name, value):>20} {shown(name, seen[name]):>20} {ratio:>6}")


def shown(name: str, value: float) -> str:
    if name.startswith("floating"):
        return f"{value:.2e}"
    return f"{value:,.1f}" if name.startswith("seconds") else f"{value:,.0f}"


def number(kind: type, low: float, high: float = math.inf) -> Callable[[str], Any]:
    """A type for argparse: a number from low to high."""

    def read(text: str) -> Any:
        try:
            value = kind(float(text)) if kind is int and float(text).is_integer() else kind(text)
        except (ValueError, OverflowError):
            value = None
        if value is None or not low <= value <= high:
            limits = f"from {low:g} on" if high == math.inf else f"from {low:g} to {high:g}"
            raise argparse.ArgumentTypeError(
                f"{text!r}: needs {'an integer' if kind is int else 'a number'} {limits}"
            )
        return value

    return read


SIZES: dict[str, tuple[Callable[[str], Any], Any, str]] = {
    "nodes": (number(int, 1), None, "N"),
    "edges": (number(int, 0), None, "E, each direction counted"),
    "features": (number(int, 1), None, "F of the first layer"),
    "classes": (number(int, 2), None, "C"),
    "hidden": (number(int, 1), 256, "width of an embedding"),
    "layers": (number(int, 1), 2, "L"),
    "workers": (number(int, 1), 4, "W"),
    "per-node": (number(int, 1), 1, "workers a node"),
    "cores": (
        number(float, 0.1),
        float(len(os.sched_getaffinity(0))),
        "cores a node, each as one of this machine",
    ),
    "bandwidth": (number(float, 1e-9), 1.0, "Gbit/s that leave a node"),
    "latency": (number(float, 0), 1e-4, "seconds a hop"),
    "disk": (number(float, 1e-9), 1.0, "GB/s that a node reads; inf for what is in memory already"),
    "train": (number(float, 0, 1), 0.08, "share of the nodes; likewise"),
    "val": (number(float, 0, 1), 0.02, ""),
    "test": (number(float, 0, 1), 0.9, ""),
    "cut": (number(float, 0, 1), None, "share of the edges between parts; of random parts 1 - 1/W"),
    "zeros": (number(float, 0, 1), 0.5, "share of an embedding"),
    "power-law": (
        number(float, 0),
        0.0,
        "exponent of the degrees, above 2; 0: all alike, which needs the most rows",
    ),
}


def sizes(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in (each.replace("-", "_") for each in SIZES)}


def read_case(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Case:
    given = sizes(options)
    for name in ("nodes", "edges", "features", "classes"):
        if given[name] is None:
            parser.error(f"--{name}: is needed")
    if given["workers"] % given["per_node"]:
        parser.error(
            f"--per-node {given['per_node']}: --workers {given['workers']} is no multiple of it"
        )
    if given["train"] + given["val"] + given["test"] > 1 + 1e-9:
        parser.error("--train, --val, --test: more than all nodes together")
    if 0 < given["power_law"] <= 2:
        parser.error(f"--power-law {given['power_law']:g}: needs more than 2, or 0")
    if given["cut"] is None:
        given["cut"] = 1 - 1 / given["workers"]
    rounds = options.rounds if len(options.rounds) > 1 else options.rounds * given["layers"]
    if len(rounds) != given["layers"]:
        parser.error(f"--rounds: {len(rounds)} of them for --layers {given['layers']}")
    return Case(
        **given, model=options.model, rounds=tuple(rounds), batches=options.batch_size == "auto"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (kind, default, meaning) in SIZES.items():
        parser.add_argument(
            f"--{name}", type=kind, default=default, help=f"{meaning} (default {default})"
        )
    parser.add_argument("--model", choices=("gcn", "sage"), default="gcn")
    parser.add_argument(
        "--batch-size",
        choices=("null", "auto"),
        default="null",
        help="as the setting (default null)",
    )
    parser.add_argument(
        "--rounds", type=number(int, 0), nargs="+", default=[100], help="one, or one a layer"
    )
    parser.add_argument(
        "--constants",
        type=Path,
        metavar="FILE.json",
        help="where constants are kept and found again",
    )
    parser.add_argument(
        "--check", type=Path, nargs="+", metavar="RUN_DIR", help="finished runs of this machine"
    )
    one_node_a_client.add_arguments(parser)
    options = parser.parse_args()
    if options.one_node_a_client is not None:
        one_node_a_client.run(parser, options)
        return
    runs = []
    for run_dir in options.check or ():
        try:
            runs.append((run_dir, *read_run(run_dir, sizes(options))))
        except OSError as error:
            parser.error(
                f"--check {error.filename}: {error.strerror}; name the directory of a run that is done"
            )
        except (ValueError, InputError) as error:
            parser.error(f"--check {run_dir}: {error}")
    case = None if options.check else read_case(parser, options)
    try:
        one = unit_costs(options.constants)
    except (OSError, ValueError) as error:
        parser.error(
            f"--constants {options.constants}: {error}; name another file, or delete it to measure anew"
        )
    try:
        if case is not None:
            for name, value in estimate(case, one).items():
                print(f"{name:<26} {shown(name, value):>28}")
        for run in runs:
            check(*run, one)
    except KeyError as missing:
        parser.error(
            f"--constants {options.constants}: has no {missing}; delete it to measure anew"
        )


if __name__ == "__main__":
    main()
