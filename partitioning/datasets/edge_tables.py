"""Reads tables of edges: csv, parquet, an npy array [E, 2], or an npz with src and dst.

E directed edges.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from partitioning.array_checks import (
    Array,
    check_edge_feat,
    check_integers,
    refuse_odd_weights,
)
from partitioning.datasets import frames
from partitioning.datasets.feature_columns import FeatureReader
from partitioning.datasets.frames import ReadAgain, TextIds, read_frames
from partitioning.datasets.nodes import Nodes
from partitioning.datasets.raw import (
    check_axes,
    concatenate,
    list_arrays,
    narrow_ends,
    read_arrays,
    read_npy,
)
from partitioning.datasets.times import TimeReader
from partitioning.errors import InputError, join_names
from partitioning.features.roles import (
    MissingColumn,
    find_column,
    requested_role,
    without_index,
)
from partitioning.features.schema import Schema, warn_of_ignored
from partitioning.graph_data import EDGE_DATA
from partitioning.partition_settings import ColumnSettings

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

UNNAMED = (
    "expected a number, a node's position; ids that are names need a column `id` in nodes, features"
    " or labels"
)

DROP = "; edges.unknown=drop leaves such edges out"

ROLES = ("src", "dst", "edge_weight", "edge_time")


@dataclass(frozen=True, eq=False)
class EdgePiece:
    """A chunk of edges, with the ids of the file as ends."""

    src: Array
    """[E]"""
    dst: Array
    weight: Array | None = None
    """[E]"""
    time: Array | None = None
    """[E]"""
    feat: Array | None = None
    """[E, K]"""


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """The edges of a table."""

    src: Array
    """[E] rows of the nodes; and so is dst."""
    dst: Array
    weight: Array | None
    """[E]"""
    time: Array | None
    """[E]"""
    feat: Array | None
    """[E, K] features, not yet encoded."""
    schema: Schema | None
    """What the columns of `feat` hold."""
    names: Mapping[str, str]
    """Its columns, by ROLES."""


def find_ends(path: Path, columns: ColumnSettings) -> list[str]:
    """Find the columns of sources and destinations of a csv or parquet table of edges.

    Raises:
        InputError: it has none, or not those that the settings name.
    """
    names = without_index(frames.column_names(path), path)
    if names == ["0", "1"]:
        return names
    for role in ("src", "dst"):
        asked = getattr(columns, role)
        if asked is not None and asked not in names:
            raise InputError(
                f"columns.{role}={asked}: {path} has the columns {join_names(names)}; set one"
                " of them"
            )
    found = [find_column(role, names, columns, path) for role in ("src", "dst")]
    ends = [name for name in found if name is not None]
    if len(ends) < 2:
        is_text = path.suffix != ".parquet"
        header = "; put the line src,dst before it if this is no header" if is_text else ""
        raise InputError(
            f"{path}: has the columns {join_names(names)}; expected src and dst (columns.src,"
            f" columns.dst){header}"
        )
    return ends


def check_weight_column(columns: ColumnSettings, files: Iterable[Path]) -> None:
    """MissingColumn where columns.weight names a column that no csv or parquet table of edges has:
    of several relations some may have weights.
    """
    if columns.weight is None:
        return
    tables = [file for file in files if frames.kind_of(file) not in ("npy", "npz")]
    names = [frames.column_names(file) for file in tables]
    if not names or any(columns.weight in each for each in names):
        return
    raise MissingColumn(
        "weight",
        columns.weight,
        f"columns.weight={columns.weight}: no table of edges has such a column: {tables[0]} has"
        f" the columns {', '.join(names[0])}; set columns.weight to one of them",
    )


class _EdgeColumns:
    """The columns of a csv or parquet table of edges, by role."""

    def __init__(self, path: Path, columns: ColumnSettings, *, with_features: bool) -> None:
        names = without_index(frames.column_names(path), path)
        self.path, self.ends = path, find_ends(path, columns)
        self.weight = find_column("weight", names, columns, path)
        self.time = columns.time if columns.time in names else None
        found = zip(ROLES, (*self.ends, self.weight, self.time), strict=True)
        self.names = {role: name for role, name in found if name is not None}
        others = [name for name in names if name not in self.names.values()]
        if others and not with_features:
            log.warning("%s: columns %s: left out", path, join_names(others, "`"))
        requested = {name: requested_role(name, columns, path) for name in others if with_features}
        self.reader, self.times = FeatureReader(path, requested), TimeReader(path, self.time or "")

    def schema(self, feat: Array | None) -> Schema:
        """Return the roles of the table's columns, with the features of edges.

        Raises ReadAgain where the whole table shows that a column was read wrongly.
        """
        self.times.finish()
        roles = {"src": self.ends[:1], "dst": self.ends[1:]}
        roles |= {
            role: [name]
            for role, name in (("weight", self.weight), ("time", self.time))
            if name is not None
        }
        return replace(self.reader.finish(feat), roles=roles)


def read_edges(
    path: Path,
    columns: ColumnSettings,
    nodes: tuple[Nodes, Nodes],
    *,
    drop_unknown: bool = False,
    with_features: bool = False,
    remedy: str = DROP,
) -> EdgeTable:
    """Read the edges and look up both ends; only one chunk is in memory twice.

    Args:
        path: The table.
        columns: Roles of columns.
        nodes: The nodes of the sources, and of the destinations.
        drop_unknown: Whether edges with an unknown end are left out; else they are refused.
        with_features: Whether further columns are features of the edges; else they are left out.
        remedy: What the message about an unknown end finishes with.
    """
    if path.suffix == ".npy":
        return _join(path, _npy_edges(path), nodes, None, drop_unknown=drop_unknown, remedy=remedy)
    if path.suffix == ".npz":
        pieces = _npz_edges(path, with_features=with_features)
        return _join(path, pieces, nodes, None, drop_unknown=drop_unknown, remedy=remedy)
    held = _EdgeColumns(path, columns, with_features=with_features)
    as_text = held.reader.text
    while True:
        held.reader.restart()
        try:
            pieces = _table_edges(held, nodes, as_text)
            return _join(path, pieces, nodes, held, drop_unknown=drop_unknown, remedy=remedy)
        except ReadAgain as again:
            as_text = as_text | again.columns


def _join(
    path: Path,
    pieces: Iterator[EdgePiece],
    nodes: tuple[Nodes, Nodes],
    columns: _EdgeColumns | None,
    *,
    drop_unknown: bool,
    remedy: str,
) -> EdgeTable:
    """Look up the ends of each chunk, and concatenate the chunks."""
    parts: dict[str, list[Array]] = {name: [] for name in ("src", "dst", "weight", "time", "feat")}
    names = {role: role for role in ROLES} if columns is None else columns.names
    begin, num_dropped, first_dropped = 0, 0, -1
    for piece in pieces:
        src, dst = (
            narrow_ends(
                held.find_rows(
                    ends,
                    f"{path}: column `{name}`",
                    begin,
                    keep_unknown=drop_unknown,
                    remedy=remedy,
                )
            )
            for name, ends, held in (
                (names["src"], piece.src, nodes[0]),
                (names["dst"], piece.dst, nodes[1]),
            )
        )
        read = {
            "src": src,
            "dst": dst,
            "weight": piece.weight,
            "time": piece.time,
            "feat": piece.feat,
        }
        known = (src >= 0) & (dst >= 0) if drop_unknown and len(src) == len(dst) else None
        if known is not None and not known.all():
            first_dropped = first_dropped if num_dropped else begin + int(known.argmin())
            num_dropped += int((~known).sum())
        for name, each in read.items():
            if each is not None:
                fits = known is not None and each.shape[:1] == known.shape
                parts[name].append(each[known] if fits else each)
        begin += len(src)
    if begin == 0:
        log.warning("%s: has no edges, only a header", path)
    if num_dropped:
        log.warning(
            "%s: %d of %d edges have an end that is no node, the first in row %d: left out"
            " (edges.unknown=drop)",
            path,
            num_dropped,
            begin,
            first_dropped,
        )
    weight, time, feat = (
        concatenate(parts[name]) if parts[name] else None for name in ("weight", "time", "feat")
    )
    if columns is not None:
        schema: Schema | None = columns.schema(feat)
    else:
        schema = None if feat is None else Schema.of_matrix(str(path), feat.shape[1])
    if schema is not None:
        warn_of_ignored(path, schema.ignored)
    return EdgeTable(
        concatenate(parts["src"]), concatenate(parts["dst"]), weight, time, feat, schema, names
    )


def _table_edges(
    columns: _EdgeColumns, nodes: tuple[Nodes, Nodes], as_text: Collection[str]
) -> Iterator[EdgePiece]:
    """Yield the edges of a csv or parquet table, a chunk at a time."""
    path, ends = columns.path, columns.ends
    odd = any(held.grows for held in nodes) and frames.has_odd_numbers(path)
    text = {name for name, held in zip(ends, nodes, strict=True) if held.named or odd} | {*as_text}
    for frame in read_frames(path, text=text):
        src, dst = (
            _end_cells(frame, name, path, held, as_text=name in text)
            for name, held in zip(ends, nodes, strict=True)
        )
        weight = time = None
        if columns.weight is not None:
            weight = frames.numbers(frame, columns.weight, path)
            where = f"{path}: column `{columns.weight}`"
            refuse_odd_weights(weight, where, frames.first_row(frame))
            weight = weight.astype(np.float32)
        if columns.time is not None:
            time = columns.times.read(frame[columns.time])
        yield EdgePiece(src, dst, weight, time, columns.reader.read(frame, text))


def _end_cells(
    frame: "pd.DataFrame", name: str, path: Path, nodes: Nodes, *, as_text: bool
) -> Array:
    """Return one end of each edge of a chunk, as ids or row numbers.

    Raises TextIds if ids have to be read again as text.
    """
    if not nodes.named and not nodes.grows:
        expected = UNNAMED if nodes.ids is None else nodes.expected
        return frames.whole_numbers(frame, name, path, expected)
    try:
        return frames.id_cells(frame, name, path, as_text=as_text, named=nodes.named)
    except ReadAgain:
        raise TextIds from None


def _npy_edges(path: Path) -> Iterator[EdgePiece]:
    """Yield the edges of an npy array [E, 2]."""
    edges = read_npy(path)
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise InputError(
            f"{path} has shape {list(edges.shape)}; expected [edges, 2], one row of src and dst per"
            " edge"
        )
    for row in range(0, len(edges), frames.CELLS // 2):
        src, dst = (
            check_integers(ends, f"{path}: column `{name}`", row)
            for name, ends in zip(
                ("src", "dst"), edges[row : row + frames.CELLS // 2].T, strict=True
            )
        )
        yield EdgePiece(src, dst)


def _npz_edges(path: Path, *, with_features: bool) -> Iterator[EdgePiece]:
    """Yield the edges of an npz with src, dst and, optionally, weight and features."""
    arrays = read_arrays(path, ("src", "dst", *EDGE_DATA))
    if not {"src", "dst"} <= arrays.keys():
        held = join_names(list_arrays(path)) or "nothing"
        raise InputError(f"{path}: has {held}; expected src and dst, an entry per edge")
    check_axes(arrays, EDGE_DATA, str(path))
    src, dst = (check_integers(arrays[name], f"{path}: array `{name}`") for name in ("src", "dst"))
    feat = arrays.get("edge_feat")
    if feat is not None and not with_features:
        log.warning("%s: array `edge_feat`: left out", path)
    elif feat is not None:
        feat = check_edge_feat(feat, len(src), f"{path}: array `edge_feat`")
    yield EdgePiece(src, dst, arrays.get("edge_weight"), feat=feat if with_features else None)
