"""The nodes and edges of one partition by local numbers, while an update changes them.

I inner nodes of a type, H halo nodes, E edges of a relation; n edges of a table.
"""

import numpy as np
from numpy.typing import NDArray

from partitioning.array_checks import Array
from partitioning.errors import InputError
from partitioning.update.change import Edges
from partitioning.update.renumbering import Renumbering

Ints = NDArray[np.int64]


class LocalNodes:
    """The nodes of one type that a partition knows.

    These are the inner and halo nodes before the change, then further ones in ascending order: its
    new nodes, and sources of new edges.
    """

    def __init__(self, numbers: Renumbering, part: int, halo: Ints, further: Ints) -> None:
        self.first, end = numbers.old_bounds[part : part + 2].tolist()
        self.num_inner, self.halo = end - self.first, halo
        is_old = (further >= self.first) & (further < end)
        further = np.sort(further[~is_old])
        further = further[np.diff(further, prepend=-1) > 0]
        self.further = further[~find_in_sorted(halo, further)[1]]
        self.ids = np.concatenate((np.arange(self.first, end), halo, self.further))
        self.new_ids = numbers.new_id[self.ids]
        self.new_bounds = numbers.bounds[part : part + 2]
        self.size = len(numbers.new_id)
        """Larger than any number of a node."""
        self.is_gone = self.new_ids < 0
        self.num_known = self.num_inner + len(halo)

    @property
    def is_inner(self) -> NDArray[np.bool_]:
        """Whether each known node is an inner node after the change."""
        first, end = self.new_bounds.tolist()
        return np.asarray((self.new_ids >= first) & (self.new_ids < end))

    def find(self, nodes: Ints) -> Ints:
        """Return the local numbers of known nodes."""
        local = nodes - self.first
        outside = (local < 0) | (local >= self.num_inner)
        asked = nodes[outside]
        in_halo, found = find_in_sorted(self.halo, asked)
        local[outside] = np.where(
            found,
            self.num_inner + in_halo,
            self.num_known + np.searchsorted(self.further, asked),
        )
        return np.asarray(local)

    def number(self, is_used: NDArray[np.bool_]) -> tuple[NDArray[np.int32], Ints]:
        """Return the new local number of each known node, and the new ids of the halo.

        The number of a node that is left out is undefined.

        Args:
            is_used: Whether a node is the source of an edge.
        """
        first, end = self.new_bounds.tolist()
        is_inner = self.is_inner
        in_halo = np.flatnonzero(is_used & ~is_inner & ~self.is_gone)
        order = in_halo[np.argsort(self.new_ids[in_halo], kind="stable")]
        if end - first + len(order) >= 2**31:
            raise InputError(
                f"{end - first + len(order):,} nodes of a partition with its halo, at most"
                f" {2**31 - 1:,} fit; partition into more parts"
            )
        local = np.full(len(self.ids), -1, np.int32)
        local[is_inner] = self.new_ids[is_inner] - first
        local[order] = np.arange(end - first, end - first + len(order))
        return local, self.new_ids[order]


class SortedEdges:
    """Edges sorted by destination, then source, by local numbers."""

    def __init__(self, source: LocalNodes, destination: LocalNodes, src: Array, dst: Array) -> None:
        self.source, self.destination, self.src, self.dst = source, destination, src, dst

    def find(self, edges: Edges) -> tuple[Ints, Ints, Ints]:
        """Return the positions of all copies of edges [n], their rows, and their numbers.

        A row is the edge's row in the table; each edge has its number of copies. Ends are local
        numbers before the change.
        """
        if not len(edges.src):
            return edges.src, edges.src, edges.src
        dst = self.destination.find(edges.dst)
        places, _, _ = self._places_at(np.unique(dst))
        keys = self.dst[places] * np.int64(self.source.size) + self.source.ids[self.src[places]]
        wanted = dst * self.source.size + edges.src
        begin, end = (np.searchsorted(keys, wanted, side) for side in ("left", "right"))
        counts = end - begin
        rows = np.repeat(np.arange(len(wanted)), counts)
        offset = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return places[np.repeat(begin, counts) + offset], rows, counts

    def find_insertions(self, new: Edges) -> tuple[Edges, Ints]:
        """Return new edges in sorted order, and for each the position before which it goes."""
        src, dst = self.source.find(new.src), self.destination.find(new.dst)
        new_src, size = self.source.new_ids[src], self.source.size
        order = np.lexsort((new_src, self.destination.new_ids[dst]))
        new, dst, new_src = new.take(order), dst[order], new_src[order]
        nodes, inverse = np.unique(dst, return_inverse=True)
        places, first, before = self._places_at(nodes)
        keys = self.dst[places] * np.int64(size) + self.source.new_ids[self.src[places]]
        after = np.searchsorted(keys, dst * size + new_src, "right")
        return new, first[inverse] + after - before[inverse]

    def _places_at(self, nodes: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the places of all edges into some nodes, ascending.

        Also returns for each node its first place, and the number of returned places before it.
        """
        asked = nodes.astype(self.dst.dtype)
        first, end = (np.searchsorted(self.dst, asked, side) for side in ("left", "right"))
        counts = end - first
        before = np.cumsum(counts) - counts
        return np.repeat(first - before, counts) + np.arange(counts.sum()), first, before


def find_in_sorted(ascending: Ints, nodes: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the position of each node in ascending numbers, and whether it is one of them."""
    places = np.searchsorted(ascending, nodes)
    found = np.zeros(len(nodes), np.bool_)
    inside = places < len(ascending)
    found[inside] = ascending[places[inside]] == nodes[inside]
    return places, found
