#!/usr/bin/env python3
"""Bytes and memory of training on a graph of which only the sizes are known.

    python scripts/estimate.py --nodes N --edges E --features F --classes C [--workers W] [...]
    python scripts/estimate.py --one-node-a-client dataset_name=cora [--offline 0 0.3]

The formulas are in retexo/plan/random_graph.py. They know the published algorithm,
+experiment=retexo, without compression. "network, at least" is the time in which a node's link
carries the node's own bytes, at --bandwidth; nothing else is counted. --one-node-a-client:
docs/one-node-a-client.md.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import one_node_a_client

from retexo.plan.memory import peak_memory
from retexo.plan.random_graph import Case, count_sent_bytes, layer_work


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
    "nodes": (number(int, 1), None, "number of nodes"),
    "edges": (number(int, 0), None, "number of edges, each direction counted"),
    "features": (number(int, 1), None, "features of a node"),
    "classes": (number(int, 2), None, "number of classes"),
    "hidden": (number(int, 1), 256, "width of an embedding"),
    "layers": (number(int, 1), 2, "number of layers"),
    "workers": (number(int, 1), 4, "number of workers, one a partition"),
    "train": (number(float, 0, 1), 0.08, "share of the nodes for training"),
    "val": (number(float, 0, 1), 0.02, "share of the nodes for validation"),
    "test": (number(float, 0, 1), 0.9, "share of the nodes for the test"),
    "cut": (number(float, 0, 1), None, "share of the edges between partitions; random: 1 - 1/W"),
    "zeros": (number(float, 0, 1), 0.5, "share of zeros in an embedding"),
    "power-law": (number(float, 0), 0.0, "exponent of the degrees, above 2; 0: all alike"),
}


def read_case(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Case:
    given = {name: getattr(options, name) for name in (each.replace("-", "_") for each in SIZES)}
    for name in ("nodes", "edges", "features", "classes"):
        if given[name] is None:
            parser.error(f"--{name}: is needed")
    if given["workers"] % options.per_node:
        parser.error(
            f"--per-node {options.per_node}: --workers {given['workers']} is no multiple of it"
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
    return Case(**given, model=options.model, rounds=tuple(rounds))


def network_seconds(case: Case, per_node: int, bandwidth: float) -> float:
    """The least time to send one node's bytes to the other nodes; bandwidth in Gbit/s."""
    if case.workers == per_node:
        return 0.0
    share_leaving = (case.workers - per_node) / (case.workers - 1)
    node_bytes = sum(count_sent_bytes(case).values()) * per_node / case.workers * share_leaving
    return 8 * node_bytes / (bandwidth * 1e9)


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
        "--rounds", type=number(int, 0), nargs="+", default=[100], help="one, or one a layer"
    )
    parser.add_argument(
        "--per-node", type=number(int, 1), default=1, help="workers of a node (default 1)"
    )
    parser.add_argument(
        "--bandwidth",
        type=number(float, 1e-9),
        default=1.0,
        help="Gbit/s of a node's link (default 1)",
    )
    one_node_a_client.add_arguments(parser)
    options = parser.parse_args()
    if options.one_node_a_client is not None:
        one_node_a_client.run(parser, options)
        return
    case = read_case(parser, options)
    kinds = count_sent_bytes(case)
    sizes = {f"bytes, {kind}": count for kind, count in kinds.items()}
    sizes["bytes, in all"] = sum(kinds.values())
    works = [layer_work(case, layer) for layer in range(case.layers)]
    sizes["memory per worker, bytes"] = peak_memory(works, case.stages)
    for name, value in sizes.items():
        print(f"{name:<26} {value:>28,.0f}")
    seconds = network_seconds(case, options.per_node, options.bandwidth)
    print(f"{'network, at least, seconds':<26} {seconds:>28,.1f}")


if __name__ == "__main__":
    main()
