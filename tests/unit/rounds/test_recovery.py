"""Recovery states and the replay log, and the effects of damage."""

import logging
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partitioning.errors import InputError
from retexo.comm.collectives import Communicator
from retexo.comm.replay_log import FORMAT_VERSION, HEADER, ReplayLog, checksum
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import MessageTag
from retexo.comm.transport import Pieces
from retexo.errors import TrainingError
from retexo.rounds.recovery import Recovery

RUN, OTHER = "ab" * 32, "cd" * 32
START = len(FORMAT_VERSION) + 32
"""Bytes before the first record of a replay log."""


def recovery(
    directory: Path, identity: str = RUN, every: int | None = 1, rank: int = 0
) -> Recovery:
    return Recovery(directory, identity, every, rank=rank, world_size=2)


def agree_on_place(folder: Path, world: int = 2) -> list[tuple[int, int]]:
    """Where each worker in folder/0, folder/1, ... would continue."""
    return run_threads(
        world, lambda comm: recovery(folder / str(comm.rank), rank=comm.rank).agree(comm)
    )


@pytest.mark.parametrize(
    ("first", "second", "goes_on"),
    [
        ([(0, 2), (0, 4)], [(0, 2), (0, 4)], (0, 4)),
        ([(0, 2), (0, 4)], [(0, 4), (0, 6)], (0, 4)),  # one was faster
        ([(0, 4)], [(0, 6)], (0, 0)),
        ([(0, 4), 0], [(0, 4)], (0, 4)),  # one has ended the layer
        ([(0, 4), 0], [(0, 4), 0], (1, 0)),
        ([0, (1, 2)], [0], (1, 0)),
        ([0, (1, 2)], [(0, 8)], (0, 0)),
        ([0, (1, 2), (1, 4), 1], [0, (1, 2), (1, 4), 1], (2, 0)),
        ([0, (1, 2)], [0, (1, 2)], (1, 2)),
        ([1], [1], (0, 0)),  # a layer without the one before it
    ],
)
def test_workers_agree_on_the_newest_that_all_have(
    first: list[Any], second: list[Any], goes_on: tuple[int, int], tmp_path: Path
) -> None:
    """An entry is a saved round or a finished layer."""
    for rank, entries in enumerate((first, second)):
        saved = recovery(tmp_path / str(rank), rank=rank)
        for entry in entries:
            if isinstance(entry, tuple):
                saved.save_round(*entry, {"at": list(entry)})  # type: ignore[call-arg]
            else:
                saved.save_layer(entry, {"layer": entry})
    assert agree_on_place(tmp_path) == [goes_on] * 2


def test_the_two_newest_rounds_are_kept_and_the_last_is_gone_on_from(tmp_path: Path) -> None:
    saved, states = recovery(tmp_path, every=2), list[Any]()
    for number in filter(saved.is_due, range(8)):
        saved.save_round(0, number, {"at": number})
    assert {path.name for path in tmp_path.glob("*.state")} == {"step0-4.state", "step0-6.state"}
    assert run_threads(1, saved.agree) == [(0, 6)]
    assert saved.load_round(0, states.append)
    assert not saved.load_round(6, states.append)
    assert states == [{"at": 6}]


def test_a_replay_log_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "tape").mkdir()
    with pytest.raises(InputError, match=r"tape: cannot be used \(not a regular file\); "):
        recovery(tmp_path)


def test_damage_and_other_runs_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for rank in range(2):
        saved = recovery(tmp_path / str(rank), rank=rank)
        saved.save_round(0, 1, {"values": torch.arange(5)})
        saved.save_round(0, 2, {"values": torch.arange(5)})
    undamaged = (tmp_path / "1" / "step0-2.state").read_bytes()
    for place in range(0, len(undamaged), 7):
        damaged = bytearray(undamaged)
        damaged[place] ^= 4
        (tmp_path / "1" / "step0-2.state").write_bytes(damaged)
        with caplog.at_level(logging.WARNING):
            assert agree_on_place(tmp_path) == [(0, 1)] * 2
    assert "1/step0-2.state: not a readable state (damaged" in caplog.text
    (tmp_path / "1" / "step0-2.state").write_bytes(undamaged)
    assert agree_on_place(tmp_path) == [(0, 2)] * 2
    recovery(tmp_path / "other", OTHER, rank=1).save_round(0, 2, {})
    (tmp_path / "other" / "step0-2.state").rename(tmp_path / "1" / "step0-2.state")
    with caplog.at_level(logging.WARNING):
        assert agree_on_place(tmp_path) == [(0, 1)] * 2
    assert "1/step0-2.state: not a readable state (of another run" in caplog.text


@pytest.mark.parametrize(
    ("source", "target", "goes_on", "says"),
    [
        ("0/step1-2.state", "1/step1-2.state", (1, 0), "of rank 0, in another's place"),
        ("0/layer0.state", "1/layer0.state", (0, 0), "of rank 0, in another's place"),
        ("1/step1-2.state", "1/step1-9.state", (1, 2), "of round 2, in another's place"),
        ("1/layer0.state", "1/layer1.state", (1, 2), "of layer 0, in another's place"),
        ("1/layer0.state", "1/step1-2.state", (1, 0), "of layer 0, round None, in another's"),
    ],
)
def test_a_state_in_the_place_of_another_is_named(
    source: str,
    target: str,
    goes_on: tuple[int, int],
    says: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for rank in range(2):
        saved = recovery(tmp_path / str(rank), rank=rank)
        saved.save_layer(0, {"values": torch.arange(5)})
        saved.save_round(1, 2, {"values": torch.arange(5)})
    (tmp_path / target).write_bytes((tmp_path / source).read_bytes())
    assert agree_on_place(tmp_path) == [goes_on] * 2
    assert f"{tmp_path / target}: not a readable state ({says}" in caplog.text


# --- the replay log ----------

messages = st.lists(
    st.tuples(
        st.lists(st.integers(0, 255), max_size=4),
        st.lists(st.lists(st.integers(-(2**40), 2**40), max_size=3), min_size=2, max_size=2),
    ),
    max_size=5,
)


@given(messages=messages, share=st.floats(0, 1))
def test_a_replay_log_is_read_as_far_as_it_is_whole(
    messages: list[Any], share: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("tape") / "tape"
    replay_log = ReplayLog(path, RUN)
    ends = [START]
    for sent, received in messages:
        assert not replay_log.next(0, as_pieces([]))
        parts = [np.array(part, np.int64).view(np.uint8) for part in received]
        replay_log.append(checksum(as_pieces(sent)), parts)
        assert len(replay_log) == len(ends)
        ends.append(path.stat().st_size)
    replay_log.close()
    cut = round(share * path.stat().st_size)
    path.write_bytes(path.read_bytes()[:cut])
    again = ReplayLog(path, RUN)
    intact = sum(end <= cut for end in ends[1:]) if cut >= START else 0
    assert len(again) == intact
    for sent, received in messages[:intact]:
        buffers = [np.empty(len(part), np.int64) for part in received]
        assert again.next(checksum(as_pieces(sent)), [part.view(np.uint8) for part in buffers])
        assert [part.tolist() for part in buffers] == received
    assert not again.next(0, as_pieces([]))
    again.append(7, as_pieces([8]))  # goes on behind what was whole
    again.close()
    assert len(ReplayLog(path, RUN)) == intact + 1


def as_pieces(values: list[int]) -> Pieces:
    return [np.array(values, np.int64).view(np.uint8), np.empty(0, np.uint8)]


def test_a_record_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    replay_log = ReplayLog(tmp_path / "tape", RUN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(TrainingError, match="tape: cannot be written: File too large"):
            replay_log.append(1, as_pieces([5] * 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_replay_log_of_another_run_is_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ReplayLog(tmp_path / "tape", OTHER).append(1, as_pieces([2]))
    assert len(ReplayLog(tmp_path / "tape", RUN)) == 0
    assert f"{tmp_path}/tape: belongs to another run" in caplog.text


def test_a_size_that_the_replay_log_does_not_have_is_refused(tmp_path: Path) -> None:
    """A record announces more than the next record holds.

    Sizes above all memory are rejected earlier.
    """

    def work(comm: Communicator) -> None:
        comm.replay_log = ReplayLog(tmp_path / f"tape{comm.rank}", RUN)
        tag = MessageTag("setup")
        announced = comm.all_to_all([torch.tensor([3])] * 2, [1, 1], tag)
        sizes = [3 if rank == comm.rank else int(announced[rank]) for rank in range(2)]
        comm.all_to_all([torch.zeros(3)] * 2, sizes, tag)

    run_threads(2, work)
    tape = tmp_path / "tape0"
    content = bytearray(tape.read_bytes())
    size, _, sent = HEADER.unpack_from(content, START)
    body = np.array([3, 1_000], np.int64).view(np.uint8)
    content[START : START + HEADER.size] = HEADER.pack(size, checksum([body]), sent)
    content[START + HEADER.size : START + HEADER.size + size] = body.tobytes()
    tape.write_bytes(content)
    with pytest.raises(TrainingError, match="record 1 differs from the messages"):
        run_threads(2, work)


@pytest.mark.parametrize(("sent", "values"), [(2, [5]), (1, [5, 6])])
def test_a_run_that_does_something_else_is_told(
    sent: int, values: list[int], tmp_path: Path
) -> None:
    ReplayLog(tmp_path / "tape", RUN).append(1, as_pieces([5]))
    with pytest.raises(TrainingError, match="record 0 differs from the messages"):
        ReplayLog(tmp_path / "tape", RUN).next(sent, as_pieces(values))


def test_a_flipped_bit_ends_the_replay_log(tmp_path: Path) -> None:
    replay_log = ReplayLog(tmp_path / "tape", RUN)
    for value in range(3):
        replay_log.append(value, as_pieces([value]))
    replay_log.close()
    undamaged = (tmp_path / "tape").read_bytes()
    record = (len(undamaged) - START) // 3
    for place in range(START + record + 16, START + 2 * record):  # in the body of the second
        (tmp_path / "tape").write_bytes(
            undamaged[:place] + bytes([undamaged[place] ^ 1]) + undamaged[place + 1 :]
        )
        assert len(ReplayLog(tmp_path / "tape", RUN)) == 1
