"""A setting: a dataclass field with default, help text, checks and role.

A class of settings is a group: `@group("stopping")` holds `stopping.*`, `@group()` names without a
dot. Nested groups are the schema that Hydra composes, `--help`, docs/settings.md, and how runs are
compared.
"""

import copy
import difflib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, FrozenInstanceError, dataclass, field, fields, is_dataclass, replace
from functools import cache
from inspect import get_annotations
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
            raise InputError(f"{name}={value}: {did_you_mean(value, self.choices)}{self.remedy}")


def did_you_mean(value: Any, choices: Sequence[str]) -> str:
    """Return a question with the choice that is misspelt, and a space; empty if none is near."""
    nearest = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.8)
    return f"did you mean {nearest[0]}? " if nearest else ""


def one_of(*choices: str) -> Check:
    """Return the check that a value is one of these words."""
    return Check(lambda value: value in choices, f"choose one of {', '.join(choices)}", choices)


def at_least(least: float) -> Check:
    """Return the check that a value is at least `least`."""
    return Check(lambda value: value >= least, f"must be at least {least}")


def at_most(most: float) -> Check:
    """Return the check that a value is at most `most`."""
    return Check(lambda value: value <= most, f"must be at most {most:,}")


def within(least: float, most: float) -> Check:
    """Return the check that a value is in [least, most]."""
    return Check(lambda value: least <= value <= most, f"must be in [{least}, {most}]")


def refuse(*rules: tuple[bool, str]) -> None:
    """Raise InputError with the message of the first rule whose condition is true."""
    for is_wrong, message in rules:
        if is_wrong:
            raise InputError(message)


TOO_LARGE = f"a number of more than {sys.float_info.max_10_exp} digits; choose a smaller one"
FINITE = Check(math.isfinite, "must be finite")
SEED = (at_least(0), at_most(2**32 - 1))  # the range of NumPy's legacy generators


@dataclass(frozen=True)
class Setting:
    """What the metadata of a field say about a setting."""

    help: str
    checks: tuple[Check, ...] = ()
    """Checks of the value, or of each entry of a list."""
    list_of: type | None = None
    """Type of an entry of a list; the field is Any, and one value means a list of it."""
    by_name: bool = False
    """Whether a mapping may stand for the list: a value of `list_of`, or several, for each name."""
    is_group: bool = False
    """Chosen as GROUP=FILE; users know it as GROUP."""
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
    key: str = ""
    """Dotted name on the command line; this and the next three are known within a group only."""
    default: Any = None
    """JSON value; "${NAME}" refers to another setting. None makes the setting optional."""
    type: Any = None
    """Type of the field."""
    owner: Any = None
    """The class that defines it."""

    @property
    def name(self) -> str:
        """Return the name that users know."""
        return self.key.rpartition(".")[0] if self.is_group else self.key

    @property
    def choices(self) -> tuple[str, ...]:
        """All allowed values, if they are listed."""
        return next((check.choices for check in self.checks if check.choices), ())

    def normalise(self, value: Any) -> Any:
        """Return a checked value; a list, or one value in place of it, as a tuple of its type.

        One value stays alone where the default is a word. An interpolation (${...}) stays
        unchecked. With `by_name`, a mapping gives a value or a tuple for each name. InputError
        names the setting.
        """
        if isinstance(value, str) and value.startswith("${"):  # OmegaConf resolves it later
            return value
        if self.list_of is None or (value is None and self.default is None):
            return self._check(value)
        if self.by_name and isinstance(value, Mapping) and value:
            return {str(name): self._read(entry) for name, entry in value.items()}
        read = self._read(value)
        # OmegaConf lets a mapping replace a default that is a word, but none that is a list.
        return read if isinstance(read, tuple) or isinstance(self.default, str) else (read,)

    def _read(self, value: Any) -> Any:
        """Return one checked value in the type of an entry; of a list all of them, as a tuple.

        InputError for a wrong one, and for an empty list.
        """
        if not isinstance(value, list | tuple):
            return self._check(self._convert(value, value))
        if not value:
            raise InputError(f"{self.name}=[]: needs at least one entry")
        return tuple(self._check(self._convert(entry, value)) for entry in value)

    def _check(self, value: Any) -> Any:
        """Return the value; InputError if a check refuses it, or an integer that no float holds."""
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise InputError(f"{self.name}: {TOO_LARGE}")
        for check in self.checks:
            check(self.name, value)
        return value

    def _convert(self, entry: Any, value: Any) -> Any:
        """Return an entry of the list `value` converted to its type, such as the text 3 to 3.

        InputError where that is not possible, and for a float in place of an integer.
        """
        kind: Any = self.list_of
        try:
            if type(entry) not in {int, float, str} or (kind is int and type(entry) is float):
                raise ValueError(entry)
            return kind(entry)
        except (ValueError, OverflowError):
            what = {int: "an integer", float: "a number", str: "a word"}[kind]
            raise InputError(f"{self.name}={value}: each entry must be {what}") from None


def setting(default: Any, help: str, *checks: Check, **roles: Any) -> Any:
    """Return a field for a setting; roles are other fields of `Setting`."""
    return field(
        default_factory=lambda: copy.copy(default),
        metadata={"setting": Setting(help, checks, **roles)},
    )


@dataclass_transform()
def group(name: str = "", **roles: bool) -> Callable[[type[T]], type[T]]:
    """Make a dataclass of the settings NAME.*; without a name, of those without a dot.

    It is not frozen, because OmegaConf would make its nodes read-only; see `Checked`.

    roles: fields of `Setting` that all its settings have.
    """

    def decorate(cls: type[T]) -> type[T]:
        settings_class: Any = dataclass(cls)
        settings_class.prefix, settings_class.roles = f"{name}." if name else "", roles
        return settings_class  # type: ignore[no-any-return]

    return decorate


def not_a_setting(default: T) -> T:
    """Return a field that a command sets, and Hydra does not know."""
    return field(default=default, metadata={"omegaconf_ignore": True})


def subgroup(cls: type[T]) -> T:
    """Return a field for a group within another one."""
    return field(default_factory=cls)


def definitions(cls: Any) -> Iterator[Setting]:
    """Yield every setting of a group and of the groups within it."""
    hints = get_type_hints(cls)
    for entry in fields(cls):
        if "setting" in entry.metadata:
            yield own_settings(cls)[entry.name]
        elif is_dataclass(hints[entry.name]):
            yield from definitions(hints[entry.name])


@cache
def own_settings(cls: Any) -> dict[str, Setting]:
    """Return the settings of a group, without those of groups within it, by field.

    With key, default, type, owner and the owner's roles, which `setting` leaves open.
    """
    hints, settings = get_type_hints(cls), {}
    owners = {name: base for base in reversed(cls.__mro__) for name in get_annotations(base)}
    for entry in fields(cls):
        if "setting" in entry.metadata:
            default: Any = entry.default_factory
            settings[entry.name] = replace(
                entry.metadata["setting"],
                key=cls.prefix + entry.name,
                default=default(),
                type=hints[entry.name],
                owner=owners[entry.name],
                **owners[entry.name].roles,
            )
    return settings


def with_values(group: T, values: Mapping[str, Any]) -> T:
    """Return a copy of a group with other values, by field; A.B is field B of the group A in it.

    They are checked as `Checked` says.
    """
    within: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        name, _, inner = key.partition(".")
        within.setdefault(name, {})[inner] = value
    changed = {
        name: inner[""] if "" in inner else with_values(getattr(group, name), inner)
        for name, inner in within.items()
    }
    return replace(group, **changed)  # type: ignore[type-var]


class Checked:
    """Base of groups. An instance checks its values, then it cannot be changed.

    `check_together`, which any class may have, raises InputError for values that contradict each
    other, and sets what others decide. Those of base classes are called first. InputError names
    the first setting that is wrong.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, defined in own_settings(cls).items():
            setattr(self, name, defined.normalise(getattr(self, name)))
        for base in reversed(cls.__mro__):
            if "check_together" in vars(base):
                base.check_together(self)
        self.__dict__["locked"] = True

    def __setattr__(self, name: str, value: Any) -> None:
        if "locked" in self.__dict__:
            raise FrozenInstanceError(self.prefix + name)
        super().__setattr__(name, value)
