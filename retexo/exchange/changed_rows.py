"""Exchange of the boundary rows that changed since an earlier exchange of the same rows.

Owner and receiver of a boundary remember which rows the receiver holds, by the numbers that the
owner's nodes had then (`Held`). After a change of the partitions each owner tells which of its
nodes are gone and which are new; the others keep their order, so that every receiver can renumber
what it holds. It then names the rows that it needs and lacks, and those that it needs no longer.
From then on a layer costs the places and the values of the rows that changed.

W workers, I inner nodes, H halo nodes of this worker, F row width; "former" is before the change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partitioning.directory.partition import Partition
from partitioning.links.id_files import find_positions
from retexo.arrays import IntArray, Mask
from retexo.comm.collectives import Communicator
from retexo.comm.received import check_announced, reading_from
from retexo.comm.traffic_meter import SETUP, MessageTag
from retexo.errors import TrainingError
from retexo.exchange.coding.elias_fano import decode_sorted, encode_sorted, encoded_size
from retexo.exchange.coding.rows import Encoding, RowFormat, decode, encode, row_sizes
from retexo.exchange.exchange_plan import exchange_sorted_lists

ENCODINGS: tuple[Encoding, ...] = ("dense", "sparse")
HEADER_VALUES = 3
"""int64 of a header: rows, bytes of their values, index in ENCODINGS."""


def keeps_order(former: IntArray) -> bool:
    """Return whether the nodes that existed before are in the order of their former numbers;
    former: int64 [I], -1 for a new node.
    """
    return bool((np.diff(former[former >= 0]) > 0).all())


@dataclass(frozen=True, eq=False)
class Held:
    """Which boundary rows are kept from an earlier exchange: rows of this worker at its peers
    (`sent`), and rows of peers at this worker (the halo).
    """

    num_inner: int
    """I"""
    sent: tuple[IntArray, ...]
    """By peer the inner nodes whose rows it holds, ascending."""
    halo_owner: IntArray
    """int64 [H] ascending."""
    halo_index: IntArray
    """int64 [H] number at the owner, ascending within an owner."""

    @classmethod
    def nothing(cls, world_size: int) -> "Held":
        """Return the state before the first exchange: no rows are kept anywhere."""
        none = np.zeros(0, np.int64)
        return cls(0, (none,) * world_size, none, none)


@dataclass(frozen=True, eq=False)
class ChangedRowsExchange:
    """Sends rows that changed, or that a peer lacks, and keeps the others where they are."""

    comm: Communicator
    sent: tuple[IntArray, ...]
    """By peer the inner nodes whose rows it needs, ascending."""
    lacks: tuple[Mask, ...]
    """By peer which of `sent` it lacks."""
    halo: tuple[slice, ...]
    """By peer the halo nodes that it owns."""
    former_halo: IntArray
    """int64 [H] the former place of each halo node; -1 where its rows are not held."""

    @classmethod
    def open(
        cls,
        partition: Partition,
        part_sizes: Sequence[int],
        former: IntArray,
        held: Held,
        comm: Communicator,
    ) -> "ChangedRowsExchange":
        """Agree with all other workers on the rows that each of them needs and lacks.

        Args:
            partition: this worker's.
            part_sizes: inner nodes by rank.
            former: int64 [I] the former place of each node; -1 for a new one; keeps_order holds.
            held: of the earlier exchange, by former numbers.
            comm: to the other workers.
        """
        former_of_peers = _exchange_former_numbers(former, held.num_inner, part_sizes, comm)
        owner, index = partition.halo_owner.numpy(), partition.halo_index.numpy()
        halo = _halo_slices(owner, comm.world_size)
        held_here = _halo_slices(held.halo_owner, comm.world_size)
        found = np.full(len(owner), -1)
        needed, dropped = [], []
        for place, kept, numbers in zip(halo, held_here, former_of_peers, strict=True):
            was = numbers[index[place]]
            known = held.halo_index[kept]
            at = find_positions(known, was)
            at[was < 0] = -1
            found[place] = np.where(at >= 0, at + kept.start, -1)
            needed.append(index[place][at < 0])
            dropped.append(_find_missing(len(known), at[at >= 0]))
        num_held = [each.stop - each.start for each in held_here]
        limits = list(zip(part_sizes, num_held, strict=True))
        requested = _exchange_requests(needed, dropped, limits, held, part_sizes[comm.rank], comm)
        number = np.full(held.num_inner, -1)
        number[former[former >= 0]] = np.flatnonzero(former >= 0)
        sent, lacks = [], []
        for peer, (new, gone) in enumerate(requested):
            still: IntArray = number[np.delete(held.sent[peer], gone)]
            nodes: IntArray = np.sort(np.concatenate((still, new)))
            _check_requests(peer, nodes, partition)
            sent.append(nodes)
            lacks.append(np.isin(nodes, new))
        return cls(comm, tuple(sent), tuple(lacks), tuple(halo), found)

    @property
    def num_rows(self) -> int:
        """Rows that this worker sends in a layer where all change."""
        return sum(map(len, self.sent))

    def run(self, rows: Tensor, changed: Tensor, tag: MessageTag) -> "ReceivedRows":
        """Exchange the rows of one layer.

        Args:
            rows: [I, F] of this worker.
            changed: bool [I] rows that differ from those of the earlier exchange.
            tag: of the messages.
        """
        comm, is_changed = self.comm, changed.numpy()
        messages = [
            _Message.build(rows, nodes, is_changed[nodes] | lacks)
            for nodes, lacks in zip(self.sent, self.lacks, strict=True)
        ]
        headers = [torch.tensor(each.header) for each in messages]
        announced = [
            each.tolist()
            for each in comm.all_to_all(
                headers, [HEADER_VALUES] * comm.world_size, MessageTag("setup", tag.layer)
            )
        ]
        sizes = []
        for peer, (place, (count, size, encoding)) in enumerate(
            zip(self.halo, announced, strict=True)
        ):
            num_halo = place.stop - place.start
            check_announced(peer, "changed rows", count, num_halo)
            most = count * (rows.shape[1] * rows.itemsize + 4)
            check_announced(peer, "bytes of changed rows", size, most)
            check_announced(peer, "as encoding", encoding, len(ENCODINGS) - 1)
            sizes.append(encoded_size(count, num_halo) + size)
        num_rows = sum(len(each.places) for each in messages)
        codes = [each.code for each in messages]
        num_bytes = sum(map(len, codes))
        received = comm.all_to_all(codes, sizes, tag, consume=True)
        places, values = [np.zeros(0, np.int64)], [rows[:0]]
        for peer, (place, (count, _, encoding), code) in enumerate(
            zip(self.halo, announced, received, strict=True)
        ):
            if not count:
                continue
            num_halo = place.stop - place.start
            end = encoded_size(count, num_halo)
            with reading_from(peer, "block of changed rows"):
                places.append(decode_sorted(code[:end].numpy(), count, num_halo) + place.start)
                row_format = RowFormat(ENCODINGS[encoding])
                shape = (count, rows.shape[1])
                values.append(decode(code[end:], shape, rows.dtype, row_format))
        return ReceivedRows(
            torch.from_numpy(np.concatenate(places)), torch.cat(values), num_rows, num_bytes
        )


@dataclass(frozen=True, eq=False)
class ReceivedRows:
    """The rows of halo nodes that arrived, and what this worker sent."""

    halo: Tensor
    """int64 [n] ascending."""
    values: Tensor
    """[n, F]"""
    num_rows_sent: int
    num_bytes_sent: int
    """With the places of the rows, without headers."""


@dataclass(frozen=True, eq=False)
class _Message:
    """Changed rows for one peer, encoded: their positions in the list of rows that the peer needs,
    then their values.
    """

    places: IntArray
    code: Tensor
    header: list[int]

    @classmethod
    def build(cls, rows: Tensor, nodes: IntArray, is_sent: Mask) -> "_Message":
        """Encode the rows of `nodes` that are sent to one peer, in the shorter of the two
        encodings.
        """
        places = np.flatnonzero(is_sent)
        chosen = rows[torch.from_numpy(nodes[places])]
        sizes = [int(row_sizes(chosen, RowFormat(each)).sum()) for each in ENCODINGS]
        encoding = int(np.argmin(sizes))
        code = encode(chosen, RowFormat(ENCODINGS[encoding]))
        where = torch.from_numpy(encode_sorted(places, len(nodes)))
        return cls(places, torch.cat((where, code)), [len(places), len(code), encoding])


def _halo_slices(owner: IntArray, world_size: int) -> list[slice]:
    """Return for each rank the slice of the halo nodes that it owns; owner: int64 [H],
    ascending.
    """
    ends = np.searchsorted(owner, np.arange(world_size + 1)).tolist()
    return [slice(first, end) for first, end in pairwise(ends)]


def _find_missing(count: int, places: IntArray) -> IntArray:
    """Return the numbers below `count` that do not occur in `places`, ascending."""
    is_other = np.ones(count, bool)
    is_other[places] = False
    return np.flatnonzero(is_other)


def _exchange_former_numbers(
    former: IntArray, num_former: int, part_sizes: Sequence[int], comm: Communicator
) -> list[IntArray]:
    """Return, by worker, the former number of each of its inner nodes, -1 for a new one. Workers
    send which of their former nodes are gone and which nodes are new.
    """
    is_new = former < 0
    gone = _find_missing(num_former, former[~is_new])
    new = np.flatnonzero(is_new)
    sizes = torch.tensor([num_former, len(gone), len(new)])
    announced = comm.all_gather(sizes, SETUP).tolist()
    for peer, ((before, num_gone, num_new), size) in enumerate(
        zip(announced, part_sizes, strict=True)
    ):
        check_announced(peer, "nodes that are new", num_new, size)
        check_announced(peer, "nodes that are gone", num_gone, before)
        check_announced(peer, "former nodes", before, size - num_new + num_gone)

    def share(values: IntArray, limit: int, of_peers: list[tuple[int, int]]) -> list[IntArray]:
        everyone = range(comm.world_size)
        return exchange_sorted_lists(
            [values for _ in everyone], [limit] * len(everyone), of_peers, comm
        )

    all_gone = share(gone, num_former, [(each[1], each[0]) for each in announced])
    all_new = share(
        new,
        len(former),
        [(each[2], size) for each, size in zip(announced, part_sizes, strict=True)],
    )
    numbers = []
    for peer, (size, (before, *_)) in enumerate(zip(part_sizes, announced, strict=True)):
        of_peer = np.full(size, -1)
        is_kept = np.ones(size, bool)
        is_kept[all_new[peer]] = False
        kept = np.delete(np.arange(before), all_gone[peer])
        if len(kept) != int(is_kept.sum()):
            raise TrainingError(f"rank {peer} names nodes twice as new or as gone; run again")
        of_peer[is_kept] = kept
        numbers.append(of_peer)
    return numbers


def _exchange_requests(
    needed: list[IntArray],
    dropped: list[IntArray],
    limits: Sequence[tuple[int, int]],
    held: Held,
    num_inner: int,
    comm: Communicator,
) -> list[tuple[IntArray, IntArray]]:
    """By peer the inner nodes that it needs and lacks, and the places in `held.sent` that it
    drops.

    Args:
        needed: by peer its nodes that this worker needs and lacks.
        dropped: by peer the places among its held rows that this worker drops.
        limits: by peer the nodes that it has, and its rows that this worker holds.
        held: of the earlier exchange.
        num_inner: nodes of this worker.
        comm: to the other workers.
    """
    counts = [torch.tensor(list(map(len, each))) for each in zip(needed, dropped, strict=True)]
    announced: list[Any] = [
        each.tolist() for each in comm.all_to_all(counts, [2] * comm.world_size, SETUP)
    ]
    for peer, (num_new, num_gone) in enumerate(announced):
        check_announced(peer, "nodes", num_new, num_inner)
        check_announced(peer, "rows to drop", num_gone, len(held.sent[peer]))
    new = exchange_sorted_lists(
        needed, [size for size, _ in limits], [(count, num_inner) for count, _ in announced], comm
    )
    gone = exchange_sorted_lists(
        dropped,
        [size for _, size in limits],
        [(count, len(sent)) for (_, count), sent in zip(announced, held.sent, strict=True)],
        comm,
    )
    return list(zip(new, gone, strict=True))


def _check_requests(peer: int, nodes: IntArray, partition: Partition) -> None:
    """Raise TrainingError unless the rows that a peer needs are those of distinct nodes, and, for a
    site, of nodes that the peer may ask for."""
    if (np.diff(nodes, prepend=-1) <= 0).any():
        raise TrainingError(
            f"rank {peer} needs rows of nodes that are gone, or twice; the prediction's state"
            " there is not of the same prediction as here: delete predict.state's folder"
        )
    if partition.asked_for is not None and not np.isin(nodes, partition.asked_for[peer]).all():
        raise TrainingError(
            f"rank {peer} requests rows of nodes that it did not request at start-up; "
            "they are not sent"
        )
