"""What workers send: checksums in the replay log, the bytes of a sum, failures of threads.

What comes from others is checked by exceptions, for `python -O` drops every `assert`.
"""

import ast
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT
from test_imports import FILES

from retexo.comm import message_format
from retexo.comm.collectives import Communicator
from retexo.comm.received import check_node_numbers, check_places
from retexo.comm.replay_log import checksum
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import SETUP
from retexo.comm.transport import PeerLost
from retexo.errors import TrainingError
from retexo.exchange.coding.rows import RowFormat, decode
from retexo.exchange.exchange_plan import request_halo_nodes
from retexo.exchange.layer_exchange import _decode_from
from retexo.tasks.adamic_adar import WeightedNeighbours

ROWS = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
MESSAGE = ROWS.reshape(-1).view(np.uint8)


@given(st.lists(st.integers(0, len(MESSAGE)), max_size=5))
def test_the_checksum_does_not_depend_on_the_pieces(cuts: list[int]) -> None:
    assert checksum(np.split(MESSAGE, sorted(cuts))) == checksum([MESSAGE])


def flipped(place: int) -> np.ndarray:
    return np.where(np.arange(len(MESSAGE)) == place, MESSAGE ^ 128, MESSAGE)


def swapped(row: int) -> np.ndarray:
    order = [row, *range(1, row), 0, *range(row + 1, len(ROWS))]
    return ROWS[order].reshape(-1).view(np.uint8)


@pytest.mark.parametrize(
    "changed",
    [
        *(flipped(place) for place in (0, 7, 4095, 4096, len(MESSAGE) - 1)),
        *(swapped(row) for row in (1, 15, 16, 39)),
    ],
)
def test_the_checksum_is_of_every_byte_and_of_their_order(changed: np.ndarray) -> None:
    assert checksum([changed]) != checksum([MESSAGE])


def test_the_checksum_is_of_the_length() -> None:
    sizes = (0, 1, 8, 4095, 4096, 4097)
    assert len({checksum([np.zeros(size, np.uint8)]) for size in sizes}) == len(sizes)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_bytes_whatever_the_strides(count: int) -> None:
    """A tensor of one value, or none, may have a stride of 0."""
    one, every_second = torch.arange(1).expand(count), torch.arange(2 * count)[::2]
    for values in (one, every_second):
        assert message_format.as_bytes(values).tobytes() == values.numpy().tobytes()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


# --- failures ----------


class Cause(Exception):
    pass


@pytest.mark.parametrize("failing", [0, 2])
def test_the_cause_is_raised_and_not_what_follows(failing: int) -> None:
    followed = []

    def work(comm: Communicator) -> None:
        try:
            comm.all_gather(torch.zeros(1), SETUP)
            if comm.rank == failing:
                raise Cause("the disk is full")
            comm.all_gather(torch.zeros(1), SETUP)
        except PeerLost:
            followed.append(comm.rank)
            raise

    with pytest.raises(Cause, match="the disk is full"):
        run_threads(3, work)
    assert sorted(followed) == sorted({0, 1, 2} - {failing})


WITHOUT_ASSERT = ("retexo/comm/", "retexo/exchange/coding/")
"""All that these modules handle is what was received, or what is sent."""
EXEMPT = "retexo/comm/traffic_meter.py"
"""Counts what is sent."""
RECEIVING = {
    "all_gather",
    "all_to_all",
    "exchange_sorted_lists",
    "exchange_bits",
    "irecv",
    "read_ascending",
    "read_weights",
    "receive",
    "receive_one",
    "recv",
    "recv_fds",
    "recv_into",
    "recvmsg_into",
    "request_halo_nodes",
    "unpack",
}
"""A function that calls one of these has data of others in its hands."""


def receives(function: ast.AST) -> bool:
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    names = {getattr(call, "attr", getattr(call, "id", None)) for call in calls}
    return bool(names & RECEIVING)


def narrows_a_type(statement: ast.Assert) -> bool:
    """Whether it only tells mypy what is known: `x is not None`, `isinstance(x, T)`."""
    text = ast.unparse(statement.test)
    return text.endswith(" is not None") or text.startswith("isinstance(")


def test_no_assert_where_data_is_received() -> None:
    asserts, num_receiving = [], 0
    for path in FILES:
        file, tree = path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())
        functions = [
            node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and receives(node)
        ]
        num_receiving += len(functions)
        forbids_all = file.startswith(WITHOUT_ASSERT) and file != EXEMPT
        for scope in [tree] if forbids_all else functions:
            asserts += [
                f"{file}:{node.lineno}"
                for node in ast.walk(scope)
                if isinstance(node, ast.Assert) and (forbids_all or not narrows_a_type(node))
            ]
    assert num_receiving > 30, "the names of functions that receive have changed"
    assert not asserts, "raise TrainingError, which names the peer"


@pytest.mark.parametrize("size", [-1, 1 << 60])
def test_an_impossible_size_is_refused_before_memory_is_asked_for(size: int) -> None:
    def work(comm: Communicator) -> None:
        own = [torch.zeros(1), torch.zeros(0)][:: 1 - 2 * comm.rank]
        sizes = [1, 0] if comm.rank else [1, size]
        comm.all_to_all(own, sizes, SETUP)

    with pytest.raises(TrainingError, match=f"rank 1 announces {4 * size} bytes"):
        run_threads(2, work)


def test_an_impossible_number_of_nodes_is_refused() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    partition: Any = SimpleNamespace(halo_owner=none, halo_index=none)

    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            comm.all_to_all([torch.tensor([11]), torch.tensor([0])], [1, 1], SETUP)
        request_halo_nodes(partition, none.bool(), (10, 5), comm)

    with pytest.raises(TrainingError, match="rank 1 announces 11 nodes, where 0 to 10"):
        run_threads(2, work)


@pytest.mark.parametrize("place", [-1, 3])
def test_a_node_that_is_not_there_is_refused(place: int) -> None:
    with pytest.raises(TrainingError, match=f"rank 2 names node {place}, where there are 3"):
        check_node_numbers(2, torch.tensor([0, 2, place], dtype=torch.int32), 3)


@pytest.mark.parametrize("places", [[0, 2, 3], [-1, 0, 1], [1, 0, 2], [0, 2]])
def test_places_out_of_range_or_order_are_refused(places: list[int]) -> None:
    check_places(2, torch.tensor([0, 0, 2], dtype=torch.int32), 3, 3)
    with pytest.raises(TrainingError, match=r"rank 2 (names node|sent no 3 places in order)"):
        check_places(2, torch.tensor(places, dtype=torch.int32), 3, 3)


def test_neighbours_that_are_not_there_name_their_sender() -> None:
    def fetch(comm: Communicator) -> Any:
        last = 2 + comm.rank  # of the other worker's graph, which has a node more
        weights = sp.csr_array(([1], ([0], [last])), shape=(1, last + 1))
        return WeightedNeighbours(weights).fetch(comm, [torch.tensor([0])] * 2, [1, 1])

    with pytest.raises(TrainingError, match="rank 1 sent an invalid list of neighbours"):
        run_threads(2, fetch)


def test_rows_that_cannot_be_read_name_their_sender() -> None:
    message = torch.zeros(7, dtype=torch.uint8), (2, 3), torch.float32, RowFormat()
    with pytest.raises(TrainingError, match="rank 4 sent an invalid block of rows: a block of 7"):
        _decode_from(4, decode, *message, out=torch.empty(2, 3))
