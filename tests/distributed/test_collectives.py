"""Each collective alone: the worked answers of its docstring, and its bytes by hand."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from support import over_sockets, run_workers
from torch import Tensor

from retexo.comm import process_group
from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.process_group import GlooTransport
from retexo.comm.traffic_meter import KINDS, MessageTag
from retexo.comm.transport import PeerLost, Transport

WORLD = 4
SETUP, GRADIENTS = MessageTag("setup"), MessageTag("gradients", 1)
ROUNDED = [
    1.0,
    1 + 2.0**-7,
    -1 - 2.0**-7,
    3.0,
    0.0,
]  # in bfloat16 exact, and so is 2, 4 or 8 times; 3 times is not
EXACT = [1 / 3, 2.0**-40]
MIN_NCCL_BYTES = 1 << 12
MANY = 1 << 14
"""Copies of a few values, which are more bytes than one worker adds up for all."""


def over_gloo(rank: int, world_size: int) -> dict[str, Any]:
    return collectives(GlooTransport(rank, world_size))


def over_nccl(rank: int, world_size: int) -> dict[str, Any]:
    """With host memory in place of GPUs: gloo stands in for NCCL."""
    long: list[int] = []
    batch = dist.batch_isend_irecv

    def start(operations: list[dist.P2POp]) -> list[dist.Work]:
        long.extend(len(each.tensor) for each in operations)
        return batch(operations)

    with (
        mock.patch.object(process_group, "MIN_NCCL_BYTES", MIN_NCCL_BYTES),
        mock.patch.object(process_group.dist, "batch_isend_irecv", start),
    ):
        gloo = GlooTransport(rank, world_size)
        found = collectives(process_group.NcclTransport(gloo, torch.device("cpu")))
    assert min(long) >= MIN_NCCL_BYTES
    return found


def collectives(transport: Transport) -> dict[str, Any]:
    """What each collective gives on this worker, and the bytes that the meter counted for it, by
    peer.
    """
    found: dict[str, Any] = {}
    rank, world_size = transport.rank, transport.world_size

    def noted(name: str, call: Any) -> None:
        comm = Communicator(transport)
        value = call(comm)
        found[name] = (value, comm.meter.table(2))

    def all_reduce(
        comm: Communicator, dtype: torch.dtype = torch.float32, copies: int = 1
    ) -> list[list[float]]:
        tensor = torch.tensor([rank + 1.0, 0.5, 0.0], dtype=dtype).repeat(copies)
        comm.all_reduce([ReduceInput(tensor)], GRADIENTS)
        return distinct(tensor, copies)

    def exchange(comm: Communicator) -> list[list[int]]:
        # rank r sends p values (10 r + p) to peer p, also to itself
        to_peers = [
            torch.full((peer,), 10 * rank + peer, dtype=torch.int32) for peer in range(world_size)
        ]
        return [part.tolist() for part in comm.all_to_all(to_peers, [rank] * world_size, SETUP)]

    def nothing(comm: Communicator) -> list[list[int]]:
        to_peers = [torch.zeros(0) for _ in range(world_size)]
        return [part.tolist() for part in comm.all_to_all(to_peers, [0] * world_size, SETUP)]

    def account(comm: Communicator) -> Tensor:
        comm.all_reduce([ReduceInput(torch.zeros(5))], GRADIENTS)
        return comm.gather_traffic(2)

    def several(
        comm: Communicator, zero_ranks: frozenset[int], copies: int
    ) -> list[list[list[float]]]:
        """Three tensors in one message; the first travels as bfloat16, the last may have fewer
        values than workers.
        """
        scale = 0.0 if rank in zero_ranks else 2.0**rank
        tensors = [
            scale * torch.tensor(ROUNDED),
            torch.tensor(EXACT, dtype=torch.float64),
            torch.tensor([3]),
        ]
        tensors = [tensor.repeat(copies) for tensor in tensors]
        comm.all_reduce(
            [
                ReduceInput(tensors[0], torch.bfloat16, zero_ranks),
                ReduceInput(tensors[1]),
                ReduceInput(tensors[2]),
            ],
            GRADIENTS,
        )
        return [distinct(tensor, copies) for tensor in tensors]

    everyone = frozenset(range(world_size))
    for copies in (1, MANY):
        for name, zero_ranks in (
            ("none", frozenset()),
            ("first", frozenset({0})),
            ("all", everyone),
        ):
            noted(
                f"{copies} silent {name}",
                lambda comm, zero=zero_ranks, times=copies: several(comm, zero, times),
            )
        noted(f"{copies} all_reduce", lambda comm, times=copies: all_reduce(comm, copies=times))
    noted(
        "nothing to add up", lambda comm: comm.all_reduce([ReduceInput(torch.zeros(0))], GRADIENTS)
    )
    noted("gather", lambda comm: comm.gather(torch.tensor([[rank, 7]], dtype=torch.int32), SETUP))
    noted("all_reduce float64", lambda comm: all_reduce(comm, torch.float64))
    noted("all_gather", lambda comm: comm.all_gather(torch.tensor([rank, -rank]), SETUP).tolist())
    noted("all_to_all", exchange)
    noted("nothing", nothing)
    noted("account", account)
    return found


@pytest.fixture(
    scope="module",
    params=[("gloo", 1), ("gloo", WORLD), ("nccl", WORLD), ("sockets", WORLD)],
)
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    backend, world = request.param
    if backend != "sockets":
        work = over_gloo if backend == "gloo" else over_nccl
        return run_workers(world, work, Path(tmp_path_factory.mktemp("collectives")))
    return [future.result() for future in over_sockets(world, collectives)]


def distinct(tensor: Tensor, copies: int) -> list[list[float]]:
    """What the copies of a few values have become; one where they are still equal."""
    rows: list[list[float]] = tensor.view(copies, -1).unique(dim=0).tolist()
    return rows


def sent(found: list[dict[str, Any]], name: str) -> list[list[int]]:
    """Bytes by sender and peer."""
    return [worker[name][1].sum(dim=(0, 1)).tolist() for worker in found]


@pytest.mark.parametrize("name", ["1 all_reduce", f"{MANY} all_reduce", "all_reduce float64"])
def test_all_reduce_adds_up(found: list[dict[str, Any]], name: str) -> None:
    total = [len(found) * (len(found) + 1) / 2, 0.5 * len(found), 0.0]
    assert [worker[name][0] for worker in found] == [[total]] * len(found)


@pytest.mark.parametrize(("name", "size"), [("1 all_reduce", 4), ("all_reduce float64", 8)])
def test_one_worker_adds_up_small_sums(found: list[dict[str, Any]], name: str, size: int) -> None:
    others = range(1, len(found))
    assert sent(found, name) == [
        [0, *(3 * size for _ in others)],
        *([3 * size, *(0 for _ in others)] for _ in others),
    ]
    tables = [worker[name][1] for worker in found]
    assert (
        sum(int(table[KINDS.index("gradients"), 1].sum()) for table in tables)
        == 2 * len(others) * 3 * size
    )


def test_all_reduce_in_chunks_by_bytes(found: list[dict[str, Any]]) -> None:
    world = len(found)
    matrix = sent(found, f"{MANY} all_reduce")
    assert sum(map(sum, matrix)) == 2 * (world - 1) * 3 * MANY * 4
    chunks = [3 * MANY // world] * world
    for rank, row in enumerate(matrix):
        # A peer is sent its chunk, and later the sum of one's own.
        assert row == [(chunks[peer] + chunks[rank]) * 4 * (peer != rank) for peer in range(world)]


SILENT = {"none": set(), "first": {0}, "all": {0, 1, 2, 3}}


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("copies", [1, MANY])
def test_several_tensors_in_one_message(
    found: list[dict[str, Any]], name: str, copies: int
) -> None:
    world = len(found)
    factor = sum(2.0**rank for rank in range(world) if rank not in SILENT[name])
    rounded = (torch.tensor(ROUNDED) * factor).to(torch.bfloat16).tolist()
    exact = torch.tensor(EXACT, dtype=torch.float64).expand(world, 2).sum(dim=0).tolist()
    assert [worker[f"{copies} silent {name}"][0] for worker in found] == [
        [[rounded], [exact], [[3 * world]]]
    ] * world


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("copies", [1, MANY])
def test_bytes_of_several_tensors(found: list[dict[str, Any]], name: str, copies: int) -> None:
    """Of what a peer adds up of each, to it, and of one's own sum, to all; of a silent worker the
    former is missing.

    Small sums are added up by the first worker that is not silent.
    """
    world = len(found)
    ranks = range(world)
    root = min(set(ranks) - SILENT[name], default=0)
    rounded, exact, small = (
        [n * (rank == root) if copies == 1 else n * copies // world for rank in ranks]
        for n in (5, 2, 1)
    )
    for rank, row in enumerate(sent(found, f"{copies} silent {name}")):
        loud = rank not in SILENT[name]
        for peer in range(world):
            share = 2 * rounded[peer] * loud + 8 * exact[peer] + 8 * small[peer]
            answer = 2 * rounded[rank] + 8 * exact[rank] + 8 * small[rank]
            assert row[peer] == (share + answer) * (peer != rank)


def test_gather(found: list[dict[str, Any]]) -> None:
    world = len(found)
    assert found[0]["gather"][0].tolist() == [[[rank, 7]] for rank in range(world)]
    assert all(worker["gather"][0].shape == (0, 1, 2) for worker in found[1:])
    assert sent(found, "gather") == [[8 * (rank > 0), *[0] * (world - 1)] for rank in range(world)]


def test_all_gather(found: list[dict[str, Any]]) -> None:
    world = len(found)
    assert [worker["all_gather"][0] for worker in found] == [
        [[rank, -rank] for rank in range(world)]
    ] * world
    assert [sum(row) for row in sent(found, "all_gather")] == [(world - 1) * 2 * 8] * world


def test_all_to_all(found: list[dict[str, Any]]) -> None:
    world = len(found)
    for rank, worker in enumerate(found):
        assert worker["all_to_all"][0] == [[10 * peer + rank] * rank for peer in range(world)]
    matrix = sent(found, "all_to_all")
    assert matrix == [[4 * peer * (peer != rank) for peer in range(world)] for rank in range(world)]


def test_the_account_holds_itself(found: list[dict[str, Any]]) -> None:
    world = len(found)
    first = found[0]["account"][0]
    assert list(first.shape) == [world, len(KINDS), 3, world]
    assert all(len(worker["account"][0]) == 0 for worker in found[1:])  # it goes to rank 0 alone
    by_kind = dict(zip(KINDS, first.sum(dim=(0, 2, 3)).tolist(), strict=True))
    assert by_kind["gradients"] == 2 * (world - 1) * 5 * 4
    assert by_kind["metrics"] == (world - 1) * len(KINDS) * 3 * world * 8
    after = torch.stack(
        [worker["account"][1] for worker in found]
    )  # what the meters say once it was sent
    assert torch.equal(after, first)


def gather_failing_with(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective whose messages fail as torch's do."""

    def fail(*_: Any) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(torch.distributed, "irecv", fail)
    Communicator(GlooTransport(0, 2)).all_gather(torch.ones(2), SETUP)


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
OF_A_PEER = (
    (
        f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:34532. This is typically caused"
        " by ..."
    ),
    f"{GLOO}unbound_buffer.cc:129] Timed out waiting 3000ms for send operation to complete",
)
OF_THIS_WORKER = (
    (
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory:"
        " you tried to allocate 9 bytes. Error code 12 (Cannot allocate memory)"
    ),
    (
        "[enforce fail at /pytorch/third_party/gloo/gloo/alltoallv.cc:138] inLengthPerRank[r] =="
        " outLengthPerRank[r]. "
    ),
    "Split sizes doesn't match total dim 0 size",
)


@pytest.mark.parametrize("text", OF_A_PEER)
def test_a_peer_that_is_gone_is_named_as_the_reason(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PeerLost, match="lost a peer while sending"):
        gather_failing_with(text, monkeypatch)


@pytest.mark.parametrize("text", OF_THIS_WORKER)
def test_a_failure_of_this_worker_is_not_a_lost_peer(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError) as caught:
        gather_failing_with(text, monkeypatch)
    assert str(caught.value) == text
    assert not isinstance(caught.value, PeerLost)
