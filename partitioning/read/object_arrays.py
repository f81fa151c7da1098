"""Converts graphs of PyG, DGL, networkx and SciPy to arrays with the names of file.py, form (a).

A plain graph has one type of nodes, PLAIN_TYPE, and one relation, PLAIN_RELATION. An attribute of
an object is converted, refused, or named in the log as left out.
"""

import logging
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp

from partitioning.errors import InputError, join_names
from partitioning.files.file_io import explaining
from partitioning.graph.array_checks import (
    Array,
    check_endpoints,
    check_integers,
    csr_arrays,
    expect,
    make_mask,
)
from partitioning.graph.graph_data import (
    EDGE_NAMES,
    MASKS,
    PLAIN_RELATION,
    PLAIN_TYPE,
    SEPARATOR,
    EdgeType,
)

log = logging.getLogger(__name__)

Arrays = dict[str, Any]

INDICES = {
    "train_idx": "train_mask",
    "val_idx": "val_mask",
    "valid_idx": "val_mask",
    "test_idx": "test_mask",
}
"""Lists of nodes, and the masks that are made of them."""
OF_ALL = {name: name for name in (*MASKS, "node_id")}
PYG_NODES = OF_ALL | INDICES | {"x": "feat", "y": "label"}
PYG_EDGES = {"edge_attr": "edge_feat"} | {
    f"edge_{name}": f"edge_{name}" for name in ("weight", "label", "time", *MASKS)
}
PYG_TYPED_EDGES = (
    PYG_EDGES | {"y": "edge_label"} | {name: f"edge_{name}" for name in ("time", *MASKS)}
)
DGL_NODES = OF_ALL | {"feat": "feat", "feature": "feat", "label": "label"}
"""From the names of attributes to ours; so are those above."""


@dataclass(frozen=True)
class CellKind:
    """What an attribute of a node or edge may be."""

    expected: str
    """For messages."""
    fits: Callable[[Array], bool]
    """Whether the array of one value is what is expected; of a blank value it is NaN."""
    dtype: type[np.generic] | None = None
    """Of the array; None: that of the values."""


def _is_number(value: Array) -> bool:
    return value.dtype.kind in "biuf"


OF_WEIGHT = CellKind(
    "a finite number",
    lambda value: _is_number(value) and not value.ndim and bool(np.isfinite(value)),
    np.float64,
)
OF_MASK = CellKind(
    "True or False", lambda value: OF_WEIGHT.fits(value) and value in (0, 1), np.bool_
)
OF_FEATURES = CellKind(
    "a number or a list of numbers", lambda value: _is_number(value) and value.ndim < 2, np.float32
)
OF_NAME = CellKind(
    "a number or a text",
    lambda value: not value.ndim and (_is_number(value) or value.dtype.kind == "U"),
)
OF_LABEL = CellKind(
    "a number or a text, or of several labels a list of 0 and 1",
    lambda value: OF_FEATURES.fits(value) or OF_NAME.fits(value),
)


@dataclass(frozen=True, eq=False)
class ArrayGraph:
    """Arrays of a graph: of nodes by type, of edges by relation."""

    types: dict[str, Arrays]
    relations: dict[EdgeType, Arrays]

    @property
    def plain(self) -> Arrays | None:
        """All arrays of a graph without named types; None if types have names, even one."""
        if PLAIN_TYPE not in self.types:
            return None
        return self.types[PLAIN_TYPE] | self.relations[PLAIN_RELATION]


def read_pyg(data: Any, *, with_labels: bool = True) -> ArrayGraph:
    """Convert a Data or HeteroData of PyG; without labels and masks unless `with_labels`.

    Nodes without ids get 0 ... N-1. InputError for another object, and an attribute of another
    shape or type.
    """
    if isinstance(data, list | tuple):
        raise InputError(
            f"a list of {len(data)} graphs; give one:"
            " torch_geometric.data.Batch.from_data_list(list) joins them"
        )
    is_typed = hasattr(data, "node_types")
    is_graph = hasattr(data, "to_dict") and (is_typed or hasattr(data, "edge_index"))
    if isinstance(data, type) or not is_graph:
        raise InputError(
            f"this {type(data).__name__} has no edge_index; expected a Data or HeteroData of PyG"
        )
    types, relations = {PLAIN_TYPE: ("data", data)}, {PLAIN_RELATION: ("data", data)}
    if is_typed:
        types = {name: (f"data[{name!r}]", data[name]) for name in data.node_types}
        relations = {
            tuple(edge_type): (f"data[{edge_type}]", data[edge_type])
            for edge_type in data.edge_types
        }
        _warn_left_out(data.to_dict().get("_global_store", ()), (), "data")
    nodes, edges = {}, {}
    for edge_type, (where, store) in relations.items():
        given, names = store.to_dict(), PYG_TYPED_EDGES if is_typed else PYG_EDGES
        src, dst = _ends_of(given.pop("edge_index", None), where)
        if given.get("edge_label_index") is not None:  # whose edges are others
            names = {name: ours for name, ours in names.items() if name != "edge_label"}
        if not is_typed:
            given = {key: value for key, value in given.items() if key in names}
        arrays = _convert(given, names, where, len(src), "edge")
        edges[edge_type] = {"src": src, "dst": dst, **arrays}
    for name, (where, store) in types.items():
        given = store.to_dict()
        for key in () if is_typed else ("edge_index", *PYG_EDGES):
            given.pop(key, None)
        count, counted = _count_nodes(store, given, where)
        given.pop("num_nodes", None)
        per = f"node (as {where}.{counted})"
        nodes[name] = _convert(given, PYG_NODES, where, count, per, with_labels=with_labels)
        nodes[name].setdefault("node_id", np.arange(count))  # also of nodes that no edge has
    return ArrayGraph(nodes, edges)


def _count_nodes(store: Any, given: Mapping[str, Any], where: str) -> tuple[int, str]:
    """Return the number of nodes of a type of PyG's, and the attribute that has it.

    It is num_nodes, the rows of an attribute, or what PyG infers. InputError where it has none.
    """
    for name in ("x", "y", "node_id") if given.get("num_nodes") is None else ():
        if given.get(name) is not None:
            with explaining(f"{where}.{name}", "array", "give a row for each node"):
                return int(np.shape(given[name])[0]), name
    with explaining(f"{where}.num_nodes", "number", "set it"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that edges do not show every node
        number = store.num_nodes
        if number is None or int(number) < 0:
            raise InputError(f"{where}.num_nodes is {number}; expected the number of nodes")
        return int(number), "num_nodes"


def _ends_of(edge_index: Any, where: str) -> tuple[Array, Array]:
    """Return sources and destinations of an edge_index, [2, E] or [E, 2].

    InputError for None, another shape, and other values than integers.
    """
    if edge_index is None:
        raise InputError(f"{where} has no edge_index; of an adj_t, set {where}.edge_index first")
    ends = _to_array(edge_index, f"{where}.edge_index")
    is_right = ends.ndim == 2 and 2 in ends.shape
    expect(is_right, ends, f"{where}.edge_index", "[2, edges]")
    src, dst = ends if ends.shape[0] == 2 else ends.T
    return check_integers(src, f"{where}.edge_index"), check_integers(dst, f"{where}.edge_index")


def read_dgl(graph: Any, file: str = "", *, with_labels: bool = True) -> ArrayGraph:
    """Convert a DGLGraph; without labels and masks unless `with_labels`.

    Nodes without ids get 0 ... N-1. InputError for another object, a block, and data of another
    shape or type.

    file: what messages begin with.
    """
    if isinstance(graph, type) or not hasattr(graph, "canonical_etypes") or graph.is_block:
        raise InputError(f"this {type(graph).__name__}: expected a DGLGraph that is no block")
    is_plain = len(graph.ntypes) == len(graph.etypes) == 1
    nodes, edges = {}, {}
    for name in graph.ntypes:
        where = f"{file}ndata" if is_plain else f"{file}ndata of {name}"
        given, count = dict(graph.nodes[name].data), graph.num_nodes(name)
        arrays = _convert(given, DGL_NODES, where, count, "node", with_labels=with_labels)
        arrays.setdefault("node_id", np.arange(count))
        nodes[PLAIN_TYPE if is_plain else name] = arrays
    for edge_type in graph.canonical_etypes:
        where = f"{file}edata" if is_plain else f"{file}edata of {SEPARATOR.join(edge_type)}"
        src, dst = (ends.numpy() for ends in graph.edges(order="eid", etype=edge_type))
        arrays = _convert(dict(graph.edges[edge_type].data), EDGE_NAMES, where, len(src), "edge")
        edges[PLAIN_RELATION if is_plain else edge_type] = {"src": src, "dst": dst, **arrays}
    return ArrayGraph(nodes, edges)


def read_networkx(
    graph: Any, label: str = "label", feat: str = "feat", *, with_labels: bool = True
) -> ArrayGraph:
    """Convert a networkx graph; without labels and masks unless `with_labels`.

    A node without a mask's attribute is not in the mask. An edge without `weight` has weight 1.
    Each undirected edge becomes two. InputError for another object, a `label` or `feat` other than
    its default that no node has, and values of other types.
    """
    if isinstance(graph, type) or not hasattr(graph, "is_directed"):
        raise InputError(f"this {type(graph).__name__}: expected a graph of networkx")
    nodes = dict(graph.nodes(data=True))
    pairs = chain.from_iterable(attributes.items() for attributes in nodes.values())
    there = {name for name, value in pairs if value is not None}
    for setting, name in (("label", label), ("feat", feat)):
        if not isinstance(name, str) or (name != setting and name not in there):
            names_there = join_names(sorted(map(str, there)), "`") or "none"
            raise InputError(
                f"{setting}={name!r}: no node has this attribute; they have {names_there}"
            )
    if label == feat:
        raise InputError(f"label={label!r} and feat={feat!r}: expected two attributes")
    names = {label: "label", feat: "feat", **{name: name for name in MASKS}}
    _warn_left_out(there, names, "nodes")
    arrays: Arrays = {"node_id": _name_nodes(list(nodes))}
    for name, ours in names.items():
        if name not in there or not (with_labels or ours == "feat"):
            continue
        absent = False if ours in MASKS else None
        values = {node: given.get(name) for node, given in nodes.items()}
        cells = [
            (f"of node {node!r}", absent if value is None else value)
            for node, value in values.items()
        ]
        kind = OF_MASK if ours in MASKS else OF_LABEL if ours == "label" else OF_FEATURES
        arrays[ours] = _to_column(cells, f"node attribute {name!r}", kind)
    if "feat" in arrays:
        arrays["feat"] = arrays["feat"].reshape(len(nodes), -1)
    edges = list((graph if graph.is_directed() else graph.to_directed(True)).edges(data=True))
    row = {node: at for at, node in enumerate(nodes)}
    ends = np.array([(row[src], row[dst]) for src, dst, _ in edges], np.int64).reshape(-1, 2)
    weights = _weights_of(edges)
    return ArrayGraph(
        {PLAIN_TYPE: arrays}, {PLAIN_RELATION: {"src": ends[:, 0], "dst": ends[:, 1], **weights}}
    )


def _weights_of(edges: list[tuple[Any, Any, dict[str, Any]]]) -> Arrays:
    """Return the weights of networkx edges, 1 where one has none; nothing where none has any.

    The log warns of edges without, and of other attributes. InputError for other values.
    """
    there = set().union(*(attributes for _, _, attributes in edges))
    _warn_left_out(there, {"weight"}, "edges")
    if "weight" not in there:
        return {}
    bare = [(src, dst) for src, dst, attributes in edges if "weight" not in attributes]
    if bare:
        log.warning(
            "%d of %d edges have no attribute 'weight', %r for instance: their weight is 1",
            len(bare),
            len(edges),
            bare[0],
        )
    cells = [(f"of {src!r} to {dst!r}", given.get("weight", 1)) for src, dst, given in edges]
    return {"edge_weight": _to_column(cells, "edge attribute 'weight'", OF_WEIGHT)}


def _name_nodes(nodes: list[Any]) -> Array:
    """Return the ids of networkx nodes: int64, or texts; InputError for blank or equal texts."""
    are_integers = all(isinstance(node, int | np.integer) for node in nodes)
    if are_integers and all(-(2**63) <= node < 2**63 for node in nodes):
        return np.array(nodes, np.int64)
    names: dict[str, Any] = {}
    for node in nodes:
        if not str(node).strip():
            raise InputError(f"node {node!r} has a blank name; rename it (networkx.relabel_nodes)")
        if str(node) in names:
            raise InputError(
                f"nodes {names[str(node)]!r} and {node!r} have the same name; rename one"
                " (networkx.relabel_nodes)"
            )
        names[str(node)] = node
    return np.array(list(names))


def read_scipy(matrix: Any, x: Any, y: Any) -> ArrayGraph:
    """Convert an adjacency matrix [N, N], features and labels, each of which may be None.

    Stored values are weights, unless they are booleans. InputError for other shapes and types.
    """
    with explaining("A", "sparse matrix", "give one of shape [nodes, nodes]"):
        adjacency = sp.coo_array(matrix)
    expected = (
        "[nodes, nodes]; edges between two types of nodes are a folder with a table for each type"
        " (docs/data.md)"
    )
    is_right = adjacency.ndim == 2 and adjacency.shape[0] == adjacency.shape[1]
    expect(is_right, adjacency, "A", expected)
    names = {"x": "feat", "y": "label"}
    nodes = _convert({"x": x, "y": y}, names, "", adjacency.shape[0], "node (as A)")
    src, dst = adjacency.coords
    edges = {"src": src, "dst": dst}
    if adjacency.dtype.kind != "b":
        edges["edge_weight"] = adjacency.data
    return ArrayGraph({PLAIN_TYPE: nodes}, {PLAIN_RELATION: edges})


# ---- attributes


def _warn_left_out(given: Collection[Any], names: Collection[str], where: str) -> None:
    """Log the attributes that have no meaning here."""
    left = sorted(str(name) for name in given if name not in names)
    if left:
        log.warning("%s: %s: left out", where, join_names(left, "`"))


def _convert(
    given: Mapping[str, Any],
    names: Mapping[str, str],
    where: str,
    count: int,
    per: str,
    *,
    with_labels: bool = True,
) -> Arrays:
    """Convert the attributes in `names` that are not None to arrays of `count` rows by our names.

    Sparse features become the four arrays of a CSR matrix, lists of nodes become masks. Warns of
    other attributes; InputError for two that mean the same, and for other shapes and types.
    """
    values = {name: value for name, value in given.items() if value is not None}
    if not values.keys().isdisjoint(MASKS):  # which say all that lists of nodes would
        names = {name: ours for name, ours in names.items() if name not in INDICES}
    _warn_left_out(values, names, where)
    sources: dict[str, str] = {}
    arrays: Arrays = {}
    for name in (name for name in values if name in names):
        ours, what = names[name], f"{where}.{name}" if where else name
        if ours in ("label", *MASKS) and not with_labels:
            continue
        if ours in sources:
            raise InputError(
                f"{where}: has `{sources[ours]}` and `{name}`, which mean the same; take one out"
            )
        sources[ours] = name
        array: Any = _to_array(values[name], what)
        if name in INDICES:
            array = _mask_of(array, what, count)
        if array.dtype.hasobject and array.ndim == 1 and ours in ("label", "node_id"):
            cells = [(f"of node {node}", value) for node, value in enumerate(array)]
            array = _to_column(cells, what, OF_LABEL if ours == "label" else OF_NAME)
        is_sparse = sp.issparse(array)
        if array.dtype.hasobject or (is_sparse and ours != "feat"):
            kind = "sparse" if is_sparse else array.dtype
            raise InputError(f"{what}: {kind} values; expected numbers or texts, a row per {per}")
        is_one = ours == "label" and array.shape in ((), (1,), (1, 1))
        remedy = "; a label of the whole graph is none of its nodes: give each one" * is_one
        is_right = array.shape[:1] == (count,)
        expect(is_right, array, what, f"{count} rows, one per {per}{remedy}")
        if is_sparse:
            arrays |= csr_arrays(array.tocsr())
        else:
            arrays[ours] = array
    return arrays


def _to_array(value: Any, what: str) -> Any:
    """Convert a tensor or list to an array, a sparse tensor to a CSR matrix.

    bfloat16 becomes float32. InputError for a value that cannot be one.
    """
    with explaining(what, "array", "give numbers or texts"):
        if hasattr(value, "detach"):  # a torch tensor
            value = value.detach().cpu()
            if str(value.dtype) == "torch.bfloat16":  # which NumPy lacks
                value = value.float()
            is_dense = str(value.layout) == "torch.strided"
            value = value.numpy() if is_dense else sp.csr_array(value.to_dense().numpy())
        return value if sp.issparse(value) else np.asarray(value)


def _mask_of(nodes: Array, what: str, count: int) -> Array:
    """Return a list of nodes as a mask [N]; InputError for a number that is no node."""
    if nodes.shape == (0,):  # an empty list is of floats
        nodes = nodes.astype(np.int64)
    return make_mask(check_endpoints(nodes, count, what), count)


def _to_column(cells: Collection[tuple[str, Any]], what: str, kind: CellKind) -> Array:
    """Return an attribute as numbers or texts [n], or where cells are lists as numbers [n, K].

    A blank cell or empty list is NaN, or "" among texts. Integers beyond 64 bits are rounded.
    InputError for a cell that is not of the kind, lists of several lengths, and lists beside texts.

    Args:
        cells: Node or edge, for messages, and its value: a number, a text, a list or None.
        what: The attribute, for messages.
        kind: What a cell may be.
    """
    rows: list[Array] = []
    for whose, value in cells:
        is_blank = value is None or type(value).__name__ in ("NAType", "NaTType")
        row = np.asarray(np.nan if is_blank else _to_array(value, f"{what} {whose}"))
        if row.dtype.hasobject and isinstance(value, int) and abs(value) < 2**1000:
            row = np.asarray(float(value))
        if not kind.fits(row):
            raise InputError(f"{what} {whose} is {value!r:.60}; expected {kind.expected}")
        rows.append(row)
    has_text, has_list = any(row.dtype.kind == "U" for row in rows), any(row.ndim for row in rows)
    if has_text and has_list:
        raise InputError(f"{what} has texts and lists; expected {kind.expected}")
    if not has_list:
        none = "" if has_text else np.nan
        return np.array([row.item() if row == row else none for row in rows], kind.dtype)
    sizes = [row.size if row.ndim or row == row else 0 for row in rows]
    width = next(filter(None, sizes), 1)
    for (whose, _), size in zip(cells, sizes, strict=True):
        if size not in (0, width):
            raise InputError(
                f"{what} {whose} has {size} numbers; expected {width}, as before, {kind.expected}"
            )
    blank = np.full(width, np.nan)
    padded = [row.reshape(-1) if size else blank for row, size in zip(rows, sizes, strict=True)]
    return np.array(padded, kind.dtype)
