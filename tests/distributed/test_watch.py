"""Workers and nodes that die, stop or are slow: a parent's loop with real, idle processes."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from support import together, wait_until

from retexo.errors import Stopped, TrainingError
from retexo.launch import monitor, start_workers
from retexo.launch.channels import Channel
from retexo.launch.fork_server import warm_up
from retexo.launch.heartbeat import ProcessMonitor, Progress, Stopwatch
from retexo.launch.rendezvous import Node
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings
from retexo.worker import process

DEFAULT = compose()
TIMEOUT = 2.0
"""seconds of heartbeat_timeout"""
KEPT = Path(tempfile.gettempdir()) / f"retexo-test-watch-{os.getpgid(0)}"
"""What a worker leaves when it had the time to; its process group is that of the tests."""


def nodes_of(num_partitions: int, parts_per_node: int, **limits: float) -> Settings:
    settings = replace(DEFAULT, num_partitions=num_partitions, parts_per_node=parts_per_node)
    return replace(settings, distributed=replace(settings.distributed, **limits))


# --- what workers do ----------


def serve(rank: int, job: dict[int, str], parent: socket.socket, streams: None = None) -> None:
    distributed = SimpleNamespace(heartbeat_timeout=TIMEOUT)
    worker: Any = SimpleNamespace(settings=SimpleNamespace(distributed=distributed), what=job[rank])
    process.serve(act, rank, worker, parent, streams)


def act(rank: int, job: Any, streams: None, progress: Progress) -> dict[str, Any]:
    what = job.what
    progress.set_round(1, 17)
    progress.enter("round")
    if what == "many rounds":
        for number in range(20_000):
            progress.send({"round": {"layer": 0, "round": number}})
        KEPT.touch()
        return {"rank": rank}
    if what == "fail":
        raise ValueError("it went wrong\nin two lines")
    if what == "no memory":
        torch.empty(1 << 50)
    elif what in ("stop soon", "stop late"):
        stop_requested = process.catch_termination()
        progress.enter("evaluation")
        while not stop_requested():
            time.sleep(0.01)
        time.sleep(1 if what == "stop soon" else 0)
        KEPT.touch()
        if what == "stop soon":
            raise Stopped("told to stop")
        time.sleep(1000)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what != "return":
        time.sleep(1000)  # as a collective that waits for a peer
    return {"rank": rank}


@contextmanager
def node_pair(timeout: float = TIMEOUT) -> Iterator[list[Node]]:
    """Two nodes that met, with a rank each; a thread can be a node's parent."""
    ends = [Channel(end) for end in tcp_pair()]
    cluster = nodes_of(2, 1, heartbeat_timeout=timeout)
    yield [
        Node(replace(cluster, node_rank=rank), "run", None, {1 - rank: end})  # type: ignore[arg-type]
        for rank, end in enumerate(ends)
    ]
    for end in ends:
        end.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return socket.create_connection(server.getsockname()), server.accept()[0]


def run_node(node: Node, what: str) -> Any:
    """The result of the node's worker, or the message of the error.

    As start_workers.run_workers, in a thread.
    """
    context = start_workers.multiprocessing.get_context("forkserver")  # type: ignore[attr-defined]
    own, parent = socket.socketpair()
    process = context.Process(
        target=serve, args=(node.rank, {node.rank: what}, parent), daemon=True
    )
    process.start()
    parent.close()
    workers = {node.rank: monitor.Worker(process, Channel(own, limit=None))}
    try:
        return monitor.NodeMonitor(workers, node).run()[node.rank]
    except TrainingError as error:
        return str(error)
    finally:
        start_workers._kill_all([process])
        own.close()
        assert not process.is_alive()


def run_both(first: str, second: str) -> list[Any]:
    warm_up()
    with node_pair() as pair:
        return together(partial(run_node, pair[0], first), partial(run_node, pair[1], second))


# --- on one node ----------


def alone(*what: str, **look: Any) -> dict[int, Any]:
    """Run a node with these workers, in this thread, as app=train does."""
    warm_up()
    cluster = nodes_of(len(what), len(what), heartbeat_timeout=TIMEOUT)
    node = Node(cluster, "run", None)  # type: ignore[arg-type]
    jobs = dict(enumerate(what))
    return start_workers.run_workers(range(len(what)), serve, jobs, node, **look)


def test_a_slow_callback_does_not_block_a_worker() -> None:
    """A worker sends more rounds than a pipe holds while the callback waits for its last one."""
    KEPT.unlink(missing_ok=True)
    rounds: list[int] = []

    def look(phase: str, bytes_sent: int, lines: Sequence[dict[str, Any]]) -> None:
        wait_until(KEPT.exists, "the worker's last round, if it is not blocked")
        rounds.extend(line["round"] for line in lines)

    alone("many rounds", look=look)
    KEPT.unlink()
    assert rounds == [*range(20_000)]


def test_a_slow_callback_delays_no_heartbeat_to_another_node() -> None:
    warm_up()
    looked, enough = threading.Event(), threading.Event()

    def look(phase: str, bytes_sent: int, lines: Sequence[dict[str, Any]]) -> None:
        looked.set()
        enough.wait(60)
        raise ValueError("of a callback")

    with node_pair(60.0) as pair, ThreadPoolExecutor(1) as pool:
        run = pool.submit(start_workers.run_workers, [0], serve, {0: "wait"}, pair[0], look=look)
        assert looked.wait(60)
        pair[1].links[0].receive()  # what was sent before
        heard = [pair[1].links[0].receive_one(10.0) for _ in range(3)]
        enough.set()
        assert all("beat" in message for message in heard)
        with pytest.raises(ValueError, match="of a callback"):
            run.result(60)


DEATHS = {
    "stop": "rank 1 (node 0) was stopped (SIGSTOP, or a debugger)",
    "fail": "rank 1 (node 0) failed: ValueError: it went wrong",
    "no memory": (
        "rank 1 (node 0) failed: not enough memory: can't allocate memory: you tried to allocate"
    ),
}


@pytest.mark.parametrize("what", ["fail", "no memory"])
def test_a_death_is_named_with_rank_node_and_phase(what: str) -> None:
    """The death is reported at once, though the other worker waits as long as a test may take.

    test_restart.py has stops and kills.
    """
    with pytest.raises(TrainingError) as caught:
        alone("wait", what)
    first = str(caught.value).splitlines()[0]
    assert first.startswith(DEATHS[what])
    assert first.endswith("; phase: round (layer 1, round 17)")
    assert ("Traceback" in str(caught.value)) == (what == "fail")


def test_a_fork_server_that_starts_no_workers() -> None:
    """It ends, and the next run has one of its own."""
    node = Node(nodes_of(2, 2, init_timeout=2.0), "run", None)  # type: ignore[arg-type]
    warm_up()
    server = psutil.Process(start_workers.multiprocessing.forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]
    server.suspend()
    with pytest.raises(TrainingError, match=r"the fork server, .* killed or stopped") as caught:
        start_workers.run_workers(range(2), serve, {0: "return", 1: "return"}, node)
    assert "no answer for 2 s" in str(caught.value)
    assert server.status() == psutil.STATUS_ZOMBIE
    assert alone("return", "return") == {0: {"rank": 0}, 1: {"rank": 1}}


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (KeyboardInterrupt(), "Ctrl-C"),
        (SystemExit(143), "SIGTERM"),
        (SystemExit(3), "SystemExit"),
        (SystemExit("enough"), "SystemExit"),
    ],
    ids=repr,
)
def test_a_callback_that_exits_is_no_signal(error: BaseException, name: str) -> None:
    assert start_workers.name_of(error) == name


def test_a_second_ctrl_c_kills_workers_that_are_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is told to stop, and would take as long as a test may."""
    monkeypatch.setattr(monitor, "STOP_TIMEOUT", 1000.0)
    KEPT.unlink(missing_ok=True)

    def look(phase: str, bytes_sent: int, lines: Sequence[dict[str, Any]]) -> None:
        if phase == "evaluation":
            raise KeyboardInterrupt

    def interrupt_again() -> None:
        wait_until(KEPT.exists, "the worker saves")
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt_again)
        with pytest.raises(KeyboardInterrupt):
            alone("stop late", look=look)
    KEPT.unlink()


# --- on two nodes ----------


@pytest.mark.parametrize(("what", "victim"), [("stop", 0), ("fail", 1)])
def test_a_death_ends_both_nodes_with_the_same_sentence(what: str, victim: int) -> None:
    acts = ["wait", "wait"]
    acts[victim] = what
    outcomes = [outcome.splitlines()[0] for outcome in run_both(*acts)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].startswith(
        DEATHS[what].replace("rank 1 (node 0)", f"rank {victim} (node {victim})")
    )
    assert "phase: round (layer 1, round 17)" in outcomes[0]


@pytest.mark.parametrize(("victim", "how"), [(0, "closed"), (1, "silent")])
def test_a_node_that_goes_is_noticed(victim: int, how: str) -> None:
    """A node is lost when its parent died, or when its link is silent without having closed."""
    warm_up()
    with node_pair() as pair, ThreadPoolExecutor(1) as pool:
        gone = next(iter(pair[victim].links.values()))
        gone.send({"beat": "exchange (layer 0)"})
        outcome = pool.submit(run_node, pair[1 - victim], "wait")
        if how == "closed":
            gone.close()
        message = outcome.result(60)
    reason = "connection closed" if how == "closed" else "no heartbeat for"
    assert message.startswith(f"node {victim} (rank {victim}) is lost: {reason}"), message
    assert message.endswith("phase: exchange (layer 0)")


def test_a_link_between_two_nodes_that_both_reach_node_0() -> None:
    """Two of three nodes no longer hear each other; node 0 hears both and ends all."""
    warm_up()
    cluster = nodes_of(3, 1, heartbeat_timeout=TIMEOUT)
    links: list[dict[int, Channel]] = [{}, {}, {}]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        ends = [Channel(end) for end in tcp_pair()]
        links[first][second], links[second][first] = ends
    cut = [Channel(end) for end in tcp_pair()]
    links[2][1] = cut[0]  # what node 2 sends to node 1 is lost
    trio = [Node(replace(cluster, node_rank=rank), "run", None, links[rank]) for rank in range(3)]  # type: ignore[arg-type]
    message, *others = together(*(partial(run_node, node, "wait") for node in trio))
    assert others == [message] * 2
    assert re.match(
        r"node [12] \(rank [12]\) is lost to node [12] \(rank [12]\): no heartbeat", message
    ), message


def test_a_node_that_is_only_slow_is_not_lost() -> None:
    """Its heartbeats come late, each just in time."""
    with node_pair() as pair:
        waiting = monitor.NodeMonitor({}, pair[0])
        for _ in range(3):
            waiting._check_heartbeats(0.6 * TIMEOUT)
            pair[1].links[0].send({"beat": "round"})
            waiting._read(60.0)
        assert not waiting._failures
        waiting._check_heartbeats(1.1 * TIMEOUT)
        assert waiting._failures


@pytest.mark.parametrize(("victim", "why"), [(0, "Ctrl-C"), (1, "SIGTERM")])
def test_a_node_that_was_told_to_end_lets_the_others_keep_their_round(
    victim: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other node's worker takes a second to stop, as after a round.

    It is told to, and not killed meanwhile.
    """
    # A worker of these tests imports much before it begins.
    monkeypatch.setattr(monitor, "STOP_TIMEOUT", 30.0)
    warm_up()
    with node_pair(60.0) as pair, ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(run_node, pair[1 - victim], "stop soon")
        link = next(iter(pair[victim].links.values()))
        while link.receive_one(60.0) != {"beat": "evaluation"}:
            pass
        leaving = monitor.NodeMonitor({}, pair[victim])
        leaving.stop(why)
        with pytest.raises(TrainingError, match=f"was ended by {why}"):
            leaving.run()
        next(iter(pair[victim].links.values())).close()
        message = outcome.result(60)
    assert message.startswith(f"node {victim} (rank {victim}) was ended by {why}; phase: ")
    assert KEPT.exists(), "the worker was killed before it had kept its round"
    KEPT.unlink()


@pytest.mark.parametrize("failure", [3, {"kind": "x"}])
def test_nonsense_of_another_node_is_no_crash(failure: Any) -> None:
    warm_up()
    with node_pair(timeout=60.0) as pair, ThreadPoolExecutor(1) as pool:
        for message in ({"what": 1}, {"beat": ["done"]}, {"failed": failure}):
            pair[1].links[0].send(message)
        outcome = pool.submit(run_node, pair[0], "return")
        assert outcome.result(60) in ({"rank": 0}, "another node failed and sent no reason")


# --- the monitor of a process ----------


def test_who_computes_is_not_silent() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    )
    try:
        process.stdout.readline()
        monitor, times = ProcessMonitor(process.pid), psutil.Process(process.pid).cpu_times
        monitor.add(1.0)  # the first look has nothing to compare with
        used = times().user
        wait_until(lambda: times().user > used + 0.02, "CPU time")
        monitor.add(1.0)
        assert monitor.idle_seconds == 0
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "stopped")
        monitor.add(1.0)  # what it computed until it was stopped
        monitor.add(4.0)
        assert monitor.idle_seconds >= 4.0
        assert str(monitor).startswith("was stopped (SIGSTOP")
    finally:
        process.kill()
        process.wait()


def test_a_parent_that_was_stopped_itself_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((0.0, 1.0, 100.0, 100.5))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    stopwatch = Stopwatch(1.0)
    assert [stopwatch.elapsed() for _ in range(3)] == [1.0, 2.0, 0.5]
