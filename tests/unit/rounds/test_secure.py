"""Secure sums with pairwise masks: masks cancel, sums are close, shares stay hidden."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cryptography")

from retexo.comm import masks
from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.masks import LARGEST, PairwiseMasks
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import MessageTag
from retexo.sites.secure_sums import SecureSum, agree_on_masks

GRADIENTS = MessageTag("gradients", 0)
SIZES = [5, 40, 0, 3]


def run_with_masks(
    world: int, work: Callable[[Communicator], Any], *, hidden: bool = True
) -> list[Any]:
    def with_masks(comm: Communicator) -> Any:
        comm.masks = agree_on_masks(comm, "a run") if hidden else PairwiseMasks(comm.rank, {})
        return work(comm)

    return run_threads(world, with_masks)


def shares(world: int, rounds: int, scale: tuple[float, ...] = (1.0, 1e-3, 1.0, 100.0)) -> Tensor:
    """[world, rounds, n]; each matrix has values of another magnitude."""
    generator = torch.Generator().manual_seed(3)
    factor = torch.cat(
        [
            torch.full((size,), factor_of_matrix)
            for size, factor_of_matrix in zip(SIZES, scale, strict=True)
        ]
    )
    return torch.randn(world, rounds, sum(SIZES), generator=generator) * factor


def sum_securely(updates: Tensor, *, hidden: bool, first_limit: float = 1024.0) -> list[Tensor]:
    """Return by rank [rounds, n + 1]: the sums, and as the tail the sum of the round numbers."""

    def work(comm: Communicator) -> Tensor:
        way, sums = SecureSum(comm, GRADIENTS, first_limit).for_sizes(SIZES), []
        for number, update in enumerate(updates[comm.rank].clone()):
            tail = torch.tensor([float(number)])
            way(update, tail)
            sums.append(torch.cat((update, tail)))
        return torch.stack(sums)

    return run_with_masks(len(updates), work, hidden=hidden)


@pytest.mark.parametrize("world", [3, 8])
def test_masks_cancel_bit_for_bit(world: int) -> None:
    updates = shares(world, rounds=6)
    hidden, open_ = sum_securely(updates, hidden=True), sum_securely(updates, hidden=False)
    for sums in (*hidden, *open_):
        assert torch.equal(sums, hidden[0])
    assert hidden[0][:, -1].tolist() == [world * number for number in range(6)]


def test_a_sum_is_as_near_as_said() -> None:
    """After round 0 each matrix has its unit: 2^-29 of 64 to 128 times its largest last sum."""
    updates = shares(3, rounds=6)
    sums, exact = sum_securely(updates, hidden=True)[0][:, :-1], updates.double().sum(dim=0)
    for own, exact_sums in zip(sums.split(SIZES, dim=1), exact.split(SIZES, dim=1), strict=True):
        if own.numel():
            error = (own - exact_sums).abs().amax(dim=1)[1:]
            assert (error <= 8e-7 * exact_sums.abs().amax()).all()


def test_what_is_clipped_is_counted_and_fits_soon() -> None:
    """A share exceeds its limit a million times; the sum is clipped, and the limit grows."""
    updates = torch.full((3, 8, sum(SIZES)), 1e6)
    sums = sum_securely(updates, hidden=True, first_limit=1.0)[0][:, 0]
    assert sums[:6].tolist() == [3.0 * 16**number for number in range(5)] + [3e6]


def test_a_share_that_is_not_finite_does_not_pass_as_a_number() -> None:
    def work(comm: Communicator) -> float:
        loss = torch.tensor([torch.nan if comm.rank == 1 else 1.0])
        comm.all_reduce([ReduceInput(loss)], GRADIENTS)
        return float(loss)

    assert run_with_masks(3, work) == [torch.inf] * 3
    assert masks.from_words(
        masks.to_words(torch.tensor([LARGEST, -1.5])), torch.float32
    ).tolist() == [torch.inf, -1.5]


def test_the_rounded_share_is_what_is_added() -> None:
    updates = shares(3, rounds=2)

    def work(comm: Communicator) -> tuple[Tensor, Tensor]:
        way = SecureSum(comm, GRADIENTS, 1024.0).for_sizes(SIZES)
        for update in updates[comm.rank].clone():
            rounded = way.round_as_sent(update)
            way(update)
        return rounded.double(), update.double()

    by_rank = run_with_masks(3, work)
    total = sum(rounded for rounded, _ in by_rank)
    assert torch.allclose(total, by_rank[0][1], rtol=1e-6, atol=0)


# --- what travels ----------


def test_no_mask_is_used_twice() -> None:
    """Masks differ by message, by start with the same run id, and by pair."""

    def work(comm: Communicator) -> list[tuple[int, ...]]:
        words = [torch.zeros(8, dtype=torch.int32) for _ in range(3)]
        for message in words:
            comm.masks.add_to([message])  # type: ignore[union-attr]
        return [tuple(message.tolist()) for message in words]

    of_one_pair = [mask for _ in range(2) for mask in run_with_masks(2, work)[0]]
    assert len({*of_one_pair}) == 2 * 3
    # Were the masks of all pairs equal, those of the second worker would cancel.
    of_three = {mask for masks in run_with_masks(3, work) for mask in masks}
    assert len(of_three | {(0,) * 8}) == 3 * 3 + 1
