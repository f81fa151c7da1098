"""Settings that one convolution or trainer alone has: defined beside it, by the dataclass `Options` of its module."""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partitioning import setting_fields
from partitioning.setting_fields import definitions
from retexo.config import schema
from retexo.config.schema import CONFIG_DIR, PACKAGE

PACKAGES = {"model": "nn/conv", "trainer": "trainers"}
"""conf/GROUP/NAME.yaml stands for the module PACKAGE/NAME.py, which is found by its name, as a plug-in is."""


def find_options() -> dict[tuple[str, str], type]:
    """`Options` by group and name, of the modules that have settings of their own."""
    names = [
        (group, file.stem)
        for group in PACKAGES
        for file in sorted((CONFIG_DIR / group).glob("*.yaml"))
    ]
    found = {
        (group, name): _read_options(PACKAGE / PACKAGES[group] / f"{name}.py")
        for group, name in names
    }
    return {name: options for name, options in found.items() if options is not None}


def _read_options(module: Path) -> type | None:
    """The class `Options` out of a module, run by itself: the whole would import torch before any setting is looked at.

    So it may use what the module has from partitioning.setting_fields, and nothing else.
    """
    read: list[ast.stmt] = [
        part
        for part in ast.parse(module.read_bytes()).body
        if (isinstance(part, ast.ImportFrom) and part.module == setting_fields.__name__)
        or (isinstance(part, ast.ClassDef) and part.name == "Options")
    ]
    names: dict[str, Any] = {"__name__": module.stem}
    exec(compile(ast.Module(read, []), module, "exec"), names)
    return names.get("Options")


OPTIONS = find_options()


def default(key: str, settings: Mapping[str, Any]) -> Any:
    """As `schema.default`, of a model's own settings, too."""
    own = OPTIONS.get(("model", settings.get("model.name", "")))
    defined = next((each for each, _ in definitions(own) if each.key == key), None) if own else None
    if defined is not None:
        return defined.before
    return schema.default(key, settings)
