"""The change of one partition, where several machines change theirs.

Numbers of nodes here become numbers in the whole graph.

Each machine reads its tables as if its partitions were all (held_graph.open_directory). Messages
between the workers (retexo/worker/update.py) tell the rest: which nodes the others delete, how many
new ones they have, and the numbers of the sources that are theirs. New nodes of partition p follow
those of the partitions before it. P partitions.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partitioning.directory.meta import Meta
from partitioning.errors import InputError
from partitioning.graph_data import EdgeType
from partitioning.links.id_files import find_positions
from partitioning.update.change import Change, EdgeChange, Edges
from partitioning.update.held_graph import HeldDirectory, all_bounds, open_directory, read_meta
from partitioning.update.read_change import check_some_stay, read_own_change
from partitioning.update.renumbering import Renumbering
from partitioning.update.update_directory import place_new
from partitioning.update_settings import UpdateSettings

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OwnPart:
    """What a partition's worker knows before the messages."""

    part: int
    meta: Meta
    """Of the whole directory."""
    held: HeldDirectory
    """The partitions of this machine."""
    change: Change
    """Of these partitions, by numbers of nodes here."""
    placed: dict[str, Ints]
    """Partition of each new node here, by type, counted from 0."""
    elsewhere: dict[str, Ints]
    """Ids of sources that are on other machines, by type."""
    bounds: dict[str, Ints]
    """[P + 1] of all partitions before the change, by type."""

    @classmethod
    def read(cls, path: Path, parts: range, part: int, settings: UpdateSettings) -> "OwnPart":
        """Read the tables of a machine for one of its partitions."""
        meta, held = read_meta(path), open_directory(path, parts)
        for name, each in held.types.items():
            if "random" in each.kinds:
                raise InputError(
                    f"{path}: features{f' of {name}' if name else ''} are random numbers of the"
                    " ids, which halo lists have, too; update a complete copy on one machine"
                )
        change, elsewhere = read_own_change(held, settings)
        placed = place_new(held, change, settings)
        return cls(part, meta, held, change, placed, elsewhere, all_bounds(meta))

    @property
    def local_part(self) -> int:
        """The partition's index among those of this machine."""
        return self.part - self.held.first_part

    def deleted(self, name: str) -> Ints:
        """Return the deleted nodes of a type in the partition, ascending.

        They have their numbers in the whole graph before the change.
        """
        first, end = self.held.types[name].bounds[self.local_part : self.local_part + 2]
        gone = self.change.nodes[name].deleted
        here = gone[(gone >= first) & (gone < end)]
        return np.asarray(here - first + self.bounds[name][self.part])

    def new_rows(self, name: str) -> Ints:
        """Rows of the partition's new nodes in the change."""
        return np.flatnonzero(self.placed[name] == self.local_part)

    def new_ids(self, name: str) -> Ints:
        """Return the ids of the partition's new nodes, in the order of the table."""
        return self.change.nodes[name].new_ids[self.new_rows(name)]

    def find(self, name: str, ids: Ints, first_new: int) -> Ints:
        """Return the numbers of nodes of the partition in the whole graph, -1 for other ids.

        Args:
            name: Type of the nodes.
            ids: Ids of the data set, or hashes of names.
            first_new: Number of the partition's first new node.
        """
        first, end = self.held.types[name].bounds[self.local_part : self.local_part + 2]
        own = np.concatenate((self.held.types[name].ids[first:end], self.new_ids(name)))
        rows = find_positions(own, ids)
        numbers = np.where(
            rows < end - first,
            rows + self.bounds[name][self.part],
            rows - (end - first) + first_new,
        )
        return np.where(rows >= 0, numbers, -1)

    def finish(
        self,
        deleted: dict[str, Ints],
        num_new: dict[str, Ints],
        resolved: dict[str, Ints],
    ) -> tuple[HeldDirectory, Change, dict[str, Renumbering]]:
        """Return directory, change and numbers as update_part.PartUpdater takes them.

        Args:
            deleted: Deleted nodes of all partitions, by type.
            num_new: [P] new nodes of each partition, by type.
            resolved: Numbers of the sources in `elsewhere`, by type; -1 where it is none of this
                partition's.
        """
        parts = np.arange(len(self.meta.parts))
        numbers, numbers_of, types, nodes = {}, {}, {}, {}
        for name, each in self.held.types.items():
            bounds, count = self.bounds[name], num_new[name]
            numbers[name] = Renumbering.of(bounds, np.sort(deleted[name]), np.repeat(parts, count))
            first_new = np.concatenate(([0], np.cumsum(count)))
            numbers_of[name] = np.concatenate(
                (
                    np.arange(each.bounds[-1]) + bounds[self.held.first_part],
                    bounds[-1] + self._rank_of_new(name, first_new),
                    resolved[name],
                )
            )
            types[name] = replace(each, first=int(bounds[self.held.first_part]))
            rows, change = self.new_rows(name), self.change.nodes[name]
            nodes[name] = replace(
                change,
                deleted=np.sort(deleted[name]),
                changed=change.changed + bounds[self.held.first_part],
                new_ids=change.new_ids[rows],
                new_names=None if change.new_names is None else change.new_names.take(rows),
                new_values={key: array[rows] for key, array in change.new_values.items()},
                first_new=int(first_new[self.part]),
            )
        check_some_stay(int(numbers[self.held.target].bounds[-1]))
        edges = {
            name: self._renumber_edges(name, each, numbers_of, numbers[name[2]])
            for name, each in self.change.edges.items()
        }
        held = replace(self.held, meta=self.meta, types=types, first_part=0)
        return held, Change(nodes, edges, self.change.notes), numbers

    def sources_elsewhere(self, name: str) -> Ints:
        """Places in `elsewhere` of the sources of edges into the partition."""
        known = self.held.types[name].bounds[-1] + len(self.change.nodes[name].new_ids)
        found = [np.zeros(0, np.int64)]
        for relation, each in self.change.edges.items():
            if relation[0] == name:
                for edges in (each.deleted, each.changed, each.new):
                    src = edges.src[self._is_here(relation, edges.dst)]
                    found.append(src[src >= known] - known)
        return np.unique(np.concatenate(found))

    def _is_here(self, name: EdgeType, dst: Ints) -> NDArray[np.bool_]:
        """Return which destinations are nodes of this partition, bool [n]."""
        bounds, placed = self.held.types[name[2]].bounds, self.placed[name[2]]
        parts = np.searchsorted(bounds, dst, side="right") - 1
        is_new = dst >= bounds[-1]
        parts[is_new] = placed[dst[is_new] - bounds[-1]]
        return np.asarray(parts == self.local_part)

    def _rank_of_new(self, name: str, first_new: Ints) -> Ints:
        """Return the number of each new node here among all new nodes."""
        ranks = np.zeros(len(self.placed[name]), np.int64)
        for part in range(self.held.num_parts):
            rows = np.flatnonzero(self.placed[name] == part)
            ranks[rows] = first_new[self.held.first_part + part] + np.arange(len(rows))
        return ranks

    def _renumber_edges(
        self,
        name: EdgeType,
        change: EdgeChange,
        numbers_of: dict[str, Ints],
        numbers: Renumbering,
    ) -> EdgeChange:
        """Return a change's edges into the partition, with node numbers of the whole graph."""

        def renumber(edges: Edges) -> Edges:
            here = edges.take(self._is_here(name, edges.dst))
            return replace(
                here, src=numbers_of[name[0]][here.src], dst=numbers_of[name[2]][here.dst]
            )

        loops = change.self_loops[self._is_here(name, change.self_loops)]
        return EdgeChange(
            renumber(change.deleted),
            renumber(change.changed),
            renumber(change.new),
            numbers_of[name[2]][loops],
        )
