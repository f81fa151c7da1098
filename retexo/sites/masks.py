"""Secure aggregation: sums with pairwise masks that cancel only in the whole sum.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017,
section 4, without the recovery of dropouts: a lost worker ends the run. Of each pair of workers,
the lower rank adds and the other subtracts the same ChaCha20 stream. Its key comes from two X25519
keys, which are drawn at every start, also of a resumed run. Each message has its own nonce, so that
no mask is used twice.

Shares are integers modulo 2^32 or 2^64, in which masks cancel exactly. Public keys are exchanged
over the streams between the two workers, which with TLS have checked certificates. The run id and
the certificates of all members are part of the keys.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from retexo.comm.collectives import Communicator
from retexo.comm.received import reading_from
from retexo.comm.traffic_meter import SETUP
from retexo.sites.certificates import import_x509

FRACTION_BITS = 20
"""Bits after the binary point of a float in a sum."""
LARGEST = 2.0**36
"""Larger shares are clipped to it. A sum that reaches it becomes infinite."""


class PairwiseMasks:
    """The masks of one worker; a retexo.comm.transport.SumMasks."""

    def __init__(self, rank: int, keys: dict[int, bytes]) -> None:
        """Args:
        keys: 32 bytes shared with each peer, by rank.
        """
        self._rank, self._keys = rank, keys
        self._number = 0

    def hide(self, shares: Sequence[Tensor]) -> list[Tensor]:
        """Return copies of this worker's shares of one message as integers, masks added."""
        words = [to_words(share) for share in shares]
        self.add_to(words)
        return words

    def reveal(self, total: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert a sum of masked shares, in which the masks cancel, to the type of the shares."""
        return from_words(total, dtype)

    def add_to(self, shares: list[Tensor]) -> None:
        """Add this worker's masks to its shares of one message, in place; int32 or int64."""
        self._number += 1
        sizes = [share.numel() * share.element_size() for share in shares]
        for peer, key in self._keys.items():
            stream = torch.frombuffer(
                bytearray(self._pseudo_random_bytes(key, sum(sizes)) or b"\0"), dtype=torch.uint8
            )
            for share, piece in zip(shares, torch.split(stream[: sum(sizes)], sizes), strict=True):
                mask = piece.clone().view(share.dtype)
                share += mask if self._rank < peer else -mask

    def _pseudo_random_bytes(self, key: bytes, count: int) -> bytes:
        """Return bytes of the ChaCha20 stream of a key, for the next message."""
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        nonce = bytes(4) + self._number.to_bytes(12, "little")  # the first four bytes count blocks
        made: bytes = Cipher(ChaCha20(key, nonce), None).encryptor().update(bytes(count))
        return made


def agree_on_masks(comm: Communicator, context: str) -> PairwiseMasks:
    """Agree on a key with every other worker; sends 32 bytes to each.

    Args:
        context: a text that all workers of this run have, and no other run.
    """
    import_x509()
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    private = X25519PrivateKey.generate()
    own = torch.frombuffer(bytearray(private.public_key().public_bytes_raw()), dtype=torch.uint8)
    with comm.without_replay_log():  # a resumed run draws new keys
        public = [bytes(each.tolist()) for each in comm.all_gather(own, SETUP)]
    keys = {}
    for peer in range(comm.world_size):
        if peer != comm.rank:
            first, second = sorted((comm.rank, peer))
            info = f"retexo sums {first} {second} ".encode() + public[first] + public[second]
            with reading_from(peer, "public key"):
                secret = private.exchange(X25519PublicKey.from_public_bytes(public[peer]))
            keys[peer] = HKDF(hashes.SHA256(), 32, context.encode(), info).derive(secret)
    return PairwiseMasks(comm.rank, keys)


def to_words(values: Tensor) -> Tensor:
    """A copy of a share on the host, as integers; floats in fixed point, int64."""
    if not values.dtype.is_floating_point:
        return values.detach().cpu().clone()
    finite = torch.nan_to_num(values.detach().cpu().double(), nan=LARGEST).clamp(-LARGEST, LARGEST)
    words: Tensor = (finite * 2**FRACTION_BITS).round().to(torch.int64)
    return words


def from_words(words: Tensor, dtype: torch.dtype) -> Tensor:
    """A sum of shares in the type of the shares."""
    if not dtype.is_floating_point:
        return words
    values = words.double() / 2**FRACTION_BITS
    sums: Tensor = torch.where(values.abs() < LARGEST, values, torch.inf).to(dtype)
    return sums
