"""Checks of users' arrays: each returns the array in the program's type, or raises an InputError.

It names the first wrong row, counted from 0. `where` names the file and the array for messages, as
in "g.npz: array `src`"; `at` is a function that returns it for an array's name. N nodes, E directed
edges, F features, C classes.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.graph.graph_data import MASKS, Endpoints, Features
from partitioning.thread_pool import BLOCK, blocks, in_blocks

log = logging.getLogger(__name__)

Ints = NDArray[np.int64]
Array = NDArray[Any]
CSR = ("feat_data", "feat_indices", "feat_indptr", "feat_shape")
MANY_CLASSES = 1000
"""A class above this and above the number of nodes is refused: it may be a node id."""

MAX_FEATURES = 10_000_000
"""More columns are refused: rows become dense when they are written."""
MAX_TARGET = 1e15
"""A larger target of a regression is refused: it may be an id or a code for a missing value."""
MAX_EXACT = 2**53
"""From here on, a float64 can be the rounded value of several integers."""
MIN_WEIGHT, MAX_WEIGHT = 1e-18, 1e18
"""Bounds of edge weights: their sums, degrees and inverses neither over- nor underflow float32."""


@dataclass(frozen=True, eq=False)
class CsrParts:
    """Four arrays of a CSR matrix, unchecked."""

    data: Array
    indices: Array
    indptr: Array
    shape: Array

    def __len__(self) -> int:
        return len(self.indptr) - 1


def csr_arrays(matrix: sp.csr_array) -> dict[str, Array]:
    """Return the four arrays of a CSR matrix by the names of CSR."""
    shape = np.array(matrix.shape)
    return dict(zip(CSR, (matrix.data, matrix.indices, matrix.indptr, shape), strict=True))


def expect(is_right: bool, array: Any, where: str, expected: str) -> None:
    """Raise InputError with shape and dtype of an array or matrix unless they are as expected."""
    if not is_right:
        raise InputError(
            f"{where} has shape {array.shape}, dtype {array.dtype}; expected {expected}"
        )


def refuse(
    values: Array,
    wrong: NDArray[np.bool_],
    where: str,
    expected: str,
    first_row: int = 0,
    names: Sequence[Any] = (),
) -> None:
    """Raise InputError for the first value that is wrong, [K], or [K, M] with its column.

    Args:
        first_row: Number of the first value's row.
        names: Of the columns; ignored unless there is one for each.
    """
    if wrong.any():
        row, *columns = map(int, np.unravel_index(int(wrong.argmax()), wrong.shape))
        column_names = [names[at] if len(names) == wrong.shape[1] else at for at in columns]
        place = "".join(f", column {column}" for column in column_names)
        value = values[(row, *columns)]
        raise InputError(f"{where}: row {first_row + row}{place} is {value}; {expected}")


def are_whole(values: Array) -> NDArray[np.bool_]:
    """Return whether each float [K] is an integer, and not the rounded value of several."""
    integral: NDArray[np.bool_] = (values == np.floor(values)) & ~are_rounded(values)
    return integral & np.isfinite(values)


def are_rounded(values: Array) -> NDArray[np.bool_]:
    """Return whether each float [K] can be the rounded value of several integers."""
    limit = 2.0 ** (np.finfo(values.dtype).nmant + 1)  # MAX_EXACT of float64
    rounded: NDArray[np.bool_] = (np.abs(values) >= limit) & np.isfinite(values)
    return rounded


def check_integers(array: Array, where: str) -> Ints:
    """Return integers [K] of any width as int64; whole floats are refused, too."""
    if array.dtype.kind == "f" and array.ndim == 1:  # also NaN
        refuse(array, array != np.floor(array), where, "expected integers (int64)")
    is_right = array.ndim == 1 and array.dtype.kind in "iu"
    expect(is_right, array, where, "integers (int64) in one dimension")
    if array.dtype == np.uint64:
        refuse(array, array > np.iinfo(np.int64).max, where, "expected integers below 2**63")
    return array.astype(np.int64, copy=False)


def check_axes(arrays: Mapping[str, Array], known: Collection[str], where: str) -> None:
    """Raise InputError if an array whose name is in `known` is a single value."""
    for name in known:
        if name in arrays:
            array, expected = arrays[name], "a row for each node or edge"
            expect(array.ndim > 0, array, f"{where}: array `{name}`", expected)


def check_length(array: Array, num_nodes: int, where: str) -> None:
    if len(array) != num_nodes:
        raise InputError(f"{where} has {len(array)} rows; expected {num_nodes}, one per node")


def check_endpoints(array: Array, num_nodes: int, where: str, of_type: str = "") -> Endpoints:
    """Return the ends of edges [E], nodes `of_type`; InputError unless they are in [0, N).

    int32 is not copied; other integers become int64.
    """
    ends: Endpoints = (
        array if array.dtype == np.int32 and array.ndim == 1 else check_integers(array, where)
    )

    def are_nodes(edges: slice) -> bool:
        return bool(ends[edges].min() >= 0 and ends[edges].max() < num_nodes)

    if not all(in_blocks(are_nodes, len(ends), BLOCK)):
        expected = (
            f"expected a node in [0, {num_nodes}){of_type and f' of `{of_type}`'}, a row of the"
            f" {num_nodes} nodes; ids need a column of ids (columns.id)"
        )
        refuse(ends, (ends < 0) | (ends >= num_nodes), where, expected)
    return ends


def check_node_ids(array: Array, num_nodes: int, where: str) -> Ints:
    """Return ids [N] as int64; InputError unless they are distinct integers."""
    ids = check_integers(array, where)
    check_length(ids, num_nodes, where)
    check_unique(ids, where)
    return ids


def check_unique(ids: Ints, where: str, shown_ids: Array | None = None) -> None:
    """Raise InputError where two ids [K] are equal.

    `shown_ids` [K] has the ids as the message shows them.
    """
    first, inverse = np.unique(ids, return_index=True, return_inverse=True)[1:]
    if len(first) < len(ids):
        row = int((first[inverse] != np.arange(len(ids))).argmax())
        value = (ids if shown_ids is None else shown_ids)[row]
        raise InputError(
            f"{where}: rows {first[inverse[row]]} and {row} are both {value}; expected each id once"
        )


def check_classes(array: Array, limit: int, where: str) -> Ints:
    """Return classes [N] as int64; InputError unless they are in [0, limit), or -1 for none."""
    labels = check_integers(array, where)
    expected = f"expected a class numbered from 0 (below {limit}), or -1 for no label"
    refuse(labels, (labels < -1) | (labels >= limit), where, expected)
    return labels


def check_multilabel(array: Array, where: str, names: Sequence[Any] = ()) -> NDArray[np.float32]:
    """Return labels [N, C] of 0 and 1 as float32, NaN where unknown; InputError for others."""
    is_right = array.ndim == 2 and array.dtype.kind in "biuf"
    expect(is_right, array, where, "0 and 1 [nodes, classes] (multi-label) or int64 [nodes]")
    labels = array.astype(np.float32)
    is_known = np.isin(labels, (0, 1)) | np.isnan(labels)
    expected = "expected 0 or 1, or blank (NaN) for an unknown label"
    refuse(array, ~is_known, where, expected, names=names)
    return labels


def check_targets(array: Array, where: str, names: Sequence[Any] = ()) -> NDArray[np.float64]:
    """Return targets of a regression, [N] or [N, T], as float64 [N, T], NaN where unknown.

    InputError for other values, and for numbers from MAX_TARGET on in size.
    """
    rows = array[:, None] if array.ndim == 1 else array
    is_right = rows.ndim == 2 and rows.shape[1] > 0 and rows.dtype.kind in "biuf"
    expect(is_right, array, where, "numbers, [nodes] or [nodes, targets] (task=node_regression)")
    values = rows.astype(np.float64)
    is_right = (np.abs(values) < MAX_TARGET) | np.isnan(values)
    bound = f"expected a number below {MAX_TARGET:g} in size, or blank (NaN) where it is unknown"
    refuse(rows, ~is_right, where, bound, names=names)
    return values


def check_columns(array: Array, count: int, where: str, *, regression: bool) -> Array:
    """Return targets of a regression, or labels of 0 and 1, in `count` columns; [N] is one.

    InputError for another number of columns, or other values.
    """
    rows = array[:, None] if array.ndim == 1 else array
    expect(rows.shape[1:] == (count,), array, where, f"{count} columns of labels")
    return check_targets(rows, where) if regression else check_multilabel(rows, where)


def check_labels(labels: Array, num_nodes: int, where: str) -> Array:
    """Return classes [N], or multi-label rows [N, C]; their number is not checked.

    Classes can be floats or [N, 1], with NaN for none, as in OGB. InputError for a class that is
    not below max(num_nodes, MANY_CLASSES).
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2:
        return check_multilabel(labels, where)
    if labels.dtype.kind == "f" and bool(np.all((labels == np.floor(labels)) | np.isnan(labels))):
        labels = np.where(np.isnan(labels), -1, np.clip(labels, -2, 2**62)).astype(np.int64)
    return check_classes(labels, max(num_nodes, MANY_CLASSES), where)


def features_among(arrays: Mapping[str, Array], path: Path | str) -> Array | CsrParts:
    """Return the array `feat` of a file, or the four arrays of a CSR matrix.

    Raises InputError for both or neither.
    """
    csr = [name for name in CSR if name in arrays]
    if "feat" in arrays and csr:
        raise InputError(
            f"{path}: has both `feat` and `{csr[0]}`; expected dense features or CSR ones"
        )
    if "feat" in arrays:
        return arrays["feat"]
    missing = [name for name in CSR if name not in arrays]
    if missing:
        raise InputError(
            f"{path}: there is no array `{missing[0] if csr else 'feat'}`; expected `feat`, or all"
            f" of {', '.join(CSR)}; for nodes without features save some, [nodes, 1] of their"
            " degrees for instance"
        )
    return CsrParts(*(arrays[name] for name in CSR))


def check_features(
    features: Array | CsrParts,
    num_nodes: int,
    at: Callable[[str], str],
    featured: NDArray[np.bool_] | None = None,
) -> Features:
    """Return features [N, F] as finite float32, dense or CSR; InputError for others.

    featured: see check_dense; not used for CSR.
    """
    if isinstance(features, CsrParts):
        return check_csr(features, num_nodes, at)
    return check_dense(features, num_nodes, at("feat"), featured)


def check_dense(
    array: Array, num_nodes: int, where: str, featured: NDArray[np.bool_] | None = None
) -> NDArray[np.float32]:
    """Return a matrix [N, F] of finite numbers as float32; F is at least 1. InputError otherwise.

    featured: bool [N], set to False at rows that are all NaN, which become zeros; other NaN stay.
    None: NaN is refused. `array` is not changed, and not copied without need.
    """
    is_right = array.ndim == 2 and array.shape[1] > 0 and array.dtype.kind in "biuf"
    expect(is_right, array, where, "numbers [nodes, features] with at least one feature")
    check_length(array, num_nodes, where)
    with np.errstate(over="ignore"):
        features = array.astype(np.float32, copy=False)
    size = max(1, BLOCK // array.shape[1])
    all_rows = blocks(num_nodes, size)
    finite_rows = in_blocks(lambda rows: bool(np.isfinite(features[rows]).all()), num_nodes, size)
    for rows in (
        rows for rows, are_finite in zip(all_rows, finite_rows, strict=True) if not are_finite
    ):
        wrong = ~np.isfinite(features[rows])
        if featured is not None:
            missing = np.isnan(features[rows])
            blank = missing.all(axis=1)
            if features is array:
                features = np.array(features)
            features[rows][blank] = 0
            featured[rows], wrong = ~blank, wrong & ~missing
        refuse(array[rows], wrong, where, "expected a finite float32", rows.start)
    return np.ascontiguousarray(features)


def check_edge_weight(array: Array, num_edges: int, where: str) -> NDArray[np.float32] | None:
    """Return edge weights, [E] or [E, 1], as float32 [E]; None where all are 1.

    InputError unless they are 0, or from MIN_WEIGHT to MAX_WEIGHT.
    """
    is_right = array.shape in ((num_edges,), (num_edges, 1)) and array.dtype.kind in "biuf"
    expect(is_right, array, where, f"[{num_edges}], a weight per edge (a number)")
    refuse_odd_weights(array.reshape(-1), where)
    weight = check_dense(array.reshape(-1, 1), num_edges, where)[:, 0]
    return None if (weight == 1).all() else weight


def refuse_odd_weights(array: Array, where: str) -> None:
    """Raise InputError for weights [n] other than 0 and MIN_WEIGHT to MAX_WEIGHT, and for bool.

    In float32 1e-50 would become 0, and `true` 1. NaN is left to check_edge_weight.
    """
    expected = f"expected 0, or a weight from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"
    if array.dtype.kind == "b":
        refuse(array, np.ones(len(array), np.bool_), where, expected)
    if array.dtype.kind in "iuf":
        invalid = (array != 0) & ~((array >= MIN_WEIGHT) & (array <= MAX_WEIGHT)) & ~np.isnan(array)
        refuse(array, invalid, where, expected)


def check_edge_feat(array: Array, num_edges: int, where: str) -> NDArray[np.float32]:
    """Return edge features [E, K] as finite float32; [E] is one feature. InputError for others."""
    rows = array[:, None] if array.ndim == 1 else array
    is_right = rows.ndim == 2 and len(rows) == num_edges and rows.shape[1] > 0
    is_right &= array.dtype.kind in "biuf"
    expect(is_right, array, where, f"numbers [{num_edges}, features], a row per edge")
    return check_dense(rows, num_edges, where)


def check_csr(parts: CsrParts, num_nodes: int, at: Callable[[str], str]) -> sp.csr_array:
    """Return a CSR matrix [N, F] of finite float32: sorted rows, duplicate entries added up.

    InputError if the parts are no such matrix, or have more than MAX_FEATURES columns.
    """
    shape = check_integers(parts.shape, at("feat_shape")).tolist()
    if len(shape) != 2 or shape[0] != num_nodes or not 1 <= shape[1] <= MAX_FEATURES:
        raise InputError(
            f"{at('feat_shape')} is {shape}; expected [{num_nodes}, features], one row per node and"
            f" at most {MAX_FEATURES:,} features"
        )
    indptr = check_integers(parts.indptr, at("feat_indptr"))
    indices = check_integers(parts.indices, at("feat_indices"))
    wrong, stored = (indptr < 0) | (indptr > len(indices)), f"{len(indices)} stored values"
    refuse(indptr, wrong, at("feat_indptr"), f"expected a position in the {stored}")
    wrong, count = indptr[-1:] != len(indices), len(indptr) - 1  # SciPy would cut the rest off
    refuse(indptr[-1:], wrong, at("feat_indptr"), f"expected {stored}", count)
    wrong = (indices < 0) | (indices >= shape[1])
    refuse(indices, wrong, at("feat_indices"), f"expected a feature in [0, {shape[1]})")
    data = check_dense(parts.data.reshape(-1, 1), len(parts.data), at("feat_data"))[:, 0]
    try:
        matrix = sp.csr_array((data, indices, indptr), shape=(shape[0], shape[1]))
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise InputError(
            f"{at('feat_indptr')}: expected that of a CSR matrix of shape {shape} ({error})"
        ) from None
    matrix.sum_duplicates()
    infinite = np.flatnonzero(~np.isfinite(matrix.data))
    if len(infinite):
        node = int(np.searchsorted(matrix.indptr, infinite[0], side="right")) - 1
        raise InputError(
            f"{at('feat_data')}: duplicate entries of node {node} add up to"
            f" {matrix.data[infinite[0]]}; expected a finite float32"
        )
    return matrix


def check_masks(
    masks: Mapping[str, Array], num_nodes: int, at: Callable[[str], str], index: int | None = None
) -> dict[str, NDArray[np.bool_]]:
    """Return the three masks by name, {} for {}. Whether they overlap is checked by node_split.py.

    Without val_mask there are no validation nodes, of which the log warns. InputError if another
    one is missing or a mask cannot be used.

    Args:
        masks: [N] each, or [N, K]: K splits.
        num_nodes: N.
        at: What to call a mask in a message.
        index: Which of the K splits; None: there is one.
    """
    if not masks:
        return {}
    missing = [name for name in MASKS if name not in masks]
    if missing not in ([], ["val_mask"]):
        raise InputError(
            f"{at(missing[0])}: `{missing[0]}` is missing, {', '.join(masks)} is there; expected"
            " `train_mask`, `val_mask` and `test_mask`, or none"
        )
    checked = {
        name: check_mask(_take_split(array, index, at(name)), num_nodes, at(name))
        for name, array in masks.items()
    }
    if missing:
        log.warning("`val_mask` is missing: no node is used for validation")
        checked["val_mask"] = np.zeros(num_nodes, np.bool_)
    return {name: checked[name] for name in MASKS}


def _take_split(array: Array, index: int | None, where: str) -> Array:
    """Return the mask [N] of split `index`, from one mask [N] for all splits, or [N, K].

    InputError for [N, K] without an index, also for K = 1, or with one that is too high.
    """
    if array.ndim != 2:
        return array  # one mask serves every split
    if index is None:
        raise InputError(
            f"{where} has {array.shape[1]} masks; set split.index to one of 0 ..."
            f" {array.shape[1] - 1}"
        )
    if index >= array.shape[1]:
        raise InputError(
            f"split.index={index}: {where} has {array.shape[1]} masks, counted from 0; choose a"
            " lower one"
        )
    return array[:, index]


def make_mask(nodes: Array, num_nodes: int) -> NDArray[np.bool_]:
    """Return a mask [N] that is true at these nodes."""
    mask = np.zeros(num_nodes, np.bool_)
    mask[nodes] = True
    return mask


def check_mask(array: Array, num_nodes: int, where: str) -> NDArray[np.bool_]:
    """Return a mask [N] as bool; InputError for another shape, and for others than 0 and 1."""
    is_right = array.ndim == 1 and array.dtype.kind in "biu"
    expect(is_right, array, where, f"bool [{num_nodes}]")
    check_length(array, num_nodes, where)
    refuse(array, (array != 0) & (array != 1), where, "expected a mask of True and False")
    return array.astype(np.bool_)


def check_split(
    masks: Mapping[str, NDArray[np.bool_]],
    labelled: NDArray[np.bool_],
    where: str,
    shown_id: Callable[[int], Any] = int,
    remedy: str = "",
) -> None:
    """Check that masks, bool [N] each, are disjoint and have labelled nodes only.

    Args:
        shown_id: Returns how messages call the node of a row.
        remedy: What else the message proposes.

    Raises:
        InputError: names the masks, how many nodes are wrong, and the first of them.
    """
    wrong = {f"are in {name} and have no label": mask & ~labelled for name, mask in masks.items()}
    for (one, nodes), (other, others) in combinations(masks.items(), 2):
        wrong[f"are in both {one} and {other}"] = nodes & others
    for what, mask in wrong.items():
        if mask.any():
            raise InputError(
                f"{where}: {int(mask.sum())} nodes {what}, the first is node"
                f" {shown_id(int(mask.argmax()))}; take it out{remedy}"
            )
