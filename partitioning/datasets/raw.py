"""From arrays as a user gives them to a checked GraphData.

N nodes, E directed edges, F features, C classes. Rows are counted from 0.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.checks import (
    Array,
    CsrParts,
    check_endpoints,
    check_features,
    check_labels,
    check_masks,
    check_node_ids,
)
from partitioning.errors import InputError
from partitioning.graph_data import Endpoints, GraphData

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class RawGraph:
    """The arrays of a graph, unchecked, and for each what to call it in a message."""

    name: str
    src: Array
    dst: Array
    features: Array | CsrParts
    label: Array
    masks: Mapping[str, Array]
    """By the names train_mask, val_mask, test_mask; all three or none."""
    node_id: Array | None
    where: Mapping[str, str] = field(default_factory=dict)
    """Array name -> file and array, as in "g.npz: array `src`"."""

    def at(self, name: str) -> str:
        return self.where.get(name, f"{self.name}: array `{name}`")


def build(raw: RawGraph) -> GraphData:
    """Check every array and put the graph together; InputError names file, array, row, value and what is expected."""
    labels, num_classes = check_labels(raw.label, raw.at("label"))
    _tell_odd_classes(labels, num_classes, raw.at("label"))
    num_nodes = len(labels)
    features = check_features(raw.features, num_nodes, raw.at)
    src, dst = (check_endpoints(getattr(raw, name), num_nodes, raw.at(name)) for name in ("src", "dst"))
    if len(src) != len(dst):
        raise InputError(f"{raw.at('dst')} has {len(dst)} rows, `src` has {len(src)}; expected one of each per edge")
    ids = np.arange(num_nodes, dtype=np.int64) if raw.node_id is None else raw.node_id
    return GraphData(
        name=raw.name,
        src=src,
        dst=dst,
        features=features,
        labels=labels,
        num_classes=num_classes,
        node_ids=check_node_ids(ids, num_nodes, raw.at("node_id")),
        **check_masks(raw.masks, num_nodes, raw.at),
    )


def _tell_odd_classes(labels: NDArray[Any], num_classes: int, where: str) -> None:
    """Warn of classes that no node has, and of labels that may be meant as one class per node."""
    if labels.ndim == 2:
        if (np.nan_to_num(labels, nan=1 / num_classes).sum(axis=1) == 1).all() and num_classes > 1:
            log.warning("%s: a single 1 in every row, read as multi-label; is label.argmax(axis=1) meant?", where)
        return
    absent = np.flatnonzero(np.bincount(labels[labels >= 0], minlength=num_classes) == 0)
    if len(absent):
        log.warning("%s: %d of %d classes have no node, the first is %d", where, len(absent), num_classes, absent[0])


def narrowed(ends: Endpoints) -> Endpoints:
    """The same numbers as int32 where they all fit."""
    limits = np.iinfo(np.int32)
    fit = len(ends) == 0 or (ends.min() >= limits.min and ends.max() <= limits.max)
    return ends.astype(np.int32) if fit else ends


def joined(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate along the rows, and empty the list on the way: so the whole and one piece are there at once."""
    shape = (sum(map(len, pieces)), *pieces[0].shape[1:]) if pieces else (0,)
    whole = np.empty(shape, np.result_type(*pieces) if pieces else np.int32)
    end = len(whole)
    while pieces:
        piece = pieces.pop()
        whole[end - len(piece) : end] = piece
        end -= len(piece)
    return whole
