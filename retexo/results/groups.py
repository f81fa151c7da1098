"""Groups of runs: a data set has methods, and the runs of a method differ only in their seeds."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from retexo.results.runs import Run, identity
from retexo.settings.schema import DATA, keys, usual_values

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
        return len(self.done) - len(self.by_draw(lambda _: 0.0))

    def by_draw(self, measure: Callable[[Run], float | None]) -> dict[str, float | None]:
        """Return one value for each draw of the seeds, averaged over runs that repeat a draw."""
        values: defaultdict[str, list[float]] = defaultdict(list)
        for run in self.done:
            value = measure(run)
            values[run.draw] += [] if value is None else [value]
        return {draw: fmean(found) if found else None for draw, found in values.items()}


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
    known = [
        (run, *_split_data_and_method(identity(run.settings)))
        for run in runs
        if run.status != "damaged"
    ]
    data: dict[str, dict[str, Any]] = {}
    methods: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    members: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for run, about_data, about_method in known:
        data_key, method_key = _key(about_data), _key(about_method)
        data[data_key] = about_data
        methods[data_key][method_key] = about_method
        members[data_key, method_key].append(run)
    titles = name_methods(list(data.values()), _data_title)
    result = []
    for data_key, title in zip(data, titles, strict=True):
        names = name_methods(list(methods[data_key].values()), _method_title)
        keys = zip(names, methods[data_key], strict=True)
        result.append(
            DataSet(
                title, [Method(name, members[data_key, method_key]) for name, method_key in keys]
            )
        )
    return result


def _split_data_and_method(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into those of the data and those of the method."""
    data = {name: value for name, value in settings.items() if name in DATA}
    return data, {name: value for name, value in settings.items() if name not in data}


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
