"""Defines a setting once, as a field of a dataclass with key, default, help text, checks and role.

The configuration schema, `--help`, docs/settings.md and the comparison of two runs are read from
these fields.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_type_hints

from partitioning.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """A condition on a value, and the end of the message for a value that does not meet it."""

    holds: Callable[[Any], bool]
    remedy: str
    choices: tuple[str, ...] = ()
    """All allowed values, where the condition is a list of them."""

    def __call__(self, name: str, value: Any) -> None:
        """InputError for a value that does not meet the condition; None passes."""
        if value is not None and not self.holds(value):
            raise InputError(f"{name}={value}: {self.remedy}")


def one_of(*choices: str) -> Check:
    return Check(lambda value: value in choices, f"choose one of {', '.join(choices)}", choices)


def at_least(least: float) -> Check:
    return Check(lambda value: value >= least, f"must be at least {least}")


def number_or(word: str, least: float) -> Check:
    return Check(
        lambda value: value == word if isinstance(value, str) else value >= least,
        f"must be at least {least}, or {word}",
    )


def at_most(most: float) -> Check:
    return Check(lambda value: value <= most, f"must be at most {most:,}")


def within(least: float, most: float) -> Check:
    return Check(lambda value: least <= value <= most, f"must be in [{least}, {most}]")


FINITE = Check(math.isfinite, "must be finite")
SEED = (
    at_least(0),
    at_most(2**32 - 1),
)  # torch and numpy take larger ones, but not each of their generators


@dataclass(frozen=True)
class Setting:
    """The definition of a setting, but for its type, which is that of the field."""

    key: str
    """Dotted name on the command line; GROUP.* for whatever else is given in that group."""
    default: Any
    """A JSON value; "${NAME}" for that of another setting. With None the setting may be null."""
    help: str
    checks: tuple[Check, ...] = ()
    """Of the value, or of each entry of a list."""
    is_group: bool = False
    """Set by a file of conf/GROUP, as GROUP=FILE; GROUP is then its name for users."""
    per_layer: bool = False
    """A list with one entry per layer."""
    per_node: bool = False
    """It may differ between the nodes of a run, and when a run is resumed."""
    compared: bool = True
    """Whether two runs that differ in it are different experiments, so that a report keeps them
    apart."""
    is_seed: bool = False
    """It says which draw of an experiment a run is."""
    earlier: Any = None
    """Its value in checkpoints and runs from before it existed, where that is not the default."""
    of_partitioner: bool = False
    """Only whoever sees the whole graph can act on it."""

    @property
    def name(self) -> str:
        return self.key.split(".")[0] if self.is_group else self.key

    @property
    def before(self) -> Any:
        """Its value in a run from before it existed."""
        return self.default if self.earlier is None else self.earlier


def setting(key: str, default: Any, help: str, *checks: Check, **flags: Any) -> Any:
    """A field of a dataclass of settings; for the arguments see `Setting`."""
    return field(metadata={"setting": Setting(key, default, help, checks, **flags)})


@dataclass_transform(frozen_default=True, field_specifiers=(setting,))
def settings_dataclass(cls: type[T]) -> type[T]:
    """A frozen dataclass; type checkers see that a field made by `setting` has to be given."""
    return dataclass(frozen=True)(cls)


def definitions(cls: Any) -> Iterator[tuple[Setting, Any]]:
    """Every setting of a dataclass with its type, and those of the dataclasses that it has as
    fields.
    """
    hints = get_type_hints(cls)
    for each in fields(cls):
        if "setting" in each.metadata:
            yield each.metadata["setting"], hints[each.name]
        elif is_dataclass(hints[each.name]):
            yield from definitions(hints[each.name])


class Checked:
    """Base of the dataclasses of settings: values are checked where one is made; InputError names
    the setting.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        for each in fields(self):
            if "setting" in each.metadata:
                check(each.metadata["setting"], getattr(self, each.name))


def check(defined: Setting, value: Any) -> None:
    """InputError for a value that a check of the setting refuses."""
    for entry in value if isinstance(value, tuple) else (value,):
        for condition in defined.checks:
            condition(defined.name, entry)
