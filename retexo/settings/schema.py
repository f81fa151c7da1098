"""From a configuration to the dataclasses of settings: names, types, defaults and roles are read from these."""

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
from retexo.settings.flatten import nest
from retexo.settings.run_settings import Settings

PACKAGE = Path(__file__).resolve().parents[1]
CONFIG_DIR = next(
    folder for folder in (PACKAGE / "conf", PACKAGE.parent / "conf") if folder.is_dir()
)
"""conf/: in an installed package within it, in a checkout beside it."""
T = TypeVar("T")
DEFINED: dict[str, tuple[Setting, Any]] = {
    defined.key: (defined, hint) for defined, hint in definitions(Settings)
}
"""Every setting with its type, by dotted name."""
PER_LAYER = frozenset(key for key, (defined, _) in DEFINED.items() if defined.per_layer)
DATA = frozenset(defined.key for defined, _ in definitions(PartitionSettings))
"""The settings that say what graph is trained on, and how it is cut."""
LISTS = frozenset(
    key
    for key, (_, hint) in DEFINED.items()
    if any(get_origin(kind) is tuple for kind in (hint, *get_args(hint)))
) | {"features.kind"}
"""The settings that are lists; one value stands for a list of it. features.kind may be a mapping, too."""
REST = ".*"
"""How the name of what else is given in a group ends."""


def keys(role: Callable[[Setting], bool]) -> frozenset[str]:
    """Dotted names of the settings that have a role."""
    return frozenset(key for key, (defined, _) in DEFINED.items() if role(defined))


def default(key: str, settings: Mapping[str, Any]) -> Any:
    """The value of a setting in a run from before it existed, beside its others (flat); None for unknown names."""
    value = DEFINED[key][0].before if key in DEFINED else None
    return settings.get(value[2:-1]) if isinstance(value, str) and value.startswith("${") else value


def defaults(cls: Any = Settings) -> dict[str, Any]:
    """The default of every setting of a dataclass, nested, as Hydra composes from."""
    return nest(
        {
            defined.key: defined.default
            for defined, _ in definitions(cls)
            if not defined.key.endswith(REST)
        }
    )


def _schema(types: Mapping[str, Any], name: str = "Configuration") -> type:
    """A dataclass that OmegaConf checks names and types against; {"a": {"b": int}} is the setting a.b."""
    made = [
        (key, _schema(value, key) if isinstance(value, dict) else value)
        for key, value in types.items()
    ]
    return make_dataclass(name, made)


def given_type(defined: Setting, hint: Any) -> Any:
    """The type that a setting is given in: lists for tuples, optional where the default is null."""
    nullable = get_origin(hint) is UnionType
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] if nullable else [hint]
    required = kinds[0] if len(kinds) == 1 else hint
    given: Any = list[get_args(required)[0]] if get_origin(required) is tuple else required  # type: ignore[misc]
    return given | None if nullable or (defined.default is None and given is not Any) else given


SCHEMA = _schema(
    nest({key: given_type(*found) for key, found in DEFINED.items() if not key.endswith(REST)})
)


def typed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted name from nested ones, each of its type; OmegaConf's error for a wrong name or type."""
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
    return {key: rest[key] if key in rest else _at(nested, key) for key in DEFINED}


def plain(value: Any, name: str = "") -> Any:
    """A configuration as JSON can hold it: keys that are whole numbers, such as names of columns, become text.

    Raises InputError for other keys that are no text, and for numbers that no float can hold.
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
            f"{name}: a number of more than {sys.float_info.max_10_exp} digits; choose a smaller one"
        )
    return value


def as_lists(given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with one value that stands for a list as a list of it."""
    made = dict(given)
    for name, value in given.items():
        if isinstance(value, Mapping):
            made[name] = as_lists(value, f"{prefix}{name}.")
        elif prefix + name in LISTS and value is not None and not isinstance(value, list):
            made[name] = [value]
    return made


def _at(nested: Any, key: str) -> Any:
    for part in key.split("."):
        nested = nested[part]
    return nested


def build(cls: type[T], values: Mapping[str, Any], others: Mapping[str, Any]) -> T:
    """A dataclass of settings, and those within it, from values by dotted name; InputError for a value that is refused.

    others: values of fields that are no settings, by the field's name.
    """
    hints = get_type_hints(cls)
    made: dict[str, Any] = {}
    for each in fields(cls):  # type: ignore[arg-type]
        if "setting" in each.metadata:
            made[each.name] = _value(each.metadata["setting"], values)
        elif is_dataclass(hints[each.name]):
            made[each.name] = build(hints[each.name], values, others)
        elif each.name in others:
            made[each.name] = others[each.name]
    return cls(**made)


def _value(defined: Setting, values: Mapping[str, Any]) -> Any:
    """A list as a tuple; of one per layer extra entries are ignored, a short one goes on with its last entry."""
    value = values[defined.key]
    if not isinstance(value, list):
        return value
    if not value:
        raise InputError(f"{defined.key}=[]: needs at least one entry")
    if any(isinstance(entry, list | dict) for entry in value):  # OmegaConf lets them pass
        raise InputError(f"{defined.key}={value}: each entry must be a number or a word")
    if not defined.per_layer:
        return tuple(value)
    return tuple(value[min(layer, len(value) - 1)] for layer in range(values["num_layers"]))


def typed_options(group: str, options: Mapping[str, Any], schema: type[T]) -> T:
    """The settings GROUP.* of a trainer or a model as its dataclass `Options`.

    Raises InputError, which names what is unknown, missing, of another type, or refused by a check.
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
