"""Converts and writes heterogeneous graphs of PyG and DGL as arrays of file.py, form (a)."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from partitioning.array_checks import CSR
from partitioning.datasets.hetero_tables import check_name
from partitioning.errors import InputError, first_line, join_names
from partitioning.file_io import UNREADABLE
from partitioning.graph_data import EDGE_NAMES, MASKS, SEPARATOR, EdgeType

log = logging.getLogger(__name__)

Arrays = dict[str, Any]
Types = dict[str, Arrays]
Relations = dict[EdgeType, Arrays]


def as_arrays(given: Mapping[str, Any]) -> Arrays:
    """Return the values that are not None: tensors as arrays, sparse features as CSR arrays."""
    made = {}
    for name, value in given.items():
        if value is not None:
            with converting(f"`{name}`", "an array of numbers or texts"):
                made[name] = _to_array(value)
    if sp.issparse(made.get("feat")):
        csr: Any = made.pop("feat").tocsr()
        made |= dict(
            zip(CSR, (csr.data, csr.indices, csr.indptr, np.array(csr.shape)), strict=True)
        )
    return made


@contextlib.contextmanager
def converting(what: str, expected: str) -> Iterator[None]:
    """InputError where a value of an object of another library cannot be converted."""
    try:
        yield
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(f"{what}: {first_line(error)[:200]}; expected {expected}") from error


def count_nodes(data: Any) -> int:
    """Return the number of nodes of PyG's data, also of those that no edge has."""
    with converting(f"num_nodes of {type(data).__name__}", "tensors with a row for each node"):
        return int(data.num_nodes)


def ends_of(edge_index: Any, where: str) -> tuple[Any, Any]:
    """Return sources and destinations of an edge_index; InputError unless it has two rows."""
    if getattr(edge_index, "ndim", None) != 2 or 2 not in edge_index.shape:
        shape = list(getattr(edge_index, "shape", ()))
        raise InputError(f"{where} has shape {shape}; expected [2, edges]")
    src, dst = edge_index if edge_index.shape[0] == 2 else edge_index.T
    return src, dst


def _to_array(value: Any) -> Any:
    """Convert a tensor to an array; other values stay."""
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # which NumPy lacks
            value = value.float()
        strided = str(value.layout) == "torch.strided"
        value = value.numpy() if strided else sp.csr_array(value.to_dense().numpy())
    return value if sp.issparse(value) else np.asarray(value)


def of_pyg(data: Any) -> tuple[Types, Relations]:
    """Return x, y, the masks, edge_index, edge_weight and edge_attr of a HeteroData."""
    types = {}
    for name in data.node_types:
        held = data[name]
        given = {
            "feat": held.get("x"),
            "label": held.get("y"),
            **{mask: held.get(mask) for mask in MASKS},
        }
        ids = held.get("node_id")
        types[name] = as_arrays(
            {**given, "node_id": np.arange(count_nodes(held)) if ids is None else ids}
        )
    relations = {}
    for each in data.edge_types:
        held = data[each]
        if held.get("edge_index") is None:
            raise InputError(f"data[{each}] has no edge_index; of an adj_t, set it first")
        src, dst = ends_of(held.edge_index, f"data[{each}].edge_index")
        found = {"src": src, "dst": dst, "edge_weight": held.get("edge_weight")}
        relations[tuple(each)] = as_arrays({**found, "edge_feat": held.get("edge_attr")})
        _warn_unused(each, sorted({*held.keys()} - {"edge_index", "edge_weight", "edge_attr"}))
    return types, relations


def of_dgl(graph: Any) -> tuple[Types, Relations]:
    """Return ndata feat, label, masks and node_id, and edata weight and feat of a heterograph."""
    types = {}
    for name in graph.ntypes:
        data = graph.nodes[name].data
        given = {key: data.get(key) for key in ("feat", *CSR, "label", *MASKS)}
        ids = data.get("node_id")
        types[name] = as_arrays(
            {**given, "node_id": np.arange(graph.num_nodes(name)) if ids is None else ids}
        )
    relations = {}
    for each in graph.canonical_etypes:
        src, dst = graph.edges(order="eid", etype=each)
        data = graph.edges[each].data
        known = {EDGE_NAMES[name]: data[name] for name in data if name in EDGE_NAMES}
        relations[each] = as_arrays({"src": src, "dst": dst, **known})
        _warn_unused(each, [name for name in data if name not in EDGE_NAMES])
    return types, relations


def _warn_unused(each: Iterable[str], names: list[str]) -> None:
    if names:
        log.warning("relation %s: %s: left out", SEPARATOR.join(each), join_names(names, "`"))


def write(path: str | Path, overwrite: bool, types: Types, relations: Relations) -> str:
    """Write a folder for hetero_tables.py, named PATH without .npz, and return its path."""
    folder = Path(path).with_suffix("") if Path(path).suffix == ".npz" else Path(path)
    if not any("label" in arrays for arrays in types.values()):
        raise InputError(
            "the graph has no labels, which are what is learned: give each node of a type a class,"
            " or -1"
        )
    names = {*types, *(name for each in relations for name in each)}
    for name in sorted(names):
        check_name(name, "the graph")
    if folder.exists() and not (
        overwrite and (folder / "nodes").is_dir() and (folder / "edges").is_dir()
    ):
        raise InputError(
            f"path={folder}: exists; choose another, or overwrite=True of a folder written before"
        )
    for below in ("nodes", "edges"):
        (folder / below).mkdir(parents=True, exist_ok=True)
        for file in (folder / below).iterdir():
            file.unlink()
    for name, arrays in types.items():
        np.savez(folder / "nodes" / f"{name}.npz", **arrays)
    for each, arrays in relations.items():
        np.savez(folder / "edges" / f"{SEPARATOR.join(each)}.npz", **arrays)
    return str(folder)
