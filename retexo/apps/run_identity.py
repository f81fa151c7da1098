"""What has to be the same on every node of a run: settings and versions."""

import hashlib
import json
import platform
from importlib.metadata import version
from typing import Any

from retexo import __version__
from retexo.settings.flatten import without
from retexo.settings.run_settings import Settings
from retexo.settings.schema import keys

PER_NODE = keys(lambda setting: setting.per_node)


def settings_digest(settings: Settings) -> str:
    """sha256 (hex) of the settings that have to be the same on every node."""
    shared = [shared_settings(settings), versions()["retexo"], settings.train.resume is not None]
    return hashlib.sha256(json.dumps(shared, sort_keys=True, default=str).encode()).hexdigest()


def shared_settings(settings: Settings) -> dict[str, Any]:
    """Settings, by name, that have to be the same on every node, and when a run is resumed."""
    return without(settings.resolved, PER_NODE)


def versions() -> dict[str, str]:
    """Of Python and the main packages."""
    names = ("torch", "numpy", "hydra-core")
    return {
        "python": platform.python_version(),
        "retexo": __version__,
        **{name: version(name) for name in names},
    }
