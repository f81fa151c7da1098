"""The page of one run: scores, classes, bytes by layer and kind, seconds, settings."""

import math
from collections.abc import Mapping
from typing import Any

from retexo.results.conclusion import standard_error
from retexo.results.groups import DataSet
from retexo.results.page import Picture, Section
from retexo.results.runs import Run
from retexo.results.tables import NO_VALUE, Table, bytes_table, class_table, format_memory
from retexo.scores import title_of
from retexo.settings.flatten import flatten
from retexo.settings.schema import usual_values

SPLITS = {"train": "training", "val": "validation", "test": "test"}
HIDDEN = ("hydra.", "report.", "partition_dir", "dataset_dir")
"""Beginnings of settings that say nothing about the results."""


def sections_of(run: Run, data: DataSet, pictures: Mapping[str, Picture]) -> list[Section]:
    """The sections of the page that have data; data: with this run alone; pictures by name."""
    parts: dict[str, tuple[tuple[Table | None, ...], tuple[str, ...]]] = {
        "Scores": ((_scores(run),), ("learning",)),
        "Classes": ((class_table(data),), ("confusion", "ranking", "calibration")),
        "Bytes": ((bytes_table(data),), ("pairs",)),
        "Time and settings": ((_seconds(run), _memory(run), _choices(run), _settings(run)), ()),
    }
    sections = [
        Section(
            title,
            [table.without("method") for table in found if table is not None and table.rows],
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
    test = _mapping(run.summary.get("test"))
    tested = {name for name, value in test.items() if isinstance(value, int | float)}
    names = dict.fromkeys(name for split in splits for name in run.summary[split])
    rows = [
        [
            title_of(name),
            *(_number(run.summary[split].get(name)) for split in splits),
            _number(standard_error(run.summary, name) if name in tested else None),
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


def _seconds(run: Run) -> Table:
    seconds = _mapping(run.summary.get("seconds"))
    rows = [[name, _number(value, 2)] for name, value in _mapping(seconds.get("phase")).items()]
    for name, key in (("training", "train"), ("whole command", "total")):
        rows.append([name, _number(seconds.get(key), 2)])
    return Table("Seconds", ["phase", "seconds"], rows, "Phases: mean over workers.")


def _memory(run: Run) -> Table:
    sizes = {"resident": "memory", "without shared memory": "private memory"}
    found = {name: run.measures.get(measure) for name, measure in sizes.items()}
    rows = [[name, format_memory(value)] for name, value in found.items() if value]
    return Table("Memory", ["largest worker", "peak"], rows)


def _choices(run: Run) -> Table:
    """Return the table of what validation and the program chose: threshold, class weights ..."""
    chosen = flatten(_mapping(run.summary.get("chosen")))
    rows = [[name.replace("_", " "), _format_value(value)] for name, value in chosen.items()]
    return Table("Chosen", ["what", "value"], rows, "By validation, or from the training nodes.")


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
    if isinstance(value, float):
        return f"{value:.6g}"
    return NO_VALUE if value is None else str(value)
