"""The imports run one way, as docs/architecture.md says: no module is loaded."""

import ast
import functools
import re
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest
from support import ROOT

PACKAGES = ("retexo", "partitioning")
FLOORS = {
    "partitioning": (
        ("errors", "thread_pool", "child_process"),
        ("setting_fields", "dgl_import"),
        ("partition_settings", "files"),
        ("graph",),
        ("features",),
        ("read",),
        ("node_split",),
        ("links",),
        ("datasets", "assign", "directory"),
        ("sites", "update"),
    ),
    "retexo": (
        ("arrays", "codecs", "errors", "scores"),
        ("comm", "settings"),
        ("models",),
        ("launch", "exchange"),
        ("results",),
        ("sites",),
        ("rounds",),
        ("tasks",),
        ("trainers",),
        ("worker",),
        ("plan",),
        ("predict",),
        ("apps",),
        ("__main__",),
    ),
}
"""The rooms of each package, from the ground up: a room imports itself and rooms of floors below.
"""


def modules() -> list[Path]:
    """All modules of the two packages and main.py."""
    return sorted(
        [
            ROOT / "main.py",
            *chain.from_iterable(ROOT.glob(f"{package}/**/*.py") for package in PACKAGES),
        ]
    )


@functools.cache
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


def room_of(path: Path, package: str) -> str | None:
    """The first folder, else the module, below a package; None outside it and for __init__.py."""
    top, *parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if top == package and parts != ["__init__"] else None


FILES = modules()


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def importers(package: str) -> set[str]:
    """Files, relative to the root, that import a package or something of it."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in FILES
        if any(within(name, package) for name in imports(path))
    }


@pytest.mark.parametrize(
    ("package", "files"),
    [
        ("torch.distributed", "retexo/comm/"),
        ("retexo", "(?!partitioning/)"),
        ("omegaconf", r"retexo/(__main__\.py|settings/)"),
        ("hydra", r"retexo/(__main__\.py|settings/)"),
        ("dgl", r"partitioning/dgl_import\.py$"),
    ],
)
def test_a_package_is_imported_only_where_it_belongs(package: str, files: str) -> None:
    assert importers(package)
    assert [file for file in importers(package) if not re.match(files, file)] == []


def test_only_its_trainer_loads_dgls_engine() -> None:
    """The engine is imported within a function, so only when it trains."""
    for path in FILES:
        if not path.relative_to(ROOT).as_posix().startswith("retexo/trainers/sampled_dgl/"):
            lines = [
                line
                for line in path.read_text().splitlines()
                if line.startswith(("from ", "import "))
            ]
            assert not [line for line in lines if "sampled_dgl" in line], path


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_has_a_floor(package: str) -> None:
    rooms = {room_of(path, package) for path in FILES} - {None}
    assert rooms == {*chain.from_iterable(FLOORS[package])}


@pytest.mark.parametrize(
    ("package", "room"),
    [(package, room) for package in PACKAGES for room in chain.from_iterable(FLOORS[package])],
)
def test_a_room_imports_only_floors_below_it(package: str, room: str) -> None:
    floors = FLOORS[package]
    number = next(place for place, floor in enumerate(floors) if room in floor)
    allowed = {room, *chain.from_iterable(floors[:number]), "__version__"}
    for path in (path for path in FILES if room_of(path, package) == room):
        rooms = {name.split(".")[1] for name in imports(path) if name.startswith(f"{package}.")}
        assert rooms <= allowed, f"{path} imports {rooms - allowed}"


def test_no_module_is_longer_than_520_lines() -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in FILES
    }
    assert not {name: length for name, length in lengths.items() if length > 520}


def test_no_module_needs_itself_to_be_imported() -> None:
    """What a module imports at its top, with the packages that hold it, never leads back to it."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in modules()
    }
    needed: dict[str, set[str]] = {}
    for name, path in names.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = set()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= (full & names.keys()) or {str(node.module)} & names.keys()
        folders = {module.rpartition(".")[0] for module in imported} & names.keys()
        needed[name] = (imported | folders) - {name, name.rpartition(".")[0]}
    graph = TopologicalSorter(needed)
    try:
        graph.prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
