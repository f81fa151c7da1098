"""The settings as text: docs/settings.md (scripts/settings_table.py writes it), and what --help prints."""

import json
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from omegaconf import OmegaConf

from partitioning.setting_fields import Setting, definitions
from retexo.settings.aliases import ALIASES
from retexo.settings.flatten import flatten
from retexo.settings.options import OPTIONS
from retexo.settings.run_settings import Settings
from retexo.settings.schema import CONFIG_DIR, DEFINED, REST, given_type

INTRODUCTION = """# Settings

Made from the definitions by `python scripts/settings_table.py > docs/settings.md`; see CONTRIBUTING.md.
"""


def markdown() -> str:
    """All settings, one table per dataclass."""
    text = INTRODUCTION
    differing = _differing()
    for title, summary, settings in _sections():
        text += f"\n## {title}\n\n{summary}\n\n| setting | default | values | meaning |\n|---|---|---|---|\n"
        for defined, hint in settings:
            default = "; ".join([_code(defined.default), *differing[defined.key]])
            text += (
                f"| {_named(defined)} | {default} | {_values(defined, hint)} | {defined.help} |\n"
            )
    return text


def help_text() -> str:
    """All settings with default and meaning, for a terminal."""
    lines = []
    for _, summary, settings in _sections():
        lines += ["", summary]
        for defined, hint in settings:
            about = f"{defined.help} ({_values(defined, hint).replace('`', '')})"
            head = f"  {_shown(defined)}={_plain(defined.default)}  "
            lines += textwrap.wrap(
                about, 110, initial_indent=f"{head:<42}", subsequent_indent=" " * 42
            )
    return "\n".join(lines)


def _sections() -> Iterator[tuple[str, str, list[tuple[Setting, Any]]]]:
    """Title, summary and settings, with their types, of each dataclass that has some."""
    for cls in _dataclasses(Settings):
        own = [
            DEFINED[each.metadata["setting"].key]
            for each in fields(cls)
            if "setting" in each.metadata
        ]
        if own:
            yield cls.__name__.removesuffix("Settings") or "Run", _summary(cls), own
    for (group, name), options in OPTIONS.items():
        yield (
            f"{group}={name}",
            f"{_summary(options)} With {group}={name} only.",
            list(definitions(options)),
        )


def _dataclasses(cls: Any) -> Iterator[Any]:
    """A dataclass of settings, and those that it has as fields."""
    yield cls
    hints = get_type_hints(cls)
    for each in fields(cls):
        if is_dataclass(hints[each.name]):
            yield from _dataclasses(hints[each.name])


def _summary(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _differing() -> dict[str, list[str]]:
    """Other defaults by dotted name, and where they hold: those of the files for --config-name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for file in sorted(CONFIG_DIR.glob("*.yaml")):
        content: Any = OmegaConf.to_container(OmegaConf.load(file))
        for key, value in flatten(content).items():
            found[key].append(
                f"{_code(value)} for {file.stem.removeprefix('node_classification_')}"
            )
    return found


def _shown(defined: Setting) -> str:
    return defined.name.replace(REST, ".NAME")


def _named(defined: Setting) -> str:
    """The name of a setting, with its aliases."""
    others = [f"`{former}`" for former, alias in ALIASES.items() if alias.name == defined.key]
    return f"`{_shown(defined)}`" + (f", also {', '.join(others)}" if others else "")


def _plain(default: Any) -> str:
    return default if isinstance(default, str) else json.dumps(default)


def _code(default: Any) -> str:
    text = _plain(default)
    return f"that of `{text[2:-1]}`" if text.startswith("${") else f"`{text}`"


def _values(defined: Setting, hint: Any) -> str:
    """What a setting may be: its choices, or its type with bounds."""
    choices = next((check.choices for check in defined.checks if check.choices), ())
    if defined.is_group and not choices:
        choices = tuple(sorted(file.stem for file in (CONFIG_DIR / defined.name).glob("*.yaml")))
    if choices:
        return ", ".join(
            [*(f"`{choice}`" for choice in choices), *(["null"] if defined.default is None else [])]
        )
    kind = _kind(given_type(defined, hint))
    return ", ".join([kind, *(check.remedy.removeprefix("must be ") for check in defined.checks)])


def _kind(hint: Any) -> str:
    if get_origin(hint) is UnionType:
        return " or ".join(_kind(one) for one in get_args(hint))
    if get_origin(hint) is list:
        return f"list of {_kind(get_args(hint)[0])}"
    return {NoneType: "null", Any: "any"}.get(hint) or (get_origin(hint) or hint).__name__
