"""Python interface: run apps (docs/python.md)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retexo import apps
from retexo.settings.compose import compose_run
from retexo.settings.flatten import flatten


def run(
    settings: Mapping[str, Any] | Sequence[str],
    config_name: str,
    config_dir: str | None,
    callbacks: Sequence[Any] = (),
) -> Any:
    """Run an app and return its result; see `retexo.run`.

    callbacks: one, or a list or tuple of them.
    """
    overrides = (
        [f"{name}={_text(value)}" for name, value in flatten(settings).items()]
        if isinstance(settings, Mapping)
        else settings
    )
    if not isinstance(callbacks, list | tuple):
        callbacks = [callbacks]
    return apps.run(*compose_run(list(overrides), config_name, config_dir), callbacks)


def _text(value: Any) -> str:
    """Format a value as an override of Hydra."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, str | Path):
        return "'" + str(value).replace("'", "\\'") + "'"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
