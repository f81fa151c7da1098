"""The settings as text: the output of --help; scripts/settings_table.py writes a page of them."""

import inspect
import json
import re
import textwrap
from collections import defaultdict
from typing import Any

from partitioning.setting_fields import Setting
from retexo.settings.options import MODELS
from retexo.settings.schema import CONFIG_DIR, DEFINED

UNTOLD_LIMITS = ("finite", "at most 1e+30")
"""Limits that no useful value reaches; the message about a larger one names them."""


def help_text() -> str:
    """Return all settings with default and meaning, for a terminal."""
    lines = []
    for cls, settings in list_sections():
        lines += ["", summarize(cls)]
        for defined in settings:
            about = f"{defined.help} ({describe_values(defined).replace('`', '')})"
            head = f"  {defined.name}={format_default(defined.default)}  "
            lines += textwrap.wrap(
                about, 110, initial_indent=f"{head:<42}", subsequent_indent=" " * 42
            )
    return "\n".join(lines)


def list_sections() -> list[tuple[type, list[Setting]]]:
    """Return the settings by the class that defines them, those of names without a dot first."""
    settings_of: defaultdict[Any, list[Setting]] = defaultdict(list)
    for defined in DEFINED.values():
        settings_of[defined.owner].append(defined)
    of_root = [section for section in settings_of.items() if not section[0].prefix]
    return [*reversed(of_root), *(section for section in settings_of.items() if section[0].prefix)]


def summarize(cls: type) -> str:
    """Return the first line of a class's docstring, without its full stop."""
    return (cls.__doc__ or "").strip().splitlines()[0].removesuffix(".")


def format_default(default: Any) -> str:
    """Return a default as text, as JSON unless it is text."""
    return default if isinstance(default, str) else json.dumps(default)


def describe_values(defined: Setting) -> str:
    """Return the choices of a setting in Markdown, or its type with bounds.

    A group without choices has its files as choices. null is left out where it is the default.
    """
    choices = defined.choices
    if defined.is_group and not choices:
        files = sorted(file.stem for file in (CONFIG_DIR / defined.name).glob("*.yaml"))
        choices = tuple(files or MODELS)
    kinds = inspect.formatannotation(defined.type).split(" | ")
    null = ["null"] if "None" in kinds and defined.default is not None else []
    if choices:
        return ", ".join([*(f"`{choice}`" for choice in choices), *null])
    names = [kind.partition("[")[0] for kind in kinds if kind not in ("None", "Any")]
    if len(names) > 1:  # the checks' text names the words that a str may be
        names = [name for name in names if name != "str"]
    names = [f"list of {defined.list_of.__name__}"] if defined.list_of else names
    limits = [re.sub("^(must be|expected) ", "", check.remedy) for check in defined.checks]
    parts = [
        " or ".join([*names, *null]),
        *(limit for limit in limits if limit not in UNTOLD_LIMITS),
    ]
    text = ", ".join(part for part in parts if part)
    return re.sub(r"at least (\S+), at most (\S+)", r"\1 to \2", text)
