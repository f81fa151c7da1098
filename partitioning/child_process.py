"""Runs a module of this package in a new Python process, for libraries that can crash or hang.

A new interpreter, because a fork of a process that used OpenMP can wait for its threads forever.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1


def run_module(
    module: str, arguments: Sequence[str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run `python -P -m MODULE ARGUMENTS` without input; return its status and its standard error.

    Its standard output is dropped, and no status is an error.

    Raises:
        subprocess.TimeoutExpired: it did not end in time, and was killed.
    """
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-P", "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=seconds,
    )


def end_with_parent(parent: int) -> None:
    """Have Linux end this process with process `parent`, and before others when memory runs out.

    SystemExit with status 1 where the parent has ended already.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if os.getppid() != parent:  # it has ended already
        sys.exit(1)
