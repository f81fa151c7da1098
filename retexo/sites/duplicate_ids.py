"""Ids that two sites hold, by private set intersection: nobody else is shown an id.

The two sites of a pair share a key that no other site sees, and send keyed hashes of their ids to a third party, which
is another site (as in the server-aided protocols of Kamara et al., Financial Cryptography 2014). It tells each of them
which of its hashes the other has sent, too. So it learns how many ids the two have in common, which should be none, and
cannot test ids of its own choice, as it could without the key.

With two sites there is no third party: the second one compares, and could test.

W workers, I inner nodes of a worker.
"""

import hashlib
import secrets
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from retexo.arrays import IntArray, Mask
from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import SETUP

KEY_BYTES, HASH_BYTES = 16, 8


def find_duplicate_ids(
    ids: IntArray, part_sizes: tuple[int, ...], comm: Communicator
) -> list[IntArray]:
    """By peer, those of the ids, int64 [I], that it holds, too."""
    ranks = range(comm.world_size)
    lists = [_keyed_hashes(ids, key) if key else ids[:0] for key in _shared_keys(comm)]
    compared = [_compared(comm.rank, comparer, comm.world_size) for comparer in ranks]
    # Sorted, so that the order of the ids is not told.
    sent = [[np.sort(lists[peer]) for peer in peers] for peers in compared]
    announced = [
        part_sizes[peer] * len(_compared(peer, comm.rank, comm.world_size)) for peer in ranks
    ]
    received = comm.all_to_all([_joined(each) for each in sent], announced, SETUP)
    found = exchange_bits(
        _compare(received, part_sizes, comm), [len(ids) * len(peers) for peers in compared], comm
    )
    duplicate = [ids[:0]] * comm.world_size
    for comparer, peers in enumerate(compared):
        by_peer = found[comparer].reshape(len(peers), len(ids))
        for peer, hashes, both in zip(peers, sent[comparer], by_peer, strict=True):
            duplicate[peer] = ids[np.isin(lists[peer], hashes[both])]
    return duplicate


def _third_party(first: int, second: int, world_size: int) -> int:
    """Who compares the ids of two sites: the next one that is neither of them; of two sites the second."""
    if world_size == 2:
        return 1
    between = range(max(first, second) + 1, max(first, second) + 1 + world_size)
    return next(rank % world_size for rank in between if rank % world_size not in (first, second))


def _compared(rank: int, comparer: int, world_size: int) -> list[int]:
    """The peers whose ids the comparer compares with those of a rank."""
    return [
        peer
        for peer in range(world_size)
        if peer != rank and _third_party(rank, peer, world_size) == comparer
    ]


def _shared_keys(comm: Communicator) -> list[bytes]:
    """A key for each pair of workers, drawn by the lower rank; by peer, none for oneself."""
    drawn = [
        secrets.token_bytes(KEY_BYTES if peer > comm.rank else 0) for peer in range(comm.world_size)
    ]
    sizes = [KEY_BYTES if peer < comm.rank else 0 for peer in range(comm.world_size)]
    received = comm.all_to_all(
        [torch.tensor(list(key), dtype=torch.uint8) for key in drawn], sizes, SETUP
    )
    return [own or bytes(other.tolist()) for own, other in zip(drawn, received, strict=True)]


def _keyed_hashes(ids: IntArray, key: bytes) -> IntArray:
    """blake2b of each id, 8 bytes as an int64, [I]."""
    plain = ids.astype("<i8").tobytes()
    hashes = (
        hashlib.blake2b(plain[place : place + 8], digest_size=HASH_BYTES, key=key).digest()
        for place in range(0, len(plain), 8)
    )
    return np.frombuffer(b"".join(hashes), dtype="<i8").astype(np.int64)


def _joined(lists: list[IntArray]) -> Tensor:
    return torch.from_numpy(np.concatenate(lists) if lists else np.empty(0, np.int64))


def _compare(received: list[Tensor], part_sizes: tuple[int, ...], comm: Communicator) -> list[Mask]:
    """As the comparer: for each peer, one bit per hash that it sent, whether the pair's other site has sent it, too."""
    lists: dict[tuple[int, int], IntArray] = {}
    for rank, hashes in enumerate(received):
        for place, peer in enumerate(_compared(rank, comm.rank, comm.world_size)):
            lists[rank, peer] = hashes.numpy()[
                place * part_sizes[rank] : (place + 1) * part_sizes[rank]
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


def exchange_bits(bits: Sequence[Mask], counts: Sequence[int], comm: Communicator) -> list[Mask]:
    """Send bits to each peer; by peer, the `counts` bits that it sent here."""
    packed = [torch.from_numpy(np.packbits(each)) for each in bits]
    received = comm.all_to_all(packed, [(count + 7) // 8 for count in counts], SETUP)
    return [
        np.unpackbits(each.numpy(), count=count).astype(bool)
        for each, count in zip(received, counts, strict=True)
    ]
