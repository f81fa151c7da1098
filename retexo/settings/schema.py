"""Conversion of a configuration to settings dataclasses, whose fields define names and types."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, make_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from partitioning.errors import InputError
from partitioning.partition_settings import PartitionSettings
from partitioning.setting_fields import Setting, definitions
from retexo.settings.communication_settings import chosen_by_network
from retexo.settings.flatten import flatten, nest
from retexo.settings.run_settings import AUTO, Settings

PACKAGE = Path(__file__).resolve().parents[1]
CONFIG_DIR = next(
    folder for folder in (PACKAGE / "conf", PACKAGE.parent / "conf") if folder.is_dir()
)
"""conf/, which lies inside an installed package and beside it in a checkout."""
T = TypeVar("T")
DEFINED: dict[str, tuple[Setting, Any]] = {
    defined.key: (defined, hint) for defined, hint in definitions(Settings)
}
"""Dotted name -> definition and type of every setting."""
PER_LAYER = frozenset(key for key, (defined, _) in DEFINED.items() if defined.per_layer)
DATA = frozenset(defined.key for defined, _ in definitions(PartitionSettings))
"""Settings of the graph and its partitions."""
LISTS = frozenset(
    key
    for key, (_, hint) in DEFINED.items()
    if any(get_origin(kind) is tuple for kind in (hint, *get_args(hint)))
) | {"features.kind"}
"""Settings with a list as value; one value means a list of it. features.kind may be a mapping."""
REST = ".*"
"""Suffix of the setting that collects undeclared settings of its group."""


def keys(role: Callable[[Setting], bool]) -> frozenset[str]:
    """Return the dotted names of the settings for which `role` is true."""
    return frozenset(key for key, (defined, _) in DEFINED.items() if role(defined))


def default(key: str, settings: Mapping[str, Any]) -> Any:
    """Return the value of a setting that a stored run lacks, given its other settings (flat).

    None if there is no such setting.
    """
    value = DEFINED[key][0].default if key in DEFINED else None
    return settings.get(value[2:-1]) if isinstance(value, str) and value.startswith("${") else value


def defaults(cls: Any = Settings) -> dict[str, Any]:
    """Return the defaults of a settings dataclass, nested, for Hydra's ConfigStore."""
    return nest(
        {
            defined.key: defined.default
            for defined, _ in definitions(cls)
            if not defined.key.endswith(REST)
        }
    )


def usual_values() -> dict[str, Any]:
    """Return the defaults as runs store them, by dotted name."""
    values = flatten(defaults())
    return values | chosen_by_network(values)


def _schema(types: Mapping[str, Any], name: str = "Configuration") -> type:
    """Make a structured config for OmegaConf; {"a": {"b": int}} declares the setting a.b."""
    made = [
        (key, _schema(value, key) if isinstance(value, dict) else value)
        for key, value in types.items()
    ]
    return make_dataclass(name, made)


def given_type(defined: Setting, hint: Any) -> Any:
    """Return the type of a setting in a configuration: list for tuple, optional if null."""
    nullable = get_origin(hint) is UnionType
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] if nullable else [hint]
    required = kinds[0] if len(kinds) == 1 else hint
    given: Any = list[get_args(required)[0]] if get_origin(required) is tuple else required  # type: ignore[misc]
    return given | None if nullable or (defined.default is None and given is not Any) else given


SCHEMA = _schema(
    nest({key: given_type(*found) for key, found in DEFINED.items() if not key.endswith(REST)})
)


def typed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return typed values by dotted name; raises OmegaConf's error for a wrong name or type."""
    rest: dict[str, Any] = {}
    named = as_lists(given)
    for key in (key for key in DEFINED if key.endswith(REST)):
        group = key.removesuffix(REST)
        block = named.get(group)
        if isinstance(block, Mapping):
            rest[key] = {
                str(name): value
                for name, value in block.items()
                if f"{group}.{name}" not in DEFINED
            }
            named[group] = {
                name: value for name, value in block.items() if f"{group}.{name}" in DEFINED
            }
    merged = OmegaConf.merge(OmegaConf.structured(SCHEMA), named)
    nested = OmegaConf.to_container(merged, throw_on_missing=True)
    return {key: rest[key] if key in rest else _take_nested(nested, key) for key in DEFINED}


def plain(value: Any, name: str = "") -> Any:
    """Return a configuration as JSON values; integer keys, such as column names, become text.

    Raises:
        InputError: A key is neither text nor integer, or a number exceeds the range of floats.
    """
    if isinstance(value, dict):
        made = {}
        for key, inner in value.items():
            if type(key) not in (str, int):
                raise InputError(
                    f"{name}: the key {key} is no text; quote it, in a file of --config-dir"
                )
            made[str(key)] = plain(inner, f"{name}.{key}" if name else str(key))
        return made
    if isinstance(value, list):
        return [plain(inner, name) for inner in value]
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise InputError(
            f"{name}: a number of more than {sys.float_info.max_10_exp} digits; choose a"
            " smaller one"
        )
    return value


def as_lists(given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Replace single values of list settings by lists."""
    made = dict(given)
    for name, value in given.items():
        if isinstance(value, Mapping):
            made[name] = as_lists(value, f"{prefix}{name}.")
        elif prefix + name in LISTS and value is not None and not isinstance(value, list):
            made[name] = [value]
    return made


def _take_nested(nested: Any, key: str) -> Any:
    """Return the value at a dotted name of nested settings."""
    for part in key.split("."):
        nested = nested[part]
    return nested


def build(cls: type[T], values: Mapping[str, Any], others: Mapping[str, Any]) -> T:
    """Build a settings dataclass with its nested ones.

    Args:
        cls: The dataclass.
        values: Values by dotted name.
        others: Values of fields that are not settings, by field name.

    Raises:
        InputError: A value fails a check.
    """
    hints = get_type_hints(cls)
    made: dict[str, Any] = {}
    for each in fields(cls):  # type: ignore[arg-type]
        if "setting" in each.metadata:
            made[each.name] = _convert_value(each.metadata["setting"], values)
        elif is_dataclass(hints[each.name]):
            made[each.name] = build(hints[each.name], values, others)
        elif each.name in others:
            made[each.name] = others[each.name]
    return cls(**made)


def _convert_value(defined: Setting, values: Mapping[str, Any]) -> Any:
    """Return the given value of a setting, a list as a tuple.

    Lists per layer are cut, or extended by their last entry. InputError for an empty or nested
    list.
    """
    value = values[defined.key]
    if not isinstance(value, list):
        return value
    if not value:
        raise InputError(f"{defined.key}=[]: needs at least one entry")
    if any(isinstance(entry, list | dict) for entry in value):  # OmegaConf lets them pass
        raise InputError(f"{defined.key}={value}: each entry must be a number or a word")
    if not defined.per_layer:
        return tuple(value)
    num_layers = values["max_layers" if values["num_layers"] == AUTO else "num_layers"]
    return tuple(value[min(layer, len(value) - 1)] for layer in range(num_layers))


def typed_options(group: str, options: Mapping[str, Any], schema: type[T]) -> T:
    """Return the settings GROUP.* of a trainer or model as its dataclass.

    Raises:
        InputError: A setting is unknown, missing, of a wrong type, or fails a check.
    """
    types = {
        defined.key.removeprefix(f"{group}."): given_type(defined, hint)
        for defined, hint in definitions(schema)
    }
    if not types and not options:
        return schema()
    try:
        merged = OmegaConf.merge(OmegaConf.structured(_schema(types)), dict(options))
        values: Any = OmegaConf.to_container(merged, throw_on_missing=True)
    except (ConfigKeyError, ConfigAttributeError) as error:
        known = ", ".join(f"{group}.{name}" for name in types)
        raise InputError(
            f"{group}.{error.key}: no such setting; there is {known or 'none'}"
        ) from error
    except OmegaConfBaseException as error:
        raise InputError(
            f"{group}.{error.full_key}: {str(error.msg or error).splitlines()[0]}"
        ) from error
    return schema(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
    )
