"""Tables of a report as markdown and csv."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from retexo.results.groups import DataSet, Method
from retexo.results.runs import (
    CLASS_SCORES,
    LINK_SCORES,
    SCORES,
    SOME_SCORES,
    VALUE_SCORES,
    Run,
)
from retexo.results.statistics import Difference, Sample, compare_pairs, correct_by_holm, summarize

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
        kept = [
            place
            for place in range(len(self.columns))
            if any(row[place] != NO_VALUE for row in self.rows)
        ]
        columns = [self.columns[place] for place in kept]
        rows = [[row[place] for place in kept] for row in self.rows]
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


def format_bytes(value: float, digits: int = 3) -> str:
    """Format bytes as 512 B, 31.2 kB, 1.78 GB: powers of 1,000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.{digits}g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB" if value < 999.5 else f"{value:,.0f} TB"


def format_memory(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"


def format_count(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def format_sample(values: Sample, text: Callable[[float], str]) -> str:
    """Format mean and standard deviation; one value has no deviation."""
    if values.mean is None:
        return NO_VALUE
    return text(values.mean) + (f" ± {text(values.spread)}" if values.spread is not None else "")


def format_path(path: Path) -> str:
    """Return a path as valid Unicode: names on disk need not be UTF-8."""
    return os.fsencode(path).decode(errors="replace")


MEASURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "test accuracy": ("test accuracy", lambda value: f"{value:.4f}"),
    "val accuracy": ("validation accuracy", lambda value: f"{value:.4f}"),
    "test micro F1": ("test micro-F1", lambda value: f"{value:.4f}"),
    "test macro F1": ("test macro-F1", lambda value: f"{value:.4f}"),
    "test balanced accuracy": ("test balanced accuracy", lambda value: f"{value:.4f}"),
    "test ROC AUC": ("test ROC AUC", lambda value: f"{value:.4f}"),
    "test average precision": ("test average precision", lambda value: f"{value:.4f}"),
    "test R2": ("test R2", lambda value: f"{value:.4f}"),
    "val R2": ("validation R2", lambda value: f"{value:.4f}"),
    "test MAE": ("test MAE", lambda value: f"{value:.6g}"),
    "test RMSE": ("test RMSE", lambda value: f"{value:.6g}"),
    "test MRR": ("test MRR", lambda value: f"{value:.4f}"),
    "val MRR": ("validation MRR", lambda value: f"{value:.4f}"),
    "test hits@20": ("test hits@20", lambda value: f"{value:.4f}"),
    "test AUC": ("test AUC", lambda value: f"{value:.4f}"),
    "bytes total": ("bytes sent", format_bytes),
    "rounds": ("rounds", format_count),
    "seconds train": ("training, s", lambda value: f"{value:.2f}"),
    "seconds total": ("whole run, s", lambda value: f"{value:.2f}"),
    "memory": ("memory, largest worker", format_memory),
}
"""Measure -> heading and format."""


# --- tables of one data set ----------


def summarize_measure(method: Method, name: str) -> Sample:
    """Return the statistics of a measure over draws of the seeds."""
    return summarize(list(method.by_draw(lambda run: run.measures.get(name)).values()))


def summarize_bytes(method: Method, kind: str) -> Sample:
    return summarize(list(method.by_draw(lambda run: run.bytes_by_kind.get(kind, 0)).values()))


def sent_kinds(data: DataSet) -> list[str]:
    """Return the kinds of messages with at least one byte."""
    sent = [run.bytes_by_kind for method in data.methods for run in method.done]
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
    without = {"test micro F1"} if not _has_own_f1(data) else set()
    without |= SOME_SCORES.keys() - data.measures
    without |= {"test macro F1", "test balanced accuracy"} - {data.headline}
    kinds: tuple[dict[str, str], ...] = (SCORES | SOME_SCORES, VALUE_SCORES, LINK_SCORES)
    others = {name for kind in kinds if data.headline not in kind for name in kind}
    shown = {name: shown for name, shown in MEASURES.items() if name not in without | others}
    rows = []
    for method in data.methods:
        cells = [
            format_sample(summarize_measure(method, name), text)
            for name, (_, text) in shown.items()
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
            samples = [_summarize_class(method, name, score) for score in CLASS_SCORES]
            cells = [format_sample(each, lambda value: f"{value:.4f}") for each in samples[:-1]]
            rows.append([method.name, name, *cells, format_sample(samples[-1], format_count)])
    columns = ["method", "class", "precision", "recall", "F1", "support"]
    note = "On the test nodes; support is the number of nodes of the class."
    return Table("Classes", columns, rows, note) if rows else None


def _summarize_class(method: Method, name: str, score: str) -> Sample:
    draws = method.by_draw(lambda run: run.classes.get(name, {}).get(score))
    return summarize(list(draws.values()))


def bytes_table(data: DataSet) -> Table | None:
    """One column per kind of message; None without bytes."""
    names = sent_kinds(data)
    rows = [
        [
            method.name,
            *(format_sample(summarize_bytes(method, kind), format_bytes) for kind in names),
        ]
        for method in data.methods
    ]
    note = "Payload of all workers, counted once at the sender; kB, MB, GB are powers of 1,000."
    return Table("Bytes by kind", ["method", *names], rows, note) if names else None


def _has_own_f1(data: DataSet) -> bool:
    """Return whether micro-F1 differs from accuracy, as for multi-label data."""
    done = [run.measures for method in data.methods for run in method.done]
    return any(measures.get("test micro F1") != measures.get("test accuracy") for measures in done)


def compare_methods(data: DataSet) -> list[tuple[Method, Method, Difference]]:
    """Compare all pairs of methods with at least two common draws."""
    found = []
    for first, second in combinations(data.methods, 2):
        both = [
            method.by_draw(lambda run: run.measures.get(data.headline))
            for method in (first, second)
        ]
        difference = compare_pairs(both[0], both[1])
        if difference is not None:
            found.append((first, second, difference))
    return found


def comparison_table(data: DataSet) -> Table | None:
    """Table of paired compare_methods; None if no methods share draws."""
    found = compare_methods(data)
    if not found:
        return None
    corrected = correct_by_holm([difference.p for *_, difference in found])
    rows = [
        [
            f"{second.name} minus {first.name}",
            str(difference.n),
            f"{difference.mean:+.4f}",
            f"[{difference.low:+.4f}, {difference.high:+.4f}]",
            _format_p(difference.p),
            _format_p(together),
        ]
        for (first, second, difference), together in zip(found, corrected, strict=True)
    ]
    return Table(
        f"{data.headline[0].upper()}{data.headline[1:]}, paired",
        ["difference", "n", "mean", "95 % interval", "p", "p, Holm"],
        rows,
        "Paired over the n draws (seeds, split and partitions) that both methods have, by Student's"
        " t. The last column corrects p for all comparisons of the table. An interval that contains"
        " 0 does not show that two methods are equal. p is missing where all differences are"
        " equal.",
    )


def _format_p(p: float | None) -> str:
    if p is None:
        return NO_VALUE
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


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
            for name in dict.fromkeys(name for run in method.done for name in run.measures):
                row |= _mean_and_spread(name, summarize_measure(method, name))
            for kind in sent_kinds(data):
                row |= _mean_and_spread(f"bytes {kind}", summarize_bytes(method, kind))
            rows.append(row)
    return rows


def _mean_and_spread(name: str, values: Sample) -> dict[str, Cell]:
    """Return two cells of a csv row, the mean and the spread of a measure."""
    return {f"{name}, mean": values.mean, f"{name}, spread": values.spread}


def comparison_rows(data_sets: Sequence[DataSet]) -> list[dict[str, Cell]]:
    """One row per comparison of the headline measure."""
    rows = []
    for data in data_sets:
        for first, second, difference in compare_methods(data):
            row: dict[str, Cell] = {"data": data.name, "first": first.name, "second": second.name}
            row |= {"second minus first": difference.mean, "n": difference.n}
            rows.append(row | {"low": difference.low, "high": difference.high, "p": difference.p})
    return rows


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
        }
        row |= {
            "reason": run.reason,
            "seed": run.settings.get("seed"),
            "partition digest": run.partition_digest,
        }
        rows.append(
            row
            | run.measures
            | {f"bytes {kind}": count for kind, count in run.bytes_by_kind.items()}
        )
    return rows
