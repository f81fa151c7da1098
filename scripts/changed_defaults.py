#!/usr/bin/env python3
"""Print the defaults that differ from those of a commit, and the settings that restore them.

    python scripts/changed_defaults.py 8666332

Composes every file of conf/ for --config-name, +experiment (of one run) and trainer in both
versions. A setting that the commit lacks counts if its definition says that runs had another value
before (`earlier`).
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from retexo.settings.aliases import rename_settings  # noqa: E402
from retexo.settings.flatten import flatten  # noqa: E402
from retexo.settings.schema import DEFINED  # noqa: E402

Choice = tuple[str, ...]
"""Arguments of a command."""


def choices() -> list[Choice]:
    """Every configuration alone; every experiment and trainer with the default one."""
    conf = ROOT / "conf"
    found = [("--config-name", file.stem) for file in sorted(conf.glob("*.yaml"))]
    for prefix in ("+experiment", "trainer"):
        files = sorted((conf / prefix.lstrip("+")).glob("*.yaml"))
        single = [file.stem for file in files if "MULTIRUN" not in file.read_text()]
        found += [(f"{prefix}={name}",) for name in single]
    return [each for each in found if each != ("--config-name", "node_classification")]


def compose(tree: Path, choice: Choice) -> dict[str, Any] | None:
    """Settings by their present names; None where the version lacks the choice."""
    ended = subprocess.run(
        [sys.executable, "main.py", *choice, "--cfg", "job", "--resolve"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        return None
    return flatten(rename_settings(yaml.safe_load(ended.stdout)))


def compare(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Former and present value of each setting whose value has changed, as on the command line."""
    pairs = {}
    for name, value in now.items():
        added = DEFINED[name][0].before if name in DEFINED else value
        former = before.get(name, added)
        if former != value:
            pairs[name] = write(former), write(value)
    return pairs


def write(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def extract(commit: str, folder: Path) -> None:
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", commit]
    archive = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit")
    commit = parser.parse_args().commit
    where: defaultdict[tuple[str, str, str], list[Choice]] = defaultdict(list)
    everywhere = [(), *choices()]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        extract(commit, Path(folder))
        former = pool.map(lambda choice: compose(Path(folder), choice), everywhere)
        present = pool.map(lambda choice: compose(ROOT, choice), everywhere)
        for choice, before, now in zip(everywhere, former, present, strict=True):
            if before is None or now is None:
                print(f"only in one version: {' '.join(choice)}", file=sys.stderr)
                continue
            for name, (then, today) in compare(before, now).items():
                where[name, then, today].append(choice)
    print(f"|setting|{commit}|now|where|\n|---|---|---|---|")
    for (name, then, today), found in sorted(where.items()):
        names = "by default" if () in found else ", ".join(f"`{each[-1]}`" for each in found)
        print(f"|`{name}`|`{then}`|`{today}`|{names}|")
    print(f"\nAs by default in {commit}: ", end="")
    print(*(f"{name}={then}" for (name, then, _), found in sorted(where.items()) if () in found))


if __name__ == "__main__":
    main()
