"""Splits nodes into training, validation and test: masks of the source, drawn, or index files.

N nodes. Index files list ids, or positions 0 ... N-1 in the order of the source where nodes have
none.
"""

import logging
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from partitioning.array_checks import check_split, make_mask, refuse
from partitioning.errors import InputError
from partitioning.features.roles import find_usual
from partitioning.file_io import load_npy, reading
from partitioning.graph_data import GraphData
from partitioning.partition_settings import SplitSettings

if TYPE_CHECKING:
    from partitioning.datasets.nodes import Nodes

log = logging.getLogger(__name__)

Mask = NDArray[np.bool_]
Ids = NDArray[np.int64]
SPLITS = ("train", "val", "test")
USED_BY = {
    "given": (),
    "per_class": SPLITS,
    "fraction": SPLITS,
    "time": SPLITS,
    "files": (*SPLITS, "dir"),
    "none": (),
}
"""Settings that each kind of split uses, besides kind and seed."""
_SEVERAL = {"multilabel": "several", "regression": "numbers (task=node_regression)"}
PAIR_SETTINGS = ("edges", "by")
"""Settings for the split of pairs in link prediction."""
FILE_NAMES = {"train": ("train",), "val": ("val", "valid"), "test": ("test",)}
FORMATS = ("npy", "csv", "csv.gz", "tsv", "tsv.gz", "txt", "parquet")
"""Suffixes of index files."""


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
    settings and seed give equal masks.

    Args:
        graph: Its nodes.
        settings: The user's.
        recipe: The data set's.
        sources: int64 [N] of nodes that are edges: the source of each, for split.by=source.

    Raises:
        InputError: names the setting that cannot be met.
    """
    kind = recipe.kind if settings.kind == "default" else settings.kind
    values = _resolve(kind, settings, recipe, has_sources=sources is not None)
    if kind == "none":
        nobody = np.zeros(graph.num_nodes, np.bool_)
        return Split(nobody, nobody, nobody, {"kind": kind})
    if kind != "given" and recipe.kind == "given" and graph.train_mask is not None:
        log.warning("split=%s: the split of the data is not used; split=given uses it", kind)
    if kind == "given":
        masks = _take_given(graph)
    elif kind == "files":
        masks = _read_files(graph, values)
    else:
        rng = np.random.default_rng(settings.seed)
        if kind == "per_class":
            masks = _draw_per_class(graph, values, rng)
        else:
            nodes = _nodes_in_order(graph, settings, kind, rng)
            masks = _draw_fraction(graph, values, nodes, sources if settings.by else None)
        values = {"seed": settings.seed, **values}
        if settings.stratify:
            values["stratify"] = True
    unlabelled = sum(int((mask & ~graph.labelled).sum()) for mask in masks)
    if unlabelled and settings.drop_unlabelled:
        log.info("split=%s: %d nodes without a label are taken out", kind, unlabelled)
        masks = [mask & graph.labelled for mask in masks]
    try:
        check_split(
            dict(zip(SPLITS, masks, strict=True)), graph.labelled, f"split={kind}", graph.shown_ids
        )
    except InputError as error:
        raise InputError(
            f"{error}{', or set split.drop_unlabelled=true' if unlabelled else ''}"
        ) from None
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

    InputError for a setting of another kind, or one that is missing.
    """
    others = ("kind", "seed", "drop_unlabelled", "stratify", "index", "inductive", *PAIR_SETTINGS)
    if settings.stratify and kind != "fraction":
        raise InputError(
            f"split.stratify=true has no meaning with split={kind}: remove it, or set"
            " split=fraction"
        )
    if settings.index is not None and kind != "given":
        raise InputError(
            f"split.index={settings.index} has no meaning with split={kind}: remove it, or set"
            " split=given"
        )
    names = [field.name for field in fields(settings) if field.name not in others]
    by_source = has_sources and settings.by == "source" and kind == "fraction"
    if settings.edges is not None or (settings.by is not None and not by_source):
        raise InputError(
            "split.edges and split.by have a meaning with task=link_prediction alone, but for"
            " split.by=source with split=fraction and labels of edges: remove them (by time:"
            " split=time with columns.time)"
        )
    indices = {name: getattr(settings, name) for name in names}
    useless = [
        name for name, value in indices.items() if value is not None and name not in USED_BY[kind]
    ]
    if useless:
        name = useless[0]
        kinds = " or ".join(f"split={other}" for other, used in USED_BY.items() if name in used)
        raise InputError(
            f"split.{name}={indices[name]} has no meaning with split={kind}: remove it, or set"
            f" {kinds}"
        )
    published = {
        name: getattr(recipe, name) if kind == recipe.kind else None for name in USED_BY[kind]
    }
    values = {
        name: published[name] if indices[name] is None else indices[name] for name in USED_BY[kind]
    }
    missing = [name for name, value in values.items() if value is None]
    if missing and kind != "files":
        needs = ", ".join(f"split.{name}" for name in missing)
        raise InputError(f"split={kind} needs {needs}: this data set has no published value for it")
    return values


def _take_given(graph: GraphData) -> list[Mask]:
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
    """Draw equally many training nodes of each class, then validation and test nodes.

    InputError if there are too few.
    """
    if graph.label_kind != "multiclass":
        raise InputError(
            "split=per_class needs one class per node, and these nodes have"
            f" {_SEVERAL[graph.label_kind]}: set split=fraction"
        )
    count, num_val, num_test = (_count(name, values[name]) for name in SPLITS)
    sizes = np.bincount(graph.labels[graph.labelled].astype(np.int64), minlength=graph.num_classes)
    if sizes.min() < count:
        smallest = int(sizes.argmin())
        raise InputError(
            f"split.train={count}: class {smallest} has {sizes[smallest]} labelled nodes;"
            f" set it to {sizes[smallest]} or less, or set split=fraction"
        )
    members = [np.flatnonzero(graph.labels == label) for label in range(graph.num_classes)]
    train = np.concatenate([rng.permutation(nodes)[:count] for nodes in members])
    rest = rng.permutation(np.flatnonzero(graph.labelled & ~make_mask(train, graph.num_nodes)))
    if num_val + num_test > len(rest):
        raise InputError(
            f"split.val={num_val} and split.test={num_test}: only {len(rest)} labelled nodes are"
            f" left after {len(train)} training nodes; lower them or split.train={count}"
        )
    return [
        make_mask(ids, graph.num_nodes)
        for ids in (train, rest[:num_val], rest[num_val : num_val + num_test])
    ]


def _count(name: str, value: Any) -> int:
    """Return a setting as a number of nodes; InputError otherwise."""
    if type(value) is not int or value < 0:
        raise InputError(
            f"split.{name}={value}: with split=per_class this is a number of nodes, from 0 on; set"
            " split=fraction for shares"
        )
    return value


def _share(name: str, value: Any) -> float:
    """Return a setting as a share in [0, 1]; InputError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(
            f"split.{name}={value}: with split=fraction this is a share of the nodes, a number in"
            " [0, 1]; set split=per_class for numbers of nodes"
        )
    return float(value)


def _nodes_in_order(
    graph: GraphData, settings: SplitSettings, kind: str, rng: np.random.Generator
) -> Ids:
    """Order the labelled nodes at random, and by time if `kind` is "time".

    With split.stratify every prefix of the random order has about the same shares of the classes.

    Raises:
        InputError: split.stratify, and the labels are not one class per node.
    """
    nodes = rng.permutation(np.flatnonzero(graph.labelled))
    if kind == "time":
        return nodes[np.argsort(_find_times(graph, nodes), kind="stable")]
    if not settings.stratify:
        return nodes
    if graph.label_kind != "multiclass":
        raise InputError(
            "split.stratify=true needs one class per node; these nodes have"
            f" {_SEVERAL[graph.label_kind]}: leave it out"
        )
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
        node = graph.shown_ids[int(nodes[blank].min())]
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
    shares of the sources, each of which has all its nodes in one set.
    """
    shares = [_share(name, values[name]) for name in SPLITS]
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
        make_mask(nodes[(begin <= rank) & (rank < end)], graph.num_nodes)
        for begin, end in pairwise(bounds)
    ]


def _read_files(graph: GraphData, values: dict[str, Any]) -> list[Mask]:
    """Read the masks from index files; `values` gets the used paths, for meta.json."""
    masks, nodes = [], _nodes_with_ids(graph)
    for name in SPLITS:
        path = _index_path(name, values[name], values["dir"])
        values[name] = str(path)
        index = read_index(path, graph.num_nodes, f"split.{name}", nodes)
        masks.append(make_mask(index, graph.num_nodes))
    return masks


def _nodes_with_ids(graph: GraphData) -> "Nodes | None":
    """Return the nodes, to look up their ids; None where they are known by position."""
    from partitioning.datasets.nodes import Nodes

    if graph.node_names is None and (graph.node_ids == np.arange(graph.num_nodes)).all():
        return None
    return Nodes.of_table(graph.node_ids, graph.node_names)


def index_file(name: str, settings: SplitSettings) -> Path | None:
    """Return the index file of train, val or test that the settings name.

    Returns None where it does not exist.
    """
    try:
        return _index_path(name, getattr(settings, name), settings.dir)
    except InputError:
        return None


def _index_path(name: str, path: Any, folder: str | None) -> Path:
    """Return the index file of one set: its own path, else the only file of that set in the folder.

    The folder's file has a name of FILE_NAMES and a suffix of FORMATS. Whether a path of its own
    exists is not checked.

    Raises:
        InputError: `path` is no text; there is neither path nor folder; the folder is missing, or
            has no such file or several.
    """
    if path is not None:
        if not isinstance(path, str):
            raise InputError(
                f"split.{name}={path}: with split=files this is the path of an index file (npy or"
                " csv)"
            )
        return Path(path)
    if folder is None:
        raise InputError(
            f"split=files needs split.{name}=PATH (npy or csv of node positions), or"
            " split.dir=FOLDER"
        )
    if not Path(folder).is_dir():
        raise InputError(f"split.dir={folder}: there is no such folder")
    names = [f"{stem}.{suffix}" for stem in FILE_NAMES[name] for suffix in FORMATS]
    files = [file for file in names if (Path(folder) / file).is_file()]
    if len(files) != 1:
        raise InputError(
            f"split.dir={folder}: expected one of {', '.join(names[:2])} ... there; found"
            f" {files or 'none'}"
        )
    return Path(folder) / files[0]


def read_index(path: Path, num_nodes: int, setting: str, nodes: "Nodes | None" = None) -> Ids:
    """Read distinct nodes from an npy array [K] or a table of one column, or with one of ids.

    A boolean npy array [N] is a mask. A first line that is no id is a header.

    Args:
        path: The file.
        num_nodes: N.
        setting: What names the file, for messages.
        nodes: To look up ids; None: nodes have no ids and are listed by position, as they are, with
            a warning, where no number below N is an id.

    Raises:
        InputError: names the setting, the file and the row.
    """
    where = f"{setting}={path}"
    if not path.exists():
        raise InputError(f"{where}: there is no such file")
    ids = None
    if path.suffix == ".npy":
        ids = _read_npy_index(path, num_nodes, where, has_ids=nodes is not None)
    if ids is None:
        try:
            ids = _read_table_index(path, where, nodes)
        except InputError as error:
            text = str(error)
            raise InputError(text if text.startswith(where) else f"{setting}={text}") from None
    elif ids.dtype == np.bool_:
        return np.flatnonzero(ids)
    if nodes is not None and _are_positions(ids, nodes):
        log.warning("%s: no id is below %d: its numbers are positions, from 0", where, num_nodes)
        nodes = None
    if nodes is None:
        expected = (
            f"expected a node position in [0, {num_nodes}), counted in the order of the source"
        )
        refuse(ids, (ids < 0) | (ids >= num_nodes), where, expected)
        rows = ids
    else:
        rows = nodes.find_rows(ids, where, remedy=", as the nodes have ids")
    first = np.unique(rows, return_index=True)[1]
    if len(first) < len(rows):
        again = int(np.setdiff1d(np.arange(len(rows)), first)[0])
        raise InputError(
            f"{where}: row {again} lists node {ids[again]} for the second time; list each node once"
        )
    return rows


def _are_positions(numbers: NDArray[Any], nodes: "Nodes") -> bool:
    """Return whether numbers, [K], can only be positions: below N, where no node has its id."""
    if numbers.dtype.kind != "i" or nodes.named or nodes.ids is None:
        return False

    def can_be(values: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray((values >= 0) & (values < nodes.num_nodes))

    return bool(can_be(numbers).all()) and not can_be(nodes.ids).any()


def _read_npy_index(path: Path, num_nodes: int, where: str, *, has_ids: bool) -> NDArray[Any]:
    """Return the ids, int64 or str objects, or the mask, bool [num_nodes], of an npy file.

    Integers are positions where nodes have no ids. Raises InputError for other arrays.
    """
    with reading(path, "npy array", where=where):
        array = load_npy(path)
    if not isinstance(array, np.ndarray) or array.ndim != 1:
        raise InputError(
            f"{where}: expected an npy array of one dimension; found {np.shape(array)}"
        )
    if array.dtype == np.bool_:
        if len(array) != num_nodes:
            raise InputError(f"{where}: a mask of {len(array)} nodes; the graph has {num_nodes}")
        return array
    if array.dtype.kind in "US" and has_ids:
        return array.astype(str).astype(object)
    if array.dtype.kind not in "iu":
        raise InputError(
            f"{where}: dtype {array.dtype}; expected integers (ids of nodes, or positions if they"
            " have none) or a boolean mask"
        )
    return array.astype(np.int64)


def _read_table_index(path: Path, where: str, known: "Nodes | None") -> NDArray[Any]:
    """Return the ids or positions that a csv or parquet file lists."""
    from partitioning.datasets.table_files import KINDS, column_names, kind_of, read_columns

    if kind_of(path) not in KINDS:
        raise InputError(f"{where}: expected a .npy or .csv file")
    names = column_names(path, header=False)
    cells = read_columns(path, exact=names, header=False)
    is_csv = KINDS[kind_of(path)] == "csv"
    first = {
        name: str(cells[name].data[0]) if len(cells[name]) and is_csv else name for name in names
    }
    usual = [name for name in names if find_usual("id", [first[name]])]
    if len(names) != 1 and len(usual) != 1:
        raise InputError(
            f"{where}: has {len(names)} columns; expected one of nodes, or one that is named id"
        )
    name = (usual or names)[0]
    nodes = cells[name]
    is_number = first[name].lstrip("-").isdecimal()
    has_header = len(names) > 1 or not (is_number or _is_id(first[name], known))
    if is_csv and has_header:
        nodes = replace(nodes, data=nodes.data.slice(1))  # after the header
    return nodes.ids() if known else nodes.whole_numbers("expected one node position per line")


def _is_id(text: str, known: "Nodes | None") -> bool:
    """Return whether a text is the name of a node.

    False where nodes have integer ids, or are known by position (`known` is None).
    """
    if known is None:
        return False
    try:
        matches = known.find_rows(np.array([text], object), "", keep_unknown=True)
    except InputError:  # ids are integers
        return False
    return bool(matches[0] >= 0)
