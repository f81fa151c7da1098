"""Assigns new nodes to partitions: each to the partition with most of its neighbours that has room.

One pass in the order of the tables, as in streaming graph partitioning (Stanton and Kliot, KDD
2012, greedy with a hard limit). n new nodes of all types, P partitions.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def place(
    old_bounds: Mapping[str, Ints],
    sizes: Mapping[str, Ints],
    num_new: Mapping[str, int],
    edges: Sequence[tuple[tuple[str, Ints], tuple[str, Ints]]],
    max_imbalance: float,
) -> dict[str, Ints]:
    """Return the partition of each new node by type.

    Args:
        old_bounds: [P + 1] by type; new node k has the number old_bounds[-1] + k.
        sizes: [P] nodes of each partition without the deleted ones, by type.
        num_new: New nodes by type.
        edges: Type and numbers of the sources, type and numbers of the destinations.
        max_imbalance: A partition takes new nodes of a type up to (1 + max_imbalance) times the
            mean number of nodes of that type.
    """
    types = list(num_new)
    first = dict(zip(types, np.cumsum([0, *num_new.values()]).tolist(), strict=False))
    fixed, between = _find_neighbours(old_bounds, first, edges)
    parts = np.full(sum(num_new.values()), -1)
    place_of = {name: sizes[name].copy() for name in types}
    for name, count in num_new.items():
        held = place_of[name]
        limit = math.ceil((1 + max_imbalance) * (held.sum() + count) / len(held))
        for node in range(first[name], first[name] + count):
            near = np.bincount(fixed.of(node), minlength=len(held))
            placed = parts[between.of(node)]
            near += np.bincount(placed[placed >= 0], minlength=len(held))
            order = np.lexsort((held, -near, held >= limit))  # the last key counts most
            parts[node] = order[0]
            held[order[0]] += 1
    return {name: parts[first[name] : first[name] + count] for name, count in num_new.items()}


class _Lists:
    """A list of integers for each new node, stored as one sorted array."""

    def __init__(self, nodes: list[Ints], values: list[Ints]) -> None:
        keys = np.concatenate([np.zeros(0, np.int64), *nodes])
        order = np.argsort(keys, kind="stable")
        self.keys = keys[order]
        self.values = np.concatenate([np.zeros(0, np.int64), *values])[order]

    def of(self, node: int) -> Ints:
        """Return the integers of a new node."""
        begin, end = np.searchsorted(self.keys, (node, node + 1))
        return self.values[begin:end]


def _find_neighbours(
    old_bounds: Mapping[str, Ints],
    first: Mapping[str, int],
    edges: Sequence[tuple[tuple[str, Ints], tuple[str, Ints]]],
) -> tuple[_Lists, _Lists]:
    """Return for each new node the partitions of its old neighbours, and its new neighbours."""
    fixed: tuple[list[Ints], list[Ints]] = ([], [])
    between: tuple[list[Ints], list[Ints]] = ([], [])
    for ends in edges:
        for (name, nodes), (other, others) in (ends, ends[::-1]):
            is_new, is_old = nodes >= old_bounds[name][-1], others < old_bounds[other][-1]
            number = nodes - old_bounds[name][-1] + first[name]
            chosen = is_new & is_old
            fixed[0].append(number[chosen])
            fixed[1].append(np.searchsorted(old_bounds[other], others[chosen], side="right") - 1)
            chosen = is_new & ~is_old
            between[0].append(number[chosen])
            between[1].append(others[chosen] - old_bounds[other][-1] + first[other])
    return _Lists(*fixed), _Lists(*between)
