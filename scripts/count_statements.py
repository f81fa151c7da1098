#!/usr/bin/env python3
"""Python statements and nodes of the syntax tree per folder, without docstrings.

Every Python file of the repository is counted, so code that is moved is counted where it went.

python scripts/count_statements.py            # of the working tree
python scripts/count_statements.py COMMIT     # of a commit beside the working tree
"""

import argparse
import ast
import io
import subprocess
import tarfile
from collections import defaultdict
from itertools import compress
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("main.py", "retexo", "partitioning")
TOTALS = ("product, in all", "tests, in all", "everything, in all")


def count(source: str) -> tuple[int, int]:
    """Statements, those within others included, and nodes of the syntax tree.

    A string alone is a docstring and not counted, nor is `ast.Load` and its like.
    """
    nodes = [node for node in ast.walk(ast.parse(source)) if not isinstance(node, ast.expr_context)]
    num_docstrings = sum(is_docstring(node) for node in nodes)
    num_statements = sum(isinstance(node, ast.stmt) for node in nodes)
    return num_statements - num_docstrings, len(nodes) - 2 * num_docstrings


def is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def git(*arguments: str) -> bytes:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], stdout=subprocess.PIPE, check=True
    ).stdout


def read_working_tree() -> dict[str, str]:
    """The Python files by path, those that are not committed yet included."""
    names = git("ls-files", "--cached", "--others", "--exclude-standard", "*.py").decode().split()
    return {name: (ROOT / name).read_text() for name in names if (ROOT / name).exists()}


def read_commit(commit: str) -> dict[str, str]:
    """The Python files by path."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", "--format=tar", commit))) as tar:
        files = {name: tar.extractfile(name) for name in tar.getnames() if name.endswith(".py")}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def count_by_folder(sources: dict[str, str]) -> dict[str, np.ndarray]:
    """Statements and nodes of folders up to two deep, of product, tests and everything in all."""
    counts: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2, np.int64))
    for path, source in sources.items():
        top, *inner = path.split("/")
        belongs = (top in PRODUCT, top == "tests", True)
        for name in ["/".join([top, *inner[:-1][:1]]), *compress(TOTALS, belongs)]:
            counts[name] += count(source)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", nargs="?")
    commit = parser.parse_args().commit
    columns = {"now": count_by_folder(read_working_tree())}
    if commit:
        columns = {commit: count_by_folder(read_commit(commit)), **columns}
    print(f"{'statements, nodes':<28}" + "".join(f"{name[:9]:>20}" for name in columns))
    folders = sorted({folder for counts in columns.values() for folder in counts} - {*TOTALS})
    for name in (*folders, *TOTALS):
        pairs = [counts[name] for counts in columns.values()]
        print(f"{name:<28}" + "".join(f"{pair[0]:>10,}{pair[1]:>10,}" for pair in pairs))


if __name__ == "__main__":
    main()
