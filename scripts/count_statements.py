#!/usr/bin/env python3
"""Python statements per folder, without docstrings: of the product and of the tests.

python scripts/count_statements.py            # of the working tree
python scripts/count_statements.py COMMIT     # of a commit beside the working tree
"""

import argparse
import ast
import io
import subprocess
import tarfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("main.py", "retexo", "partitioning")


def count_statements(source: str) -> int:
    """All statements, those within others included; a string alone is a docstring."""
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    return sum(not is_docstring(node) for node in statements)


def is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def read_working_tree() -> dict[str, str]:
    """The Python files by path."""
    files = [ROOT / "main.py"]
    for folder in ("retexo", "partitioning", "tests"):
        files += (ROOT / folder).rglob("*.py")
    return {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}


def read_commit(commit: str) -> dict[str, str]:
    """The Python files by path."""
    git = ["git", "-C", str(ROOT), "archive", "--format=tar", commit]
    archive = subprocess.run(git, stdout=subprocess.PIPE, check=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            file = tar.extractfile(member)  # None for a folder
            if file and member.name.endswith(".py"):
                found[member.name] = file.read().decode()
    return found


def count_by_folder(sources: dict[str, str]) -> Counter[str]:
    """Of folders up to two deep, of the product in all and of the tests in all."""
    counts: Counter[str] = Counter()
    for path, source in sources.items():
        top, *inner = path.split("/")
        if top not in (*PRODUCT, "tests"):
            continue
        number = count_statements(source)
        counts["/".join([top, *inner[:-1][:1]])] += number
        counts["tests, in all" if top == "tests" else "product, in all"] += number
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
    print(f"{'':<28}" + "".join(f"{name[:9]:>10}" for name in columns))
    totals = ("product, in all", "tests, in all")
    folders = sorted({folder for counts in columns.values() for folder in counts} - {*totals})
    for name in (*folders, *totals):
        print(f"{name:<28}" + "".join(f"{counts[name]:>10,}" for counts in columns.values()))


if __name__ == "__main__":
    main()
