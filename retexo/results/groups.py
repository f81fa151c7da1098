"""Groups of runs: a data set has methods, and the runs of a method differ only in their seeds."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from retexo.results.formats import format_setting
from retexo.results.runs import BYTES, Run, identity
from retexo.scores import SCORES
from retexo.settings.schema import DATA, keys, usual_values

CONFIDENCE = 0.95
"""Of the interval of a paired difference."""
NAME_LENGTH = 200
"""Longest name that is shown."""
HEADLINES = {name: f"test {score.label}" for name, score in SCORES.items() if score.stops}
"""Setting stopping.metric -> measure."""
GROUP_NAMES = {key: key.partition(".")[0] for key in keys(lambda setting: setting.is_group)}
"""Setting that a file of conf/GROUP sets -> GROUP, its name for users."""


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


@dataclass(frozen=True, eq=False)
class DataSet:
    """A graph with its split and partitions, and the methods trained on it."""

    name: str
    methods: list[Method]

    def average_draws(self, read: Callable[[Run], Mapping[str, Any]]) -> Any:
        """Return numbers of the finished runs; runs that repeat a draw of the seeds are averaged.

        Args:
            read: returns numbers of a run by name; None or a missing one counts in no mean, of
                bytes as 0.

        Returns:
            A DataFrame: a column per name; rows by number of the method and draw.
        """
        import pandas as pd

        runs = [(number, run) for number, method in enumerate(self.methods) for run in method.done]
        rows = [[number for number, _ in runs], [run.draw for _, run in runs]]
        table: Any = pd.DataFrame([read(run) for _, run in runs], index=rows, dtype=float)
        absent = {name: 0.0 for name in table if name.startswith(BYTES)}  # kinds not sent
        return table.fillna(absent).groupby(level=[0, 1], sort=False).mean()

    def summarise(self, draws: Any) -> Any:
        """Return count, mean and std (sample deviation) over draws: a DataFrame, a row per method.

        Columns are by name and statistic; NaN without a value, or a deviation.
        """
        import pandas as pd

        by_method, statistics = draws.groupby(level=0), ("count", "mean", "std")
        table = pd.concat({of: getattr(by_method, of)() for of in statistics}, axis=1)
        columns = pd.MultiIndex.from_product([draws.columns, statistics])
        return table.swaplevel(axis=1).reindex(range(len(self.methods)), columns=columns)

    @cached_property
    def draws(self) -> Any:
        """The measures of `average_draws`."""
        return self.average_draws(lambda run: run.measures)

    @cached_property
    def summary(self) -> Any:
        """The measures of `summarise`."""
        return self.summarise(self.draws)

    @cached_property
    def headline(self) -> str:
        """Return the name of the test measure to compare methods by.

        MRR or R2 if a run has it, else the metric of early stopping if all runs have it, else
        accuracy.
        """
        others = [name for name in ("test MRR", "test R2") if name in self.draws]
        if others:
            return others[0]
        metrics = {run.metric for method in self.methods for run in method.done}
        name = HEADLINES.get(metrics.pop() or "", "") if len(metrics) == 1 else ""
        return name if name in self.draws and self.draws[name].notna().all() else "test accuracy"

    @cached_property
    def kinds(self) -> list[str]:
        """Return the kinds of messages with at least one byte in some run, without the total."""
        sent = [name for name in self.draws if name.startswith(BYTES) and self.draws[name].any()]
        return [name.removeprefix(BYTES) for name in sent if name != f"{BYTES}total"]


def group(runs: Sequence[Run]) -> list[DataSet]:
    """Group all runs except damaged ones, whose settings are unknown.

    Data sets and methods are in the order of their first runs.
    """
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


# --- paired differences of two methods ----------


def compare_pairs(first: Any, second: Any) -> dict[str, float] | None:
    """Compare two methods, the second minus the first, on their common draws; None: under two.

    Args:
        first, second: scores by draw, as a mapping or a Series.

    Returns:
        n, mean, and the ends low and high of the 95 % interval of the mean by Student's t.
    """
    import pandas as pd
    from scipy.special import stdtrit  # scipy.stats takes half a second to load

    pairs: Any = (pd.Series(second, dtype=float) - pd.Series(first, dtype=float)).dropna()
    if len(pairs) < 2:
        return None
    mean, half = pairs.mean(), pairs.sem() * stdtrit(len(pairs) - 1, (1 + CONFIDENCE) / 2)
    ends = {"low": float(mean - half), "high": float(mean + half)}
    return {"n": len(pairs), "mean": float(mean), **ends}
