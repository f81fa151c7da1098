"""Find the local numbers of halo nodes at their owners, for sites that read only their own folders.

A site knows the ids and owners of its halo nodes. It sends each owner the ids and gets back their
local numbers. An id that its owner does not hold, or that two sites hold (duplicate_ids.py), is an
error.

W workers, I inner nodes, H halo nodes of a worker.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from partitioning.directory.partition import PartNodes, UnresolvedHalo
from partitioning.errors import InputError
from retexo.arrays import IntArray
from retexo.comm.collectives import Communicator
from retexo.comm.received import check_announced
from retexo.comm.traffic_meter import SETUP
from retexo.comm.transport import PeerLost
from retexo.exchange.exchange_plan import exchange_bits, exchange_sorted_lists
from retexo.sites.duplicate_ids import find_duplicate_ids
from retexo.sites.ledger import record_requests

logger = logging.getLogger(__name__)

MAX_IDS_SHOWN = 3
"""Ids that an error message names."""


def resolve_halo(
    nodes: PartNodes,
    part_sizes: tuple[int, ...],
    comm: Communicator,
    max_rows_shared: float | None = None,
) -> PartNodes:
    """Ask the owners for the rows of the halo nodes there (halo_index).

    It keeps the rows that other sites ask for here, logs how many, and records them in the ledger.
    All workers call it.

    Args:
        nodes: of one type.
        max_rows_shared: the limit of retexo.sites.ledger.record_requests; None for none.

    Raises:
        InputError: a site asks for too many rows, the ledger cannot be used, or ids are wrong, and
            this site knows which.
        PeerLost: ids are wrong, and only another site knows which.
    """
    unresolved = nodes.unresolved_halo
    assert unresolved is not None
    ids = nodes.node_ids.numpy()
    owner = nodes.halo_owner.numpy()
    requested = np.split(
        unresolved.ids.numpy(), np.searchsorted(owner, np.arange(1, comm.world_size))
    )
    received = _exchange_ids(requested, comm)
    for peer, theirs in enumerate(received):
        if peer != comm.rank:
            of_type = f" of type {unresolved.kind}" if unresolved.kind else ""
            logger.info(
                "%s asks for %d of %d nodes%s",
                unresolved.sites[peer],
                len(theirs),
                len(ids),
                of_type,
            )
    if unresolved.ledger is not None:
        others = [peer for peer in range(comm.world_size) if peer != comm.rank]
        names = [unresolved.sites[peer] for peer in others]
        asked_for = [received[peer] for peer in others]
        record_requests(
            unresolved.ledger, names, asked_for, len(ids), max_rows_shared, unresolved.kind
        )
    is_held = [np.isin(theirs, ids) for theirs in received]
    exists = exchange_bits(is_held, [len(halo) for halo in requested], comm)
    dangling = [halo[~there] for halo, there in zip(requested, exists, strict=True)]
    _check(unresolved, dangling, find_duplicate_ids(ids, part_sizes, comm), comm)
    answers = [np.searchsorted(ids, theirs) for theirs in received]
    announced = list(zip(map(len, requested), part_sizes, strict=True))
    index = exchange_sorted_lists(answers, [len(ids)] * comm.world_size, announced, comm)
    return replace(
        nodes,
        halo_index=torch.from_numpy(np.concatenate(index)),
        unresolved_halo=None,
        asked_for=tuple(map(torch.from_numpy, answers)),
    )


def _exchange_ids(ids: Sequence[IntArray], comm: Communicator) -> list[IntArray]:
    """Send ascending ids to each peer, and return the ids from each peer.

    Their number and the first and last id are sent before them.
    """
    headers = [
        torch.tensor([len(ids_of_peer), *(ids_of_peer[[0, -1]] if len(ids_of_peer) else (0, -1))])
        for ids_of_peer in ids
    ]
    announced = [
        header.tolist() for header in comm.all_to_all(headers, [3] * comm.world_size, SETUP)
    ]
    for peer, (count, first, last) in enumerate(announced):
        check_announced(peer, "ids", count, max(0, last - first + 1))
    own = [header.tolist() for header in headers]
    lists = [ids_of_peer - first for ids_of_peer, (_, first, _) in zip(ids, own, strict=True)]
    limits = [last - first + 1 for _, first, last in own]
    received = exchange_sorted_lists(
        lists, limits, [(count, last - first + 1) for count, first, last in announced], comm
    )
    return [
        ids_of_peer + first for ids_of_peer, (_, first, _) in zip(received, announced, strict=True)
    ]


def _check(
    unresolved: UnresolvedHalo,
    dangling: list[IntArray],
    duplicate: list[IntArray],
    comm: Communicator,
) -> None:
    """Raise if ids are wrong at any site: InputError if this one knows which, else PeerLost.

    Every worker learns how many and at which sites; only the site that knows the ids names them.
    """
    counts = [[len(ids) for ids in wrong] for wrong in (dangling, duplicate)]
    everyone = comm.all_gather(torch.tensor(counts), SETUP)
    complaints = [
        f"{unresolved.where}: array `src`: {unresolved.sites[owner]} does not hold"
        f" {_list_ids(ids)}; correct `src_owner`, or remove these edges"
        for owner, ids in enumerate(dangling)
        if len(ids)
    ]
    complaints += [
        f"{unresolved.where}: array `node_id`: {unresolved.sites[peer]} also holds"
        f" {_list_ids(ids)}; an id has one owner, remove it at one of the two"
        for peer, ids in enumerate(duplicate)
        if len(ids)
    ]
    if complaints:
        raise InputError("; ".join(complaints))
    ranks = everyone.flatten(start_dim=1).any(dim=1).nonzero()[:, 0].tolist()
    if ranks:
        names = ", ".join(unresolved.sites[rank] for rank in ranks)
        raise PeerLost(
            f"{names} found wrong ids, and names them in its message; this site found none"
        )


def _list_ids(ids: IntArray) -> str:
    """Return the first ids as text, and how many more there are."""
    more = f" and {len(ids) - MAX_IDS_SHOWN} more" if len(ids) > MAX_IDS_SHOWN else ""
    return f"node {', '.join(map(str, ids[:MAX_IDS_SHOWN].tolist()))}{more}"
