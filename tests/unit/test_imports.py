"""The imports run one way, as docs/architecture.md says: read from the source, no module is loaded."""

import ast
from pathlib import Path

import pytest
from support import ROOT

FILES = sorted([*ROOT.glob("retexo/**/*.py"), *ROOT.glob("partitioning/**/*.py"), ROOT / "main.py"])
FLOORS = (
    ("errors",),
    ("comm", "nn"),
    ("config",),
    ("report", "cluster", "exchange"),
    ("sites", "outputs"),
    ("training",),
    ("trainers",),
    ("worker",),
    ("estimate",),
    ("apps",),
    ("predictor",),
)
"""The rooms of retexo/, from the ground up: a room imports itself and rooms of the floors below it."""


def imports(path: Path) -> set[str]:
    """Dotted names that a module imports anywhere; `from a import b` gives both a and a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def importers(package: str) -> set[str]:
    """Files, relative to the root, that import a package or something of it."""
    return {path.relative_to(ROOT).as_posix() for path in FILES if any(within(name, package) for name in imports(path))}


def room_of(path: Path) -> str:
    """The room of a module of retexo/: its folder, or its own name at the top."""
    return path.relative_to(ROOT / "retexo").parts[0].removesuffix(".py")


def test_there_is_something_to_read() -> None:
    assert len(FILES) > 30
    assert importers("torch")


def test_only_comm_imports_torch_distributed() -> None:
    assert importers("torch.distributed")
    assert all(file.startswith("retexo/comm/") for file in importers("torch.distributed"))


def test_partitioning_never_imports_retexo() -> None:
    assert not [file for file in importers("retexo") if file.startswith("partitioning/")]


@pytest.mark.parametrize("package", ["omegaconf", "hydra"])
def test_only_config_and_main_know_hydra(package: str) -> None:
    assert all(file == "main.py" or file.startswith("retexo/config/") for file in importers(package))


def test_one_module_imports_dgl() -> None:
    assert importers("dgl") == {"partitioning/dgl_import.py"}


def test_retexo_takes_little_of_partitioning() -> None:
    everywhere = ("partitioning.storage", "partitioning.errors", "partitioning.dgl_import", "partitioning.ogb_import")
    for path in FILES:
        file = path.relative_to(ROOT).as_posix()
        if not file.startswith("retexo/") or file == "retexo/apps/partition_data.py":
            continue
        allowed = everywhere
        if file.startswith(("retexo/config/", "retexo/apps/")):
            allowed = (*everywhere, "partitioning.settings", "partitioning.sites")
        names = {name for name in imports(path) if within(name, "partitioning") and name != "partitioning"}
        assert not [name for name in names if not any(within(name, package) for package in allowed)], file


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(path) for path in ROOT.glob("retexo/**/*.py")} - {"__init__"}
    assert rooms == {room for floor in FLOORS for room in floor}


@pytest.mark.parametrize("room", [room for floor in FLOORS for room in floor])
def test_a_room_imports_only_floors_below_it(room: str) -> None:
    number = next(place for place, floor in enumerate(FLOORS) if room in floor)
    allowed = {room, *(lower for floor in FLOORS[:number] for lower in floor)}
    for path in (path for path in ROOT.glob("retexo/**/*.py") if room_of(path) == room):
        rooms = {name.split(".")[1] for name in imports(path) if name.startswith("retexo.")}
        assert rooms <= allowed, f"{path} imports {rooms - allowed}"
