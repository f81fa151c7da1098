"""Reads feature pipelines: stored ones, or summaries of tables, to which one is fitted."""

import json
import logging
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from partitioning.errors import InputError
from partitioning.features.agreed import COLUMNS
from partitioning.features.encoder import State
from partitioning.features.schema import VERSION, check_states
from partitioning.features.summary import VERSION as SUMMARY_VERSION
from partitioning.features.summary import check_summaries, fit_summaries
from partitioning.file_io import UNREADABLE, check_path, parse_json, read_text
from partitioning.partition_settings import FeatureSettings

logger = logging.getLogger(__name__)

PLACES = ("checkpoint/model.json", "model.json", "meta.json")
"""Files of a run directory, a checkpoint and a partition directory with a field `features`."""
SUMMARIES = "summaries"
"""The field of a file that app=describe writes."""


def find_spec(setting: str) -> Path:
    """Return the file that an entry of `features.spec` names; InputError where there is none."""
    path = check_path("features.spec", setting)
    file = next((path / place for place in PLACES if (path / place).is_file()), path)
    if not file.is_file():
        raise InputError(
            f"features.spec={path}: expected a run directory, a partition directory or a JSON file"
        )
    return file


def read_spec(settings: FeatureSettings) -> dict[str, State]:
    """Read, or fit, the pipelines that `features.spec` names.

    Args:
        settings: `spec` has a run directory, a checkpoint folder, a partition directory or a JSON
            file; or several files that `app=describe` wrote, to which a pipeline is fitted.

    Returns:
        The fitted pipeline of each table, by `nodes`, `edges` or `nodes/TYPE`.

    Raises:
        InputError: there is none, or it is damaged.
    """
    files = [find_spec(each) for each in settings.spec or ()]
    if len(set(files)) < len(files):
        raise InputError(f"features.spec: has {max(files, key=files.count)} twice; give it once")
    contents = {str(file): _read(file) for file in files}
    # In an order that does not depend on the setting: sums are rounded the same everywhere.
    contents = dict(sorted(contents.items(), key=lambda item: json.dumps(item[1], sort_keys=True)))
    fitted = [file for file, content in contents.items() if SUMMARIES not in content]
    if not fitted:
        return _fit_tables(
            {file: content[SUMMARIES] for file, content in contents.items()}, settings
        )
    if len(files) > 1:
        raise InputError(
            f"features.spec={fitted[0]}: only files of app=describe can be merged; give this one"
            " alone"
        )
    _name_unused(settings, fitted[0])
    states: dict[str, State] = contents[fitted[0]]["features"]
    return states


def _name_unused(settings: FeatureSettings, file: str) -> None:
    """Warn of settings that a fitted pipeline has decided."""
    for each in fields(settings):
        value, defined = getattr(settings, each.name), each.metadata["setting"]
        if each.name not in ("kind", "spec") and value != defined.default:
            logger.warning(
                "%s=%s has no effect: the columns are encoded as features.spec=%s was fitted",
                defined.key,
                value,
                file,
            )


def _read(file: Path) -> dict[str, Any]:
    """The content of a file, checked."""
    try:
        content = parse_json(read_text(file))
        if COLUMNS in content:
            raise InputError(
                f"features.spec={file}: says which columns there are, and nothing is fitted yet:"
                " start app=describe with this features.spec at all sites, and give the spec.json"
                " that it writes"
            )
        if SUMMARIES in content:
            found, known = content[SUMMARIES], SUMMARY_VERSION
            _check_version(file, found, known)
            check_summaries(found)
        else:
            found, known = content["features"], VERSION
            check_states(found)
            _check_version(file, found, known)
    except KeyError as error:
        raise InputError(
            f"features.spec={file}: has no field {error}: it was written before feature pipelines "
            "were stored; leave features.spec out, and set features.scale=none"
        ) from error
    except UNREADABLE as error:
        raise InputError(f"features.spec={file}: damaged: {error}") from error
    return dict(content)


def _check_version(file: Path, found: dict[str, Any], known: int) -> None:
    """InputError for a fitted pipeline of another version."""
    versions = {state.get("version") for state in found.values()}
    if versions - {known}:
        raise InputError(
            f"features.spec={file}: has pipelines of version {sorted(map(str, versions))}; "
            f"expected {known}"
        )


def _fit_tables(
    summaries: dict[str, dict[str, Any]], settings: FeatureSettings
) -> dict[str, State]:
    """Fit one pipeline per table to the summaries of all files.

    Raises InputError if files describe other tables.
    """
    tables: Sequence[str] = list(next(iter(summaries.values())))
    for file, of_file in summaries.items():
        if sorted(of_file) != sorted(tables):
            raise InputError(
                f"features.spec={file}: describes {', '.join(of_file)}, the others"
                f" {', '.join(tables)}; describe the same tables everywhere"
            )
    return {
        table: fit_summaries({file: each[table] for file, each in summaries.items()}, settings)
        for table in tables
    }
