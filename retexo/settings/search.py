"""`objective`: the number that a run returns to a sweeper of Hydra, which searches for settings."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from partitioning.errors import InputError
from retexo.errors import TrainingError
from retexo.scores import SCORES
from retexo.settings.flatten import flatten

COSTS = r"(bytes|seconds)(\.\w+)+"
MAX_NAME = 120
"""Longest name of a job's folder."""


def leave_out_fixed(overrides: Sequence[str]) -> str:
    """Return the override that leaves settings with one value out of hydra.job.override_dirname.

    Names of jobs then have only what --multirun or a search varies.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser  # workers need none

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    fixed = [
        f"'{override.key_or_group}'" for override in parsed if not override.is_sweep_override()
    ]
    return f"hydra.job.config.override_dirname.exclude_keys=[{','.join(fixed)}]"


def shorten_name(overrides: str) -> str:
    """Return hydra.job.override_dirname as the name of one folder, with short numbers.

    A checksum keeps names apart that differ in what is left out.
    """
    text = re.sub(r"\d+\.\d{4,}(e-?\d+)?", lambda number: f"{float(number[0]):.4g}", overrides)
    name = text.replace("/", "_")
    digest = hashlib.sha256(overrides.encode()).hexdigest()[:8]
    return name if name == overrides and len(name) <= MAX_NAME else f"{name[:MAX_NAME]}-{digest}"


def check_objective(name: str, *, of_links: bool) -> None:
    """Raise InputError for a name that is no number of summary.json."""
    scores = [score for score in SCORES if SCORES[score].of_nodes != of_links]
    numbers = rf"(train|val|test)\.({'|'.join(scores)}|hits@\d+|ogb_\w+)|{COSTS}"
    if re.fullmatch(numbers, name) is None:
        raise InputError(
            f"objective={name}: must be a number of summary.json: val.NAME or test.NAME with one of"
            f" {', '.join(scores)}, hits@20; or bytes.total, seconds.train and the like"
        )


def is_better_when_less(name: str) -> bool:
    """Return whether an objective is to be minimised: a loss, an error or a cost."""
    score = SCORES.get(name.rpartition(".")[2])
    return re.fullmatch(COSTS, name) is not None if score is None else score.less_is_better


def check_direction(
    objective: Sequence[str] | None, metric: str, sweeper: Any, *, regression: bool = False
) -> None:
    """Raise InputError where Optuna's sweeper would look for the worst run.

    Args:
        objective: the setting; None or empty for the validation score that `metric` names.
        metric: the setting stopping.metric.
        sweeper: configuration of the sweeper; without a direction (not Optuna's), all is right.
        regression: whether the task is one, of nodes or edges.
    """
    direction = sweeper.get("direction")
    if direction is None:
        return
    names = objective or [f"val.{_default_score(metric, regression=regression)}"]
    needed = ["minimize" if is_better_when_less(name) else "maximize" for name in names]
    is_list = isinstance(direction, Sequence) and not isinstance(direction, str)
    given = [
        str(getattr(value, "name", value)) for value in (direction if is_list else [direction])
    ]
    if given != needed:
        expected = ",".join(needed) if len(needed) == 1 else f"[{','.join(needed)}]"
        what = f"objective={','.join(objective)}" if objective else "the validation metric"
        raise InputError(
            f"hydra.sweeper.direction={','.join(given)}: {what} needs"
            f" hydra.sweeper.direction={expected}; set it"
        )


def find_objective(result: Any, objective: Sequence[str] | None) -> float | list[float] | None:
    """Return the number that a job returns, or several in the order of `objective`.

    Args:
        result: content of summary.json or seeds.json; None is returned if it is no mapping.
        objective: the setting; None: the validation metric that stopping looked at. Of a result
            without one, None is returned.

    Raises:
        TrainingError: the result has no such number.
    """
    if not isinstance(result, Mapping):
        return None
    if objective is None:
        metric = result.get("chosen", {}).get("metric")
        score = _default_score(str(metric), regression="r2" in (result.get("val") or {}))
        return _find_number(result, f"val.{score}")
    values: list[Any] = [_find_number(result, name) for name in objective]
    if None in values:
        name = objective[values.index(None)]
        group = name.partition(".")[0]
        there = [known for known in flatten(result) if known.startswith(f"{group}.")]
        raise TrainingError(
            f"objective={name}: has no value in this run; there is"
            f" {', '.join(there) or 'nothing of that name'}"
        )
    return values[0] if len(values) == 1 else values


def _default_score(metric: str, *, regression: bool) -> str:
    """Return the score of a run without `objective`, from the metric that stopping looks at."""
    return {"loss": "r2" if regression else "log_loss"}.get(metric, metric)


def _find_number(result: Mapping[str, Any], name: str) -> float | None:
    """Return a number by its dotted name; of several seeds their mean. None where there is none."""
    values = flatten(result)
    value = values.get(name, values.get(f"{name}.mean"))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
