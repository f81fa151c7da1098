"""Runs in groups: a data set (graph, split, parts) has methods, and a method has runs that differ by seeds alone."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from retexo.results.runs import Run, identity
from retexo.settings.flatten import flatten
from retexo.settings.schema import DATA, defaults, keys

NAME_LENGTH = 200
"""Characters of a name that are shown."""
GROUPS = {key: key.partition(".")[0] for key in keys(lambda setting: setting.is_group)}
"""What users call a setting that a file of conf/GROUP sets."""


@dataclass(frozen=True, eq=False)
class Method:
    """One way to train, on one data set."""

    name: str
    runs: list[Run]
    """Of every status."""

    @property
    def done(self) -> list[Run]:
        return [run for run in self.runs if run.status == "done"]

    def count(self, status: str) -> int:
        return sum(run.status == status for run in self.runs)

    @property
    def repeats(self) -> int:
        """Finished runs of seeds that another one has, too."""
        return len(self.done) - len(self.by_draw(lambda _: 0.0))

    def by_draw(self, measure: Callable[[Run], float | None]) -> dict[str, float | None]:
        """One value for each draw of the seeds: a run that was repeated is no second draw, so repeats are averaged."""
        values: defaultdict[str, list[float]] = defaultdict(list)
        for run in self.done:
            value = measure(run)
            values[run.draw] += [] if value is None else [value]
        return {draw: fmean(found) if found else None for draw, found in values.items()}


@dataclass(frozen=True, eq=False)
class DataSet:
    """A graph with its split and parts, and the methods that were trained on it."""

    name: str
    methods: list[Method]

    @property
    def measures(self) -> set[str]:
        """What any finished run has."""
        return {name for method in self.methods for run in method.done for name in run.measures}

    @property
    def headline(self) -> str:
        """The score that methods are compared by."""
        return "test MRR" if "test MRR" in self.measures else "test accuracy"


def group(runs: Sequence[Run]) -> list[DataSet]:
    """All runs but the damaged ones, whose settings nobody knows."""
    known = [(run, *_halves(identity(run.settings))) for run in runs if run.status != "damaged"]
    data: dict[str, dict[str, Any]] = {}
    methods: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    members: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for run, about_data, about_method in known:
        data_key, method_key = _key(about_data), _key(about_method)
        data[data_key] = about_data
        methods[data_key][method_key] = about_method
        members[data_key, method_key].append(run)
    titles = distinct_names(list(data.values()), _data_title)
    result = []
    for data_key, title in zip(data, titles, strict=True):
        names = distinct_names(list(methods[data_key].values()), _method_title)
        keys = zip(names, methods[data_key], strict=True)
        result.append(
            DataSet(
                title, [Method(name, members[data_key, method_key]) for name, method_key in keys]
            )
        )
    return result


def _halves(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What concerns the data, and what concerns the method."""
    data = {name: value for name, value in settings.items() if name in DATA}
    return data, {name: value for name, value in settings.items() if name not in data}


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


def _data_title(settings: Mapping[str, Any]) -> str:
    name = settings.get("dataset_name")
    name = settings.get("dataset_file") if name == "file" else name
    parts = settings.get("num_partitions")
    return (
        f"{name}, {parts} {'part' if parts == 1 else 'parts'} ({settings.get('partition_method')})"
    )


def _method_title(settings: Mapping[str, Any]) -> str:
    trainer = settings.get("trainer.name", settings.get("trainer", "lazy"))
    words = [
        settings.get("model.name"),
        None if trainer == "lazy" else trainer,
        settings.get("report.label"),
    ]
    return " ".join(str(word) for word in words if word is not None)


def distinct_names(
    all_settings: Sequence[Mapping[str, Any]], title: Callable[[Mapping[str, Any]], str]
) -> list[str]:
    """A name for each: its title, and, where others have the same, what differs between them and is no default."""
    titles = [title(settings) for settings in all_settings]
    names = []
    for own, settings in zip(titles, all_settings, strict=True):
        others = [other for name, other in zip(titles, all_settings, strict=True) if name == own]
        usual = identity({**flatten(defaults()), "dataset_name": settings.get("dataset_name")})
        departures = [
            f"{GROUPS.get(name, name)}={_shown(value)}"
            for name, value in sorted(settings.items())
            if value != usual.get(name) and any(other.get(name) != value for other in others)
        ]
        names.append(_shortened(" ".join([own, *departures])))
    return names


def _shortened(name: str) -> str:
    """The same for names of a usual length; others are told apart by a checksum."""
    if len(name) <= NAME_LENGTH:
        return name
    return f"{name[:NAME_LENGTH]} ... {hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _shown(value: Any) -> str:
    """As short as it can be: 30 for [30], which means each layer."""
    if isinstance(value, list | tuple):
        return ",".join(map(_shown, value))
    return value if isinstance(value, str) else json.dumps(value, default=str)
