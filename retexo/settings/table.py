"""The settings as text: docs/settings.md and the output of --help."""

import json
import re
import textwrap
from collections import defaultdict
from types import UnionType
from typing import Any, get_args

from partitioning.setting_fields import Setting
from retexo.settings.aliases import ALIASES
from retexo.settings.options import MODELS
from retexo.settings.schema import CONFIG_DIR, DEFINED

INTRODUCTION = """# Settings

Look up every setting of the command line, `NAME=VALUE`. Names after "also" are accepted, too;
`null` means not set. Written by `python scripts/settings_table.py > docs/settings.md`.
"""
UNTOLD_LIMITS = ("finite", "at most 1e+30")
"""Limits that no useful value reaches; the message about a larger one names them."""
HEAD = "|setting|default|values|meaning|\n|---|---|---|---|\n"


def markdown() -> str:
    """Return docs/settings.md as text: one table per dataclass."""
    text = INTRODUCTION
    for cls, settings in _sections():
        text += f"\n## {_summary(cls)}\n\n{HEAD}"
        for defined in settings:
            also = [f"`{alias}`" for alias, name in ALIASES.items() if name == defined.key]
            name = ", also ".join([f"`{defined.name}`", *([", ".join(also)] if also else [])])
            default, values = _format_code(defined.default), describe_values(defined)
            text += f"|{name}|{default}|{values}|{defined.help}|\n"
    return text


def help_text() -> str:
    """Return all settings with default and meaning, for a terminal."""
    lines = []
    for cls, settings in _sections():
        lines += ["", _summary(cls)]
        for defined in settings:
            about = f"{defined.help} ({describe_values(defined).replace('`', '')})"
            head = f"  {defined.name}={_format_default(defined.default)}  "
            lines += textwrap.wrap(
                about, 110, initial_indent=f"{head:<42}", subsequent_indent=" " * 42
            )
    return "\n".join(lines)


def _sections() -> list[tuple[type, list[Setting]]]:
    """Return the settings by the class that defines them, those of names without a dot first."""
    settings_of: defaultdict[Any, list[Setting]] = defaultdict(list)
    for defined in DEFINED.values():
        settings_of[defined.owner].append(defined)
    of_root = [section for section in settings_of.items() if not section[0].prefix]
    return [*reversed(of_root), *(section for section in settings_of.items() if section[0].prefix)]


def _summary(cls: type) -> str:
    """Return the first line of a class's docstring, without its full stop."""
    return (cls.__doc__ or "").strip().splitlines()[0].removesuffix(".")


def _format_default(default: Any) -> str:
    """Return a default as text, as JSON unless it is text."""
    return default if isinstance(default, str) else json.dumps(default)


def _format_code(default: Any) -> str:
    """Return a default in backticks, or the name of the setting it is taken from."""
    text = _format_default(default)
    return f"value of `{text[2:-1]}`" if text.startswith("${") else f"`{text}`"


def describe_values(defined: Setting) -> str:
    """Return the choices of a setting in Markdown, or its type with bounds.

    A group without choices has its files as choices. null is left out where it is the default.
    """
    choices = defined.choices
    if defined.is_group and not choices:
        files = sorted(file.stem for file in (CONFIG_DIR / defined.name).glob("*.yaml"))
        choices = tuple(files or MODELS)
    is_optional = type(None) in get_args(defined.type)
    null = ["null"] if is_optional and defined.default is not None else []
    if choices:
        return ", ".join([*(f"`{choice}`" for choice in choices), *null])
    kinds = get_args(defined.type) if isinstance(defined.type, UnionType) else (defined.type,)
    names = [getattr(kind, "__name__", str(kind)) for kind in kinds if kind is not type(None)]
    if defined.checks:  # their text names the words that a str may be
        names = [name for name in names if name != "Any" and (name != "str" or len(names) == 1)]
    names = [f"list of {defined.each.__name__}"] if defined.each else names
    limits = [re.sub("^(must be|expected) ", "", check.remedy) for check in defined.checks]
    parts = [
        " or ".join([*names, *null]),
        *(limit for limit in limits if limit not in UNTOLD_LIMITS),
    ]
    text = ", ".join(part for part in parts if part)
    return re.sub(r"at least (\S+), at most (\S+)", r"\1 to \2", text)
