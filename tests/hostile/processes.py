"""Forks of a process that has imported everything and computed nothing, each with its own output.

main.py in one.
"""

import contextlib
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection, forkserver, util
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / "tests"), str(ROOT)]
from support import _hydra_alone, group_members, kill_group  # noqa: E402

os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
)  # of what is started
SPAWN = util.spawnv_passfds


def main(arguments: tuple[str, ...]) -> int:
    """main.py, or a script that is named, in this process.

    What it raises is printed, not raised.
    """
    command = arguments if arguments[0].endswith(".py") else ("main.py", *arguments)
    with mock.patch.object(sys, "argv", [*command]), _hydra_alone():
        try:
            runpy.run_path(str(ROOT / command[0]), run_name="__main__")
            return 0
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            traceback.print_exc()
    return 1


def spawn_by_fork(path: bytes, arguments: list[str], keep: tuple[int, ...]) -> int:
    """As multiprocessing.util.spawnv_passfds, of a process that has imported everything."""
    if threading.current_thread() is not threading.main_thread():
        return SPAWN(path, arguments, keep)
    child = os.fork()
    if child:
        return child
    for descriptor in (int(entry.name) for entry in list(Path("/proc/self/fd").iterdir())):
        if descriptor > 2 and descriptor not in keep:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    try:
        exec(arguments[-1], {})
    finally:
        os._exit(0)


def own_output(path: Path) -> None:
    """What this process prints goes to a file from now on, and it is the first of its group."""
    os.setsid()
    output = os.open(path, os.O_WRONLY | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    sys.stdout = open(1, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", closefd=False, errors="backslashreplace")  # noqa: SIM115


def fork(work: Callable[..., int | None], *arguments: Any) -> int:
    """Do some work in a fork, whose process id is returned; exit status 99 where it raises."""
    child = os.fork()
    if child:
        return child
    status = 99
    try:
        status = work(*arguments) or 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def at_once(commands: list[tuple[str, ...]], seconds: float = 300) -> list[int]:
    """The statuses of commands that run in forks of this process."""
    # Each has its own.
    forkserver._forkserver._forkserver_pid = None  # type: ignore[attr-defined]
    return [wait(child, seconds) for child in [fork(main, arguments) for arguments in commands]]


def wait(child: int, seconds: float) -> int:
    """The status of a child, which is killed after some seconds."""
    descriptor = os.pidfd_open(child)
    if not connection.wait([descriptor], seconds):
        print(f"no end after {seconds} s")
        os.kill(child, signal.SIGKILL)
    os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def end_of_group(group: int, seconds: float = 30) -> bool:
    """Wait until no process of a group is left.

    Afterwards they are killed, and the answer is False.
    """
    deadline = time.monotonic() + seconds
    while group_members(group):
        if time.monotonic() > deadline:
            kill_group(group)
            return False
        time.sleep(0.1)
    return True
