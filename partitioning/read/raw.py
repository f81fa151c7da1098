"""Builds a checked graph from users' arrays.

A plain graph has one type of nodes, PLAIN_TYPE, and one relation, PLAIN_RELATION. N nodes of a
type, E directed edges of a relation, F features. Rows are counted from 0.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError, join_names
from partitioning.graph.array_checks import (
    CSR,
    Array,
    CsrParts,
    Ints,
    check_axes,
    check_edge_feat,
    check_edge_weight,
    check_endpoints,
    check_features,
    check_length,
    check_masks,
    check_node_ids,
    features_among,
)
from partitioning.graph.graph_data import (
    EDGE_DATA,
    MASKS,
    PLAIN_RELATION,
    PLAIN_TYPE,
    SEPARATOR,
    EdgeType,
    Endpoints,
    Features,
    GraphData,
    NodeTable,
    Relation,
)
from partitioning.graph.node_names import Names, decode_names, hash_names
from partitioning.graph.schema import Schema
from partitioning.partition_settings import DatasetSettings
from partitioning.read.labels import OF_EDGES_TOO, Labels, read_labels, read_targets
from partitioning.read.times import to_seconds
from partitioning.thread_pool import BLOCK

log = logging.getLogger(__name__)

OF_NODES = ("feat", *CSR, "label", *MASKS, "node_id")
OF_EDGES = ("src", "dst", *EDGE_DATA, "edge_time")
"""Names of arrays; so are the ones above."""
MERGED_FEATURES = (
    "duplicates=merge: features or times of edges do not add up; leave it out, leave the columns"
    " out (columns.ignore), or merge the edges yourself"
)


@dataclass(frozen=True, eq=False)
class RawNodes:
    """Nodes of one type, not yet checked."""

    path: str
    """The file, for messages."""
    num_nodes: int
    values: Mapping[str, Any]
    """feat, label, masks and time, in node order; feat may be CsrParts."""
    node_id: Array | None = None
    """[N] integers or names; None: they are positions."""
    node_names: Names | None = None
    """Where `node_id` are keys of names (partitioning/graph/node_names.py)."""
    schema: Schema | None = None
    """What the columns of feat hold; None: they are one matrix."""
    where: Mapping[str, str] = field(default_factory=dict)
    """File and column of each value, for messages."""

    @classmethod
    def of_arrays(
        cls, path: str | Path, arrays: Mapping[str, Array], num_nodes: int | None = None
    ) -> Self:
        """Take the arrays of OF_NODES, and `time`, unchecked but for their axes.

        InputError if there is none of them. Labels, else ids, tell the number of nodes. Without
        both there are at least `num_nodes`; None: as many as rows.
        """
        check_axes(arrays, OF_NODES, str(path))
        values: dict[str, Any] = {
            name: arrays[name] for name in ("label", "time", *MASKS) if name in arrays
        }
        if {"feat", *CSR} & arrays.keys():
            values["feat"] = features_among(arrays, path)
        ids = arrays.get("node_id")
        if not values and ids is None and num_nodes is None:
            raise InputError(
                f"{path}: has {join_names(arrays) or 'nothing'}; expected feat, label or node_id, a"
                " row a node"
            )
        known = values.get("label", ids)
        if known is None:
            rows = [len(array) for array in values.values()]
            num_nodes = max([num_nodes, *rows] if num_nodes is not None else rows[:1])
        else:
            num_nodes = len(known)
        return cls(str(path), num_nodes, values, ids)

    def at(self, name: str) -> str:
        """Return what messages call an array: its file and column."""
        return self.where.get(name, f"{self.path}: array `{name}`")


@dataclass(frozen=True, eq=False)
class RawRelation:
    """Edges of one relation, not yet checked."""

    path: str
    """The file, for messages."""
    src: Array
    """[E] positions of nodes; and so is dst."""
    dst: Array
    weight: Array | None = None
    """[E]"""
    feat: NDArray[np.float32] | None = None
    """[E, K] features, not yet encoded."""
    time: Array | None = None
    """[E]"""
    schema: Schema | None = None
    """What the columns of `feat` hold; None: they are one matrix."""
    where: Mapping[str, str] = field(default_factory=dict)
    """File and column of each array, for messages."""
    kind: Ints | None = None
    """[E] positions in `kinds`; None: all edges are of one relation."""
    kinds: Sequence[str] = ()
    """Names of relations, from a column."""

    @classmethod
    def of_arrays(
        cls, path: str | Path, arrays: Mapping[str, Array], *, with_features: bool = True
    ) -> Self:
        """Take the arrays of OF_EDGES, unchecked but for axes and features.

        Without `with_features` edge_feat is left out with a warning. InputError for wrong features.
        """
        check_axes(arrays, OF_EDGES, str(path))
        raw = cls(
            str(path),
            arrays["src"],
            arrays["dst"],
            arrays.get("edge_weight"),
            time=arrays.get("edge_time"),
        )
        if "edge_feat" not in arrays:
            return raw
        if not with_features:
            log.warning("%s: left out", raw.at("edge_feat"))
            return raw
        feat = check_edge_feat(arrays["edge_feat"], len(raw.src), raw.at("edge_feat"))
        return replace(raw, feat=feat)

    def at(self, name: str) -> str:
        """Return what messages call an array: its file and column."""
        return self.where.get(name, f"{self.path}: array `{name}`")

    def take(self, rows: NDArray[Any]) -> "RawRelation":
        """Return some of the edges, by index or mask."""
        names = ("src", "dst", "weight", "feat", "time", "kind")
        arrays: Any = {name: getattr(self, name) for name in names}
        count = np.shape(self.src)[:1]  # of another length is refused later
        return replace(
            self,
            **{name: array[rows] for name, array in arrays.items() if np.shape(array)[:1] == count},
        )


@dataclass(frozen=True, eq=False)
class RawGraph:
    """Arrays of a graph, not yet checked."""

    name: str
    nodes: Mapping[str, RawNodes]
    relations: Mapping[EdgeType, RawRelation]
    labelled_edges: EdgeType | None = None
    """As of GraphData."""


def build_named(
    settings: DatasetSettings, arrays: Mapping[str, Array], where: Mapping[str, str]
) -> GraphData:
    """Build a plain graph of a published data set from its arrays; InputError for wrong ones.

    Its labels stay where a graph is only predicted.

    Args:
        settings: With the name and `split.index`.
        arrays: With the names of OF_NODES and OF_EDGES.
        where: What to call them in messages.
    """
    name = settings.dataset_name
    nodes = replace(RawNodes.of_arrays(name, arrays), where=where)
    edges = replace(RawRelation.of_arrays(name, arrays), where=where)
    raw = RawGraph(name, {PLAIN_TYPE: nodes}, {PLAIN_RELATION: edges})
    return build_graph(raw, replace(settings, split=replace(settings.split, kind="given")))


def build_graph(raw: RawGraph, settings: DatasetSettings) -> GraphData:
    """Check every array and put the graph together.

    Labels are -1 where they are not needed. The log warns of a relation without edges. InputError
    names file, array, row, value and what is expected.
    """
    is_plain = PLAIN_TYPE in raw.nodes
    target = PLAIN_TYPE if is_plain else _find_target(raw.nodes, settings)
    target_nodes = raw.nodes[target]
    if (
        settings.is_unlabelled
        or "label" not in target_nodes.values
        or (settings.task.links and not is_plain)
    ):
        labels = Labels(np.full(target_nodes.num_nodes, -1, np.int64), 0)
    else:
        columns = [] if target_nodes.schema is None else target_nodes.schema.roles.get("label", [])
        read = read_targets if settings.task.regression else read_labels
        array, where = target_nodes.values["label"], target_nodes.at("label")
        labels = read(array, where, columns, settings.labels)
    masks: dict[str, Any] = {
        name: target_nodes.values[name]
        for name in MASKS
        if name in target_nodes.values and not settings.is_unlabelled
    }
    masks = dict(check_masks(masks, target_nodes.num_nodes, target_nodes.at, settings.split.index))
    nodes = {name: _check_nodes(each) for name, each in raw.nodes.items()}
    merge = settings.duplicates == "merge"
    relations = {
        each: _check_relation(relation, each, nodes, merge=merge)
        for each, relation in raw.relations.items()
    }
    for each, relation in relations.items():
        if not relation.num_edges and not is_plain:
            at = raw.relations[each].path
            log.warning("%s: relation %s has no edge", at, SEPARATOR.join(each))
        if relation.edge_feat is not None and relation.schema is None and not is_plain:
            schema = Schema.of_matrix(raw.relations[each].path, relation.edge_feat.shape[1])
            relations[each] = replace(relation, schema=schema)
    time = target_nodes.values.get("time")
    if time is not None:
        time = check_times(time, target_nodes.num_nodes, target_nodes.at("time"), may_be_blank=True)
    return GraphData(
        raw.name,
        nodes,
        relations,
        target,
        node_time=time,
        labelled_edges=raw.labelled_edges,
        labels=labels.values,
        num_classes=labels.num_classes,
        class_names=labels.names,
        **masks,
    )


def _find_target(types: Mapping[str, RawNodes], settings: DatasetSettings) -> str:
    """Return the type to learn: the only one with labels, or the one that is requested.

    For links any type, the first. Warns that labels of other types are left out. InputError if it
    is ambiguous, or has no labels where they are needed.
    """
    asked = settings.target
    if settings.task.links:
        return next(iter(types))
    labelled = [name for name, raw in types.items() if "label" in raw.values]
    known = f"with labels: {join_names(labelled) or 'none'}"
    if asked is not None and asked not in types:
        raise InputError(
            f"target={asked}: there is no such type of nodes, only {join_names(types)}; {known}"
        )
    if asked is not None and settings.is_unlabelled:
        return asked
    if asked not in (None, *labelled) or not labelled:
        who = (
            "no type of nodes has labels" if asked is None else f"target={asked}: it has no labels"
        )
        raise InputError(
            f"{who}; give the one to be learned a column `label` (or columns.label=NAME); {known}"
            f"{OF_EDGES_TOO}"
        )
    if asked is None and len(labelled) > 1:
        raise InputError(
            f"several types of nodes have labels: {join_names(labelled)}; set target={labelled[0]},"
            " or another: one type is learned"
        )
    target = asked or labelled[0]
    for other in labelled:
        if other != target:
            log.warning("%s: its labels are left out, target=%s is learned", other, target)
    return target


def _check_nodes(raw: RawNodes) -> NodeTable:
    """Check features and ids of the nodes of one type, and return them.

    Names get hashes as ids; without ids they are positions. InputError for wrong ones.
    """
    features, featured, schema = check_table(
        raw.values.get("feat"), raw.schema, raw.num_nodes, raw.at
    )
    ids, names = np.arange(raw.num_nodes) if raw.node_id is None else raw.node_id, raw.node_names
    if ids.dtype.kind in "US":
        texts = decode_names(ids, raw.at("node_id"))
        ids, names = hash_names(texts), Names.of(texts)
    ids = check_node_ids(ids, raw.num_nodes, raw.at("node_id"))
    return NodeTable(features, ids, names, None if featured.all() else featured, schema)


def _check_relation(
    raw: RawRelation, edge_type: EdgeType, nodes: Mapping[str, NodeTable], *, merge: bool
) -> Relation:
    """Check the edges of a relation, merge duplicates on request, and return them.

    Merged edges are sorted by source; InputError if they have features or times.
    """
    src, dst = (
        check_endpoints(ends, nodes[of_type].num_nodes, raw.at(name), of_type)
        for ends, of_type, name in ((raw.src, edge_type[0], "src"), (raw.dst, edge_type[2], "dst"))
    )
    if len(src) != len(dst):
        raise InputError(
            f"{raw.at('dst')} has {len(dst)} rows, `src` has {len(src)}; expected one of each per"
            " edge"
        )
    if merge and (raw.feat is not None or raw.time is not None):
        raise InputError(MERGED_FEATURES)
    src, dst, weight = check_and_merge_edges(
        src, dst, raw.weight, nodes[edge_type[2]].num_nodes, raw.at("edge_weight"), merge=merge
    )
    time = raw.time
    if time is not None:
        time = check_times(time, len(src), raw.at("edge_time"))
    return Relation(src, dst, weight, raw.feat, raw.schema, time)


def check_table(
    given: Array | CsrParts | None,
    schema: Schema | None,
    num_nodes: int,
    at: Callable[[str], str],
) -> tuple[Features, NDArray[np.bool_], Schema | None]:
    """Check the features of nodes; InputError for wrong ones.

    Returns:
        The features, [N, 0] without any; [N] whether a node has some; the schema of a table or
        matrix, None without both.
    """
    featured = np.ones(num_nodes, np.bool_)
    if given is None:
        return np.zeros((num_nodes, 0), np.float32), ~featured, schema
    if schema is not None and all(column.role != "matrix" for column in schema.columns):
        assert isinstance(given, np.ndarray)
        check_length(given, num_nodes, at("feat"))
        return given, find_featured(given), schema  # read_features has checked every cell
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
    """Check the weights, and merge duplicate edges on request, of which the log warns.

    Their weights add up; without weights all copies but one go. InputError for a wrong weight.

    Args:
        src: [E]; and so is dst.
        dst: Destinations, below `num_nodes`.
        weight: [E] weights as the user gave them, or None.
        num_nodes: Number of nodes that may be destinations.
        where: What to call the weights in a message.
        merge: Whether duplicates are merged; the edges are then sorted by source, then by
            destination.

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
