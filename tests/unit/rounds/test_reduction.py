"""Sum of the updates of a round: rounded, and as low-rank factors."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.message_format import BLOCK, WireFormat
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import MessageTag
from retexo.rounds.parameters import FlatParameters, find_used_rows
from retexo.rounds.reduction import (
    AllReduce,
    PowerSGDReduction,
    build_reduction,
)
from retexo.settings.communication_settings import GradientSettings

SETUP, GRADIENTS = MessageTag("setup", 1), MessageTag("gradients", 1)
F64 = torch.float64
TAIL = 8


class Model(nn.Module):
    """A weight [12, 10], a bias [10] and a small weight [2, 2]: 134 parameters."""

    SIZE = 120 + 10 + 4

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(12, 10))
        self.bias = nn.Parameter(torch.zeros(10))
        self.small = nn.Parameter(torch.zeros(2, 2))


@dataclass(frozen=True)
class Way:
    """Settings of a sum; rank 0 means no low-rank factors."""

    rank: int = 0
    wire: WireFormat | None = None
    used: tuple[bool, ...] | None = None
    """Rows of the first weight."""


@dataclass(frozen=True, eq=False)
class Added:
    """One worker's state after some rounds."""

    sums: Tensor
    """[rounds, P]"""
    tails: Tensor
    """[rounds, TAIL]"""
    error: Tensor
    """[12, 10] PowerSGD error of the first weight."""
    bytes_by_peer: list[int]
    """Bytes by peer."""


def sum_shares(shares: Tensor, way: Way) -> list[Added]:
    """Sum shares [W, rounds, P]; the tail of rank r in round n is r + n / 2 everywhere."""
    world, rounds, _ = shares.shape

    def work(comm: Communicator) -> Added:
        module = Model().to(shares.dtype)
        used: Mapping[nn.Parameter, Tensor] = (
            {} if way.used is None else {module.weight: torch.tensor(way.used)}
        )
        flat = FlatParameters(module, torch.zeros(Model.SIZE, dtype=shares.dtype), used)
        wire = AllReduce(comm, GRADIENTS, way.wire, frozenset())
        compression = "powersgd" if way.rank else "none"
        settings = GradientSettings("sync", "fp32", compression, max(way.rank, 1))
        reduction = build_reduction(settings, flat, wire)
        sums, tails = [], []
        for number in range(rounds):
            flat.gradient.copy_(shares[comm.rank, number])
            tail = torch.full((TAIL,), comm.rank + number / 2, dtype=shares.dtype)
            reduction.reduce(tail)
            sums.append(flat.gradient.clone())
            tails.append(tail)
        error = (
            reduction._low[0].error
            if isinstance(reduction, PowerSGDReduction) and reduction._low
            else torch.zeros(12, 10)
        )
        return Added(
            torch.stack(sums),
            torch.stack(tails),
            error,
            comm.meter.table(2).sum(dim=(0, 1)).tolist(),
        )

    return run_threads(world, work)


def random_shares(world: int, rounds: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(
        world, rounds, Model.SIZE, dtype=dtype, generator=torch.Generator().manual_seed(world)
    )


def weight_of(flat: Tensor) -> Tensor:
    return flat[..., :120].reshape(*flat.shape[:-1], 12, 10)


def bytes_sent(added: list[Added]) -> int:
    return sum(sum(worker.bytes_by_peer) for worker in added)


def assert_agreed(added: list[Added]) -> None:
    """All workers have the same sums, bit for bit, and the summed tails."""
    for worker in added:
        assert torch.equal(worker.sums, added[0].sums)
        totals = [
            sum(rank + number / 2 for rank in range(len(added)))
            for number in range(len(worker.tails))
        ]
        assert worker.tails.tolist() == [[total] * TAIL for total in totals]


USED = tuple(row in (0, 3, 4, 11) for row in range(12))


# --- rounded sums ----------


@pytest.mark.parametrize("world", [2, 3, 5])
def test_bf16_rounds_shares_and_sum_and_not_the_tail(world: int) -> None:
    shares = random_shares(world, rounds=2)
    added = sum_shares(shares, Way(wire=torch.bfloat16))
    assert_agreed(added)  # the tail is exact
    error = (added[0].sums - shares.sum(dim=0)).abs()
    rounded = shares.abs().sum(dim=0) * 2**-8
    assert (error <= rounded + (shares.sum(dim=0).abs() + rounded) * 2**-8).all()
    assert error.max() > 0
    assert bytes_sent(added) == 2 * (2 * (world - 1) * (Model.SIZE * 2 + TAIL * 4))


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize(("wire", "codes", "size"), [("int8", 127, Model.SIZE), ("int6", 31, 101)])
def test_codes_are_within_their_scales_of_the_sum(
    world: int, wire: WireFormat, codes: int, size: int
) -> None:
    """A share is off by at most half a code of its block, and the sum by half a code more."""
    shares = random_shares(world)
    added = sum_shares(shares, Way(wire=wire))
    assert_agreed(added)
    largest = shares.abs().amax(dim=-1).sum() + shares.sum(dim=0).abs().max()
    assert float((added[0].sums - shares.sum(dim=0)).abs().max()) <= 1.1 * float(largest) / (
        2 * codes
    )
    assert not torch.equal(added[0].sums, shares.sum(dim=0))
    scales = (2 if wire == "int6" else 4) * -(-Model.SIZE // BLOCK)  # chunks are whole blocks
    rounded = size + scales
    assert bytes_sent(added) == 2 * (world - 1) * (rounded + TAIL * 4)


@pytest.mark.parametrize("wire", [torch.bfloat16, "int8", "int6"])
def test_the_rounded_share_is_what_arrives(wire: WireFormat) -> None:
    """If all other shares are zero, the sum is the rounded share.

    Rounding it again changes nothing.
    """
    share = torch.randn(1000, generator=torch.Generator().manual_seed(0))

    def work(comm: Communicator) -> tuple[Tensor, Tensor]:
        summand = ReduceInput(share.clone() if comm.rank == 1 else torch.zeros(1000), wire)
        rounded = comm.round_as_sent(summand)
        comm.all_reduce([summand], GRADIENTS)
        return rounded, summand.tensor

    results = run_threads(3, work)
    for _, total in results:
        torch.testing.assert_close(total, results[1][0], rtol=1e-6, atol=0)
    assert not torch.equal(results[1][0], share)


# --- low-rank factors ----------


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize(("true_rank", "rank"), [(1, 1), (1, 3), (3, 3), (4, 5)])
def test_a_sum_of_low_rank_comes_whole(world: int, true_rank: int, rank: int) -> None:
    torch.manual_seed(0)
    shares = random_shares(world, rounds=3, dtype=F64)
    left, right = (
        torch.randn(world, 3, 12, true_rank, dtype=F64),
        torch.randn(3, true_rank, 10, dtype=F64),
    )
    weight_of(shares)[:] = left @ right  # the sum over the workers has the rank of a share
    added = sum_shares(shares, Way(rank=rank))
    assert_agreed(added)
    torch.testing.assert_close(added[0].sums, shares.sum(dim=0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("used", [None, USED])
def test_what_is_not_sent_is_owed(world: int, used: tuple[bool, ...] | None) -> None:
    """Applied updates plus remaining errors equal the sum of all shares."""
    shares = random_shares(world, rounds=20, dtype=F64)
    if used is not None:
        weight_of(shares)[:, :, ~torch.tensor(used)] = 0.0
    added = sum_shares(shares, Way(rank=2, used=used))
    assert_agreed(added)
    rows = torch.tensor(used or (True,) * 12)
    owed = sum(worker.error for worker in added)
    applied = weight_of(added[0].sums).sum(dim=0)[rows]
    torch.testing.assert_close(
        applied + owed, weight_of(shares).sum(dim=(0, 1))[rows], rtol=1e-8, atol=1e-8
    )
    assert float(owed.abs().max()) > 0.1  # so that there is something to hold
    assert torch.equal(added[0].sums[:, 120:], shares[:, :, 120:].sum(dim=0))  # vectors are exact


@pytest.mark.parametrize(
    ("way", "num_bytes"),
    [
        (
            Way(rank=1),
            (12 + 10 + 4 + TAIL + 10) * 4,
        ),  # left factor, bias, small weight, tail; right factor
        (Way(rank=4), (48 + 10 + 4 + TAIL + 40) * 4),
        (Way(rank=6), (120 + 10 + 4 + TAIL) * 4),
        (Way(rank=2, wire=torch.bfloat16), (24 + 10 + 4 + 20) * 2 + TAIL * 4),
        (Way(rank=2, used=USED), (8 + 10 + 4 + TAIL + 20) * 4),
        (Way(rank=3, used=USED), (40 + 10 + 4 + TAIL) * 4),  # 3 (4 + 10) > 4 * 10
    ],
)
@pytest.mark.parametrize("world", [2, 3])
def test_bytes_of_factors(way: Way, num_bytes: int, world: int) -> None:
    added = sum_shares(random_shares(world, rounds=2), way)
    assert bytes_sent(added) == 2 * (2 * (world - 1) * num_bytes)


def test_a_row_is_used_if_any_input_of_any_worker_needs_it() -> None:
    """A weight of two inputs, as of two relations."""
    weight = nn.Parameter(torch.zeros(4, 2))

    def work(comm: Communicator) -> list[bool]:
        inputs = [torch.zeros(3, 4), torch.zeros(3, 4)]
        inputs[comm.rank][0, comm.rank] = 1.0
        (used,) = find_used_rows([weight, weight], [inputs], comm, SETUP).values()
        return used.tolist()

    assert run_threads(2, work) == [[True, True, False, False]] * 2
