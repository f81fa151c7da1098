"""The page of one run: scores, classes, bytes by layer and kind, seconds, settings."""

import math
from collections.abc import Mapping
from typing import Any

from retexo.results.conclusion import standard_error
from retexo.results.page import Picture, Section
from retexo.results.runs import CLASS_SCORES, Run
from retexo.results.tables import NO_VALUE, Table, format_bytes, format_memory
from retexo.settings.schema import usual_values

SPLITS = {"train": "training", "val": "validation", "test": "test"}
HIDDEN = ("hydra.", "report.", "partition_dir", "dataset_dir")
"""Beginnings of settings that say nothing about the results."""


def sections_of(run: Run, pictures: Mapping[str, Picture]) -> list[Section]:
    """The sections of the page that have data; pictures by name."""
    parts: dict[str, tuple[list[Table], tuple[str, ...]]] = {
        "Scores": ([_scores(run)], ("learning",)),
        "Classes": ([_classes(run)], ("confusion", "calibration")),
        "Bytes": ([_bytes(run)], ("layers", "pairs")),
        "Time and settings": ([_seconds(run), _settings(run)], ()),
    }
    sections = [
        Section(
            title,
            [table for table in found if table.rows],
            [pictures[name] for name in names if name in pictures],
        )
        for title, (found, names) in parts.items()
    ]
    return [each for each in sections if each.tables or each.pictures]


def _scores(run: Run) -> Table:
    """Return the table of all scores by split, with baseline and standard error."""
    splits = [name for name in SPLITS if isinstance(run.summary.get(name), dict)]
    baselines = _mapping(run.summary.get("baselines"))  # of links
    baselines = baselines or {"baseline": run.summary.get("baseline")}
    names = dict.fromkeys(name for split in splits for name in run.summary[split])
    rows = [
        [
            name.replace("_", " "),
            *(_number(run.summary[split].get(name)) for split in splits),
            _number(_error_of(run, name)),
            *(_number(_mapping(scores).get(name)) for scores in baselines.values()),
        ]
        for name in names
        if name != "ranked"
    ]
    columns = ["score", *(SPLITS[split] for split in splits), "standard error", *baselines]
    return Table(
        "By split",
        columns,
        rows,
        "Standard error: of drawing other test nodes. Baselines, on test, have no network: the most"
        " frequent class, a random ranking, the mean of the training nodes, or scores of pairs.",
    ).without_empty_columns()


def _error_of(run: Run, name: str) -> float | None:
    """Return the standard error of a score on test; None where the run does not have that score."""
    value = _mapping(run.summary.get("test")).get(name)
    return standard_error(run.summary, name) if isinstance(value, int | float) else None


def _classes(run: Run) -> Table:
    rows = [
        [name, *(_number(row[score]) for score in CLASS_SCORES[:-1]), f"{row['support']:,.0f}"]
        for name, row in run.classes.items()
    ]
    columns = ["class", "precision", "recall", "F1", "test nodes"]
    return Table("By class", columns, rows)


def _bytes(run: Run) -> Table:
    """Return the table of bytes by layer and kind."""
    by_layer = run.bytes_by_layer_and_kind
    kinds = [kind for kind, sent in run.bytes_by_kind.items() if sent]
    lines = [f"layer {layer}" for layer in range(len(by_layer) - 1)] + ["whole run"]
    rows = [
        [
            line,
            *(format_bytes(sent.get(kind, 0)) for kind in kinds),
            format_bytes(sum(sent.values())),
        ]
        for line, sent in zip(lines, by_layer, strict=False)
    ]
    total = [format_bytes(run.bytes_by_kind[kind]) for kind in kinds]
    if rows:
        rows.append(["total", *total, format_bytes(sum(run.bytes_by_kind.values()))])
    note = "Payload of all workers, counted once at the sender. Whole run: of no single layer."
    return Table("Bytes by layer and kind", ["layer", *kinds, "total"], rows, note)


def _seconds(run: Run) -> Table:
    seconds = _mapping(run.summary.get("seconds"))
    rows = [[name, _number(value, 2)] for name, value in _mapping(seconds.get("phase")).items()]
    for name, key in (("training", "train"), ("whole command", "total")):
        rows.append([name, _number(seconds.get(key), 2)])
    memory = run.measures.get("memory")
    rows += [["memory, largest worker", format_memory(memory)]] if memory else []
    return Table("Seconds and memory", ["phase", "seconds"], rows, "Phases: mean over workers.")


def _settings(run: Run) -> Table:
    """Return the table of settings that differ from the defaults."""
    usual = usual_values()
    rows = []
    for name, value in sorted(run.settings.items()):
        standard = usual.get(name)
        if isinstance(standard, str) and standard.startswith("${"):
            standard = run.settings.get(standard[2:-1])
        if not name.startswith(HIDDEN) and _format_value(value) != _format_value(standard):
            rows.append([name, _format_value(value), _format_value(standard)])
    return Table("Settings", ["setting", "value", "default"], rows)


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a dictionary, else an empty one."""
    return value if isinstance(value, dict) else {}


def _number(value: Any, digits: int = 4) -> str:
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return f"{value:,.{digits}f}" if is_number else NO_VALUE


def _format_value(value: Any) -> str:
    """Return a setting's value as text."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_format_value, value))
    return NO_VALUE if value is None else str(value)
