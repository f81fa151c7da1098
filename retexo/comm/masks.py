"""Pairwise masks that hide shares of a sum (retexo.sites.secure_sums).

Shares are integers modulo 2^32 or 2^64, in which masks cancel exactly.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

FRACTION_BITS = 20
"""Bits after the binary point of a float in a sum."""
LARGEST = 2.0**36
"""Larger shares are clipped to it. A sum that reaches it becomes infinite."""


class PairwiseMasks:
    """Masks with which one worker hides its shares of sums; they cancel in the sum of all."""

    def __init__(self, rank: int, keys: dict[int, bytes]) -> None:
        """Begin with the first masks; keys: 32 bytes shared with each peer, by rank."""
        self._rank, self._keys = rank, keys
        self._number = 0

    def hide(self, shares: Sequence[Tensor]) -> list[Tensor]:
        """Return copies of this worker's shares of one message as integers, masks added.

        Each call takes new masks: all workers hide the same messages in the same order.
        """
        words = [to_words(share) for share in shares]
        self.add_to(words)
        return words

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
        stream: bytes = Cipher(ChaCha20(key, nonce), None).encryptor().update(bytes(count))
        return stream


def to_words(values: Tensor) -> Tensor:
    """Return a copy of a share on the host, as integers; floats in fixed point, int64.

    Values beyond -LARGEST or LARGEST are clipped to it; NaN becomes LARGEST.
    """
    if not values.dtype.is_floating_point:
        return values.detach().cpu().clone()
    finite = torch.nan_to_num(values.detach().cpu().double(), nan=LARGEST).clamp(-LARGEST, LARGEST)
    words: Tensor = (finite * 2**FRACTION_BITS).round().to(torch.int64)
    return words


def from_words(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a sum of shares in the type of the shares; inf where a float is beyond LARGEST."""
    if not dtype.is_floating_point:
        return words
    values = words.double() / 2**FRACTION_BITS
    sums: Tensor = torch.where(values.abs() < LARGEST, values, torch.inf).to(dtype)
    return sums
