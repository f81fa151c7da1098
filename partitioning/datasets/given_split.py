"""Converts a data set's own split, lists of nodes, to masks."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.graph.array_checks import Array, check_endpoints, check_unique, make_mask


def masks_of(
    lists: Mapping[str, tuple[Array, str]], num_nodes: int
) -> dict[str, NDArray[np.bool_]]:
    """Turn lists of nodes into masks.

    Args:
        lists: By mask name: integers [K], and their file and column for messages.

    Returns:
        Masks by the same names, bool [N].

    Raises:
        InputError: a node is outside [0, N), or listed twice.
    """
    masks: dict[str, NDArray[np.bool_]] = {}
    for mask, (listed, where) in lists.items():
        nodes = check_endpoints(listed, num_nodes, where)
        check_unique(nodes.astype(np.int64), where)
        for other, taken in masks.items():
            shared = np.flatnonzero(taken[nodes])
            if len(shared):
                raise InputError(
                    f"{where}: row {shared[0]} is {nodes[shared[0]]}, which {lists[other][1]} has,"
                    " too; expected each node in one list"
                )
        masks[mask] = make_mask(nodes, num_nodes)
    return masks
