"""Each collective alone: the worked answers of its docstring, and its bytes by hand.

Over plain sockets a peer that is gone, silent or out of step is noticed. The bytes of a whole run
are added up by hand.
"""

import gc
import json
import multiprocessing
import os
import pickle
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import over_sockets, random_graph, save_npz, swap, thirds
from torch import Tensor

from partitioning.directory.read_directory import find_partition_directory
from retexo.apps import partition_data, train
from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.process_group import LOOPBACK, GlooTransport, Rendezvous, connected
from retexo.comm.socket_transport import HEADER, SocketTransport
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import KINDS, MessageTag
from retexo.comm.transport import PeerLost, Transport
from retexo.errors import TrainingError
from retexo.launch.fork_server import warm_up
from retexo.launch.start_workers import add_local_streams
from retexo.models.network import Architecture, Schema, build_network, default_model_settings
from retexo.settings.compose import compose

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
MANY = 1 << 14
"""Copies of a few values, which are more bytes than one worker adds up for all."""


def over_gloo(rank: int, rendezvous: Rendezvous) -> bytes:
    """Return what the collectives give; torch's own pickle would pass shared memory."""
    torch.set_num_threads(1)
    with connected(rendezvous, rank, None):
        return pickle.dumps(collectives(GlooTransport(rank, rendezvous.world_size)))


def collectives(transport: Transport) -> dict[str, Any]:
    """Run each collective; return by name its result on this worker, and the bytes by peer."""
    results: dict[str, Any] = {}
    rank, world_size = transport.rank, transport.world_size

    def record(name: str, call: Any) -> None:
        comm = Communicator(transport)
        value = call(comm)
        results[name] = (value, comm.meter.table(2))

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
        """Three tensors in one message.

        The first travels as bfloat16, the last may have fewer values than workers.
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
        # Of the copies of a few values one row is left where they are still equal.
        return [tensor.view(copies, -1).unique(dim=0).tolist() for tensor in tensors]

    everyone = frozenset(range(world_size))
    for copies in (1, MANY):
        for name, zero_ranks in (
            ("none", frozenset()),
            ("first", frozenset({0})),
            ("all", everyone),
        ):
            record(
                f"{copies} silent {name}",
                lambda comm, zero=zero_ranks, times=copies: several(comm, zero, times),
            )
    record(
        "nothing to add up", lambda comm: comm.all_reduce([ReduceInput(torch.zeros(0))], GRADIENTS)
    )
    record("gather", lambda comm: comm.gather(torch.tensor([[rank, 7]], dtype=torch.int32), SETUP))
    record("all_gather", lambda comm: comm.all_gather(torch.tensor([rank, -rank]), SETUP).tolist())
    record("all_to_all", exchange)
    record("nothing", nothing)
    record("account", account)
    return results


@pytest.fixture(
    scope="module",
    params=[("gloo", 1), ("gloo", WORLD), ("sockets", WORLD)],
)
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    backend, world = request.param
    if backend == "sockets":
        return [future.result() for future in over_sockets(world, collectives)]
    warm_up()
    store = tmp_path_factory.mktemp("collectives") / "store"
    rendezvous = Rendezvous(world, LOOPBACK, store, 90.0, 90.0)
    with ProcessPoolExecutor(world, multiprocessing.get_context("forkserver")) as processes:
        return [*map(pickle.loads, processes.map(over_gloo, range(world), [rendezvous] * world))]


def sent(results: list[dict[str, Any]], name: str) -> list[list[int]]:
    """Bytes by sender and peer."""
    return [worker[name][1].sum(dim=(0, 1)).tolist() for worker in results]


SILENT = {"none": set(), "first": {0}, "all": {0, 1, 2, 3}}


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("copies", [1, MANY])
def test_several_tensors_in_one_message(
    results: list[dict[str, Any]], name: str, copies: int
) -> None:
    world = len(results)
    factor = sum(2.0**rank for rank in range(world) if rank not in SILENT[name])
    rounded = (torch.tensor(ROUNDED) * factor).to(torch.bfloat16).tolist()
    exact = torch.tensor(EXACT, dtype=torch.float64).expand(world, 2).sum(dim=0).tolist()
    assert [worker[f"{copies} silent {name}"][0] for worker in results] == [
        [[rounded], [exact], [[3 * world]]]
    ] * world


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("copies", [1, MANY])
def test_bytes_of_several_tensors(results: list[dict[str, Any]], name: str, copies: int) -> None:
    """Of what a peer adds up of each, to it, and of one's own sum, to all.

    Of a silent worker the former is missing.

    Small sums are added up by the first worker that is not silent.
    """
    world = len(results)
    ranks = range(world)
    root = min(set(ranks) - SILENT[name], default=0)
    rounded, exact, small = (
        [n * (rank == root) if copies == 1 else n * copies // world for rank in ranks]
        for n in (5, 2, 1)
    )
    for rank, row in enumerate(sent(results, f"{copies} silent {name}")):
        loud = rank not in SILENT[name]
        for peer in range(world):
            share = 2 * rounded[peer] * loud + 8 * exact[peer] + 8 * small[peer]
            answer = 2 * rounded[rank] + 8 * exact[rank] + 8 * small[rank]
            assert row[peer] == (share + answer) * (peer != rank)


def test_gather(results: list[dict[str, Any]]) -> None:
    world = len(results)
    assert results[0]["gather"][0].tolist() == [[[rank, 7]] for rank in range(world)]
    assert all(worker["gather"][0].shape == (0, 1, 2) for worker in results[1:])
    assert sent(results, "gather") == [
        [8 * (rank > 0), *[0] * (world - 1)] for rank in range(world)
    ]


def test_all_gather(results: list[dict[str, Any]]) -> None:
    world = len(results)
    assert [worker["all_gather"][0] for worker in results] == [
        [[rank, -rank] for rank in range(world)]
    ] * world
    assert [sum(row) for row in sent(results, "all_gather")] == [(world - 1) * 2 * 8] * world


def test_all_to_all(results: list[dict[str, Any]]) -> None:
    world = len(results)
    for rank, worker in enumerate(results):
        assert worker["all_to_all"][0] == [[10 * peer + rank] * rank for peer in range(world)]
    matrix = sent(results, "all_to_all")
    assert matrix == [[4 * peer * (peer != rank) for peer in range(world)] for rank in range(world)]


def test_the_account_holds_itself(results: list[dict[str, Any]]) -> None:
    world = len(results)
    first = results[0]["account"][0]
    assert list(first.shape) == [world, len(KINDS), 3, world]
    assert all(len(worker["account"][0]) == 0 for worker in results[1:])  # it goes to rank 0 alone
    by_kind = dict(zip(KINDS, first.sum(dim=(0, 2, 3)).tolist(), strict=True))
    assert by_kind["gradients"] == 2 * (world - 1) * 5 * 4
    assert by_kind["metrics"] == (world - 1) * len(KINDS) * 3 * world * 8
    after = torch.stack(
        [worker["account"][1] for worker in results]
    )  # what the meters say once it was sent
    assert torch.equal(after, first)


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


@pytest.mark.parametrize("text", [*OF_A_PEER, *OF_THIS_WORKER])
def test_a_peer_that_is_gone_and_a_failure_of_this_worker_are_told_apart(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts of torch's errors decide which of the two happened."""

    def fail(*_: Any) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(torch.distributed, "irecv", fail)
    with pytest.raises(RuntimeError) as caught:
        Communicator(GlooTransport(0, 2)).all_gather(torch.ones(2), SETUP)
    assert (type(caught.value) is PeerLost) == (text in OF_A_PEER)
    expected = "lost a peer while sending" if text in OF_A_PEER else text
    assert expected in str(caught.value)


def at_once(world: int, work: Callable[[SocketTransport], Any], timeout: float = 30.0) -> list[Any]:
    """Return the exception that ended each rank, or None."""
    return [future.exception() for future in over_sockets(world, work, timeout)]


SIZES = st.sampled_from(
    [0, 1, 3, 1000, 70_000, 600_000]
)  # of which the last is more than a socket holds


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_what_is_swapped_arrives(data: st.DataObject) -> None:
    world = data.draw(st.integers(1, 9))
    dtype = data.draw(
        st.sampled_from([torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.int64])
    )
    rounds = data.draw(st.integers(1, 3))
    sizes = torch.tensor(
        data.draw(st.lists(SIZES, min_size=world * world, max_size=world * world))
    ).view(world, world)

    def message(sender: int, receiver: int, number: int) -> torch.Tensor:
        count = int(sizes[sender, receiver]) // (1 if world < 4 else world)
        return (
            (torch.arange(count) * 7 + sender * 31 + receiver * 5 + number)
            .to(torch.uint8)
            .to(dtype)
        )

    def work(transport: SocketTransport) -> None:
        everyone = range(world)
        for number in range(rounds):
            expected = [message(peer, transport.rank, number) for peer in everyone]
            sent = [message(transport.rank, peer, number) for peer in everyone]
            received = swap(transport, sent, [len(tensor) for tensor in expected])
            assert all(
                tensor.dtype == dtype and torch.equal(tensor, expected_tensor)
                for tensor, expected_tensor in zip(received, expected, strict=True)
            )

    assert at_once(world, work) == [None] * world


def test_a_peer_that_is_gone_is_lost_at_once() -> None:
    def work(transport: SocketTransport) -> None:
        if transport.rank == 2:
            for stream in transport._streams.values():
                stream.close()
            return
        swap(transport, [torch.ones(5)] * 3, [5] * 3)

    first, second, third = at_once(3, work)
    assert third is None
    # Whoever goes first closes its own streams, which may be what the other one sees.
    assert all(isinstance(error, PeerLost) for error in (first, second))
    assert "rank 2" in str(first) + str(second)
    assert "no byte" not in str(first) + str(second), "the time limit"


def test_a_silent_peer_is_lost_after_the_time_limit() -> None:
    def work(transport: SocketTransport) -> None:
        if transport.rank == 0:
            swap(transport, [torch.ones(5)] * 2, [5] * 2)

    error, _ = at_once(2, work, timeout=0.2)
    assert str(error) == "no byte from rank 1 for 0.2 s"


@pytest.mark.parametrize("announced", [0, 8, 2**63])
def test_a_message_of_another_size_is_refused(announced: int) -> None:
    own, other = socket.socketpair()
    with own, other:
        other.sendall(HEADER.pack(announced) + bytes(8))
        with pytest.raises(TrainingError, match=f"rank 1 sends {announced} bytes, not 20"):
            swap(SocketTransport(0, {1: own}, 5.0), [torch.ones(5)] * 2, [5] * 2)


def test_threads_of_a_forked_process_find_torchs_pool() -> None:
    """app=plan in a fork of a process that had computed failed in every second run."""
    torch.ones(10).nonzero()
    all_at_once = threading.Barrier(8)

    def compute(_: Communicator) -> None:
        all_at_once.wait()
        torch.ones(10).nonzero()

    for _ in range(15):
        child = os.fork()
        if not child:
            status = 1
            try:
                run_threads(8, compute)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


def test_streams_of_many_workers_are_closed_by_the_parent() -> None:
    """64 workers have 2,016 pairs, more than the usual limit of open files."""
    gc.collect()  # sockets of the tests before
    before = psutil.Process(os.getpid()).num_fds()
    with ExitStack() as stack:
        streams = add_local_streams(range(64), {}, stack)
        assert all(
            list(own) == [peer for peer in range(64) if peer != rank]
            for rank, own in streams.items()
        )
        streams[5][60].sendall(b"x")
        assert streams[60][5].recv(2) == b"x"
    assert psutil.Process(os.getpid()).num_fds() == before


WORKERS, ROUNDS, HIDDEN, WIDTH, CLASSES = 3, 5, 8, 6, 3
TAIL = 2 * (3 + 2)
"""Losses, stop requests, and counts of correct and of all validation nodes: float64, each as two
floats."""


def test_bytes_of_a_run_are_those_by_hand(tmp_path: Path) -> None:
    save_npz(tmp_path / "toy.npz", random_graph(), thirds(40))
    settings = compose(
        [
            f"partition_dir={tmp_path}",
            "dataset_name=file",
            f"dataset_file={tmp_path}/toy.npz",
            f"num_partitions={WORKERS}",
            "device=cpu",
            f"num_rounds=[{ROUNDS}]",
            f"hidden_dim={HIDDEN}",
            "stopping=none",
            "cluster.threads=1",
            "sleep_time=0.001",
            "base=published",
            "exchange=plain",
        ]
    )
    partition_data.run(settings)
    directory = find_partition_directory([tmp_path / f"toy-random-vol-{WORKERS}"], WORKERS)
    sent = train.run(settings, tmp_path / "run")["bytes"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["bytes"] == sent
    halo = sum(part.halo for part in directory.meta.parts)
    assert halo > 0
    ways, both_ways = WORKERS * (WORKERS - 1), 2 * (WORKERS - 1)
    architecture = Architecture(
        default_model_settings("gcn", 2, HIDDEN), Schema.of_plain_graph(WIDTH), CLASSES
    )
    rows, gradients, by_layer = [], [], []
    for width, stage in zip((WIDTH, HIDDEN), build_network(architecture, 0), strict=True):
        parameters = sum(parameter.numel() for parameter in stage.parameters())
        rows.append(halo * width * 4)
        gradients.append((parameters + TAIL) * 4 * both_ways * ROUNDS)
        columns, digest = ways * -(-width // 8), ways * 8  # which are used, in bits; of the end
        last_metrics = TAIL * 4 * both_ways  # without a gradient, once the last round is over
        by_layer.append(rows[-1] + gradients[-1] + last_metrics + columns + digest)
    by_kind = [*rows, sum(gradients), 0]
    kinds = ("features", "embeddings", "gradients", "parameters")
    assert [sent["by_kind"][kind] for kind in kinds] == by_kind
    assert sent["by_layer"] == by_layer
