"""A wheel is built, installed in an environment of its own, and used outside the checkout."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support import ROOT

import retexo
from retexo.settings.schema import CONFIG_DIR

SCRIPT = """
print("started")
import retexo
small = {"hidden_dim": 8, "num_rounds": [1], "device": "cpu", "cluster": {"threads": 1}}
cora = {"dataset_name": "cora", "partition_dir": "parts", "num_partitions": 2}
summary = retexo.train({**cora, **small, "hydra.run.dir": "run"})
print(retexo.__file__, summary["status"], summary["rounds"], summary["seconds"]["total"] < 500)
"""


def call(*command: str | Path, cwd: Path) -> str:
    """What a command prints; its status has to be 0."""
    ended = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=250, env={"PATH": "/usr/bin:/bin"}
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.timeout(600)
def test_a_wheel_partitions_and_trains_in_an_empty_folder(tmp_path: Path) -> None:
    """Installed without its dependencies, which are those of the tests; trained by a script that
    has no main guard.
    """
    source, environment, here = tmp_path / "source", tmp_path / "environment", tmp_path / "here"
    for folder in ("retexo", "partitioning", "conf"):
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / file, source)
    alone = ("--no-deps", "--no-index", "--disable-pip-version-check")
    call(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        *alone,
        "--no-build-isolation",
        "-w",
        tmp_path,
        source,
        cwd=tmp_path,
    )
    (wheel,) = tmp_path.glob("*.whl")
    check_contents(wheel)
    call(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    call(
        sys.executable, "-m", "pip", "--python", environment, "install", *alone, wheel, cwd=tmp_path
    )
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(
        str(Path(pytest.__file__).parents[1])
    )  # a .pth file in there is not followed
    here.mkdir()
    (here / "script.py").write_text(SCRIPT)
    assert "num_partitions" in call(environment / "bin" / "retexo", "--help", cwd=here)
    lines = call(environment / "bin" / "python", "script.py", cwd=here).splitlines()
    assert lines.count("started") == 1, "the workers ran it, too"
    assert lines[-1].split() == [
        str(packages / "retexo" / "__init__.py"),
        "done",
        "[1,",
        "1]",
        "True",
    ]
    assert json.loads((here / "run" / "summary.json").read_text())["status"] == "done"


def check_contents(wheel: Path) -> None:
    """Code, configuration and data, no tests; extras that name this distribution and one
    another.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (
            archive.read(name).decode() for name in names if name.endswith("dist-info/METADATA")
        )
        (commands,) = (
            archive.read(name).decode() for name in names if name.endswith("entry_points.txt")
        )
    for package in ("retexo", "partitioning"):
        files = (
            path for path in (ROOT / package).rglob("*.*") if path.parent.name != "__pycache__"
        )
        code = {path.relative_to(ROOT).as_posix() for path in files if path.is_file()}
        assert code <= names
        assert f"{package}/py.typed" in code
    assert {
        f"retexo/conf/{path.relative_to(CONFIG_DIR).as_posix()}"
        for path in CONFIG_DIR.rglob("*.yaml")
    } <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {
        "retexo",
        "partitioning",
    }
    assert "retexo = retexo.__main__:main" in commands
    assert re.search(r"^Name: retexo-gnn$", metadata, re.M)
    assert f"\nVersion: {retexo.__version__}\n" in metadata
    extras = set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.M)) - {"dev"}
    own = re.findall(r'^Requires-Dist: (retexo\S*)\[(.*)\]; extra == "dev"$', metadata, re.M)
    assert [(name, set(each.split(","))) for name, each in own] == [("retexo-gnn", extras)]
