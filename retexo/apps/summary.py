"""Tables that apps print: rows of a name and a text, rows in columns, and the results of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partitioning.directory.read_directory import PartitionDirectory
from partitioning.graph.schema import describe
from partitioning.links.score_names import OF_LISTS
from retexo.results.formats import format_setting
from retexo.results.tables import MAX_CLASSES, parts_table, scores_by_part, scores_table

ONLY_IN_SUMMARY = {
    *("balanced_accuracy", "brier", "calibration_error", "positive_calibration_error"),
    *(name for name in OF_LISTS if name not in ("recall@20", "ndcg@20")),
}
"""Scores that the table leaves out unless they choose the best round."""


def print_rows(rows: Mapping[str, Any]) -> None:
    """Print one line per row."""
    print_columns([(name, str(value)) for name, value in rows.items()])


def print_columns(rows: Sequence[Sequence[str | int]], *, width: int = 0) -> None:
    """Print rows in columns at least `width` wide: numbers at the right, with commas."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows]
    columns = [*zip(*cells, strict=True)]
    widths = [max(width, *map(len, column)) for column in columns]
    counts = [any(isinstance(cell, int) for cell in column) for column in zip(*rows, strict=True)]
    for row in cells:
        aligned = [
            cell.rjust(size) if is_count else cell.ljust(size)
            for cell, size, is_count in zip(row, widths, counts, strict=True)
        ]
        print("  ".join(aligned).rstrip())


def baselines_of(directory: PartitionDirectory) -> dict[str, Any]:
    """Return the field `baselines`: scores without training of pairs; {} for other data."""
    links = {} if directory.meta is None else directory.meta.links
    return {"baselines": links.get("baselines", {})} if links else {}


def describe_features(directory: PartitionDirectory) -> list[str]:
    """Return lines on the width of the features and on what became of each column."""
    meta = directory.meta
    width = [] if meta is None else [f"{meta.num_features:,} columns of each node"]
    return [*width, *describe(directory.feature_pipelines)]


def print_results(
    result: Mapping[str, Any], places: Mapping[str, Path], *, measure_dv: bool
) -> None:
    """Print the results of app=train, evaluate or predict, and the places where they are.

    measure_dv: the setting; whether bytes are printed by kind, layer and sender, too.
    """
    settings, seconds, counted = result["settings"], result["seconds"], result["bytes"]
    chosen = result.get("chosen", {})
    print(f"{settings['model']['name']}, {settings['trainer']['name']}\n")
    for table in (
        scores_table(result, ONLY_IN_SUMMARY - {chosen.get("metric")}),
        parts_table(result),
    ):
        if table.rows and len(table.columns) > 1:
            print_columns([table.columns, *table.rows])
            print()
    rows = {
        f"chosen {name.replace('_', ' ')}": format_setting(value, 4)
        for name, value in chosen.items()
        if not isinstance(value, list | dict)
    }
    weights = chosen.get("class_weights", [])
    if 0 < len(weights) <= MAX_CLASSES and not isinstance(weights[0], list):
        rows["chosen class weights"] = ", ".join(f"{weight:.4g}" for weight in weights)
    if (count := len(scores_by_part(result))) > MAX_CLASSES:
        rows["classes or targets"] = f"{count}; summary.json has the scores of each"
    if "partitions" in result:
        rows["partitions"] = result["partitions"]
    if "rounds" in result:
        rows["rounds per layer"] = ", ".join(map(str, result["rounds"]))
    resumed, restarts = result.get("resumed"), result.get("restarts", {}).get("count")
    if resumed and (resumed["layer"] or resumed["round"]):
        rows["resumed at"] = "layer {layer}, round {round} of {run_dir}".format(**resumed)
    if restarts:
        rows["restarts"] = f"{restarts} (summary.json has the causes)"
    rows["boundary rows"] = ", ".join(dict.fromkeys(settings["exchange"]["precision"]))
    for name, label in (("train", "training"), ("inference", "inference"), ("total", "total")):
        if name in seconds:
            rows[f"seconds ({label})"] = f"{seconds[name]:.2f}"
    rows["bytes sent"] = f"{counted['total']:,} by {len(counted['by_peer'])} workers"
    if measure_dv:
        by_sender = map(sum, counted["by_peer"])
        rows |= {f"  bytes of {kind}": f"{sent:,}" for kind, sent in counted["by_kind"].items()}
        rows |= {f"  bytes of layer {n}": f"{b:,}" for n, b in enumerate(counted["by_layer"])}
        rows |= {f"  bytes sent by rank {rank}": f"{b:,}" for rank, b in enumerate(by_sender)}
    print_rows({**rows, **places})
