"""Print the table of all settings as Markdown, for docs/settings.md.

python scripts/settings_table.py > docs/settings.md
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from retexo.settings.aliases import ALIASES
from retexo.settings.table import describe_values, format_default, list_sections, summarize

INTRODUCTION = """# Settings

Look up every setting of the command line, `NAME=VALUE`. Names after "also" are accepted, too;
`null` means not set. Written by `python scripts/settings_table.py > docs/settings.md`.
"""
HEAD = "|setting|default|values|meaning|\n|---|---|---|---|\n"


def markdown() -> str:
    """Return docs/settings.md as text: one table per dataclass."""
    text = INTRODUCTION
    for cls, settings in list_sections():
        text += f"\n## {summarize(cls)}\n\n{HEAD}"
        for defined in settings:
            also = [
                f"`{alias}`"
                for alias, name in ALIASES.items()
                if name in (defined.key, defined.name)
            ]
            name = ", also ".join([f"`{defined.name}`", *([", ".join(also)] if also else [])])
            default, values = _format_code(defined.default), describe_values(defined)
            text += f"|{name}|{default}|{values}|{defined.help}|\n"
    return text


def _format_code(default: Any) -> str:
    """Return a default in backticks, or the name of the setting it is taken from."""
    text = format_default(default)
    return f"value of `{text[2:-1]}`" if text.startswith("${") else f"`{text}`"


if __name__ == "__main__":
    print(markdown(), end="")
