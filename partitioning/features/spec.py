"""Reads fitted feature pipelines: of a run, a checkpoint, a partition directory or app=describe."""

import logging
from pathlib import Path

from partitioning.errors import InputError
from partitioning.features.agreed import COLUMNS
from partitioning.features.encoder import State
from partitioning.files.file_io import UNREADABLE, check_path, check_unchanged, read_json
from partitioning.graph.schema import VERSION
from partitioning.partition_settings import FeatureSettings
from partitioning.setting_fields import definitions

logger = logging.getLogger(__name__)

PLACES = ("checkpoint/model.json", "model.json", "meta.json")
"""Files of a run directory, a checkpoint and a partition directory with a field `features`."""


def find_spec(setting: str) -> Path:
    """Return the file that `features.spec` names; InputError where there is none."""
    path = check_path("features.spec", setting)
    file = next((path / place for place in PLACES if (path / place).is_file()), path)
    if not file.is_file():
        raise InputError(
            f"features.spec={path}: expected a run directory, a partition directory or a JSON file"
        )
    return file


def read_spec(settings: FeatureSettings) -> dict[str, State]:
    """Read the fitted pipelines that `features.spec` names.

    Args:
        settings: `spec` has a run directory, a checkpoint folder, a partition directory or a JSON
            file of app=describe. The log warns of those that then have no effect.

    Returns:
        The fitted pipeline of each table, by `nodes`, `edges` or `nodes/TYPE`.

    Raises:
        InputError: there is none, or it is damaged or of another version.
    """
    file = find_spec(settings.spec or "")
    try:
        content = read_json(file)
        check_unchanged(content, file, "take it again from who made it")
        if COLUMNS in content:
            raise InputError(
                f"features.spec={file}: says which columns there are, and nothing is fitted yet:"
                " start app=describe with this features.spec at all sites, and give the spec.json"
                " that it writes"
            )
        states: dict[str, State] = content["features"]
        versions = {state.get("version") for state in states.values()}
    except KeyError as error:
        raise InputError(
            f"features.spec={file}: has no field {error}: it was written before feature pipelines "
            "were stored; leave features.spec out, and set features.scale=none"
        ) from error
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(f"features.spec={file}: damaged: {error}") from error
    if versions - {VERSION}:
        raise InputError(
            f"features.spec={file}: has pipelines of version {sorted(map(str, versions))}; "
            f"expected {VERSION}"
        )
    _name_unused(settings, file)
    return states


def _name_unused(settings: FeatureSettings, file: Path) -> None:
    """Warn of settings that a fitted pipeline has decided."""
    for defined in definitions(type(settings)):
        name = defined.key.rpartition(".")[2]
        value = getattr(settings, name)
        if name not in ("kind", "spec") and value != defined.default:
            logger.warning(
                "%s=%s has no effect: the columns are encoded as features.spec=%s was fitted",
                defined.key,
                value,
                file,
            )
