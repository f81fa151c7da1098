"""Compare the results of this checkout with those of another commit: did anything change?

    python benchmarks/same_results.py REV [--only PATTERN ...] [--expect NAME ...]
    python benchmarks/same_results.py --list
    python benchmarks/same_results.py --self-test [--only BREAK ...]

Runs the same chains of commands (chains/list_of_chains.py) with both source trees and prints each
value that differs: parameters, predictions and arrays of partition directories as sha256, bytes
by kind, layer and peers, scores, meta.json and plan.json (chains/collect.py). Workers have one
thread. Values of REV are kept by commit in --cache. Exit status 1 if anything differs that
--expect does not name, or a chain fails.

A name is CHAIN.FOLDER.FILE.KEY, such as gcn-7-parts.train.summary.bytes.setup.layer0. --expect
takes names, or parts of them between dots, with * and ?: `bytes.setup`, `gat.plan.*`.

--self-test applies each replacement of chains/breaks.py to a copy of this checkout and asserts
that its chains differ.
"""

import argparse
import fnmatch
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHAINS = ROOT / "benchmarks/chains"
sys.path.insert(0, str(CHAINS))

from breaks import BREAKS, Break  # noqa: E402
from collect import matches  # noqa: E402
from list_of_chains import CHAINS as ALL_CHAINS  # noqa: E402

RENAMED: dict[str, str] = {}
"""Setting of this checkout -> its name in trees whose docs/settings.md does not list the former."""

PACKAGES = ("torch", "numpy", "scipy", "pandas", "pyarrow", "dgl", "hydra-core", "torch-geometric")
SHOWN = 12
"""Differing values printed of a chain."""

Results = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Difference:
    name: str
    before: Any
    after: Any


def run_chains(tree: Path, names: Sequence[str], jobs: int, folder: Path) -> Results:
    """Run chains with the source of a tree; return what run_chains.py wrote for each."""
    settings = (tree / "docs/settings.md").read_text(encoding="utf-8")
    renamed = {new: old for new, old in RENAMED.items() if f"`{new}`" not in settings}
    command = [sys.executable, str(CHAINS / "run_chains.py"), str(tree), str(folder), str(jobs)]
    with (folder / "driver.txt").open("wb") as output:
        driver = subprocess.Popen(
            [*command, json.dumps(renamed), *names],
            env=make_environment(tree),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            status = driver.wait()
        finally:
            driver.terminate()  # it then ends its chains
            driver.wait()
    if status:
        text = (folder / "driver.txt").read_text(encoding="utf-8", errors="replace")
        raise SystemExit(f"{tree}: the driver ended with {status}:\n{text[-4000:]}")
    return {
        name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in names
    }


def make_environment(tree: Path) -> dict[str, str]:
    one_thread = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RETEXO_")}
    return {**kept, **one_thread, "PYTHONPATH": str(tree), "DGLBACKEND": "pytorch"}


def run_commit(
    commit: str, names: Sequence[str], jobs: int, folder: Path, cache: Path | None
) -> Results:
    """Run chains with the source of a commit, but for those that the cache has."""
    place = None if cache is None else cache / make_key(commit)
    known: Results = {}
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        files = {name: place / f"{name}.json" for name in names}
        known = {
            name: json.loads(file.read_text(encoding="utf-8"))
            for name, file in files.items()
            if file.exists()
        }
    missing = [name for name in names if name not in known]
    if missing:
        tree = folder / "tree"
        export_commit(commit, tree)
        try:
            known |= run_chains(tree, missing, jobs, folder)
        finally:  # also if it is interrupted: chains that are done need not run again
            if place is not None:
                keep_finished(folder, missing, place)
    return known


def keep_finished(folder: Path, names: Sequence[str], place: Path) -> None:
    """Copy the results of chains without an error into the cache."""
    for name in names:
        file = folder / f"{name}.json"
        if file.exists() and json.loads(file.read_text(encoding="utf-8"))["error"] is None:
            unfinished = place / f".{name}.{os.getpid()}"
            shutil.copy(file, unfinished)
            unfinished.rename(place / f"{name}.json")


def make_key(commit: str) -> str:
    """Return a name for everything that results depend on besides the chain's name."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "none"
    machine = [platform.python_version(), platform.machine(), read_cpu_model()]
    files = [file for file in sorted(CHAINS.glob("*.py")) if file.name != "breaks.py"]
    text = [file.read_text(encoding="utf-8") for file in files]
    content = json.dumps([versions, machine, text, RENAMED])
    return f"{commit[:12]}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def read_cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line for line in lines if line.startswith("model name")), "")


def export_commit(commit: str, tree: Path) -> None:
    """Write the files of a commit into a new folder."""
    tree.mkdir(parents=True)
    with tempfile.TemporaryFile() as archive:
        git = ["git", "-C", str(ROOT), "archive", commit]
        subprocess.run(git, stdout=archive, check=True)
        archive.seek(0)
        subprocess.run(["tar", "-x", "-C", str(tree)], stdin=archive, check=True)


def find_differences(before: Results, after: Results) -> dict[str, list[Difference]]:
    """Return the values that differ, by chain; a value of one side only is None on the other."""
    differences = {}
    for chain in before:
        old, new = before[chain]["values"], after[chain]["values"]
        differences[chain] = [
            Difference(f"{chain}.{name}", old.get(name), new.get(name))
            for name in sorted(old.keys() | new.keys())
            if name not in old or name not in new or old[name] != new[name]
        ]
    return differences


def report(before: Results, after: Results, expected: Sequence[str]) -> bool:
    """Print what differs and what failed; return whether everything is as expected."""
    fine, used = True, set()
    for chain, differences in find_differences(before, after).items():
        for side, results in (("REV", before), ("this checkout", after)):
            if results[chain]["error"]:
                fine = False
                print(f"{chain}: {side}: {results[chain]['error']}")
        reasons = {
            difference.name: [pattern for pattern in expected if matches(difference.name, pattern)]
            for difference in differences
        }
        used |= {pattern for patterns in reasons.values() for pattern in patterns}
        unexpected = [difference for difference in differences if not reasons[difference.name]]
        excused = len(differences) - len(unexpected)
        total = len(before[chain]["values"].keys() | after[chain]["values"].keys())
        if differences:
            print(f"{chain}: {len(unexpected)} of {total} values differ; {excused} more expected")
        for difference in unexpected[:SHOWN]:
            print(f"    {difference.name}: {difference.before} -> {difference.after}")
        if len(unexpected) > SHOWN:
            print(f"    ... and {len(unexpected) - SHOWN} more")
        fine &= not unexpected
    for pattern in expected:
        if pattern not in used:
            print(f"--expect {pattern}: nothing of this name differs")
    return fine


def compare(options: argparse.Namespace, names: list[str], folder: Path) -> int:
    git = ["git", "-C", str(ROOT), "rev-parse", "--verify", f"{options.rev}^{{commit}}"]
    commit = subprocess.run(git, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    start = time.monotonic()
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    before = run_commit(commit, names, options.jobs, folder / "a", options.cache)
    middle = time.monotonic()
    after = run_chains(ROOT, names, options.jobs, folder / "b")
    end = time.monotonic()
    fine = report(before, after, options.expect)
    total = sum(len(result["values"]) for result in after.values())
    print(
        f"{len(names)} chains, {total:,} values: {'the same' if fine else 'DIFFERENT'};"
        f" {options.rev} {middle - start:.0f} s, this checkout {end - middle:.0f} s"
    )
    return 0 if fine else 1


def test_itself(options: argparse.Namespace, folder: Path) -> int:
    """Apply each deliberate break to a copy of this checkout; fail unless its chains differ."""
    breaks = [mutation for mutation in BREAKS if selected(mutation.name, options.only)]
    names = sorted({mutation.chain for mutation in breaks})
    (folder / "unbroken").mkdir()
    before = run_chains(ROOT, names, options.jobs, folder / "unbroken")
    for name in names:
        if before[name]["error"]:
            print(f"{name}, without a break: {before[name]['error']}")
            return 1
    with ThreadPoolExecutor(options.jobs) as pool:
        work = partial(find_break, before=before, folder=folder)
        seen = list(pool.map(work, breaks))
    print(f"{sum(seen)} of {len(breaks)} breaks seen")
    return 0 if all(seen) else 1


def find_break(mutation: Break, before: Results, folder: Path) -> bool:
    """Run the chain of a break with a broken copy of this checkout; return whether it differs."""
    start, place = time.monotonic(), folder / mutation.name.replace(" ", "-")
    tree = place / "tree"
    tree.mkdir(parents=True)
    for name in ("main.py", "retexo", "partitioning", "conf", "docs"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    mutation.apply(tree)
    after = run_chains(tree, [mutation.chain], 1, place)[mutation.chain]
    differences = find_differences(
        {mutation.chain: before[mutation.chain]}, {mutation.chain: after}
    )[mutation.chain]
    named = [one for one in differences if matches(one.name, mutation.seen_in)]
    seconds = time.monotonic() - start
    if named and not after["error"]:
        print(
            f"{mutation.name}: {len(differences)} values differ, {named[0].name}: {named[0].before}"
            f" -> {named[0].after}; {seconds:.0f} s",
            flush=True,
        )
        return True
    print(
        f"{mutation.name}: NOT SEEN in {mutation.seen_in}; {len(differences)} others;"
        f" {after['error'] or ''}"
    )
    return False


def selected(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rev", nargs="?", help="commit to compare with")
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="names of chains")
    parser.add_argument("--expect", nargs="+", default=[], metavar="NAME", help="may differ")
    parser.add_argument("--jobs", type=int, default=2, help="chains that run at the same time")
    parser.add_argument("--list", action="store_true", help="print the names of the chains")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder for what the chains write")
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "same_results"
    parser.add_argument("--cache", type=Path, default=default, help="folder of REV's values")
    parser.add_argument("--no-cache", dest="cache", action="store_const", const=None)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    names = [chain.name for chain in ALL_CHAINS if selected(chain.name, options.only)]
    if options.list:
        print(*names, sep="\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="same-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if options.self_test:
            return test_itself(options, folder)
        if options.rev is None or not names:
            parser.error("give a commit" if names else f"no chain matches {options.only}")
        return compare(options, names, folder)


if __name__ == "__main__":
    sys.exit(main())
