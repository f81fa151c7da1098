"""Page of one run: scores, classes, bytes by layer and kind, seconds, settings."""

from collections.abc import Mapping

from retexo.results.conclusion import standard_error
from retexo.results.formats import (
    NO_VALUE,
    SPLITS,
    format_memory,
    format_score,
    format_seconds,
    format_setting,
)
from retexo.results.groups import DataSet
from retexo.results.page import Picture, Section
from retexo.results.runs import Run
from retexo.results.tables import Table, bytes_table, class_table
from retexo.scores import title_of
from retexo.settings.flatten import flatten
from retexo.settings.schema import resolved, usual_values

HIDDEN = ("hydra.", "report.", "partition_dir", "dataset_dir")
"""Beginnings of settings that say nothing about the results."""


def sections_of(run: Run, data: DataSet, pictures: Mapping[str, Picture]) -> list[Section]:
    """Return the sections of the page that have data.

    `data` has this run alone; `pictures` are by name.
    """
    parts: dict[str, tuple[tuple[Table | None, ...], tuple[str, ...]]] = {
        "Scores": ((_scores(run),), ("learning",)),
        "Classes": ((class_table(data),), ("confusion", "ranking", "calibration")),
        "Bytes": ((bytes_table(data),), ("pairs",)),
        "Features": ((_features(run),), ()),
        "Time and settings": ((_seconds(run), _memory(run), _choices(run), _settings(run)), ()),
    }
    sections = [
        Section(
            title,
            [
                table.keep(lambda name, _: name != "method")
                for table in tables
                if table is not None and table.rows
            ],
            [pictures[name] for name in names if name in pictures],
            plain=title == "Features",
        )
        for title, (tables, names) in parts.items()
    ]
    return [section for section in sections if section.tables or section.pictures]


def _scores(run: Run) -> Table:
    """Return the table of all scores by split, with baseline and standard error."""
    splits = [name for name in SPLITS if name in run.summary]
    baselines = run.summary.get("baselines")  # of links
    baselines = baselines or {"baseline": run.summary.get("baseline", {})}
    names = dict.fromkeys(name for split in splits for name in run.summary[split])
    rows = [
        [
            title_of(name),
            *(format_score(run.summary[split].get(name), name) for split in splits),
            format_score(standard_error(run.summary, name), name),
            *(format_score(scores.get(name), name) for scores in baselines.values()),
        ]
        for name in names
        if name not in ("ranked", "sources")
    ]
    columns = ["score", *(SPLITS[split] for split in splits), "standard error", *baselines]
    return Table(
        "By split",
        columns,
        rows,
        "Standard error: of drawing other test nodes. Baselines, on test, have no network: the most"
        " frequent class, a random ranking, the mean of the training nodes, or scores of pairs.",
    ).keep(lambda _, cells: set(cells) != {NO_VALUE})


def _features(run: Run) -> Table:
    """Return the table of columns by role and encoding, and of those that were left out."""
    rows = [[line] for line in run.summary.get("features", [])]
    return Table("Columns", ["what became of the columns of each table"], rows)


def _seconds(run: Run) -> Table:
    """Return the table of seconds by phase, of training and of the whole command."""
    seconds = run.summary["seconds"]
    rows = seconds.get("phase", {}) | {
        "training": seconds["train"],
        "whole command": seconds["total"],
    }
    cells = [[name, NO_VALUE if n is None else format_seconds(n)] for name, n in rows.items()]
    return Table("Seconds", ["phase", "seconds"], cells, "Phases: mean over workers.")


def _memory(run: Run) -> Table:
    sizes = {"resident": "memory", "without shared memory": "private memory"}
    sizes_of_run = {name: run.measures[measure] for name, measure in sizes.items()}
    rows = [[name, format_memory(value)] for name, value in sizes_of_run.items() if value]
    return Table("Memory", ["largest worker", "peak"], rows)


def _choices(run: Run) -> Table:
    """Return the table of what validation and the program chose: threshold, class weights ..."""
    chosen = flatten(run.summary.get("chosen", {}))
    rows = [[name.replace("_", " "), format_setting(value, 6)] for name, value in chosen.items()]
    return Table("Chosen", ["what", "value"], rows, "By validation, or from the training nodes.")


def _settings(run: Run) -> Table:
    """Return the table of settings that differ from the defaults."""
    usual = usual_values()
    rows = []
    for name, value in sorted(run.settings.items()):
        standard = resolved(usual.get(name), run.settings)
        if not name.startswith(HIDDEN) and format_setting(value) != format_setting(standard):
            rows.append([name, format_setting(value), format_setting(standard)])
    return Table("Settings", ["setting", "value", "default"], rows)
