"""Failures of workers in any phase, of parents, nodes and connections.

The run restarts by itself, or is resumed, and its files equal those of an undisturbed run. The
ordinary run takes a sample of faults, phases, tasks and transports, --all takes all. Parents that
are killed are processes, others threads.
"""

import contextlib
import gc
import itertools
import json
import multiprocessing
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from socket import socket
from typing import Any

import psutil
import pytest
from loopback_server import Proxy
from support import (
    assert_same_run,
    finish,
    free_port,
    group_members,
    make_credentials,
    random_graph,
    running_cli,
    save_npz,
    thirds,
    together,
    wait_until,
    write_partitions,
)

from partitioning.errors import InputError
from retexo.apps import partition_data, train
from retexo.comm.socket_transport import Streams
from retexo.errors import TrainingError
from retexo.launch import rendezvous
from retexo.launch.heartbeat import Progress
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings
from retexo.worker import train as train_worker

PHASES = ("rendezvous", "plan", "exchange", "round", "evaluation", "checkpoint", "embedding")
BACKENDS = ("gloo", "sockets", "tls", "hub")


def kill(disk: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(disk: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def terminate(disk: Path) -> None:
    """The whole run, as a batch system does it.

    Goes on once the parent has passed it on, where that does not end it.
    """
    parent = parent_process()
    was_told, handler = threading.Event(), signal.getsignal(signal.SIGTERM)
    if callable(handler):
        signal.signal(
            signal.SIGTERM, lambda number, frame: (handler(number, frame), was_told.set())
        )
    os.kill(parent.pid, signal.SIGTERM)
    while not was_told.wait(0.01):  # a wait without a limit would keep the handler from running
        pass


def full_disk(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


FAULTS: dict[str, Callable[[Path], None]] = {
    "kill": kill,
    "stop": stop,
    "terminate": terminate,
    "full disk": full_disk,
}


def struck(
    fault: str,
    phase: str,
    when: Path,
    rank: int,
    job: Any,
    parent: socket,
    streams: Streams | None,
) -> None:
    """A worker, struck once as it enters the phase; of the rounds the fourth of layer 1.

    Rank 0 is struck in the phase `checkpoint`, which the others do not enter, else rank 1.
    """
    if rank == (phase != "checkpoint"):
        enter, at = Progress.enter, Progress.set_round

        def strike() -> None:
            when.touch()
            FAULTS[fault](when.parent)

        def enters(self: Progress, name: str) -> None:
            enter(self, name)
            if name == phase != "round" and not when.exists():
                strike()

        def is_at(self: Progress, layer: int, number: int = -1) -> None:
            at(self, layer, number)
            if phase == "round" and (layer, number) == (1, 3) and not when.exists():
                strike()

        Progress.enter, Progress.set_round = enters, is_at  # type: ignore[method-assign]
    train_worker.main(rank, job, parent, streams)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "FIRST_PAUSE", 0.01)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 2 MB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(
            f"no file system can be mounted here ({mounted.stderr.strip()}); that needs root"
        )
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


COMMON = (
    "app=train",
    "dataset_name=file",
    "dataset_file=toy.npz",
    "num_partitions=3",
    "num_rounds=[6,7]",
    "stopping=none",
    "hidden_dim=6",
    "learning_rate=[0.05]",
    "cluster.threads=1",
    "device=cpu",
    "exchange.precision=fp32",
    "checkpoint.every=2",
)
TASKS = {
    "classes": (),
    "links": ("task=link_prediction", "num_rounds=9"),
    "types": ("model=rgcn", "hidden_dim=8"),
}
LONG = pytest.mark.long("another phase, victim, task or transport, of which some are in the sample")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partitions by task, and credentials of two nodes."""
    folder = tmp_path_factory.mktemp("restart")
    graph, assignment = random_graph(60, 240, width=30), [node % 5 % 3 for node in range(60)]
    write_partitions(folder / "classes", graph, thirds(60), assignment, 3)
    with contextlib.suppress(pytest.skip.Exception):  # without cryptography
        make_credentials(folder / "keys", "north", "east")
    return folder


def settings_of(base: Path, task: str, *more: str) -> list[str]:
    parts = base / task
    options = [*COMMON, *TASKS[task], f"partition_dir={parts}", *more]
    if task != "classes":
        data = {
            "links": ["dataset_name=file", f"dataset_file={base}/links.npz"],
            "types": ["dataset_name=synthetic_hetero"],
        }[task]
        options = [one for one in options if not one.startswith("dataset_")] + data
        if not parts.exists():
            if task == "links":
                save_npz(base / "links.npz", random_graph(60, 240, width=30))
            partition_data.run(compose(options))
    return options


def on_node(base: Path, backend: str, node: int, port: int) -> list[str]:
    own = ["parts_per_node=2", "distributed.interface=lo"]
    own += [f"node_rank={node}", f"distributed.master_port={port}"]
    if backend in ("tls", "hub"):
        pytest.importorskip("cryptography")
        own.append(f"distributed.credentials={base}/keys/{('north', 'east')[node]}")
    if backend == "hub":  # in node 0
        own.append(f"distributed.hub=127.0.0.1:{port}")
    if backend == "sockets":
        own.append("distributed.tls=false")
    return [*own, f"distributed.backend={'gloo' if backend == 'gloo' else 'sockets'}"]


@pytest.fixture(scope="module")
def undisturbed(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Make, by task, the directory of a run on one node that nothing interrupts."""
    folder = tmp_path_factory.mktemp("undisturbed")

    def run(task: str) -> Path:
        if not (folder / task).exists():
            train.run(compose(settings_of(base, task)), folder / task)
        return folder / task

    return run


def in_threads(settings: list[Settings], folder: Path) -> list[Any]:
    """The summaries of two parents, or their exceptions."""

    def run(node: int) -> Any:
        try:
            return train.run(settings[node], folder / f"node{node}")
        except TrainingError as error:
            return error

    return together(partial(run, 0), partial(run, 1))


WORKER_SAMPLE = {
    ("kill", "rendezvous", "classes", "hub"),
    ("kill", "exchange", "links", "tls"),
    ("stop", "plan", "classes", "gloo"),
}


@pytest.mark.parametrize(
    ("fault", "phase", "task", "backend"),
    [
        pytest.param(*case, marks=[] if case in WORKER_SAMPLE else LONG)
        for case in itertools.product(("kill", "stop"), PHASES, TASKS, BACKENDS)
    ],
)
def test_a_worker_dies(
    fault: str,
    phase: str,
    task: str,
    backend: str,
    base: Path,
    undisturbed: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, common, port = undisturbed(task), settings_of(base, task), free_port()
    common.append("distributed.heartbeat_timeout=3")
    settings = [compose([*common, *on_node(base, backend, node, port)]) for node in (0, 1)]
    monkeypatch.setattr(train, "main", partial(struck, fault, phase, tmp_path / "when"))
    summaries = in_threads(settings, tmp_path)
    assert [summary["status"] for summary in summaries] == ["done"] * 2, summaries
    how = {"kill": "killed by SIGKILL", "stop": "stopped"}[fault]
    for summary in summaries:
        assert summary["restarts"]["count"] == 1
        (cause,) = summary["restarts"]["causes"]
        assert re.match(rf"rank {int(phase != 'checkpoint')} \(node 0\) was {how}", cause)
        assert f"phase: {phase}" in cause
    assert_same_run(tmp_path / "node0", expected)


@pytest.mark.parametrize(
    ("fault", "phase", "says"),
    [("terminate", "round", "143"), ("full disk", "checkpoint", "cannot be written")],
)
def test_a_run_that_was_ended_is_resumed(
    fault: str,
    phase: str,
    says: str,
    base: Path,
    undisturbed: Any,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Told to stop, workers end the next round and keep it."""
    place = request.getfixturevalue("disk" if fault == "full disk" else "tmp_path")
    settings = settings_of(base, "classes")
    with monkeypatch.context() as patched:
        patched.setattr(train, "main", partial(struck, fault, phase, place / "when"))
        with pytest.raises((TrainingError, SystemExit), match=says):
            train.run(compose(settings), place / "run")
    assert not multiprocessing.active_children()
    (place / "filler").unlink(missing_ok=True)
    summary = train.run(compose([*settings, "resume=auto"]), place / "run")
    assert fault != "terminate" or list(summary["resumed"].values())[:2] == [1, 5]
    assert_same_run(place / "run", undisturbed("classes"))


@pytest.mark.long("twenty runs of what others run once")
@pytest.mark.timeout(600)
def test_runs_leave_nothing_behind(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process, no thread, no file descriptor, no shared memory, no temporary file."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def left(number: int) -> list[Any]:
        train.run(compose(settings_of(base, "classes")), tmp_path / str(number))
        gc.collect()
        me, shared = psutil.Process(), Path("/dev/shm").glob("torch_*")
        pids = {path.name.split("_")[1] for path in shared}
        processes = {child.pid for child in me.children(recursive=True)}  # the fork server stays
        orphans = {pid for pid in pids if not psutil.pid_exists(int(pid))}
        temporary = list((tmp_path / "temporary").iterdir())
        return [processes, me.num_fds(), orphans, temporary, me.num_threads()]

    first = left(0)
    for number in range(1, 20):
        assert left(number) == first


# --- connections ----------


def test_connections_that_are_reset(base: Path, undisturbed: Any, tmp_path: Path) -> None:
    expected, common, port = undisturbed("classes"), settings_of(base, "classes"), free_port()
    proxy = Proxy(port)
    proxy.cuts[:] = [8_000]  # bytes to node 1, in the middle of the rounds
    ports = (port, proxy.port)
    settings = [compose([*common, *on_node(base, "tls", node, ports[node])]) for node in (0, 1)]
    summaries = in_threads(settings, tmp_path)
    proxy.close()
    assert not proxy.cuts
    assert [summary["status"] for summary in summaries] == ["done"] * 2, summaries
    assert summaries[0]["restarts"]["count"] == 1
    assert_same_run(tmp_path / "node0", expected)


# --- parents ----------

EVENTS = {
    "start": "config.json",
    "round": "state/rank{rank}/step0-2.state",
    "embedding": "state/rank{rank}/layer0.state",
    "last round": "state/rank{rank}/step1-2.state",
}
"""By phase, a file that appears in it."""


def kill_parent(folder: Path, node: int, arguments: list[str], event: str) -> None:
    """Start a node's command and kill its parent once the event's file is there."""
    run_dir = folder / f"node{node}"
    with running_cli(*arguments, f"hydra.run.dir={run_dir}", cwd=folder) as process:
        file = run_dir / EVENTS[event].format(rank=2 * node)
        wait_until(lambda: file.exists() or process.poll() is not None, event)
        assert process.poll() is None, finish(process, rc=None).output
        process.kill()
        process.communicate()
        wait_until(lambda: not group_members(process.pid), "its workers end with it")


PARENT_SAMPLE = {(1, "round", "types", "tls"), (0, "embedding", "classes", "gloo")}


@pytest.mark.parametrize(
    ("victim", "event", "task", "backend"),
    [
        pytest.param(*case, marks=[] if case in PARENT_SAMPLE else LONG)
        for case in itertools.product((0, 1), EVENTS, TASKS, BACKENDS)
    ],
)
@pytest.mark.timeout(240)
def test_a_parent_is_killed_and_started_again(
    victim: int, event: str, task: str, backend: str, base: Path, undisturbed: Any, tmp_path: Path
) -> None:
    expected, port, other = undisturbed(task), free_port(), 1 - victim
    common = [*settings_of(base, task), "sleep_time=0.03"]
    nodes = [[*common, *on_node(base, backend, node, port)] for node in (0, 1)]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(train.run, compose(nodes[other]), tmp_path / f"node{other}")
        kill_parent(tmp_path, victim, nodes[victim], event)
        train.run(compose([*nodes[victim], "resume=auto"]), tmp_path / f"node{victim}")
        (cause,) = running.result(90)["restarts"]["causes"]
    assert re.match(rf"node {victim} \(ranks? {('0, 1', '2')[victim]}\) is lost: ", cause)
    assert_same_run(tmp_path / "node0", expected)


def test_a_node_that_does_not_return_is_named(base: Path, tmp_path: Path) -> None:
    port, common = free_port(), [*settings_of(base, "classes"), "sleep_time=0.03"]
    common.append("distributed.init_timeout=20")
    nodes = [[*common, *on_node(base, "gloo", node, port)] for node in (0, 1)]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(train.run, compose(nodes[0]), tmp_path / "node0")
        kill_parent(tmp_path, 1, nodes[1], "round")
        with pytest.raises(
            TrainingError,
            match=r"node 1 \(rank 2\) did not come within distributed.init_timeout=20 s; "
            r"restarted because node 1 \(rank 2\) is lost",
        ):
            running.result(90)
    assert json.loads((tmp_path / "node0" / "summary.json").read_text())["status"] == "failed"


def test_without_restarts_left_the_cause_ends_the_run(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is killed whenever it begins; on one node."""
    monkeypatch.setattr(train, "main", always_killed)
    settings = compose([*settings_of(base, "classes"), "distributed.max_restarts=1"])
    with pytest.raises(TrainingError, match=r"rank 1 \(node 0\) was killed by SIGKILL"):
        train.run(settings, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["restarts"]["count"]) == ("failed", 1)


def test_nodes_that_refuse_a_restart_end_the_run_with_its_cause(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = iter([rendezvous.connect_nodes, refuse_node])
    monkeypatch.setattr(train, "main", always_killed)
    monkeypatch.setattr(rendezvous, "connect_nodes", lambda *node: next(attempts)(*node))
    settings = compose([*settings_of(base, "classes"), "distributed.max_restarts=3"])
    with pytest.raises(TrainingError, match=r"has other settings; restarted because rank 1"):
        train.run(settings, tmp_path)


def refuse_node(*_: Any) -> Any:
    raise InputError("node 1 has other settings")


def always_killed(rank: int, *_: Any) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
