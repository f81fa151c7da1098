"""Sums of updates that hide their shares: fixed point modulo 2^32, under pairwise masks (retexo.sites.masks).

A share is rounded to integers of at most (2^31 - 1) / W, so that no sum overflows. What one of them is worth is a power
of two for each matrix, which all workers make alike from the sum of the round before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from partitioning.errors import InputError
from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.traffic_meter import MessageTag
from retexo.rounds.graph_info import GraphInfo
from retexo.sites.masks import agree_on_masks

HEADROOM = 64.0
"""By which a share may be larger than the largest entry of the sum before."""
GROWTH = 16.0
"""By which it may be larger still after a round in which an entry was clipped."""
SMALLEST = 2.0**-60
FEWEST_SITES = 3
"""Of two, each knows the other's share by subtraction."""


def hide_shares(comm: Communicator, graph_info: GraphInfo, about: str) -> None:
    """From here on every sum hides its shares. InputError where so few workers have one that a sum tells of it.

    about: what only this run has.
    """
    for name, count in zip(
        ("training", "validation", "test"), graph_info.num_ranks_by_split, strict=True
    ):
        if 0 < count < FEWEST_SITES:
            raise InputError(
                f"gradient.secure=true: {count} of {comm.world_size} partitions have {name} nodes, so that a sum tells "
                f"of one of them; have {FEWEST_SITES} with {name} nodes, or set gradient.secure=false"
            )
    comm.masks = agree_on_masks(comm, about)


@dataclass(frozen=True, eq=False)
class SecureSum:
    """A retexo.rounds.reduction.Summation."""

    comm: Communicator
    tag: MessageTag
    first_limit: float
    """Largest entry of a share in the first round; a power of two."""
    sizes: list[int] = field(default_factory=list)
    limits: Tensor = field(default_factory=lambda: torch.empty(0))
    """float64 [matrices] largest entry of a share in the next round, each a power of two."""

    def for_sizes(self, sizes: Sequence[int]) -> "SecureSum":
        limits = torch.full((len(sizes),), self.first_limit, dtype=torch.float64)
        return SecureSum(self.comm, self.tag, self.first_limit, list(sizes), limits)

    def buffers(self) -> list[Tensor]:
        return [self.limits]

    def __call__(self, update: Tensor, *exact: Tensor) -> None:
        words, clipped = self._words(update)
        self.comm.all_reduce([ReduceInput(each) for each in (words, *exact, clipped)], self.tag)
        total = words * self._units()
        update.copy_(total)
        peaks = torch.stack(
            [
                each.abs().max() if len(each) else each.sum()
                for each in torch.split(total, self.sizes)
            ]
        )
        # Sums may come near zero where shares do not: so it shrinks slowly, but for what is only a guess.
        least = torch.where(self.limits == self.first_limit, 0.0, self.limits / 2)
        wanted = torch.maximum(HEADROOM * peaks, least).clamp(min=SMALLEST).log2().ceil().exp2()
        self.limits.copy_(
            torch.where(clipped > 0, self.limits * GROWTH, wanted).clamp(max=1 / SMALLEST)
        )

    def rounded(self, update: Tensor) -> Tensor:
        return (self._words(update)[0] * self._units()).to(update)

    @property
    def _bits(self) -> int:
        return int(math.log2((2**31 - 1) // self.comm.world_size))

    def _units(self) -> Tensor:
        """What one is worth in each entry, float64 [n]."""
        return (self.limits * 2.0**-self._bits).repeat_interleave(torch.tensor(self.sizes))

    def _words(self, update: Tensor) -> tuple[Tensor, Tensor]:
        """A share as int32 [n], and how many entries of each matrix were clipped, int64 [matrices]."""
        exact = torch.nan_to_num(
            update.detach().cpu().double() / self._units(), nan=torch.inf
        ).round()
        clipped = [(each.abs() > 2**self._bits).sum() for each in torch.split(exact, self.sizes)]
        return exact.clamp(-(2**self._bits), 2**self._bits).to(torch.int32), torch.stack(clipped)
