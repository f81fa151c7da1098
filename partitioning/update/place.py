"""Assigns new nodes to partitions: each to the partition with most of its neighbours that has room.

One pass in the order of the tables, as in streaming graph partitioning (Stanton and Kliot, KDD
2012, greedy with a hard limit). N nodes of a type, P partitions.
"""

import math

import numpy as np

from partitioning.array_checks import Ints
from partitioning.directory.stored_graph import StoredGraph
from partitioning.graph_data import first_nodes

MAX_IMBALANCE = 0.05
"""Share by which a partition may exceed the mean number of nodes of a type, METIS's own usual one
being 0.03: room for some new nodes without moving others.
"""


def place_new(changed: StoredGraph) -> dict[str, Ints]:
    """Return the partition of each node, [N] by type; `changed` stays as it is.

    One after the other, a new node joins the partition with most of its neighbours, ties by size,
    that is below the limit of MAX_IMBALANCE in its type.

    Args:
        changed: A graph whose new nodes have the partition -1.
    """
    first = first_nodes(changed.graph)
    part = np.concatenate(list(changed.assignment.values()))
    if not (part < 0).any():
        return changed.assignment
    pairs = [np.zeros((2, 0), np.int64)]
    for (source, _, destination), relation in changed.graph.relations.items():
        ends = np.stack((relation.src + first[source], relation.dst + first[destination]))
        ends = ends[:, (part[ends] < 0).any(axis=0)]
        pairs += [ends, ends[::-1]]
    node, neighbour = np.concatenate(pairs, axis=1)
    order = np.argsort(node, kind="stable")
    node, neighbour = node[order], neighbour[order]
    for name, parts in changed.assignment.items():
        new = np.flatnonzero(parts < 0) + first[name]
        sizes = np.bincount(parts[parts >= 0], minlength=changed.num_parts)
        limit = math.ceil((1 + MAX_IMBALANCE) * len(parts) / len(sizes))
        begin, end = np.searchsorted(node, (new, new + 1))
        for place, some in zip(new.tolist(), map(slice, begin, end), strict=True):
            near = part[neighbour[some]]
            num_near = np.bincount(near[near >= 0], minlength=len(sizes))
            # The last key counts most.
            best = int(np.lexsort((sizes, -num_near, sizes >= limit))[0])
            part[place] = best
            sizes[best] += 1
    return {
        name: part[first[name] : first[name] + len(parts)]
        for name, parts in changed.assignment.items()
    }
