"""Settings that one convolution or trainer alone has: defined beside it, by the dataclass `Options` of its module."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from partitioning.setting_fields import definitions
from retexo.config import schema
from retexo.config.schema import CONFIG_DIR

PACKAGES = {"model": "retexo.nn.conv", "trainer": "retexo.trainers"}
"""conf/GROUP/NAME.yaml stands for the module PACKAGE.NAME, which is loaded by its name, as a plug-in is."""


def find_options() -> dict[tuple[str, str], type]:
    """`Options` by group and name, of the modules that have settings of their own."""
    names = [(group, file.stem) for group in PACKAGES for file in sorted((CONFIG_DIR / group).glob("*.yaml"))]
    found = {name: getattr(import_module(".".join((PACKAGES[name[0]], name[1]))), "Options", None) for name in names}
    return {name: options for name, options in found.items() if options is not None and any(definitions(options))}


OPTIONS = find_options()


def default(key: str, settings: Mapping[str, Any]) -> Any:
    """The value of a setting in a run from before it existed, beside its other ones (flat); None for unknown names."""
    own = OPTIONS.get(("model", settings.get("model.name", "")))
    defined = next((each for each, _ in definitions(own) if each.key == key), None) if own else None
    if defined is not None:
        return defined.default if defined.earlier is None else defined.earlier
    return schema.default(key, settings)
