"""Numbers the nodes of a type anew after some were deleted and others added.

The nodes that stay keep their order, and new ones follow the others of their partition: this is
the order in which a graph without the deleted rows, and with the new rows at its end, is written
from scratch. N nodes before, n new ones, P partitions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Renumbering:
    """Ids in the partitioned graph before and after. New node k has the number N + k before."""

    old_bounds: Ints
    """[P + 1] partition p owned ids old_bounds[p] ... old_bounds[p + 1] - 1."""
    bounds: Ints
    """[P + 1] the same afterwards."""
    parts_of_new: Ints
    """[n] partition of each new node."""
    new_id: Ints
    """[N + n] id afterwards; -1 for a deleted node."""

    @classmethod
    def of(cls, old_bounds: Ints, deleted: Ints, parts_of_new: Ints) -> "Renumbering":
        """Number the nodes that stay, then the new ones of each partition.

        parts_of_new: the partition of each new node.
        """
        num_parts, num_nodes = len(old_bounds) - 1, int(old_bounds[-1])
        stays = np.ones(num_nodes, np.bool_)
        stays[deleted] = False
        before = np.concatenate(([0], np.cumsum(stays)))
        num_staying = np.diff(before[old_bounds])
        num_added = np.bincount(parts_of_new, minlength=num_parts)
        bounds = np.concatenate(([0], np.cumsum(num_staying + num_added)))
        shift = np.repeat(bounds[:-1] - before[old_bounds[:-1]], np.diff(old_bounds))
        new_id = np.empty(num_nodes + len(parts_of_new), np.int64)
        new_id[:num_nodes] = np.where(stays, before[:-1] + shift, -1)
        order = np.argsort(parts_of_new, kind="stable")
        first = np.repeat(bounds[1:] - num_added, num_added)
        rank = np.arange(len(order)) - np.repeat(np.cumsum(num_added) - num_added, num_added)
        new_id[num_nodes + order] = first + rank
        return cls(old_bounds, bounds, parts_of_new, new_id)

    @property
    def num_old(self) -> int:
        """The number of nodes N before the change."""
        return int(self.old_bounds[-1])

    def part_of(self, nodes: Ints) -> Ints:
        """Return the partition of each node, by its number before."""
        parts = np.searchsorted(self.old_bounds, nodes, side="right") - 1
        is_new = nodes >= self.num_old
        parts[is_new] = self.parts_of_new[nodes[is_new] - self.num_old]
        return parts

    def new_nodes_of(self, part: int) -> Ints:
        """Return the numbers before of the new nodes of a partition, ascending."""
        return np.flatnonzero(self.parts_of_new == part) + self.num_old
