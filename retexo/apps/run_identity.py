"""Settings and versions that have to be the same on every node of a run."""

import platform
from importlib.metadata import version
from typing import Any

from retexo import __version__
from retexo.settings.flatten import flatten
from retexo.settings.run_settings import Settings
from retexo.settings.schema import keys

PER_NODE = keys(lambda setting: setting.per_node)


def shared_settings(settings: Settings) -> dict[str, Any]:
    """Return settings that have to be the same on every node and when a run is resumed."""
    return flatten(settings.stored, without=PER_NODE)


def versions() -> dict[str, str]:
    """Return versions of Python and the main packages."""
    names = ("torch", "numpy", "hydra-core")
    return {
        "python": platform.python_version(),
        "retexo": __version__,
        **{name: version(name) for name in names},
    }
