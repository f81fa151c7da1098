"""Groups of runs: a data set has methods, and the runs of a method differ only in their seeds."""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from retexo.results.formats import format_setting
from retexo.results.runs import BYTES, Run, identity
from retexo.scores import SCORES
from retexo.settings.schema import DATA, keys, usual_values

NAME_LENGTH = 200
"""Longest name that is shown."""
HEADLINES = {name: f"test {score.label}" for name, score in SCORES.items() if score.stops}
"""Setting stopping.metric -> measure."""
GROUP_NAMES = {key: key.partition(".")[0] for key in keys(lambda setting: setting.is_group)}
"""Setting that a file of conf/GROUP sets -> GROUP, its name for users."""


Measure = Callable[[Run], float | None]
"""A number of a finished run; None where the run has none."""


def measure_of(name: str) -> Measure:
    """Return the measure with a name of Run.measures; bytes that a run did not send are 0."""
    absent = 0.0 if name.startswith(BYTES) else None
    return lambda run: run.measures.get(name, absent)


@dataclass(frozen=True, eq=False)
class Method:
    """A method on one data set: runs with equal settings except seeds."""

    name: str
    runs: list[Run]
    """Runs of every status."""

    @cached_property
    def done(self) -> list[Run]:
        """Return the finished runs."""
        return [run for run in self.runs if run.status == "done"]

    def count(self, status: str) -> int:
        """Return the number of runs with a status."""
        return sum(run.status == status for run in self.runs)

    @property
    def repeats(self) -> int:
        """Number of finished runs that repeat the seeds of another one."""
        return len(self.done) - len({run.draw for run in self.done})

    def samples(self, measure: Measure) -> dict[str, float]:
        """Return a measure of the finished runs by draw of the seeds; repeated draws are averaged.

        Runs without the measure are left out.
        """
        values: defaultdict[str, list[float]] = defaultdict(list)
        for run in self.done:
            value = measure(run)
            if value is not None:
                values[run.draw].append(value)
        return {draw: sum(repeats) / len(repeats) for draw, repeats in values.items()}


class Summary(NamedTuple):
    """A measure of a method over draws."""

    n: int
    mean: float
    """NaN without a draw."""
    std: float
    """Sample deviation; NaN for fewer than two draws."""


@dataclass(frozen=True, eq=False)
class DataSet:
    """A graph with its split and partitions, and the methods trained on it."""

    name: str
    methods: list[Method]

    @cached_property
    def measures(self) -> list[str]:
        """Names of measures that at least one finished run has."""
        runs = [run for method in self.methods for run in method.done]
        return [*dict.fromkeys(name for run in runs for name in run.measures)]

    def summarise(self, measure: Measure) -> list[Summary]:
        """Summarise a measure over the draws of each method."""
        samples = [[*method.samples(measure).values()] for method in self.methods]
        return [
            Summary(
                len(values),
                float(np.mean(values)) if values else math.nan,
                float(np.std(values, ddof=1)) if len(values) > 1 else math.nan,
            )
            for values in samples
        ]

    @property
    def headline(self) -> str:
        """Return the name of the test measure to compare methods by.

        MRR or R2 if a run has it, else the metric of early stopping if all runs have it, else
        accuracy.
        """
        others = [name for name in ("test MRR", "test R2") if name in self.measures]
        if others:
            return others[0]
        runs = [run for method in self.methods for run in method.done]
        metrics = {run.metric for run in runs}
        name = HEADLINES.get(metrics.pop() or "", "") if len(metrics) == 1 else ""
        return name if name and all(name in run.measures for run in runs) else "test accuracy"

    @cached_property
    def kinds(self) -> list[str]:
        """Return the kinds of messages with at least one byte in some run, without the total."""
        names = [name for name in self.measures if name.startswith(BYTES)]
        sent = [
            name
            for name in names
            if any(summary.n and summary.mean for summary in self.summarise(measure_of(name)))
        ]
        return [name.removeprefix(BYTES) for name in sent if name != f"{BYTES}total"]


def group(runs: Sequence[Run]) -> list[DataSet]:
    """Group all runs except damaged ones, whose settings are unknown."""
    grouped: defaultdict[str, defaultdict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    about: dict[str, dict[str, Any]] = {}
    for run in runs:
        if run.status != "damaged":
            settings = identity(run.settings)
            of_data = {name: value for name, value in settings.items() if name in DATA}
            checksums = run.summary.get("data_checksums", {})
            of_data |= {f"sha256 of {name}": sha[:8] for name, sha in checksums.items()}
            of_method = {name: value for name, value in settings.items() if name not in DATA}
            data, method = _key(of_data), _key(of_method)
            about |= {data: of_data, method: of_method}
            grouped[data][method].append(run)
    titles = name_methods([about[data] for data in grouped], _data_title)
    data_sets = []
    for title, methods in zip(titles, grouped.values(), strict=True):
        names = name_methods([about[method] for method in methods], _method_title)
        data_sets.append(DataSet(title, list(map(Method, names, methods.values()))))
    return data_sets


def _key(settings: Mapping[str, Any]) -> str:
    """Return settings as one text, equal for equal settings."""
    return json.dumps(settings, sort_keys=True, default=str)


def _data_title(settings: Mapping[str, Any]) -> str:
    """Return the name of a data set with the number of partitions and their method."""
    name = settings.get("dataset_name")
    name = settings.get("dataset_file") if name == "file" else name
    parts = settings.get("num_partitions")
    return (
        f"{name}, {parts} {'part' if parts == 1 else 'parts'} ({settings.get('partition_method')})"
    )


def _method_title(settings: Mapping[str, Any]) -> str:
    """Return the name of a method from its model, trainer (unless lazy) and report.label."""
    trainer = settings.get("trainer.name", settings.get("trainer", "lazy"))
    words = [
        settings.get("model.name"),
        None if trainer == "lazy" else trainer,
        settings.get("report.label"),
    ]
    return " ".join(str(word) for word in words if word is not None)


def name_methods(
    all_settings: Sequence[Mapping[str, Any]], title: Callable[[Mapping[str, Any]], str]
) -> list[str]:
    """Return a name for each method: its title, with differing settings if titles are equal.

    A setting with its usual value is left out. A name above NAME_LENGTH is cut and ends in a
    checksum.
    """
    titles = [title(settings) for settings in all_settings]
    first = dict(zip(reversed(titles), reversed(all_settings), strict=True))  # of each title
    varied: defaultdict[str, set[str]] = defaultdict(set)
    for own, settings in zip(titles, all_settings, strict=True):
        both = settings.keys() | first[own].keys()
        varied[own] |= {name for name in both if settings.get(name) != first[own].get(name)}
    names = []
    for own, settings in zip(titles, all_settings, strict=True):
        usual = _usual_identity(settings.get("dataset_name"))
        departures = [
            f"{GROUP_NAMES.get(name, name)}={format_setting(value)}"
            for name, value in sorted(settings.items())
            if value != usual.get(name) and name in varied[own]
        ]
        name = " ".join([own, *departures])
        if len(name) > NAME_LENGTH:  # the checksum keeps it unique
            name = f"{name[:NAME_LENGTH]} ... {hashlib.sha256(name.encode()).hexdigest()[:8]}"
        names.append(name)
    return names


@cache
def _usual_identity(dataset_name: str | None) -> dict[str, Any]:
    return identity({**usual_values(), "dataset_name": dataset_name})
