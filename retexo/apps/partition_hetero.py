"""What `app=partition_data` does with a heterogeneous graph, once it is loaded and split."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.directory import hetero_files as hetero_directory
from partitioning.directory.hetero_parts import split_hetero
from partitioning.directory.meta import HeteroMeta
from partitioning.errors import InputError
from partitioning.graph_data import HeteroGraphData
from partitioning.hetero_assign import assign
from partitioning.partition_settings import PartitionSettings


def write(
    settings: PartitionSettings,
    directory: Path,
    graph: HeteroGraphData,
    masks: Mapping[str, NDArray[np.bool_]],
    provenance: Callable[[int | None], dict[str, Any]],
    timed: Callable[[str], AbstractContextManager[None]],
    covered: Callable[[NDArray[np.int64], NDArray[np.int64]], int],
    limit: int,
) -> tuple[HeteroMeta, str]:
    """Assign the nodes and write the directory; also what is said of edges. For covered and limit see cover_rows."""
    if settings.dgl_files:
        raise InputError(
            "partition.dgl_files=true: of a heterogeneous graph DGL's files are not written; leave it out"
        )
    with timed("assign"):
        assignment = assign(graph, masks["train_mask"], settings)
    with timed("cover"):
        keys = _cut_keys(graph, assignment, settings.num_partitions, limit)
    with timed("write"):
        parts = split_hetero(graph, masks, assignment, settings.num_partitions)
        meta = hetero_directory.write(
            directory,
            graph,
            parts,
            assignment,
            num_parts=settings.num_partitions,
            provenance=provenance(None if keys is None else covered(*keys)),
            overwrite=settings.overwrite,
        )
    loops = meta.num_edges - sum(sum(each["edges"]) for each in meta.relations.values())
    return meta, f"{loops:,} self loops, which are left out"


def _cut_keys(
    graph: HeteroGraphData, assignment: Mapping[str, NDArray[np.int64]], num_parts: int, limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """For every cut edge its row, which crosses once to a part, and its partial sum, of a relation at a destination."""
    rows, sums, first, total = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0, 0
    for each, relation in graph.relations.items():
        of_src, of_dst = assignment[each[0]][relation.src], assignment[each[2]][relation.dst]
        cut = np.flatnonzero(of_src != of_dst)
        total += len(cut)
        if total > limit:
            return None
        rows.append(
            (relation.src[cut].astype(np.int64) + graph.offsets[each[0]]) * num_parts + of_dst[cut]
        )
        sums.append((relation.dst[cut].astype(np.int64) + first) * num_parts + of_src[cut])
        first += graph.nodes[each[2]].num_nodes
    return np.concatenate(rows), np.concatenate(sums)


def print_types(meta: HeteroMeta) -> None:
    """Types and relations, their counts in every part."""
    print(f"target: {meta.target}")
    for name, each in meta.types.items():
        nodes, halo = sum(each["nodes"]), sum(each["halo"])
        print(
            f"nodes of {name}: {nodes:,} ({_listed(each['nodes'])}), {each['features']} features; "
            f"halo {halo:,} ({_listed(each['halo'])})"
        )
    for name, each in meta.relations.items():
        edges = sum(each["edges"])
        print(
            f"edges of {name}: {edges:,} ({_listed(each['edges'])}), {each['cut']:,} cut "
            f"({each['cut'] / max(edges, 1):.1%})"
        )


def _listed(counts: list[int]) -> str:
    shown = [f"{count:,}" for count in counts[:16]]
    return " + ".join([*shown, "..."] if len(counts) > 16 else shown)
