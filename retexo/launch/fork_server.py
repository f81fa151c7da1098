"""The process that forks the workers: `multiprocessing`'s own, which imports torch once for all of them.

This module imports no torch, so that the server can import it while the command does.
"""

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from types import ModuleType

from retexo.errors import TrainingError
from retexo.launch.ticker import ticker

WORKERS = "retexo.worker.train"
"""What it imports before it forks; above this room, so by name."""


LONGEST_TEMP_DIR = 74
"""Bytes of a folder's path that leave room for the server's socket: AF_UNIX takes paths of 107."""


def warm_up() -> None:
    """Start the fork server, unless it runs.

    Ctrl-C and SIGHUP go to all processes of a terminal, and only the parent answers them: the
    server and all workers inherit a mask that blocks both.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([WORKERS])
    shorten_socket_paths()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        resource_tracker.ensure_running()  # unblocks SIGINT, so it is started before that is blocked
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def shorten_socket_paths() -> None:
    """Have multiprocessing put its sockets below /tmp where TMPDIR is too long for them."""
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TEMP_DIR:
        before, tempfile.tempdir = tempfile.tempdir, "/tmp"
        try:
            multiprocessing.util.get_temp_dir()  # remembers the folder for this process
        finally:
            tempfile.tempdir = before


def wait_until_warm(timeout: float) -> None:
    """Wait until workers can be forked at once: other nodes might take slow imports for a dead node."""
    process = multiprocessing.get_context("forkserver").Process(target=int, daemon=True)
    start_processes([process], timeout)
    process.join(timeout)


def start_processes(processes: Sequence[BaseProcess], timeout: float) -> None:
    """Start processes by the fork server; TrainingError where it has ended, or does not answer for `timeout` seconds.

    In a thread: multiprocessing itself waits for ever for a fork server that was stopped.
    """

    def start_all() -> None:
        warm_up()
        # Workers would import __main__, a script of the user's, and so run it again; all they need is in modules.
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            for process in processes:
                process.start()
        finally:
            sys.modules["__main__"] = main

    ticker.doing = "starting the workers"
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(start_all).result(timeout)
        except BaseException as error:
            kill()  # which ends the thread, too
            if not isinstance(error, EOFError | OSError):
                raise
            reason = (
                f"no answer for {timeout:g} s" if isinstance(error, TimeoutError) else str(error)
            )
            raise TrainingError(
                f"the fork server, the process that starts the workers, was killed or stopped: {reason}; start again "
                "(where this machine is only slow, with a longer distributed.init_timeout)"
            ) from error


def kill() -> None:
    """Kill it, and wait until it has ended: multiprocessing starts another when it is needed."""
    pid = getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
