"""How the tables of a partition directory were read: its columns, features and fitted pipelines."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from partitioning.directory.meta import HeteroMeta, Meta
from partitioning.errors import InputError
from partitioning.features.build import named_columns
from partitioning.features.encoder import State, count_columns
from partitioning.features.hetero_kinds import kinds_of
from partitioning.features.kinds import WIDTH
from partitioning.graph_data import SEPARATOR, EdgeType
from partitioning.partition_settings import ColumnSettings

UPDATED_KINDS = {"given", "random"}
"""Kinds of features that belong to a node alone: others depend on the edges of the whole graph."""
COMPUTED = (": has no features; the means", ": nothing to take features=")
"""How notes of meta.json go on where features of a type were computed from the graph."""


def columns_of(meta: Meta) -> ColumnSettings:
    """Return the settings columns.* with which a directory was made."""
    columns: dict[str, Any] = {
        field.name: meta.request.get(f"columns.{field.name}") for field in fields(ColumnSettings)
    }
    return named_columns(meta.features, ColumnSettings(**columns))


def state_of(meta: Meta, name: str | EdgeType) -> State | None:
    """Return the fitted pipeline of a type's or a relation's table; None where there is none."""
    what, joined = ("nodes", name) if isinstance(name, str) else ("edges", SEPARATOR.join(name))
    return meta.features.get(f"{what}/{joined}" if isinstance(meta, HeteroMeta) else what)


def kinds_by_type(meta: Meta) -> dict[str, tuple[str, ...]]:
    """Return the kinds of features of each node type."""
    return kinds_of(meta.request.get("features", ["given"]), meta.node_counts)


def given_width(meta: Meta, name: str) -> int:
    """Return the number of features of a type that come from its table."""
    num_random = kinds_by_type(meta)[name].count("random")
    return int(meta.node_counts[name]["features"]) - WIDTH * num_random


def check_features(path: Path, meta: Meta) -> None:
    """Raise InputError where features depend on the edges, which an update changes."""
    again = (
        "app=update would have to compute those of the whole graph; partition the changed tables"
        " again (app=partition_data overwrite=true)"
    )
    for name, kinds in kinds_by_type(meta).items():
        of_type = f" of {name}" if name else ""
        other = sorted(set(kinds) - UPDATED_KINDS)
        if other:
            raise InputError(
                f"{path}: the features{of_type} are features.kind={other[0]}, made from the edges:"
                f" {again}"
            )
        state = state_of(meta, name)
        is_computed = any(
            note.startswith(name + begin) for note in meta.notes for begin in COMPUTED
        )
        if is_computed or (
            name and state is not None and count_columns(state) != given_width(meta, name)
        ):
            raise InputError(
                f"{path}: the features{of_type} were made from those of neighbours or of edges:"
                f" {again}"
            )
