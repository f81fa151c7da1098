"""Which column of a table has which role, by the settings `columns.*` or by its name."""

import logging
import re
from pathlib import Path

from partitioning.errors import InputError
from partitioning.partition_settings import ColumnSettings

log = logging.getLogger(__name__)

USUAL = {
    "id": ("id", "nodeid"),
    "label": ("label", "class"),
    "src": ("src", "source", "from", "fromnodeid", "sourcenodeid", "sourceid", "startid"),
    "dst": (
        "dst",
        "target",
        "to",
        "tonodeid",
        "targetnodeid",
        "targetid",
        "endid",
        "dest",
        "destination",
    ),
    "weight": ("weight", "edgeweight"),
}
"""Columns that are known by their names, without case and marks."""
NAMELESS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""What pandas calls an index without a name, in a csv, in a csv that it has read again, and in parquet."""


def find_column(role: str, names: list[str], columns: ColumnSettings, path: Path) -> str | None:
    """The column of a role: as columns.ROLE says, else one of a usual name, which the log says; None without one."""
    asked = getattr(columns, role)
    if asked is not None:
        return asked if asked in names else None
    found = [name for name in names if re.sub("[^a-z0-9]", "", name.lower()) in USUAL[role]]
    if len(found) > 1:
        raise InputError(
            f"{path}: has both columns {' and '.join(found)}; set columns.{role} to one of them"
        )
    if found and found[0] != role:
        log.info("%s: column `%s` is taken as %s (columns.%s)", path, found[0], role, role)
    return found[0] if found else None


def without_index(names: list[str], path: Path) -> list[str]:
    """The columns but an index of pandas that has no name, which the log says."""
    index = [name for name in names if NAMELESS.fullmatch(name)]
    if index:
        log.warning("%s: column `%s`, an index without a name: left out", path, index[0])
    return [name for name in names if name not in index]
