"""What sites that read only their own folders ask each other at the start: which row an id is at its owner.

A site knows the ids of its halo nodes and who owns them. It sends each owner these ids, and gets back the rows. An id
that its owner does not hold is an error, and so is an id that two sites hold (overlap.py).

W workers, I inner nodes, H halo nodes of a worker.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from partitioning.directory.types import Partition, UnresolvedHalo
from partitioning.errors import InputError
from retexo.arrays import IntArray
from retexo.comm.collectives import Communicator, PeerLost
from retexo.exchange.coding.elias_fano import code_size, read_ascending, write_ascending
from retexo.sites.shared_ids import SETUP, ids_held_twice, swap_bits

logger = logging.getLogger(__name__)

SHOWN = 3
"""Ids that an error names."""


def ask_owners(partition: Partition, part_sizes: tuple[int, ...], comm: Communicator) -> Partition:
    """The partition with halo_index, as its owners say.

    Where ids contradict, every worker fails: with InputError the one that can name them, with PeerLost the others.
    """
    assert partition.unresolved_halo is not None
    ids = partition.node_ids.numpy()
    owner = partition.halo_owner.numpy()
    asked = np.split(partition.unresolved_halo.ids.numpy(), np.searchsorted(owner, np.arange(1, comm.world_size)))
    questions = _swap_ids(asked, comm)
    for peer, wanted in enumerate(questions):
        if peer != comm.rank:
            logger.info("%s asks for %d of %d nodes", partition.unresolved_halo.sites[peer], len(wanted), len(ids))
    held = [np.isin(wanted, ids) for wanted in questions]
    found = swap_bits(held, [len(wanted) for wanted in asked], comm)
    dangling = [wanted[~there] for wanted, there in zip(asked, found, strict=True)]
    _check(partition.unresolved_halo, dangling, ids_held_twice(ids, part_sizes, comm), comm)
    answers = [write_ascending(np.searchsorted(ids, wanted), len(ids)) for wanted in questions]
    sizes = [code_size(len(wanted), size) for wanted, size in zip(asked, part_sizes, strict=True)]
    codes = comm.all_to_all([torch.from_numpy(code) for code in answers], sizes, SETUP)
    rows = [
        read_ascending(code.numpy(), len(wanted), size)
        for code, wanted, size in zip(codes, asked, part_sizes, strict=True)
    ]
    return replace(partition, halo_index=torch.from_numpy(np.concatenate(rows)), unresolved_halo=None)


def _swap_ids(asked: Sequence[IntArray], comm: Communicator) -> list[IntArray]:
    """Send ascending ids to each peer; by peer, those that it sent here. Number, first and last id go before."""
    heads = [torch.tensor([len(ids), *(ids[[0, -1]] if len(ids) else (0, -1))]) for ids in asked]
    announced = [head.tolist() for head in comm.all_to_all(heads, [3] * comm.world_size, SETUP)]
    codes = [
        torch.from_numpy(write_ascending(ids - first, last - first + 1))
        for ids, (_, first, last) in zip(asked, map(Tensor.tolist, heads), strict=True)
    ]
    received = comm.all_to_all(codes, [code_size(count, last - first + 1) for count, first, last in announced], SETUP)
    return [
        read_ascending(code.numpy(), count, last - first + 1) + first
        for code, (count, first, last) in zip(received, announced, strict=True)
    ]


def _check(asked: UnresolvedHalo, dangling: list[IntArray], twice: list[IntArray], comm: Communicator) -> None:
    """Every worker learns how many ids are wrong, and where; which, only the site that knows them already."""
    counts = [[len(ids) for ids in wrong] for wrong in (dangling, twice)]
    everyone = comm.all_gather(torch.tensor(counts), SETUP)
    complaints = [
        f"{asked.file}: array `src`: {asked.sites[owner]} does not hold {_some(ids)}; correct `src_owner`, "
        "or leave these edges out"
        for owner, ids in enumerate(dangling)
        if len(ids)
    ]
    complaints += [
        f"{asked.file}: array `node_id`: {asked.sites[peer]} holds {_some(ids)}, too; an id has one owner, "
        "leave it out at one of the two"
        for peer, ids in enumerate(twice)
        if len(ids)
    ]
    if complaints:
        raise InputError("; ".join(complaints))
    ranks = everyone.flatten(start_dim=1).any(dim=1).nonzero()[:, 0].tolist()
    if ranks:
        names = ", ".join(asked.sites[rank] for rank in ranks)
        raise PeerLost(f"ids at {names} contradict other sites', and its message names them; here nothing was found")


def _some(ids: IntArray) -> str:
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return f"node {', '.join(map(str, ids[:SHOWN].tolist()))}{more}"
