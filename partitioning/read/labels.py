"""Converts labels of users to classes 0 ... C-1, to rows of 0 and 1, or to targets of a regression.

N nodes, C classes, T targets.
"""

import contextlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import MAX_NAMES, InputError, join_names
from partitioning.graph.array_checks import (
    MANY_CLASSES,
    MAX_EXACT,
    Array,
    Ints,
    are_whole,
    check_classes,
    check_multilabel,
    check_targets,
    refuse,
)
from partitioning.graph.graph_data import is_labelled
from partitioning.graph.node_names import decode_names
from partitioning.partition_settings import LabelSettings
from partitioning.read.cells import BLANK

log = logging.getLogger(__name__)

FEW_CLASSES = 20
"""So many classes are no reason to warn, even of few nodes."""
UNKNOWN = {
    *("?", "-", "--", "...", "missing", "na", "nan", "none", "nolabel", "notavailable", "null"),
    *("tbd", "unassigned", "undefined", "unknown", "unlabeled", "unlabelled", "unspecified"),
}
"""Names of classes that often stand for no label, in lower case without blanks and the like."""
SEVERAL = re.compile(r"[|;,]")
LIST = re.compile(rf"{SEVERAL.pattern}|^[\[({{].*[\])}}]$")
"""A name of a class that may be several labels."""
ROWS_OF_CLASSES = (
    "0 and 1 by class go in a column for each (columns.label=[NAME,NAME]), or in a matrix"
)
OF_NUMBERS = "; numbers are predicted with task=node_regression or edge_regression"
OF_EDGES_TOO = "; labels of edges are learned with --config-name edge_classification"


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels in the form of GraphData."""

    values: NDArray[Any]
    num_classes: int
    """Or T."""
    names: tuple[str | int, ...] | None = None
    """[C] class names of the data; None: 0 ... C-1. Of targets [T]; None: they have no names."""


def read_labels(
    array: Array, where: str, columns: Sequence[str], settings: LabelSettings
) -> Labels:
    """Check and number labels, arguments as of `read_targets`.

    The log has the numbers and warns of doubtful classes. InputError names the first row that is
    wrong.
    """
    kind = settings.kind
    if array.ndim == 2 and array.shape[1] == 1 and kind != "multilabel":
        array = array[:, 0]
    array = _without_unknown(array, where, settings)
    if array.ndim == 1 and kind == "multilabel":
        if array.dtype.kind not in "OUS":
            raise InputError(
                f"labels=multilabel: {where} has one column of numbers; expected a column of 0 and"
                " 1 for each class, or cells such as Action|Comedy"
            )
        array = _split_cells(array, where)
    labels = (
        _check_multilabel_rows(array, where, columns, kind)
        if array.ndim == 2
        else _number_classes(array, where)
    )
    if labels.values.ndim == 1:
        _warn_odd_classes(labels, where)
        blank = int((labels.values < 0).sum())
        if blank:
            log.info("%s: %d of %d rows have no label", where, blank, len(labels.values))
        _warn_doubtful_classes(labels, len(labels.values) - blank, where)
    return labels


def unknown_labels(settings: LabelSettings) -> tuple[str, ...]:
    """Return the texts that stand for no label."""
    unknown = settings.unknown
    several = unknown if isinstance(unknown, list | tuple) else [unknown]
    texts = ("null" if text is None else str(text) for text in several)  # as YAML reads null
    return () if unknown is None else tuple(texts)


def _without_unknown(array: Array, where: str, settings: LabelSettings) -> Array:
    """Replace labels of labels.unknown: NaN among floats, -1 among integers, None among names.

    Names are stripped, and the count is logged. Without the setting the array stays as it is.
    """
    unknown = unknown_labels(settings)
    if not unknown:
        return array
    if array.dtype.kind in "OUS":
        texts = np.array([None if cell is None else str(cell).strip() for cell in array], object)
        folded = [text.casefold() for text in unknown]  # [NaN] is nan
        is_unknown = np.isin([str(text).casefold() for text in texts], folded)
        known_labels = texts
        known_labels[is_unknown] = None
    else:
        numbers = [float(text) for text in unknown if _number(text) is not None]
        is_unknown = np.isin(array, numbers)
        known_labels = np.where(is_unknown, np.nan if array.dtype.kind == "f" else -1, array)
    log.info(
        "%s: labels.unknown=%s: %d rows have no label",
        where,
        join_names(unknown),
        is_unknown.sum(),
    )
    return known_labels


def _split_cells(array: Array, where: str) -> NDArray[np.float32]:
    """Return cells such as Action|Comedy, [0, 2] or a;b as a row of 0 and 1 for each node, [N, C].

    Labels are in alphabetical order, which is logged. A blank cell is a row of NaN. InputError for
    a label that a cell names twice, and where every cell names 0 and 1.
    """
    cells = [
        None if cell is None or not str(cell).strip() else _labels_in(str(cell), where)
        for cell in array
    ]
    names = sorted({name for cell in cells if cell for name in cell})
    if names == ["0", "1"] and all(cell is None or len(cell) == 2 for cell in cells):
        raise InputError(f"{where}: every node has the labels 0 and 1; {ROWS_OF_CLASSES}")
    place = {name: number for number, name in enumerate(names)}
    rows = np.zeros((len(cells), len(names)), np.float32)
    for row, cell in enumerate(cells):
        rows[row, [place[name] for name in cell or ()]] = 1
        rows[row] = np.nan if cell is None else rows[row]
    numbered = join_names(f"{number} {name}" for number, name in enumerate(names))
    log.info("%s: several labels per node: %s", where, numbered)
    return rows


def _labels_in(cell: str, where: str) -> list[str]:
    """Return the labels that a cell such as [0, 2] names; InputError if it names one twice."""
    labels = [text.strip() for text in SEVERAL.split(cell.strip("[](){} ")) if text.strip()]
    if len({*labels}) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise InputError(
            f"{where}: {cell[:60]} names the label {twice} twice; expected it once;"
            f" {ROWS_OF_CLASSES}"
        )
    return labels


def _warn_doubtful_classes(labels: Labels, num_labelled: int, where: str) -> None:
    """Warn of classes that may be none, lists, nearly one for each node, or differ in capitals.

    InputError for a list that names a label twice.
    """
    names = labels.names or ()
    doubtful = [name for name in names if _may_be_unknown(name)]
    if doubtful:
        log.warning(
            "%s: %s is a class; labels.unknown=[%s] if it stands for no label",
            where,
            doubtful[0],
            doubtful[0],
        )
    if labels.num_classes > max(FEW_CLASSES, num_labelled // 10):
        log.warning(
            "%s: %d classes of %d labelled nodes; set columns.label to another column if they are"
            " names of nodes, or task=node_regression if they are numbers to predict",
            where,
            labels.num_classes,
            num_labelled,
        )
    by_letters: dict[str, Any] = {}
    firsts = [by_letters.setdefault(str(name).casefold(), name) for name in names]
    alike = [pair for pair in zip(firsts, names, strict=True) if pair[0] != pair[1]]
    if alike:
        log.warning(
            "%s: %s and %s are two classes; write them alike if they are one", where, *alike[0]
        )
    lists = [name for name in names if isinstance(name, str) and LIST.search(name)]
    for name in lists:
        if name[0] in "[({":
            _labels_in(name, where)
    if lists:
        log.warning(
            "%s: %s is one class; labels=multilabel reads it as several labels of a node",
            where,
            join_names(lists[:1], "`"),
        )


def _may_be_unknown(name: str | int) -> bool:
    """Return whether the name of a class is a negative number, or one of UNKNOWN."""
    number = _number(str(name))
    if number is not None and number == number:  # NaN is none; isnan takes no 21 digits
        return number < 0
    return name in BLANK or (re.sub(r"[\W_]", "", str(name).casefold()) or name) in UNKNOWN


def read_targets(
    array: Array, where: str, columns: Sequence[str], settings: LabelSettings
) -> Labels:
    """Check the targets of a regression; InputError names the first value that is wrong.

    Also for a blank column, and for labels other than auto. Blank cells are logged.

    Args:
        array: [N] or [N, T].
        where: what to call it in a message.
        columns: their names, where they are columns of a table.
        settings: how labels are read.
    """
    if settings.kind != "auto":
        raise InputError(
            f"labels={settings.kind}: says how classes are given, and task=node_regression has"
            " numbers; leave it out"
        )
    values = check_targets(_without_unknown(array, where, settings), where, columns)
    blank = np.isnan(values)
    for column in np.flatnonzero(blank.all(axis=0)).tolist():
        name = columns[column] if len(columns) == values.shape[1] else column
        raise InputError(
            f"{where}: column {name} is blank at every node; expected at least one number"
        )
    num_unlabelled = int(blank.all(axis=1).sum())
    if blank.any():
        log.info(
            "%s: %d of %d rows have no label, %d more lack one of the targets",
            where,
            num_unlabelled,
            len(values),
            int(blank.any(axis=1).sum()) - num_unlabelled,
        )
    names = tuple(columns) if len(columns) == values.shape[1] else None
    return Labels(values, values.shape[1], names)


def parse_label_texts(codes: Ints, written: list[str], where: str) -> Array:
    """Convert a column of text to int64 [N], -1 where blank, or to names [N].

    It is numbers if all classes are integers. Blanks around a text are no part of it, of which the
    log warns.

    Args:
        codes: [N] positions in `written`, -1 where blank.
        written: The different texts.
        where: File and column, for messages.

    Raises:
        InputError: a number is no integer, or two texts are the same number.
    """
    places: dict[str, int] = {}
    place_of = [places.setdefault(text.strip(), len(places)) for text in written]
    codes = np.array([*place_of, -1], np.int64)[codes]
    texts = list(places)
    spaced = [text for text in written if text.strip() not in ("", text)]
    if spaced:
        log.warning("%s: blanks around a class such as %r are left out", where, spaced[0])
    numbers = {text: _number(text) for text in texts if text not in BLANK}
    if any(number is None for number in numbers.values()):
        _refuse_two_spellings(numbers, places, codes, where)
        return _names(texts, codes, where)
    spelled: dict[int | float, str] = {}
    for text, number in numbers.items():
        row = int((codes == places[text]).argmax())
        if not isinstance(number, int):
            raise InputError(
                f"{where}: row {row} is {text}; expected a class: an integer, or a name{OF_NUMBERS}"
            )
        if number in spelled:
            other = spelled[number]
            first = int((codes == places[other]).argmax())
            raise InputError(
                f"{where}: row {first} is {other}, row {row} is {text}, the same number in two"
                " spellings; expected one"
            )
        spelled[number] = text
    limits = np.iinfo(np.int64)
    if all(
        re.fullmatch(r"(?:0|-?[1-9]\d*)(?:\.0*)?", text) and limits.min < number <= limits.max
        for number, text in spelled.items()
    ):
        of_text = {text: number for number, text in spelled.items()}
        classes: Ints = np.array([*(of_text.get(text, -1) for text in texts), -1], np.int64)[codes]
        return classes
    return _names([None if text in BLANK else text for text in texts], codes, where)


def _refuse_two_spellings(
    numbers: Mapping[str, int | float | None], places: Mapping[str, int], codes: Ints, where: str
) -> None:
    """Raise InputError where all classes are True, False, 1 and 0, in both spellings."""
    words = [text for text in numbers if text.lower() in ("true", "false")]
    others = [text for text in numbers if text not in words]
    if words and others and all(numbers[text] in (0, 1) for text in others):
        rows = [int((codes == places[text]).argmax()) for text in (words[0], others[0])]
        raise InputError(
            f"{where}: row {rows[0]} is {words[0]}, row {rows[1]} is {others[0]}; expected one"
            " spelling of true and false"
        )


def _number(text: str) -> int | float | None:
    """Return an integer for an exact whole number, a float for another number, None for a name."""
    with contextlib.suppress(ValueError):
        return int(text)
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number.is_integer() and abs(number) < MAX_EXACT else number


def _names(texts: Sequence[str | None], codes: Ints, where: str) -> Array:
    """Return names [N], None where a row is blank or -1, of which the log warns.

    Args:
        texts: By code.
        codes: [N]; -1: blank.
    """
    if "-1" in texts:
        log.warning("%s: -1 beside names of classes is read as no label", where)
    names = [None if text in ("", "-1") else text for text in texts]
    by_row: Array = np.array([*names, None], dtype=object)[codes]
    return by_row


def _check_multilabel_rows(array: Array, where: str, columns: Sequence[str], kind: str) -> Labels:
    """Check labels [N, C] of 0 and 1, NaN where unknown.

    Convert them to classes for `multiclass`. InputError for other values, no label at all, and with
    `multiclass` a row without exactly one 1. The log warns of blank cells, and of one 1 in each row
    without it.
    """
    if 0 in array.shape:
        raise InputError(
            f"{where} has shape {array.shape}; expected at least one node and one class"
        )
    several = check_multilabel(array, where, columns)
    labelled = is_labelled(several)
    if not labelled.any():
        raise InputError(f"{where}: every row is NaN; expected at least one labelled node")
    ones = several.sum(axis=1)  # NaN where a cell is unknown
    if kind == "multiclass":
        refuse(
            ones,
            labelled & (ones != 1),
            f"{where}: number of ones",
            "expected one (labels=multiclass)",
        )
        return Labels(np.where(labelled, several.argmax(axis=1), -1), several.shape[1])
    _warn_unknown_cells(several[labelled], where)
    if several.shape[1] > 1 and (ones[labelled] == 1).all():
        log.warning(
            "%s: a single 1 in every row, read as multi-label; labels=multiclass takes it as one"
            " class",
            where,
        )
    return Labels(several, several.shape[1])


def _warn_unknown_cells(labels: NDArray[np.float32], where: str) -> None:
    """Log how many cells of labelled nodes, [n, C], are blank, and which labels are never known."""
    blank = np.isnan(labels)
    if blank.any():
        shown = ", ".join(map(str, blank.sum(axis=0)[:MAX_NAMES].tolist()))
        log.warning(
            "%s: %d of %d cells of labelled nodes are blank, unknown labels; by label: %s%s",
            where,
            blank.sum(),
            blank.size,
            shown,
            " ..." if labels.shape[1] > MAX_NAMES else "",
        )
    never = np.flatnonzero(blank.all(axis=0))
    if len(never):
        log.warning("%s: label %d and %d more have no known cell", where, never[0], len(never) - 1)


def _number_classes(array: Array, where: str) -> Labels:
    """Number the classes, int64 [N]; -1 for -1, NaN, None and empty names.

    Integers that count from 0 keep their numbers; others, and names, are numbered in sorted order.
    InputError without labels, and for numbers that are no integers.
    """
    if array.shape == (0,):
        raise InputError(f"{where} is empty; expected one label per row")
    if array.ndim == 1 and array.dtype.kind in "OUS":
        names = array if array.dtype == object else decode_names(array, where)
        text = np.array([None if name is None else str(name).strip() for name in names], object)
        blank = np.fromiter((name is None or name == "" for name in text), bool, len(text))
        return _number_names(text, blank, where)
    if array.ndim == 1 and array.dtype.kind == "f":
        blank = np.isnan(array)
        expected = f"expected a class: an integer, or a name{OF_NUMBERS}"
        refuse(array, ~blank & ~are_whole(array), where, expected)
        array = np.where(blank, -1, array).astype(np.int64)
    elif array.dtype == np.bool_:
        array = array.astype(np.int64)
    limit = max(len(array), MANY_CLASSES)
    if array.ndim == 1 and array.dtype.kind in "iu":
        blank = array == -1
        if not (array == 0).any() or ((array < 0) & ~blank | (array >= limit)).any():
            return _number_names(array, blank, where)
    labels = check_classes(array, limit, where)
    if labels.max() < 0:
        raise InputError(f"{where}: no node has a label; expected at least one")
    return Labels(labels, int(labels.max()) + 1)


def _number_names(array: Array, blank: NDArray[np.bool_], where: str) -> Labels:
    """Number names, or integers that do not count from 0, in sorted order; log the numbers.

    Blank rows become -1. InputError for too many classes, or none.
    """
    if blank.all():
        raise InputError(f"{where}: no node has a label; expected at least one")
    kept = array[~blank]
    names, classes = np.unique(
        kept.astype(str) if kept.dtype == object else kept, return_inverse=True
    )
    if len(names) > max(MANY_CLASSES, len(kept) // 2):
        raise InputError(
            f"{where}: {len(names)} different labels of {len(kept)} nodes, {names[0]!r} for"
            " instance; expected classes: set columns.label to the column that has them"
            f"{OF_NUMBERS if names.dtype.kind in 'iuf' else ''}"
        )
    labels = np.full(len(array), -1)
    labels[~blank] = classes
    numbered = join_names(f"{number} {name}" for number, name in enumerate(names.tolist()))
    log.info("%s: classes are numbered: %s", where, numbered)
    return Labels(labels, len(names), tuple(names.tolist()))


def _warn_odd_classes(labels: Labels, where: str) -> None:
    """Warn of classes without a node, and of labels that are all of one class."""
    counts = np.bincount(labels.values[labels.values >= 0], minlength=labels.num_classes)
    absent = np.flatnonzero(counts == 0)
    if len(absent):
        largest = f"; labels.unknown=[{len(counts) - 1}] if the largest stands for no label"
        log.warning(
            "%s: %d of %d classes have no node, the first is %d%s",
            where,
            len(absent),
            len(counts),
            absent[0],
            largest * (2 * len(absent) > len(counts)),
        )
    if (counts > 0).sum() == 1:
        log.warning(
            "%s: all labelled nodes are of one class; -1 and blank stand for no label", where
        )
