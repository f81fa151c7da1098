"""Run chains against the source tree in PYTHONPATH, and write what came of them.

The driver of same_results.py.

    python run_chains.py TREE FOLDER JOBS RENAMED CHAIN ...

One process imports everything and starts the fork server of the workers; every command then runs
in a fork of it, so that no command pays for imports and none sees what another left. FOLDER gets
a folder and NAME.json for each chain. RENAMED is a JSON object of setting names to replace.
"""

import contextlib
import json
import multiprocessing.forkserver
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import collect
import list_of_chains
from hydra.core.global_hydra import GlobalHydra
from steps import Call, Chain, Run, Step, Together


def main(tree: Path, folder: Path, jobs: int, renamed: dict[str, str], names: list[str]) -> None:
    warm_up(tree, folder)
    chains = [chain for chain in list_of_chains.CHAINS if chain.name in names]
    chains.sort(key=lambda chain: -chain.weight)
    running: dict[int, Chain] = {}
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        while chains or running:
            while chains and len(running) < jobs:
                chain = chains.pop(0)
                work = partial(run_chain, chain, tree, folder, renamed)
                running[fork(work, leads=True)] = chain
            pid, status = os.wait()
            if pid in running:
                chain = running.pop(pid)
                if status:
                    write_result(folder, chain, {}, f"its process ended: {status}", 0.0, {})
    finally:
        for pid in running:
            os.killpg(pid, signal.SIGKILL)


def warm_up(tree: Path, folder: Path) -> None:
    """Train once within this process, to start what all chains share.

    It imports what commands need, compiles, and starts the fork server.
    """
    place = folder / "warm-up"
    place.mkdir(parents=True)
    with contextlib.chdir(place):
        Path("input").mkdir()
        list_of_chains.WARM_UP.make_input()
        for step in list_of_chains.WARM_UP.steps:
            assert isinstance(step, Run)
            run_command(tree, (*step.arguments, f"hydra.run.dir={step.name}"))
            GlobalHydra.instance().clear()


def fork(work: Callable[[], Any], *, leads: bool = False) -> int:
    """Call a function in a forked process and return its id.

    Args:
        leads: give it and its children a process group of their own, to end them together.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        if leads:
            os.setpgid(0, 0)
        status = work() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def share_fork_server() -> None:
    """Use the fork server of the process that this one was forked from.

    multiprocessing would ask for its exit status, which only its parent gets, and start another.
    """
    server: Any = multiprocessing.forkserver._forkserver
    if server._forkserver_address is not None:
        server._forkserver_pid = None
        server.ensure_running = lambda: None
        multiprocessing.forkserver.ensure_running = server.ensure_running


def run_chain(chain: Chain, tree: Path, folder: Path, renamed: dict[str, str]) -> None:
    start, place = time.monotonic(), folder / chain.name
    (place / "input").mkdir(parents=True)
    os.chdir(place)
    chain.make_input()
    port, error = free_port(), None
    statuses: dict[str, int] = {}
    took: dict[str, float] = {}
    for step in chain.steps:
        runs = step.runs if isinstance(step, Together) else (step,)
        left, began = chain.seconds - (time.monotonic() - start), time.monotonic()
        ended = run_step(runs, tree, port, renamed, left)
        took[runs[0].name] = round(time.monotonic() - began, 2)
        statuses |= {f"{run.name}.status": status for run, status in zip(runs, ended, strict=True)}
        for run, status in zip(runs, ended, strict=True):
            if status != getattr(run, "status", 0) and error is None:
                said = (place / f".{run.name}.txt").read_text(errors="replace")[-3000:]
                error = f"{run.name} ended with status {status}:\n{said}"
        if error is not None:
            break
    values = collect.collect(place) | statuses
    values = collect.hide_varying(values, chain.varies)
    write_result(folder, chain, values, error, time.monotonic() - start, took)


def run_step(
    runs: tuple[Step, ...], tree: Path, port: int, renamed: dict[str, str], seconds: float
) -> list[int]:
    """Run commands or a function in forked processes; return their exit statuses."""
    pids = []
    for run in runs:
        pids.append(fork(partial(run_in_fork, run, tree, port, renamed)))
    deadline = time.monotonic() + seconds
    statuses: dict[int, int] = {}
    while len(statuses) < len(pids):
        for pid in pids:
            if pid not in statuses:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    statuses[pid] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > deadline:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [statuses[pid] for pid in pids]


def run_in_fork(run: Step, tree: Path, port: int, renamed: dict[str, str]) -> int:
    share_fork_server()
    assert not isinstance(run, Together)
    output = os.open(f".{run.name}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if isinstance(run, Call):
        run.function(*((port,) if run.with_port else ()))
        return 0
    arguments = [argument.replace("{port}", str(port)) for argument in run.arguments]
    arguments = [rename(argument, renamed) for argument in arguments]
    place = (f"hydra.run.dir={run.name}",) if run.name else ()
    return run_command(tree, [*arguments, *place])


def rename(argument: str, renamed: dict[str, str]) -> str:
    """Give a setting, or a whole argument, the name that it had in an older tree."""
    name, equals, value = argument.partition("=")
    return renamed.get(argument) or renamed.get(name, name) + equals + value


def run_command(tree: Path, arguments: tuple[str, ...] | list[str]) -> int:
    sys.argv = ["main.py", *arguments]
    try:
        runpy.run_path(str(tree / "main.py"), run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


def free_port() -> int:
    """Return a port below 32768, where the kernel's own choices begin."""
    number = os.getpid()
    while True:
        number += 1
        port = 20_000 + number * 7919 % 10_000
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def write_result(
    folder: Path,
    chain: Chain,
    values: collect.Values,
    error: str | None,
    seconds: float,
    steps: dict[str, float],
) -> None:
    content = {"values": values, "error": error, "seconds": round(seconds, 2), "steps": steps}
    unfinished = folder / f".{chain.name}.json"
    unfinished.write_text(json.dumps(content, indent=1))
    unfinished.rename(folder / f"{chain.name}.json")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        int(sys.argv[3]),
        json.loads(sys.argv[4]),
        sys.argv[5:],
    )
