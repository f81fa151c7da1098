"""Tables of a report as markdown and csv."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from retexo.results.groups import DataSet, Method
from retexo.results.runs import CLASS_SCORES, MEASURES, Run
from retexo.results.statistics import Difference, compare_pairs

if TYPE_CHECKING:
    from pandas import Series

MAX_CLASSES = 20
"""Most classes that a report lists."""
NO_VALUE = "-"
"""Cell without a value."""
Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Column names and rows of text."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""

    def without_empty_columns(self) -> "Table":
        """The table without columns that have no value in any row."""
        places = range(len(self.columns))
        return self._keep([at for at in places if any(row[at] != NO_VALUE for row in self.rows)])

    def without(self, column: str) -> "Table":
        """The table without a column, if it has it."""
        return self._keep([at for at, name in enumerate(self.columns) if name != column])

    def _keep(self, places: list[int]) -> "Table":
        columns = [self.columns[place] for place in places]
        rows = [[row[place] for place in places] for row in self.rows]
        return Table(self.title, columns, rows, self.note)

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
    """Format rows as csv with the union of their columns."""
    import pandas as pd  # of the extra `report`, like matplotlib and Jinja2

    return pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n")


# --- how figures are written ----------


def format_bytes(value: float) -> str:
    """Format bytes as 512 B, 31.2 kB, 1.78 GB: powers of 1,000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB" if value < 999.5 else f"{value:,.0f} TB"


def format_memory(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"


def format_count(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def format_score(value: float) -> str:
    return f"{value:.4f}"


def format_sample(values: "Series", text: Callable[[float], str]) -> str:
    """Format mean and standard deviation; one value has no deviation."""
    if not len(values):
        return NO_VALUE
    return text(values.mean()) + (f" ± {text(values.std())}" if len(values) > 1 else "")


def format_path(path: Path) -> str:
    """Return a path as valid Unicode: names on disk need not be UTF-8."""
    return os.fsencode(path).decode(errors="replace")


FORMATS: dict[str, tuple[str, Callable[[float], str]]] = {
    **{name: (name.replace("val ", "validation "), format_score) for name in MEASURES},
    "test MAE": ("test MAE", lambda value: f"{value:.6g}"),
    "test RMSE": ("test RMSE", lambda value: f"{value:.6g}"),
    "bytes total": ("bytes sent", format_bytes),
    "rounds": ("rounds", format_count),
    "seconds train": ("training, s", lambda value: f"{value:.2f}"),
    "seconds total": ("whole run, s", lambda value: f"{value:.2f}"),
    "memory": ("memory, largest worker", format_memory),
}
"""Measure -> heading and format, in the order of columns."""
ONLY_AS_HEADLINE = {"test macro F1", "test balanced accuracy"}


# --- tables of one data set ----------


def sample_measure(method: Method, name: str) -> "Series":
    """Return a measure by draw of the seeds."""
    return method.sample(lambda run: run.measures.get(name))


def sample_bytes(method: Method, kind: str) -> "Series":
    return method.sample(lambda run: run.bytes_sent["by_kind"].get(kind, 0))


def sent_kinds(data: DataSet) -> list[str]:
    """Return the kinds of messages with at least one byte."""
    sent = [run.bytes_sent["by_kind"] for method in data.methods for run in method.done]
    names = dict.fromkeys(kind for by_kind in sent for kind in by_kind)
    return [kind for kind in names if any(by_kind.get(kind) for by_kind in sent)]


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
    without |= {"test micro F1"} if not _has_own_f1(data) else set()
    shown = {name: FORMATS[name] for name in FORMATS if name in data.measures - without}
    rows = []
    for method in data.methods:
        cells = [
            format_sample(sample_measure(method, name), text) for name, (_, text) in shown.items()
        ]
        rows.append([method.name, format_runs(method), *cells])
    return Table(
        "Results",
        ["method", "n", *(heading for heading, _ in shown.values())],
        rows,
        "Mean ± sample standard deviation over n draws of the seeds; one draw has no deviation. "
        "Rounds: sum over layers. Training: from the start of the process group to the test"
        " metric.",
    )


def class_table(data: DataSet) -> Table | None:
    """One row per method and class; None without classes, or with more than MAX_CLASSES."""
    rows = []
    for method in data.methods:
        names = dict.fromkeys(name for run in method.done for name in run.classes)
        for name in names if len(names) <= MAX_CLASSES else ():
            texts = (*[format_score] * 3, format_count)
            cells = [
                format_sample(_sample_class(method, name, score), text)
                for score, text in zip(CLASS_SCORES, texts, strict=True)
            ]
            rows.append([method.name, name, *cells])
    columns = ["method", "class", "precision", "recall", "F1", "support"]
    note = "On the test nodes; support is the number of nodes of the class."
    return Table("Classes", columns, rows, note) if rows else None


def _sample_class(method: Method, name: str, score: str) -> "Series":
    return method.sample(lambda run: run.classes.get(name, {}).get(score))


def bytes_table(data: DataSet) -> Table | None:
    """One row per method, layer and the whole run, one column per kind of message; None without
    bytes."""
    kinds, rows = sent_kinds(data), []
    for method in data.methods:
        most = max((len(_layers(run)) for run in method.done), default=0)
        for place in range(most):
            line = f"layer {place}" if place < most - 1 else "outside layers"
            cells = [
                format_sample(_sample_layer(method, place - most, [kind]), format_bytes)
                for kind in kinds
            ]
            total = format_sample(_sample_layer(method, place - most, kinds), format_bytes)
            rows.append([method.name, line, *cells, total])
        cells = [format_sample(sample_bytes(method, kind), format_bytes) for kind in kinds]
        total = format_sample(sample_measure(method, "bytes total"), format_bytes)
        rows.append([method.name, "total", *cells, total])
    note = "Payload of all workers, counted once at the sender; kB, MB, GB are powers of 1,000."
    columns = ["method", "layer", *kinds, "total"]
    return Table("Bytes by layer and kind", columns, rows, note) if kinds else None


def _layers(run: Run) -> list[dict[str, int]]:
    """Return bytes by kind: one entry per layer, and one for the whole run."""
    layers: list[dict[str, int]] = run.bytes_sent.get("by_layer_and_kind", [])
    return layers


def _sample_layer(method: Method, place: int, kinds: Sequence[str]) -> "Series":
    """Return the bytes of some kinds in a layer, counted from the end of the run's list."""

    def count(run: Run) -> float | None:
        by_layer = _layers(run)
        if len(by_layer) < -place:
            return None
        return sum(by_layer[place].get(kind, 0) for kind in kinds)

    return method.sample(count)


def _has_own_f1(data: DataSet) -> bool:
    """Return whether micro-F1 differs from accuracy, as for multi-label data."""
    done = [run.measures for method in data.methods for run in method.done]
    return any(measures.get("test micro F1") != measures.get("test accuracy") for measures in done)


def compare_methods(data: DataSet) -> list[tuple[Method, Method, Difference]]:
    """Compare all pairs of methods with at least two common draws."""
    found = []
    samples = [(method, dict(sample_measure(method, data.headline))) for method in data.methods]
    for (first, before), (second, after) in combinations(samples, 2):
        difference = compare_pairs(before, after)
        if difference is not None:
            found.append((first, second, difference))
    return found


def comparison_table(data: DataSet) -> Table | None:
    """Table of paired compare_methods; None if no methods share draws."""
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
    """One row per method: n, mean and deviation of every measure, in bytes and seconds."""
    rows = []
    for data in data_sets:
        for method in data.methods:
            row: dict[str, Cell] = {
                "data": data.name,
                "method": method.name,
                "n": len(method.done) - method.repeats,
            }
            row |= {status: method.count(status) for status in ("failed", "unfinished")}
            names = dict.fromkeys(name for run in method.done for name in run.measures)
            samples = {name: sample_measure(method, name) for name in names}
            samples |= {f"bytes {kind}": sample_bytes(method, kind) for kind in sent_kinds(data)}
            for name, values in samples.items():
                row[f"{name}, mean"] = values.mean() if len(values) else None
                row[f"{name}, spread"] = values.std() if len(values) > 1 else None
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
    """One row per run of any status."""
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
            "partition digest": run.partition_digest,
        }
        sent = {f"bytes {kind}": count for kind, count in run.bytes_sent.get("by_kind", {}).items()}
        rows.append(row | run.measures | sent)
    return rows
