"""From labels as people have them to classes 0 ... C-1, or rows of 0 and 1.

N nodes, C classes.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.checks import MANY_CLASSES, Array, check_classes, check_multilabel, refuse
from partitioning.errors import InputError

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels as GraphData has them."""

    values: NDArray[Any]
    num_classes: int
    names: tuple[str | int, ...] | None = None
    """[C] what the source calls its classes, where that is not 0 ... C-1."""


def read_labels(array: Array, where: str, kind: str = "auto") -> Labels:
    """Check and number labels; kind is the setting `labels`. InputError names the first row that is wrong."""
    if array.ndim == 2 and array.shape[1] == 1 and kind != "multilabel":
        array = array[:, 0]
    if array.ndim == 1 and kind == "multilabel":
        raise InputError(
            f"labels=multilabel: {where} has one column; expected a column of 0 and 1 for each class"
        )
    labels = _several(array, where, kind) if array.ndim == 2 else _numbered(array, where)
    if labels.values.ndim == 1:
        _tell_odd_classes(labels, where)
    return labels


def _several(array: Array, where: str, kind: str) -> Labels:
    """[N, C] of 0 and 1, and rows of NaN; as classes where that is asked for."""
    if 0 in array.shape:
        raise InputError(
            f"{where} has shape {array.shape}; expected at least one node and one class"
        )
    several = check_multilabel(array, where)
    labelled = ~np.isnan(several).any(axis=1)
    if not labelled.any():
        raise InputError(f"{where}: every row is NaN; expected at least one labelled node")
    ones = several.sum(axis=1)
    if kind == "multiclass":
        refuse(
            ones,
            labelled & (ones != 1),
            f"{where}: number of ones",
            "expected one (labels=multiclass)",
        )
        return Labels(np.where(labelled, several.argmax(axis=1), -1), several.shape[1])
    if several.shape[1] > 1 and (ones[labelled] == 1).all():
        log.warning(
            "%s: a single 1 in every row, read as multi-label; labels=multiclass takes it as one class",
            where,
        )
    return Labels(several, several.shape[1])


def _numbered(array: Array, where: str) -> Labels:
    """Classes, int64 [N]; -1 for -1, NaN, None and empty names."""
    if array.shape == (0,):
        raise InputError(f"{where} is empty; expected one label per node")
    if array.ndim == 1 and array.dtype.kind in "OUS":
        text = array.astype(str) if array.dtype.kind == "S" else array
        blank = np.fromiter((name is None or name == "" for name in text), bool, len(text))
        return _named(text, blank, where)
    if array.ndim == 1 and array.dtype.kind == "f":
        blank = np.isnan(array)
        refuse(
            array,
            ~blank & (array != np.floor(array)),
            where,
            "expected a class: an integer, or a name",
        )
        array = np.where(blank, -1, np.clip(array, -(2**62), 2**62)).astype(np.int64)
    elif array.dtype == np.bool_:
        array = array.astype(np.int64)
    limit = max(len(array), MANY_CLASSES)
    if array.ndim == 1 and array.dtype.kind in "iu" and ((array < -1) | (array >= limit)).any():
        return _named(array, array == -1, where)
    labels = check_classes(array, limit, where)
    if labels.max() < 0:
        raise InputError(f"{where}: no node has a label; expected at least one")
    return Labels(labels, int(labels.max()) + 1)


def _named(array: Array, blank: NDArray[np.bool_], where: str) -> Labels:
    """Names, or integers that do not count from 0, numbered in their order."""
    if blank.all():
        raise InputError(f"{where}: no node has a label; expected at least one")
    kept = array[~blank]
    names, classes = np.unique(
        kept.astype(str) if kept.dtype == object else kept, return_inverse=True
    )
    if len(names) > max(MANY_CLASSES, len(kept) // 2):
        raise InputError(
            f"{where}: {len(names)} different labels of {len(kept)} nodes, {names[0]!r} for instance; expected classes:"
            " set columns.label to the column that has them"
        )
    labels = np.full(len(array), -1)
    labels[~blank] = classes
    shown = ", ".join(f"{number} {name}" for number, name in enumerate(names[:10].tolist()))
    log.info("%s: classes are numbered: %s%s", where, shown, " ..." if len(names) > 10 else "")
    return Labels(labels, len(names), tuple(names.tolist()))


def _tell_odd_classes(labels: Labels, where: str) -> None:
    counts = np.bincount(labels.values[labels.values >= 0], minlength=labels.num_classes)
    absent = np.flatnonzero(counts == 0)
    if len(absent):
        log.warning(
            "%s: %d of %d classes have no node, the first is %d",
            where,
            len(absent),
            len(counts),
            absent[0],
        )
    if (counts > 0).sum() == 1:
        log.warning(
            "%s: all labelled nodes are of one class; -1 and blank stand for no label", where
        )
