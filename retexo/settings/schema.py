"""All settings by dotted name, with their defaults as runs store them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from partitioning.partition_settings import PartitionSettings, task_of_edges
from partitioning.setting_fields import Setting, definitions
from retexo.settings.aliases import ALIASES, REMOVED
from retexo.settings.flatten import flatten
from retexo.settings.options import MODELS, choose_output
from retexo.settings.run_settings import Settings

CONFIG_DIR = next(
    folder / "conf"
    for folder in Path(__file__).resolve().parents[1:3]
    if (folder / "conf").is_dir()
)
"""conf/, which lies inside an installed package and beside it in a checkout."""
CHOSEN_GROUPS = {"model", "split", *(path.name for path in CONFIG_DIR.iterdir() if path.is_dir())}
"""Groups that GROUP=CHOICE sets. Hydra would also take a list of choices, and none for []."""
DEFINED: dict[str, Setting] = {
    setting.key: setting for cls in (Settings, *MODELS.values()) for setting in definitions(cls)
}
"""Dotted name -> definition of every setting, those of one model only included."""
DEFAULTS = flatten({key: setting.default for key, setting in DEFINED.items()})
DATA = frozenset(setting.key for setting in definitions(PartitionSettings))
"""Settings of the graph and its partitions."""


FORMER = {
    name: ALIASES[name] for name in ("split.train_per_class", "split.num_val", "split.num_test")
}
"""Former name of a stored setting -> the current one."""
CONSTANTS = {name: value for name, (value, _) in REMOVED.items()} | {"task.head": "mlp"}
"""Former settings, and the value that the program has had since; of task.head that of `auto`."""
WITHOUT_EFFECT = ("task.neighbour_dropout", "distributed.rejoin_timeout", "remote.cache")
"""Former settings on which no result depends; task.neighbour_dropout followed dropout."""
GONE = REMOVED.keys() | {"model.output"}
"""Settings that runs of earlier versions stored, and no command has."""


def with_current_names(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings (flat), maybe of an earlier version, by the names of today.

    Former settings stay only where they had another value than the program has now.
    """
    has_skip = stored.get("model.input_skip", True)
    output = choose_output(stored.get("trainer.name", "lazy"), input_skip=has_skip)
    constants = {**CONSTANTS, "model.output": output}
    current = {
        name: value
        for name, value in stored.items()
        if name not in (*FORMER, *WITHOUT_EFFECT)
        and not (name in constants and value == constants[name])
    }
    if stored.get("task.head") == "mlp" and stored.get("task.scorer") == "dot":
        current["task.scorer"] = "auto"
    if "task.name" in stored and stored.get("labels.of") == "edges":
        current["task.name"] = task_of_edges(stored["task.name"])
        del current["labels.of"]
    if current.pop("split.stratify", False):
        current["split" if "split" in stored else "split.kind"] = "stratified"
    renamed = {new: stored.get(former) for former, new in FORMER.items()}
    return current | {name: value for name, value in renamed.items() if value is not None}


def keys(role: Callable[[Setting], bool]) -> frozenset[str]:
    """Return the dotted names of the settings for which `role` is true."""
    return frozenset(
        name
        for key, setting in DEFINED.items()
        if role(setting)
        for name in flatten({key: setting.default})
    )


def resolved(value: Any, settings: Mapping[str, Any]) -> Any:
    """Return a default; of one that refers to another setting, "${NAME}", the value in settings."""
    return settings.get(value[2:-1]) if isinstance(value, str) and value.startswith("${") else value


def normal_form(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings (flat) in the form in which runs are compared, by current names.

    Those that a run lacks have their defaults. A list of one entry is that entry, and lists per
    layer have no repeated last entries.
    """
    settings = with_current_names(settings)
    defaults = {name: resolved(value, settings) for name, value in DEFAULTS.items()}
    return {name: _shorten_list(name, value) for name, value in {**defaults, **settings}.items()}


def _shorten_list(name: str, value: Any) -> Any:
    """Return a list without its repeated last entries (lists per layer), or its only entry.

    Other values stay as they are.
    """
    defined = DEFINED.get(name)
    if defined is None or not defined.list_of or not isinstance(value, list):
        return value
    while defined.per_layer and len(value) > 1 and value[-2] == value[-1]:
        value = value[:-1]
    return value[0] if len(value) == 1 else value


def usual_values() -> dict[str, Any]:
    """Return the defaults as runs store them, by dotted name."""
    return flatten(Settings().stored)
