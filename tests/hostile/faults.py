"""Signals to every process of a run in every phase, and two writers of one place.

Nothing sleeps until something may have happened: a signal is sent by a worker that has just entered
the phase.
"""

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
from inputs import CUT, OURS, PREDICT, Input, same_files
from processes import end_of_group, fork, main, wait

from retexo.apps import partition_data, train
from retexo.launch import fork_server
from retexo.launch.heartbeat import Progress
from retexo.results import run_lock
from retexo.results.atomic_write import UNFINISHED

PHASES = (
    "verify",
    "rendezvous",
    "plan",
    "exchange",
    "round",
    "embedding",
    "evaluation",
    "checkpoint",
    "summary",
)
"""The first and the last are the parent's."""
TARGETS = ("parent", "fork server", "rank 0", "rank 1")
SIGNALS = [
    case
    for case in itertools.product(
        (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGINT), TARGETS, PHASES
    )
    if not (case[1].startswith("rank") and case[2] in ("verify", "summary"))
]
STATUSES = {
    "parent": {
        signal.SIGTERM: {143, -15},
        signal.SIGKILL: {-9},
        signal.SIGSTOP: {0},
        signal.SIGINT: {130},
    },
    "fork server": {signal.SIGINT: {0}},
    "rank": {signal.SIGINT: {0}, signal.SIGKILL: {1}, signal.SIGSTOP: {1}},
}
"""What a signal may end with; {0, 1} where it is not said: it may come too late to matter."""
LATE = ("evaluation", "checkpoint")
"""Phases in which rank 1 may have ended before a signal reaches it."""
RUN = (
    *OURS,
    "distributed.heartbeat_timeout=8",
    "distributed.init_timeout=40",
    "distributed.max_restarts=0",
)


def signalled(number: int, base: Path) -> Input:
    """A run that a signal hits; afterwards it is resumed, and ends with the bits of one that
    nothing happened to.
    """
    sent, target, phase = SIGNALS[number]
    Path("parts").symlink_to(base / "parts")
    allowed = STATUSES[target.partition(" ")[0] if target.startswith("rank") else target].get(
        sent, {0, 1}
    )
    if target == "rank 1" and phase in LATE:
        allowed = allowed | {0}

    def judge() -> str | None:
        return same_files("run", base, "checkpoint/*.safetensors")()

    def act() -> int:
        first = fork(struck, sent, target, phase)
        status = wait(first, 100)
        wrong = [] if status in allowed else [f"status {status}"]
        wrong += [] if end_of_group(first) else ["a process stayed"]
        wrong += [] if Path("../struck").exists() else ["not struck"]
        wrong += [
            f"{path} is half-written" for path in Path("out").rglob("*.json") if not is_json(path)
        ]
        resumed = wait(fork(alone, (*RUN, "resume=auto")), 100)
        wrong += [f"resumed with status {resumed}"] if resumed else []
        wrong += [f"{path} was left" for path in Path().rglob(f"{UNFINISHED}*")]
        if wrong:
            raise AssertionError(", ".join(wrong))
        return 0

    return Input(f"{sent.name} to {target} in {phase}", act, judge, keeps=False)


def is_json(path: Path) -> bool:
    with contextlib.suppress(ValueError):
        json.loads(path.read_text(encoding="utf-8"))
        return True
    return False


def alone(arguments: tuple[str, ...]) -> int:
    """A command in a group and with a fork server of its own."""
    os.setpgid(0, 0)
    forkserver._forkserver._forkserver_pid = None
    fork_server.warm_up()
    return main(arguments)


def struck(sent: signal.Signals, target: str, phase: str) -> int:
    """A run whose rank 0, or parent, sends the signal once as it enters the phase."""
    here, parent = Path("..").resolve(), os.getpid()
    enter, at, opened, write_summary = (
        Progress.enter,
        Progress.set_round,
        train.open_local,
        train.Training._write_summary,
    )

    def strike() -> None:
        with contextlib.suppress(FileExistsError):
            (here / "struck").touch(exist_ok=False)
            server = (
                forkserver._forkserver._forkserver_pid if os.getpid() == parent else os.getppid()
            )
            pid = {"parent": parent, "fork server": server}.get(target) or until(
                lambda: read_pid(here / target)
            )
            os.kill(pid, sent)
            if sent == signal.SIGSTOP and target == "parent" and os.getpid() != parent:
                until(
                    lambda: (
                        Path(f"/proc/{pid}/stat")
                        .read_text(encoding="utf-8")
                        .rpartition(")")[2]
                        .split()[0]
                        == "T"
                    )
                )
                os.kill(pid, signal.SIGCONT)

    def enters(self: Progress, name: str) -> None:
        enter(self, name)
        rank = multiprocessing.current_process().name
        (here / rank).write_text(str(os.getpid()))
        if rank == "rank 0" and name == phase != "round":
            strike()

    def is_at(self: Progress, layer: int, number: int = -1) -> None:
        at(self, layer, number)
        if (
            phase == "round"
            and (layer, number) == (1, 2)
            and multiprocessing.current_process().name == "rank 0"
        ):
            strike()

    def opens(*arguments: Any) -> Any:
        if phase == "verify":
            strike()
        return opened(*arguments)

    def writes(training: train.Training, **changes: Any) -> None:
        if phase == "summary" and changes.get("status") == "done":
            strike()
        write_summary(training, **changes)

    Progress.enter, Progress.set_round = enters, is_at  # type: ignore[method-assign]
    train.open_local = opens  # type: ignore[assignment]
    train.Training._write_summary = writes  # type: ignore[method-assign]
    if sent == signal.SIGSTOP and target == "parent" and phase in ("verify", "summary"):
        fork(continues, parent)
    return alone(RUN)


def continues(pid: int) -> None:
    until(
        lambda: (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            == "T"
        )
    )
    os.kill(pid, signal.SIGCONT)


def read_pid(path: Path) -> int | None:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return int(text) if text else None


def until(condition: Callable[[], Any], seconds: float = 100) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    raise TimeoutError(condition)


# --- two writers ----------

LOCKED = (run_lock, "remove_unfinished")
REPORT = ("app=report", "report.runs=run", "hydra.run.dir=out")
MAKE_SITES = ("examples/make_sites.py", "sites", "a", "b")
WRITERS: list[tuple[str, tuple[Any, str], tuple[str, ...], tuple[str, ...]]] = [
    ("run directory of train", LOCKED, OURS, OURS),
    ("a live run resumed", LOCKED, OURS, (*OURS, "resume=auto")),
    ("run directory of plan", LOCKED, ("app=plan", *OURS[1:]), ("app=plan", *OURS[1:])),
    ("plan in a run of train", LOCKED, OURS, ("app=plan", *OURS[1:], "model=sage")),
    ("predictions", LOCKED, (*PREDICT, "checkpoint_dir=run"), (*PREDICT, "checkpoint_dir=run")),
    (
        "evaluation",
        LOCKED,
        ("app=evaluate", *OURS[1:], "checkpoint_dir=run"),
        (*PREDICT, "checkpoint_dir=run"),
    ),
    ("report", LOCKED, REPORT, REPORT),
    (
        "partition directory",
        (partition_data, "_make"),
        CUT,
        (*CUT, "hydra.run.dir=out2", "partition.seed=3"),
    ),
    (
        "partition directory, overwritten",
        (partition_data, "_make"),
        CUT,
        (*CUT, "hydra.run.dir=out2", "overwrite=true"),
    ),
    ("folders of sites", (np, "savez_compressed"), MAKE_SITES, MAKE_SITES),
]


def written_twice(number: int, base: Path) -> Input:
    """While one process is where it holds a place, another wants it: that is told who has it, and
    changes nothing.
    """
    said, held_in, first, second = WRITERS[number]
    for name in ("toy.npz", "parts", "run"):
        Path(name).symlink_to(base / name)

    def act() -> int:
        one = fork(holds, *held_in, first)
        until(Path("../held").exists)
        before = content(Path())
        other = wait(fork(alone, second), 100)
        changed = content(Path()) != before
        Path("../go").touch()
        ended = wait(one, 100)
        told = f"in use by process {one} on" in Path("../output").read_text(encoding="utf-8")
        if (other, ended, told, changed) != (2, 0, True, False):
            raise AssertionError(
                f"the second ended with {other}, the first with {ended}; told {told}, changed"
                f" {changed}"
            )
        return 0

    return Input(said, act, keeps=False)


def content(folder: Path) -> dict[str, bytes]:
    """Of all files but logs: one who is refused says so in the log of the run directory, at its
    end.
    """
    files = (
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("log", "main.log")
    )
    return {str(path): path.read_bytes() for path in files}


def holds(module: Any, name: str, arguments: tuple[str, ...]) -> int:
    """A command that stops where it has a place for itself, until the file `go` is there."""
    here, original = Path("..").resolve(), getattr(module, name)

    def waits(*given: Any, **named: Any) -> Any:
        if not (here / "held").exists():
            (here / "held").touch()
            until((here / "go").exists)
        return original(*given, **named)

    setattr(module, name, waits)
    return alone(arguments)
