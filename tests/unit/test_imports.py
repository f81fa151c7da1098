"""The imports run one way, as docs/architecture.md says: read from the source, no module is loaded."""

import sys

import pytest
from support import ROOT

sys.path.append(str(ROOT / "scripts"))
import architecture
from architecture import imports, modules, room_of

FILES = modules()
FLOORS = (
    ("arrays", "errors"),
    ("comm", "config"),
    ("nn",),
    ("report", "cluster", "exchange"),
    ("sites", "outputs", "distdgl"),
    ("training",),
    ("trainers",),
    ("hetero",),
    ("worker",),
    ("estimate",),
    ("apps",),
    ("__main__",),
)
"""The rooms of retexo/, from the ground up: a room imports itself and rooms of the floors below it."""


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def importers(package: str) -> set[str]:
    """Files, relative to the root, that import a package or something of it."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in FILES
        if any(within(name, package) for name in imports(path))
    }


def test_there_is_something_to_read() -> None:
    assert len(FILES) > 30
    assert importers("torch")


def test_only_comm_imports_torch_distributed() -> None:
    assert importers("torch.distributed")
    assert all(file.startswith("retexo/comm/") for file in importers("torch.distributed"))


def test_partitioning_never_imports_retexo() -> None:
    assert not [file for file in importers("retexo") if file.startswith("partitioning/")]


@pytest.mark.parametrize("package", ["omegaconf", "hydra"])
def test_only_config_and_the_command_know_hydra(package: str) -> None:
    assert all(
        file == "retexo/__main__.py" or file.startswith("retexo/config/")
        for file in importers(package)
    )


def test_one_module_imports_dgl() -> None:
    assert importers("dgl") == {"partitioning/dgl_import.py"}


def test_only_its_trainer_loads_dgls_engine() -> None:
    """And only when it trains: by an import within a function."""
    its = ("retexo/distdgl/", "retexo/trainers/batches.py")
    for path in FILES:
        if not path.relative_to(ROOT).as_posix().startswith(its):
            lines = [
                line
                for line in path.read_text().splitlines()
                if line.startswith(("from ", "import "))
            ]
            assert not [line for line in lines if "distdgl" in line or "batches" in line], path


def test_retexo_takes_little_of_partitioning() -> None:
    taken = (
        "directory",
        "hetero",
        "links",
        "errors",
        "files",
        "dgl_import",
        "ogb_import",
        "setting_fields",
        "threads",
    )
    everywhere = tuple(f"partitioning.{name}" for name in taken)
    for path in FILES:
        file = path.relative_to(ROOT).as_posix()
        if not file.startswith("retexo/") or file == "retexo/apps/partition_data.py":
            continue
        allowed = everywhere
        if file.startswith(("retexo/config/", "retexo/apps/")):
            allowed = (*everywhere, "partitioning.settings", "partitioning.sites")
        names = {
            name
            for name in imports(path)
            if within(name, "partitioning") and name != "partitioning"
        }
        assert not [
            name for name in names if not any(within(name, package) for package in allowed)
        ], file


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(path) for path in FILES} - {"__init__", "main", "partitioning"}
    assert rooms == {room for floor in FLOORS for room in floor}


@pytest.mark.parametrize("room", [room for floor in FLOORS for room in floor])
def test_a_room_imports_only_floors_below_it(room: str) -> None:
    number = next(place for place, floor in enumerate(FLOORS) if room in floor)
    allowed = {room, *(lower for floor in FLOORS[:number] for lower in floor)}
    for path in (path for path in FILES if room_of(path) == room):
        rooms = {name.split(".")[1] for name in imports(path) if name.startswith("retexo.")} - {
            "__version__"
        }
        assert rooms <= allowed, f"{path} imports {rooms - allowed}"


def test_the_page_on_the_architecture_is_made_from_the_code() -> None:
    page = architecture.PAGE.read_text()
    assert architecture.written(page) == page, "run python scripts/architecture.py"


def test_no_module_is_longer_than_520_lines() -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in FILES
    }
    assert not {name: length for name, length in lengths.items() if length > 520}
