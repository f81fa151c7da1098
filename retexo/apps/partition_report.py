"""Prints what a partition directory holds: counts by partition, node type and relation."""

from pathlib import Path
from typing import Any

from partitioning.directory.meta import Meta
from partitioning.graph.schema import describe
from retexo.apps.summary import ONLY_IN_SUMMARY, print_columns
from retexo.scores import title_of

COLUMNS = ("nodes", "edges", "halo", "train", "val", "test")


def print_report(meta: Meta, directory: Path) -> None:
    """Print sizes, split, cut edges and partitions of a directory."""
    share = meta.cut_edges / meta.num_edges if meta.num_edges else 0.0
    print(
        f"{directory}: {meta.num_nodes:,} nodes, {meta.num_edges:,} directed edges,"
        f" {meta.num_features} features, {_describe_labels(meta)};"
        f" {meta.cut_edges:,} edges cut ({share:.1%})"
    )
    print(f"halo rows {sum(part.halo for part in meta.parts):,}")
    counts = [[getattr(part, column) for column in COLUMNS] for part in meta.parts]
    rows = [[part, *part_counts] for part, part_counts in enumerate(counts)]
    print_columns([["part", *COLUMNS], *rows], width=10)
    if not meta.is_plain:
        _print_types(meta)
    if meta.links:
        _print_links(meta.links)
    for line in describe(meta.features):
        print(line)
    for note in meta.notes:
        print(f"note: {note}")
    for entry in meta.history:
        print(f"updated {describe_entry(entry)}")


def describe_entry(entry: dict[str, Any]) -> str:
    """Describe an entry of a directory's history in one line."""
    if "moved" in entry:
        return f"{entry['time']}: {entry['moved']:,} nodes moved to another part"
    counts = [
        f"{count:,} {kind} {what}"
        for what in ("nodes", "edges")
        for kind, count in entry.get(what, {}).items()
        if count
    ]
    return f"{entry.get('time')}: {', '.join(counts) or 'nothing'}"


def _describe_labels(meta: Meta) -> str:
    if meta.task == "regression":
        names = f": {', '.join(meta.class_names)}" if meta.class_names else ""
        return f"{meta.num_classes} target{'s' * (meta.num_classes > 1)}{names} (regression)"
    return f"{meta.num_classes} classes ({meta.task})"


def _print_types(meta: Meta) -> None:
    """Print the counts of each node type and relation."""
    print(f"target: {meta.target}")
    nodes = [
        [name, sum(counts["nodes"]), counts["features"], sum(counts["halo"])]
        for name, counts in meta.types.items()
    ]
    edges = [[name, sum(counts["edges"]), counts["cut"]] for name, counts in meta.relations.items()]
    print_columns([["type", "nodes", "features", "halo"], *nodes])
    print_columns([["relation", "edges", "cut"], *edges])


def _print_links(links: dict[str, Any]) -> None:
    pairs = ", ".join(f"{count:,} {part}" for part, count in links["pairs"].items())
    print(
        f"pairs: {pairs}; {links['edges_removed']:,} edges of held-out pairs left the graph; "
        f"{links['cut_rows']:,} of {links['rows']['train']:,} training rows between two parts"
    )
    if links["spectral"]:
        print(
            f"spectral embedding: {links['spectral']} columns, adjacency by degrees to the power"
            f" -{links['spectral_power']}, rows by degrees to the power"
            f" {links['spectral_degree_power']}, products by eigenvalues to the power"
            f" {links['spectral_eigenvalue_power']}, of {title_of(links['spectral_metric'])}"
            f" {links['spectral_score']:.4f} on validation pairs"
        )
    if links["baselines"] and "common neighbours" not in links["baselines"]:
        print(
            "common neighbours    0 for all pairs, as Adamic-Adar: no path of two edges joins one"
        )
    for name, scores in links["baselines"].items():
        values = ", ".join(
            f"{measure} {value:.4f}"
            for measure, value in scores.items()
            if measure not in ONLY_IN_SUMMARY
        )
        print(f"{name:<20} {values}")
