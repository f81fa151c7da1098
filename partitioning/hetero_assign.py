"""Which part each node of a heterogeneous graph goes to: by the methods of plain graphs, on all types together.

P parts, N_t nodes of a type, N nodes of all types.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partitioning import hypergraph
from partitioning.assign import Assignment, from_file, metis
from partitioning.errors import InputError
from partitioning.graph_data import HeteroGraphData
from partitioning.partition_settings import PartitionSettings


def assign(
    graph: HeteroGraphData, train_mask: NDArray[np.bool_], settings: PartitionSettings
) -> Mapping[str, Assignment]:
    """Assign the nodes of every type, int64 [N_t] in [0, P) each; train_mask: bool [N_t] of the target.

    METIS and km1 balance the nodes of each type, and training nodes beside them.
    """
    if settings.method == "file":
        return _from_files(graph, Path(str(settings.file)), settings.num_partitions)
    rng, number = np.random.default_rng(settings.seed), settings.num_partitions
    total = sum(table.num_nodes for table in graph.nodes.values())
    if settings.method == "random" or number == 1:
        parts = rng.integers(number, size=total)
    elif settings.method == "metis":
        groups = np.unique(_groups(graph, train_mask, settings.balance_train), return_inverse=True)[
            1
        ]  # none is empty
        parts = metis(graph.union(), groups, number, settings.objective, rng)
    else:
        groups, types = (
            _groups(graph, train_mask, balanced) for balanced in (settings.balance_train, False)
        )
        parts = hypergraph.partition(graph.union(), groups != types, number, rng, types)
    bounds = [*graph.offsets.values(), total]
    return {name: parts[bounds[at] : bounds[at + 1]] for at, name in enumerate(graph.nodes)}


def _groups(
    graph: HeteroGraphData, train_mask: NDArray[np.bool_], balance_train: bool | None
) -> NDArray[np.int64]:
    """[N] the number of each node's type, and another for training nodes."""
    counts = [table.num_nodes for table in graph.nodes.values()]
    groups = np.repeat(np.arange(len(counts)), counts)
    if balance_train is not False:
        first = graph.offsets[graph.target]
        groups[first : first + len(train_mask)][train_mask] = len(counts)
    return groups


def _from_files(graph: HeteroGraphData, folder: Path, num_parts: int) -> dict[str, Assignment]:
    """The user's assignment: TYPE.npy or TYPE.csv of every type in a folder."""
    if not folder.is_dir():
        raise InputError(
            f"partition_file={folder}: no such folder; expected one with TYPE.npy or TYPE.csv, an integer "
            f"for each node, of {', '.join(graph.nodes)}"
        )
    files = {
        file.name: file for file in sorted(folder.iterdir()) if file.suffix in (".npy", ".csv")
    }
    strangers = [name for name in files if name[:-4] not in graph.nodes]
    if strangers:
        raise InputError(
            f"partition_file={folder}: {strangers[0]} is of no type of the graph, which has "
            f"{', '.join(graph.nodes)}; name it as one, or take it away"
        )
    assignment = {}
    for name, table in graph.nodes.items():
        found = [files[each] for each in (f"{name}.csv", f"{name}.npy") if each in files]
        if len(found) > 1:
            raise InputError(
                f"partition_file={folder}: has {found[0].name} and {found[1].name}; leave one"
            )
        if not found and table.num_nodes:
            raise InputError(
                f"partition_file={folder}: has no {name}.npy or {name}.csv, the part of each of the "
                f"{table.num_nodes} nodes of type {name}"
            )
        assignment[name] = (
            from_file(found[0], table.num_nodes, num_parts) if found else np.empty(0, np.int64)
        )
    return assignment
