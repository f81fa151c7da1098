"""Assignment of nodes to partitions: random, METIS, hypergraph partitioning (km1), or a user's
file.

An assignment is an int64 array with values in [0, P), one array per node type.
P partitions, N nodes, N_t nodes of one type.
"""

import contextlib
import io
import logging
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning import hypergraph
from partitioning.dgl_import import has_dgl, import_dgl
from partitioning.errors import InputError
from partitioning.file_io import load_npy, open_regular, reading
from partitioning.graph_data import AnyGraph, GraphData, HeteroGraphData, first_nodes
from partitioning.partition_settings import PartitionSettings

log = logging.getLogger(__name__)

Assignment = NDArray[np.int64]
BYTES_PER_EDGE = {"metis": 110, "km1": 180}
"""Memory for each directed edge. Measured on synthetic graphs with 25 edges per node: METIS with 1,
4 and 20 million directed edges took 120, 115 and 97 bytes, km1 with 1, 2 and 6 million 180, 140 and
107."""


def assign(
    graph: AnyGraph, train_mask: NDArray[np.bool_], settings: PartitionSettings
) -> dict[str, Assignment]:
    """Assign each node to a partition by the method of the settings.

    METIS and km1 partition the nodes of all types together. They balance the nodes of each type
    and, unless partition.balance_train=false, the training nodes. Partitions can be empty.

    Args:
        train_mask: bool [N_t] of the target's nodes.

    Returns:
        int64 [N_t] by node type.
    """
    num_parts = settings.num_partitions
    if settings.method == "file":
        path = Path(str(settings.file))
        if isinstance(graph, HeteroGraphData):
            return _read_by_type(graph, path, num_parts)
        return {graph.target: read_assignment(path, graph.num_nodes, num_parts)}
    rng = np.random.default_rng(settings.seed)
    if settings.method == "random" or num_parts == 1:
        parts = rng.integers(num_parts, size=graph.num_nodes)
    else:
        whole = graph.to_homogeneous() if isinstance(graph, HeteroGraphData) else graph
        types = _number_types(graph)
        training = np.zeros(graph.num_nodes, np.bool_)
        if settings.balance_train is not False:
            first = first_nodes(graph)[graph.target]
            training[first : first + len(train_mask)] = train_mask
        if settings.method == "km1":
            parts = hypergraph.partition(whole, training, num_parts, rng, types)
        else:
            groups = np.where(training, len(graph.nodes), types)
            groups = np.unique(groups, return_inverse=True)[1]  # METIS refuses empty groups
            parts = metis(whole, groups, num_parts, settings.objective, rng)
    return _split_by_type(graph, parts)


def _number_types(graph: AnyGraph) -> NDArray[np.int64]:
    """Return the number of each node's type, int64 [N]."""
    counts = [table.num_nodes for table in graph.nodes.values()]
    return np.repeat(np.arange(len(counts)), counts)


def _split_by_type(graph: AnyGraph, parts: Assignment) -> dict[str, Assignment]:
    """Split an assignment of all nodes, numbered together, by node type."""
    first = first_nodes(graph)
    return {
        name: parts[first[name] : first[name] + table.num_nodes]
        for name, table in graph.nodes.items()
    }


def check_memory(method: str, num_edges: int, available: int) -> None:
    """Refuse a graph whose partitioning would not fit into memory.

    Without this check the system would kill this process, or another one, without a message. The
    estimate can be a quarter too high, so a graph is refused only if it exceeds that margin.
    """
    needed = BYTES_PER_EDGE.get(method, 0) * num_edges
    if needed:
        log.info(
            "partition_method=%s: about %.1f GiB of memory, %.1f are available",
            method,
            needed / 2**30,
            available / 2**30,
        )
    if needed > 1.25 * available:
        raise InputError(
            f"partition_method={method}: {num_edges:,} edges need about {needed / 2**30:.1f} GiB of"
            f" memory, {available / 2**30:.1f} GiB are available; use partition_method=random, a"
            " machine with more memory, or partition_method=file with an assignment made there"
        )


def metis(
    graph: GraphData,
    groups: NDArray[np.int64],
    num_parts: int,
    objective: str,
    rng: np.random.Generator,
) -> Assignment:
    """Partition the undirected graph by METIS k-way (Karypis and Kumar 1998), DGL's or pymetis.

    Args:
        groups: int64 [N], each node's group, from 0 on. DGL balances each group. pymetis takes one
            weight per node: it balances a sum in which all nodes and each group but the first count
            the same.
        objective: vol (communication volume) or cut (edges).
    """
    partition = _partition_by_dgl if has_dgl() else _partition_by_pymetis
    has_groups = len(groups) > 0 and groups.max() > 0
    assignment = partition(graph, groups if has_groups else None, num_parts, objective, rng)
    if assignment is None:
        raise InputError(
            f"partition_method=metis: METIS could not cut {graph.num_nodes} nodes into"
            f" num_partitions={num_parts}; use fewer parts or partition_method=random"
        )
    return assignment


def _partition_by_dgl(
    graph: GraphData,
    groups: Assignment | None,
    num_parts: int,
    objective: str,
    rng: np.random.Generator,
) -> Assignment | None:
    """Run DGL's METIS. DGL passes no seed, so the nodes are renumbered at random instead."""
    dgl = import_dgl("partition_method=metis")
    new_number = rng.permutation(graph.num_nodes)
    shuffled = dgl.graph((new_number[graph.src], new_number[graph.dst]), num_nodes=graph.num_nodes)
    shuffled_groups = None
    if groups is not None:
        shuffled_groups = np.empty(graph.num_nodes, np.int64)
        shuffled_groups[new_number] = groups
    with contextlib.redirect_stdout(io.StringIO()):  # DGL prints its timings
        parts = dgl.metis_partition_assignment(
            shuffled, num_parts, balance_ntypes=shuffled_groups, objtype=objective
        )
    return None if parts is None else parts.numpy()[new_number]


def _partition_by_pymetis(
    graph: GraphData,
    groups: Assignment | None,
    num_parts: int,
    objective: str,
    rng: np.random.Generator,
) -> Assignment | None:
    try:
        import pymetis
    except ImportError:
        raise InputError(
            "partition_method=metis: needs pymetis (pip install pymetis), or DGL; or use km1"
        ) from None
    shape = (graph.num_nodes, graph.num_nodes)
    one_way = sp.csr_array(
        (np.ones(graph.num_edges, np.bool_), (graph.dst, graph.src)), shape=shape
    )
    both = one_way + one_way.T
    both.setdiag(False)
    both.eliminate_zeros()
    adjacency = pymetis.CSRAdjacency(both.indptr.astype(np.int64), both.indices.astype(np.int64))
    del one_way, both
    weights = None
    if groups is not None:
        weights = 1 + np.rint(len(groups) / np.maximum(np.bincount(groups), 1)).astype(np.int64)
        weights[0] = 1
        weights = weights[groups]
    options = pymetis.Options()
    options.seed = int(rng.integers(2**31))
    options.objtype = pymetis.ObjType.VOL if objective == "vol" else pymetis.ObjType.CUT
    parts = pymetis.part_graph(
        num_parts, adjacency, vweights=weights, recursive=False, options=options
    ).vertex_part
    assignment = np.array(parts, np.int64)
    return assignment if np.bincount(assignment, minlength=num_parts).all() else None


def read_assignment(path: Path, num_nodes: int, num_parts: int) -> Assignment:
    """Read an assignment, integers [N] in [0, P), from an npy file or a csv with one value per
    line.
    """
    values = _read_integers(path)
    if values.shape != (num_nodes,):
        raise InputError(
            f"partition_file={path}: has shape {list(values.shape)}, the graph needs one partition"
            f" for each of its {num_nodes} nodes"
        )
    outside = np.flatnonzero((values < 0) | (values >= num_parts))
    if outside.size:
        row = int(outside[0])
        raise InputError(
            f"partition_file={path}: row {row} is {values[row]}, outside [0, {num_parts}); correct"
            f" it or set num_partitions (the largest value is {values.max()})"
        )
    return values


def _read_integers(path: Path) -> NDArray[np.int64]:
    """Read the integers of an npy or csv file."""
    with reading(path, "npy or csv of integers", where=f"partition_file={path}"):
        if path.suffix == ".npy":
            values = load_npy(path)
        else:
            with open_regular(path, "r") as file:
                values = np.loadtxt(file, dtype=np.float64)
    values = np.atleast_1d(np.asarray(values))
    if values.dtype.kind == "f" and (values == np.floor(values)).all():
        values = values.astype(np.int64)
    if values.dtype.kind not in "iu":
        raise InputError(
            f"partition_file={path}: holds {values.dtype}, needs integers, a partition for each"
            " node"
        )
    return values.astype(np.int64)


def _read_by_type(graph: HeteroGraphData, folder: Path, num_parts: int) -> dict[str, Assignment]:
    """Read the partition of each node of a heterogeneous graph, by node type, from TYPE.npy or
    TYPE.csv in a folder; InputError if one is missing, double or of no type of the graph.
    """
    if not folder.is_dir():
        raise InputError(
            f"partition_file={folder}: no such folder; expected one with TYPE.npy or TYPE.csv, an"
            f" integer for each node, of {', '.join(graph.nodes)}"
        )
    files = {
        file.name: file for file in sorted(folder.iterdir()) if file.suffix in (".npy", ".csv")
    }
    unknown = [name for name in files if name[:-4] not in graph.nodes]
    if unknown:
        raise InputError(
            f"partition_file={folder}: {unknown[0]} belongs to no node type of the graph, which has"
            f" {', '.join(graph.nodes)}; rename it to one of them, or remove it"
        )
    assignment = {}
    for name, table in graph.nodes.items():
        found = [files[each] for each in (f"{name}.csv", f"{name}.npy") if each in files]
        if len(found) > 1:
            raise InputError(
                f"partition_file={folder}: has {found[0].name} and {found[1].name}; remove one"
            )
        if not found and table.num_nodes:
            raise InputError(
                f"partition_file={folder}: has no {name}.npy or {name}.csv, the partition of each"
                f" of the {table.num_nodes} nodes of type {name}"
            )
        assignment[name] = (
            read_assignment(found[0], table.num_nodes, num_parts)
            if found
            else np.empty(0, np.int64)
        )
    return assignment
