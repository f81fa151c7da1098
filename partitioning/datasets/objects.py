"""Writes graphs of other libraries as files for dataset_name=file (file.py), and returns the path.

N nodes, E directed edges, F features, K features of an edge.
"""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from partitioning.array_checks import Array
from partitioning.datasets import hetero_objects
from partitioning.datasets.hetero_objects import as_arrays, converting, count_nodes, ends_of
from partitioning.errors import InputError, first_line
from partitioning.graph_data import EDGE_NAMES, MASKS


def _write_npz(path: str | Path, overwrite: bool, arrays: dict[str, Any]) -> str:
    """Write the arrays that are not None as an npz, and return its path."""
    if Path(path).suffix != ".npz":
        raise InputError(f"path={path}: expected the name of an .npz")
    if Path(path).exists() and not overwrite:
        raise InputError(f"path={path}: exists; choose another, or overwrite=True")
    made = as_arrays(arrays)
    if "label" not in made:
        raise InputError(
            "the graph has no labels, which are what is learned: give each node a class, or -1 for"
            " none"
        )
    objects = [name for name, array in made.items() if array.dtype.hasobject]
    if objects:
        kind = made[objects[0]].dtype
        raise InputError(f"`{objects[0]}`: {kind} values; expected numbers or texts")
    np.savez(path, **made)
    return str(path)


def from_pyg(data: Any, path: str | Path = "graph.npz", *, overwrite: bool = False) -> str:
    """Write a torch_geometric.data.Data as an npz, and return its path.

    It takes edge_index, x, y, the masks ([N], or [N, K] for `split.index`), train_idx, val_idx and
    test_idx, node_id, edge_weight and edge_attr, which become edge features. A HeteroData is
    written as a folder, by type and relation.
    """
    if isinstance(data, list | tuple):
        raise InputError(
            f"a list of {len(data)} graphs; give one:"
            " torch_geometric.data.Batch.from_data_list(list) joins them"
        )
    if hasattr(data, "node_types"):
        return hetero_objects.write(path, overwrite, *hetero_objects.of_pyg(data))
    return _write_npz(path, overwrite, pyg_arrays(data))


def pyg_arrays(data: Any) -> dict[str, Any]:
    """The arrays of a torch_geometric.data.Data, with the names of file.py, form (a)."""
    if getattr(data, "edge_index", None) is None:
        raise InputError(
            f"this {type(data).__name__} has no edge_index; of an adj_t, set data.edge_index first"
        )
    src, dst = ends_of(data.edge_index, "data.edge_index")
    arrays = {
        "src": src,
        "dst": dst,
        "feat": data.x,
        "label": data.y,
        "edge_feat": data.edge_attr,
        **{name: data.get(name) for name in (*MASKS, "node_id", "edge_weight")},
    }
    num_nodes = count_nodes(data)
    if arrays["node_id"] is None:  # also counts the nodes that no edge has
        arrays["node_id"] = np.arange(num_nodes)
    return _masks_of_indices(data, arrays, num_nodes)


def _masks_of_indices(data: Any, arrays: dict[str, Any], num_nodes: int) -> dict[str, Any]:
    """Add masks made of train_idx, val_idx (valid_idx) and test_idx, unless there are masks."""
    names = {
        "train_mask": ("train_idx",),
        "val_mask": ("val_idx", "valid_idx"),
        "test_mask": ("test_idx",),
    }
    found = {
        mask: index
        for mask, given in names.items()
        for name in given
        if (index := data.get(name)) is not None
    }
    if not found or any(arrays.get(mask) is not None for mask in MASKS):
        return arrays
    masks = {}
    for mask, index in found.items():
        rows = np.asarray(as_arrays({"index": index})["index"]).reshape(-1)
        masks[mask] = np.zeros(num_nodes, np.bool_)
        with converting(f"data: {mask} of indices", f"nodes below {num_nodes}"):
            masks[mask][rows] = True
    return arrays | masks


def from_dgl(g: Any, path: str | Path = "graph.npz", *, overwrite: bool = False) -> str:
    """Write a DGLGraph as an npz, and return its path.

    It takes ndata feat, label, node_id and the masks, and edata weight and feat (edge features). A
    heterograph is written as a folder, by type and relation.
    """
    if len(g.ntypes) != 1 or len(g.etypes) != 1:
        return hetero_objects.write(path, overwrite, *hetero_objects.of_dgl(g))
    return _write_npz(path, overwrite, dgl_arrays(g))


def dgl_arrays(g: Any) -> dict[str, Any]:
    """The arrays of a DGLGraph with one type; see pyg_arrays."""
    src, dst = g.edges(order="eid")
    arrays = {
        "src": src,
        "dst": dst,
        "node_id": np.arange(g.num_nodes()),
        **{name: g.ndata[name] for name in ("feat", "label", *MASKS, "node_id") if name in g.ndata},
    }
    return arrays | {EDGE_NAMES[name]: g.edata[name] for name in g.edata if name in EDGE_NAMES}


def from_networkx(
    G: Any,
    path: str | Path = "graph.npz",
    *,
    label: str = "label",
    feat: str = "feat",
    overwrite: bool = False,
) -> str:
    """Write a networkx graph as an npz, and return its path.

    It takes the node attributes `label`, `feat` (a number or a list) and the masks, and the edge
    attribute weight. Undirected edges are written in both directions. Nodes that are no integers
    are named by their text.
    """
    return _write_npz(path, overwrite, networkx_arrays(G, label, feat))


def networkx_arrays(G: Any, label: str = "label", feat: str = "feat") -> dict[str, Any]:
    """The arrays of a networkx graph; see pyg_arrays."""
    nodes = list(G.nodes)
    row = {node: at for at, node in enumerate(nodes)}
    directed = G if G.is_directed() else G.to_directed()
    ends = np.array([(row[src], row[dst]) for src, dst in directed.edges()], np.int64).reshape(
        -1, 2
    )
    with converting("edge attribute 'weight'", "a number at each edge"):
        given = [weight for _, _, weight in directed.edges(data="weight", default=1)]
        weights = np.array(given, np.float64).reshape(len(given))
    of_nodes = {name: [G.nodes[node].get(name) for node in nodes] for name in (label, feat, *MASKS)}
    with converting(f"node attribute {feat!r}", "a number or a list of numbers at each node"):
        rows = [
            np.atleast_1d(value).astype(np.float32) for value in of_nodes[feat] if value is not None
        ]
    if any(row.ndim != 1 for row in rows):
        raise InputError(f"node attribute {feat!r}: a list of lists; expected a list of numbers")
    wide = {len(one) for one in rows}
    if len(wide) > 1:
        raise InputError(
            f"node attribute {feat!r} has {min(wide)} to {max(wide)} numbers; expected as many at"
            " each node"
        )
    blank = np.full(max(wide, default=0), np.nan)
    given_rows = iter(rows)
    features = [blank if value is None else next(given_rows) for value in of_nodes[feat]]
    masks = {}
    for name in MASKS:
        if any(value is not None for value in of_nodes[name]):
            with converting(f"node attribute {name!r}", "true or false at each node"):
                # A node without the attribute is not in the mask.
                masks[name] = [bool(value) for value in of_nodes[name]]
    integers = all(isinstance(node, int | np.integer) for node in nodes)
    names: dict[str, Any] = {}
    for node in () if integers else nodes:
        if str(node) in names:
            raise InputError(
                f"nodes {names[str(node)]!r} and {node!r} have the same name; rename one"
                " (networkx.relabel_nodes)"
            )
        names[str(node)] = node
    return {
        "src": ends[:, 0],
        "dst": ends[:, 1],
        "edge_weight": (None if (weights == 1).all() else weights),
        "feat": np.array(features, np.float32) if rows else None,
        "label": _as_labels(of_nodes[label]),
        "node_id": np.array(nodes if integers else list(names)),
        **masks,
    }


def _as_labels(values: list[Any]) -> Array | None:
    """Return numbers, NaN for None and NaN; or names, "" for None and NaN."""
    with converting("node attribute of labels", "a number or a name at each node"):
        values = [None if value is None or value != value else value for value in values]
    known = [value for value in values if value is not None]
    if not known:
        return None
    if all(isinstance(value, int | float | np.integer | np.floating) for value in known):
        return np.array([np.nan if value is None else value for value in values])
    return np.array(["" if value is None else str(value) for value in values])


def from_scipy(
    A: Any, x: Any, y: Any, path: str | Path = "graph.npz", *, overwrite: bool = False
) -> str:
    """Write an adjacency matrix as an npz, and return its path.

    A: sparse [N, N], the weight of u -> v at A[u, v]. x: [N, F] dense, sparse or None. y: [N] or
    [N, C].
    """
    with converting("A", "a sparse matrix [nodes, nodes]"):
        matrix = sp.coo_array(A)
    weight = None if (matrix.data == 1).all() else matrix.data
    src, dst = matrix.coords
    return _write_npz(
        path, overwrite, {"src": src, "dst": dst, "edge_weight": weight, "feat": x, "label": y}
    )


def from_pandas(
    nodes: Any, edges: Any, path: str | Path = "graph", *, overwrite: bool = False
) -> str:
    """Write two data frames as a folder of tables, and return its path.

    nodes: a row per node, with a column or a named index of ids, labels, features and masks.
    edges: a row per edge, with src and dst and further columns.
    """
    folder = Path(path)
    if folder.exists() and not (overwrite and (folder / "nodes.parquet").is_file()):
        raise InputError(
            f"path={folder}: exists; choose another, or overwrite=True of a folder written before"
        )
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    parts = [folder / f".{name}.parquet" for name in ("nodes", "edges")]
    try:
        for frame, part in zip((nodes, edges), parts, strict=True):
            write_frame(frame, part, part.stem[1:])
    except InputError:
        for part in parts:
            part.unlink(missing_ok=True)
        if is_new:
            folder.rmdir()
        raise
    for part in parts:
        part.replace(part.with_name(part.name[1:]))
    return str(folder)


def write_frame(frame: Any, path: Path, what: str) -> None:
    """Write a data frame; InputError for cells of several types in a column."""
    try:
        frame.to_parquet(path, index=any(name is not None for name in frame.index.names))
    except (ValueError, TypeError, AttributeError, OverflowError, NotImplementedError) as error:
        raise InputError(
            f"{what}: not a table with one type of values in each column: {first_line(error)}"
        ) from None
