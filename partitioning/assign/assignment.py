"""Assignment of nodes to partitions: random, METIS, hypergraph partitioning (km1), or a user's
file.

An assignment is an int64 array with values in [0, P), one array per node type.
P partitions, N nodes, N_t nodes of one type.
"""

import logging
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partitioning.assign import hypergraph, metis
from partitioning.errors import InputError
from partitioning.files.file_io import load_npy, open_regular, reading
from partitioning.graph.array_checks import are_whole, check_integers, check_length, refuse
from partitioning.graph.graph_data import DESTINATION, GraphData, first_nodes
from partitioning.partition_settings import PartitionSettings

log = logging.getLogger(__name__)

Assignment = NDArray[np.int64]
BYTES_PER_EDGE = {"metis": 110, "km1": 180}
"""Memory for each directed edge. Measured on synthetic graphs with 25 edges per node: METIS with 1
and 4 million directed edges took 128 and 104 bytes, km1 with 1, 2 and 6 million 180, 140 and
107."""

MAX_IMBALANCE = 1.2
"""Nodes of the largest part over the mean from which on a warning is logged."""


def assign(
    graph: GraphData, train_mask: NDArray[np.bool_], settings: PartitionSettings
) -> dict[str, Assignment]:
    """Assign each node to a partition by the method of the settings.

    METIS and km1 partition the nodes of all types together; `hypergraph.balance` limits the nodes
    of each type and, unless partition.balance_train=false, the training nodes in a part. Partitions
    can be empty, and the log warns of an uneven result. Random choices are by partition.seed;
    partition_method=file reads the file.

    Args:
        train_mask: bool [N_t] of the target's nodes; not used where edges are labelled.

    Returns:
        int64 [N_t] by node type.

    Raises:
        InputError: the library of the method is missing or fails, or the file is wrong.
    """
    num_parts = settings.num_partitions
    if graph.labelled_edges is not None:
        return _assign_edges(graph, settings)
    if settings.partition_method == "file":
        path = Path(str(settings.partition_file))
        if not graph.is_plain:
            return _read_by_type(graph, path, num_parts)
        return {graph.target: read_assignment(path, graph.num_nodes, num_parts)}
    rng = np.random.default_rng(settings.partition.seed)
    if settings.partition_method == "random" or num_parts == 1:
        parts = rng.integers(num_parts, size=graph.num_nodes)
    else:
        homogeneous = graph.to_homogeneous()
        counts = [table.num_nodes for table in graph.nodes.values()]
        types = np.repeat(np.arange(len(counts)), counts)  # of each node
        training = np.zeros(graph.num_nodes, np.bool_)
        if settings.partition.balance_train is not False:
            first = first_nodes(graph)[graph.target]
            training[first : first + len(train_mask)] = train_mask
        if settings.partition_method == "km1":
            parts = hypergraph.partition(homogeneous, training, num_parts, rng, types)
        else:
            parts = metis.partition(homogeneous, num_parts, settings.part_obj, rng)
            edges = homogeneous.edges
            nets = hypergraph.make_nets(edges.src, edges.dst, graph.num_nodes)
            hypergraph.balance(parts, nets, training, num_parts, types)
    _warn_of_imbalance(parts, settings)
    return _split_by_type(graph, parts)


def _assign_edges(graph: GraphData, settings: PartitionSettings) -> dict[str, Assignment]:
    """Assign the nodes without the labelled edges, and each of these where its destination is.

    By type, int64 [N].
    """
    edges = graph.from_ends
    nodes = {name: table for name, table in graph.nodes.items() if name != graph.target}
    relations = {
        edge_type: relation
        for edge_type, relation in graph.relations.items()
        if edge_type not in edges.values()
    }
    rest = replace(
        graph, nodes=nodes, relations=relations, target=next(iter(nodes)), labelled_edges=None
    )
    assignment = assign(rest, np.zeros(rest.target_nodes.num_nodes, np.bool_), settings)
    to_edges = edges[DESTINATION]
    assignment[graph.target] = assignment[to_edges[0]][graph.relations[to_edges].src]
    return {name: assignment[name] for name in graph.nodes}


def _split_by_type(graph: GraphData, parts: Assignment) -> dict[str, Assignment]:
    """Split an assignment of all nodes, numbered together, by node type."""
    first = first_nodes(graph)
    return {
        name: parts[first[name] : first[name] + table.num_nodes]
        for name, table in graph.nodes.items()
    }


def check_memory(method: str, num_edges: int, available: int) -> None:
    """Raise InputError for a graph whose partitioning does not fit into memory; log the estimate.

    Without this check the system would kill this process, or another one, without a message. The
    estimate can be a quarter too high, so a graph is refused only if it exceeds that margin.

    Args:
        available: Bytes.
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


def _warn_of_imbalance(parts: Assignment, settings: PartitionSettings) -> None:
    """Log by how much the largest part exceeds the mean, if another assignment could be more even.

    A random assignment is even but for chance.
    """
    largest, mean = np.bincount(parts).max(initial=0), len(parts) / settings.num_partitions
    if settings.partition_method != "random" and largest > max(
        MAX_IMBALANCE * mean, math.ceil(mean)
    ):
        log.warning(
            "partition_method=%s: the largest part has %d of %d nodes, %.2f times the mean, and its"
            " worker as much more to do; use fewer partitions, or partition_method=random",
            settings.partition_method,
            largest,
            len(parts),
            largest / mean,
        )


def read_assignment(path: Path, num_nodes: int, num_parts: int) -> Assignment:
    """Read an assignment, int64 [N] in [0, P), from an npy file or a csv with a value per line.

    InputError for an unreadable file, another length, or a value that is no partition.
    """
    where = f"partition_file={path}"
    with reading(path, "npy or csv of integers", where=where):
        if path.suffix == ".npy":
            values = np.atleast_1d(np.asarray(load_npy(path)))
        else:
            with open_regular(path, "r") as file:
                values = np.loadtxt(file, dtype=np.float64, ndmin=1)
    if values.dtype.kind == "f":
        refuse(values, ~are_whole(values), where, "expected the number of a partition")
        values = values.astype(np.int64)
    parts = check_integers(values, where)
    check_length(parts, num_nodes, where)
    expected = f"expected a partition in [0, {num_parts}); correct it or set num_partitions"
    refuse(parts, (parts < 0) | (parts >= num_parts), where, expected)
    return parts


def _read_by_type(graph: GraphData, folder: Path, num_parts: int) -> dict[str, Assignment]:
    """Read the partition of each node by type, int64 [N], from TYPE.npy or TYPE.csv in a folder.

    A type without nodes needs no file.

    Raises:
        InputError: a file is missing or wrong, there are two for a type, or one belongs to no type.
    """
    if not folder.is_dir():
        raise InputError(
            f"partition_file={folder}: no such folder; expected one with TYPE.npy or TYPE.csv, an"
            f" integer for each node, of {', '.join(graph.nodes)}"
        )
    files = [file for file in sorted(folder.iterdir()) if file.suffix in (".npy", ".csv")]
    unknown = [file.name for file in files if file.stem not in graph.nodes]
    if unknown:
        raise InputError(
            f"partition_file={folder}: {unknown[0]} belongs to no node type of the graph, which has"
            f" {', '.join(graph.nodes)}; rename it to one of them, or remove it"
        )
    assignment = {}
    for name, table in graph.nodes.items():
        paths = [file for file in files if file.stem == name]
        if len(paths) > 1 or (table.num_nodes and not paths):
            raise InputError(
                f"partition_file={folder}: has {len(paths)} of {name}.npy and {name}.csv; expected"
                f" one, the partition of each of the {table.num_nodes} nodes of type {name}"
            )
        assignment[name] = (
            read_assignment(paths[0], table.num_nodes, num_parts)
            if paths
            else np.empty(0, np.int64)
        )
    return assignment
