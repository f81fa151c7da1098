"""Bad input by the thousand: each is refused with status 2 and words, or does no harm.

    python tests/hostile [--seed 0] [--count 1750] [--only KIND [--index N]] [--jobs 2] [--limit
    120]

prints how many inputs of each kind ended with which status, and lists those that ended with a
traceback, a native crash, no end within the limit, a process that stayed, a changed input file, or
wrong data accepted that could be known wrong. Exit status 1 if there are any. An input is made from
seed, kind and number alone, so that one can be had again.

This process imports everything, computes nothing, and forks a child for each input: a crash is the
child's.
"""

import argparse
import os
import platform
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import connection, util
from pathlib import Path
from random import Random
from typing import Any

import processes  # noqa: F401  first: it sets the path of modules
from hetero import make_hetero, tables, typed_sites, types
from inputs import (
    Input,
    checkpoint,
    data,
    defaults,
    make_bases,
    nodes,
    ours,
    resume,
    settings,
    sites,
    theirs,
    training,
)
from processes import end_of_group, fork, main, own_output, spawn_by_fork
from support import snapshot

from retexo.apps import evaluate, partition_data, plan, predict, report, train  # noqa: F401
from retexo.launch import fork_server

# --- the runner ----------

SHARES: dict[str, int] = {
    "settings": 500,
    "training": 100,
    "npz": 180,
    "csv": 90,
    "parquet": 70,
    "npy": 90,
    "bin": 60,
    "ours": 170,
    "theirs": 50,
    "checkpoint": 120,
    "sites": 120,
    "resume": 90,
    "nodes": 10,
    "tables": 50,
    "types": 50,
    "typed sites": 60,
}
"""Inputs of each kind."""
GENERATORS: dict[str, Callable[[Random, Path], Input]] = {
    **{form: data(form) for form in ("npz", "csv", "parquet", "npy", "bin")},
    "settings": settings,
    "training": training,
    "ours": ours,
    "theirs": theirs,
    "checkpoint": checkpoint,
    "sites": sites,
    "resume": resume,
    "nodes": nodes,
    "tables": tables,
    "types": types,
    "typed sites": typed_sites,
}


def files() -> dict[str, str]:
    """sha256 by path, without what every run may extend: its log, a site's ledger."""
    return {
        path: digest
        for path, digest in snapshot(Path()).items()
        if Path(path).name != "main.log" and not Path(path).name.startswith("asked")
    }


def child(kind: str, number: int, options: argparse.Namespace, base: Path, place: Path) -> int:
    """One input from start to end, in a process of its own; its status."""
    own_output(place / "output")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    fork_server.warm_up()  # of a process that has not computed
    (place / "in").mkdir()
    os.chdir(place / "in")
    rng = Random(f"{options.seed} {kind} {number}")
    given = GENERATORS[kind](rng, base)
    (place / "said").write_text(given.said, errors="backslashreplace")
    before = files()
    status = main(given.arguments) if isinstance(given.arguments, tuple) else given.arguments()
    sys.stdout.flush()
    said = (place / "output").read_text(errors="replace")
    (place / "wrong").write_text(" ".join(filter(None, judged(given, status, said, before))))
    return status


def judged(given: Input, status: int, said: str, before: dict[str, str]) -> Iterator[str | None]:
    if "Traceback (most recent call last)" in said:
        yield "traceback"
    if status not in (0, 1, 2):
        yield f"status {status}"
    if given.keeps and not before.items() <= files().items():
        yield "a file was changed"
    if status == 0:
        try:
            yield "accepted" if given.refused else given.judge()
        except Exception as error:
            yield f"accepted, and {error!r}"
    error = "\n".join(line for line in said.splitlines() if line.startswith("error: "))
    if status == 2 and not error.removeprefix("error: ").strip():
        yield "no words"
    if status == 2 and given.names and not any(name in error for name in given.names):
        yield "names neither file nor setting"


Result = tuple[str, int, str, str, str]
"""Kind, number, status, what is wrong, and what was done."""


def run(inputs: list[tuple[str, int]], options: argparse.Namespace, base: Path) -> Iterator[Result]:
    """The result of each input as it ends."""
    running: dict[int, tuple[str, int, int, float, Path]] = {}
    waiting = inputs[::-1]
    while waiting or running:
        while waiting and len(running) < options.jobs:
            kind, number = waiting.pop()
            place = Path(tempfile.mkdtemp(dir=base.parent))
            one = fork(child, kind, number, options, base, place)
            running[os.pidfd_open(one)] = (
                kind,
                number,
                one,
                time.monotonic() + options.limit,
                place,
            )
        connection.wait(
            list(running), min(end for *_, end, _ in running.values()) - time.monotonic()
        )
        for descriptor, (kind, number, one, end, place) in list(running.items()):
            late = time.monotonic() > end
            if late or connection.wait([descriptor], 0):
                result = (kind, number, *ended(one, late, place))
                yield result
                if result[2] == "1" and options.verbose:
                    print(result, (place / "output").read_text(errors="replace")[-500:])
                if options.index is not None:
                    print((place / "output").read_text(errors="replace"))
                os.close(descriptor)
                del running[descriptor]
                shutil.rmtree(place)


def ended(one: int, late: bool, place: Path) -> tuple[str, str, str]:
    """Status, what is wrong, and what was done, of a child that has ended or is late."""
    if late:
        os.killpg(one, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(one, 0)[1])
    wrong = (place / "wrong").read_text() if (place / "wrong").exists() else "no end"
    if not end_of_group(one):
        wrong += " a process stayed"
    said = (
        (place / "said").read_text()
        if (place / "said").exists()
        else (place / "output").read_text()[-1500:]
    )
    name = "late" if late else signal.Signals(-status).name if status < 0 else str(status)
    return name, "late" if late else name if status < 0 else wrong.strip(), said


def table(results: list[Result]) -> str:
    statuses = sorted({status for _, _, status, _, _ in results})
    counts = Counter((kind, status) for kind, _, status, _, _ in results)
    kinds = dict.fromkeys(kind for kind, *_ in results)
    rows: list[list[Any]] = [
        [kind, *(counts[kind, status] for status in statuses)] for kind in kinds
    ]
    rows.append(["all", *(sum(counts[kind, status] for kind, *_ in rows) for status in statuses)])
    head = [
        "inputs",
        *(f"status {status}" if status.isdigit() else status for status in statuses),
        "wrong",
        "all",
    ]
    wrong = Counter(kind for kind, _, _, what, _ in results if what)
    for row in rows:
        row += [wrong[row[0]] if row[0] != "all" else wrong.total(), sum(row[1:])]
    return "\n".join(
        "| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows)
    )


def make_all(base: Path) -> None:
    make_bases(base)
    make_hetero(base)


def script() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {"seed": 0, "count": 1750, "jobs": 2, "limit": 120}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=[*GENERATORS])
    parser.add_argument("--index", type=int)
    parser.add_argument("--base", type=Path, help="a folder for what is damaged, to be used again")
    parser.add_argument("--verbose", action="store_true", help="show what ends with status 1, too")
    options = parser.parse_args()
    numbers = {kind: max(1, round(share * options.count / 1750)) for kind, share in SHARES.items()}
    inputs = [(kind, number) for kind, count in numbers.items() for number in range(count)]
    if options.only is not None:
        inputs = [(kind, number) for kind, number in inputs if kind == options.only]
        inputs = inputs if options.index is None else [(options.only, options.index)]
    util.spawnv_passfds = spawn_by_fork
    defaults()  # composed once, for all children
    start, results = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="retexo-hostile-") as folder:
        base = Path(folder, "base") if options.base is None else options.base.resolve()
        if not base.exists() and os.waitpid(fork(make_all, base), 0)[1]:
            print(base.with_name("log").read_text())
            return 1
        for found in run(inputs, options, base):
            results.append(found)
            kind, number, status, wrong, said = found
            if wrong:
                print(f"{kind} {number}: {status}: {wrong}: {said}", flush=True)
    print(table(results))
    print(
        f"seed {options.seed}, {platform.machine()}, {os.cpu_count()} cores,"
        f" {time.strftime('%Y-%m-%d')}, {time.monotonic() - start:.0f} s"
    )
    return int(any(wrong for *_, wrong, _ in results))


if __name__ == "__main__":
    sys.exit(script())
