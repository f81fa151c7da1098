"""Which column of a table has which role: by the settings `columns.*`, else by its name."""

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from partitioning.errors import InputError, join_names
from partitioning.graph.graph_data import MASKS, SEPARATOR, EdgeType
from partitioning.graph.schema import Source
from partitioning.partition_settings import ColumnSettings

USUAL = {
    "id": ("id", "nodeid"),
    "label": ("label", "class"),
    "split": ("split",),
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
"""Names by which columns are recognised, in lower case, without punctuation."""
MASK_NAMES = {
    **dict.fromkeys(("trainmask", "istrain"), "train_mask"),
    **dict.fromkeys(("valmask", "validmask", "isval", "isvalid"), "val_mask"),
    **dict.fromkeys(("testmask", "istest"), "test_mask"),
}
"""Masks by the names of their columns, likewise."""
FEATURE_ROLES = ("numeric", "categorical", "embedding", "date", "ignore")
"""Roles of feature columns that `columns.*` can set."""
NAMELESS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""What pandas calls an index without a name: in a csv, in a csv that it reads again, in parquet."""
SPLITS = {
    "train": "train_mask",
    "training": "train_mask",
    "val": "val_mask",
    "valid": "val_mask",
    "validation": "val_mask",
    "dev": "val_mask",
    "test": "test_mask",
    "testing": "test_mask",
}
"""Words of a split column, in lower case."""


def find_column(role: str, names: list[str], columns: ColumnSettings, path: Source) -> str | None:
    """Find the column of a role by the settings, or else by usual names; None if there is none.

    Raises:
        InputError: two columns have usual names of the role.
    """
    wanted_names = asked_names(role, columns)
    if wanted_names:
        return next((name for name in wanted_names if name in names), None)
    usual = find_usual(role, names)
    if len(usual) > 1:
        raise InputError(
            f"{path}: has both columns {' and '.join(usual[:2])}; set columns.{role} to one of them"
        )
    return usual[0] if usual else None


def asked_names(role: str, columns: ColumnSettings) -> tuple[str, ...]:
    """Return the columns that the settings name for a role."""
    setting = getattr(columns, role) or ()
    return (setting,) if isinstance(setting, str) else tuple(setting)


def columns_of_relation(columns: ColumnSettings, edge_type: EdgeType) -> ColumnSettings:
    """Return the settings with the ends that `columns.src` and `columns.dst` give to a relation.

    None where a mapping gives none to it.
    """
    ends: dict[str, Any] = {
        role: by_relation.get(SEPARATOR.join(edge_type), by_relation.get(edge_type[1]))
        for role in ("src", "dst")
        if isinstance(by_relation := getattr(columns, role), Mapping)
    }
    return replace(columns, **ends)


def find_usual(role: str, names: Iterable[str]) -> list[str]:
    """Return the columns whose names are usual for a role."""
    return [name for name in names if _letters_of(name) in USUAL[role]]


def find_masks(names: Iterable[str], path: Source) -> dict[str, str]:
    """Return the columns of masks, by train_mask, val_mask and test_mask.

    Other names than these, such as is_test, are masks only beside one of training nodes.

    Raises:
        InputError: two columns have names of one mask.
    """
    columns: dict[str, str] = {}
    for name in sorted(names, key=_mask_order):
        mask = MASK_NAMES.get(_letters_of(name))
        if mask is None or (
            name not in MASKS and mask != "train_mask" and "train_mask" not in columns
        ):
            continue
        if mask in columns:
            raise InputError(
                f"{path}: has both columns {columns[mask]} and {name}, the same mask; set"
                f" columns.ignore={name}"
            )
        columns[mask] = name
    return columns


def _mask_order(name: str) -> tuple[bool, bool]:
    """Return what sorts masks of training nodes first, and usual names before others."""
    return MASK_NAMES.get(_letters_of(name)) != "train_mask", name not in MASKS


def _letters_of(name: str) -> str:
    """Return a name in lower case, without punctuation and blanks."""
    return re.sub("[^a-z0-9]", "", name.lower())


def find_labels(names: list[str], columns: ColumnSettings, path: Source) -> list[str]:
    """Find the label columns: several are the columns of a multi-label matrix.

    InputError where the settings name none and two have usual names.
    """
    if columns.label is None:
        column = find_column("label", names, columns, path)
        return [] if column is None else [column]
    return [name for name in names if matches(name, columns.label)]


def matches(name: str, patterns: Iterable[str] | None) -> bool:
    """Return whether a name is one of these, or fits a pattern such as emb_*."""
    return any(name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns or ())


def requested_role(name: str, columns: ColumnSettings, path: Source) -> str | None:
    """Return the role that `columns.*` gives to a feature column, or None; InputError for two."""
    roles = [role for role in FEATURE_ROLES if matches(name, getattr(columns, role))]
    if len(roles) > 1:
        raise InputError(
            f"{path}: column `{name}` is in both columns.{roles[0]} and columns.{roles[1]}; take it"
            " out of one"
        )
    return roles[0] if roles else None


class MissingColumn(InputError):
    """`columns.ROLE` names a column, or has a pattern, that no table has.

    `there` says which columns there are, `remedy` what else to do than to add the column.
    """

    def __init__(
        self, role: str, pattern: str, there: str, *, kind: str = "table", remedy: str = ""
    ) -> None:
        """kind: of the tables that were looked at, for the message."""
        ending = f"; {remedy}" if remedy else ""
        super().__init__(f"columns.{role}={pattern}: no {kind} has such a column: {there}{ending}")
        self.role, self.pattern, self.there, self.remedy = role, pattern, there, remedy


def check_requested(columns: ColumnSettings, tables: Iterable[tuple[Source, list[str]]]) -> None:
    """Raise MissingColumn for a name or pattern of `columns.*` that no table has.

    Those of src, dst and weight are not looked at. tables: files, names.
    """
    requested = {
        role: getattr(columns, role)
        for role in ("id", "label", "split", "time", "relation", *FEATURE_ROLES)
    }
    if not any(requested.values()):
        return
    known = dict(tables)
    names = [name for of_table in known.values() for name in of_table]
    for role in requested:
        for pattern in asked_names(role, columns):
            if not any(matches(name, [pattern]) for name in names):
                files = join_names(known) or "none of the tables"
                there = f"{files} have {join_names(dict.fromkeys(names))}"
                raise MissingColumn(role, pattern, there)


def without_index(names: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the columns without pandas' index without a name, and why it is left out."""
    why = "it has no name, as an index of pandas"
    index = dict.fromkeys(filter(NAMELESS.fullmatch, names), why)
    return [name for name in names if name not in index], index
