"""Tables of edges: csv, parquet, an npy array [E, 2], or an npz of src and dst. E directed edges."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from partitioning.array_checks import Array, check_integers
from partitioning.datasets import frames
from partitioning.datasets.column_roles import find_column, without_index
from partitioning.datasets.frames import TextColumn, TextIds, read_frames
from partitioning.datasets.nodes import Nodes
from partitioning.datasets.raw import check_axes, joined, narrowed, read_arrays, read_npy
from partitioning.errors import InputError
from partitioning.partition_settings import ColumnSettings

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

UNNAMED = "expected a number, a node's position; ids that are names need a column `id` in nodes, features or labels"


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """The edges of a table, or some of them."""

    src: Array
    """[E] rows of the nodes, or in a piece that was just read their ids; and so is dst."""
    dst: Array
    weight: Array | None
    """[E], and so is the next."""
    time: Array | None


def read_edges(
    path: Path, columns: ColumnSettings, nodes: tuple[Nodes, Nodes], *, drop_unknown: bool = False
) -> EdgeTable:
    """The edges with both ends as rows of their nodes; only one chunk is there twice.

    drop_unknown: whether edges with an end that is no node are left out, which the log says, and not refused.
    """
    arrays = {".npy": _npy_edges, ".npz": _npz_edges}.get(path.suffix)
    if columns.time is not None and arrays is not None:
        raise InputError(f"columns.time={columns.time}: {path} has no such column")
    pieces: dict[str, list[Array]] = {name: [] for name in ("src", "dst", "weight", "time")}
    begin, dropped, unknown = 0, 0, -1
    for piece in arrays(path) if arrays else _table_edges(path, columns, nodes):
        src, dst = (
            narrowed(
                held.rows(
                    ends,
                    f"{path}: column `{name}`",
                    begin,
                    keep_unknown=drop_unknown,
                    remedy="; edges.unknown=drop leaves such edges out",
                )
            )
            for name, ends, held in zip(("src", "dst"), (piece.src, piece.dst), nodes, strict=True)
        )
        read = {"src": src, "dst": dst, "weight": piece.weight, "time": piece.time}
        known = (src >= 0) & (dst >= 0) if drop_unknown and len(src) == len(dst) else None
        if known is not None and not known.all():
            unknown = unknown if dropped else begin + int(known.argmin())
            dropped += int((~known).sum())
        for name, each in read.items():
            if each is not None:
                fits = known is not None and each.shape[:1] == known.shape
                pieces[name].append(each[known] if fits else each)
        begin += len(src)
    if dropped:
        log.warning(
            "%s: %d of %d edges have an end that is no node, the first in row %d: left out (edges.unknown=drop)",
            path,
            dropped,
            begin,
            unknown,
        )
    optional = (joined(pieces[name]) if pieces[name] else None for name in ("weight", "time"))
    return EdgeTable(joined(pieces["src"]), joined(pieces["dst"]), *optional)


def _table_edges(
    path: Path, columns: ColumnSettings, nodes: tuple[Nodes, Nodes]
) -> Iterator[EdgeTable]:
    names = without_index(frames.column_names(path), path)
    found = (
        names
        if names == ["0", "1"]
        else [find_column(role, names, columns, path) for role in ("src", "dst")]
    )
    ends = [name for name in found if name is not None]
    if len(ends) < 2:
        raise InputError(
            f"{path}: has the columns {', '.join(names)}; expected src and dst (columns.src, columns.dst); put "
            "the line src,dst before it if this is no header"
        )
    weight, time = find_column("weight", names, columns, path), columns.time
    if columns.weight is not None and weight is None:
        raise InputError(
            f"columns.weight={columns.weight}: {path} has the columns {', '.join(names)}; set one of them"
        )
    if time is not None and time not in names:
        raise InputError(f"columns.time={time}: {path} has no such column")
    others = [name for name in names if name not in (*ends, weight, time)]
    if others:
        log.warning("%s: columns `%s`: left out", path, "`, `".join(others))
    odd = any(held.grows for held in nodes) and frames.has_odd_numbers(path)
    as_text = [name for name, held in zip(ends, nodes, strict=True) if held.named or odd]
    for frame in read_frames(path, text=as_text):
        src, dst = (
            _end_cells(frame, name, path, held, as_text=name in as_text)
            for name, held in zip(ends, nodes, strict=True)
        )
        yield EdgeTable(
            src,
            dst,
            None if weight is None else frames.numbers(frame, weight, path).astype(np.float32),
            None if time is None else frames.numbers(frame, time, path),
        )


def _end_cells(
    frame: "pd.DataFrame", name: str, path: Path, nodes: Nodes, *, as_text: bool
) -> Array:
    if not nodes.named and not nodes.grows:
        expected = UNNAMED if nodes.ids is None else nodes.expected
        return frames.whole_numbers(frame, name, path, expected)
    try:
        return frames.id_cells(frame, name, path, as_text=as_text, named=nodes.named)
    except TextColumn:
        raise TextIds from None


def _npy_edges(path: Path) -> Iterator[EdgeTable]:
    edges = read_npy(path)
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise InputError(
            f"{path} has shape {list(edges.shape)}; expected [edges, 2], one row of src and dst per edge"
        )
    for row in range(0, len(edges), frames.CELLS // 2):
        src, dst = (
            check_integers(ends, f"{path}: column `{name}`", row)
            for name, ends in zip(
                ("src", "dst"), edges[row : row + frames.CELLS // 2].T, strict=True
            )
        )
        yield EdgeTable(src, dst, None, None)


def _npz_edges(path: Path) -> Iterator[EdgeTable]:
    arrays = read_arrays(path)
    if not {"src", "dst"} <= arrays.keys():
        raise InputError(
            f"{path}: has {', '.join(arrays) or 'nothing'}; expected src and dst, an entry per edge"
        )
    check_axes(arrays, ("edge_weight",), str(path))
    src, dst = (check_integers(arrays[name], f"{path}: array `{name}`") for name in ("src", "dst"))
    yield EdgeTable(src, dst, arrays.get("edge_weight"), None)
