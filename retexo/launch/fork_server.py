"""multiprocessing's fork server, which imports torch once for all workers.

This module does not import torch, so that the server starts while the command imports it.
"""

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from types import ModuleType

from retexo.errors import Interrupted
from retexo.launch.ticker import ticker

WORKERS = "retexo.worker.preload"
"""The module that the server imports before it forks. By name: this folder must not import it."""
LONGEST_TEMP_DIR = 74
"""Bytes of a folder's path that leave room for the server's socket; AF_UNIX paths have 107."""


_start_lock = threading.Lock()
"""Held while `__main__` is replaced."""


def warm_up() -> None:
    """Start the fork server unless it runs.

    Ctrl-C and SIGHUP reach all processes of a terminal, and only the parent handles them. The
    server and all workers inherit a mask that blocks both.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([WORKERS])
    shorten_socket_paths()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        # It unblocks SIGINT, so it is started before SIGINT is blocked.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def shorten_socket_paths() -> None:
    """Have multiprocessing create its sockets in /tmp where TMPDIR is too long for them."""
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TEMP_DIR:
        before, tempfile.tempdir = tempfile.tempdir, "/tmp"
        try:
            multiprocessing.util.get_temp_dir()  # remembers the folder for this process
        finally:
            tempfile.tempdir = before


def wait_until_warm(timeout: float) -> None:
    """Wait until workers can be forked at once. Slow imports could look like a dead node.

    Raises Interrupted as `start_processes`.
    """
    process = multiprocessing.get_context("forkserver").Process(target=int, daemon=True)
    start_processes([process], timeout)
    process.join(timeout)


def start_processes(processes: Sequence[BaseProcess], timeout: float) -> None:
    """Start processes with the fork server.

    In a thread, because multiprocessing waits forever for a fork server that was stopped. If
    anything fails, the fork server is killed. Sets `ticker.doing`. Until the processes are started,
    this process has an empty `__main__` and the start method forkserver.

    Raises:
        Interrupted: the server has ended, or does not answer within `timeout` seconds.
    """

    def start_all() -> None:
        with _start_lock:
            warm_up()
            start_without_main()

    def start_without_main() -> None:
        # Workers would import __main__, a user's script, and run it again. They do not need it.
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        # Workers take over the default start method, and know none of joblib's, which runs sweeps.
        method = multiprocessing.get_start_method(allow_none=True)
        multiprocessing.set_start_method("forkserver", force=True)
        try:
            for process in processes:
                process.start()
        finally:
            sys.modules["__main__"] = main
            multiprocessing.set_start_method(method, force=True)

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
            raise Interrupted(
                "the fork server, the process that starts the workers, was killed or stopped:"
                f" {reason}; start again (on a slow machine, with a longer"
                " distributed.init_timeout)"
            ) from error


def kill() -> None:
    """Kill the server, if any, and wait for its end. multiprocessing starts another when needed."""
    pid = getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
