"""Builds a checked GraphData from a user's arrays.

N nodes, E directed edges, F features, C classes. Rows are counted from 0.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray

from partitioning.array_checks import (
    Array,
    CsrParts,
    check_edge_feat,
    check_edge_weight,
    check_endpoints,
    check_features,
    check_length,
    check_masks,
    check_node_ids,
)
from partitioning.datasets.labels import Labels, read_labels, read_targets
from partitioning.datasets.times import to_seconds
from partitioning.errors import InputError, join_names
from partitioning.features.schema import Schema
from partitioning.file_io import load_npy, open_regular, reading
from partitioning.graph_data import Endpoints, Features, GraphData
from partitioning.label_settings import LabelSettings
from partitioning.node_names import Names, decode_names, hash_names
from partitioning.thread_pool import BLOCK

log = logging.getLogger(__name__)

MERGED_FEATURES = (
    "duplicates=merge: features or times of edges do not add up; leave it out, leave the columns"
    " out (columns.ignore), or merge the edges yourself"
)


@dataclass(frozen=True, eq=False)
class RawGraph:
    """The arrays of a graph, not yet checked, and their names for messages."""

    name: str
    src: Array
    dst: Array
    features: Array | CsrParts | None
    label: Array | None
    """None: there are no labels."""
    masks: Mapping[str, Array]
    """By the names train_mask, val_mask, test_mask."""
    node_id: Array | None
    edge_weight: Array | None = None
    edge_feat: Array | None = None
    edge_time: Array | None = None
    node_time: Array | None = None
    schema: Schema | None = None
    """What the columns of `features` hold; None: they are one matrix."""
    edge_schema: Schema | None = None
    node_names: Names | None = None
    """Where `node_id` are keys of names (partitioning/node_names.py)."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Array name -> file and array, as in "g.npz: array `src`"."""

    def at(self, name: str) -> str:
        """Return what messages call an array: its file and column."""
        return self.where.get(name, f"{self.name}: array `{name}`")


def build(
    raw: RawGraph,
    settings: LabelSettings | None = None,
    *,
    merge: bool = False,
    split_index: int | None = None,
    unlabelled: bool = False,
    regression: bool = False,
) -> GraphData:
    """Check every array and put the graph together.

    InputError names file, array, row, value and what is expected.

    Args:
        raw: The arrays.
        settings: How labels are read.
        merge: Whether an edge that is there several times becomes one.
        split_index: The setting `split.index`.
        unlabelled: Whether labels and masks are not read.
        regression: Whether labels are numbers to predict.
    """
    settings = settings or LabelSettings()
    if raw.label is None or unlabelled:
        labels = _make_blank_labels(raw)
    elif regression:
        labels = read_targets(raw.label, raw.at("label"), label_columns(raw.schema), settings)
    else:
        labels = read_labels(raw.label, raw.at("label"), settings)
    num_nodes = len(labels.values)
    features, featured, schema = check_table(raw.features, raw.schema, num_nodes, raw.at)
    src, dst = (
        check_endpoints(getattr(raw, name), num_nodes, raw.at(name)) for name in ("src", "dst")
    )
    if len(src) != len(dst):
        raise InputError(
            f"{raw.at('dst')} has {len(dst)} rows, `src` has {len(src)}; expected one of each per"
            " edge"
        )
    if merge and (raw.edge_feat is not None or raw.edge_time is not None):
        raise InputError(MERGED_FEATURES)
    src, dst, weight = check_and_merge_edges(
        src, dst, raw.edge_weight, num_nodes, raw.at("edge_weight"), merge=merge
    )
    ids, names = np.arange(num_nodes) if raw.node_id is None else raw.node_id, raw.node_names
    if ids.dtype.kind in "US":
        texts = decode_names(ids, raw.at("node_id"))
        ids, names = hash_names(texts), Names.of(texts)
    masks: dict[str, Any] = {}
    if not unlabelled:
        masks = dict(check_masks(raw.masks, num_nodes, raw.at, split_index))
    return GraphData(
        name=raw.name,
        src=src,
        dst=dst,
        features=features,
        labels=labels.values,
        num_classes=labels.num_classes,
        class_names=labels.names,
        node_ids=check_node_ids(ids, num_nodes, raw.at("node_id")),
        node_names=names,
        featured=None if featured.all() else featured,
        edge_weight=weight,
        edge_time=(
            None
            if raw.edge_time is None
            else check_times(raw.edge_time, len(src), raw.at("edge_time"))
        ),
        edge_feat=_check_edge_feat(raw, len(src)),
        node_time=(
            None
            if raw.node_time is None
            else check_times(raw.node_time, num_nodes, raw.at("time"), may_be_blank=True)
        ),
        schema=schema,
        edge_schema=raw.edge_schema,
        **masks,
    )


def label_columns(schema: Schema | None) -> list[str]:
    """Return the names of the columns that have the labels; none of arrays, without a schema."""
    return [] if schema is None else schema.roles.get("label", [])


def _check_edge_feat(raw: RawGraph, num_edges: int) -> NDArray[np.float32] | None:
    """Return checked edge features; those of a table were checked when they were read."""
    if raw.edge_feat is None or raw.edge_schema is not None:
        return raw.edge_feat
    return check_edge_feat(raw.edge_feat, num_edges, raw.at("edge_feat"))


def check_table(
    given: Array | CsrParts | None,
    schema: Schema | None,
    num_nodes: int,
    at: Callable[[str], str],
) -> tuple[Features, NDArray[np.bool_], Schema | None]:
    """Check the features of nodes.

    Returns:
        The features, [N] whether a node has some, and the schema of a table or matrix.
    """
    featured = np.ones(num_nodes, np.bool_)
    if given is None:
        return np.zeros((num_nodes, 0), np.float32), ~featured, schema
    if schema is not None and all(column.role != "matrix" for column in schema.columns):
        assert isinstance(given, np.ndarray)
        check_length(given, num_nodes, at("feat"))
        return given, find_featured(given), schema  # a FeatureReader has checked every cell
    features = check_features(given, num_nodes, at, featured)
    matrix = Schema.of_matrix(at("feat"), features.shape[1])
    return features, featured, matrix if schema is None else replace(schema, columns=matrix.columns)


def find_featured(features: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return bool [N]: whether a row has any value."""
    size = max(1, BLOCK // max(features.shape[1], 1))
    known = [
        ~np.isnan(features[begin : begin + size]).all(axis=1)
        for begin in range(0, len(features), size)
    ]
    return np.concatenate([*known, np.zeros(0, np.bool_)])


def _make_blank_labels(raw: RawGraph) -> Labels:
    """Return labels of -1 for as many nodes as the other arrays show."""
    if raw.node_id is not None:
        return Labels(np.full(len(raw.node_id), -1, np.int64), 0)
    ends = (int(end.max(initial=-1)) + 1 for end in (raw.src, raw.dst) if end.dtype.kind in "iu")
    sparse_rows = len(raw.features.indptr) - 1 if isinstance(raw.features, CsrParts) else 0
    tables = (raw.features, raw.label, *raw.masks.values())
    rows = [len(table) for table in tables if isinstance(table, np.ndarray)]
    num_nodes = max(0, sparse_rows, *rows, *ends)
    return Labels(np.full(num_nodes, -1, np.int64), 0)


def check_times(
    times: Array, count: int, where: str, *, may_be_blank: bool = False
) -> NDArray[np.float64]:
    """Return float64 [count]; InputError unless all are finite, or NaN if `may_be_blank`.

    datetime64 becomes seconds since 1970.
    """
    check_length(times, count, where)
    if times.dtype.kind == "M":
        times = to_seconds(times)
    if (
        times.dtype.kind not in "iuf"
        or not (np.isfinite(times) | (may_be_blank & np.isnan(times))).all()
    ):
        raise InputError(f"{where}: expected a finite number, or a date, in each row")
    return times.astype(np.float64)


def check_and_merge_edges(
    src: Endpoints,
    dst: Endpoints,
    weight: Array | None,
    num_nodes: int,
    where: str,
    *,
    merge: bool,
) -> tuple[Endpoints, Endpoints, NDArray[np.float32] | None]:
    """Check the weights, and merge duplicate edges on request: their weights add up.

    Args:
        src: [E]; and so is dst.
        dst: Destinations, below `num_nodes`.
        weight: [E] weights as the user gave them, or None.
        num_nodes: Number of nodes that may be destinations.
        where: What to call the weights in a message.
        merge: Whether duplicates are merged; the edges are then sorted by source.

    Returns:
        Ends and weights; the weights are None where all are 1.
    """
    checked = None if weight is None else check_edge_weight(weight, len(src), where)
    if not merge:
        return src, dst, checked
    key = src.astype(np.int64) * num_nodes + dst
    if weight is None:
        key = np.unique(key)
    else:
        key, row, count = np.unique(key, return_inverse=True, return_counts=True)
        sums = count if checked is None else np.bincount(row, checked, minlength=len(key))
        checked = check_edge_weight(sums, len(key), f"{where}, merged")
    if len(key) < len(src):
        log.warning(
            "%d duplicates of edges are merged; duplicates=keep counts each", len(src) - len(key)
        )
    ends = key // max(num_nodes, 1), key % max(num_nodes, 1)
    return narrow_ends(ends[0]), narrow_ends(ends[1]), checked


def narrow_ends(ends: Endpoints) -> Endpoints:
    """Return int32 if all numbers fit, else the array itself."""
    limits = np.iinfo(np.int32)
    fit = len(ends) == 0 or (ends.min() >= limits.min and ends.max() <= limits.max)
    return ends.astype(np.int32) if fit else ends


def concatenate(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate along the rows.

    The list is emptied on the way, so only one piece is in memory twice.
    """
    shape = (sum(map(len, pieces)), *pieces[0].shape[1:]) if pieces else (0,)
    whole = np.empty(shape, np.result_type(*pieces) if pieces else np.int32)
    end = len(whole)
    while pieces:
        piece = pieces.pop()
        whole[end - len(piece) : end] = piece
        end -= len(piece)
    return whole


def read_named(path: Path, names: Collection[str]) -> dict[str, Array]:
    """Read these arrays of an npz file of a published data set; InputError if one is missing."""
    arrays = read_arrays(path, names, warn=False)
    missing = [name for name in names if name not in arrays]
    if missing:
        raise InputError(
            f"{path}: there is no array `{missing[0]}`; expected {', '.join(names)}; remove it, and"
            " fetch it again"
        )
    check_axes(arrays, names, str(path))
    return arrays


def read_arrays(path: Path, names: Collection[str], *, warn: bool = True) -> dict[str, Array]:
    """Read the arrays of an npz file that have these names; InputError if it is damaged or holds
    Python objects.

    Others are not unpacked; `warn`: they are logged.
    """
    with _open_npz(path) as archive:
        others = [name for name in archive.files if name not in names]
        for name in others:
            _check_member(archive, name, path)
        if others and warn:
            log.warning(
                "%s: arrays that have no meaning here are left out: %s", path, join_names(others)
            )
        return {name: _read_array(archive, name, path) for name in archive.files if name in names}


def list_arrays(path: Path) -> list[str]:
    """Return the names of the arrays of an npz file."""
    with _open_npz(path) as archive:
        return list(archive.files)


def is_csr(path: Path) -> bool:
    """Whether an npz is one of scipy.sparse.save_npz."""
    return "format" in list_arrays(path)


@contextlib.contextmanager
def _open_npz(path: Path) -> Iterator[Any]:
    """Open an npz file; InputError if it is none, or has an array twice."""
    with contextlib.ExitStack() as opened:
        with reading(path, "npz file", "write it anew with numpy.savez"):
            file = opened.enter_context(open_regular(path))
            archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{path}: this is a single npy array; expected an npz of several")
        opened.enter_context(archive)
        twice = [name for name, times in Counter(archive.files).items() if times > 1]
        if twice:
            raise InputError(
                f"{path}: holds `{twice[0]}` more than once; write it anew with numpy.savez"
            )
        yield archive


def _check_member(archive: Any, name: str, path: Path) -> None:
    """InputError for a member without an array of numbers, or whose two headers name it
    differently, so that it may be one that is read.
    """
    with reading(path, "array", where=f"{path}: array `{name}`"):
        members = archive.zip.namelist()
        with archive.zip.open(name if name in members else f"{name}.npy") as member:
            if member.read(len(MAGIC_PREFIX)) != MAGIC_PREFIX:
                raise InputError(
                    f"{path}: member `{name}` is not an array; expected only .npy members"
                )


def _read_array(archive: Mapping[str, Array], name: str, path: Path) -> Array:
    with reading(path, "array", where=f"{path}: array `{name}`"):
        array = archive[name]
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: member `{name}` is not an array; expected only .npy members")
    return array


def check_axes(arrays: Mapping[str, Array], known: Collection[str], where: str) -> None:
    """InputError if an array of nodes or edges is a single value."""
    for name in known:
        if name in arrays and arrays[name].ndim == 0:
            raise InputError(
                f"{where}: array `{name}` is {arrays[name][()]}, a single value; expected a row for"
                " each node or edge"
            )


def read_npy(path: Path) -> Array:
    """Map an npy file into memory, so that features are read only when a part is written."""
    with reading(path, "npy array", "write it anew with numpy.save"):
        array = load_npy(path, mmap_mode="r")
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise InputError(
            f"{path}: an archive or a single number; expected one npy array with one row per node"
        )
    return array
