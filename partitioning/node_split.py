"""Splits nodes into training, validation and test: masks of the source, drawn, or index files.

N nodes. Index files list ids, or positions 0 ... N-1 in the order of the source where nodes have
none.
"""

import logging
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.graph.array_checks import check_split, make_mask
from partitioning.graph.graph_data import SPLITS, GraphData
from partitioning.partition_settings import SplitSettings
from partitioning.read.index_files import read_index, require_index_file
from partitioning.read.nodes import Nodes

log = logging.getLogger(__name__)

Mask = NDArray[np.bool_]
Ids = NDArray[np.int64]
USED_BY = {
    "given": ("index",),
    "per_class": SPLITS,
    "fraction": SPLITS,
    "stratified": SPLITS,
    "time": SPLITS,
    "files": (*SPLITS, "dir"),
    "none": (),
}
"""Settings that each kind of split uses, besides those that every kind may have."""
VALUES = (*SPLITS, "dir")
"""Settings that meta.json keeps, and that a data set's recipe may have."""
_SEVERAL = {"multilabel": "several", "regression": "numbers (task=node_regression)"}


@dataclass(frozen=True, eq=False)
class Split:
    """Disjoint masks of the nodes to train on, to choose the model with, and to test."""

    train: Mask
    """bool [N]; val and test likewise."""
    val: Mask
    test: Mask
    description: dict[str, Any]
    """Resolved kind, seed and values."""

    def describe(self) -> dict[str, Any]:
        """Return the field `split` of meta.json: resolved settings and the sizes of the sets."""
        return {
            **self.description,
            "nodes": {name: int(getattr(self, name).sum()) for name in SPLITS},
        }


def draw(
    graph: GraphData, settings: SplitSettings, recipe: SplitSettings, sources: Ids | None = None
) -> Split:
    """Split the labelled nodes of a graph by the user's settings, or else by the data set's recipe.

    A setting that is not None replaces the recipe's value if both are of the same kind. Equal
    settings and seed give equal masks; with "none" all are empty. The log says where masks of the
    data are not used, and how many unlabelled nodes are taken out.

    Args:
        sources: int64 [N] of nodes that are edges: the source of each, for split.by=source.

    Raises:
        InputError: a setting cannot be met, a node is in two sets or has no label, or the training
            set is empty.
    """
    kind = recipe.kind if settings.kind == "default" else settings.kind
    values = _resolve(kind, settings, recipe, has_sources=sources is not None)
    if kind == "none":
        nobody = np.zeros(len(graph.labels), np.bool_)
        return Split(nobody, nobody, nobody, {"kind": kind})
    if kind != "given" and recipe.kind == "given" and graph.train_mask is not None:
        log.warning("split=%s: the split of the data is not used; split=given uses it", kind)
    if kind == "given":
        masks = _take_given(graph)
    elif kind == "files":
        masks = _read_files(graph, values)
    else:
        for name in SPLITS:
            _check_value(name, values[name], kind)
        rng = np.random.default_rng(settings.seed)
        if kind == "per_class":
            masks = _draw_per_class(graph, values, rng)
        else:
            nodes = _nodes_in_order(graph, kind, rng)
            masks = _draw_fraction(graph, values, nodes, sources if settings.by else None)
        values = {"seed": settings.seed, **values}
    unlabelled = sum(int((mask & ~graph.labelled).sum()) for mask in masks)
    if unlabelled and settings.drop_unlabelled:
        log.info("split=%s: %d nodes without a label are taken out", kind, unlabelled)
        masks = [mask & graph.labelled for mask in masks]
    remedy = ", or set split.drop_unlabelled=true" if unlabelled else ""
    by_name = dict(zip(SPLITS, masks, strict=True))
    check_split(by_name, graph.labelled, f"split={kind}", graph.target_nodes.shown_id, remedy)
    if not masks[0].any():
        raise InputError(
            f"split={kind}: the training set is empty; give it at least one labelled node"
        )
    train, val, test = masks
    return Split(train, val, test, description={"kind": kind, **values})


def _resolve(
    kind: str, settings: SplitSettings, recipe: SplitSettings, *, has_sources: bool
) -> dict[str, Any]:
    """Return the values for this kind: the user's, else the recipe's if it is of the same kind.

    InputError for a setting of another kind, or one that is missing; of "files" any may be missing.
    """
    by_source = has_sources and settings.by == "source" and kind == "fraction"
    if settings.edges is not None or (settings.by is not None and not by_source):
        raise InputError(
            "split.edges and split.by have a meaning with task=link_prediction alone, but for"
            " split.by=source with split=fraction and labels of edges: remove them (by time:"
            " split=time with columns.time)"
        )
    for name in {name: None for used in USED_BY.values() for name in used}:
        value = getattr(settings, name)
        if name not in USED_BY[kind] and value is not None:
            kinds = " or ".join(f"split={other}" for other, used in USED_BY.items() if name in used)
            raise InputError(
                f"split.{name}={value} has no meaning with split={kind}: remove it, or set {kinds}"
            )
    names = [name for name in USED_BY[kind] if name in VALUES]
    values = {name: getattr(settings, name) for name in names}
    if kind == recipe.kind:
        values = {
            name: getattr(recipe, name) if value is None else value
            for name, value in values.items()
        }
    missing = [name for name, value in values.items() if value is None]
    if missing and kind != "files":
        needs = ", ".join(f"split.{name}" for name in missing)
        raise InputError(f"split={kind} needs {needs}: this data set has no published value for it")
    return values


def _take_given(graph: GraphData) -> list[Mask]:
    """Return the three masks of the data; InputError where one is missing."""
    masks = [
        mask for mask in (graph.train_mask, graph.val_mask, graph.test_mask) if mask is not None
    ]
    if len(masks) < len(SPLITS):
        raise InputError(
            f"split=given, but {graph.name} comes without train, val and test masks: "
            "set split=per_class, split=fraction or split=files, or add the masks to the data"
            " (columns.split=NAME names a column of train, val and test)"
        )
    return masks


def _draw_per_class(
    graph: GraphData, values: dict[str, Any], rng: np.random.Generator
) -> list[Mask]:
    """Draw equally many training nodes of each class, then validation and test nodes of any class.

    InputError if there are too few, or the labels are not one class per node.
    """
    _check_classes(graph, "split=per_class")
    count, num_val, num_test = (values[name] for name in SPLITS)
    sizes = np.bincount(graph.labels[graph.labelled].astype(np.int64), minlength=graph.num_classes)
    if sizes.min() < count:
        smallest = int(sizes.argmin())
        raise InputError(
            f"split.train={count}: class {smallest} has {sizes[smallest]} labelled nodes;"
            f" set it to {sizes[smallest]} or less, or set split=fraction"
        )
    members = [np.flatnonzero(graph.labels == label) for label in range(graph.num_classes)]
    train = np.concatenate([rng.permutation(nodes)[:count] for nodes in members])
    rest = rng.permutation(np.flatnonzero(graph.labelled & ~make_mask(train, len(graph.labels))))
    if num_val + num_test > len(rest):
        raise InputError(
            f"split.val={num_val} and split.test={num_test}: only {len(rest)} labelled nodes are"
            f" left after {len(train)} training nodes; lower them or split.train={count}"
        )
    return [
        make_mask(ids, len(graph.labels))
        for ids in (train, rest[:num_val], rest[num_val : num_val + num_test])
    ]


def _check_classes(graph: GraphData, setting: str) -> None:
    """Raise InputError unless nodes have one class each."""
    if graph.label_kind != "multiclass":
        raise InputError(
            f"{setting} needs one class per node, and these nodes have"
            f" {_SEVERAL[graph.label_kind]}: set split=fraction"
        )


def _check_value(name: str, value: Any, kind: str) -> None:
    """Raise InputError unless split.train, val or test fits a kind of split that draws nodes.

    That is a number of nodes with per_class, else a share in [0, 1].
    """
    is_count = type(value) is int and value >= 0
    is_share = (is_count or type(value) is float) and 0 <= value <= 1
    numbers = "a number of nodes, from 0 on; set split=fraction for shares"
    shares = "a share of the nodes, a number in [0, 1]; set split=per_class for numbers of nodes"
    fits, expected = {
        "per_class": (is_count, numbers),
    }.get(kind, (is_share, shares))
    if not fits:
        raise InputError(f"split.{name}={value}: with split={kind} this is {expected}")


def _nodes_in_order(graph: GraphData, kind: str, rng: np.random.Generator) -> Ids:
    """Order the labelled nodes for a kind of split: at random, or by time with "time".

    With "stratified" every prefix of the random order has about the same shares of the classes.

    Raises:
        InputError: "stratified", and the labels are not one class per node; "time", and a labelled
            node has none.
    """
    nodes = rng.permutation(np.flatnonzero(graph.labelled))
    if kind == "time":
        return nodes[np.argsort(_find_times(graph, nodes), kind="stable")]
    if kind != "stratified":
        return nodes
    _check_classes(graph, "split=stratified")
    classes = graph.labels[nodes].astype(np.int64)
    sizes = np.bincount(classes)
    by_class = np.argsort(classes, kind="stable")
    rank = np.empty(len(nodes))
    rank[by_class] = np.concatenate([np.arange(size) for size in sizes])
    return nodes[np.argsort((rank + rng.random(len(nodes))) / sizes[classes], kind="stable")]


def _find_times(graph: GraphData, nodes: Ids) -> NDArray[np.float64]:
    """Return the times of nodes, float64 [n]; InputError where one, or all, are unknown."""
    if graph.node_time is None:
        raise InputError(
            f"split=time: {graph.name} has no times; set columns.time to the column that has them"
        )
    times = graph.node_time[nodes]
    blank = np.isnan(times)
    if blank.any():
        node = graph.target_nodes.shown_id(int(nodes[blank].min()))
        raise InputError(
            f"split=time: {graph.name}: {int(blank.sum())} labelled nodes have no value in"
            f" the column of columns.time, node {node} for instance; fill it, or take their labels"
            " out"
        )
    return times


def _draw_fraction(
    graph: GraphData, values: dict[str, Any], nodes: Ids, sources: Ids | None
) -> list[Mask]:
    """Return the masks of three successive shares of `nodes`, the labelled nodes in order.

    The bounds are rounded, so shares that add up to 1 leave no node out. With `sources` they are
    shares of the sources, each of which has all its nodes in one set. InputError where they add up
    to more than 1.
    """
    shares = [values[name] for name in SPLITS]
    if sum(shares) > 1 + 1e-9:
        shares_text = ", ".join(
            f"split.{name}={share:g}" for name, share in zip(SPLITS, shares, strict=True)
        )
        raise InputError(
            f"{shares_text}: the shares add up to {sum(shares):g}; lower them to 1 or less together"
        )
    rank = np.arange(len(nodes))
    if sources is not None:  # in the order in which the nodes name them
        _, first, number = np.unique(sources[nodes], return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))[number]
    bounds = np.rint(np.cumsum([0, *shares]) * (rank.max(initial=-1) + 1))
    return [
        make_mask(nodes[(begin <= rank) & (rank < end)], len(graph.labels))
        for begin, end in pairwise(bounds)
    ]


def _read_files(graph: GraphData, values: dict[str, Any]) -> list[Mask]:
    """Read the masks from index files; `values` gets the used paths, for meta.json.

    InputError for a file that is missing or has an unknown node.
    """
    masks, nodes = [], _nodes_with_ids(graph)
    for name in SPLITS:
        path = require_index_file(name, values[name], values["dir"])
        values[name] = str(path)
        index = read_index(path, len(graph.labels), f"split.{name}", nodes)
        masks.append(make_mask(index, len(graph.labels)))
    return masks


def _nodes_with_ids(graph: GraphData) -> Nodes | None:
    """Return the nodes, to look up their ids; None where they are known by position."""
    table = graph.target_nodes
    if table.node_names is None and (table.node_ids == np.arange(table.num_nodes)).all():
        return None
    return Nodes.of_table(table)
