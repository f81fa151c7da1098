"""Which partition each node goes to: node -> partition, an int64 array [N] with values in [0, P)."""

import contextlib
import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning import hypergraph
from partitioning.dgl_import import has_dgl, import_dgl
from partitioning.errors import InputError
from partitioning.file_io import load_npy, open_regular, reading
from partitioning.graph_data import GraphData
from partitioning.partition_settings import PartitionSettings

log = logging.getLogger(__name__)

Assignment = NDArray[np.int64]
BYTES_PER_EDGE = {"metis": 110, "km1": 180}
"""Of memory, for each directed edge of the graph: the most that was measured on synthetic graphs of 25 edges per node,
with METIS of 1, 4 and 20 million directed edges (120, 115, 97), with km1 of 1, 2 and 6
million (180, 140, 107)."""


def assign(
    graph: GraphData, train_mask: NDArray[np.bool_], settings: PartitionSettings
) -> Assignment:
    """Assign each node to a partition by the method of the settings.

    Returns an int64 array [N]. Parts can come out empty when there are more of them than nodes.
    """
    if settings.method == "file":
        return from_file(Path(str(settings.file)), graph.num_nodes, settings.num_partitions)
    rng = np.random.default_rng(settings.seed)
    if settings.method == "random" or settings.num_partitions == 1:
        return rng.integers(settings.num_partitions, size=graph.num_nodes)
    balanced = train_mask if settings.balance_train is not False else None
    if settings.method == "km1":
        return hypergraph.partition(graph, balanced, settings.num_partitions, rng)
    return metis(graph, balanced, settings.num_partitions, settings.objective, rng)


def check_memory(method: str, num_edges: int, available: int) -> None:
    """Refuse a graph whose partitioning would not fit: the system would end this program, or another, without a word.

    The estimate is good to a quarter, so nothing is refused that it sees within a quarter of what is there.
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
            f"partition_method={method}: {num_edges:,} edges need about {needed / 2**30:.1f} GiB of memory, "
            f"{available / 2**30:.1f} GiB are available; use partition_method=random, a machine with more memory, or "
            "partition_method=file with an assignment made there"
        )


def metis(
    graph: GraphData,
    groups: NDArray[np.integer[Any]] | NDArray[np.bool_] | None,
    num_parts: int,
    objective: str,
    rng: np.random.Generator,
) -> Assignment:
    """Partition by METIS k-way (Karypis and Kumar 1998), on the undirected graph: DGL's, or else pymetis.

    `objective` is vol (communication volume) or cut (edges). With groups, a number from 0 on of each node (a mask of
    the training nodes for instance), groups are balanced, too: DGL balances each, pymetis, which takes one weight of a
    node, a sum where all nodes and each group but the first weigh the same.
    """
    several = groups is not None and len(groups) > 0 and groups.min() < groups.max()
    by = _dgl_metis if has_dgl() else _pymetis
    assignment = by(
        graph,
        groups.astype(np.int64) if several and groups is not None else None,
        num_parts,
        objective,
        rng,
    )
    if assignment is None:
        raise InputError(
            f"partition_method=metis: METIS could not cut {graph.num_nodes} nodes into num_partitions={num_parts}; "
            "use fewer parts or partition_method=random"
        )
    return assignment


def _dgl_metis(
    graph: GraphData,
    groups: Assignment | None,
    num_parts: int,
    objective: str,
    rng: np.random.Generator,
) -> Assignment | None:
    """DGL gives METIS no seed, so the seed enters as a random renumbering of the nodes."""
    dgl = import_dgl("partition_method=metis")
    renumber = rng.permutation(graph.num_nodes)
    shuffled = dgl.graph((renumber[graph.src], renumber[graph.dst]), num_nodes=graph.num_nodes)
    types = None
    if groups is not None:
        types = np.empty(graph.num_nodes, np.int64)
        types[renumber] = groups
    with contextlib.redirect_stdout(io.StringIO()):  # DGL prints its timings
        parts = dgl.metis_partition_assignment(
            shuffled, num_parts, balance_ntypes=types, objtype=objective
        )
    return None if parts is None else parts.numpy()[renumber]


def _pymetis(
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


def from_file(path: Path, num_nodes: int, num_parts: int) -> Assignment:
    """Read the user's assignment, an integer array [N] in [0, P), from .npy or .csv (one value per line)."""
    values = _read_integers(path)
    if values.shape != (num_nodes,):
        raise InputError(
            f"partition_file={path}: has shape {list(values.shape)}, the graph needs one partition for each of its "
            f"{num_nodes} nodes"
        )
    outside = np.flatnonzero((values < 0) | (values >= num_parts))
    if outside.size:
        row = int(outside[0])
        raise InputError(
            f"partition_file={path}: row {row} is {values[row]}, outside [0, {num_parts}); correct it or set "
            f"num_partitions (the largest value is {values.max()})"
        )
    return values


def _read_integers(path: Path) -> NDArray[np.int64]:
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
            f"partition_file={path}: holds {values.dtype}, needs integers, a partition for each node"
        )
    return values.astype(np.int64)
