"""Definition of a setting: a dataclass field with name, default, help text, checks and role.

Configuration schema, `--help`, docs/settings.md and the comparison of runs are made from these
fields.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_type_hints

from partitioning.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """A condition on a value, and the remedy for the message about any other value."""

    holds: Callable[[Any], bool]
    remedy: str
    choices: tuple[str, ...] = ()
    """All allowed values, if they are listed."""

    def __call__(self, name: str, value: Any) -> None:
        """Raise InputError unless the value is None or fulfils the condition."""
        if value is not None and not self.holds(value):
            raise InputError(f"{name}={value}: {self.remedy}")


def one_of(*choices: str) -> Check:
    """Return the check that a value is one of these words."""
    return Check(lambda value: value in choices, f"choose one of {', '.join(choices)}", choices)


def at_least(least: float) -> Check:
    """Return the check that a value is at least `least`."""
    return Check(lambda value: value >= least, f"must be at least {least}")


def number_or(word: str, least: float, most: float = math.inf) -> Check:
    """Return the check that a value is this word, or a number within limits."""
    limits = f"at least {least}" if most == math.inf else f"in [{least}, {most}]"
    return Check(
        lambda value: value == word if isinstance(value, str) else least <= value <= most,
        f"must be {limits}, or {word}",
    )


def at_most(most: float) -> Check:
    """Return the check that a value is at most `most`."""
    return Check(lambda value: value <= most, f"must be at most {most:,}")


def within(least: float, most: float) -> Check:
    """Return the check that a value is in [least, most]."""
    return Check(lambda value: least <= value <= most, f"must be in [{least}, {most}]")


FINITE = Check(math.isfinite, "must be finite")
SEED = (at_least(0), at_most(2**32 - 1))  # the range of NumPy's legacy generators


@dataclass(frozen=True)
class Setting:
    """Definition of a setting. Its type is the type of the field."""

    key: str
    """Dotted name on the command line; GROUP.* collects undeclared settings of a group."""
    default: Any
    """JSON value; "${NAME}" refers to another setting. None makes the setting optional."""
    help: str
    checks: tuple[Check, ...] = ()
    """Checks of the value, or of each entry of a list."""
    is_group: bool = False
    """Chosen as GROUP=FILE from conf/GROUP; users know it as GROUP."""
    per_layer: bool = False
    """Whether it is a list with one entry per layer."""
    per_node: bool = False
    """Whether it may differ between nodes, and from the run that is resumed."""
    compared: bool = True
    """Whether reports separate runs that differ in it."""
    is_seed: bool = False
    """Whether it is a random seed: reports average over it."""
    of_partitioner: bool = False
    """Used only when partitioning."""

    @property
    def name(self) -> str:
        return self.key.split(".")[0] if self.is_group else self.key


def setting(key: str, default: Any, help: str, *checks: Check, **flags: Any) -> Any:
    """Return a dataclass field for a setting; the arguments are the fields of `Setting`."""
    return field(metadata={"setting": Setting(key, default, help, checks, **flags)})


@dataclass_transform(frozen_default=True, field_specifiers=(setting,))
def settings_dataclass(cls: type[T]) -> type[T]:
    """Make a frozen dataclass. Type checkers treat fields made by `setting` as required."""
    return dataclass(frozen=True)(cls)


def definitions(cls: Any) -> Iterator[tuple[Setting, Any]]:
    """Yield every setting of a dataclass and of its nested dataclasses, with its type."""
    hints = get_type_hints(cls)
    for each in fields(cls):
        if "setting" in each.metadata:
            yield each.metadata["setting"], hints[each.name]
        elif is_dataclass(hints[each.name]):
            yield from definitions(hints[each.name])


class Checked:
    """Base of settings dataclasses. Instances check their values; InputError names the setting."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        for each in fields(self):
            if "setting" in each.metadata:
                check(each.metadata["setting"], getattr(self, each.name))


def check(defined: Setting, value: Any) -> None:
    """Raise InputError if a value fails a check of its setting."""
    for entry in value if isinstance(value, tuple) else (value,):
        for condition in defined.checks:
            condition(defined.name, entry)
