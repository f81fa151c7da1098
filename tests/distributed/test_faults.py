"""A fault of a worker in any phase: the run restarts, or is resumed, and ends as if nothing had
happened.

The ordinary run takes each fault in one phase; --all takes all pairs that there are, and
test_restart.py kills workers in the other phases.
"""

import contextlib
import gc
import multiprocessing
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import make_credentials, random_graph, thirds, write_partitions

from retexo.apps import train
from retexo.comm.socket_transport import Streams
from retexo.errors import TrainingError
from retexo.launch.heartbeat import Progress
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings
from retexo.sites.certificates import read_credentials
from retexo.sites.tls import StreamTls
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
    """The whole run, as a batch system does it; goes on once the parent has passed it on, where
    that does not end it.
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
    """A worker; the victim is struck once, as it enters the phase: of the rounds the fourth of
    layer 1.
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
        credentials = read_credentials(keys[rank], rank, WORLD)
        security = StreamTls(credentials)
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
    """A signal to end takes milliseconds to arrive, in which rounds over sockets would all be
    over.
    """
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
    """The undisturbed run used gloo. A dead worker restarts the run; the rest is resumed by
    hand.
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
