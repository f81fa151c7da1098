"""Find ids that two sites hold, by private set intersection.

Server-aided protocol of Kamara et al., Financial Cryptography 2014. Each pair of sites shares a
secret key and sends keyed hashes of its ids to a third site, which tells each of the two which of
its hashes the other one has sent. The third site learns how many ids they have in common, which
should be none; without the key it cannot test ids. With two sites, the second one compares, and
could test ids.

W workers, I inner nodes of a worker.
"""

import hashlib
import secrets

import numpy as np
import torch
from torch import Tensor

from retexo.arrays import IntArray, Mask
from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import SETUP
from retexo.exchange.exchange_plan import exchange_bits

KEY_BYTES, HASH_BYTES = 16, 8


def find_duplicate_ids(
    ids: IntArray, part_sizes: tuple[int, ...], comm: Communicator
) -> list[IntArray]:
    """Return, by peer, the ids that it also holds; all workers call it. Draws random keys.

    Args:
        ids: int64 [I] of this worker's nodes.
        part_sizes: I of each worker.
        comm: to the other workers.
    """
    ranks = range(comm.world_size)
    lists = [_keyed_hashes(ids, key) if key else ids[:0] for key in _shared_keys(comm)]
    compared = [_compared(comm.rank, comparer, comm.world_size) for comparer in ranks]
    # Sorted, so that the order of the ids stays secret.
    sent = [[np.sort(lists[peer]) for peer in peers] for peers in compared]
    announced = [
        part_sizes[peer] * len(_compared(peer, comm.rank, comm.world_size)) for peer in ranks
    ]
    joined = [torch.from_numpy(np.concatenate([ids[:0], *hashes])) for hashes in sent]
    received = comm.all_to_all(joined, announced, SETUP)
    bits = exchange_bits(
        _compare(received, part_sizes, comm), [len(ids) * len(peers) for peers in compared], comm
    )
    duplicate = [ids[:0]] * comm.world_size
    for comparer, peers in enumerate(compared):
        by_peer = bits[comparer].reshape(len(peers), len(ids))
        for peer, hashes, both in zip(peers, sent[comparer], by_peer, strict=True):
            duplicate[peer] = ids[np.isin(lists[peer], hashes[both])]
    return duplicate


def _third_party(first: int, second: int, world_size: int) -> int:
    """Return the site that compares two others' ids: the next one; of two sites, the second."""
    if world_size == 2:
        return 1
    between = range(max(first, second) + 1, max(first, second) + 1 + world_size)
    return next(rank % world_size for rank in between if rank % world_size not in (first, second))


def _compared(rank: int, comparer: int, world_size: int) -> list[int]:
    """Return the peers whose ids `comparer` compares with those of `rank`."""
    return [
        peer
        for peer in range(world_size)
        if peer != rank and _third_party(rank, peer, world_size) == comparer
    ]


def _shared_keys(comm: Communicator) -> list[bytes]:
    """Exchange a random key for each pair of sites, drawn by the lower rank.

    Return the keys by peer, empty for this rank.
    """
    drawn = [
        secrets.token_bytes(KEY_BYTES if peer > comm.rank else 0) for peer in range(comm.world_size)
    ]
    sizes = [KEY_BYTES if peer < comm.rank else 0 for peer in range(comm.world_size)]
    received = comm.all_to_all(
        [torch.tensor(list(key), dtype=torch.uint8) for key in drawn], sizes, SETUP
    )
    return [own or bytes(other.tolist()) for own, other in zip(drawn, received, strict=True)]


def _keyed_hashes(ids: IntArray, key: bytes) -> IntArray:
    """Return BLAKE2b of each id, 8 bytes as an int64, [I]."""
    plain = ids.astype("<i8").tobytes()
    hashes = (
        hashlib.blake2b(plain[first : first + 8], digest_size=HASH_BYTES, key=key).digest()
        for first in range(0, len(plain), 8)
    )
    return np.frombuffer(b"".join(hashes), dtype="<i8").astype(np.int64)


def _compare(received: list[Tensor], part_sizes: tuple[int, ...], comm: Communicator) -> list[Mask]:
    """Compare, as the third site, the hashes of each pair of others.

    Args:
        received: by sender, its lists of hashes for its pairs, one after the other.
        part_sizes: hashes in each list, by sender.
        comm: to the other workers.

    Returns:
        For each peer, one bit per hash that it sent: whether the other site of the pair sent it.
    """
    lists: dict[tuple[int, int], IntArray] = {}
    for rank, hashes in enumerate(received):
        for index, peer in enumerate(_compared(rank, comm.rank, comm.world_size)):
            lists[rank, peer] = hashes.numpy()[
                index * part_sizes[rank] : (index + 1) * part_sizes[rank]
            ]
    return [
        np.concatenate(
            [
                np.isin(lists[rank, peer], lists[peer, rank])
                for peer in _compared(rank, comm.rank, comm.world_size)
            ]
            or [np.empty(0, np.bool_)]
        )
        for rank in range(comm.world_size)
    ]
