#!/usr/bin/env python3
"""The two parts of docs/architecture.md that follow from the code: the picture of the imports, and all modules.

    python scripts/architecture.py

What a room (a folder) or a module is for, its docstring's first sentence says. An arrow says that a room imports
another; those that other arrows imply are left out.
"""

import ast
import re
from collections import defaultdict
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("retexo", "partitioning")


def modules() -> list[Path]:
    """All modules of the two packages and main.py."""
    return sorted(
        [
            ROOT / "main.py",
            *chain.from_iterable(ROOT.glob(f"{package}/**/*.py") for package in PACKAGES),
        ]
    )


def imports(path: Path) -> set[str]:
    """Dotted names that a module imports anywhere; `from a import b` gives both a and a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def room_of(path: Path) -> str:
    """main, partitioning, or the first folder (else the module) below retexo."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "retexo" and len(parts) > 1 else parts[0]


def arrows() -> dict[str, set[str]]:
    """The rooms that each room imports, itself left out."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in modules():
        for name in imports(path):
            if name.split(".")[0] not in PACKAGES or name == "retexo":
                continue
            package, _, rest = name.partition(".")
            target = rest.split(".")[0] if package == "retexo" else package
            if target not in (room_of(path), "__version__"):
                found[room_of(path)].add(target)
    return found


def without_implied(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The same order with the fewest arrows; the graph has no circle."""

    def reach(room: str) -> set[str]:
        return set().union(*({other} | reach(other) for other in graph.get(room, ())))

    return {
        room: others - set().union(*(reach(other) for other in others))
        for room, others in graph.items()
    }


def picture() -> str:
    lines = [
        f"  {room} --> {other}"
        for room, others in sorted(without_implied(arrows()).items())
        for other in sorted(others)
    ]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def first_sentence(path: Path) -> str:
    text = " ".join(
        (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
        .split("\n\n")[0]
        .split()
    )
    sentence = re.split(r"(?<=[.:;]) (?=[A-Z`])|\.$", text)[0].rstrip(".:")
    return sentence.replace("|", "\\|")


def table() -> str:
    """Every module, by folder, with its docstring's first sentence."""
    folders: dict[Path, list[Path]] = defaultdict(list)
    for path in modules():
        folders[path.parent].append(path)
    lines = []
    for folder, paths in sorted(folders.items()):
        name = "" if folder == ROOT else f"{folder.relative_to(ROOT).as_posix()}/"
        init = folder / "__init__.py"
        if init in paths:
            lines.append(f"\n**{name}** {first_sentence(init)}\n")
        lines += ["| module | |", "|---|---|"]
        lines += [f"| {path.name} | {first_sentence(path)} |" for path in paths if path != init]
    return "\n".join(lines).strip()


def written(page: str) -> str:
    """The page with both parts as they are in the code."""
    for name, text in (("imports", picture()), ("modules", table())):
        begin, end = (
            f"<!-- {name}: made by scripts/architecture.py -->\n",
            f"\n<!-- end of {name} -->",
        )
        head, _, rest = page.partition(begin)
        _, _, tail = rest.partition(end)
        page = f"{head}{begin}{text}{end}{tail}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
