"""What has to be the same on every node of a run: settings and versions."""

import hashlib
import json
import platform
from importlib.metadata import version
from typing import Any

from retexo.config.settings import Settings

PER_NODE = (
    "node_rank",
    "cluster",
    "distributed",
    "partition_dir",
    "dataset_dir",
    "dataset_file",
    "log_every",
    "checkpoint",
    "resume",
    "checkpoint_dir",
)
"""Settings that may differ between nodes."""


def settings_digest(settings: Settings) -> str:
    """sha256 (hex) of the settings that have to be the same on every node."""
    shared = [shared_settings(settings), versions()["retexo"], settings.train.resume is not None]
    return hashlib.sha256(json.dumps(shared, sort_keys=True, default=str).encode()).hexdigest()


def shared_settings(settings: Settings) -> dict[str, Any]:
    """Settings, by name, that have to be the same on every node, and when a run is resumed."""
    return {name: value for name, value in settings.resolved.items() if name not in PER_NODE}


def versions() -> dict[str, str]:
    """Of Python and the main packages."""
    names = ("retexo", "torch", "dgl", "numpy", "hydra-core")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
