"""Failures of workers in any phase, of parents, nodes and connections.

The run restarts by itself, or is resumed, and its files equal those of an undisturbed run. The
ordinary run takes each fault in one phase, --all all pairs. Parents that are killed are processes,
others threads.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import (
    finish,
    free_port,
    group_members,
    kill_group,
    make_credentials,
    random_graph,
    save_npz,
    start_cli,
    thirds,
    wait_until,
    write_partitions,
)

from retexo.apps import partition_data, train
from retexo.comm.socket_transport import Streams
from retexo.errors import TrainingError
from retexo.launch.certificates import read_credentials
from retexo.launch.heartbeat import Progress
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings
from retexo.worker import train as train_worker

WORLD = 3
PHASES = ("rendezvous", "plan", "exchange", "round", "evaluation", "checkpoint", "embedding")
WRITING = ("exchange", "round", "checkpoint")
"""Phases that write more than fits in what the disk has given them already."""
BACKENDS = ("gloo", "sockets", "tls")
USUAL = {
    ("kill", "rendezvous", "tls"),
    ("stop", "plan", "sockets"),
    ("terminate", "round", "gloo"),
    ("full disk", "checkpoint", "gloo"),
}


def kill(disk: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(disk: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def terminate(disk: Path) -> None:
    """The whole run, as a batch system does it.

    Goes on once the parent has passed it on, where that does not end it.
    """
    parent = parent_process()
    assert parent is not None
    assert parent.pid is not None
    told, handler = threading.Event(), signal.getsignal(signal.SIGTERM)
    if callable(handler):
        signal.signal(signal.SIGTERM, lambda number, frame: (handler(number, frame), told.set()))
    os.kill(parent.pid, signal.SIGTERM)
    while not told.wait(0.01):  # a wait without a limit would keep the handler from running
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


def victim(phase: str) -> int:
    return 0 if phase == "checkpoint" else 1  # rank 0 writes it


def struck(
    fault: str,
    phase: str,
    when: Path,
    disk: Path,
    keys: list[Path],
    rank: int,
    job: Any,
    parent: Connection,
    streams: Streams | None,
) -> None:
    """A worker.

    The victim is struck once, as it enters the phase: of the rounds the fourth of layer 1.
    """
    if rank == victim(phase):
        enter, at = Progress.enter, Progress.set_round

        def strike() -> None:
            when.touch()
            FAULTS[fault](disk)

        def enters(self: Progress, name: str) -> None:
            enter(self, name)
            if name == phase != "round" and not when.exists():
                strike()

        def is_at(self: Progress, layer: int, number: int = -1) -> None:
            at(self, layer, number)
            if phase == "round" and (layer, number) == (1, 3) and not when.exists():
                strike()

        Progress.enter, Progress.set_round = enters, is_at  # type: ignore[method-assign]
    if keys:  # as if each worker were a node
        security = read_credentials(keys[rank], rank, WORLD).secure_stream
        job = replace(job, rendezvous=replace(job.rendezvous, security=security, parts_per_node=1))
    train_worker.main(rank, job, parent, streams)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    assignment = [node % 5 % WORLD for node in range(60)]
    write_partitions(folder, random_graph(60, 240, width=400), thirds(60), assignment, WORLD)
    return folder


def settings(parts: Path, *more: str) -> Settings:
    small = (
        "hidden_dim=6",
        "num_rounds=[5,6]",
        "stopping=none",
        "learning_rate=[0.05]",
        "cluster.threads=1",
    )
    kept = (
        "exchange.precision=fp32",
        "checkpoint.every=2",
        "distributed.heartbeat_timeout=3",
        "num_partitions=3",
    )
    return compose(
        [
            *small,
            *kept,
            *more,
            "dataset_name=file",
            "dataset_file=toy.npz",
            f"partition_dir={parts}",
        ]
    )


def layers(run_dir: Path) -> list[bytes]:
    return [(run_dir / "checkpoint" / f"layer{layer}.safetensors").read_bytes() for layer in (0, 1)]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "FIRST_PAUSE", 0.01)


@pytest.fixture(scope="module")
def whole(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The parameters of a run that nothing happened to."""
    run_dir = tmp_path_factory.mktemp("whole")
    train.run(settings(parts), run_dir)
    return layers(run_dir)


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


def pairs() -> list[Any]:
    """A signal to end takes milliseconds, in which all rounds over sockets would be over."""
    every = [
        (fault, phase, backend)
        for fault in FAULTS
        for phase in PHASES
        for backend in (BACKENDS if (fault, phase) != ("terminate", "round") else BACKENDS[:1])
        if fault != "full disk" or phase in WRITING
    ]
    assert set(every) >= USUAL
    long = pytest.mark.long("this fault runs in another phase, this phase with another fault")
    return [pytest.param(*each, marks=[] if each in USUAL else long) for each in every]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    pytest.importorskip("cryptography")
    return make_credentials(tmp_path_factory.mktemp("keys") / "keys", *map(str, range(WORLD)))


@pytest.mark.parametrize(("fault", "phase", "backend"), pairs())
def test_a_fault_in_a_phase(
    fault: str,
    phase: str,
    backend: str,
    parts: Path,
    whole: list[bytes],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """The undisturbed run used gloo.

    A dead worker restarts the run; the rest is resumed by hand.
    """
    when = tmp_path_factory.mktemp("struck") / "when"
    keys = request.getfixturevalue("keys") if backend == "tls" else []
    option = f"distributed.backend={'sockets' if backend == 'tls' else backend}"
    place = request.getfixturevalue("disk" if fault == "full disk" else "tmp_path")
    run_dir = place / "run"
    restarts = fault in ("kill", "stop")
    with monkeypatch.context() as patched:
        patched.setattr(train, "main", partial(struck, fault, phase, when, place, keys))
        with (
            contextlib.nullcontext() if restarts else pytest.raises((TrainingError, SystemExit))
        ) as raised:
            summary = train.run(settings(parts, option), run_dir)
    assert not multiprocessing.active_children()
    if fault == "terminate":
        assert raised.value.args == (143,)
    else:
        says = {
            "kill": "was killed by SIGKILL",
            "stop": "was stopped",
            "full disk": "cannot be written",
        }[fault]
        (message,) = summary["restarts"]["causes"] if restarts else [str(raised.value)]
        who = (
            r"rank \d" if fault == "full disk" else f"rank {victim(phase)}"
        )  # a disk is full for all
        assert re.match(rf"{who} \(node 0\)", message)
        assert says in message
        assert f"phase: {phase}" in message
        assert "\n" not in message.strip()
    if not restarts:
        (place / "filler").unlink(missing_ok=True)
        summary = train.run(settings(parts, option, "resume=auto"), run_dir)
    assert summary["status"] == "done"
    assert layers(run_dir) == whole
    if phase == "round":
        kept = 5 if fault == "terminate" else 2  # told to stop, they end the next round and keep it
        assert (summary["resumed"]["layer"], summary["resumed"]["round"]) == (1, kept)


@pytest.mark.long("fifty runs of what others run once")
@pytest.mark.timeout(1200)
def test_fifty_runs_in_a_row_leave_nothing_behind(
    parts: Path, whole: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process, no thread, no file descriptor, no shared memory, no temporary file."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    train.run(settings(parts), tmp_path / "first")
    before = left(temporary)
    for number in range(50):
        train.run(settings(parts), tmp_path / str(number))
        assert layers(tmp_path / str(number)) == whole
        assert {path.name for path in (tmp_path / str(number)).iterdir()} == {
            "config.json",
            "metrics.jsonl",
            "summary.json",
            "checkpoint",
        }
        assert left(temporary) == before, f"after {number + 1} runs"
    print(f"50 runs left nothing behind: {before}")


def left(temporary: Path) -> dict[str, Any]:
    gc.collect()
    me = psutil.Process()
    shared = re.findall(r"torch_(\d+)_", " ".join(path.name for path in Path("/dev/shm").iterdir()))
    return {
        "processes": sorted(
            child.pid for child in me.children(recursive=True)
        ),  # the fork server stays
        "file descriptors": me.num_fds(),
        "shared memory": sorted(
            pid for pid in shared if not psutil.pid_exists(int(pid))
        ),  # of processes that ended
        "temporary files": sorted(path.name for path in temporary.rglob("*")),
        "threads": me.num_threads(),
    }


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
    "links": ("task=link_prediction", "task.dim=4", "num_rounds=9"),
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
    if backend == "tls":
        pytest.importorskip("cryptography")
        own.append(f"distributed.credentials={base}/keys/{('north', 'east')[node]}")
    elif backend == "sockets":
        own.append("distributed.tls=false")
    return [*own, f"distributed.backend={'gloo' if backend == 'gloo' else 'sockets'}"]


@pytest.fixture(scope="module")
def undisturbed(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By task, the run directory of a run on one node."""
    folder = tmp_path_factory.mktemp("undisturbed")

    def run(task: str) -> Path:
        if not (folder / task).exists():
            train.run(compose(settings_of(base, task)), folder / task)
        return folder / task

    return run


def assert_same_files(found: Path, expected: Path) -> None:
    for path in sorted((expected / "checkpoint").iterdir()):
        assert (found / "checkpoint" / path.name).read_bytes() == path.read_bytes(), path.name
    lines = [
        [
            {name: value for name, value in json.loads(line).items() if name != "seconds"}
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        for folder in (found, expected)
    ]
    assert lines[0] == lines[1]
    first, second = (json.loads((each / "summary.json").read_text()) for each in (found, expected))
    for name in ("test", "val", "rounds"):
        assert first[name] == second[name]
    assert not (found / "state").exists()


def in_threads(settings: list[Settings], folder: Path) -> list[Any]:
    """The summaries of two parents, or their exceptions."""

    def run(node: int) -> Any:
        try:
            return train.run(settings[node], folder / f"node{node}")
        except TrainingError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, (0, 1)))


WORKER_SAMPLE = {("kill", "exchange", "links", "tls", 1)}


@pytest.mark.parametrize(
    ("fault", "phase", "task", "backend", "victim"),
    [
        pytest.param(*case, marks=[] if case in WORKER_SAMPLE else LONG)
        for case in (
            (fault, phase, task, backend, victim)
            for fault in ("kill", "stop")
            for phase in PHASES
            for task in TASKS
            for backend in BACKENDS
            for victim in ((0,) if phase == "checkpoint" else (1,))
        )
    ],
)
def test_a_worker_dies(
    fault: str,
    phase: str,
    task: str,
    backend: str,
    victim: int,
    base: Path,
    undisturbed: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, common, port = undisturbed(task), settings_of(base, task), free_port()
    if fault == "stop":
        common.append("distributed.heartbeat_timeout=3")
    settings = [compose([*common, *on_node(base, backend, node, port)]) for node in (0, 1)]
    when = tmp_path / "when"
    monkeypatch.setattr(train, "main", partial(struck, fault, phase, when, tmp_path, []))
    summaries = in_threads(settings, tmp_path)
    assert [each["status"] for each in summaries] == ["done"] * 2, summaries
    for summary in summaries:
        assert summary["restarts"]["count"] == 1
        assert re.match(rf"rank {victim} \(node 0\) was", summary["restarts"]["causes"][0])
    assert_same_files(tmp_path / "node0", expected)


# --- connections ----------


class Proxy:
    """Forwards connections to a port, and resets all of them once, after `limit` bytes."""

    def __init__(self, port: int, limit: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port, self._to, self.left = self.listener.getsockname()[1], port, limit
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                try:
                    far = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 14):
                with self._lock:
                    before, self.left = self.left, self.left - len(content)
                    if before > 0 >= self.left:
                        for end in self._ends:
                            linger = struct.pack("ii", 1, 0)
                            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                            end.shutdown(socket.SHUT_RDWR)
                            end.close()
                        return
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    ("backend", "limit"), [("tls", 25_000), pytest.param("sockets", 15_000, marks=LONG)]
)
def test_connections_that_are_reset(
    backend: str, limit: int, base: Path, undisturbed: Any, tmp_path: Path
) -> None:
    """limit: bytes until then, in the middle of the rounds."""
    expected, common, port = undisturbed("classes"), settings_of(base, "classes"), free_port()
    proxy = Proxy(port, limit)
    ports = (port, proxy.port)
    settings = [compose([*common, *on_node(base, backend, node, ports[node])]) for node in (0, 1)]
    summaries = in_threads(settings, tmp_path)
    proxy.listener.close()
    assert proxy.left <= 0
    assert [each["status"] for each in summaries] == ["done"] * 2, summaries
    assert summaries[0]["restarts"]["count"] == 1
    assert_same_files(tmp_path / "node0", expected)


# --- parents ----------

EVENTS = {
    "start": "config.json",
    "round": "state/rank{rank}/step0-2.state",
    "embedding": "state/rank{rank}/layer0.state",
    "last round": "state/rank{rank}/step1-2.state",
}
"""By phase, a file that appears in it."""


def start_node(
    base: Path, folder: Path, node: int, arguments: list[str]
) -> "subprocess.Popen[str]":
    slow = ("sleep_time=0.03", f"hydra.run.dir={folder}/node{node}")
    return start_cli(*arguments, *slow, cwd=folder)


@contextlib.contextmanager
def two_nodes(
    base: Path, folder: Path, backend: str, *more: str, task: str = "classes"
) -> Iterator[tuple[list["subprocess.Popen[str]"], list[list[str]]]]:
    """The parents of a run on two nodes, and their arguments."""
    port, common = free_port(), settings_of(base, task)
    arguments = [[*common, *on_node(base, backend, node, port), *more] for node in (0, 1)]
    processes = [start_node(base, folder, node, own) for node, own in enumerate(arguments)]
    try:
        yield processes, arguments
    finally:
        for process in processes:
            kill_group(process.pid)
            process.wait()


def kill_parent(
    folder: Path, processes: list["subprocess.Popen[str]"], node: int, event: str
) -> None:
    file = folder / f"node{node}" / EVENTS[event].format(rank=2 * node)
    wait_until(lambda: file.exists() or processes[node].poll() is not None, 90, event)
    assert processes[node].poll() is None, finish(processes[node]).output
    processes[node].kill()
    processes[node].communicate()
    wait_until(lambda: not group_members(processes[node].pid), 10, "its workers end with it")


PARENT_SAMPLE = {(1, "round", "types", "tls"), (0, "embedding", "classes", "gloo")}


@pytest.mark.parametrize(
    ("victim", "event", "task", "backend"),
    [
        pytest.param(*case, marks=[] if case in PARENT_SAMPLE else LONG)
        for case in (
            (victim, event, task, backend)
            for victim in (0, 1)
            for event in EVENTS
            for task in TASKS
            for backend in BACKENDS
        )
    ],
)
@pytest.mark.timeout(240)
def test_a_parent_is_killed_and_started_again(
    victim: int, event: str, task: str, backend: str, base: Path, undisturbed: Any, tmp_path: Path
) -> None:
    expected = undisturbed(task)
    with two_nodes(base, tmp_path, backend, task=task) as (processes, arguments):
        kill_parent(tmp_path, processes, victim, event)
        processes[victim] = start_node(base, tmp_path, victim, [*arguments[victim], "resume=auto"])
        ended = [finish(process, timeout=120) for process in processes]
    assert [each.rc for each in ended] == [0, 0], "".join(each.output for each in ended)
    cause = rf"node {victim} \(ranks? {('0, 1', '2')[victim]}\) is lost: .*: restart 1 of 3 in 1 s"
    assert re.search(cause, ended[1 - victim].output)
    if victim == 1:
        summary = json.loads((tmp_path / "node0" / "summary.json").read_text())
        assert summary["restarts"]["count"] == 1
    assert_same_files(tmp_path / "node0", expected)


def test_a_node_that_does_not_return_is_named(base: Path, tmp_path: Path) -> None:
    with two_nodes(base, tmp_path, "gloo", "distributed.rejoin_timeout=2") as (processes, _):
        kill_parent(tmp_path, processes, 1, "round")
        ended = finish(processes[0])
    assert ended.rc == 1, ended.output
    assert re.search(
        r"error: node 1 \(rank 2\) did not come within distributed.rejoin_timeout=2 s; "
        r"restarted because node 1 \(rank 2\) is lost",
        ended.stderr,
    )
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


def always_killed(rank: int, *_: Any) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
