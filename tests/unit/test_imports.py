"""The imports run one way, as docs and design say: read from the source, no module is loaded."""

import ast
from pathlib import Path

import pytest
from support import ROOT

FILES = sorted([*ROOT.glob("retexo/**/*.py"), *ROOT.glob("partitioning/**/*.py"), ROOT / "main.py"])


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
    assert importers(package) <= {"main.py", "retexo/config.py"}


def test_one_module_imports_dgl() -> None:
    assert importers("dgl") == {"partitioning/dgl_import.py"}


def test_retexo_takes_little_of_partitioning() -> None:
    everywhere = ("partitioning.storage", "partitioning.errors", "partitioning.dgl_import", "partitioning.ogb_import")
    for path in FILES:
        file = path.relative_to(ROOT).as_posix()
        if not file.startswith("retexo/") or file == "retexo/apps/partition_data.py":
            continue
        allowed = everywhere
        if file == "retexo/config.py" or file.startswith("retexo/apps/"):
            allowed = (*everywhere, "partitioning.settings", "partitioning.sites")
        names = {name for name in imports(path) if within(name, "partitioning") and name != "partitioning"}
        assert not [name for name in names if not any(within(name, package) for package in allowed)], file


LOWER_NEVER_IMPORTS_HIGHER = {
    "retexo/layers/": ("comm", "exchange", "trainers", "rounds", "stage", "gradients", "metrics", "config", "worker",
                       "launch", "apps", "setup", "checkpoint", "runlog"),
    "retexo/comm/": ("layers", "exchange", "trainers", "rounds", "stage", "gradients", "worker", "launch", "apps",
                     "config"),
    "retexo/stage.py": ("comm", "exchange", "trainers", "rounds", "worker", "launch", "apps", "checkpoint"),
    "retexo/metrics.py": ("comm", "exchange", "trainers", "rounds", "worker", "launch", "apps", "config"),
    "retexo/gradients.py": ("exchange", "trainers", "rounds", "worker", "launch", "apps", "checkpoint"),
    "retexo/exchange/": ("trainers", "rounds", "worker", "launch", "apps", "stage", "gradients", "checkpoint"),
    "retexo/rounds.py": ("trainers", "worker", "launch", "apps", "exchange"),
    "retexo/checkpoint.py": ("trainers", "worker", "launch", "apps", "comm", "exchange"),
    "retexo/trainers/": ("worker", "launch", "apps"),
    "retexo/worker.py": ("launch", "apps", "inference"),
    "retexo/inference.py": ("launch", "apps", "predictor"),
    "retexo/predictions.py": ("trainers", "worker", "launch", "apps", "comm", "exchange", "inference", "predictor"),
    "retexo/predictor.py": ("launch", "apps"),
    "retexo/launch.py": ("apps",),
    "retexo/nodes.py": ("trainers", "worker", "launch", "apps", "rounds", "exchange"),
    "retexo/preflight.py": ("trainers", "worker", "launch", "apps", "rounds", "exchange", "nodes"),
    "retexo/liveness.py": ("comm", "trainers", "worker", "launch", "apps", "nodes", "config"),
    "retexo/external.py": ("comm", "config", "launch", "apps", "nodes"),
}  # fmt: skip


@pytest.mark.parametrize("lower", LOWER_NEVER_IMPORTS_HIGHER)
def test_lower_rooms_do_not_import_higher_ones(lower: str) -> None:
    found = [path for path in FILES if path.relative_to(ROOT).as_posix().startswith(lower)]
    assert found
    for path in found:
        for name in imports(path):
            wrong = [room for room in LOWER_NEVER_IMPORTS_HIGHER[lower] if within(name, f"retexo.{room}")]
            assert not wrong, f"{path} imports {name}"
