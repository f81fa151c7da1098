"""Writes one partition after a change: arrays that do not change are links to the former files.

The edges of a partition are sorted by destination, then source. Deleted edges are taken out and
new ones are put in at their places, so nothing is sorted again.

I inner nodes of a type, H halo nodes, E edges of a relation, all of one partition.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.array_checks import Array, check_split
from partitioning.directory.npy_files import edge_folder, load_array, node_folder
from partitioning.directory.partition import HALO_IDS
from partitioning.errors import InputError
from partitioning.graph_data import EDGE_DATA, MASKS, EdgeType, is_labelled
from partitioning.node_names import FILES as NAME_FILES
from partitioning.node_names import Names
from partitioning.update.change import Change, Edges, NodeChange, show_edge
from partitioning.update.held_graph import HeldDirectory
from partitioning.update.local_graph import LocalNodes, SortedEdges
from partitioning.update.renumbering import Renumbering

Ints = NDArray[np.int64]
OUT_DEGREES = "out_deg.npy"


@dataclass(eq=False)
class UpdatedPart:
    """What an updated partition has; counts by type and relation."""

    num_inner: dict[str, int] = field(default_factory=dict)
    halo: dict[str, Ints] = field(default_factory=dict)
    """[H] ids of halo nodes in the new partitioned graph."""
    num_edges: dict[EdgeType, int] = field(default_factory=dict)
    """Without self loops."""
    num_cut: dict[EdgeType, int] = field(default_factory=dict)
    split: dict[str, int] = field(default_factory=dict)
    """Nodes of train, val and test."""
    removed: dict[EdgeType, Ints] = field(default_factory=dict)
    """Sources of removed edges, by their numbers before."""
    added: dict[EdgeType, Ints] = field(default_factory=dict)
    """Sources of new edges, by their numbers before."""
    reweighted: dict[EdgeType, Ints] = field(default_factory=dict)
    """Sources of edges with another weight, by their numbers before."""


@dataclass(eq=False)
class _LocalEdges:
    """The edges of one relation after the change, by the local numbers of LocalNodes."""

    src: Array
    dst: Array
    data: dict[str, Array]
    are_changed: bool
    """Whether edges came or went."""
    is_data_changed: bool


@dataclass(frozen=True, eq=False)
class PartUpdater:
    """Updates the partitions of a directory, each by itself."""

    held: HeldDirectory
    change: Change
    numbers: Mapping[str, Renumbering]
    """By type."""
    folder: Path
    """The new directory."""

    @property
    def merges(self) -> bool:
        """Whether an edge cannot be there twice (duplicates=merge)."""
        return self.held.meta.request.get("duplicates") == "merge"

    def update(self, part: int) -> UpdatedPart:
        """Write one partition, all but out_deg.npy."""
        made = UpdatedPart()
        new = self.folder / f"part{part}"
        new.mkdir()
        nodes = {name: self._local_nodes(part, name) for name in self.held.types}
        edges = {name: self._change_edges(part, name, nodes, made) for name in self.held.relations}
        local = {
            name: nodes[name].number(self._find_sources(name, nodes[name], edges, made))
            for name in nodes
        }
        for relation, held_edges in edges.items():
            self._write_edges(part, relation, held_edges, local, made)
        for name, held_nodes in nodes.items():
            self._write_nodes(part, name, held_nodes, local[name][1], made)
        self._write_target(part, made)
        return made

    def _local_nodes(self, part: int, name: str) -> LocalNodes:
        """Number locally inner and halo nodes before, new nodes, and sources of new edges."""
        numbers = self.numbers[name]
        halo = load_array(node_folder(self.held.folder(part), name) / "halo.npy")
        sources = [
            _edges_into(part, each.new, self.numbers[relation[2]]).src
            for relation, each in self.change.edges.items()
            if relation[0] == name
        ]
        further = np.concatenate([numbers.new_nodes_of(part), *sources])
        return LocalNodes(numbers, part, halo.astype(np.int64), further)

    def _change_edges(
        self, part: int, name: EdgeType, nodes: Mapping[str, LocalNodes], made: UpdatedPart
    ) -> _LocalEdges:
        """Take out the edges that go, change others, and put in new ones."""
        source, destination = nodes[name[0]], nodes[name[2]]
        numbers, change = self.numbers[name[2]], self.change.edges[name]
        folder = edge_folder(self.held.folder(part), name)
        src, dst = (load_array(folder / f"{end}.npy") for end in ("src", "dst"))
        data = {
            each: load_array(folder / f"{each}.npy")
            for each in EDGE_DATA
            if (folder / f"{each}.npy").is_file()
        }
        order = SortedEdges(source, destination, src, dst)
        removed = self._find_edges(name, order, _edges_into(part, change.deleted, numbers))[0]
        changed = _edges_into(part, change.changed, numbers)
        rows, of_edge = self._find_edges(name, order, changed, once=True)
        made.reweighted[name] = changed.src if "edge_weight" in changed.data else changed.src[:0]
        for each, values in changed.data.items() if len(rows) else ():
            data[each] = np.array(data[each])
            data[each][rows] = values[of_edge]
        if source.is_gone.any() or destination.is_gone[: destination.num_inner].any():
            gone = source.is_gone[src]
            gone |= destination.is_gone[dst]
            gone[removed] = True
            removed = np.flatnonzero(gone)
        made.removed[name] = source.ids[src[removed]]
        if len(removed):
            stays = np.ones(len(src), np.bool_)
            stays[removed] = False
            src, dst = src[stays], dst[stays]
            data = {each: array[stays] for each, array in data.items()}
            order = SortedEdges(source, destination, src, dst)
        new = _edges_into(part, change.new, numbers)
        made.added[name] = new.src
        if self.merges:
            self._refuse_present(name, order, new)
        if len(new.src):
            new, places = order.find_insertions(new)
            src = np.insert(src, places, source.find(new.src).astype(np.int32))
            dst = np.insert(dst, places, destination.find(new.dst).astype(np.int32))
            data = {
                each: np.insert(array, places, new.data[each], axis=0)
                for each, array in data.items()
            }
        are_changed = bool(len(removed) or len(new.src))
        return _LocalEdges(src, dst, data, are_changed, bool(len(rows) and changed.data))

    def _find_edges(
        self, name: EdgeType, order: "SortedEdges", edges: Edges, *, once: bool = False
    ) -> tuple[Ints, Ints]:
        """Return the positions of all copies of edges, and the row of each in the table.

        Raises:
            InputError: an edge is not there; or, with `once`, it is there more than once.
        """
        places, rows, counts = order.find(edges)
        wrong = counts != 1 if once else counts == 0
        if wrong.any():
            row = int(wrong.argmax())
            shown = show_edge(self.held, name, int(edges.src[row]), int(edges.dst[row]))
            raise InputError(
                f"{edges.where}: {shown} is not in the graph; leave it out"
                if counts[row] == 0
                else f"{edges.where}: {shown} is there {counts[row]} times; delete it and add it"
                " anew"
            )
        return places, rows

    def _refuse_present(self, name: EdgeType, order: "SortedEdges", new: Edges) -> None:
        """InputError for a new edge that is there already, where edges are merged."""
        known = [self.numbers[name[end]].num_old for end in (0, 2)]
        old = new.take((new.src < known[0]) & (new.dst < known[1]))
        counts = order.find(old)[2]
        if counts.any():
            row = int(counts.argmax())
            shown = show_edge(self.held, name, int(old.src[row]), int(old.dst[row]))
            raise InputError(
                f"{new.where}: {shown} is in the graph already, which was made with"
                " duplicates=merge; change its weight by update.changed_edges"
            )

    def _find_sources(
        self,
        name: str,
        nodes: LocalNodes,
        edges: Mapping[EdgeType, _LocalEdges],
        made: UpdatedPart,
    ) -> NDArray[np.bool_]:
        """Return which known nodes of a type are sources of edges into the changed partition."""
        used = np.zeros(len(nodes.ids), np.bool_)
        relations = [each for each in edges if each[0] == name]
        if any(len(made.removed[each]) for each in relations):
            for each in relations:
                used[edges[each].src] = True
            return used
        used[: nodes.num_known] = True
        for each in relations:
            used[nodes.find(made.added[each])] = True
        return used

    def _write_edges(
        self,
        part: int,
        name: EdgeType,
        edges: _LocalEdges,
        local: Mapping[str, tuple[NDArray[np.int32], Ints]],
        made: UpdatedPart,
    ) -> None:
        """Write the edges of a relation with the new local numbers, or link unchanged files."""
        old, new = (
            edge_folder(each, name) for each in (self.held.folder(part), self._new_folder(part))
        )
        new.mkdir(parents=True, exist_ok=True)
        num_inner = int(np.diff(self.numbers[name[0]].bounds[part : part + 2])[0])
        for end, of_type, ends in (("src", name[0], edges.src), ("dst", name[2], edges.dst)):
            numbers = local[of_type][0]
            same = _is_identity(numbers, self._count_known(part, of_type, end))
            if same and not edges.are_changed:
                _link(old / f"{end}.npy", new / f"{end}.npy")
                written = ends
            else:
                written = numbers[ends]
                np.save(new / f"{end}.npy", written)
            if end == "src":
                made.num_cut[name] = int(np.count_nonzero(written >= num_inner))
        for each, array in edges.data.items():
            if edges.are_changed or edges.is_data_changed:
                np.save(new / f"{each}.npy", array)
            else:
                _link(old / f"{each}.npy", new / f"{each}.npy")
        made.num_edges[name] = len(edges.src)

    def _count_known(self, part: int, of_type: str, end: str) -> int:
        """Return how many local numbers an end of an edge could have before the change."""
        inner = int(np.diff(self.numbers[of_type].old_bounds[part : part + 2])[0])
        if end == "dst":
            return inner
        return inner + len(load_array(node_folder(self.held.folder(part), of_type) / "halo.npy"))

    def _write_nodes(
        self, part: int, name: str, nodes: LocalNodes, halo: Ints, made: UpdatedPart
    ) -> None:
        """Write features, ids, names and halo of a type's nodes, or link unchanged files."""
        old, new = (
            node_folder(each, name) for each in (self.held.folder(part), self._new_folder(part))
        )
        new.mkdir(parents=True, exist_ok=True)
        change, rows = self.change.nodes[name], self._find_row_changes(part, name)
        self._write_rows(old, new, "feat", rows)
        self._write_rows(old, new, "orig_id", rows, of_new=change.new_ids)
        if (old / NAME_FILES[0]).is_file():
            self._write_names(old, new, change, rows)
        _write_or_link(old / "halo.npy", new / "halo.npy", halo)
        if (old / HALO_IDS).is_file():
            numbers = self.numbers[name]
            ids = np.empty(int(numbers.bounds[-1]), np.int64)
            stays = numbers.new_id >= 0
            all_ids = np.concatenate((self.held.types[name].ids, change.new_ids))
            ids[numbers.new_id[stays]] = all_ids[stays]
            _write_or_link(old / HALO_IDS, new / HALO_IDS, ids[halo])
        made.num_inner[name] = int(np.diff(nodes.new_bounds)[0])
        made.halo[name] = halo

    def _write_target(self, part: int, made: UpdatedPart) -> None:
        """Write labels and masks of the target's inner nodes."""
        target = self.held.target
        old, new = self.held.folder(part), self._new_folder(part)
        rows = self._find_row_changes(part, target)
        label = load_array(old / "label.npy")
        unlabelled = np.nan if label.dtype.kind == "f" else -1
        num_new = len(self.change.nodes[target].new_ids)
        blank = np.full((num_new, *label.shape[1:]), unlabelled, label.dtype)
        label = self._write_rows(old, new, "label", rows, of_new=blank)
        masks = {
            name: self._write_rows(old, new, name, rows, of_new=np.zeros(num_new, np.bool_))
            for name in MASKS
        }
        if rows.are_changed:
            check_split(masks, is_labelled(label), f"part {part} after the update")
        made.split = {name.removesuffix("_mask"): int(masks[name].sum()) for name in MASKS}

    def _find_row_changes(self, part: int, name: str) -> "_RowChanges":
        """Return which rows of a type's inner nodes stay, get new values, or are new."""
        numbers, change = self.numbers[name], self.change.nodes[name]
        first, end = numbers.old_bounds[part : part + 2].tolist()
        here = np.flatnonzero((change.changed >= first) & (change.changed < end))
        return _RowChanges(
            stays=numbers.new_id[first:end] >= 0,
            changed=change.changed[here] - first,
            changed_rows=here,
            new_rows=np.flatnonzero(numbers.parts_of_new == part) - change.first_new,
            change=change,
        )

    def _write_rows(
        self, old: Path, new: Path, name: str, rows: "_RowChanges", of_new: Array | None = None
    ) -> Array:
        """Write an array with a row for each inner node; return it.

        Args:
            of_new: [n] rows of new nodes where the change has none.
        """
        values = rows.change.changed_values.get(name)
        is_same = rows.stays.all() and not len(rows.new_rows)
        if is_same and (values is None or not len(rows.changed)):
            _link(old / f"{name}.npy", new / f"{name}.npy")
            return load_array(old / f"{name}.npy")
        array = load_array(old / f"{name}.npy")
        if values is not None and len(rows.changed):
            array = np.array(array)
            array[rows.changed] = values[rows.changed_rows]
        if not rows.stays.all():
            array = array[rows.stays]
        if len(rows.new_rows):
            given = rows.change.new_values.get(name, of_new)
            assert given is not None
            array = np.concatenate((array, given[rows.new_rows].astype(array.dtype)))
        np.save(new / f"{name}.npy", array)
        return array

    def _write_names(self, old: Path, new: Path, change: NodeChange, rows: "_RowChanges") -> None:
        """Write the names of nodes, or link the former files if no node changed."""
        if rows.stays.all() and not len(rows.new_rows):
            for file in NAME_FILES:
                _link(old / file, new / file)
            return
        names = Names.read(old)
        assert names is not None
        names = names.take(np.flatnonzero(rows.stays))
        if len(rows.new_rows):
            assert change.new_names is not None
            names = names.concatenate(change.new_names.take(rows.new_rows))
        names.save(new)

    def _new_folder(self, part: int) -> Path:
        """Return the folder of a partition in the new directory."""
        return self.folder / f"part{part}"


@dataclass(frozen=True, eq=False)
class _RowChanges:
    """Which rows of a type's inner nodes stay, get new values, or are new."""

    stays: NDArray[np.bool_]
    """[I] before the change."""
    changed: Ints
    """Rows before the change with new values."""
    changed_rows: Ints
    """And their rows in the change."""
    new_rows: Ints
    """Rows of new nodes in the change."""
    change: NodeChange

    @property
    def are_changed(self) -> bool:
        return bool(len(self.changed) or len(self.new_rows))


def _edges_into(part: int, edges: Edges, numbers: Renumbering) -> Edges:
    """Return the edges whose destination is in a partition."""
    return edges.take(numbers.part_of(edges.dst) == part) if len(edges.dst) else edges


def _is_identity(numbers: NDArray[np.int32], count: int) -> bool:
    return bool((numbers[:count] == np.arange(count)).all())


def _write_or_link(old: Path, new: Path, array: Array) -> None:
    """Write an array, or link the former file where it is the same."""
    if np.array_equal(load_array(old), array):
        _link(old, new)
    else:
        np.save(new, array)


def _link(old: Path, new: Path) -> None:
    """Give a file that stays another name; a copy where the file system has no links."""
    try:
        os.link(old, new)
    except OSError:
        shutil.copy2(old, new)


def update_degrees(
    held: HeldDirectory,
    folder: Path,
    name: EdgeType,
    numbers: Renumbering,
    parts: list[UpdatedPart],
) -> None:
    """Write the out-degrees of a plain graph, which depend on the edges of all partitions.

    Degrees are counts; sums of weights are added up again for the sources that changed.
    """
    before = [load_array(held.folder(part) / OUT_DEGREES) for part in range(len(parts))]
    inner = np.diff(numbers.old_bounds)
    degree = np.zeros(len(numbers.new_id), before[0].dtype)
    degree[: numbers.num_old] = np.concatenate(
        [each[:count] for each, count in zip(before, inner, strict=True)]
    )
    removed, added, reweighted = (
        np.concatenate([getattr(part, field_name)[name] for part in parts])
        for field_name in ("removed", "added", "reweighted")
    )
    after = np.zeros(int(numbers.bounds[-1]), degree.dtype)
    stays = numbers.new_id >= 0
    if held.relations[name].is_weighted:
        after[numbers.new_id[stays]] = degree[stays]
        touched = numbers.new_id[np.concatenate((removed, added, reweighted))]
        touched = np.unique(touched[touched >= 0])
        after[touched] = _sum_weights(folder, numbers, parts, touched)
    else:
        degree += np.bincount(added, minlength=len(degree))
        degree -= np.bincount(removed, minlength=len(degree))
        after[numbers.new_id[stays]] = degree[stays]
    for part, made in enumerate(parts):
        first, end = numbers.bounds[part : part + 2]
        degrees = np.concatenate((after[first:end], after[made.halo[name[0]]]))
        place = f"part{part}/{OUT_DEGREES}"
        _write_or_link(held.path / place, folder / place, degrees)


def _sum_weights(
    folder: Path, numbers: Renumbering, parts: list[UpdatedPart], touched: Ints
) -> NDArray[Any]:
    """Add up the weights of the edges out of some nodes, [n] by new ids, in the new directory."""
    sums = np.zeros(len(touched))
    place = np.full(int(numbers.bounds[-1]), -1)
    place[touched] = np.arange(len(touched))
    for part, made in enumerate(parts):
        ids = np.concatenate((np.arange(*numbers.bounds[part : part + 2]), made.halo[""]))
        rows = place[ids][load_array(folder / f"part{part}" / "src.npy")]
        weight = load_array(folder / f"part{part}" / "edge_weight.npy")
        chosen = rows >= 0
        sums += np.bincount(rows[chosen], weight[chosen], minlength=len(touched))
    return sums
