"""Reads DGL's files in another process first, because some damaged files crash DGL's reader.

    python -P -m partitioning.read.dgl_probe FILE ...

exits with status 0 if the reader does not crash; exceptions of the reader are ignored, the caller
gets them itself. The process is a new interpreter, or a child of the workers' fork server, where it
runs, in a tenth of the time.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import forkserver, get_context
from pathlib import Path

from partitioning.child_process import run_module
from partitioning.dgl_import import require_dgl
from partitioning.errors import InputError

START_SECONDS, BYTES_PER_SECOND = 120, 20 << 20
"""Seconds to start, and to read (DGL: 500 MiB per second); a damaged file can make DGL loop."""


def check_readable(files: Sequence[Path], seconds: float | None = None) -> None:
    """Raise InputError where DGL's reader crashes on a file or does not end, or DGL is missing.

    seconds: when it has to end; None: by the sizes of the files, which have to exist.
    """
    named = ", ".join(map(str, files))
    require_dgl(named)
    if seconds is None:
        seconds = START_SECONDS + sum(file.stat().st_size for file in files) / BYTES_PER_SECOND
    cause = "crashes on it, so it is damaged"
    try:
        server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        status = (
            _probe_by_fork_server(files, seconds)
            if server
            else run_module("partitioning.read.dgl_probe", [*map(str, files)], seconds).returncode
        )
    except (subprocess.TimeoutExpired, TimeoutError):
        status, cause = 1, f"does not end within {seconds:.0f} s"
    if status != 0:
        raise InputError(f"{named}: DGL's reader {cause}; copy or write it again")


def _probe_by_fork_server(files: Sequence[Path], seconds: float) -> int:
    """Read the files in a process of the fork server; return its exit status.

    TimeoutError, and the process is killed, if it does not end in time.
    """
    child = get_context("forkserver").Process(target=_read_silently, args=(files,), daemon=True)
    child.start()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        raise TimeoutError
    assert child.exitcode is not None
    return child.exitcode


def _read_silently(files: Sequence[Path]) -> None:
    """Read the files; this process has no output from then on."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(nowhere, number)
    for file in files:
        _read(str(file))


def _read(path: str) -> None:
    """Read all that the program uses of such a file; the reader's exceptions are ignored."""
    from partitioning.dgl_import import import_dgl

    dgl = import_dgl(path)
    with contextlib.suppress(Exception):
        for graph in dgl.load_graphs(path)[0]:
            graph.edges(order="eid")
            graph.ndata.keys()
            sum(tensor.sum() for tensor in graph.ndata.values())
    with contextlib.suppress(Exception):
        for tensor in dgl.data.utils.load_tensors(path).values():
            tensor.sum()


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        _read(argument)
