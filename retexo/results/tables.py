"""Tables of a report, and rows of its csv files."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations
from typing import Any

from retexo.results.conclusion import standard_error
from retexo.results.formats import (
    NO_VALUE,
    SPLITS,
    format_bytes,
    format_count,
    format_memory,
    format_path,
    format_score,
    format_seconds,
    format_setting,
)
from retexo.results.groups import DataSet, Method, compare_pairs
from retexo.results.runs import BYTES, CLASS_SCORES, SCORES_SHOWN, Run
from retexo.scores import title_of
from retexo.settings.flatten import flatten
from retexo.settings.schema import resolved, usual_values

HIDDEN = ("hydra.", "report.", "partition_dir", "dataset_dir")
"""Beginnings of settings that say nothing about the results."""
MAX_CLASSES = 20
"""Most classes that a report lists."""
MAX_METHODS = 49
"""Most methods of which a report lists classes and layers, compares all pairs and draws each."""
Cell = str | int | float | None
SPREADS = {"mean": "mean", "std": "spread"}
"""Statistic -> its name in csv files."""


@dataclass(frozen=True)
class Table:
    """Column names and rows of text."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""

    def keep(self, is_needed: Callable[[str, list[str]], bool]) -> "Table":
        """Return the table with the columns for whose name and cells `is_needed` is true."""
        cells = {name: [row[at] for row in self.rows] for at, name in enumerate(self.columns)}
        needed = [at for at, name in enumerate(self.columns) if is_needed(name, cells[name])]
        rows = [[row[at] for at in needed] for row in self.rows]
        return Table(self.title, [self.columns[at] for at in needed], rows, self.note)


# --- how figures are written ----------


def format_samples(summary: Any, name: str, text: Callable[[float], str]) -> dict[int, str]:
    """Format mean and deviation of each method by its number; one draw has no deviation.

    summary: of `DataSet.summarise`. Methods without a value are left out.
    """
    values = summary[name] if name in summary else summary.iloc[:0]
    return {
        number: text(mean) + (f" ± {text(std)}" if count > 1 else "")
        for number, count, mean, std in values.itertuples()
        if count > 0
    }


FORMATS: dict[str, tuple[str, Callable[[float], str]]] = {
    **{name: (name.replace("val ", "validation "), format_score) for name in SCORES_SHOWN},
    **{
        name: (name, partial(format_score, name=name.removeprefix("test ").lower()))
        for name in ("test MAE", "test RMSE")
    },
    "bytes total": ("bytes sent", format_bytes),
    "seconds train": ("training, s", format_seconds),
    "seconds total": ("whole run, s", format_seconds),
    "rounds": ("rounds", format_count),
    "memory": ("memory, largest worker", format_memory),
}
"""Measure -> heading and format, in the order of columns."""
ONLY_AS_HEADLINE = {"test macro F1", "test balanced accuracy"}


# --- tables of one data set ----------


def format_runs(method: Method) -> str:
    """Format the number of draws, and of other runs."""
    others = {
        "failed": method.count("failed"),
        "unfinished": method.count("unfinished"),
        "repeated": method.repeats,
    }
    remarks = [f"{count} {name}" for name, count in others.items() if count]
    return f"{len(method.done) - method.repeats}" + (f" ({', '.join(remarks)})" if remarks else "")


def results_table(data: DataSet) -> Table:
    """Table of scores, bytes and seconds: one row per method."""
    without = ONLY_AS_HEADLINE - {data.headline}
    scores = data.draws.reindex(columns=["test micro F1", "test accuracy"])
    if scores.iloc[:, 0].equals(scores.iloc[:, 1]):
        without |= {"test micro F1"}  # as for all but multi-label data
    measures = {
        name: FORMATS[name] for name in FORMATS if name in data.draws and name not in without
    }
    columns = [format_samples(data.summary, name, text) for name, (_, text) in measures.items()]
    rows = [
        [method.name, format_runs(method), *(cells.get(number, NO_VALUE) for cells in columns)]
        for number, method in enumerate(data.methods)
    ]
    return Table(
        "Results",
        ["method", "n", *(heading for heading, _ in measures.values())],
        rows,
        "Mean ± sample standard deviation over n draws of the seeds; one draw has no deviation. "
        "Rounds: sum over layers. Training: from the start of the process group to the test"
        " metric.",
    )


def class_table(data: DataSet) -> Table | None:
    """One row per method and class, scores of the test nodes.

    None without classes, with more than MAX_CLASSES, or more than MAX_METHODS methods.
    """
    names = dict.fromkeys(
        name for method in data.methods for run in method.done for name in run.classes
    )
    if not 0 < len(names) <= MAX_CLASSES or len(data.methods) > MAX_METHODS:
        return None
    texts = dict(zip(CLASS_SCORES, (*[format_score] * 3, format_count), strict=True))
    columns = ["method", "class", "precision", "recall", "F1", "support"]
    note = "On the test nodes; support is the number of nodes of the class."
    rows = _rows_by_method(data, lambda run: run.classes, names, texts)
    return Table("Classes", columns, rows, note)


def _rows_by_method(
    data: DataSet,
    read: Callable[[Run], Mapping[str, Mapping[str, Any]]],
    names: Iterable[str],
    texts: Mapping[str, Callable[[float], str]],
) -> list[list[str]]:
    """Return for each method one row per name, if it has a value: a row of what `read` returns.

    texts: the formats of its columns.
    """
    summary = data.summarise(
        data.average_draws(
            lambda run: {
                f"{name}: {column}": read(run).get(name, {}).get(column)
                for name in names
                for column in texts
            }
        )
    )
    cells = {
        name: [format_samples(summary, f"{name}: {column}", text) for column, text in texts.items()]
        for name in names
    }
    return [
        [method.name, name, *(column.get(number, NO_VALUE) for column in columns)]
        for number, method in enumerate(data.methods)
        for name, columns in cells.items()
        if any(number in column for column in columns)
    ]


def bytes_table(data: DataSet) -> Table | None:
    """Return bytes: a row per method and layer or whole run, a column per kind.

    Only whole runs with more than MAX_METHODS methods. None without bytes.
    """
    kinds = [*data.kinds, "total"]
    layers = max((run.bytes_by_layer for m in data.methods for run in m.done), key=len, default={})
    names = list(layers) if len(data.methods) <= MAX_METHODS else ["total"]
    note = "Payload of all workers, counted once at the sender; kB, MB, GB are powers of 1,000."
    texts = dict.fromkeys(kinds, format_bytes)
    none = dict.fromkeys(kinds, 0)

    def with_all_kinds(run: Run) -> dict[str, dict[str, int]]:
        return {name: none | sent for name, sent in run.bytes_by_layer.items()}

    rows = _rows_by_method(data, with_all_kinds, names, texts)
    columns = ["method", "layer", *kinds]
    return Table("Bytes by layer and kind", columns, rows, note) if data.kinds else None


@cache
def compare_methods(data: DataSet) -> list[dict[str, Cell]]:
    """Compare pairs of methods with at least two common draws, by the headline measure.

    With more than MAX_METHODS such methods, each is compared with the one of the largest mean.
    Returns a row of comparisons.csv for each pair; none if no run has the measure.
    """
    if data.headline not in data.draws:
        return []
    scores = data.draws[data.headline].dropna()
    by_draw = {number: own.droplevel(0) for number, own in scores.groupby(level=0) if len(own) > 1}
    pairs: Iterable[tuple[Any, Any]] = combinations(by_draw, 2)
    if len(by_draw) > MAX_METHODS:
        best = max(by_draw, key=lambda number: by_draw[number].mean())
        pairs = ((number, best) for number in by_draw if number != best)
    return [
        {
            "data": data.name,
            "first": data.methods[first].name,
            "second": data.methods[second].name,
            "second minus first": difference["mean"],
            **{name: difference[name] for name in ("n", "low", "high")},
        }
        for first, second in pairs
        if (difference := compare_pairs(by_draw[first], by_draw[second])) is not None
    ]


def comparison_table(data: DataSet) -> Table | None:
    """Make the table of the rows of compare_methods; None if no two methods share two draws."""
    rows = [
        [
            f"{row['second']} minus {row['first']}",
            str(row["n"]),
            f"{row['second minus first']:+.4f}",
            f"[{row['low']:+.4f}, {row['high']:+.4f}]",
        ]
        for row in compare_methods(data)
    ]
    note = (
        "Paired over the n draws (seeds, split and partitions) that both methods have; the interval"
        " is Student's t of that pair alone. One that contains 0 does not show that two methods are"
        " equal."
    )
    title = f"{data.headline[0].upper()}{data.headline[1:]}, paired"
    columns = ["difference", "n", "mean", "95 % interval"]
    return Table(title, columns, rows, note) if rows else None


def unfinished_table(runs: Sequence[Run]) -> Table | None:
    """Table of unfinished runs with reasons; None if all are done."""
    rows = [[format_path(run.path), run.status, run.reason] for run in runs if run.status != "done"]
    return Table("Runs that are not counted", ["run", "status", "reason"], rows) if rows else None


# --- tables of one run ----------


def scores_table(summary: Mapping[str, Any], left_out: Collection[str] = ()) -> Table:
    """Return the table of all scores by split, with standard error and baselines.

    Columns without any value are left out.

    Args:
        summary: content of summary.json, or of the file of app=evaluate or predict.
        left_out: names of scores that it does not have.
    """
    by_split = {SPLITS[split]: summary[split] for split in SPLITS if split in summary}
    for split, scores in summary.get("transductive", {}).items():
        by_split[f"{SPLITS[split]} in the whole graph"] = scores
    # Of links there are several.
    baselines = summary.get("baselines") or {"baseline": summary.get("baseline", {})}
    names = dict.fromkeys(name for scores in by_split.values() for name in scores)
    rows = [
        [
            title_of(name),
            *(format_score(scores.get(name), name) for scores in by_split.values()),
            format_score(standard_error(summary, name), name),
            *(format_score(scores.get(name), name) for scores in baselines.values()),
        ]
        for name in names
        if name not in ("ranked", "sources", *left_out)
    ]
    return Table(
        "By split",
        ["score", *by_split, "standard error", *baselines],
        rows,
        "Standard error: of drawing other test nodes. Baselines, on test, have no network: the most"
        " frequent class, a random ranking, the mean of the training nodes, or scores of pairs.",
    ).keep(lambda _, cells: set(cells) != {NO_VALUE})


def scores_by_part(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the test scores of each class, or each target of a regression; none for links."""
    parts: list[dict[str, Any]]
    parts = (summary.get("classes") or summary.get("targets") or {}).get("test", [])
    return parts


def parts_table(summary: Mapping[str, Any]) -> Table:
    """Return the table of the test scores of each class, or each target of a regression.

    Without rows for links, and for more than MAX_CLASSES.
    """
    parts = scores_by_part(summary)
    parts = parts if len(parts) <= MAX_CLASSES else []
    names = list(parts[0]) if parts else []
    rows = [
        [str(part[names[0]]), *(format_score(part[name], name) for name in names[1:])]
        for part in parts
    ]
    note = "On the test nodes; support is their number."
    columns = [title_of(name).replace("f1", "F1") for name in names]
    return Table("Targets" if summary.get("targets") else "Classes", columns, rows, note)


def pair_tables(run: Run) -> list[Table]:
    """Return the tables with two columns of a finished run: seconds, memory, what was chosen."""
    seconds = run.summary["seconds"]
    phases = seconds.get("phase", {}) | {
        "training": seconds["train"],
        "whole command": seconds["total"],
    }
    sizes = {name: run.measures[name] for name in ("memory", "private memory")}
    chosen = flatten(run.summary.get("chosen", {}))  # threshold, class weights ...
    rows_by_title = {
        "Seconds": {name: format_seconds(value) for name, value in phases.items()},
        "Memory": {name: format_memory(value) for name, value in sizes.items() if value},
        "Chosen": {
            name.replace("_", " "): format_setting(value, 6) for name, value in chosen.items()
        },
    }
    notes = {
        "Seconds": "Phases: mean over workers.",
        "Memory": "Largest worker; private: without shared memory.",
        "Chosen": "By validation, or from the training nodes.",
    }
    return [
        Table(title, ["what", title.lower()], list(map(list, rows.items())), notes[title])
        for title, rows in rows_by_title.items()
    ]


def settings_table(run: Run) -> Table:
    """Return the table of settings that differ from the defaults."""
    usual = usual_values()
    rows = []
    for name, value in sorted(run.settings.items()):
        standard = resolved(usual.get(name), run.settings)
        if not name.startswith(HIDDEN) and format_setting(value) != format_setting(standard):
            rows.append([name, format_setting(value), format_setting(standard)])
    return Table("Settings", ["setting", "value", "default"], rows)


# --- csv ----------


def summary_rows(data_sets: Sequence[DataSet]) -> list[dict[str, Cell]]:
    """Return a row per data set and method, in bytes and seconds.

    It has the number n of draws, of failed and of unfinished runs; mean and spread (standard
    deviation) of every measure, None without a value or, for the spread, without two.
    """
    rows = []
    for data in data_sets:
        sent = {f"{BYTES}{kind}" for kind in [*data.kinds, "total"]}
        names = [name for name in data.draws if name in sent or not name.startswith(BYTES)]
        numbers = data.summary[names].drop(columns="count", level=1)
        numbers.columns = [f"{name}, {SPREADS[of]}" for name, of in numbers.columns]
        for method, values in zip(data.methods, numbers.to_dict("records"), strict=True):
            row: dict[str, Cell] = {
                "data": data.name,
                "method": method.name,
                "n": len(method.done) - method.repeats,
            }
            row |= {status: method.count(status) for status in ("failed", "unfinished")}
            rows.append(row | values)
    return rows


def run_rows(data_sets: Sequence[DataSet], runs: Sequence[Run]) -> list[dict[str, Cell]]:
    """Return a row per run of any status; a damaged one has no data and method."""
    owner = {
        id(run): (data.name, m.name) for data in data_sets for m in data.methods for run in m.runs
    }
    rows: list[dict[str, Cell]] = []
    for run in runs:
        data, method = owner.get(id(run), ("", ""))
        row: dict[str, Cell] = {
            "run": format_path(run.path),
            "data": data,
            "method": method,
            "status": run.status,
            "reason": run.reason,
            "seed": run.settings.get("seed"),
            "partition digest": run.summary.get("partition_digest"),
        }
        rows.append({**row, **run.measures})
    return rows
