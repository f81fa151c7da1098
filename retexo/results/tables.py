"""Tables of a report as markdown and csv."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from retexo.results.formats import (
    NO_VALUE,
    format_bytes,
    format_count,
    format_memory,
    format_path,
    format_score,
    format_seconds,
)
from retexo.results.groups import DataSet, Measure, Method, measure_of
from retexo.results.runs import BYTES, CLASS_SCORES, MEASURES, Run
from retexo.results.statistics import Difference, compare_pairs

MAX_CLASSES = 20
"""Most classes that a report lists."""
MAX_METHODS = 49
"""Most methods of which a report lists classes and layers, compares all pairs and draws each."""
Cell = str | int | float | None


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

    def markdown(self) -> str:
        align = ["---" if column == 0 else "---:" for column in range(len(self.columns))]
        lines = [
            self.columns,
            align,
            *([cell.replace("|", "\\|") for cell in row] for row in self.rows),
        ]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"### {self.title}\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")


def format_csv(rows: Sequence[dict[str, Cell]]) -> str:
    """Format rows as csv with the union of their columns; missing values are empty."""
    columns = [*dict.fromkeys(name for row in rows for name in row)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# --- how figures are written ----------


def format_samples(data: DataSet, measure: Measure, text: Callable[[float], str]) -> list[str]:
    """Format mean and deviation for each method; one draw has no deviation."""
    return [
        (text(mean) + (f" ± {text(std)}" if count > 1 else "")) if count else NO_VALUE
        for count, mean, std in data.summarise(measure)
    ]


FORMATS: dict[str, tuple[str, Callable[[float], str]]] = {
    **{name: (name.replace("val ", "validation "), format_score) for name in MEASURES},
    **{
        name: (name, partial(format_score, name=name.removeprefix("test ").lower()))
        for name in ("test MAE", "test RMSE")
    },
    "bytes total": ("bytes sent", format_bytes),
    "rounds": ("rounds", format_count),
    "seconds train": ("training, s", format_seconds),
    "seconds total": ("whole run, s", format_seconds),
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
    done = [run.measures for method in data.methods for run in method.done]
    if all(run.get("test micro F1") == run.get("test accuracy") for run in done):
        without |= {"test micro F1"}  # as for all but multi-label data
    measures = {
        name: FORMATS[name] for name in FORMATS if name in data.measures and name not in without
    }
    columns = [
        [method.name for method in data.methods],
        [format_runs(method) for method in data.methods],
        *(format_samples(data, measure_of(name), text) for name, (_, text) in measures.items()),
    ]
    return Table(
        "Results",
        ["method", "n", *(heading for heading, _ in measures.values())],
        [list(row) for row in zip(*columns, strict=True)],
        "Mean ± sample standard deviation over n draws of the seeds; one draw has no deviation. "
        "Rounds: sum over layers. Training: from the start of the process group to the test"
        " metric.",
    )


def class_table(data: DataSet) -> Table | None:
    """One row per method and class; None without classes, or with more than MAX_CLASSES."""
    names = dict.fromkeys(
        name for method in data.methods for run in method.done for name in run.classes
    )
    if not 0 < len(names) <= MAX_CLASSES or len(data.methods) > MAX_METHODS:
        return None
    texts = dict(zip(CLASS_SCORES, (*[format_score] * 3, format_count), strict=True))
    cells = {
        name: [
            format_samples(data, _cell_of("classes", name, score), text)
            for score, text in texts.items()
        ]
        for name in names
    }
    columns = ["method", "class", "precision", "recall", "F1", "support"]
    note = "On the test nodes; support is the number of nodes of the class."
    return Table("Classes", columns, _rows_by_method(data, cells), note)


def _cell_of(table: str, row: str, column: str) -> Measure:
    """Return the measure that is a cell of Run.classes or Run.bytes_by_layer."""
    return lambda run: getattr(run, table).get(row, {}).get(column)


def _rows_by_method(data: DataSet, cells: Mapping[str, Sequence[Sequence[str]]]) -> list[list[str]]:
    """Return for each method one row per name, if it has a value.

    cells: by name the columns, each with a cell per method.
    """
    return [
        [method.name, name, *row]
        for number, method in enumerate(data.methods)
        for name, columns in cells.items()
        if set(row := [column[number] for column in columns]) != {NO_VALUE}
    ]


def bytes_table(data: DataSet) -> Table | None:
    """Return bytes: a row per method and layer or whole run, a column per kind.

    None without bytes.
    """
    kinds = [*data.kinds, "total"]
    done = [run.bytes_by_layer for method in data.methods for run in method.done]
    layers = max(done, key=len, default={})
    cells = {
        layer: [
            format_samples(data, _cell_of("bytes_by_layer", layer, kind), format_bytes)
            for kind in kinds
        ]
        for layer in (layers if len(data.methods) <= MAX_METHODS else ())
    }
    cells["total"] = [
        format_samples(data, measure_of(f"{BYTES}{kind}"), format_bytes) for kind in kinds
    ]
    note = "Payload of all workers, counted once at the sender; kB, MB, GB are powers of 1,000."
    rows = _rows_by_method(data, cells)
    columns = ["method", "layer", *kinds]
    return Table("Bytes by layer and kind", columns, rows, note) if data.kinds else None


def compare_methods(data: DataSet) -> list[tuple[Method, Method, Difference]]:
    """Compare pairs of methods with at least two common draws, by the headline measure.

    With more than MAX_METHODS methods, each is compared with the best one.
    """
    if data.headline not in data.measures:
        return []
    samples = {
        n: method.samples(measure_of(data.headline)) for n, method in enumerate(data.methods)
    }
    by_draw = {number: values for number, values in samples.items() if len(values) > 1}
    pairs: Iterable[tuple[Any, Any]] = combinations(by_draw, 2)
    if len(by_draw) > MAX_METHODS:
        best = max(by_draw, key=lambda number: np.mean([*by_draw[number].values()]))
        pairs = ((number, best) for number in by_draw if number != best)
    return [
        (data.methods[first], data.methods[second], difference)
        for first, second in pairs
        if (difference := compare_pairs(by_draw[first], by_draw[second])) is not None
    ]


def comparison_table(data: DataSet) -> Table | None:
    """Make the table of the paired differences of methods; None if no methods share draws."""
    rows = [
        [
            f"{second.name} minus {first.name}",
            str(difference.n),
            f"{difference.mean:+.4f}",
            f"[{difference.low:+.4f}, {difference.high:+.4f}]",
        ]
        for first, second, difference in compare_methods(data)
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


# --- csv ----------


def summary_rows(data_sets: Sequence[DataSet]) -> list[dict[str, Cell]]:
    """Return a row per data set and method, in bytes and seconds.

    It has the number n of draws, of failed and of unfinished runs; mean and spread (standard
    deviation) of every measure, None without a value or, for the spread, without two.
    """
    rows = []
    for data in data_sets:
        sent = {f"{BYTES}{kind}" for kind in [*data.kinds, "total"]}
        names = [name for name in data.measures if name in sent or not name.startswith(BYTES)]
        summaries = {name: data.summarise(measure_of(name)) for name in names}
        for number, method in enumerate(data.methods):
            row: dict[str, Cell] = {
                "data": data.name,
                "method": method.name,
                "n": len(method.done) - method.repeats,
            }
            row |= {status: method.count(status) for status in ("failed", "unfinished")}
            for name, summary in summaries.items():
                count, mean, std = summary[number]
                row[f"{name}, mean"] = mean if count else None
                row[f"{name}, spread"] = std if count > 1 else None
            rows.append(row)
    return rows


def comparison_rows(data_sets: Sequence[DataSet]) -> list[dict[str, Cell]]:
    """One row per comparison of the headline measure."""
    return [
        {
            "data": data.name,
            "first": first.name,
            "second": second.name,
            "second minus first": difference.mean,
            "n": difference.n,
            "low": difference.low,
            "high": difference.high,
        }
        for data in data_sets
        for first, second, difference in compare_methods(data)
    ]


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
