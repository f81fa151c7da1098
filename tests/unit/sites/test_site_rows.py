"""What sites ask each other at the start: rows of ids, dangling and double ids, bytes.

Also how many of a site's nodes another may ask for, in all runs together.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import refusing

from partitioning.directory.partition import PartNodes, UnresolvedHalo
from partitioning.errors import InputError
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.comm.transport import PeerLost
from retexo.errors import TrainingError
from retexo.exchange.boundary import Boundary
from retexo.exchange.coding.elias_fano import encoded_size
from retexo.exchange.exchange_plan import _check_requested_rows
from retexo.sites import duplicate_ids, ledger
from retexo.sites.duplicate_ids import find_duplicate_ids
from retexo.sites.ledger import LEDGER, record_requests
from retexo.sites.resolve_halo import resolve_halo

NAMES = ("north", "east", "south", "west")


def part(rank: int, ids: list[int], halo: list[tuple[int, int]], num_parts: int) -> PartNodes:
    """A part with these ids, ascending, and halo nodes (owner, id), ascending."""
    owners, halo_ids = (
        torch.tensor(column, dtype=torch.int64)
        for column in ([o for o, _ in halo], [i for _, i in halo])
    )
    return PartNodes(
        features=torch.empty(len(ids), 1),
        node_ids=torch.tensor(ids, dtype=torch.int64),
        halo_owner=owners,
        halo_index=torch.full((len(halo),), -1),
        unresolved_halo=UnresolvedHalo(
            halo_ids, Path(f"{NAMES[rank]}/part.npz"), NAMES[:num_parts]
        ),
    )


def resolve_all(parts: list[PartNodes]) -> list[list[int] | str]:
    """Each site's halo_index, or its error."""
    sizes = tuple(part_nodes.num_inner for part_nodes in parts)

    def worker(comm: Communicator) -> list[int] | str:
        try:
            return resolve_halo(parts[comm.rank], sizes, comm).halo_index.tolist()
        except (InputError, PeerLost) as error:
            return f"{type(error).__name__}: {error}"

    return run_threads(len(parts), worker)


def test_rows_at_their_owners() -> None:
    parts = [
        part(0, [5, 8, 2**62], [(1, 0), (1, 2**63 - 1), (2, 6)], 3),
        part(1, [0, 1, 3, 2**63 - 1], [(0, 2**62)], 3),
        part(2, [6], [], 3),
    ]
    assert resolve_all(parts) == [[0, 3, 0], [2], []]


def test_dangling_ids_are_named_where_they_are_known() -> None:
    parts = [
        part(0, [5, 8], [(1, 1), (1, 2), (1, 3), (1, 4), (1, 9)], 3),
        part(1, [1], [(0, 5), (2, 6)], 3),
        part(2, [7], [], 3),
    ]
    north, east, south = resolve_all(parts)
    assert (
        north
        == "InputError: north/part.npz: array `src`: east does not hold node 2, 3, 4 and 1 more;"
        " correct `src_owner`, or remove these edges"
    )
    assert "east/part.npz: array `src`: south does not hold node 6;" in east
    assert south.startswith("PeerLost: north, east found wrong ids")
    assert "6" not in south


@pytest.mark.parametrize("num_parts", [2, 3, 4])
def test_an_id_with_two_owners_is_named_at_both(num_parts: int) -> None:
    ids = [[1, 40], [2, 40, 41], [3], [4]]
    messages = resolve_all([part(rank, ids[rank], [], num_parts) for rank in range(num_parts)])
    assert "north/part.npz: array `node_id`: east also holds node 40" in messages[0]
    assert "east/part.npz: array `node_id`: north also holds node 40" in messages[1]
    assert all(
        message.startswith("PeerLost: north, east found wrong ids") for message in messages[2:]
    )


@given(st.lists(st.sets(st.integers(0, 30)), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_ids_held_twice_are_those_of_both_sets(sets: list[set[int]]) -> None:
    sizes = tuple(map(len, sets))

    def worker(comm: Communicator) -> list[set[int]]:
        own = np.array(sorted(sets[comm.rank]), dtype=np.int64)
        return [set(both.tolist()) for both in find_duplicate_ids(own, sizes, comm)]

    expected = [[one & other if one is not other else set() for other in sets] for one in sets]
    assert run_threads(len(sets), worker) == expected


@pytest.mark.parametrize("world", [3, 4, 5, 8])
def test_the_judge_of_two_sites_is_a_third_one_without_their_key(world: int) -> None:
    pairs = [(one, other) for one in range(world) for other in range(world) if one != other]
    for one, other in pairs:
        judge = duplicate_ids._third_party(one, other, world)
        assert judge not in (one, other)
        assert judge == duplicate_ids._third_party(other, one, world)
    keys = run_threads(world, duplicate_ids._shared_keys)
    assert all(keys[one][other] == keys[other][one] for one, other in pairs)
    assert (
        len({keys[one][other] for one, other in pairs if one < other}) == world * (world - 1) // 2
    )


def test_a_judge_sees_no_id_and_no_hash_that_it_could_make() -> None:
    """Hashes of one id differ from pair to pair and from run to run."""
    seen: list[np.ndarray] = []

    def record(
        received: list[torch.Tensor], sizes: tuple[int, ...], comm: Communicator
    ) -> list[np.ndarray]:
        seen.extend(hashes.numpy() for hashes in received)
        return compare(received, sizes, comm)

    compare = duplicate_ids._compare
    with patch.object(duplicate_ids, "_compare", record):
        for _ in range(2):
            run_threads(3, lambda comm: find_duplicate_ids(np.array([7]), (1, 1, 1), comm))
    values = np.concatenate(seen)
    assert len(values) == 2 * 6
    assert len(set(values.tolist())) == 2 * 3  # two of a pair agree, nothing else does
    assert 7 not in values


def test_bytes_by_hand() -> None:
    halo = [[(1, 100), (1, 130), (2, 900)], [(0, 10)], []]
    ids = [[10, 20, 30], [100, 130], list(range(900, 920))]

    def worker(comm: Communicator) -> int:
        resolve_halo(part(comm.rank, ids[comm.rank], halo[comm.rank], 3), (3, 2, 20), comm)
        return sum(comm.meter.entries.values())

    heads = 6 * 3 * 8
    requests = (
        encoded_size(2, 31) + 1
    )  # 100 and 130; one value in a span of one takes a bit, in a byte
    held_bits = 1 + 1 + 1  # bits for 0 by 1 and by 2, for 1 by 0
    keys = 3 * 16
    hashes = 8 * 2 * (3 + 2 + 20)
    verdicts = 2 * (1 + 1 + 3)  # for each list a bit a hash
    counts = 6 * 2 * 3 * 8
    rows = encoded_size(2, 2) + encoded_size(1, 20) + encoded_size(1, 3)
    requests += encoded_size(1, 1)
    assert (
        sum(run_threads(3, worker))
        == heads + requests + held_bits + keys + hashes + verdicts + counts + rows
    )


OWNERS = ["east", "south"]


def ask_for_rows(folder: Path, east: list[int], south: list[int], limit: float | None) -> None:
    record_requests(
        folder, OWNERS, [np.array(east, np.int64), np.array(south, np.int64)], 100, limit
    )


@pytest.mark.parametrize("limit", [5, 0.05])
def test_runs_add_up_and_what_is_asked_for_twice_counts_once(tmp_path: Path, limit: float) -> None:
    ask_for_rows(tmp_path, [1, 2, 3], [], limit)
    ask_for_rows(tmp_path, [3, 4], [9, 10, 11, 12, 13], limit)
    ask_for_rows(tmp_path, [1, 2, 3, 4, 50], [9], limit)
    before = (tmp_path / LEDGER).read_bytes()
    words = (
        f"sites.max_rows_shared={limit}: a site may get at most 5 of 100 nodes; east asks for 1, 6"
        " with those of earlier runs; nothing was sent"
    )
    with refusing(begins=words):
        ask_for_rows(tmp_path, [60], [9], limit)
    assert (tmp_path / LEDGER).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [LEDGER]


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        (([], [], 0), ([], [5], 0), "south asks for 1, 1 with"),  # a site may give nothing
        (([1, 2, 3], [], None), ([4], [], 3), "east asks for 1, 4 with those of earlier runs"),
    ],
)
def test_what_earlier_runs_got_counts_whatever_their_limit(
    tmp_path: Path, before: Any, now: Any, message: str
) -> None:
    ask_for_rows(tmp_path, *before)
    with pytest.raises(InputError, match=message):
        ask_for_rows(tmp_path, *now)


def test_a_damaged_ledger_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a readable ledger of a site"):
        ask_for_rows(tmp_path, [], [], 5)


def test_rows_that_were_not_asked_for_at_the_start_are_not_given() -> None:
    def boundary(*rows: int) -> Boundary:
        nothing = np.empty(0, np.int32)
        return Boundary(
            np.array(rows),
            nothing,
            nothing.astype(np.uint8),
            np.zeros(len(rows) + 1, np.int64),
            nothing,
        )

    named = [torch.tensor([], dtype=torch.int64), torch.tensor([2, 5, 7])]
    _check_requested_rows([boundary(), boundary(2, 7)], named)
    with pytest.raises(
        TrainingError, match="rank 1 requests rows of nodes that it did not request"
    ):
        _check_requested_rows([boundary(), boundary(2, 6)], named)


def test_runs_at_once_give_no_more_than_one_after_the_other(tmp_path: Path) -> None:
    def asked_of(node: int) -> bool:
        try:
            ask_for_rows(tmp_path, [node], [], 5)
        except InputError:
            return False
        return True

    with ThreadPoolExecutor(12) as runs:
        allowed = list(runs.map(asked_of, range(12)))
    assert allowed.count(True) == 5
    with np.load(tmp_path / LEDGER) as account:
        assert account["0"].tolist() == [node for node in range(12) if allowed[node]]


def test_a_folder_that_cannot_keep_the_ledger(tmp_path: Path) -> None:
    """Without it a later limit would be wrong, so nothing is given."""
    with (
        patch.object(ledger, "rename_durably", side_effect=OSError(28, "No space left on device")),
        pytest.raises(
            InputError, match=f"{LEDGER}: cannot be written: No space left on device; free"
        ),
    ):
        ask_for_rows(tmp_path, [1], [], None)
