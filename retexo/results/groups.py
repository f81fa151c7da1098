"""Groups of runs: a data set has methods, and the runs of a method differ only in their seeds."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retexo.results.runs import Run, identity
from retexo.settings.schema import DATA, keys, usual_values

if TYPE_CHECKING:
    from pandas import Series

NAME_LENGTH = 200
"""Longest name that is shown."""
HEADLINES = {
    "roc_auc": "test ROC AUC",
    "average_precision": "test average precision",
    "macro_f1": "test macro F1",
    "balanced_accuracy": "test balanced accuracy",
    "micro_f1": "test micro F1",
}
"""Setting stopping.metric -> measure."""
GROUP_NAMES = {key: key.partition(".")[0] for key in keys(lambda setting: setting.is_group)}
"""Setting that a file of conf/GROUP sets -> GROUP, its name for users."""


@dataclass(frozen=True, eq=False)
class Method:
    """A method on one data set: runs with equal settings except seeds."""

    name: str
    runs: list[Run]
    """Runs of every status."""

    @property
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

    def sample(self, measure: Callable[[Run], float | None]) -> "Series":
        """Return one value for each draw of the seeds that has one, the mean of repeated draws."""
        import pandas as pd  # of the extra `report`, like matplotlib and Jinja2

        draws = [run.draw for run in self.done]
        values = pd.Series(map(measure, self.done), index=draws, dtype=float)
        return values.groupby(level=0, sort=False).mean().dropna()


@dataclass(frozen=True, eq=False)
class DataSet:
    """A graph with its split and partitions, and the methods trained on it."""

    name: str
    methods: list[Method]

    @property
    def measures(self) -> set[str]:
        """Names of measures that at least one finished run has."""
        return {name for method in self.methods for run in method.done for name in run.measures}

    @property
    def headline(self) -> str:
        """Return the test measure to compare methods by: what stopping used, if all have it."""
        others = [name for name in ("test MRR", "test R2") if name in self.measures]
        if others:
            return others[0]
        runs = [run for method in self.methods for run in method.done]
        metrics = {run.metric for run in runs}
        name = HEADLINES.get(metrics.pop() or "", "") if len(metrics) == 1 else ""
        return name if name and all(name in run.measures for run in runs) else "test accuracy"


def group(runs: Sequence[Run]) -> list[DataSet]:
    """Group all runs except damaged ones, whose settings are unknown."""
    grouped: defaultdict[str, defaultdict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    about: dict[str, dict[str, Any]] = {}
    for run in runs:
        if run.status != "damaged":
            settings = identity(run.settings)
            of_data = {name: value for name, value in settings.items() if name in DATA}
            of_data |= {f"sha256 of {name}": sha[:8] for name, sha in run.data_checksums.items()}
            of_method = {name: value for name, value in settings.items() if name not in DATA}
            data, method = _key(of_data), _key(of_method)
            about |= {data: of_data, method: of_method}
            grouped[data][method].append(run)
    titles = name_methods([about[data] for data in grouped], _data_title)
    return [
        DataSet(title, _name_groups(methods, about))
        for title, methods in zip(titles, grouped.values(), strict=True)
    ]


def _name_groups(
    methods: Mapping[str, list[Run]], about: Mapping[str, dict[str, Any]]
) -> list[Method]:
    """Name the methods of a data set by their settings, both by key."""
    names = name_methods([about[method] for method in methods], _method_title)
    return [Method(name, runs) for name, runs in zip(names, methods.values(), strict=True)]


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
    """Return the name of a method from its model, trainer and report.label."""
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
    """Return a name for each method: its title, with differing settings if titles are equal."""
    titles = [title(settings) for settings in all_settings]
    names = []
    for own, settings in zip(titles, all_settings, strict=True):
        others = [other for name, other in zip(titles, all_settings, strict=True) if name == own]
        usual = identity({**usual_values(), "dataset_name": settings.get("dataset_name")})
        departures = [
            f"{GROUP_NAMES.get(name, name)}={_format_value(value)}"
            for name, value in sorted(settings.items())
            if value != usual.get(name) and any(other.get(name) != value for other in others)
        ]
        names.append(_shorten(" ".join([own, *departures])))
    return names


def _shorten(name: str) -> str:
    """Shorten a long name; a checksum keeps it unique."""
    if len(name) <= NAME_LENGTH:
        return name
    return f"{name[:NAME_LENGTH]} ... {hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _format_value(value: Any) -> str:
    """Format a setting's value briefly: 30 for [30]."""
    if isinstance(value, list | tuple):
        return ",".join(map(_format_value, value))
    return value if isinstance(value, str) else json.dumps(value, default=str)
