"""The process that forks the workers: `multiprocessing`'s own, which imports torch once for all of them.

This module imports no torch, so that the server can import it while the command does.
"""

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from types import ModuleType

from retexo.cluster.ticker import ticker
from retexo.errors import TrainingError

WORKERS = "retexo.worker.train"
"""What it imports before it forks; above this room, so by name."""


def warm_up() -> None:
    """Start it, unless it runs."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([WORKERS])
    resource_tracker.ensure_running()  # which the server would start, with another mask
    # It ignores Ctrl-C, which is the parent's to answer, only once it has imported: it inherits this mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
