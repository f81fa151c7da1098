"""Secure aggregation: sums with pairwise masks that cancel only in the whole sum.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017,
section 4, without the recovery of dropouts: a lost worker ends the run. Of each pair of workers,
the lower rank adds and the other subtracts the same ChaCha20 stream (retexo.comm.masks). Its key
comes from two X25519 keys, which are drawn at every start, also of a resumed run. Each message has
its own nonce, so that no mask is used twice. Public keys are exchanged over the streams between the
two workers, which with TLS have checked certificates. The run id and the names of all members are
part of the keys.

Shares of updates are in fixed point modulo 2^32. A share is rounded to integers of at most
(2^31 - 1) / W, so that no sum overflows. The unit of each matrix is a power of two. All workers
derive it from the sum of the previous round.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from partitioning.errors import InputError, require_packages
from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.masks import PairwiseMasks
from retexo.comm.received import reading_from
from retexo.comm.traffic_meter import SETUP, MessageTag

HEADROOM = 64.0
"""Factor by which a share may exceed the largest entry of the previous sum."""
GROWTH = 16.0
"""Factor by which the limit grows after a round in which an entry was clipped."""
SMALLEST = 2.0**-60
"""Lower bound of the limits; its reciprocal is the upper bound."""
FEWEST_SITES = 3
"""With two sites, each would know the other's share by subtraction."""


def hide_shares(comm: Communicator, num_ranks_by_split: Sequence[int], context: str) -> None:
    """Hide the shares of every sum from here on: agree on `comm.masks`; all workers call it.

    Args:
        num_ranks_by_split: the number of workers with training, validation and test nodes.
        context: a text that all workers of this run have, and no other run.

    Raises:
        InputError: so few workers have such nodes that a sum reveals one's share, or the package
            cryptography is not installed.
    """
    for name, count in zip(("training", "validation", "test"), num_ranks_by_split, strict=True):
        if 0 < count < FEWEST_SITES:
            raise InputError(
                f"gradient.secure=true: {count} of {comm.world_size} partitions have {name} nodes,"
                f" so that a sum reveals the share of one of them; have {FEWEST_SITES} with {name}"
                " nodes, or set gradient.secure=false"
            )
    comm.masks = agree_on_masks(comm, context)


def agree_on_masks(comm: Communicator, context: str) -> PairwiseMasks:
    """Agree on a random key with every other worker; sends 32 bytes to each.

    Args:
        context: a text that all workers of this run have, and no other run.

    Raises:
        InputError: the package cryptography is not installed.
        TrainingError: a worker sends an invalid key.
    """
    require_packages("gradient.secure=true", "sites", "cryptography")
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    private = X25519PrivateKey.generate()
    own = torch.frombuffer(bytearray(private.public_key().public_bytes_raw()), dtype=torch.uint8)
    with comm.without_replay_log():  # a resumed run draws new keys
        public = [bytes(key.tolist()) for key in comm.all_gather(own, SETUP)]
    keys = {}
    for peer in range(comm.world_size):
        if peer != comm.rank:
            first, second = sorted((comm.rank, peer))
            info = f"retexo sums {first} {second} ".encode() + public[first] + public[second]
            with reading_from(peer, "public key"):
                secret = private.exchange(X25519PublicKey.from_public_bytes(public[peer]))
            keys[peer] = HKDF(hashes.SHA256(), 32, context.encode(), info).derive(secret)
    return PairwiseMasks(comm.rank, keys)


@dataclass(frozen=True, eq=False)
class SecureSum:
    """A retexo.rounds.reduction.Summation of one update after another, of n entries in matrices."""

    comm: Communicator
    tag: MessageTag
    first_limit: float
    """Largest entry of a share in the first round; a power of two."""
    sizes: list[int] = field(default_factory=list)
    """Entries of each matrix."""
    limits: Tensor = field(default_factory=lambda: torch.empty(0))
    """float64 [matrices], the largest entry of a share in the next round, each a power of two."""

    def for_sizes(self, sizes: Sequence[int]) -> "SecureSum":
        """Return a summation of updates of matrices of these sizes (Summation.for_sizes)."""
        limits = torch.full((len(sizes),), self.first_limit, dtype=torch.float64)
        return SecureSum(self.comm, self.tag, self.first_limit, list(sizes), limits)

    def buffers(self) -> list[Tensor]:
        """Return the limits, which persist between rounds."""
        return [self.limits]

    def __call__(self, update: Tensor, *exact: Tensor) -> None:
        """Sum over all workers in place: `update` in fixed point of 32 bits, clipped to the limits.

        Integers of `exact` are not rounded, floats have retexo.comm.masks.FRACTION_BITS. Then the
        limits of the next round are chosen.
        """
        words, clipped = self._words(update)
        self.comm.all_reduce([ReduceInput(part) for part in (words, *exact, clipped)], self.tag)
        total = words * self._units()
        update.copy_(total)
        peaks = torch.stack(
            [
                part.abs().max() if len(part) else part.sum()
                for part in torch.split(total, self.sizes)
            ]
        )
        # Sums may be near zero where shares are not: limits but the first shrink slowly.
        least = torch.where(self.limits == self.first_limit, 0.0, self.limits / 2)
        scales = torch.maximum(HEADROOM * peaks, least).clamp(min=SMALLEST).log2().ceil().exp2()
        self.limits.copy_(
            torch.where(clipped > 0, self.limits * GROWTH, scales).clamp(max=1 / SMALLEST)
        )

    def round_as_sent(self, update: Tensor) -> Tensor:
        """Return an update, [n], in the fixed point of this round."""
        return (self._words(update)[0] * self._units()).to(update)

    @property
    def _bits(self) -> int:
        """Return the bits of a share without sign, so that the sum over workers fits into 32."""
        return int(math.log2((2**31 - 1) // self.comm.world_size))

    def _units(self) -> Tensor:
        """Return the value of the integer 1 in each entry, float64 [n]."""
        return (self.limits * 2.0**-self._bits).repeat_interleave(torch.tensor(self.sizes))

    def _words(self, update: Tensor) -> tuple[Tensor, Tensor]:
        """Convert a share to int32 [n]; count its clipped entries by matrix, int64 [matrices]."""
        exact = torch.nan_to_num(
            update.detach().cpu().double() / self._units(), nan=torch.inf
        ).round()
        clipped = [(part.abs() > 2**self._bits).sum() for part in torch.split(exact, self.sizes)]
        return exact.clamp(-(2**self._bits), 2**self._bits).to(torch.int32), torch.stack(clipped)
